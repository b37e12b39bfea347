//! Views of one request made up so that the truth is known, and the record and ranking that follow.
//! Not here: any assertion about them but that they are whole.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "each test file uses a part")]

#[path = "../bench_fixture/mod.rs"]
pub mod bench_fixture;

use bench_fixture::{Takes, arm, run};
use record::bench::{ArmKind, BenchRecord};
use record::find::{FindProtocol, FindStep, Ranking, RequestSummary, Seen, StepOutcome, Views};
use record::*;

pub const CHECKPOINT: &str = "selected";
/// Microseconds of one pass: prefill, decode.
pub const DISPATCH_US: f64 = 5.0;
pub const OUTPUT: f64 = bench_fixture::OUTPUT as f64;

/// An operator of a made-up pass: slot, operator, microseconds alone (dispatch not included), microseconds of its floor.
pub type Operator = (&'static str, &'static str, f64, f64);

pub const PREFILL: [Operator; 3] = [
    ("q_proj", "linear", 90_000.0, 60_000.0),
    ("attention", "attention", 120_000.0, 110_000.0),
    ("norm", "rms_norm", 30_000.0, 29_000.0),
];
pub const DECODE: [Operator; 3] = [
    ("q_proj", "linear", 8_000.0, 7_600.0),
    ("attention", "attention", 6_000.0, 5_900.0),
    ("norm", "rms_norm", 4_000.0, 3_950.0),
];

pub fn seen<R: Record + serde::Serialize>(file: &str, record: R) -> Seen<R> {
    let bytes = serde_json::to_vec(&record).unwrap();
    Seen { evidence: EvidenceRef::of(R::SCHEMA, file, &bytes), record }
}

pub fn clock() -> BenchRecord {
    let arms = vec![arm(CHECKPOINT, ArmKind::Checkpoint), arm("A/A", ArmKind::SameAgain)];
    let mut record = run(arms, 4, |order, _, _| Some(Takes::times(1.0 + 0.001 * (order % 3) as f64)));
    bench_fixture::finish(&mut record);
    record
}

pub fn us(value: f64) -> Reading {
    Reading::measured(value, Unit::Microseconds, 12)
}

/// Twelve samples whose median is `median`, within `spread` of it.
pub fn samples(median: f64, spread: f64) -> Vec<f64> {
    (0..12).map(|i| median * (1.0 + spread * (f64::from(i) - 5.5) / 5.5)).collect()
}

pub fn missing<T>() -> Known<T> {
    Known::unavailable("not in a test", "measure")
}

pub fn row(group: &str, operator: &str, alone: f64, floor: Option<f64>, spread: f64) -> GroupRow {
    let median = alone + DISPATCH_US;
    GroupRow {
        group: group.into(),
        kernels: vec![format!("{operator}: fast/portable")],
        calls: 28,
        bytes_read: 1_000_000,
        bytes_written: 1_000,
        flops: 2_000_000,
        timing: Timing::new(samples(median, spread)).unwrap(),
        bandwidth: missing(),
        arithmetic: missing(),
        floor: match floor {
            Some(floor) => Known::Is(Floor {
                work: Work { cold_bytes: 1_000_000, warm_bytes: 1_000, flops: 2_000_000, barriers: 28 },
                least: us(floor),
                limit: Known::Is(Limit::Memory),
                fraction: Reading::ratio(floor, median, Unit::Share, 12),
                memory: us(floor),
                arithmetic: us(floor / 2.0),
                dispatch: us(DISPATCH_US + 1.0),
                instruction_path: missing(),
            }),
            None => missing(),
        },
    }
}

