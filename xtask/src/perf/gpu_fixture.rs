//! Records as one GPU leaves them, `bench/1` and `timeline/1`, of requests whose times a test says.
//! Not here: any assertion.

#![allow(clippy::unwrap_used, reason = "tests")]

use record::bench::{
    Arm, ArmKind, BenchProtocol, BenchRecord, EXCLUSION_RULE, EngineFacts, Measured, Outcome, Sample, Setting, Slot,
    Tolerance,
};
use record::statistics::{CONFIDENCE, order, verdict::DEFAULT_BAND};
use record::timeline::{
    DevicePauses, DeviceTrace, Occupation, SamplingRung, SamplingUse, TimelineRecord, TimelineSummary,
};
use record::{
    Binary, Conditions, Coverage, DeviceState, DeviceUse, Host, Known, LogitsMode, Mechanisms, Phase, Reading, Record,
    RequestClock, RequestTimes, Subject, Unit, Wiring, Workload, token_trace_hash,
};

const PROMPT: u64 = 128;
const OUTPUT: u64 = 5;

/// One process of a `bench`.
#[derive(Clone, Copy)]
pub(super) struct Process {
    /// Tokens per second.
    pub(super) prefill: f64,
    pub(super) decode: f64,
    /// What it generates, over and over.
    pub(super) token: u32,
    /// The GPU's clocks were held back.
    pub(super) hot: bool,
    /// It ended without numbers.
    pub(super) lost: bool,
}

impl Default for Process {
    fn default() -> Process {
        Process { prefill: 100_000.0, decode: 2_000.0, token: 5, hot: false, lost: false }
    }
}

fn missing<T>() -> Known<T> {
    Known::unavailable("pretended", "measure")
}

fn workload(phase: Phase) -> Workload {
    Workload {
        model: "synthetic:qwen3-0.6b@0".into(),
        weights_hash: "ab".repeat(32),
        phase,
        context_tokens: PROMPT,
        new_rows: PROMPT,
        capacity: PROMPT + OUTPUT,
        output_tokens: OUTPUT,
        logits: LogitsMode::Last,
        sampling: "greedy".into(),
        seed: 0,
        prompt_rule: "uniform".into(),
        token_trace_hash: token_trace_hash(&[1, 2, 3]),
    }
}

fn binary() -> Binary {
    Binary { version: "0.1.0".into(), build_id: missing(), commit: missing(), dirty: missing() }
}

fn host(device: &str, driver: Known<String>) -> Host {
    Host {
        device: device.into(),
        cpu_model: missing(),
        processors: 16,
        memory_bytes: missing(),
        operating_system: missing(),
        kernel_release: missing(),
        huge_pages: missing(),
        driver,
    }
}

fn on_gpu() -> Conditions {
    Conditions {
        binary: binary(),
        host: host("cuda:0 (NVIDIA H200)", Known::Is("580.159 (CUDA 13.0)".into())),
        threads: 16,
        pinned: false,
        features: Vec::new(),
        kernels: Vec::new(),
    }
}

fn clock(process: Process) -> RequestClock {
    let state = || {
        Known::Is(DeviceState {
            clock_mhz: 1_980,
            memory_clock_mhz: 3_201,
            celsius: 40,
            watts: 300.0,
            held_back: if process.hot { vec!["power limit".to_owned()] } else { Vec::new() },
        })
    };
    let mut token_seconds = vec![1.0 / process.decode; OUTPUT as usize];
    token_seconds[0] = PROMPT as f64 / process.prefill;
    RequestClock::from_times(RequestTimes {
        prompt_tokens: PROMPT,
        asked_tokens: OUTPUT,
        to_first_token: token_seconds[0] * 1.01,
        whole: token_seconds.iter().sum::<f64>() * 1.02,
        token_seconds,
        peak_allocation: Reading::measured(1e9, Unit::Bytes, 1),
        peak_rss: missing(),
        processor_share: missing(),
        output_hash: token_trace_hash(&[process.token; OUTPUT as usize]),
        device: Known::Is(DeviceUse {
            peak_allocation: Reading::measured(7e8, Unit::Bytes, 1),
            before: state(),
            after: state(),
        }),
    })
}

fn outcome(process: Process) -> Outcome {
    if process.lost {
        return Outcome::Lost("the GPU fell off the bus".to_owned());
    }
    let wiring = Wiring {
        phase: Phase::Decode,
        layers: 28,
        layers_as_planned: 28,
        passes: OUTPUT - 1,
        calls_per_pass: 170,
        planned: 170 * (OUTPUT - 1),
        dispatched: 170 * (OUTPUT - 1),
        deviations: Vec::new(),
    };
    Outcome::Measured(Box::new(Measured {
        clock: clock(process),
        tokens: Known::Is(vec![process.token; OUTPUT as usize]),
        margins: missing(),
        wiring: vec![wiring],
        endpoint: None,
    }))
}

