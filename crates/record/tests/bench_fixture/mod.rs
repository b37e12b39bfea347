//! A `bench/1` record made by pretended processes: what each takes is said by a function, in the order of the schedule.
//! Not here: any assertion.

#![allow(clippy::unwrap_used, reason = "tests")]

use record::bench::{Measured, Outcome, Verified, *};
use record::statistics::order::schedule;
use record::statistics::{CONFIDENCE, of_record, verdict::DEFAULT_BAND};
use record::*;
use std::collections::BTreeMap;

pub const PROMPT: u64 = 128;
pub const OUTPUT: u64 = 9;

/// What a pretended process takes: `None` is a lost sample.
#[derive(Clone, Copy, Debug)]
pub struct Takes {
    pub prefill_s: f64,
    pub token_s: f64,
    pub peak_bytes: f64,
}

impl Takes {
    /// A request that takes `factor` times the usual.
    pub fn times(factor: f64) -> Takes {
        Takes { prefill_s: 0.25 * factor, token_s: 0.02 * factor, peak_bytes: 6e8 }
    }
}

pub fn workload() -> Workload {
    Workload {
        model: "synthetic:qwen3-0.6b@0".into(),
        weights_hash: "ab".repeat(32),
        phase: Phase::Request,
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

fn host() -> Host {
    let missing = || Known::unavailable("not in a test", "measure");
    Host {
        device: "cpu".into(),
        cpu_model: Known::Is("A processor, of \"ours\"".into()),
        processors: 2,
        memory_bytes: missing_bytes(),
        operating_system: missing(),
        kernel_release: missing(),
        huge_pages: missing(),
        driver: missing(),
    }
}

fn missing_bytes() -> Known<u64> {
    Known::unavailable("not in a test", "measure")
}

fn binary() -> Binary {
    Binary {
        version: "0.1.0".into(),
        build_id: Known::unavailable("not in a test", "measure"),
        commit: Known::Is("0123456789abcdef0123456789abcdef01234567".into()),
        dirty: Known::Is(false),
    }
}

pub fn arm(name: &str, kind: ArmKind) -> Arm {
    let peer = kind == ArmKind::Peer;
    Arm {
        name: name.into(),
        given: name.into(),
        kind,
        subject: Known::unavailable("pretended", "measure"),
        engine: Known::Is(EngineFacts {
            engine: if peer { name.into() } else { "hourglass".into() },
            version: "1".into(),
            settings: BTreeMap::from([("threads".to_owned(), Setting::Whole(2))]),
            weights_form: "W4".into(),
            conversions: Vec::new(),
        }),
        conditions: Known::unavailable("pretended", "measure"),
        conditions_id: Known::unavailable("pretended", "measure"),
        output_check: OutputCheck { tolerance: Tolerance::Equal, result: Verified::Passed("all".into()) },
        wiring_check: Verified::NotChecked("pretended".into()),
        counts: true,
        reason: None,
        summary: Vec::new(),
    }
}

fn clock(takes: Takes) -> RequestClock {
    let mut token_seconds = vec![takes.token_s; OUTPUT as usize];
    token_seconds[0] = takes.prefill_s;
    let whole = token_seconds.iter().sum::<f64>() * 1.01;
    RequestClock::from_times(RequestTimes {
        prompt_tokens: PROMPT,
        asked_tokens: OUTPUT,
        token_seconds,
        to_first_token: takes.prefill_s * 1.005,
        whole,
        peak_allocation: Reading::measured(takes.peak_bytes, Unit::Bytes, 1),
        peak_rss: Reading::unavailable("pretended", "measure"),
        processor_share: Reading::unavailable("pretended", "measure"),
        output_hash: token_trace_hash(&[4, 5]),
        device: record::DeviceUse::none(),
    })
}

/// Runs the arms: `process(order, row, arm)` is called once per process, in the order of execution. [`finish`] is left to do.
pub fn run(
    arms: Vec<Arm>,
    repeats: usize,
    mut process: impl FnMut(usize, usize, usize) -> Option<Takes>,
) -> BenchRecord {
    let plan = schedule(arms.len(), repeats).unwrap();
    let mut samples = Vec::new();
    for (order, (row, arm)) in plan.slots().enumerate() {
        let outcome = match process(order, row, arm) {
            Some(takes) => Outcome::Measured(Box::new(Measured {
                clock: clock(takes),
                tokens: Known::unavailable("pretended", "measure"),
                margins: Known::unavailable("pretended", "measure"),
                wiring: Vec::new(),
                endpoint: None,
            })),
            None => Outcome::Lost("ended by a test".into()),
        };
        samples.push(Sample {
            order: order as u64,
            arm: arm as u64,
            block: row as u64,
            process_id: Known::Is(1000 + order as u32),
            started: format!("2026-01-01T00:{:02}:00Z", order % 60),
            process_s: 3.0,
            outcome,
            surroundings: Known::unavailable("pretended", "measure"),
            marks: Vec::new(),
            excluded: None,
        });
    }
    let mut record = BenchRecord {
        schema: BenchRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: workload(),
        workload_id: String::new(),
        protocol: BenchProtocol {
            design: plan.words(),
            repeats: repeats as u64,
            warmup: 2,
            cooldown_s: 0.0,
            time_limit_s: 600.0,
            seed: 7,
            confidence: CONFIDENCE,
            practical_percent: DEFAULT_BAND * 100.0,
            load_limit: 0.1,
            exclusion_rule: "none".into(),
        },
        binary: binary(),
        host: host(),
        schedule: plan.slots().map(|(row, arm)| Slot { arm: arm as u64, block: row as u64 }).collect(),
        arms,
        samples,
        comparisons: Vec::new(),
        noise: Known::unavailable("not yet", "finish"),
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    if record.samples.iter().any(|sample| sample.measured().is_none()) {
        record.coverage = Coverage::incomplete("a sample was lost");
    }
    record
}

/// Fills in what follows from the samples.
pub fn finish(record: &mut BenchRecord) {
    for index in 0..record.arms.len() {
        let summary = Metric::ALL.map(|metric| {
            let values = record.values(index, metric);
            let of = |pick: fn(&Samples) -> f64| match Samples::new(&values) {
                Ok(samples) => Reading::measured(pick(&samples), metric.unit(), values.len() as u64),
                Err(_) => Reading::unavailable("no sample has it", "measure"),
            };
            MetricSummary {
                metric,
                median: of(Samples::median),
                spread: of(Samples::median_absolute_deviation),
                smallest: of(Samples::min),
                largest: of(Samples::max),
            }
        });
        record.arms[index].summary = summary.into();
    }
    record.comparisons = of_record::comparisons(record).unwrap();
    record.close();
}
