//! A bench record and its children's lines: what is good is read, what is not is refused with a reason, and what follows from
//! samples follows from them.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use record::bench::{
    Arm, ArmKind, BenchProtocol, BenchRecord, ChildHeader, ChildLine, ChildRequest, EXCLUSION_RULE, EndpointTimes,
    EngineFacts, Measured, Metric, Outcome, Sample, Slot, Tolerance, Verified,
};
use record::statistics::order;
use record::{
    Binary, Coverage, Host, Known, LogitsMode, Phase, Reading, Record, Wiring, Workload, read, token_trace_hash,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const OUTPUT: u64 = 4;

fn missing<T>() -> Known<T> {
    Known::unavailable("not in this test", "elsewhere")
}

fn request() -> ChildRequest {
    let line = json!({
        "kind": "request", "prefill_s": 0.5, "token_s": [0.5, 0.1, 0.2, 0.1], "to_first_token_s": 0.51,
        "request_s": 1.0, "tokens": [7, 8, 9, 10], "peak_allocation_bytes": 1000,
        "peak_rss_bytes": {"unavailable": "not on this system", "how_to_get": "use Linux"},
    });
    match ChildLine::parse(&line.to_string()).unwrap() {
        ChildLine::Request(request) => *request,
        other => panic!("{other:?}"),
    }
}

fn wiring(layers_as_planned: u64) -> Vec<Wiring> {
    vec![Wiring {
        phase: Phase::Decode,
        layers: 2,
        layers_as_planned,
        passes: 3,
        calls_per_pass: 40,
        planned: 120,
        dispatched: 120,
        deviations: Vec::new(),
    }]
}

fn measured(tokens: &[u32]) -> Measured {
    let mut request = request();
    request.tokens = Known::Is(tokens.to_vec());
    Measured {
        clock: request.clock(8, OUTPUT),
        tokens: request.tokens,
        margins: missing(),
        wiring: wiring(2),
        endpoint: None,
    }
}

/// Two arms, four repeats, every sample good.
fn record() -> BenchRecord {
    let order = order::schedule(2, 4).unwrap();
    let schedule: Vec<Slot> = order.slots().map(|(row, arm)| Slot { arm: arm as u64, block: row as u64 }).collect();
    let facts = EngineFacts {
        engine: "hourglass".into(),
        version: "0.1.0".into(),
        settings: BTreeMap::new(),
        weights_form: "BF16".into(),
        conversions: Vec::new(),
    };
    let arm = |name: &str, kind| {
        let mut arm = Arm::planned(name, name, kind, Tolerance::Equal);
        arm.engine = Known::Is(facts.clone());
        arm
    };
    let samples = schedule.iter().enumerate().map(|(index, slot)| Sample {
        order: index as u64,
        arm: slot.arm,
        block: slot.block,
        process_id: Known::Is(100 + index as u32),
        started: "2026-01-01T00:00:00Z".into(),
        process_s: 2.0,
        outcome: Outcome::Measured(Box::new(measured(&[7, 8, 9, 10]))),
        surroundings: missing(),
        marks: Vec::new(),
        excluded: None,
    });
    let mut record = BenchRecord {
        schema: BenchRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: Workload {
            model: "test".into(),
            weights_hash: "ab".repeat(32),
            phase: Phase::Request,
            context_tokens: 8,
            new_rows: 8,
            capacity: 12,
            output_tokens: OUTPUT,
            logits: LogitsMode::Last,
            sampling: "greedy".into(),
            seed: 0,
            prompt_rule: "uniform".into(),
            token_trace_hash: token_trace_hash(&[1]),
        },
        workload_id: String::new(),
        protocol: BenchProtocol {
            design: order.words(),
            repeats: 4,
            warmup: 2,
            cooldown_s: 0.0,
            time_limit_s: 10.0,
            seed: 0,
            confidence: 0.95,
            practical_percent: 2.0,
            load_limit: 0.1,
            exclusion_rule: EXCLUSION_RULE.into(),
        },
        binary: Binary { version: "0.1.0".into(), build_id: missing(), commit: missing(), dirty: missing() },
        host: Host {
            device: "cpu".into(),
            cpu_model: missing(),
            processors: 2,
            memory_bytes: missing(),
            operating_system: missing(),
            kernel_release: missing(),
            huge_pages: missing(),
            driver: missing(),
        },
        samples: samples.collect(),
        schedule,
        arms: vec![arm("selected", ArmKind::Checkpoint), arm("A/A", ArmKind::SameAgain)],
        comparisons: Vec::new(),
        noise: missing(),
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    record.conclude().unwrap();
    record
}

/// Changes every sample of the second arm.
fn second_arm(record: &mut BenchRecord, change: impl Fn(&mut Measured)) {
    for sample in record.samples.iter_mut().filter(|sample| sample.arm == 1) {
        if let Outcome::Measured(measured) = &mut sample.outcome {
            change(measured);
        }
    }
}

#[test]
fn a_good_run_is_complete_and_reads_back() {
    let record = record();
    assert!(record.coverage.is_complete() && !record.void, "{:?} {:?}", record.coverage, record.checks);
    assert!(record.arms.iter().all(|arm| arm.counts), "{:?}", record.arms);
    assert_eq!(record.arms[0].median(Metric::Prefill).value(), Some(16.0));
    // 3 tokens in 0.4 s; 4 in 1 s.
    assert!((record.arms[1].median(Metric::Decode).value().unwrap() - 7.5).abs() < 1e-9);
    assert_eq!(record.arms[1].median(Metric::Output).value(), Some(4.0));
    assert!(record.arms[0].median(Metric::PeakRss).known().is_none(), "missing, and not zero");
    let text = serde_json::to_vec(&record).unwrap();
    assert_eq!(read::<BenchRecord>("b.json", &text).unwrap(), record);
}

#[test]
fn tampering_and_other_kinds_are_noticed() {
    let original = serde_json::to_value(record()).unwrap();
    let refused = |change: fn(&mut Value)| {
        let mut changed = original.clone();
        change(&mut changed);
        read::<BenchRecord>("b.json", changed.to_string().as_bytes()).unwrap_err().to_string()
    };
    for (change, word) in [
        ((|r| r["workload"]["seed"] = json!(5)) as fn(&mut Value), "workload_id"),
        (|r| r["arms"][1]["summary"][0]["median"]["value"] = json!(99.0), "checks"),
        (|r| r["samples"][2]["arm"] = json!(0), "checks"),
        (|r| r["samples"][0]["outcome"]["measured"]["clock"]["token_seconds"][1] = json!(9.0), "checks"),
        (|r| r["comparisons"][0]["ratio"]["value"] = json!(2.0), "the comparisons"),
        (|r| r["void"] = json!(true), "checks"),
        (|r| r["schema"] = json!("find/2"), "a bench/1 record was expected"),
        (|r| r["schema"] = json!("bench/9"), "not known to this build"),
    ] {
        let message = refused(change);
        assert!(message.contains(word) && message.starts_with("b.json: "), "{message}");
    }
}

#[test]
fn another_output_is_shown_and_does_not_count() {
    let mut record = record();
    second_arm(&mut record, |sample| *sample = measured(&[7, 8, 3, 10]));
    record.conclude().unwrap();
    let arm = &record.arms[1];
    assert!(
        !arm.counts && arm.reason.as_ref().unwrap().contains("token 3 of 4 is 3 where the control has 9"),
        "{arm:?}"
    );
    assert!(arm.median(Metric::Decode).known().is_some(), "it is shown");
    assert!(record.comparisons.is_empty() && !record.void);
}

#[test]
fn a_difference_is_allowed_at_a_near_tie_alone() {
    let mut record = record();
    second_arm(&mut record, |sample| *sample = measured(&[7, 8, 3, 1]));
    record.arms[1].output_check.tolerance = Tolerance::NearTie { margin: 0.5 };
    for (margins, expected) in [
        (None, "does not say how near"),
        (Some(vec![9.0, 9.0, 0.6, 0.0]), "0.600 apart; only below 0.5"),
        (Some(vec![9.0, 9.0, 0.3, 9.0]), ""),
    ] {
        if let Outcome::Measured(first) = &mut record.samples[0].outcome {
            first.margins = margins.map_or_else(missing, Known::Is);
        }
        record.conclude().unwrap();
        let arm = &record.arms[1];
        match expected {
            "" => assert!(arm.counts && matches!(arm.output_check.result, Verified::Passed(_)), "{arm:?}"),
            words => assert!(!arm.counts && arm.reason.as_ref().unwrap().contains(words), "{arm:?}"),
        }
    }
    // The control against itself has no such excuse.
    second_arm(&mut record, |sample| *sample = measured(&[7, 8, 9, 10]));
    record.samples.iter_mut().filter(|sample| sample.arm == 0).skip(1).for_each(|sample| {
        sample.outcome = Outcome::Measured(Box::new(measured(&[7, 8, 3, 1])));
    });
    record.conclude().unwrap();
    assert!(!record.arms[0].counts && record.comparisons.is_empty(), "{:?}", record.arms[0]);
}

#[test]
fn a_layer_that_was_not_dispatched_voids_the_comparison() {
    let mut record = record();
    second_arm(&mut record, |sample| sample.wiring = wiring(1));
    record.conclude().unwrap();
    assert!(record.void && !record.arms[1].counts);
    assert!(record.arms[1].reason.as_ref().unwrap().contains("1 of 2 layers"), "{:?}", record.arms[1].reason);
    let text = serde_json::to_vec(&record).unwrap();
    assert!(read::<BenchRecord>("b.json", &text).unwrap().void, "a void record can be read");
    second_arm(&mut record, |sample| sample.wiring.clear());
    record.conclude().unwrap();
    assert!(!record.arms[1].counts, "silence is no proof");
}

#[test]
fn a_lost_sample_is_a_gap_and_not_a_lost_run() {
    let mut record = record();
    record.samples[1].outcome = Outcome::Lost("it crashed".into());
    record.conclude().unwrap();
    assert_eq!(record.coverage.reason(), Some("A/A lost 1 sample: it crashed"));
    assert!(record.arms[1].counts && !record.void);
    assert_eq!(record.comparison(1, Metric::Decode).unwrap().pairs, 3);
    assert_eq!(record.arms[1].median(Metric::Decode).known().unwrap().n(), 3);
    record.samples.truncate(3);
    record.conclude().unwrap();
    assert!(record.coverage.reason().unwrap().contains("3 of 8 planned processes ran"), "{:?}", record.coverage);
    assert!(!record.void);
}

#[test]
fn marked_samples_leave_with_their_block_where_enough_remain() {
    let mut record = record();
    record.samples[2].marks = vec!["others took 50 %".into()];
    record.conclude().unwrap();
    let out: Vec<u64> = record.samples.iter().filter(|s| s.excluded.is_some()).map(|s| s.order).collect();
    assert_eq!(out, [2, 3], "both arms of block 1, and no other");
    assert_eq!(record.comparison(1, Metric::Decode).unwrap().pairs, 3);
    assert!(record.coverage.is_complete(), "a sample that is left out is none that is lost");
    // Three of four blocks marked: too few would be left, so all stay.
    for index in [0, 4] {
        record.samples[index].marks = vec!["others took 50 %".into()];
    }
    record.conclude().unwrap();
    assert!(record.samples.iter().all(|sample| sample.excluded.is_none()));
    assert_eq!(record.comparison(1, Metric::Decode).unwrap().pairs, 4);
    assert_eq!(record.samples[0].marks.len(), 1, "and stay marked");
}

#[test]
fn requests_that_no_clock_can_have_given_are_refused() {
    let change = |change: fn(&mut ChildRequest)| {
        let mut request = request();
        change(&mut request);
        request.check(OUTPUT).unwrap_err().to_string()
    };
    assert!(request().check(OUTPUT).is_ok());
    for (change_it, words) in [
        ((|r| r.tokens = Known::Is(vec![1])) as fn(&mut ChildRequest), "1 tokens; 4 were expected"),
        (|r| r.token_s = Known::Is(vec![0.5, 0.1]), "2 token times"),
        (|r| r.token_s = Known::Is(vec![0.5, -0.1, 0.1, 0.1]), "-0.1 s"),
        (|r| r.request_s = f64::NAN, "NaN"),
        (|r| r.request_s = 0.0, "request_s is 0 s"),
        (|r| r.token_s = Known::Is(vec![0.5, 0.1, 0.0, 0.1]), "token_s is 0 s"),
        (|r| r.prefill_s = Known::Is(0.0), "prefill_s is 0 s"),
        (|r| r.peak_rss_bytes = Known::Is(0), "peak_rss_bytes is 0 bytes"),
        (|r| r.peak_allocation_bytes = Known::Is(0), "peak_allocation_bytes is 0 bytes"),
        (|r| r.margins = Some(vec![0.1]), "1 margins; 4 were expected"),
        (|r| r.request_s = 0.6, "is a part"),
        (|r| r.to_first_token_s = 0.4, "prefill_s took 0.5 s"),
        (|r| r.prefill_s = Known::Is(0.2), "first of token_s"),
    ] {
        let message = change(change_it);
        assert!(message.contains(words), "{words} in {message}");
    }
}

#[test]
fn lines_that_are_not_of_the_protocol_say_why() {
    let long = format!("\"{}\"", "x".repeat(record::bench::MAX_LINE_BYTES));
    for (line, words) in [
        ("", "not of bench-child/1"),
        ("Loading weights: 100%", "Loading weights"),
        (r#"{"kind":"request"}"#, "missing field"),
        (r#"{"kind":"progress"}"#, "unknown variant"),
        (r#"{"kind":"unavailable","why":"x","how_to_get":"y","more":1}"#, "unknown field"),
        (
            r#"{"kind":"header","protocol":"bench-child/2","engine":"e","version":"1","settings":{},"weights_form":"Q4","conversions":[]}"#,
            "bench-child/2",
        ),
        (
            r#"{"kind":"header","protocol":"bench-child/1","engine":"e","version":"1","settings":{"a":null},"weights_form":"Q4","conversions":[]}"#,
            "not of bench-child/1",
        ),
        (long.as_str(), "at most"),
    ] {
        let message = ChildLine::parse(line).unwrap_err().to_string();
        assert!(message.contains(words), "{words} in {message}");
    }
    let header = r#"{"kind":"header","protocol":"bench-child/1","engine":"e","version":"1","settings":{"a":1,"b":"x","c":true,"d":0.5},"weights_form":"Q4","conversions":["c"]}"#;
    let ChildLine::Header(header) = ChildLine::parse(header).unwrap() else { panic!("a header") };
    let ChildHeader { settings, .. } = *header;
    assert_eq!(serde_json::to_string(&settings).unwrap(), r#"{"a":1,"b":"x","c":true,"d":0.5}"#);
}

#[test]
fn merged_chunks_give_a_rate_and_no_gaps_between_tokens() {
    let mut request = request();
    request.prefill_s = missing();
    request.token_s = missing();
    request.tokens = missing();
    request.endpoint = Some(EndpointTimes {
        chunk_s: vec![0.2, 0.5, 0.8],
        chunk_tokens: Known::Is(vec![1, 2, 1]),
        text_hash: "cd".repeat(32),
        prompt_tokens: Known::Is(8),
        completion_tokens: Known::Is(4),
        client_overhead_s: missing(),
    });
    request.check(OUTPUT).unwrap();
    let clock = request.clock(8, OUTPUT);
    assert!((clock.decode_rate.value().unwrap() - 3.0 / 0.6).abs() < 1e-9, "3 tokens behind the first chunk, in 0.6 s");
    for reading in [&clock.prefill_rate, &clock.inter_token_median, &clock.inter_token_p95, &clock.inter_token_p99] {
        assert!(reading.known().is_none(), "{reading:?}");
    }
    assert_eq!(clock.time_to_first_token.value(), Some(0.51));
    assert!(clock.token_seconds.is_empty() && clock.output_hash == "cd".repeat(32));
    // One chunk tells nothing about decode.
    if let Some(endpoint) = &mut request.endpoint {
        endpoint.chunk_s = vec![0.9];
        endpoint.chunk_tokens = Known::Is(vec![4]);
    }
    assert!(request.clock(8, OUTPUT).decode_rate.known().is_none());
    if let Some(endpoint) = &mut request.endpoint {
        endpoint.chunk_s = vec![0.9, 0.8];
        endpoint.chunk_tokens = Known::Is(vec![2, 2]);
    }
    assert!(request.check(OUTPUT).is_err(), "chunks do not arrive backwards");
    for (counts, words) in [
        (vec![4], "1 token counts of chunks; 2 were expected"),
        (vec![2, 3], "5 tokens in its chunks; 4 were expected"),
        (vec![2, u64::MAX], "tokens in its chunks"),
    ] {
        if let Some(endpoint) = &mut request.endpoint {
            endpoint.chunk_s = vec![0.3, 0.9];
            endpoint.chunk_tokens = Known::Is(counts);
        }
        let message = request.check(OUTPUT).unwrap_err().to_string();
        assert!(message.contains(words), "{words} in {message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn hostile_lines_never_panic(line in "\\PC{0,200}") {
        let _ = ChildLine::parse(&line);
    }

    /// Whatever a checked request says, its readings are finite or missing.
    #[test]
    fn what_passes_the_check_has_readings(
        times in proptest::collection::vec(0.0..1e3_f64, 4), first in 0.0..5e3_f64, whole in 0.0..5e3_f64,
    ) {
        let mut request = request();
        request.prefill_s = Known::Is(times[0]);
        request.token_s = Known::Is(times);
        request.to_first_token_s = first;
        request.request_s = whole;
        if request.check(OUTPUT).is_ok() {
            let clock = request.clock(8, OUTPUT);
            for metric in Metric::ALL {
                let reading: &Reading = metric.of(&clock);
                prop_assert!(reading.value().is_none_or(f64::is_finite));
            }
        }
    }
}
