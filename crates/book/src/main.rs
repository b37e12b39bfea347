//! `cargo xtask book`: builds the handbook into `target/book`; with `--check` only looks whether it can be built.
//! Not here: the building (`lib.rs`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use book::{Options, build};

const USAGE: &str = "usage: cargo xtask book [--check] [--records FOLDER]

  --check           build into a folder that is removed again
  --records FOLDER  take the records from this folder instead of the one that book/records.toml names";

fn main() -> ExitCode {
    let mut check = false;
    let mut records = None;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--check" => check = true,
            "--records" => match words.next() {
                Some(folder) => records = Some(PathBuf::from(folder)),
                None => return usage(),
            },
            _ => return usage(),
        }
    }
    match run(check, records) {
        Ok(words) => {
            println!("{words}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("book: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn run(check: bool, records: Option<PathBuf>) -> anyhow::Result<String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).expect("the crate lies in crates/").to_path_buf();
    let scratch = tempfile::tempdir()?;
    let out = if check { scratch.path().join("book") } else { root.join("target/book") };
    let summary = build(&Options { root, records, out: out.clone() })?;
    let what = format!("{} chapters, {} figures, {} links", summary.chapters, summary.figures, summary.links);
    Ok(if check {
        format!("book: {what}: all of it is there")
    } else {
        format!("book: {what}; open {}", out.join("index.html").display())
    })
}
