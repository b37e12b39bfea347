//! `cargo xtask peers`: the engines that ours is compared with.
//! Not here: how each is built (`peers/setup.sh`) and run (one adapter per engine beside it).

use std::process::Command;

use anyhow::Result;

pub(crate) fn run(extra: Option<&str>) -> Result<()> {
    let root = crate::root();
    crate::finish("peers/setup.sh", Command::new(root.join("peers/setup.sh")).args(extra).current_dir(&root))
}
