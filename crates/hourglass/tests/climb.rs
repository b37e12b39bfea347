//! `find --climb` through the binary, on a tiny model: every step has its records, and an interrupted climb goes on from those
//! that are whole. Not here: what a row says of made-up records (crate `record`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::Path;
use std::process::Output;

use record::bench::{BenchRecord, Verified};
use record::{ClimbRecord, FindRecord, Finding, Record, read};
use support::hourglass;

fn climb(here: &Path, rest: &[&str]) -> Output {
    let words = [
        "find",
        "--climb",
        "--model",
        "synthetic:tiny",
        "--threads",
        "2",
        "--input-len",
        "24",
        "--output-len",
        "9",
        "--ceilings",
        "none",
        "--from",
        "swiglu",
        "--to",
        "selected",
    ];
    // The ledger of its decisions is the working directory's.
    hourglass(&[&words[..], rest].concat()).current_dir(here).output().unwrap()
}

fn file<R: Record>(path: &Path) -> R {
    read(&path.display().to_string(), &std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_step_has_its_records_and_half_a_step_is_done_again() {
    let here = tempfile::tempdir().unwrap();
    let output = climb(here.path(), &["--out", "climb"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{error}", output.status);
    for words in
        ["Climb from 'swiglu' to 'selected'", "hypothesis", "swiglu -> tiled-prefill: ", "by bytes", "profile's first"]
    {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let folder = here.path().join("climb");
    let done: ClimbRecord = file(&folder.join("climb.json"));
    assert!(done.coverage.is_complete() && !done.void, "{:?} {:?}", done.coverage, done.checks);
    let steps: Vec<_> = done.rows.iter().map(|row| (row.start_from.as_str(), row.checkpoint.as_str())).collect();
    assert_eq!(steps, [("swiglu", "tiled-prefill"), ("tiled-prefill", "selected")]);
    for row in &done.rows {
        assert!(matches!(row.output, Verified::Passed(_)), "{row:?}");
        assert_ne!(row.finding, Finding::Void);
        for evidence in [&row.find, &row.bench] {
            assert!(evidence.is_of(&std::fs::read(folder.join(&evidence.file)).unwrap()), "{}", evidence.file);
        }
        let find: FindRecord = file(&folder.join(&row.find.file));
        assert_eq!((find.protocol.checkpoint.as_str(), find.protocol.quick), (row.start_from.as_str(), true));
        let bench: BenchRecord = file(&folder.join(&row.bench.file));
        assert_eq!(
            bench.arms.iter().map(|arm| arm.name.as_str()).collect::<Vec<_>>(),
            [&row.start_from, &row.checkpoint]
        );
        assert_eq!(bench.workload_id, done.workload_id);
    }
    // The name of the finished route changes nothing, and says so before it is clocked.
    assert!(done.rows[1].addresses.is_empty(), "{:?}", done.rows[1].addresses);

    // As if it had been interrupted in the second step: that one is done again, the first is not.
    std::fs::remove_file(folder.join(&done.rows[1].bench.file)).unwrap();
    std::fs::remove_file(folder.join(&done.rows[1].find.file)).unwrap();
    let output = climb(here.path(), &["--resume", "climb", "--json"]);
    let again: ClimbRecord = read("stdout", &output.stdout).unwrap();
    assert_eq!(again.rows[0], done.rows[0]);
    assert_eq!(again.rows.len(), 2);
    assert_ne!(again.rows[1].find, done.rows[1].find);

    // Another request's steps could not be compared with these.
    let output = climb(here.path(), &["--resume", "climb", "--seed", "4"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("--resume") && message.contains("another workload") && message.contains("seed"),
        "{message}"
    );
    let output = climb(here.path(), &["--resume", "nowhere"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no whole climb.json"));
}
