//! `cargo xtask perf`: every row of a table of targets, the CPU's or a GPU's, measured by the program's own verbs, in markdown.
//! Not here: the rows (`rows.rs`, `gpu_rows.rs`), how one is measured (`measure.rs`, `gpu.rs`, `verbs.rs`), the text (`table.rs`).

mod gpu;
#[cfg(test)]
mod gpu_fixture;
mod gpu_rows;
mod measure;
mod rows;
mod table;
mod verbs;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use gpu_rows::{GPU_ROWS, GpuRow};
use measure::{Outcome, Verdict};
use rows::{ROWS, Row};
use table::Sheet;
use verbs::Verbs;

const USAGE: &str =
    "expected [--device cpu|cuda[:N]] [--only ROW]... [--quick] [--into FOLDER] [--peers FOLDER] [--built]";

/// What was asked for.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    /// As the verbs' `--device` takes it; None is the CPU.
    gpu: Option<String>,
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
                "--device" => asked.gpu = device(value()?)?,
                "--only" => asked.only.push((*value()?).to_owned()),
                "--into" => asked.into = Some(value()?.into()),
                "--peers" => asked.peers = Some(value()?.into()),
                other => bail!("perf {other}: {USAGE}"),
            }
        }
        if asked.gpu.is_some() && asked.peers.is_some() {
            bail!(
                "perf --peers: other engines run beside ours on the CPU alone, and a GPU's table has llama.cpp's figures \
                   of record; leave it out, or --device"
            );
        }
        Ok(asked)
    }

    fn sheet(&self) -> Sheet {
        if self.gpu.is_some() { Sheet::Gpu } else { Sheet::Cpu }
    }

    /// The rows to measure, in the table's order.
    fn rows(&self) -> Result<Vec<Task>> {
        let all: Vec<Task> = match self.sheet() {
            Sheet::Cpu => ROWS.iter().map(Task::Cpu).collect(),
            Sheet::Gpu => GPU_ROWS.iter().map(Task::Gpu).collect(),
        };
        for name in &self.only {
            if !all.iter().any(|row| row.id() == name) {
                let known: Vec<&str> = all.iter().map(Task::id).collect();
                let device = self.gpu.as_deref().unwrap_or("cpu");
                bail!("perf --only {name}: no such row of --device {device}; expected one of {}", known.join(", "));
            }
        }
        let wanted = |row: &Task| self.only.is_empty() || self.only.iter().any(|name| name == row.id());
        Ok(all.into_iter().filter(wanted).collect())
    }
}

/// A value of `--device`; None is the CPU.
fn device(text: &str) -> Result<Option<String>> {
    let ordinal = |text: &str| text.parse::<u32>().is_ok();
    match text {
        "cpu" => Ok(None),
        _ if text == "cuda" || text.strip_prefix("cuda:").is_some_and(ordinal) => Ok(Some(text.to_owned())),
        _ => bail!("perf --device {text}: expected cpu, cuda (the first GPU) or cuda:N; each has its own targets"),
    }
}

