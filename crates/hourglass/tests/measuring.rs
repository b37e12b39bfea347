//! The measuring verbs through the binary, on a tiny model: find, doctor, ladder.
//! Not here: the verbs that use the engine (`verbs`), bad input in general (`bad_input`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use record::bench::BenchRecord;
use record::find::{Ranking, StepOutcome};
use record::{FindRecord, Record, ReplayRecord, read};
use serde_json::Value;
use support::{hourglass, json, refusal, run, stdout};

const REQUEST: [&str; 8] = ["--model", "synthetic:tiny", "--threads", "2", "--input-len", "24", "--output-len", "9"];

/// `find` on the tiny model into `out`, without ceilings, which would take longer to measure than all else.
fn words<'a>(out: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["find", "--quick", "--ceilings", "none", "--out", out][..], &REQUEST, rest].concat()
}

fn path(directory: &tempfile::TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

fn record_of(rest: &[&str]) -> FindRecord {
    let directory = tempfile::tempdir().unwrap();
    let text = stdout(&words(&path(&directory, "run"), &[rest, &["--json"]].concat()));
    read::<FindRecord>("stdout", text.as_bytes()).unwrap()
}

fn ranking(record: &FindRecord) -> &Ranking {
    record.ranking.known().unwrap()
}

/// One process at a checkpoint.
fn clocked(checkpoint: &str, rest: &[&str]) -> BenchRecord {
    let own = ["bench", "--variant", checkpoint, "--repeats", "1", "--warmup", "0", "--json"];
    read("stdout", stdout(&[&own[..], &REQUEST, rest].concat()).as_bytes()).unwrap()
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
    let listing = json(&["ladder", "--json"]);
    let names =
        listing["checkpoints"].as_array().unwrap().iter().map(|checkpoint| checkpoint["name"].as_str().unwrap());
    let mut rungs = names.filter(|name| !ops::ladder::beside::has(name));
    assert_eq!(rungs.next_back().unwrap(), newest);
    assert!(stdout(&["ladder"]).contains(&format!("fast: stands for '{newest}'")));
    let record = record_of(&[]);
    assert_eq!(record.protocol.checkpoint, newest);
    assert_eq!(record.subject.known().unwrap().checkpoint, newest);
    assert!(ranking(&record).rungs.is_empty(), "nothing follows the newest");
    let run = json(&["run", "--model", "synthetic:tiny", "--ids", "1,2,3", "--max-tokens", "2", "--json"]);
    assert!(!run.to_string().contains("\"fast\"") && run.to_string().contains(&format!("\"{newest}\"")), "{run}");
    assert!(
        stdout(&["ladder", "--diff", "fast", "--model", "synthetic:tiny"]).starts_with(&format!("'{newest}' after"))
    );
}

/// One walk, looked at from all sides: what it prints, what it leaves, and that the folder alone gives the ranking again.
#[test]
fn find_walks_all_views_and_leaves_them_in_a_folder() {
    let directory = tempfile::tempdir().unwrap();
    let (out, copy) = (path(&directory, "run"), path(&directory, "copy.json"));
    let text = stdout(&words(&out, &["--checkpoint", "quantized-matvec", "--json-output", &copy]));
    for words in [
        "synthetic:tiny@0 at checkpoint 'quantized-matvec'",
        "At 'quantized-matvec', ",
        "Request of 24 + 9 tokens",
        "2 of 2 layers dispatched as planned",
        "could be gained at most",
        "Memory at its peak: ",
        "Why this is not more certain",
        "Next",
        // Which experiment is first depends on what was measured; each says what would refute it.
        "wrong if ",
        "Records of every view: ",
    ] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    assert!(!text.contains("embedded default"), "a model was named:\n{text}");
    // Only a word that is longer than the line may exceed it.
    for line in text.lines().filter(|line| line.trim().contains(' ') && !line.starts_with("Records of")) {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
    let file = Path::new(&out).join("find.json");
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(std::fs::read(&copy).unwrap(), bytes);
    let record = read::<FindRecord>("find.json", &bytes).unwrap();
    assert!(record.coverage.is_complete() && !record.void, "{:?} {:?}", record.coverage, record.checks);
    for step in &record.steps {
        if step.outcome == StepOutcome::Done {
            let evidence = step.record.known().unwrap();
            assert!(evidence.is_of(&std::fs::read(Path::new(&out).join(&evidence.file)).unwrap()), "{}", step.name);
        }
        assert!(!matches!(step.outcome, StepOutcome::Failed(_)), "{step:?}");
        assert_eq!(step.command[0], "hourglass");
    }
    let done: Vec<&str> =
        record.steps.iter().filter(|step| step.outcome == StepOutcome::Done).map(|step| step.name.as_str()).collect();
    assert_eq!(done, ["wiring", "wiring-simd-matmul", "first-look", "clock", "replay", "timeline"]);
    // The decode step in the middle of the request's: after 24 tokens come eight steps.
    let replay = record.steps.iter().find(|step| step.name == "replay").unwrap();
    assert!(replay.command.contains(&"quantized-matvec:decode:28".to_owned()), "{:?}", replay.command);
    let replays: record::ReplayRecord =
        read("replay.json", &std::fs::read(Path::new(&out).join("replay.json")).unwrap()).unwrap();
    let [between] = &replays.requests[..] else { panic!("{:?}", replays.requests) };
    assert!(between.workload.differences(&record.workload).is_empty(), "the same request as the clock's");
    // Both cases and the request have one turn in every round of turns, and the next round starts one later.
    let turns: Vec<&str> = replays.turns.iter().map(|turn| turn.of.as_str()).collect();
    for (round, next) in turns.chunks(3).zip(turns[3..].chunks(3)) {
        assert_eq!((round[1], round[2]), (next[0], next[1]), "{turns:?}");
        assert!(round[0] != round[1] && round[1] != round[2] && round[0] != round[2], "{turns:?}");
    }
    let ranking = ranking(&record);
    for phase in [record::Phase::Prefill, record::Phase::Decode] {
        let passes = if phase == record::Phase::Decode { 8 } else { 1 };
        let rows: Vec<_> = ranking.candidates.iter().filter(|row| row.phase == phase).collect();
        assert!(rows.len() > 8 && rows.iter().all(|row| row.multiplicity.passes == passes), "{phase:?}");
    }
    // The next rung changes the projections of the prefill alone.
    let [rung] = &ranking.rungs[..] else { panic!("{:?}", ranking.rungs) };
    assert_eq!(rung.checkpoint, "simd-matmul");
    assert!(!rung.addresses.is_empty(), "{rung:?}");
    assert!(rung.addresses.iter().all(|row| row.starts_with("prefill ") && row.ends_with("linear")), "{rung:?}");
    // The folder alone gives the same ranking.
    let again: FindRecord = read("again", stdout(&["find", "--from", &out, "--json"]).as_bytes()).unwrap();
    assert_eq!((&again.ranking, &again.request), (&record.ranking, &record.request));
    // Nothing is overwritten, and a record is a workload.
    let message = refusal(&words(&out, &[]), 2);
    assert!(message.contains("--out") && message.contains("never overwritten"), "{message}");
    let message = refusal(&["find", "--from", &out, "--seed", "3"], 2);
    assert!(message.contains("--seed beside --from"), "{message}");
    for (flag, value) in [("--threads", "7"), ("--device", "cuda:0"), ("--checkpoint", "rope"), ("--w4-group", "64")] {
        let message = refusal(&["find", "--from", &out, flag, value], 2);
        assert!(message.contains(&format!("{flag} {value} beside --from: the folder was measured with ")), "{message}");
    }
    assert!(refusal(&["find", "--from", &out, "--pin"], 2).contains("--pin"));
    let message = refusal(&["find", "--from", &out, "--checkpoint", "fast"], 2);
    assert!(message.contains("--checkpoint fast beside --from: the folder was measured with 'quantized-matvec'"));
    stdout(&["find", "--from", &out, "--checkpoint", "quantized-matvec", "--device", "cpu", "--w4-group", "128"]);
    stdout(&["find", "--from", &out, "--device", "auto"]);
    // A view that is lost costs its rows and nothing else.
    let replay = Path::new(&out).join("replay.json");
    let mut alone: record::ReplayRecord = read("replay.json", &std::fs::read(&replay).unwrap()).unwrap();
    let prefill = alone.cases.remove(0).case;
    alone.turns.retain(|turn| turn.of != prefill);
    alone.close();
    std::fs::write(&replay, serde_json::to_vec(&alone).unwrap()).unwrap();
    let less: FindRecord = read("less", stdout(&["find", "--from", &out, "--json"]).as_bytes()).unwrap();
    let less = less.ranking.known().unwrap();
    assert!(less.candidates.iter().all(|row| row.phase != record::Phase::Prefill));
    assert!(less.doubts.iter().any(|doubt| doubt.contains("prefill was not replayed")), "{:?}", less.doubts);
}

#[test]
fn the_request_may_come_from_a_file_or_any_record() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "w.json");
    std::fs::write(&file, r#"{"model": "synthetic:tiny", "input_len": 7, "output_len": 3, "seed": 5}"#).unwrap();
    let out = path(&directory, "run");
    let own = ["find", "--quick", "--threads", "2", "--ceilings", "none", "--workload", &file, "--json"];
    let first: FindRecord = read("1", stdout(&[&own[..], &["--out", &out]].concat()).as_bytes()).unwrap();
    let workload = &first.workload;
    assert_eq!((workload.context_tokens, workload.output_tokens, workload.seed), (7, 3, 5));
    let clock = path(&directory, "run/clock.json");
    let (other, own) =
        (path(&directory, "other"), ["find", "--quick", "--threads", "2", "--ceilings", "none", "--json"]);
    let rest = ["--workload", &clock, "--seed", "6", "--out", &other];
    let second: FindRecord = read("2", stdout(&[&own[..], &rest].concat()).as_bytes()).unwrap();
    let workload = &second.workload;
    assert_eq!((workload.context_tokens, workload.output_tokens, workload.seed), (7, 3, 6), "a flag wins");
    assert_eq!(workload.weights_hash, first.workload.weights_hash);
    std::fs::write(&file, r#"{"input_length": 7}"#).unwrap();
    let message = refusal(&["find", "--workload", &file], 2);
    assert!(message.contains("input_length") && message.contains("\"input_len\""), "{message}");
}

#[test]
fn every_rung_gives_a_complete_replay_of_the_same_workload() {
    let listing = json(&["ladder", "--json"]);
    let appends_in_a_fusion = |name: &str| {
        let rung = listing["checkpoints"].as_array().unwrap().iter().find(|rung| rung["name"] == name).unwrap();
        rung["fusions"].as_array().unwrap().contains(&Value::from("norm-rope-append"))
    };
    let names: Vec<&str> =
        listing["checkpoints"].as_array().unwrap().iter().map(|rung| rung["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"week1") && names.contains(&"selected") && names.len() >= 11, "{names:?}");
    let cases: Vec<String> = names.iter().map(|name| format!("{name}:decode:24")).collect();
    let mut words = vec!["replay", "--model", "synthetic:tiny", "--threads", "2", "--iterations", "2", "--warmup", "0"];
    words.extend(["--ceilings", "none", "--json"]);
    words.extend(cases.iter().flat_map(|case| ["--case", case]));
    let record: ReplayRecord = read("stdout", stdout(&words).as_bytes()).unwrap();
    assert!(record.coverage.is_complete() && !record.void(), "{:?} {:?}", record.coverage, record.checks);
    assert_eq!(record.cases.len(), names.len());
    for (name, case) in names.into_iter().zip(&record.cases) {
        assert_eq!(case.subject.known().unwrap().checkpoint, name);
        let id = &record.cases[0].replay.workload_id;
        assert_eq!(*id, case.replay.workload_id, "{name}: the checkpoint is not part of the workload");
        let groups: Vec<&str> = case.replay.groups.iter().map(|row| row.group.as_str()).collect();
        // Without a cache there is nothing to update; the newest rungs do it in a call of another group.
        let calls_of_its_own = name != "week1" && !appends_in_a_fusion(name);
        assert_eq!(groups.contains(&"cache update"), calls_of_its_own, "{name}: {groups:?}");
    }
}

#[test]
fn the_record_says_which_kernels_ran() {
    let bound = |checkpoint: &str, rest: &[&str], phase: record::Phase, operator: &str| -> Vec<String> {
        let record = clocked(checkpoint, rest);
        let kernels = &record.arms[0].conditions.known().unwrap().kernels;
        let fitting = kernels.iter().filter(|kernel| kernel.phase == phase && kernel.operator == operator);
        fitting.map(|kernel| kernel.kernel.split('/').next().unwrap().to_owned()).collect()
    };
    // The prefill's head has one row: it is the matrix-vector kernel's, like all of decode.
    assert_eq!(bound("quantized-matvec", &[], record::Phase::Prefill, "linear"), ["vanilla", "matvec"]);
    assert_eq!(bound("quantized-matvec", &[], record::Phase::Decode, "linear"), ["matvec"]);
    assert_eq!(bound("fast", &[], record::Phase::Prefill, "linear"), ["matmul", "matvec"]);
    // A user's kernel runs where a user's checkpoint names it, and ours stay as they are.
    let norm = |checkpoint| bound(checkpoint, &["--solution", "lab"], record::Phase::Decode, "rms_norm");
    assert_eq!(
        (norm("wider-norm"), norm("selected")),
        (vec!["wide-sums".to_owned()], vec!["register-cached".to_owned()])
    );
}

#[test]
fn the_workload_id_changes_with_what_is_asked_for() {
    let id = |checkpoint: &str, rest: &[&str]| clocked(checkpoint, rest).workload_id;
    let first = id("fast", &[]);
    assert_eq!(first, id("kv-cache", &[]));
    for other in [["--seed", "1"], ["--prefill-logits", "all"]] {
        assert_ne!(first, id("fast", &other), "{other:?}");
    }
}

#[test]
fn wrong_numbers_are_usage_errors_before_any_work() {
    for (flag, value, expected) in [
        ("--input-len", "0", "at least 1"),
        ("--output-len", "1", "at least 2"),
        ("--input-len", "18446744073709551615", "positions"),
        ("--output-len", "1000000", "positions"),
        ("--checkpoint", "split-k", "retired"),
        ("--checkpoint", "nonsense", "unknown checkpoint"),
        ("--ceilings", "/nonexistent.json", "cannot be read"),
    ] {
        let message = refusal(&["find", "--model", "synthetic:tiny", flag, value], 2);
        assert!(message.contains(flag) && message.contains(expected), "{flag} {value}: {message}");
    }
    for (from, to, expected) in [
        ("selected", "kv-cache", "does not descend"),
        ("selected", "selected", "a step between"),
        ("nonsense", "fast", "unknown checkpoint"),
    ] {
        let words = ["find", "--climb", "--model", "synthetic:tiny", "--from", from, "--to", to];
        let message = refusal(&words, 2);
        assert!(message.contains("--from") && message.contains(expected), "{from} {to}: {message}");
    }
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let out = path(&directory, "run");
    let mut child = hourglass(&words(&out, &[])).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first line says that the folder is made and the first view is next.
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("interrupted") && message.contains(&out), "{message}");
    let bytes = std::fs::read(Path::new(&out).join("find.json")).unwrap();
    let record = read::<FindRecord>("partial", &bytes).unwrap();
    assert!(!record.coverage.is_complete() && !record.void);
    assert_eq!(record.steps.last().unwrap().outcome, StepOutcome::Interrupted);
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
