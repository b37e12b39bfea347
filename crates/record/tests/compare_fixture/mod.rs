//! Records of two checkpoints with made-up numbers, of real types: a bench run, and replays of one decode step.
//! Not here: any assertion.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "each test file uses a part")]

#[path = "../bench_fixture/mod.rs"]
pub mod bench_fixture;

use bench_fixture::{Takes, arm, finish, run, workload};
use record::bench::{ArmKind, BenchRecord};
use record::compare::Collection;
use record::{
    Binary, BoundKernel, Conditions, Coverage, EvidenceRef, GroupRow, Host, Known, Mechanisms, Phase, Protocol, Record,
    Replay, ReplayCase, ReplayRecord, Subject, Timing, Workload,
};

pub const BUILD: &str = "b1";

pub fn subject(checkpoint: &str) -> Subject {
    Subject {
        solution: "hourglass".into(),
        checkpoint: checkpoint.into(),
        mechanisms: Mechanisms { capacity_cache: true, register_cached_rmsnorm: true, tiled_prefill: true },
        engine: "hourglass".into(),
        version: "0.1.0".into(),
        weights_form: "W4".into(),
        conversions: Vec::new(),
    }
}

/// Conditions under which `kernel` is bound to the projections.
pub fn conditions(kernel: &str, build: &str) -> Conditions {
    let missing = || Known::unavailable("not known here", "look elsewhere");
    let bound = |phase, operator: &str, kernel: &str| BoundKernel {
        phase,
        operator: operator.into(),
        kernel: kernel.into(),
        calls: 28,
        source: "kernels.rs:1".into(),
    };
    Conditions {
        binary: Binary {
            version: "0.1.0".into(),
            build_id: Known::Is(build.into()),
            commit: Known::Is("abc".into()),
            dirty: Known::Is(false),
        },
        host: Host {
            device: "cpu".into(),
            cpu_model: Known::Is("ours".into()),
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
        kernels: vec![
            bound(Phase::Prefill, "linear", "matmul/avx2"),
            bound(Phase::Decode, "linear", kernel),
            bound(Phase::Decode, "softmax", "plain/avx2"),
        ],
    }
}

/// Checkpoints `before` and `after` in one alternated run of `repeats`: after takes `decode` times as long for each token and
/// `prefill` times as long for the prompt. `jitter` is the relative noise of a process.
pub fn bench(repeats: usize, prefill: f64, decode: f64, jitter: f64, kernels: [&str; 2]) -> BenchRecord {
    let mut random = record::statistics::random::Random::new(11);
    let arms = ["before", "after"].map(|name| arm(name, ArmKind::Checkpoint));
    let mut record = run(arms.into(), repeats, |_, _, arm| {
        let noise = (jitter * random.normal()).exp();
        let mut takes = Takes::times(noise);
        if arm == 1 {
            takes.prefill_s *= prefill;
            takes.token_s *= decode;
        }
        Some(takes)
    });
    for (arm, kernel) in record.arms.iter_mut().zip(kernels) {
        let conditions = conditions(kernel, BUILD);
        arm.subject = Known::Is(subject(&arm.name));
        arm.conditions_id = Known::Is(conditions.id());
        arm.conditions = Known::Is(conditions);
    }
    record.created = "2026-03-01T12:00:00Z".into();
    finish(&mut record);
    assert!(!record.void, "{:?}", record.checks);
    record
}

fn row(group: &str, us: f64) -> GroupRow {
    let missing = || Known::unavailable("not yet", "total");
    GroupRow {
        group: group.into(),
        kernels: vec!["linear: matvec/portable".into()],
        calls: 28,
        bytes_read: 1000,
        bytes_written: 10,
        flops: 2000,
        timing: Timing::new([0.99, 1.0, 1.01, 1.0].map(|factor| us * factor).to_vec()).unwrap(),
        bandwidth: missing(),
        arithmetic: missing(),
        floor: Known::unavailable("no ceilings", "measure them"),
    }
}

pub fn replay_workload() -> Workload {
    Workload { phase: Phase::Decode, new_rows: 1, output_tokens: 0, capacity: 128, ..workload() }
}

/// A decode step: `projections`, `attention` and `cache update` in microseconds, and 50 us of sampling.
pub fn case(checkpoint: &str, kernel: &str, groups: [f64; 3]) -> ReplayCase {
    let mut replay = Replay::not_measured(checkpoint, replay_workload(), "to be filled");
    replay.coverage = Coverage::complete();
    replay.groups =
        ["projections", "attention", "cache update"].iter().zip(groups).map(|(name, us)| row(name, us)).collect();
    replay.sampling = Known::Is(Timing::new(vec![50.0; 4]).unwrap());
    replay.whole_pass = Known::Is(Timing::new(vec![groups.iter().sum::<f64>(); 4]).unwrap());
    replay.round_order = vec![Vec::new(); 4];
    replay.total();
    let conditions = conditions(kernel, BUILD);
    ReplayCase {
        case: format!("{checkpoint}:decode:128"),
        subject: Known::Is(subject(checkpoint)),
        conditions_id: Known::Is(conditions.id()),
        conditions: Known::Is(conditions),
        replay,
    }
}

/// Both checkpoints' decode steps.
pub fn replays(before: [f64; 3], after: [f64; 3], kernels: [&str; 2]) -> ReplayRecord {
    let mut record = ReplayRecord {
        schema: ReplayRecord::SCHEMA.into(),
        created: "2026-03-01T12:30:00Z".into(),
        protocol: Protocol { warmup: 1, iterations: 4, process_id: 1 },
        ceilings: Known::unavailable("none", "measure"),
        cases: vec![case("before", kernels[0], before), case("after", kernels[1], after)],
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

pub fn add(collection: &mut Collection, file: &str, record: &(impl Record + serde::Serialize)) -> EvidenceRef {
    let bytes = serde_json::to_vec(record).unwrap();
    let schema = serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()["schema"].as_str().unwrap().to_owned();
    let evidence = EvidenceRef::of(schema, file, &bytes);
    collection.add(evidence.clone(), &bytes).unwrap();
    evidence
}
