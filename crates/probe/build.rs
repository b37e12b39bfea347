//! Tells the crate which commit it is built from, where git knows (a build without git says so in its records), and the
//! SHA-256 of every source file of this repository that the binary is compiled from, so that a view can tell whether a file is
//! still the one that was measured.

use sha2::{Digest, Sha256};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    // Without optional locks, looking does not touch the index, which would make the next build look again.
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Adds the source files (Rust, and the GPU's kernels) of `folder` and below, as paths from the repository's root.
fn add(folder: &str, files: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(Path::new(ROOT).join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            add(&path, files)?;
        } else if [".rs", ".cu", ".cuh"].iter().any(|end| path.ends_with(end)) {
            files.push(path);
        }
    }
    Ok(())
}

const ROOT: &str = "../..";

/// Sorted lines of digest, two spaces, path: what `record::capture::manifest` reads.
fn sources() -> Result<String, Box<dyn Error>> {
    let mut files = Vec::new();
    for entry in fs::read_dir("..")? {
        let name = entry?.file_name();
        let folder = format!("crates/{}", name.to_string_lossy());
        // A changed source is hashed again; a changed test is no reason to build all of this again.
        let part = |name: &str| Some(format!("{folder}/{name}")).filter(|path| Path::new(ROOT).join(path).exists());
        for sources in ["src", "kernels"].into_iter().filter_map(part) {
            add(&sources, &mut files)?;
        }
        files.extend(part("build.rs"));
        for path in ["src", "kernels", "build.rs", "Cargo.toml"].into_iter().filter_map(part) {
            println!("cargo:rerun-if-changed={ROOT}/{path}");
        }
    }
    files.sort_unstable();
    let mut text = String::new();
    for file in files {
        for byte in Sha256::digest(fs::read(Path::new(ROOT).join(&file))?) {
            text.push_str(&format!("{byte:02x}"));
        }
        text.push_str(&format!("  {file}\n"));
    }
    Ok(text)
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("sources.sha256"), sources()?)?;
    let Some(commit) = git(&["rev-parse", "HEAD"]) else { return Ok(()) };
    println!("cargo:rustc-env=HOURGLASS_COMMIT={commit}");
    // Dirty is what differs among the files that the binary is made of, new ones included.
    let made_of =
        ["../*/src", "../*/kernels", "../*/build.rs", "../*/Cargo.toml", "../../Cargo.toml", "../../Cargo.lock"];
    if let Some(changes) = git(&[&["status", "--porcelain", "--"][..], &made_of].concat()) {
        println!("cargo:rustc-env=HOURGLASS_DIRTY={}", !changes.is_empty());
    }
    for file in ["../../Cargo.toml", "../../Cargo.lock"] {
        println!("cargo:rerun-if-changed={file}");
    }
    // A commit moves both.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    Ok(())
}
