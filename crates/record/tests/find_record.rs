//! A `find` record as a whole: what is written reads back, what was tampered with or is foreign is refused with a reason.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use record::{
    Binary, Conditions, Coverage, FindRecord, GroupRow, Host, Known, LogitsMode, Mechanisms, Phase, Protocol,
    ReadError, Reading, Record, Replay, RequestClock, Subject, Timing, Unit, Wiring, Workload, read_find,
};
use serde_json::{Value, json};

fn workload(phase: Phase) -> Workload {
    Workload {
        model: "synthetic:tiny@0".into(),
        weights_hash: "ab".repeat(32),
        phase,
        context_tokens: 16,
        new_rows: if phase == Phase::Decode { 1 } else { 16 },
        capacity: 19,
        output_tokens: if phase == Phase::Request { 3 } else { 0 },
        logits: LogitsMode::Last,
        sampling: "greedy".into(),
        seed: 0,
        prompt_rule: "uniform".into(),
        token_trace_hash: record::token_trace_hash(&[1, 2, 3]),
    }
}

fn group(name: &str, samples_us: &[f64]) -> GroupRow {
    GroupRow {
        group: name.into(),
        kernels: vec!["linear: matvec/portable".into()],
        calls: 14,
        bytes_read: 1000,
        bytes_written: 10,
        flops: 2000,
        timing: Timing::new(samples_us.to_vec()).unwrap(),
        bandwidth: Known::unavailable("not yet", "total"),
        arithmetic: Known::unavailable("not yet", "total"),
    }
}

fn replay(phase: Phase) -> Replay {
    let mut replay = Replay::not_measured("selected", workload(phase), "to be filled");
    replay.coverage = Coverage::complete();
    replay.groups = vec![group("projections", &[60.0, 62.0, 61.0]), group("attention", &[30.0, 30.5, 31.0])];
    replay.sampling = Known::Is(Timing::new(vec![8.0, 8.5, 9.0]).unwrap());
    replay.whole_pass = Known::Is(Timing::new(vec![95.0, 96.0, 97.0]).unwrap());
    replay.round_order = vec![vec!["projections".into(), "attention".into()]; 3];
    replay.total();
    replay
}

fn record() -> FindRecord {
    let seconds = |value| Reading::measured(value, Unit::Seconds, 1);
    let missing = || Known::unavailable("not known here", "look elsewhere");
    let mut record = FindRecord {
        schema: FindRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: workload(Phase::Request),
        workload_id: String::new(),
        conditions: Conditions {
            binary: Binary { version: "0.1.0".into(), build_id: missing(), commit: missing(), dirty: Known::Is(true) },
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
        },
        conditions_id: String::new(),
        subject: Subject {
            solution: "hourglass".into(),
            checkpoint: "selected".into(),
            mechanisms: Mechanisms { capacity_cache: true, register_cached_rmsnorm: true, tiled_prefill: true },
            engine: "hourglass".into(),
            version: "0.1.0".into(),
            weights_form: "BF16".into(),
            conversions: Vec::new(),
        },
        protocol: Protocol { warmup: 1, iterations: 3, process_id: 1 },
        coverage: Coverage::complete(),
        request: Known::Is(RequestClock {
            coverage: Coverage::complete(),
            prefill: seconds(0.5),
            decode: seconds(0.2),
            prefill_rate: Reading::measured(32.0, Unit::TokensPerSecond, 1),
            decode_rate: Reading::measured(10.0, Unit::TokensPerSecond, 1),
            time_to_first_token: seconds(0.51),
            whole_request: seconds(0.72),
            output_rate: Reading::measured(4.2, Unit::TokensPerSecond, 1),
            time_per_output_token: Reading::measured(1e5, Unit::Microseconds, 2),
            inter_token_median: Reading::measured(1e5, Unit::Microseconds, 2),
            inter_token_p95: Reading::measured(1e5, Unit::Microseconds, 2),
            inter_token_p99: Reading::measured(1e5, Unit::Microseconds, 2),
            peak_allocation: Reading::measured(1e6, Unit::Bytes, 1),
            peak_rss: Reading::measured(2e6, Unit::Bytes, 1),
            processor_share: missing_share(),
            token_seconds: vec![0.5, 0.1, 0.1],
            output_hash: record::token_trace_hash(&[7, 8, 9]),
        }),
        wiring: vec![Wiring {
            phase: Phase::Decode,
            layers: 2,
            layers_as_planned: 2,
            passes: 2,
            calls_per_pass: 40,
            planned: 80,
            dispatched: 80,
            deviations: Vec::new(),
        }],
        replays: vec![replay(Phase::Prefill), replay(Phase::Decode)],
        next: missing_next(),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}

fn missing_share() -> Reading {
    Reading::unavailable("too short", "a longer request")
}

fn missing_next() -> Known<record::NextStep> {
    Known::unavailable("nothing to say", "measure")
}

fn text(record: &FindRecord) -> Vec<u8> {
    serde_json::to_vec_pretty(record).unwrap()
}

#[test]
fn what_is_written_reads_back() {
    let record = record();
    assert!(!record.void, "{:?}", record.checks);
    assert_eq!(read_find("r.json", &text(&record)).unwrap(), record);
}

#[test]
fn shares_are_of_the_sum_of_medians() {
    let replay = replay(Phase::Decode);
    assert_eq!(replay.replay_total_us.value(), Some(61.0 + 30.5 + 8.5));
    assert_eq!(replay.groups[0].timing.share.value(), Some(0.61));
    assert_eq!(replay.unexplained_us.value(), Some(96.0 - 91.5));
    assert_eq!(replay.groups[0].bandwidth.value(), Some(1.01 / 61.0));
    assert_eq!(replay.largest().unwrap().group, "projections");
}

#[test]
fn a_failed_check_voids_the_record_and_is_still_readable() {
    let mut broken = record();
    broken.wiring[0].dispatched = 79;
    broken.close();
    assert!(broken.void);
    let failed: Vec<_> = broken.checks.iter().filter(|check| !check.passed).collect();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].name.contains("calls x passes"), "{failed:?}");
    assert!(read_find("r.json", &text(&broken)).unwrap().void);
    let mut shares = record();
    shares.replays[0].groups[0].timing.share = Reading::measured(0.7, Unit::Share, 3);
    shares.close();
    assert!(shares.void);
}

