//! Every data file of tests/fixtures is what MANIFEST.sha256 says, and none is missing from it.
//! Not here: what the files hold; their README tells.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::fixture;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The suffixes that the script `manifest.py` lists.
const DATA: [&str; 4] = ["safetensors", "gguf", "json", "txt"];

fn data_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            data_files(&path, found);
        } else if path.extension().is_some_and(|suffix| DATA.iter().any(|data| suffix == *data)) {
            found.push(path);
        }
    }
}

#[test]
fn fixtures_are_what_the_manifest_says() {
    let manifest = std::fs::read_to_string(fixture("MANIFEST.sha256")).unwrap();
    let mut listed = Vec::new();
    for line in manifest.lines() {
        let (want, name) = line.split_once("  ").unwrap();
        let path = fixture(name);
        let got: String =
            Sha256::digest(std::fs::read(&path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(got, want, "{name} changed; its script writes it and the manifest anew");
        listed.push(path);
    }
    let mut found = Vec::new();
    data_files(&fixture(""), &mut found);
    listed.sort();
    found.sort();
    let unlisted: Vec<_> = found.iter().filter(|path| !listed.contains(path)).collect();
    assert!(unlisted.is_empty(), "not in MANIFEST.sha256: {unlisted:?}");
    assert_eq!(listed.len(), found.len(), "a line occurs twice");
}
