//! Tells the crate which commit it is built from, where git knows; a build without git says so in its records.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    // Without optional locks, looking does not touch the index, which would make the next build look again.
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let Some(commit) = git(&["rev-parse", "HEAD"]) else { return };
    println!("cargo:rustc-env=HOURGLASS_COMMIT={commit}");
    // Dirty is what differs among the files that the binary is made of, new ones included.
    if let Some(changes) = git(&["status", "--porcelain", "--", "..", "../../Cargo.toml", "../../Cargo.lock"]) {
        println!("cargo:rustc-env=HOURGLASS_DIRTY={}", !changes.is_empty());
    }
    for file in ["..", "../../Cargo.toml", "../../Cargo.lock"] {
        println!("cargo:rerun-if-changed={file}");
    }
    // A commit moves both.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}
