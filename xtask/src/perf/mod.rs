//! `cargo xtask perf`: every row of the table of targets, measured by the program's own verbs, as one table in markdown.
//! Not here: the rows (`rows.rs`), how one is measured (`measure.rs`, `verbs.rs`), and the text (`table.rs`).

mod measure;
mod rows;
mod table;
mod verbs;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use rows::{ROWS, Row};
use verbs::Verbs;

const USAGE: &str = "expected [--only ROW]... [--quick] [--into FOLDER] [--peers FOLDER] [--built]";

/// What was asked for.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    only: Vec<String>,
    quick: bool,
    into: Option<PathBuf>,
    peers: Option<PathBuf>,
    built: bool,
}

impl Asked {
    fn parse(words: &[&str]) -> Result<Asked> {
        let mut asked = Asked::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("perf {word}: its value is missing; {USAGE}"));
            match *word {
                "--quick" => asked.quick = true,
                "--built" => asked.built = true,
                "--only" => asked.only.push((*value()?).to_owned()),
                "--into" => asked.into = Some(value()?.into()),
                "--peers" => asked.peers = Some(value()?.into()),
                other => bail!("perf {other}: {USAGE}"),
            }
        }
        Ok(asked)
    }

    fn rows(&self) -> Result<Vec<&'static Row>> {
        for name in &self.only {
            if !ROWS.iter().any(|row| row.id == name) {
                let known: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
                bail!("perf --only {name}: no such row; expected one of {}", known.join(", "));
            }
        }
        let wanted = |row: &&Row| self.only.is_empty() || self.only.iter().any(|name| name == row.id);
        Ok(ROWS.iter().filter(wanted).collect())
    }
}

/// Builds what is measured (unless `--built`), measures, prints the table; with `--into`, keeps it with all records in a new
/// folder.
///
/// # Errors
/// Wrong words, a folder that exists, a program that does not build. A row that cannot be measured is a line that says why.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let asked = Asked::parse(words)?;
    let rows = asked.rows()?;
    // A relative path is the caller's, and the verbs run in the repository's root.
    let here = std::env::current_dir().context("the working directory")?;
    let kept = asked.into.as_ref().map(|folder| here.join(folder));
    let folder = match &kept {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("hourglass-perf-{}", std::process::id())),
    };
    if folder.exists() {
        bail!("perf --into {}: exists already; name a new folder", folder.display());
    }
    let target = beside_this_program()?;
    if !asked.built {
        crate::finish("build", crate::cargo().args(["build", "--release", "-p", "hourglass", "--bins"]))?;
        let example =
            ["build", "--release", "-p", "hourglass-model", "--example", "batch_rates", "--example", "step_reads"];
        crate::finish("build", crate::cargo().args(example))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let verbs = Verbs {
        hourglass: target.join("hourglass"),
        batch_rates: target.join("examples/batch_rates"),
        step_reads: target.join("examples/step_reads"),
        folder: folder.clone(),
        peers: asked.peers.as_ref().map(|folder| here.join(folder)),
        quick: asked.quick,
    };
    let mut outcomes = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        eprintln!("xtask: perf: {} ({} of {})", row.id, index + 1, rows.len());
        let outcome = measure::measure(&verbs, row);
        for line in &outcome.lines {
            eprintln!("{}", table::short(line));
        }
        outcomes.push(outcome);
    }
    let text = table::markdown(&outcomes, asked.quick);
    println!("{text}");
    if kept.is_some() {
        std::fs::write(folder.join("targets.md"), text).context("targets.md")?;
    } else {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}

/// The folder of the programs that were built with this one.
fn beside_this_program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program's own path")?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_path_buf())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn words_are_read_and_wrong_ones_are_told() {
        let asked = Asked::parse(&["--only", "decode", "--quick", "--only", "memory"]).unwrap();
        assert_eq!((asked.only.len(), asked.quick, asked.rows().unwrap().len()), (2, true, 2));
        assert_eq!(Asked::default().rows().unwrap().len(), ROWS.len());
        for (words, expected) in [
            (&["--slow"][..], "perf --slow"),
            (&["--only"], "--only: its value is missing"),
            (&["--only", "speed"], "no such row; expected one of decode"),
        ] {
            let error = Asked::parse(words).and_then(|asked| asked.rows().map(|_| ())).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