pub fn replay(phase: Phase, operators: &[Operator], with_floors: bool, spread: f64) -> ReplayRecord {
    let tokens = if phase == Phase::Decode { 132 } else { 128 };
    let workload = Workload {
        phase,
        context_tokens: tokens,
        new_rows: if phase == Phase::Decode { 1 } else { tokens },
        output_tokens: 0,
        ..bench_fixture::workload()
    };
    let mut replay = Replay::not_measured(CHECKPOINT, workload, "to be filled");
    replay.coverage = Coverage::complete();
    let rows = |group: fn(&Operator) -> &'static str| {
        operators.iter().map(move |operator| {
            let floor = with_floors.then_some(operator.3);
            row(group(operator), operator.1, operator.2, floor, spread)
        })
    };
    replay.groups = rows(|operator| operator.0).collect();
    let slots = operators.iter().zip(rows(|operator| operator.0));
    replay.operators = Known::Is(
        slots
            .map(|((slot, operator, ..), row)| OperatorRow {
                slot: (*slot).into(),
                operator: (*operator).into(),
                shapes: Vec::new(),
                row,
            })
            .collect(),
    );
    replay.sampling = Known::Is(Timing::new(samples(50.0, 0.01)).unwrap());
    replay.dispatch_floor = Known::Is(Timing::new(samples(DISPATCH_US, 0.0)).unwrap());
    replay.round_order = vec![Vec::new(); 12];
    replay.total();
    let case = format!("{CHECKPOINT}:{}:{tokens}", phase.name());
    let mut record = ReplayRecord {
        schema: ReplayRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        protocol: Protocol { warmup: 1, iterations: 12, process_id: 1 },
        ceilings: missing(),
        cases: vec![ReplayCase { case, subject: missing(), conditions: missing(), conditions_id: missing(), replay }],
        requests: Vec::new(),
        turns: Vec::new(),
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    assert!(!record.void, "{:?}", record.checks);
    record
}

pub fn views_of(prefill: &[Operator], decode: &[Operator], spread: f64) -> Views {
    Views {
        clock: Some(seen("clock.json", clock())),
        prefill: Some(seen("replay-prefill.json", replay(Phase::Prefill, prefill, true, spread))),
        decode: Some(seen("replay-decode.json", replay(Phase::Decode, decode, true, spread))),
        flags: vec!["--threads".into(), "2".into()],
        ..Views::default()
    }
}

pub fn views() -> Views {
    views_of(&PREFILL, &DECODE, 0.001)
}

pub fn record_of(views: &Views) -> FindRecord {
    let clock = &views.clock.as_ref().unwrap().record;
    let mut record = FindRecord {
        schema: FindRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: clock.workload.clone(),
        workload_id: String::new(),
        subject: missing(),
        conditions: missing(),
        conditions_id: missing(),
        protocol: FindProtocol { checkpoint: CHECKPOINT.into(), quick: false, budget_s: 300.0, flags: Vec::new() },
        steps: vec![FindStep {
            name: "clock".into(),
            command: vec!["hourglass".into(), "bench".into()],
            outcome: StepOutcome::Done,
            record: Known::Is(views.clock.as_ref().unwrap().evidence.clone()),
            seconds: Known::Is(1.5),
        }],
        request: Known::Is(RequestSummary::of(clock).unwrap()),
        wiring: Vec::new(),
        ranking: Known::Is(Ranking::of(views, CHECKPOINT).unwrap()),
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}

pub fn ranked(views: &Views) -> Ranking {
    let record = record_of(views);
    assert!(!record.void, "{:?}", record.checks.iter().filter(|check| !check.passed).collect::<Vec<_>>());
    record.ranking.known().unwrap().clone()
}

pub fn seconds(reading: &Reading) -> f64 {
    reading.value().unwrap()
}

pub fn named<'a>(ranking: &'a Ranking, phase: Phase, name: &str) -> &'a find::Candidate {
    ranking.candidates.iter().find(|candidate| candidate.phase == phase && candidate.name == name).unwrap()
}

pub fn text(record: &FindRecord) -> Vec<u8> {
    serde_json::to_vec_pretty(record).unwrap()
}

