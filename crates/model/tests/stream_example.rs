//! The example that the README shows does what it says, on a small model.
//! Not here: whether the text is the right one; the oracles' tests judge the logits.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Examples are built with the tests, into a folder beside theirs.
fn example() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    here.ancestors().nth(2).unwrap().join("examples/stream")
}

#[test]
fn the_example_streams_an_answer() {
    let example = example();
    if !example.exists() {
        // `cargo test --test stream_example` builds no examples.
        println!("skipped: needs {}; run all tests of this package", example.display());
        return;
    }
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3-mixed.gguf");
    let output = Command::new(&example).arg(&model).arg("some text").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stdout).unwrap().trim_end_matches('\n').len() > 1, "complete UTF-8, some of it");
    let failure = Command::new(&example).arg(&model).output().unwrap();
    assert!(!failure.status.success(), "the prompt is missing");
}
