//! The repository's own chores: `cargo xtask VERB`. What each does is in the file of its name.
//! Not here: anything the shipped binary needs.

mod book;
mod cubins;
mod day;
mod deps;
mod fixtures;
mod peers;
mod perf;
mod schema;
mod test;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask VERB

  test      format, lints, crate edges, schemas, documentation, then every test in release mode
  day       what you wrote for a day of crates/lab/days: its tests, whether the model calls it, the clock against its parent
  book      builds the handbook into target/book; with --check only looks whether everything in it is there
  cubins    compiles the GPU kernels ahead, for machines with a driver and no compiler; the next build takes them in
  deps      fails on an edge between crates that the map does not have
  schema    writes schemas/ from the record types; with --check only compares
  fixtures  fetches the real model and tokenizer that some tests read, into downloads/
  perf      the table of targets: ours, each peer, floor, ratio, verdict; [--only ROW]... [--quick] [--into FOLDER] (keeps
            all records) [--peers FOLDER] [--built] (measures what is built). An hour; quiet machines only. With
            --device cuda[:N] a GPU's targets; `xtask perf --built` needs no sources there, only `hourglass` beside it
  peers     gets the engines to compare with, into .venv/ (minutes): llama.cpp, openvino and mlx, or those named;
            also by name llama.cpp-avx2 (into .venv-avx2/), transformers (5.5 GB), and oracle, which makes fixtures (5.5 GB)";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => test::run(),
        ["day", number] => day::run(number),
        ["book", ref words @ ..] => book::run(words),
        ["cubins"] => cubins::run(),
        ["deps"] => deps::run(),
        ["schema"] => schema::write(),
        ["schema", "--check"] => schema::check(),
        ["fixtures"] => fixtures::run(),
        ["perf", ref words @ ..] => perf::run(words),
        ["peers"] => peers::run(peers::DEFAULT),
        ["peers", ref names @ ..] => peers::run(names),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root: the directory above this crate.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the repository").to_path_buf()
}

/// The cargo that runs this.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // Build scripts that look at these would otherwise run again, and what depends on them, whenever a person's cargo and this one
    // take turns.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name == "CARGO_MANIFEST_DIR" || name.starts_with("CARGO_PKG_")) {
            command.env_remove(name);
        }
    }
    command
}

/// The rustfmt beside it, with the repository's settings.
fn rustfmt() -> Command {
    let mut command = Command::new("rustfmt");
    command.current_dir(root()).args(["--edition", "2024", "--config-path", "rustfmt.toml"]);
    command
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot be started, or does not succeed; `what` says which step that was.
fn finish(what: &str, command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{what}: cannot start {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{what} failed ({status})");
    }
    Ok(())
}
