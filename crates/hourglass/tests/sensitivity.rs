//! `hourglass replay --sensitivity` through the binary: what is clocked, in which order, and what the record says of it.
//! Not here: whether a slope is right; that depends on the clock, and is held to known truths in `record` and `probe`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use record::{SensitivityRecord, read};
use support::{refusal, stdout};

const SHORT: [&str; 11] = [
    "replay",
    "--model",
    "synthetic:tiny",
    "--threads",
    "2",
    "--case",
    "selected:decode:16",
    "--output-len",
    "5",
    "--rounds",
    "2",
];

fn record_of(rest: &[&str]) -> SensitivityRecord {
    let text = stdout(&[&SHORT[..], &["--json"], rest].concat());
    read("stdout", text.as_bytes()).unwrap()
}

#[test]
fn every_group_is_clocked_with_and_without_added_time_in_turn() {
    let record = record_of(&["--sensitivity", "all"]);
    assert!(!record.void && record.coverage.is_complete(), "{:?}", record.checks);
    assert_eq!(record.targets.len(), 6);
    let arms: Vec<Vec<(Option<&str>, u64)>> = (0..2)
        .map(|round| {
            let here = record.samples.iter().filter(|sample| sample.round == round);
            here.map(|sample| (sample.target.as_deref(), sample.times)).collect()
        })
        .collect();
    assert_eq!((arms[0].len(), arms[1].len()), (13, 13), "one as it is, two per group");
    assert_eq!(arms[1][..12], arms[0][1..], "each round starts one later");
    for sample in &record.samples {
        assert_eq!(sample.times == 0, sample.injected_seconds == 0.0);
        assert!(sample.request_seconds > 0.0);
    }
    // Four decode steps of two layers with seven projections each.
    let projections = record.targets.iter().find(|target| target.target == "projections").unwrap();
    assert_eq!(projections.calls, 4 * 2 * 7);
    assert!(projections.expected_slope.value().unwrap() > 0.0);
}

#[test]
fn one_group_by_the_beginning_of_its_name_or_one_operator() {
    let record = record_of(&["--sensitivity", "norm", "--sensitivity", "swiglu"]);
    let mut names: Vec<&str> = record.targets.iter().map(|target| target.target.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["normalization, position, and activation", "swiglu"]);
    let text = stdout(&[&SHORT[..], &["--sensitivity", "head"]].concat());
    for words in ["head", "slope (95 %)", "at stake", "one warm process", "decode passes"] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn bad_input_is_refused_before_any_work() {
    for (rest, expected) in [
        (&["--sensitivity", "nonsense"][..], "no group or operator 'nonsense'"),
        (&["--sensitivity", "all", "--case", "selected:decode:32"], "one case at a time"),
    ] {
        let message = refusal(&[&SHORT[..], rest].concat(), 2);
        assert!(message.contains(expected), "{rest:?}: {message}");
    }
    for (flag, value) in [("--rounds", "1"), ("--output-len", "1")] {
        let message = refusal(&["replay", "--model", "synthetic:tiny", "--sensitivity", "all", flag, value], 2);
        assert!(message.contains(flag) && message.contains("expected 2"), "{message}");
    }
}
