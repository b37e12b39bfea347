//! `replay/1` and what follows from two of its cases: sums, refusals that name the field, decisions, older records.

#![allow(clippy::unwrap_used, reason = "tests")]

use record::{
    Binary, ClockedRequest, ComparisonError, Conditions, Coverage, DecisionError, GroupRow, Host, Known, LogitsMode,
    Mechanisms, OperatorRow, Outcome, Phase, Protocol, Reading, Record, Replay, ReplayCase, ReplayRecord, Subject,
    Timing, Unit, Words, Workload, compare_replays, decide, read,
};
use serde_json::{Value, json};

fn workload() -> Workload {
    Workload {
        model: "synthetic:tiny@0".into(),
        weights_hash: "ab".repeat(32),
        phase: Phase::Decode,
        context_tokens: 16,
        new_rows: 1,
        capacity: 16,
        output_tokens: 0,
        logits: LogitsMode::Last,
        sampling: "greedy".into(),
        seed: 0,
        prompt_rule: "uniform".into(),
        token_trace_hash: record::token_trace_hash(&[1, 2, 3]),
    }
}

fn row(group: &str, calls: u64, samples_us: [f64; 3]) -> GroupRow {
    let missing = || Known::unavailable("not yet", "total");
    GroupRow {
        group: group.into(),
        kernels: vec!["linear: matvec/portable".into()],
        calls,
        bytes_read: 1000 * calls,
        bytes_written: 10 * calls,
        flops: 2000 * calls,
        timing: Timing::new(samples_us.to_vec()).unwrap(),
        bandwidth: missing(),
        arithmetic: missing(),
        floor: Known::unavailable("no ceilings", "measure them"),
    }
}

fn operator(slot: &str, row: GroupRow) -> OperatorRow {
    OperatorRow { slot: slot.into(), operator: "linear".into(), shapes: vec!["(1, 8) bf16".into()], row }
}

/// Projections of two places and attention; `scale` stretches the projections.
fn replay(checkpoint: &str, scale: f64) -> Replay {
    let mut replay = Replay::not_measured(checkpoint, workload(), "to be filled");
    replay.coverage = Coverage::complete();
    let at = |us: [f64; 3]| us.map(|us| us * scale);
    replay.groups = vec![row("projections", 4, at([60.0, 62.0, 61.0])), row("attention", 2, [30.0, 30.5, 31.0])];
    replay.operators = Known::Is(vec![
        operator("q_proj", row("projections", 2, at([30.0, 31.0, 32.0]))),
        operator("o_proj", row("projections", 2, at([33.0, 32.0, 31.0]))),
        operator("attention", row("attention", 2, [30.0, 31.0, 32.0])),
    ]);
    replay.sampling = Known::Is(Timing::new(vec![8.0, 8.5, 9.0]).unwrap());
    replay.whole_pass = Known::Is(Timing::new(vec![95.0, 96.0, 97.0]).unwrap());
    replay.round_order = vec![vec!["projections".into(), "attention".into()]; 3];
    replay.total();
    replay
}

fn conditions(commit: &str) -> Conditions {
    let missing = || Known::unavailable("not known here", "look elsewhere");
    Conditions {
        binary: Binary {
            version: "0.1.0".into(),
            build_id: missing(),
            commit: Known::Is(commit.into()),
            dirty: Known::Is(false),
        },
        host: Host {
            device: "cpu".into(),
            cpu_model: missing(),
            processors: 2,
            memory_bytes: Known::Is(1 << 30),
            operating_system: missing(),
            kernel_release: missing(),
            huge_pages: missing(),
            driver: missing(),
        },
        threads: 2,
        pinned: false,
        features: vec!["avx2".into()],
        kernels: Vec::new(),
    }
}

fn case(checkpoint: &str, scale: f64) -> ReplayCase {
    let conditions = conditions("abc");
    ReplayCase {
        case: format!("{checkpoint}:decode:16"),
        subject: Known::Is(Subject {
            solution: "hourglass".into(),
            checkpoint: checkpoint.into(),
            mechanisms: Mechanisms { capacity_cache: true, register_cached_rmsnorm: true, tiled_prefill: true },
            engine: "hourglass".into(),
            version: "0.1.0".into(),
            weights_form: "BF16".into(),
            conversions: Vec::new(),
        }),
        conditions_id: Known::Is(conditions.id()),
        conditions: Known::Is(conditions),
        replay: replay(checkpoint, scale),
    }
}

