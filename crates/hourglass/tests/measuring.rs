//! The measuring verbs through the binary, on a tiny model: find, doctor, ladder.
//! Not here: the verbs that use the engine (`verbs`), bad input in general (`bad_input`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use record::{FindRecord, read_find};
use serde_json::Value;
use support::{hourglass, json, refusal, run, stdout};

const SHORT: [&str; 11] = [
    "find",
    "--model",
    "synthetic:tiny",
    "--threads",
    "2",
    "--input-len",
    "24",
    "--output-len",
    "9",
    "--iterations",
    "3",
];

fn short(rest: &[&str]) -> Vec<String> {
    SHORT.iter().chain(rest).map(|word| (*word).to_owned()).collect()
}

fn find(rest: &[&str]) -> String {
    let words = short(rest);
    stdout(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn record_of(rest: &[&str]) -> FindRecord {
    let text = find(&[rest, &["--json"]].concat());
    read_find("stdout", text.as_bytes()).unwrap()
}

/// The name that `fast` stands for.
fn newest() -> String {
    let listing = json(&["ladder", "--json"]);
    assert_eq!(listing["aliases"][0]["name"], "fast");
    listing["aliases"][0]["checkpoint"].as_str().unwrap().to_owned()
}

#[test]
fn fast_is_the_default_and_records_hold_the_rung_it_stands_for() {
    let newest = newest();
    assert_eq!(json(&["ladder", "--json"])["checkpoints"].as_array().unwrap().last().unwrap()["name"], newest[..]);
    assert!(stdout(&["ladder"]).contains(&format!("fast: stands for '{newest}'")));
    for rest in [&[][..], &["--checkpoint", "fast"]] {
        let record = record_of(rest);
        assert_eq!(record.subject.checkpoint, newest, "{rest:?}");
        let next = record.next.known().unwrap();
        assert_eq!(next.checkpoint.missing().unwrap().unavailable, "this is the newest rung", "{rest:?}");
    }
    // A checkpoint without a child that is not the newest rung says so in other words.
    let oracle = record_of(&["--checkpoint", "reference"]);
    assert_eq!(
        oracle.next.known().unwrap().checkpoint.missing().unwrap().unavailable,
        "no rung follows this checkpoint"
    );
    let run = json(&["run", "--model", "synthetic:tiny", "--ids", "1,2,3", "--max-tokens", "2", "--json"]);
    assert!(!run.to_string().contains("\"fast\"") && run.to_string().contains(&format!("\"{newest}\"")), "{run}");
    assert!(
        stdout(&["ladder", "--diff", "fast", "--model", "synthetic:tiny"]).starts_with(&format!("'{newest}' after"))
    );
}

#[test]
fn find_prints_a_table_that_fits_and_names_what_matters() {
    let text = find(&[]);
    for words in [
        "synthetic:tiny@0",
        "W4 g128",
        "prefill wiring",
        "2 of 2 layers dispatched as planned",
        "time to first token",
        "peak allocation",
        "replay total",
        "dispatch floor",
        "sampling (argmax)",
        "unexplained",
        "One step must move",
        "Next: ",
        &format!("checkpoint '{}'", newest()),
        &format!("The ladder ends at '{}'", newest()),
    ] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    assert_eq!(text.matches("Largest: ").count(), 2, "one per phase:\n{text}");
    assert!(!text.contains("embedded default"), "a model was named:\n{text}");
    // Only a word that is longer than the line may exceed it.
    for line in text.lines().filter(|line| line.trim().contains(' ')) {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn a_rung_with_a_child_says_what_to_try() {
    let text = find(&["--checkpoint", "quantized-matvec"]);
    for words in ["After 'quantized-matvec' comes 'simd-matmul'", "It should pay if", "--checkpoint simd-matmul"] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
}

#[test]
fn every_rung_gives_a_complete_record_of_the_same_workload() {
    let listing = json(&["ladder", "--json"]);
    let names: Vec<&str> =
        listing["checkpoints"].as_array().unwrap().iter().map(|rung| rung["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"week1") && names.contains(&"selected") && names.len() >= 11, "{names:?}");
    let mut workload = None;
    for name in names {
        let record = record_of(&["--checkpoint", name]);
        assert!(record.coverage.is_complete() && !record.void, "{name}: {:?} {:?}", record.coverage, record.checks);
        assert_eq!(record.subject.checkpoint, name);
        assert!(record.checks.len() >= 10, "{name}: {:?}", record.checks);
        let id = workload.get_or_insert_with(|| record.workload_id.clone());
        assert_eq!(*id, record.workload_id, "{name}: the checkpoint is not part of the workload");
        let groups: Vec<&str> = record.replays[1].groups.iter().map(|row| row.group.as_str()).collect();
        assert_eq!(groups.contains(&"cache update"), name != "week1", "{name}: {groups:?}");
    }
}

#[test]
fn the_record_says_which_kernels_ran() {
    let bound = |rest: &[&str], phase: record::Phase, operator: &str| -> Vec<String> {
        let kernels = record_of(rest).conditions.kernels;
        let fitting = kernels.into_iter().filter(|kernel| kernel.phase == phase && kernel.operator == operator);
        fitting.map(|kernel| kernel.kernel.split('/').next().unwrap().to_owned()).collect()
    };
    let rung = ["--checkpoint", "quantized-matvec"];
    // The prefill's head has one row: it is the matrix-vector kernel's, like all of decode.
    assert_eq!(bound(&rung, record::Phase::Prefill, "linear"), ["vanilla", "matvec"]);
    assert_eq!(bound(&rung, record::Phase::Decode, "linear"), ["matvec"]);
    assert_eq!(bound(&[], record::Phase::Prefill, "linear"), ["matmul", "matvec"]);
    assert_eq!(bound(&["--solution", "lab"], record::Phase::Decode, "add"), ["lab-example"]);
}

#[test]
fn the_workload_id_changes_with_what_is_asked_for() {
    let id = |rest: &[&str]| record_of(rest).workload_id;
    let first = id(&[]);
    assert_eq!(first, id(&["--checkpoint", "kv-cache"]));
    for other in [["--seed", "1"], ["--prefill-logits", "all"]] {
        assert_ne!(first, id(&other), "{other:?}");
    }
}

#[test]
fn a_record_is_written_once_and_never_over_something() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("find.json");
    let path = path.to_str().unwrap();
    let text = find(&["--json-output", path]);
    assert!(text.contains("replay total"), "the table is printed beside the file: {text}");
    let bytes = std::fs::read(path).unwrap();
    let record = read_find(path, &bytes).unwrap();
    assert_eq!(record.protocol.iterations, 3);
    assert_eq!(record.replays[1].round_order.len(), 3);
    let words = short(&["--json-output", path]);
    let message = refusal(&words.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    assert!(message.contains("--json-output") && message.contains("never overwritten"), "{message}");
    assert_eq!(std::fs::read(path).unwrap(), bytes);
}

#[test]
fn wrong_numbers_are_usage_errors_before_any_work() {
    for (flag, value, expected) in [
        ("--input-len", "0", "at least 1"),
        ("--output-len", "1", "at least 2"),
        ("--iterations", "0", "at least 1"),
        ("--input-len", "18446744073709551615", "positions"),
        ("--output-len", "1000000", "positions"),
        ("--checkpoint", "split-k", "retired"),
        ("--checkpoint", "nonsense", "unknown checkpoint"),
    ] {
        let message = refusal(&["find", "--model", "synthetic:tiny", flag, value], 2);
        assert!(message.contains(flag) && message.contains(expected), "{flag} {value}: {message}");
    }
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("find.json");
    // So many rounds that it would take minutes by itself; the first line tells that the model is loaded.
    let mut child = hourglass(&["find", "--model", "synthetic:tiny", "--threads", "2", "--iterations", "10000"])
        .args(["--input-len", "24", "--output-len", "9", "--json-output", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("interrupted"), "{message}");
    assert!(rest.contains("Incomplete"), "{rest}");
    let record = read_find("partial", &std::fs::read(&path).unwrap()).unwrap();
    assert!(!record.coverage.is_complete() && !record.void);
    let last = &record.replays[1];
    assert!(last.replay_total_us.known().is_none() && last.coverage.reason().unwrap().contains("interrupted"));
}

#[test]
fn doctor_tells_what_is_here_and_how_to_get_the_rest() {
    let text = stdout(&["doctor"]);
    for words in
        ["avx2", "threads", "huge pages", "PMU", "perf events", "hub cache", "driver", "nvrtc", "cupti", "memory"]
    {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let report = json(&["doctor", "--json"]);
    assert_eq!(report["schema"], "doctor/1");
    for finding in report["findings"].as_array().unwrap() {
        assert!(finding["means"].as_str().is_some_and(|means| !means.is_empty()), "{finding}");
        assert!(finding["present"] == Value::Bool(true) || finding["how_to_get"].is_string(), "{finding}");
    }
}

#[test]
fn ladder_lists_every_rung_with_its_place_in_the_source() {
    let text = stdout(&["ladder"]);
    for words in ["kv-cache (after week1)", "hypothesis:", "change:", "crates/ops/src/ladder.rs:", "split-k: retired"] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    let listing = json(&["ladder", "--json"]);
    let root = support::root();
    for rung in listing["checkpoints"].as_array().unwrap() {
        let (file, line) = rung["source"].as_str().unwrap().rsplit_once(':').unwrap();
        let source = std::fs::read_to_string(root.join(file)).unwrap();
        let near: Vec<&str> = source.lines().take(line.parse().unwrap()).collect();
        let name = format!("\"{}\"", rung["name"].as_str().unwrap());
        let start = near.iter().rposition(|line| line.contains("Checkpoint = Checkpoint")).unwrap();
        assert!(near[start..].iter().any(|line| line.contains(&name)), "{rung} is not at its place");
    }
}

#[test]
fn ladder_shows_what_a_rung_changes() {
    let text = stdout(&["ladder", "--diff", "simd-matmul"]);
    assert!(text.contains("vanilla") && text.contains("-> 28 x matmul"), "{text}");
    assert!(text.contains("the same calls, bound alike"), "decode is unchanged: {text}");
    let difference = json(&["ladder", "--diff", "capacity-cache", "--model", "synthetic:tiny", "--json"]);
    assert_eq!(difference["parent"], "kv-cache");
    for phase in difference["phases"].as_array().unwrap() {
        let changes = phase["changes"].as_array().unwrap();
        assert_eq!(changes.len(), 1, "{phase}");
        assert_eq!(
            (&changes[0]["operator"], changes[0]["after"].as_array().unwrap().len()),
            (&Value::from("cache_grow"), 0)
        );
    }
    for (arguments, expected) in [
        (&["ladder", "--diff", "week1"][..], "no parent"),
        (&["ladder", "--diff", "split-k"], "retired"),
        (&["ladder", "--diff", "nonsense"], "unknown checkpoint"),
        (&["ladder", "--model", "synthetic:tiny"], "--diff"),
    ] {
        let message = refusal(arguments, 2);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}

#[test]
fn a_reader_that_stops_early_is_no_failure() {
    let mut child = hourglass(&["ladder"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(run(&["doctor"]).status.success());
}
