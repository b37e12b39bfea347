//! `hourglass replay` through the binary, on a tiny model: cases, comparison, decisions, shape studies, and what is refused.
//! Not here: the records' arithmetic (crate `record`), how passes are timed (crate `probe`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use record::{DecisionRecord, ReplayComparison, ReplayRecord, ShapeStudy, read};
use serde_json::Value;
use support::{hourglass, json, refusal, run, stdout};

const SHORT: [&str; 11] = [
    "replay",
    "--model",
    "synthetic:tiny",
    "--threads",
    "2",
    "--warmup",
    "1",
    "--iterations",
    "3",
    "--ceilings",
    "none",
];

fn short<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    SHORT.iter().copied().chain(rest.iter().copied()).collect()
}

fn record_of(rest: &[&str]) -> ReplayRecord {
    let text = stdout(&short(&[rest, &["--json"]].concat()));
    read("stdout", text.as_bytes()).unwrap()
}

fn path(directory: &tempfile::TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_case_prints_tables_that_fit_with_the_rules_for_reading_them() {
    let text = stdout(&short(&["--case", "selected:decode:24"]));
    for words in [
        "selected:decode:24: synthetic:tiny@0",
        "A decode step of 1 row after 23 cached, capacity 24, logits last",
        "projections",
        "q_proj: linear",
        "replay total",
        "unexplained",
        "dispatch floor",
        "Largest: ",
        "Read the largest group",
        "A share is no prediction",
        "does not prove wiring",
        "change the checkpoint and nothing else",
        "No floors: ",
    ] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    for line in text.lines().filter(|line| line.trim().contains(' ')) {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn the_record_holds_complete_rows_of_one_workload_for_two_checkpoints() {
    let record = record_of(&["--case", "capacity-cache:decode:24", "--case", "fast:decode:24", "--capacity", "30"]);
    assert!(record.coverage.is_complete() && !record.void, "{:?} {:?}", record.coverage, record.checks);
    let [one, two] = &record.cases[..] else { panic!("two cases") };
    let newest = ops::Registry::standard().checkpoint("fast").unwrap().name;
    assert_eq!(two.case, format!("{newest}:decode:24"), "an alias is resolved");
    assert_eq!(two.subject.known().unwrap().checkpoint, newest);
    assert_eq!(one.replay.workload_id, two.replay.workload_id, "the checkpoint is not part of the workload");
    let cache = one.replay.cache.known().unwrap();
    assert_eq!((cache.offset_before, cache.offset_after, cache.capacity), (23, 24, 30));
    assert!(cache.per_pass.slice_write_bytes > 0);
    for case in [one, two] {
        assert!(case.replay.replay_total_us.value().unwrap() > 0.0);
        assert!(case.replay.groups.iter().all(|row| row.timing.samples_us.len() == 3));
        let operators = case.replay.operators.known().unwrap();
        assert!(operators.iter().any(|operator| operator.slot == "down_proj" && operator.row.calls == 2));
        assert!(case.conditions.known().unwrap().kernels.iter().any(|kernel| kernel.operator == "linear"));
    }
}

#[test]
fn floors_come_from_a_ceilings_record() {
    let directory = tempfile::tempdir().unwrap();
    let ceilings = path(&directory, "ceilings.json");
    let arguments = ["ceilings", "--threads", "2", "--rounds", "1", "--json-output", &ceilings];
    let output = hourglass(&arguments).env("XDG_CACHE_HOME", directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut arguments = short(&["--case", "selected:decode:24", "--json"]);
    arguments[10] = &ceilings;
    let record: ReplayRecord = read("stdout", stdout(&arguments).as_bytes()).unwrap();
    let used = record.ceilings.known().unwrap();
    let measured: record::Ceilings = read("ceilings", &std::fs::read(&ceilings).unwrap()).unwrap();
    assert_eq!(used.id, measured.id());
    let replay = &record.cases[0].replay;
    for row in replay.groups.iter().chain(replay.operators.known().unwrap().iter().map(|operator| &operator.row)) {
        let floor = row.floor.known().unwrap();
        assert_eq!(floor.work.cold_bytes + floor.work.warm_bytes, row.bytes_read + row.bytes_written, "{}", row.group);
        let (least, median) = (floor.least.value().unwrap(), row.timing.median.value().unwrap());
        assert!((floor.fraction.value().unwrap() - least / median).abs() < 1e-9);
        assert!(floor.limit.known().is_some());
    }
    let projections = replay.groups.iter().find(|row| row.group == "projections").unwrap().floor.known().unwrap();
    assert!(projections.work.cold_bytes > projections.work.warm_bytes, "weights: {:?}", projections.work);
}

#[test]
fn a_case_that_cannot_be_replayed_is_incomplete_and_the_others_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "r.json");
    let arguments = short(&[
        "--case",
        "selected:decode:24",
        "--case",
        "selected:decode:10",
        "--capacity",
        "16",
        "--json-output",
        &file,
    ]);
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Missing, not zero") && text.contains("Incomplete: selected:decode:24"), "{text}");
    let record: ReplayRecord = read(&file, &std::fs::read(&file).unwrap()).unwrap();
    let [short_of_room, fitting] = &record.cases[..] else { panic!("two cases") };
    assert!(short_of_room.replay.coverage.reason().unwrap().contains("capacity 16"));
    assert!(short_of_room.replay.replay_total_us.known().is_none());
    assert!(fitting.replay.coverage.is_complete());
}

#[test]
fn week1_decodes_by_its_whole_prefix() {
    let record = record_of(&["--case", "week1:decode:24"]);
    let groups: Vec<&str> = record.cases[0].replay.groups.iter().map(|row| row.group.as_str()).collect();
    assert!(!groups.contains(&"cache update"), "{groups:?}");
    let q =
        record.cases[0].replay.operators.known().unwrap().iter().find(|operator| operator.slot == "q_proj").unwrap();
    assert!(q.shapes[0].starts_with("(24, "), "{:?}", q.shapes);
}

#[test]
fn an_append_inside_another_call_is_said() {
    let text = stdout(&short(&["--case", "placed-heads:decode:24"]));
    let line = text.lines().find(|line| line.contains("cache update")).unwrap();
    assert!(line.contains("no call of its own"), "{line}");
    assert!(text.contains("norm_rope_append (normalization") || text.contains("norm_rope_append\n"), "{text}");
    assert!(text.lines().filter(|line| line.trim().contains(' ')).all(|line| line.chars().count() <= 100), "{text}");
    let directory = tempfile::tempdir().unwrap();
    let [before, after] = ["one-call-attention", "placed-heads"].map(|checkpoint| {
        let file = path(&directory, checkpoint);
        stdout(&short(&["--case", &format!("{checkpoint}:decode:24"), "--json-output", &file]));
        file
    });
    let text = stdout(&["replay", "--compare-records", &before, &after]);
    assert!(text.contains("cache update, after: no call of its own"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    // A number that was changed afterwards, a name that was: refused.
    for (from, to) in [("\"capacity\": 24", "\"capacity\": 25"), ("placed-heads:decode:24", "selected:decode:24")] {
        let changed = path(&directory, "changed.json");
        let text = std::fs::read_to_string(&after).unwrap();
        assert!(text.contains(from));
        std::fs::write(&changed, text.replace(from, to)).unwrap();
        let message = refusal(&["replay", "--compare-records", &before, &changed], 2);
        assert!(message.contains("changed after it was written"), "{message}");
    }
}

#[test]
fn what_a_mode_does_not_do_is_refused_and_not_passed_over() {
    let compare = &["--compare-records", "a.json", "b.json"][..];
    let shapes = &["--shapes", "a.json", "--compare", "linear:matmul/portable,linear:vanilla/portable"][..];
    let sensitivity = &["--sensitivity", "all"][..];
    for (mode, flag, value) in [
        (compare, "--hypothesis", "x"),
        (compare, "--decision-record", "x"),
        (compare, "--ceilings", "none"),
        (compare, "--warmup", "4"),
        (compare, "--model", "synthetic:tiny"),
        (compare, "--threads", "2"),
        (shapes, "--decision", "keep"),
        (shapes, "--capacity", "9"),
        (shapes, "--seed", "9"),
        (shapes, "--output-len", "9"),
        (&[][..], "--shapes", "x.json"),
        (sensitivity, "--baseline-checkpoint", "rope"),
        (sensitivity, "--iterations", "3"),
        (sensitivity, "--ceilings", "none"),
        (&[][..], "--rounds", "3"),
        (&[][..], "--output-len", "3"),
    ] {
        let message = refusal(&[&["replay"], mode, &[flag, value]].concat(), 2);
        assert!(message.contains(flag), "{mode:?} {flag}: {message}");
    }
}

/// Writes the record of `find` on the tiny model to `file`.
fn find(directory: &tempfile::TempDir, file: &str, checkpoint: &str, [input, output]: [&str; 2]) {
    let out = path(directory, &format!("walk-{checkpoint}"));
    let words = ["find", "--quick", "--model", "synthetic:tiny", "--threads", "2", "--ceilings", "none"];
    let rest = ["--checkpoint", checkpoint, "--input-len", input, "--output-len", output];
    stdout(&[&words[..], &rest, &["--out", &out, "--json-output", file]].concat());
}

#[test]
fn a_shape_study_believes_no_size_of_a_record_and_finds_out_early_what_it_cannot_write() {
    let directory = tempfile::tempdir().unwrap();
    let found = path(&directory, "find.json");
    find(&directory, &found, "fast", ["12", "3"]);
    let pair = ["--compare", "linear:matmul/portable,linear:vanilla/portable"];
    let text = std::fs::read(&found).unwrap();
    let record: record::FindRecord = read(&found, &text).unwrap();
    for (tokens, output, capacity) in
        [(u64::MAX - 1, 3, 15), (1 << 40, 3, 1 << 41), (0, 3, 15), (12, 3, u64::MAX), (12, 3, 2)]
    {
        let mut changed = record.clone();
        changed.workload.context_tokens = tokens;
        changed.workload.output_tokens = output;
        changed.workload.capacity = capacity;
        changed.workload_id = changed.workload.id();
        let hostile = path(&directory, "hostile.json");
        std::fs::write(&hostile, serde_json::to_vec(&changed).unwrap()).unwrap();
        let message = refusal(&[&["replay", "--shapes", &hostile], &pair[..]].concat(), 2);
        assert!(message.contains("does not fit"), "{tokens} {output} {capacity}: {message}");
    }
    let message = refusal(&[&["replay", "--shapes", &found, "--case", "selected:decode:9"], &pair[..]].concat(), 2);
    assert!(message.contains("a find/2 record") && message.contains("leave it out"), "{message}");
    let place = path(&directory, "fi");
    let export = format!("flashinfer={place}");
    let softmax = ["--compare", "softmax:rows/portable,softmax:reference/portable", "--export", &export];
    let message = refusal(&[&["replay", "--shapes", &found], &softmax[..]].concat(), 2);
    assert!(message.contains("operator 'softmax' has no definition"), "{message}");
    assert!(!Path::new(&place).exists());
}

#[test]
fn bad_cases_and_numbers_are_usage_errors() {
    for (arguments, expected) in [
        (&["--case", "selected:decode"][..], "CHECKPOINT:PHASE:TOKENS"),
        (&["--case", "selected:both:24"], "decode or prefill"),
        (&["--case", "selected:decode:0"], "from 1 on"),
        (&["--case", "nonsense:decode:24"], "unknown checkpoint"),
        (&["--case", "split-k:decode:24"], "retired"),
        (&["--case", "selected:decode:24", "--case", "selected:decode:24"], "given twice"),
        (&["--case", "selected:decode:99999999999"], "positions"),
        (&["--case", "selected:decode:24", "--capacity", "99999999999"], "positions"),
        (&["--capacity", "0"], "--capacity 0"),
        (&["--iterations", "0"], "--iterations"),
        (&["--json-output", "/nonexistent/x.json"], "directory does not exist"),
        (&["--bench", "a", "b"], "--compare-records"),
    ] {
        let message = refusal(&[&["replay", "--model", "synthetic:tiny", "--ceilings", "none"], arguments].concat(), 2);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}

/// The decision flags, all but `left_out`.
fn decision<'a>(output: &'a str, left_out: &str) -> Vec<&'a str> {
    let flags = [
        ("--decision-output", output),
        ("--baseline-checkpoint", "capacity-cache"),
        ("--candidate-checkpoint", "selected"),
        ("--dominant-category", "projections"),
        ("--hypothesis", "weights bound"),
        ("--observed-effect", "they fell"),
        ("--decision", "inconclusive"),
        ("--next-experiment", "attention"),
    ];
    flags.iter().filter(|(flag, _)| *flag != left_out).flat_map(|(flag, value)| [*flag, *value]).collect()
}

const BOTH: [&str; 4] = ["--case", "capacity-cache:decode:24", "--case", "selected:decode:24"];

#[test]
fn a_decision_is_written_beside_its_replays() {
    let directory = tempfile::tempdir().unwrap();
    let (file, replays) = (path(&directory, "decision.json"), path(&directory, "replays.json"));
    let text = stdout(&short(&[&BOTH[..], &decision(&file, ""), &["--json-output", &replays]].concat()));
    assert!(text.contains("Decision written. capacity-cache -> selected"), "{text}");
    let decision_record: DecisionRecord = read(&file, &std::fs::read(&file).unwrap()).unwrap();
    let record: ReplayRecord = read(&replays, &std::fs::read(&replays).unwrap()).unwrap();
    assert_eq!(decision_record.workload_id, record.cases[0].replay.workload_id);
    assert_eq!(decision_record.evidence.category.name, "projections");
    // From the record alone: nothing is replayed.
    let again = path(&directory, "again.json");
    let text = stdout(&[&["replay", "--decision-record", &replays][..], &decision(&again, "")].concat());
    assert!(text.starts_with("Decision written."), "{text}");
    let again: DecisionRecord = read(&again, &std::fs::read(&again).unwrap()).unwrap();
    assert_eq!(again.evidence, decision_record.evidence);
}

#[test]
fn earlier_cases_are_checked_before_any_work() {
    let directory = tempfile::tempdir().unwrap();
    let (file, whole, short_of_room) =
        (path(&directory, "decision.json"), path(&directory, "whole.json"), path(&directory, "short.json"));
    stdout(&short(&["--case", "capacity-cache:decode:24", "--json-output", &whole]));
    let room = ["--case", "capacity-cache:decode:24", "--capacity", "16", "--json-output", &short_of_room];
    assert_eq!(run(&short(&room)).status.code(), Some(1));
    let selected = ["--model", "/nonexistent/model", "--case", "selected:decode:24"];
    let with = |records: &[&str]| {
        let records: Vec<&str> = records.iter().flat_map(|record| ["--decision-record", record]).collect();
        refusal(&[&["replay"], &selected[..], &records, &decision(&file, "")].concat(), 2)
    };
    assert!(with(&[&short_of_room]).contains("is incomplete"));
    assert!(with(&[&whole, &whole]).contains("is there 2 times"));
    // With one complete case on each side, what is left to complain about is the model.
    assert!(with(&[&whole]).contains("/nonexistent/model"));
    let mut changed: ReplayRecord = read(&whole, &std::fs::read(&whole).unwrap()).unwrap();
    if let record::Known::Is(conditions) = &mut changed.cases[0].conditions {
        conditions.binary.version = "0.0.0".to_owned();
    }
    changed.close();
    let other = path(&directory, "other.json");
    std::fs::write(&other, serde_json::to_vec(&changed).unwrap()).unwrap();
    assert!(with(&[&other]).contains("another build"));
}

#[test]
fn decision_flags_are_all_or_none_and_about_cases_that_exist() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "decision.json");
    // A model that does not exist: whatever is refused is refused before one is opened.
    let unopened = |rest: &[&str]| refusal(&[&["replay", "--model", "/nonexistent/model"], rest].concat(), 2);
    for flag in [
        "--decision-output",
        "--baseline-checkpoint",
        "--candidate-checkpoint",
        "--dominant-category",
        "--hypothesis",
        "--observed-effect",
        "--decision",
        "--next-experiment",
    ] {
        let message = unopened(&[&BOTH[..], &decision(&file, flag)].concat());
        assert!(
            message.contains("all of these flags or none") && message.contains(&format!("without {flag}")),
            "{message}"
        );
    }
    let with = |cases: &[&str]| unopened(&[cases, &decision(&file, "")[..]].concat());
    let message = with(&["--case", "selected:decode:24"]);
    assert!(message.contains("--baseline-checkpoint capacity-cache") && message.contains("--case"), "{message}");
    let message = with(&["--case", "capacity-cache:decode:24", "--case", "selected:prefill:24"]);
    assert!(message.contains("no shape in common"), "{message}");
    let more = ["--case", "capacity-cache:prefill:24", "--case", "selected:prefill:24"];
    let message = with(&[&BOTH[..], &more].concat());
    assert!(message.contains("several shapes"), "{message}");
    let mut other = decision(&file, "");
    other[7] = "gemm";
    let message = unopened(&[&BOTH[..], &other].concat());
    assert!(message.contains("--dominant-category 'gemm'") && message.contains("attention"), "{message}");
    let mut empty = decision(&file, "");
    empty[9] = " ";
    assert!(unopened(&[&BOTH[..], &empty].concat()).contains("--hypothesis is empty"));
    assert!(!Path::new(&file).exists());
}

#[test]
fn outputs_are_distinct_through_links_and_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).unwrap();
    let (plain, aliased) = (path(&directory, "x.json"), link.join("x.json").to_str().unwrap().to_owned());
    let unopened = |rest: &[&str]| refusal(&[&["replay", "--model", "/nonexistent/model"], rest].concat(), 2);
    let message = unopened(&[&BOTH[..], &decision(&plain, ""), &["--json-output", &aliased]].concat());
    assert!(message.contains("--json-output") && message.contains("--decision-output"), "{message}");
    std::fs::write(&plain, "mine").unwrap();
    for arguments in [decision(&plain, ""), vec!["--json-output", &plain]] {
        let message = unopened(&[&["--ceilings", "none"], &BOTH[..], &arguments].concat());
        assert!(message.contains("never overwritten"), "{message}");
    }
    assert_eq!(std::fs::read_to_string(&plain).unwrap(), "mine");
}

