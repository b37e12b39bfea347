//! `cargo xtask test`: everything that must hold before a commit, the tests last, so that their runner's summary is the
//! last thing printed. The handbook is built by tests of its crate, for which nothing is compiled twice.
//! Not here: the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{cargo, deps, finish, schema};

pub(crate) fn run() -> Result<()> {
    finish("format (run `cargo fmt --all` to mend it)", cargo().args(["fmt", "--all", "--check"]))?;
    // A macro declares the operators' modules, which cargo fmt does not see through.
    let operators = rust_files(&crate::root().join("crates/ops/src/operators"))?;
    finish("format of the operators (run rustfmt on them)", crate::rustfmt().arg("--check").args(operators))?;
    deps::run()?;
    schema::check()?;
    // The same profile as the tests, so that nothing is compiled twice.
    finish(
        "clippy",
        cargo().args(["clippy", "--quiet", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    )?;
    finish(
        "documentation",
        cargo()
            .args(["doc", "--quiet", "--release", "--workspace", "--lib", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    if has_nextest() {
        // nextest leaves out the examples in documentation.
        finish("documentation tests", cargo().args(["test", "--quiet", "--release", "--workspace", "--doc"]))?;
        finish("tests", cargo().args(["nextest", "run", "--release", "--workspace"]))
    } else {
        finish("tests", cargo().args(["test", "--release", "--workspace"]))
    }
}

/// Every Rust file below a folder.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn has_nextest() -> bool {
    let mut command: Command = cargo();
    command.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