pub fn plan(calls: &[(&str, &str, &str, u64)]) -> WiringPlan {
    let call = |(slot, operator, kernel, bytes): &(&str, &str, &str, u64)| PlannedCall {
        layer: None,
        slot: (*slot).into(),
        group: "projections".into(),
        operator: (*operator).into(),
        kernel: (*kernel).into(),
        source: "x.rs:1".into(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        weights: Vec::new(),
        bytes_read: *bytes,
        bytes_written: 0,
        flops: 10,
    };
    let pass = PlannedPass {
        workload: Workload { phase: Phase::Decode, new_rows: 1, output_tokens: 0, ..bench_fixture::workload() },
        workload_id: String::new(),
        calls: calls.iter().map(call).collect(),
        bytes_read: 0,
        bytes_written: 0,
        flops: 0,
    };
    let host = clock().host;
    WiringPlan {
        schema: WiringPlan::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        subject: Subject {
            solution: "hourglass".into(),
            checkpoint: CHECKPOINT.into(),
            mechanisms: Mechanisms { capacity_cache: true, register_cached_rmsnorm: true, tiled_prefill: true },
            engine: "hourglass".into(),
            version: "0.1.0".into(),
            weights_form: "BF16".into(),
            conversions: Vec::new(),
        },
        conditions: Conditions {
            binary: Binary { version: "0".into(), build_id: missing(), commit: missing(), dirty: Known::Is(false) },
            host,
            threads: 2,
            pinned: false,
            features: Vec::new(),
            kernels: Vec::new(),
        },
        conditions_id: String::new(),
        passes: vec![pass],
        unreached: Vec::new(),
        checks: Vec::new(),
        void: false,
    }
}

/// A traced request of twice the clocked one's time, in which `waits_ns` were lost to uneven shares of `q_proj` and `taken_ns`
/// to other processes.
pub fn timeline(waits_ns: u64, taken_ns: u64) -> TimelineRecord {
    use record::timeline::*;
    let plan = plan(&[]);
    let share = |value| Reading::measured(value, Unit::Share, 2);
    let wall_ns = 1_000_000_000;
    let causes = |cause, wall_ns| vec![CauseTime { cause, wall_ns }];
    let busy = |idle_ns, idle_by_cause| Occupation {
        busy_ns: wall_ns - idle_ns,
        busy_share: share(0.5),
        idle_ns,
        idle_by_cause,
    };
    let lane = |name: &str| LaneTime {
        name: name.into(),
        kind: "worker".into(),
        occupation: busy(0, Vec::new()),
        awaited: Vec::new(),
        dropped: 0,
    };
    let mut record = TimelineRecord {
        schema: TimelineRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: bench_fixture::workload(),
        workload_id: String::new(),
        conditions: plan.conditions,
        conditions_id: String::new(),
        subject: plan.subject,
        warmup: 1,
        process_id: 1,
        summary: TimelineSummary {
            coverage: Coverage::complete(),
            dropped: 0,
            wall_ns,
            phases: Vec::new(),
            device: busy(taken_ns, causes(Cause::Descheduled, taken_ns)),
            lanes: vec![lane("worker 0"), lane("worker 1")],
            lost: Vec::new(),
            stragglers: Vec::new(),
            gaps: Vec::new(),
            operators: vec![record::timeline::OperatorRow {
                operator: "q_proj (linear)".into(),
                planned_calls: missing(),
                calls: vec![9, 9],
                wall_ns: vec![100, 100 + waits_ns],
                imbalance: Known::Is(Imbalance {
                    slowest: "worker 1".into(),
                    slowest_over_mean: share(0.1),
                    lost_ns: waits_ns,
                }),
            }],
            steps: Vec::new(),
        },
        main_thread_cpu: Reading::measured(0.07, Unit::Seconds, 1),
        peak_allocation: Reading::measured(2e9, Unit::Bytes, 1),
        kv_allocation: Reading::measured(8e7, Unit::Bytes, 1),
        overhead: missing(),
        sampling: SamplingUse {
            rung: SamplingRung::None,
            why: "not in a test".into(),
            frequency_hz: missing(),
            samples: 0,
            lost: missing(),
        },
        device: TimelineRecord::without_device(),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    assert!(!record.void, "{:?}", record.checks);
    record
}