/// A row of one of the tables.
enum Task {
    Cpu(&'static Row),
    Gpu(&'static GpuRow),
}

impl Task {
    fn id(&self) -> &'static str {
        match self {
            Task::Cpu(row) => row.id,
            Task::Gpu(row) => row.id,
        }
    }

    fn measure(&self, verbs: &Verbs) -> Outcome {
        match self {
            Task::Cpu(row) => measure::measure(verbs, row),
            Task::Gpu(row) => gpu::measure(verbs, row),
        }
    }
}

/// Builds what is measured (unless `--built`), measures, prints the table; with `--into`, keeps it with all records in a new
/// folder. With `--built` neither cargo nor the sources are needed: a copy of this program beside one of `hourglass` will do.
///
/// # Errors
/// Wrong words, a folder that exists, a program that does not build or is not there; no line that could be measured. One that cannot be
/// measured among others is a line that says why.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let asked = Asked::parse(words)?;
    let rows = asked.rows()?;
    // A relative path is the caller's, and the verbs run in the repository's root, where there is one.
    let here = std::env::current_dir().context("the working directory")?;
    let root = crate::root();
    let place = if root.join("Cargo.toml").exists() { root } else { here.clone() };
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
        build(asked.sheet())?;
    }
    let hourglass = target.join("hourglass");
    if !hourglass.exists() {
        bail!(
            "perf --built: {} is not there; put the program beside this one, or leave out --built in the repository",
            hourglass.display()
        );
    }
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let verbs = Verbs {
        hourglass,
        batch_rates: target.join("examples/batch_rates"),
        step_reads: target.join("examples/step_reads"),
        folder: folder.clone(),
        peers: asked.peers.as_ref().map(|folder| here.join(folder)),
        quick: asked.quick,
        place,
        device: asked.gpu.clone().unwrap_or_else(|| "cpu".to_owned()),
    };
    let mut outcomes = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        eprintln!("xtask: perf: {} ({} of {})", row.id(), index + 1, rows.len());
        let outcome = row.measure(&verbs);
        for line in &outcome.lines {
            eprintln!("{}", table::short(line));
        }
        outcomes.push(outcome);
    }
    let text = table::markdown(&outcomes, asked.sheet(), asked.quick);
    println!("{text}");
    if kept.is_some() {
        std::fs::write(folder.join("targets.md"), text).context("targets.md")?;
    } else {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    // A script that asks for a table is not to take one of reasons for it.
    if outcomes.iter().flat_map(|outcome| &outcome.lines).all(|line| line.verdict == Verdict::NotMeasurable) {
        bail!("perf: nothing was measurable here; the table above says why");
    }
    Ok(())
}

/// Builds what the rows start.
fn build(sheet: Sheet) -> Result<()> {
    let root = crate::root();
    if !root.join("Cargo.toml").exists() {
        bail!(
            "perf: nothing can be built, because the sources are not at {}; --built measures the programs beside this one",
            root.display()
        );
    }
    crate::finish("build", crate::cargo().args(["build", "--release", "-p", "hourglass", "--bins"]))?;
    if sheet == Sheet::Cpu {
        let examples =
            ["build", "--release", "-p", "hourglass-model", "--example", "batch_rates", "--example", "step_reads"];
        crate::finish("build", crate::cargo().args(examples))?;
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
        let asked = Asked::parse(&["--device", "cuda:1", "--only", "4b-2048"]).unwrap();
        assert_eq!((asked.gpu.as_deref(), asked.sheet()), (Some("cuda:1"), Sheet::Gpu));
        assert_eq!(asked.rows().unwrap().iter().map(Task::id).collect::<Vec<_>>(), ["4b-2048"]);
        let asked = Asked::parse(&["--device", "cuda", "--built"]).unwrap();
        assert_eq!((asked.rows().unwrap().len(), asked.built), (GPU_ROWS.len(), true));
        assert_eq!(Asked::parse(&["--device", "cpu"]).unwrap(), Asked::default());
        for (words, expected) in [
            (&["--slow"][..], "perf --slow"),
            (&["--only"], "--only: its value is missing"),
            (&["--only", "speed"], "no such row of --device cpu; expected one of decode"),
            (&["--only", "idle"], "no such row of --device cpu"),
            (&["--device", "cuda", "--only", "memory"], "no such row of --device cuda; expected one of 0.6b, 4b"),
            (&["--device", "auto"], "perf --device auto: expected cpu, cuda"),
            (&["--device", "cuda:"], "perf --device cuda:: expected"),
            (&["--device", "gpu"], "perf --device gpu: expected"),
            (&["--device", "cuda", "--peers", "x"], "perf --peers: other engines"),
        ] {
            let error = Asked::parse(words).and_then(|asked| asked.rows().map(|_| ())).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