fn arm(name: &str, given: &str, weights: &str) -> Arm {
    let mut arm = Arm::planned(name, given, ArmKind::Checkpoint, Tolerance::Equal);
    arm.engine = Known::Is(EngineFacts {
        engine: "hourglass".into(),
        version: "0.1.0".into(),
        settings: [("device".to_owned(), Setting::Text("cuda:0 (NVIDIA H200)".into()))].into(),
        weights_form: weights.into(),
        conversions: Vec::new(),
    });
    arm.conditions_id = Known::Is(on_gpu().id());
    arm.conditions = Known::Is(on_gpu());
    arm
}

/// The record of a `bench` of two variants, `fast` and `unpacked`; `process(variant, nth of it)` says what one measures.
pub(super) fn bench(repeats: usize, process: impl Fn(usize, usize) -> Process) -> BenchRecord {
    let plan = order::schedule(2, repeats).unwrap();
    let mut ran = [0; 2];
    let mut samples = Vec::new();
    for (order, (block, arm)) in plan.slots().enumerate() {
        let outcome = outcome(process(arm, ran[arm]));
        ran[arm] += 1;
        samples.push(Sample {
            order: order as u64,
            arm: arm as u64,
            block: block as u64,
            process_id: Known::Is(1_000 + order as u32),
            started: "2026-01-01T00:00:00Z".into(),
            process_s: 3.0,
            outcome,
            surroundings: missing(),
            marks: Vec::new(),
            excluded: None,
        });
    }
    let mut record = BenchRecord {
        schema: BenchRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: workload(Phase::Request),
        workload_id: String::new(),
        protocol: BenchProtocol {
            design: plan.words(),
            repeats: repeats as u64,
            warmup: 2,
            cooldown_s: 0.0,
            time_limit_s: 900.0,
            seed: 0,
            confidence: CONFIDENCE,
            practical_percent: DEFAULT_BAND * 100.0,
            load_limit: 0.1,
            exclusion_rule: EXCLUSION_RULE.into(),
        },
        binary: binary(),
        host: host("cpu", missing()),
        schedule: plan.slots().map(|(block, arm)| Slot { arm: arm as u64, block: block as u64 }).collect(),
        arms: vec![arm("placed-attention", "fast", "W4 g128"), arm("unpacked", "unpacked", "BF16")],
        samples,
        comparisons: Vec::new(),
        noise: missing(),
        coverage: Coverage::incomplete("not yet"),
        checks: Vec::new(),
        void: false,
    };
    record.conclude().unwrap();
    record
}

/// The record of a `timeline` of decode steps whose idle share this is, or why it has none.
pub(super) fn trace(idle: Result<f64, &str>) -> TimelineRecord {
    let idle_share = match idle {
        Ok(share) => Reading::measured(share, Unit::Share, OUTPUT - 1),
        Err(why) => Reading::unavailable(why, "trace again"),
    };
    let mut record = TimelineRecord {
        schema: TimelineRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: workload(Phase::Decode),
        workload_id: String::new(),
        conditions: on_gpu(),
        conditions_id: String::new(),
        subject: Subject {
            solution: "hourglass".into(),
            checkpoint: "placed-attention".into(),
            mechanisms: Mechanisms { capacity_cache: true, register_cached_rmsnorm: true, tiled_prefill: true },
            engine: "hourglass".into(),
            version: "0.1.0".into(),
            weights_form: "BF16".into(),
            conversions: Vec::new(),
        },
        warmup: 1,
        process_id: 1,
        summary: TimelineSummary {
            coverage: Coverage::complete(),
            dropped: 0,
            wall_ns: 1_000,
            phases: Vec::new(),
            // While every kernel is recorded a step is longer, and this is not its share.
            device: Occupation {
                busy_ns: 1_000,
                busy_share: Reading::measured(1.0, Unit::Share, 1),
                idle_ns: 0,
                idle_by_cause: Vec::new(),
            },
            lanes: Vec::new(),
            lost: Vec::new(),
            stragglers: Vec::new(),
            gaps: Vec::new(),
            operators: Vec::new(),
            steps: Vec::new(),
        },
        main_thread_cpu: missing(),
        peak_allocation: missing(),
        kv_allocation: missing(),
        overhead: missing(),
        sampling: SamplingUse {
            rung: SamplingRung::None,
            why: "--no-samples".into(),
            frequency_hz: missing(),
            samples: 0,
            lost: missing(),
        },
        device: Known::Is(DeviceTrace {
            profiler: "CUPTI 13.0".into(),
            launched: 600,
            recorded: 600,
            in_graphs: 600,
            dropped: 0,
            outside_dispatch: 0,
            unserved_calls: 0,
            overlapped_ns: 0,
            gaps_in_graph_ns: 1_200,
            pauses: Known::Is(DevicePauses { step: Reading::measured(4e-4, Unit::Seconds, OUTPUT - 1), idle_share }),
            clock_error_ns: 70,
            clock_drift_ns: 0,
            peak_allocation: missing(),
        }),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}