#[test]
fn two_records_compare_only_at_one_workload() {
    let directory = tempfile::tempdir().unwrap();
    let save = |name: &str, case: &str| {
        let file = path(&directory, name);
        stdout(&short(&["--case", case, "--json-output", &file]));
        file
    };
    let before = save("a.json", "capacity-cache:decode:24");
    let (after, longer) = (save("b.json", "selected:decode:24"), save("c.json", "selected:decode:30"));
    let text = stdout(&["replay", "--compare-records", &before, &after]);
    for words in ["capacity-cache:decode:24 -> selected:decode:24", "projections", "saved", "--bench BEFORE AFTER"] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    let message = refusal(&["replay", "--compare-records", &before, &longer], 2);
    for words in ["context_tokens", "capacity", "token_trace_hash"] {
        assert!(message.contains(words), "{words} is missing: {message}");
    }
    let request = |name: &str, checkpoint: &str| {
        let file = path(&directory, name);
        find(&directory, &file, checkpoint, ["24", "9"]);
        file
    };
    let (slow, quick) = (request("fa.json", "capacity-cache"), request("fb.json", "selected"));
    let compared = ["replay", "--compare-records", &before, &after, "--bench"];
    let text = stdout(&[&compared[..], &[&slow, &quick, "--json"]].concat());
    let comparison: ReplayComparison = read("stdout", text.as_bytes()).unwrap();
    assert!(comparison.request.known().unwrap().arrived.value().is_some());
    let message = refusal(&[&compared[..], &[&quick, &slow]].concat(), 2);
    assert!(message.contains("ran at checkpoint 'selected'"), "{message}");
    let message = refusal(&["replay", "--compare-records", &before, &slow], 2);
    assert!(message.contains("replay/1") && message.contains("find/2"), "{message}");
}

