//! `hourglass timeline` through the binary, on a tiny model: table, record, trace files, refusals.
//! Not here: whether what is slow is found, which the tests of `probe` show; and viewers, which those of `record` do.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use record::timeline::OverheadUnit;
use record::{Record, TimelineRecord, read};
use support::{json, refusal, stand_in_model, stdout};

const SHORT: [&str; 8] = ["timeline", "--threads", "2", "--input-len", "24", "--output-len", "9", "--model"];
const ONE_ROUND: [&str; 2] = ["--overhead-rounds", "1"];
const NO_ROUND: [&str; 2] = ["--overhead-rounds", "0"];

fn with<'a>(model: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&SHORT[..], &[model], rest].concat()
}

fn record_of(rest: &[&str]) -> TimelineRecord {
    let text = stdout(&with("synthetic:tiny", &[rest, &["--json"]].concat()));
    read("stdout", text.as_bytes()).unwrap()
}

#[test]
fn the_table_fits_and_names_what_matters() {
    let text = stdout(&with("synthetic:tiny", &ONE_ROUND));
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "24 prompt tokens, 9 generated",
        "wall",
        "main thread on a processor",
        "peak allocation",
        "keys and values",
        "device busy",
        "worker 0",
        "worker 1",
        "The longest gaps",
        "linear",
        "prefill pass: 1 of them",
        "decode step: 8 of them, median",
        "CPU samples: ",
        "Tracing costs: ",
        "of a decode step (95 % interval",
        "from 8 decode steps with and without it in turn",
        "What the workers' time was lost to in the end",
    ] {
        assert!(flat.contains(words), "{words} is missing:\n{text}");
    }
    for line in text.lines().filter(|line| line.trim().contains(' ')) {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn records_of_every_phase_cross_foot() {
    for phase in ["request", "prefill", "decode"] {
        let record = record_of(&["--phase", phase, ONE_ROUND[0], ONE_ROUND[1]]);
        assert_eq!(record.workload.phase.name(), phase);
        assert!(!record.void && record.checks.len() > 20, "{phase}: {:?}", record.checks);
        assert_eq!(record.checks, record.cross_foot());
        let overhead = record.overhead.known().unwrap();
        let order: Vec<bool> = overhead.samples.iter().map(|sample| sample.traced).collect();
        assert_eq!(order, [false, true, true, false, true, false, false, true], "{phase}");
        let unit = if phase == "prefill" { OverheadUnit::Prefill } else { OverheadUnit::DecodeStep };
        assert_eq!(overhead.of, unit);
        let names: Vec<&str> = record.summary.phases.iter().map(|phase| &phase.name[..]).collect();
        let wanted: &[&str] = if phase == "request" { &["prefill", "decode"] } else { &[phase] };
        assert_eq!(names, wanted);
    }
    // The same request generates the same tokens under tracing as without.
    let timeline = record_of(&NO_ROUND);
    let words = ["bench", "--variant", "fast", "--repeats", "1", "--model", "synthetic:tiny", "--threads", "2"];
    let bench = json(&[&words[..], &["--input-len", "24", "--output-len", "9", "--json"]].concat());
    let bench = read::<record::bench::BenchRecord>("bench", bench.to_string().as_bytes()).unwrap();
    assert_eq!(timeline.workload_id, bench.workload_id, "{:?}", timeline.workload.differences(&bench.workload));
    assert_eq!(&timeline.subject, bench.arms[0].subject.known().unwrap());
}

#[test]
fn spans_alone_say_that_there_are_no_samples() {
    let record = record_of(&["--no-samples", "--overhead-rounds", "0"]);
    assert_eq!(record.sampling.samples, 0);
    assert!(record.sampling.lost.missing().unwrap().unavailable.contains("not asked for"));
    assert!(record.overhead.missing().unwrap().unavailable.contains("--overhead-rounds 0"));
    assert!(!record.void);
}

#[test]
fn every_format_is_written_and_nothing_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("model");
    stand_in_model(&model);
    let model = model.to_str().unwrap();
    for (format, begins) in
        [("perfetto", &b"\x0a"[..]), ("chrome", b"{"), ("firefox", b"{"), ("speedscope", b"{"), ("folded", b"")]
    {
        let path = directory.path().join(format);
        let name = path.to_str().unwrap();
        let words = with(model, &[NO_ROUND[0], NO_ROUND[1], "--out", name, "--format", format]);
        stdout(&words);
        let written = std::fs::read(&path).unwrap();
        assert!(written.starts_with(begins), "{format}");
        if begins == b"{" {
            let value: serde_json::Value = serde_json::from_slice(&written).unwrap();
            assert!(value.is_object(), "{format}");
        }
        if format == "chrome" {
            let text = String::from_utf8(written).unwrap();
            for words in ["text to tokens", "token to text", "choose a token", "make input and cache", "dispatch"] {
                assert!(text.contains(words), "{words}");
            }
        }
        assert!(refusal(&words, 2).contains("never overwritten"), "{format}");
    }
}

#[test]
fn wrong_flags_are_named() {
    for (rest, words) in [
        (&["--warmup", "0"][..], "--warmup 0"),
        (&["--frequency", "0"], "--frequency 0"),
        (&["--no-samples", "--out", "/nonexistent/x", "--format", "folded"], "--no-samples"),
        (&["--out", "/nonexistent/x"], "/nonexistent/x"),
        (&["--format", "chrome"], "--out"),
    ] {
        let error = refusal(&with("synthetic:tiny", rest), 2);
        assert!(error.contains(words), "{rest:?}: {error}");
    }
    let error = refusal(&["timeline", "--model", "synthetic:tiny", "--input-len", "0"], 2);
    assert!(error.contains("--input-len 0"), "{error}");
}