fn record(cases: Vec<ReplayCase>) -> ReplayRecord {
    let mut record = ReplayRecord {
        schema: ReplayRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        protocol: Protocol { warmup: 1, iterations: 3, process_id: 1 },
        ceilings: Known::unavailable("none", "measure"),
        cases,
        requests: Vec::new(),
        turns: Vec::new(),
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}

fn close(found: Option<f64>, expected: f64) {
    assert!((found.unwrap() - expected).abs() < 1e-9 * expected.abs().max(1.0), "{found:?}, expected {expected}");
}

#[test]
fn what_is_written_reads_back_and_incomplete_cases_stay_missing() {
    let incomplete = Replay::not_measured("week1", workload(), "the cache is too small");
    let record = record(vec![case("selected", 1.0), ReplayCase::not_measured("week1:decode:16", incomplete)]);
    assert!(!record.void, "{:?}", record.checks);
    assert!(record.coverage.reason().unwrap().contains("week1:decode:16: the cache is too small"));
    let text = serde_json::to_vec_pretty(&record).unwrap();
    assert_eq!(read::<ReplayRecord>("r", &text).unwrap(), record);
    let value: Value = serde_json::from_slice(&text).unwrap();
    let missing = &value["cases"][1]["replay"];
    assert_eq!(missing["coverage"]["complete"], json!(false));
    assert!(missing["replay_total_us"]["unavailable"].is_string(), "missing, not zero: {missing}");
}

#[test]
fn operators_have_shares_and_rates_and_must_sum_to_the_groups() {
    let record = record(vec![case("selected", 1.0)]);
    let operators = record.cases[0].replay.operators.known().unwrap();
    // 31 of 61 + 30.5 + 8.5.
    close(operators[0].row.timing.share.value(), 0.31);
    close(operators[0].row.bandwidth.value(), 2020.0 / 1e3 / 31.0);
    let mut broken = record.clone();
    let Known::Is(rows) = &mut broken.cases[0].replay.operators else { panic!("known") };
    rows.pop();
    broken.close();
    assert!(broken.void);
    let failed: Vec<_> = broken.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str()).collect();
    assert!(failed.iter().any(|name| name.contains("operators' calls")), "{failed:?}");
}

#[test]
fn tampering_is_noticed() {
    let original = serde_json::to_value(record(vec![case("selected", 1.0)])).unwrap();
    type Tamper = fn(&mut Value);
    let changes: [(Tamper, &str); 4] = [
        (|r| r["cases"][0]["replay"]["workload"]["seed"] = json!(5), "workload_id"),
        (|r| r["cases"][0]["conditions"]["threads"] = json!(64), "conditions_id"),
        (|r| r["cases"][0]["replay"]["operators"][0]["row"]["calls"] = json!(1), "checks"),
        (|r| r["void"] = json!(true), "checks"),
    ];
    for (change, word) in changes {
        let mut changed = original.clone();
        change(&mut changed);
        let error = read::<ReplayRecord>("r.json", changed.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(word) && error.starts_with("r.json: "), "{error}");
    }
}

/// A find record of the first builds has replays without operators and floors.
#[test]
fn replays_of_older_records_are_read() {
    let mut value = serde_json::to_value(replay("selected", 1.0)).unwrap();
    value.as_object_mut().unwrap().remove("operators");
    value.as_object_mut().unwrap().remove("processor_share");
    for group in value["groups"].as_array_mut().unwrap() {
        group.as_object_mut().unwrap().remove("floor");
    }
    let old: Replay = serde_json::from_value(value).unwrap();
    assert!(old.operators.known().is_none() && old.groups[0].floor.known().is_none());
    assert_eq!(old.checks().len(), 4, "what it does not have is not checked");
    assert!(old.checks().iter().all(|check| check.passed));
}

#[test]
fn a_comparison_says_what_each_group_saved() {
    let comparison = compare_replays(&case("swiglu", 2.0), &case("selected", 1.0)).unwrap();
    assert!(!comparison.void && comparison.different_conditions.is_empty());
    let names: Vec<&str> = comparison.groups.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(names, ["projections", "attention", "sampling"]);
    close(comparison.groups[0].saved.value(), 61.0);
    close(comparison.groups[0].gain.value(), 0.5);
    assert_eq!(comparison.groups[0].beyond_spread, Known::Is(true));
    assert_eq!(comparison.groups[1].beyond_spread, Known::Is(false));
    close(comparison.total.saved.value(), 61.0);
    let text = serde_json::to_vec(&comparison).unwrap();
    assert_eq!(read::<record::ReplayComparison>("c", &text).unwrap(), comparison);
}

#[test]
fn rows_by_two_clocks_are_said_to_be() {
    let mut by_host = case("swiglu", 2.0);
    by_host.replay.dispatch_floor = Known::Is(Timing::new(vec![5.0; 3]).unwrap());
    let mut by_gpu = case("selected", 1.0);
    by_gpu.replay.dispatch_floor = Known::unavailable("the GPU times its calls itself", "the timeline");
    let of = |a: &ReplayCase, b: &ReplayCase| compare_replays(a, b).unwrap().different_conditions;
    assert_eq!(of(&by_host, &by_gpu), ["clock of the rows (the host's, the GPU's own)"]);
    assert!(of(&by_gpu, &by_gpu).is_empty());
}

#[test]
fn a_group_of_one_side_is_missing_on_the_other_and_not_zero() {
    let mut after = case("selected", 1.0);
    after.replay.groups[1].group = "cache update".into();
    let comparison = compare_replays(&case("week1", 1.0), &after).unwrap();
    let named = |name: &str| comparison.groups.iter().find(|change| change.name == name).unwrap();
    assert!(named("attention").after.known().is_none() && named("cache update").before.known().is_none());
    assert!(named("attention").saved.known().is_none());
    assert!(!comparison.void, "{:?}", comparison.checks);
}

