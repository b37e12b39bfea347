//! `cargo xtask book`: the handbook, built by a crate of its own, so that no other chore waits for mdBook to compile.
//! Not here: the builder (`crates/book`).

use anyhow::Result;

/// `words` are the builder's own arguments.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let mut command = crate::cargo();
    command.args(["run", "--quiet", "--release", "--package", "hourglass-book", "--"]).args(words);
    crate::finish("book", &mut command)
}
