//! `cargo xtask test`: everything that must hold before a commit, the tests last, so that their runner's summary is the
//! last thing printed.
//! Not here: the tests.

use std::process::{Command, Stdio};

use anyhow::Result;

use crate::{cargo, deps, finish, schema};

pub(crate) fn run() -> Result<()> {
    finish("format (run `cargo fmt --all` to mend it)", cargo().args(["fmt", "--all", "--check"]))?;
    deps::run()?;
    schema::check()?;
    // The same profile as the tests, so that nothing is compiled twice.
    finish(
        "clippy",
        cargo().args(["clippy", "--quiet", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    )?;
    finish(
        "documentation",
        cargo().args(["doc", "--quiet", "--release", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    if has_nextest() {
        // nextest leaves out the examples in documentation.
        finish("documentation tests", cargo().args(["test", "--quiet", "--release", "--workspace", "--doc"]))?;
        finish("tests", cargo().args(["nextest", "run", "--release", "--workspace"]))
    } else {
        finish("tests", cargo().args(["test", "--release", "--workspace"]))
    }
}

fn has_nextest() -> bool {
    let mut command: Command = cargo();
    command.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