#[test]
fn other_workloads_are_refused_and_the_fields_are_named() {
    let mut after = case("selected", 1.0);
    after.replay.workload.capacity = 64;
    after.replay.workload.logits = LogitsMode::All;
    let error = compare_replays(&case("swiglu", 1.0), &after).unwrap_err();
    assert!(matches!(error, ComparisonError::Workloads { .. }));
    let text = error.to_string();
    assert!(text.contains("capacity") && text.contains("logits") && !text.contains("seed"), "{text}");
    let incomplete = Replay::not_measured("selected", workload(), "interrupted");
    let incomplete = ReplayCase::not_measured("selected:decode:16", incomplete);
    let text = compare_replays(&case("swiglu", 1.0), &incomplete).unwrap_err().to_string();
    assert!(text.contains("interrupted") && text.contains("selected:decode:16"), "{text}");
}

fn request(decode: f64) -> ClockedRequest {
    let seconds = |value| Reading::measured(value, Unit::Seconds, 4);
    let workload = Workload { phase: Phase::Request, output_tokens: 11, capacity: 27, new_rows: 16, ..workload() };
    ClockedRequest {
        name: "r".into(),
        workload,
        prefill: seconds(0.1),
        decode: seconds(decode),
        whole_request: seconds(decode + 0.1),
    }
}

#[test]
fn how_much_arrived_is_the_requests_saving_over_the_replays() {
    let mut comparison = compare_replays(&case("swiglu", 2.0), &case("selected", 1.0)).unwrap();
    // Ten steps: 200 µs each before, 150 µs after; the replay saved 61 µs.
    comparison.add_requests(&request(2000e-6), &request(1500e-6)).unwrap();
    let arrival = comparison.request.known().unwrap();
    close(arrival.pass.before.value(), 200.0);
    close(arrival.pass.saved.value(), 50.0);
    close(arrival.arrived.value(), 50.0 / 61.0);
    close(arrival.whole_request.gain.value(), 500.0 / 102_000.0);
    let mut longer = request(1e-3);
    longer.workload.output_tokens = 12;
    let text = comparison.add_requests(&request(2e-3), &longer).unwrap_err().to_string();
    assert!(text.contains("output_tokens"), "{text}");
    let mut other = request(1e-3);
    other.workload.model = "another".into();
    let text = comparison.add_requests(&other.clone(), &other).unwrap_err().to_string();
    assert!(text.contains("model another"), "{text}");
}

fn words(category: &str) -> Words {
    Words {
        dominant_category: category.into(),
        hypothesis: "weights bound".into(),
        observed_effect: "halved".into(),
        decision: Outcome::Keep,
        next_experiment: "attention".into(),
    }
}

#[test]
fn a_decision_holds_the_words_and_the_evidence() {
    let (before, after) = (case("swiglu", 2.0), case("selected", 0.1));
    let decision = decide(&words("projections"), "2026-01-01T00:00:00Z", &before, &after).unwrap();
    assert_eq!((decision.source.known().unwrap().as_str(), decision.solution.as_str()), ("abc", "hourglass"));
    assert_eq!(
        (decision.evidence.largest_before.as_str(), decision.evidence.largest_after.as_str()),
        ("projections", "attention")
    );
    close(decision.evidence.category.gain.value(), 0.95);
    assert!(!decision.void);
    let text = serde_json::to_vec(&decision).unwrap();
    assert_eq!(read::<record::DecisionRecord>("d", &text).unwrap(), decision);
    let value = serde_json::to_value(&decision).unwrap();
    assert_eq!((&value["decision"], &value["evidence_kind"]), (&json!("keep"), &json!("operator_replay")));
}

#[test]
fn a_decision_needs_one_source_one_solution_one_workload_and_a_group() {
    let now = "2026-01-01T00:00:00Z";
    let before = case("swiglu", 2.0);
    let mut other_build = case("selected", 1.0);
    other_build.conditions = Known::Is(conditions("def"));
    let error = decide(&words("projections"), now, &before, &other_build).unwrap_err();
    assert!(matches!(error, DecisionError::Different { field: "source", .. }), "{error}");
    let mut lab = case("selected", 1.0);
    let Known::Is(subject) = &mut lab.subject else { panic!("known") };
    subject.solution = "lab".into();
    let error = decide(&words("projections"), now, &before, &lab).unwrap_err();
    assert!(matches!(error, DecisionError::Different { field: "solution", .. }), "{error}");
    let mut shorter = case("selected", 1.0);
    shorter.replay.workload.context_tokens = 8;
    let error = decide(&words("projections"), now, &before, &shorter).unwrap_err().to_string();
    assert!(error.contains("context_tokens"), "{error}");
    let error = decide(&words("gemm"), now, &before, &case("selected", 1.0)).unwrap_err().to_string();
    assert!(error.contains("'gemm'") && error.contains("attention"), "{error}");
}
