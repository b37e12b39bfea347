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
        "rope",
        "--to",
        "tiled-prefill",
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
        ["Climb from 'rope' to 'tiled-prefill'", "Hypothesis: ", "rope -> swiglu: ", "by bytes", "profile's first"]
    {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let folder = here.path().join("climb");
    let done: ClimbRecord = file(&folder.join("climb.json"));
    assert!(done.coverage.is_complete() && !done.void, "{:?} {:?}", done.coverage, done.checks);
    let steps: Vec<_> = done.rows.iter().map(|row| (row.start_from.as_str(), row.checkpoint.as_str())).collect();
    assert_eq!(steps, [("rope", "swiglu"), ("swiglu", "tiled-prefill")]);
    for row in &done.rows {
        assert!(matches!(row.output, Verified::Passed(_)), "{row:?}");
        let decision = row.decision.known().map(String::as_str);
        assert!(matches!(decision, Some("keep" | "reject" | "inconclusive")), "{:?}", row.decision);
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
    // The report has the route and its decisions; steps have none of their own.
    let report = std::fs::read_to_string(folder.join("report.html")).unwrap();
    for row in &done.rows {
        assert!(report.contains(row.decision_id.known().unwrap()), "{row:?}");
        assert!(!folder.join(&row.find.file).with_file_name("report.html").exists());
    }
    // Tiles are for heads of 128, and these have 64: known before it is clocked, and no clock makes a finding of it.
    assert!(done.rows[1].addresses.is_empty(), "{:?}", done.rows[1].addresses);
    assert_ne!(done.rows[0].finding, Finding::Void);
    assert_eq!(done.rows[1].finding, Finding::Void);
    assert!(done.rows[1].sentence.contains("reaches no call"), "{}", done.rows[1].sentence);

    // As if it had been interrupted in the second step: that one is done again, the first is not.
    std::fs::remove_file(folder.join(&done.rows[1].bench.file)).unwrap();
    std::fs::remove_file(folder.join(&done.rows[1].find.file)).unwrap();
    std::fs::write(folder.join(format!("{}.partial", done.rows[1].bench.file)), "half of one").unwrap();
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