#[test]
fn a_shape_study_names_kernels_of_one_operator_and_exports() {
    let directory = tempfile::tempdir().unwrap();
    let found = path(&directory, "find.json");
    find(&directory, &found, "fast", ["12", "9"]);
    let (file, table, folder) = (path(&directory, "s.json"), path(&directory, "t.json"), path(&directory, "fi"));
    let exports = [format!("test-backend-ops={table}"), format!("flashinfer={folder}")];
    let pair = ["--shapes", &found, "--compare", "linear:matmul/portable,linear:vanilla/portable"];
    let outputs = ["--json-output", &file, "--export", &exports[0], "--export", &exports[1]];
    let text = stdout(&[&["replay", "--threads", "2", "--iterations", "2"], &pair[..], &outputs].concat());
    assert!(text.contains("Estimate: ") && text.contains("gate_proj"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let study: ShapeStudy = read(&file, &std::fs::read(&file).unwrap()).unwrap();
    assert!(study.coverage.is_complete() && study.rows.len() == 16, "{:?}", study.coverage);
    let rows: Value = serde_json::from_slice(&std::fs::read(&table).unwrap()).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 32);
    assert!(Path::new(&folder).join("definitions/gemm").is_dir());
    // Nothing is overwritten, and the place is refused before any work.
    let message = refusal(&[&["replay"], &pair[..], &["--export", &exports[1]]].concat(), 2);
    assert!(message.contains("never overwritten"), "{message}");
    for (kernels, expected) in [
        ("matmul/portable", "two kernels"),
        ("linear:nonsense/portable,vanilla/portable", "no kernel 'linear:nonsense/portable'"),
        ("vanilla/portable,vanilla/portable", "the same kernel"),
        ("linear:vanilla/portable,softmax:rows/portable", "different operators"),
        ("rows/portable,reference/portable", "several operators"),
    ] {
        let message = refusal(&["replay", "--shapes", &found, "--compare", kernels], 2);
        assert!(message.contains(expected), "{kernels}: {message}");
    }
}

#[test]
fn an_interrupted_replay_says_so_and_leaves_a_whole_record() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "r.json");
    // Turns of the second case take very long; that there are turns is told before the first.
    let arguments = [
        "replay",
        "--model",
        "synthetic:tiny",
        "--threads",
        "1",
        "--ceilings",
        "none",
        "--iterations",
        "10000",
        "--case",
        "selected:decode:24",
        "--case",
        "week1:prefill:4000",
        "--json-output",
        &file,
    ];
    let mut child = hourglass(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("take turns") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{message}");
    let record: ReplayRecord = read(&file, &std::fs::read(&file).unwrap()).unwrap();
    assert!(!record.void && record.cases.len() == 2);
    assert!(record.coverage.reason().unwrap().contains("interrupted"), "{:?}", record.coverage);
    for case in &record.cases {
        let turns: u64 = record.turns.iter().filter(|turn| turn.of == case.case).map(|turn| turn.rounds).sum();
        let replay = &case.replay;
        assert!(!replay.coverage.is_complete() || replay.round_order.len() as u64 == turns, "{:?}", replay.coverage);
    }
}

