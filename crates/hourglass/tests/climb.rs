//! `find --climb` through the binary, on a tiny model: every step has its records, and an interrupted climb goes on from those
//! that are whole. Not here: what a row says of made-up records (crate `record`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use record::bench::{BenchRecord, Verified};
use record::{ClimbRecord, FindRecord, Finding, Record, read};
use support::hourglass;

fn command(here: &Path, rest: &[&str]) -> Command {
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
    let mut command = hourglass(&[&words[..], rest].concat());
    // The ledger of its decisions is the working directory's.
    command.current_dir(here);
    command
}

fn climb(here: &Path, rest: &[&str]) -> Output {
    command(here, rest).output().unwrap()
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
    // The earlier decision was judged on another clock.
    let decided = |row: &record::ClimbRow| row.decision_id.known().unwrap().clone();
    assert_eq!(decided(&again.rows[0]), decided(&done.rows[0]));
    assert_ne!(decided(&again.rows[1]), decided(&done.rows[1]));

    // A profile whose last view was interrupted has a ranking, and is half a profile all the same.
    let first = folder.join(&done.rows[0].find.file);
    let mut find: FindRecord = file(&first);
    find.steps.last_mut().unwrap().outcome = record::find::StepOutcome::Interrupted;
    find.close();
    assert!(find.ranking.known().is_some());
    std::fs::write(&first, serde_json::to_vec(&find).unwrap()).unwrap();
    let output = climb(here.path(), &["--resume", "climb", "--json"]);
    let third: ClimbRecord = read("stdout", &output.stdout).unwrap();
    assert!(file::<FindRecord>(&first).steps.iter().all(|step| step.outcome != record::find::StepOutcome::Interrupted));
    assert_eq!(third.rows[1], again.rows[1]);

    // Flags that mean nothing without --climb are no flags of a `find`.
    let output = hourglass(&["find", "--quick", "--model", "synthetic:tiny", "--resume", "climb"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--resume: needs --climb"));

    // One climb at a time in a folder.
    let held = std::fs::File::open(&folder).unwrap();
    held.lock().unwrap();
    let output = climb(here.path(), &["--resume", "climb"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another climb is at work"));
    held.unlock().unwrap();

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

/// Processes whose parent is `parent`.
fn children(parent: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let of_it = |process: &std::fs::DirEntry| {
        let status = std::fs::read_to_string(process.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|id| id.trim() == parent.to_string()))
    };
    processes.filter(of_it).map(|process| process.file_name().to_string_lossy().into_owned()).collect()
}

/// A climb that is killed has no moment to tell its `find`, which would measure for nobody to its end.
#[test]
fn what_a_killed_climb_had_begun_is_interrupted() {
    let here = tempfile::tempdir().unwrap();
    let mut climb =
        command(here.path(), &["--out", "climb"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let step = here.path().join("climb/01-rope");
    while !step.join("wiring.json").exists() {
        assert!(climb.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    let begun = children(climb.id());
    assert_eq!(begun.len(), 1, "its find: {begun:?}");
    climb.kill().unwrap();
    climb.wait().unwrap();
    let process = Path::new("/proc").join(&begun[0]);
    while process.join("exe").read_link().is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let find: FindRecord = file(&step.join("find.json"));
    assert!(!find.coverage.is_complete(), "it measured to its end");
}
