//! A `timeline/1` record as a whole: it reads back, a failed check voids it, and one that was changed is refused.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use record::timeline::{
    OverheadSample, OverheadUnit, PlannedCalls, SamplingRung, SamplingUse, Straggler, TracingOverhead, summarise,
};
use record::{Binary, Conditions, Host, Known, LogitsMode, Mechanisms, Phase, Reading, Subject, TimelineRecord, Unit};
use record::{ReadError, Workload, read};

/// Makes a record's numbers disagree.
type Change = fn(&mut TimelineRecord);

fn missing<T>() -> Known<T> {
    Known::unavailable("not known here", "look elsewhere")
}

fn record(more: u64) -> TimelineRecord {
    let trace = common::request(20, |step, _, _| if step == 3 { more } else { 0 });
    let planned = Known::Is(vec![PlannedCalls { operator: "matvec".into(), calls: 40 }]);
    let share = |value| Reading::measured(value, Unit::Share, 4);
    let mut record = TimelineRecord {
        schema: <TimelineRecord as record::Record>::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: Workload {
            model: "synthetic:tiny@0".into(),
            weights_hash: "ab".repeat(32),
            phase: Phase::Request,
            context_tokens: 16,
            new_rows: 16,
            capacity: 36,
            output_tokens: 21,
            logits: LogitsMode::Last,
            sampling: "greedy".into(),
            seed: 0,
            prompt_rule: "uniform".into(),
            token_trace_hash: record::token_trace_hash(&[1, 2, 3]),
        },
        workload_id: String::new(),
        conditions: Conditions {
            binary: Binary { version: "0.1.0".into(), build_id: missing(), commit: missing(), dirty: Known::Is(true) },
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
            threads: 2,
            pinned: false,
            features: Vec::new(),
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
        warmup: 1,
        process_id: 1,
        summary: summarise(&trace, &planned).unwrap(),
        main_thread_cpu: Reading::measured(0.07, Unit::Seconds, 1),
        peak_allocation: Reading::measured(2e9, Unit::Bytes, 1),
        kv_allocation: Reading::measured(8e7, Unit::Bytes, 1),
        overhead: Known::Is(TracingOverhead {
            of: OverheadUnit::DecodeStep,
            share: share(0.01),
            low: share(0.005),
            high: share(0.015),
            confidence: share(0.95),
            samples: [true, false, false, true].map(|traced| OverheadSample { traced, wall_s: 0.5 }).into(),
        }),
        sampling: SamplingUse {
            rung: SamplingRung::CpuClock,
            why: "there is no cycle counter".into(),
            frequency_hz: Known::Is(999),
            samples: trace.samples.samples.len() as u64,
            lost: Known::Is(0),
        },
        device: TimelineRecord::without_device(),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}

fn reread(record: &TimelineRecord) -> Result<TimelineRecord, ReadError> {
    read("file.json", &serde_json::to_vec_pretty(record).unwrap())
}

#[test]
fn it_reads_back_equal_and_is_not_void() {
    let record = record(900);
    assert!(!record.void, "{:?}", record.checks.iter().find(|check| !check.passed));
    assert!(record.checks.len() > 10);
    assert_eq!(reread(&record).unwrap(), record);
}

#[test]
fn every_cross_foot_can_fail_and_voids_it() {
    let changes: [(Change, &str); 10] = [
        (|record| record.summary.lost[0].wall_ns += 1, "what time was lost to sums to the lanes' idle time"),
        (
            |record| {
                let (worker, operator) = ("worker 1".into(), "matvec".into());
                record.summary.stragglers.push(Straggler { worker, operator, waited_ns: 1 });
            },
            "stragglers sum to what was lost to the slowest worker",
        ),
        (|record| record.summary.dropped = 1, "slices dropped"),
        (|record| record.sampling.lost = Known::Is(2), "CPU samples lost"),
        (|record| record.summary.lanes[1].occupation.busy_ns += 1, "worker 1: busy + idle = wall"),
        (|record| record.summary.device.idle_by_cause[0].wall_ns -= 1, "device: causes sum to idle"),
        (|record| record.summary.operators[0].planned_calls = Known::Is(41), "matvec: calls on worker 0"),
        (|record| record.summary.steps[0].steps[2].spans_ns = 10_000, "decode: steps that hold their spans"),
        (|record| record.summary.gaps[0].wall_ns += 1, "gap 1: causes sum to it"),
        (
            |record| {
                if let Known::Is(overhead) = &mut record.overhead {
                    overhead.samples.pop();
                }
            },
            "overhead: as many samples with tracing as without",
        ),
    ];
    for (change, check) in changes {
        let mut record = record(0);
        change(&mut record);
        // As changed after it was written: refused.
        assert!(matches!(reread(&record), Err(ReadError::Checks { .. })), "{check}");
        record.close();
        let failed: Vec<_> = record.checks.iter().filter(|check| !check.passed).map(|check| &check.name).collect();
        assert!(record.void && failed[0] == check, "{check}: {failed:?}");
        assert_eq!(reread(&record).unwrap(), record, "a void record still reads");
    }
}

#[test]
fn huge_numbers_from_elsewhere_do_not_overflow() {
    let mut record = record(0);
    record.summary.device.busy_ns = u64::MAX;
    record.summary.device.idle_ns = u64::MAX;
    record.summary.device.idle_by_cause[0].wall_ns = u64::MAX;
    record.summary.gaps[0].by_cause[0].wall_ns = u64::MAX;
    record.close();
    assert!(record.void);
}

#[test]
fn another_workload_id_and_another_kind_are_refused() {
    let mut record = record(0);
    record.workload.seed = 1;
    assert!(matches!(reread(&record), Err(ReadError::Identity { field: "workload_id", .. })));
    let text = serde_json::to_string(&record).unwrap().replace("timeline/1", "find/2");
    assert!(matches!(read::<TimelineRecord>("x", text.as_bytes()), Err(ReadError::OtherKind { .. })));
}