#[test]
fn tampering_is_noticed() {
    let original: Value = serde_json::from_slice(&text(&record())).unwrap();
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 5] = [
        (|r| r["workload"]["seed"] = json!(5), "workload_id"),
        (|r| r["conditions"]["threads"] = json!(64), "conditions_id"),
        (|r| r["replays"][1]["workload"]["capacity"] = json!(64), "workload_id"),
        (|r| r["wiring"][0]["dispatched"] = json!(1), "checks"),
        (|r| r["checks"] = json!([]), "checks"),
    ];
    for (change, word) in changes {
        let mut changed = original.clone();
        change(&mut changed);
        let error = read_find("r.json", changed.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(word) && error.starts_with("r.json: "), "{error}");
    }
}

#[test]
fn foreign_files_get_a_reason() {
    let deep = "[".repeat(100_000);
    type Expected = fn(&ReadError) -> bool;
    let cases: [(&[u8], Expected); 9] = [
        (b"", |e| matches!(e, ReadError::NotJson { .. })),
        (b"\xff\xfe", |e| matches!(e, ReadError::NotJson { .. })),
        (deep.as_bytes(), |e| matches!(e, ReadError::NotJson { .. })),
        (b"[1, 2]", |e| matches!(e, ReadError::NotARecord { .. })),
        (b"null", |e| matches!(e, ReadError::NotARecord { .. })),
        (b"{\"schema\": 1}", |e| matches!(e, ReadError::NotARecord { .. })),
        (b"{\"schema\": \"find/2\"}", |e| matches!(e, ReadError::UnknownSchema { .. })),
        (b"{\"schema\": \"find/1\"}", |e| matches!(e, ReadError::Invalid { .. })),
        (b"{\"schema_version\": 1, \"profiles\": []}", |e| matches!(e, ReadError::NotARecord { .. })),
    ];
    for (bytes, expected) in cases {
        let error = read_find("x.json", bytes).unwrap_err();
        assert!(expected(&error), "{error}");
    }
}

#[test]
fn a_missing_total_stays_missing() {
    let mut record = record();
    record.replays[0] = Replay::not_measured("selected", workload(Phase::Prefill), "the cache is too small");
    record.close();
    assert!(!record.void);
    let back = read_find("r.json", &text(&record)).unwrap();
    assert_eq!(back.replays[0].replay_total_us.missing().unwrap().unavailable, "the cache is too small");
    assert_eq!(back.replays[0].coverage.reason(), Some("the cache is too small"));
    let incomplete: Value = serde_json::from_slice(&text(&record)).unwrap();
    assert_eq!(incomplete["replays"][0]["coverage"]["complete"], json!(false));
}

#[test]
fn the_schema_names_every_part() {
    let schema = record::schema::<FindRecord>().to_string();
    for word in ["workload_id", "conditions_id", "replay_total_us", "unavailable", "how_to_get", "dispatch_floor"] {
        assert!(schema.contains(word), "{word}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_find("x", &bytes);
    }

    /// A valid record with one stretch overwritten or cut.
    #[test]
    fn damaged_records_never_panic(at in any::<prop::sample::Index>(), junk in "[0-9eE{}\\[\\]\",:.a-z-]{0,12}", cut in any::<bool>()) {
        let mut bytes = text(&record());
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            let end = (at + junk.len()).min(bytes.len());
            bytes.splice(at..end, junk.bytes());
        }
        let _ = read_find("x", &bytes);
    }
}
