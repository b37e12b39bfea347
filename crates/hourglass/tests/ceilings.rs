//! `hourglass ceilings` through the binary: the record, what is kept of it, and what is wrong with what was kept.
//! Not here: whether the numbers are high enough; that depends on the machine and what else runs on it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Output;

use record::{Ceilings, read};
use support::{hourglass, refusal};

fn ceilings(home: &Path, rest: &[&str]) -> Output {
    let output = hourglass(&["ceilings", "--threads", "1"]).args(rest).env("XDG_CACHE_HOME", home).output().unwrap();
    assert!(output.status.success(), "{rest:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn record_of(output: &Output) -> Ceilings {
    read("stdout", &output.stdout).unwrap()
}

fn kept(home: &Path) -> PathBuf {
    let files: Vec<_> = std::fs::read_dir(home.join("hourglass")).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn what_is_measured_is_kept_and_a_broken_file_is_measured_again() {
    let home = tempfile::tempdir().unwrap();
    let first = record_of(&ceilings(home.path(), &["--rounds", "2", "--json"]));
    assert!(!first.void, "{:?}", first.checks);
    assert_eq!(first.workload.rounds, 2);
    let file = kept(home.path());
    let text = std::fs::read(&file).unwrap();
    assert_eq!(read::<Ceilings>("kept", &text).unwrap().id(), first.id());
    assert!(first.bandwidth(1, u64::MAX).value().unwrap() > 0.0);
    assert!(first.peak(record::InstructionPath::AmxInt8, 1).value() != Some(0.0), "missing is not zero");

    // Asked for one thread, it has all of this machine's: the next command need not measure again.
    let processors = std::thread::available_parallelism().unwrap().get() as u64;
    assert!(first.workload.threads.contains(&1) && first.workload.threads.contains(&processors));
    // The kept record is used, unless the machine has changed its speed meanwhile, which is said.
    let again = ceilings(home.path(), &["--json"]);
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(record_of(&again).id() == first.id() || told.contains("measured again: a read of exactly 1 GiB"), "{told}");

    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let again = ceilings(home.path(), &["--json"]);
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(told.contains("measured again") && told.contains("not JSON"), "{told}");
    let replaced = record_of(&again);
    assert_ne!(replaced.id(), first.id());
    assert_eq!(read::<Ceilings>("kept", &std::fs::read(kept(home.path())).unwrap()).unwrap().id(), replaced.id());

    // A pipe that nobody writes to is not waited for.
    std::fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    let again = ceilings(home.path(), &["--json"]);
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(told.contains("no regular file"), "{told}");
}

#[test]
fn the_table_fits_and_names_every_row_and_the_check() {
    let home = tempfile::tempdir().unwrap();
    let text = String::from_utf8(ceilings(home.path(), &["--rounds", "1"]).stdout).unwrap();
    for words in [
        "read L2, 4 streams",
        "read memory, 8 streams",
        "copy memory",
        "fp32-avx2, registers",
        "amx-int8, loads",
        "barrier",
        "dispatch",
        "processor time",
        "Known traffic: exactly 1 GiB",
    ] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn a_home_that_cannot_be_written_is_no_failure() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("hourglass"), "a file where a folder should be").unwrap();
    let output = ceilings(home.path(), &["--rounds", "1", "--json"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("not kept"));
    assert!(!record_of(&output).void);
}

#[test]
fn wrong_numbers_and_existing_outputs_are_refused_before_any_work() {
    for (arguments, expected) in [
        (&["ceilings", "--threads", "0"][..], "--threads 0: expected 1 to 1024"),
        (&["ceilings", "--rounds", "0"], "--rounds 0"),
        (&["ceilings", "--json-output", env!("CARGO_MANIFEST_DIR")], "never overwritten"),
    ] {
        let message = refusal(arguments, 2);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}

/// A cache folder that is a file: what was measured is printed, and nobody is told that it is somewhere.
#[test]
fn what_could_not_be_kept_is_not_called_kept() {
    let home = tempfile::NamedTempFile::new().unwrap();
    let output = ceilings(home.path(), &["--rounds", "1"]);
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.lines().any(|line| line == "not kept") && !said.contains("kept in"), "{said}");
    assert!(told.contains("so the ceilings are not kept"), "{told}");
}