/// Both checkpoints in one process, turn about; what `compare` then makes of it.
#[test]
fn cases_take_turns_and_are_compared_turn_by_turn() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "r.json");
    let cases = ["--case", "swiglu:decode:24", "--case", "rope:decode:24", "--decode-rounds", "3"];
    stdout(&short(&[&cases[..], &["--json-output", &file]].concat()));
    let record: ReplayRecord = read(&file, &std::fs::read(&file).unwrap()).unwrap();
    let turns: Vec<&str> = record.turns.iter().map(|turn| turn.of.as_str()).collect();
    for (pair, next) in turns.chunks(2).zip(turns[2..].chunks(2)) {
        assert_eq!((pair[0], pair[1]), (next[1], next[0]), "{turns:?}");
    }
    let iterations = record.protocol.iterations as usize;
    assert!(record.turns.len() == 2 * iterations && record.turns.iter().all(|turn| turn.rounds == 3));
    for case in &record.cases {
        assert_eq!(case.replay.round_order.len(), 3 * iterations);
        assert_eq!(case.replay.groups[0].timing.samples_us.len(), 3 * iterations);
    }
    let (before, after) = (format!("{file}#rope"), format!("{file}#swiglu"));
    let text = stdout(&["compare", &before, &after]);
    assert!(text.contains("in one run, in turn") && !text.contains("not alternated"), "{text}");
    let comparison = json(&["compare", &before, &after, "--json"]);
    let methods: Vec<&Value> =
        comparison["replays"][0]["groups"].as_array().unwrap().iter().map(|row| &row["method"]).collect();
    assert!(methods.iter().all(|method| *method != "unpaired"), "{methods:?}");
}
