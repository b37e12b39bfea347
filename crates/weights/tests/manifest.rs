//! Every data file of tests/fixtures is what its list of hashes says, and none is missing from both lists.
//! Not here: what the files hold.

#![allow(clippy::unwrap_used, reason = "tests")]

use sha2::{Digest, Sha256};
use std::path::Path;

/// One list per family of scripts: the text fixtures keep their own.
const LISTS: [&str; 2] = ["MANIFEST.sha256", "text.sha256"];
const DATA: [&str; 3] = ["safetensors", "gguf", "json"];

#[test]
fn fixtures_are_what_the_lists_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut listed = Vec::new();
    for list in LISTS {
        for line in std::fs::read_to_string(folder.join(list)).unwrap().lines() {
            let (want, name) = line.split_once("  ").unwrap();
            let bytes = std::fs::read(folder.join(name)).unwrap();
            let got: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(got, want, "{name} changed; its script writes it and {list} anew");
            listed.push(name.to_owned());
        }
    }
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let data = path.extension().is_some_and(|suffix| DATA.iter().any(|data| suffix == *data));
        assert!(!data || listed.contains(&name), "{name} is in neither of {LISTS:?}");
    }
}
