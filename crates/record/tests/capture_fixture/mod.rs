//! A capture made by hand: two workers, two calls, two passes, and addresses that are already resolved.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use record::bench::Surroundings;
use record::capture::line_table::{LineTable, Resolution};
use record::capture::lines::{ExecutableUse, LinesRecord, SourceFile, StackFrame, Verification};
use record::capture::load::RawTrace;
use record::capture::raw::{RawAddress, RawCall, RawSample, RawSpans, RawStep, RawThread};
use record::capture::share::SHARE_METHOD;
use record::capture::{CAUTION, CaptureMetadata, Ended, Provenance, Source, Stretch, TracePackage, placed};
use record::timeline::{SamplingRung, SamplingUse};
use record::{
    BandwidthRow, Binary, Ceilings, CeilingsWorkload, Conditions, Host, InstructionPath, Known, Level, LogitsMode,
    Measured, Mechanisms, Operands, PeakRow, Phase, Record, Shape, Subject, ThreadCeilings, Traffic, Unit, Workload,
};
use std::collections::HashMap;

pub fn missing<T>() -> Known<T> {
    Known::unavailable("a test", "nothing")
}

fn call(number: u32, operator: &str, kernel: &str, weights: Vec<Shape>, bytes: u64, flops: u64) -> RawCall {
    RawCall {
        call: number,
        layer: None,
        slot: "s".into(),
        group: "projections".into(),
        operator: operator.into(),
        kernel: kernel.into(),
        source: "crates/x/src/kernel.rs:5".into(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        weights,
        bytes_read: bytes,
        bytes_written: 0,
        flops,
    }
}

/// Two passes of 800 ns, 1000 ns apart. Worker 0 computes call 0 for 400 ns, waits 200 and computes call 1 for 100; worker 1
/// computes call 0 for 600, does not wait, and call 1 for 100. Then 100 ns of nothing.
pub fn trace() -> RawTrace {
    let weight = Shape { rows: 8, cols: 8, form: "q4".into() };
    let mut trace = RawTrace {
        calls: vec![
            call(0, "linear", "q4/avx512", vec![weight], 1200, 6000),
            call(1, "norm", "plain/avx2", Vec::new(), 100, 50),
        ],
        threads: vec![
            RawThread { thread: 10, name: "main".into(), worker: Some(0) },
            RawThread { thread: 11, name: "worker 1".into(), worker: Some(1) },
            RawThread { thread: 99, name: "other".into(), worker: None },
        ],
        sources: vec![
            ("crates/x/src/kernel.rs".into(), "a".repeat(64)),
            ("crates/x/src/walk.rs".into(), "b".repeat(64)),
        ],
        maps: "1000-2000 r-xp 0 0:0 1   /x\n".into(),
        ..RawTrace::default()
    };
    for (step, base) in [(0, 1000), (1, 2000)] {
        trace.steps.push(RawStep { start_ns: base, end_ns: base + 800 });
        let of = |at: [u64; 4]| [at[0], base + at[1], base + at[2], base + at[3]];
        let row = |worker, first, second| RawSpans { step, worker, spans: vec![of(first), of(second)], dropped: 0 };
        trace.spans.push(row(0, [0, 0, 0, 400], [1, 400, 600, 700]));
        trace.spans.push(row(1, [0, 0, 0, 600], [1, 600, 600, 700]));
    }
    let mut add = |at_ns, thread, address: &str| {
        let mut stack = vec![RawAddress(address.into()), RawAddress("re0".into())];
        stack.truncate(if address == "d0" { 1 } else { 2 });
        trace.samples.push(RawSample { at_ns, thread, weight_ns: 50, stack });
    };
    add(999, 10, "a0");
    for base in [1000, 2000] {
        for at in [0, 50, 100, 150, 200] {
            add(base + at, 10, "a0");
            add(base + at, 11, if at < 100 { "b0" } else { "c0" });
        }
        if base == 1000 {
            add(1100, 99, "a0");
        }
        for (at, thread) in [(399, 10), (400, 10), (550, 11), (600, 10), (650, 11), (750, 10)] {
            add(base + at, thread, if at == 550 { "d0" } else { "c0" });
        }
        if base == 1000 {
            add(1800, 10, "c0");
        }
    }
    trace.samples.sort_by_key(|sample| sample.at_ns);
    trace
}

/// `a0` and `b0`: an intrinsic inlined into `kernel.rs:7`; `c0`: `kernel.rs:9`; `d0`: no line of its own. All but the last are
/// called from `walk.rs:20`.
pub fn resolution() -> Resolution {
    let frame = |function: &str, file: &str, line, inlined, in_repository| StackFrame {
        function: function.into(),
        file: file.into(),
        line,
        inlined,
        in_repository,
    };
    let frames = vec![
        frame("_mm512_fmadd_ps", "rust/library/intrinsics.rs", 100, true, false),
        frame("kernel", "crates/x/src/kernel.rs", 7, false, true),
        frame("kernel", "crates/x/src/kernel.rs", 9, false, true),
        frame("kernel", "crates/x/src/kernel.rs", 0, false, true),
        frame("walk", "crates/x/src/walk.rs", 20, false, true),
    ];
    let addresses: HashMap<String, Vec<u32>> =
        [("a0", vec![0, 1]), ("b0", vec![0, 1]), ("c0", vec![2]), ("d0", vec![3]), ("re0", vec![4])]
            .into_iter()
            .map(|(address, chain)| (address.to_owned(), chain))
            .collect();
    let file = |file: &str, verification| SourceFile { file: file.into(), verification };
    Resolution {
        frames,
        addresses,
        executables: vec![ExecutableUse {
            name: "x".into(),
            program: true,
            build_id: missing(),
            samples: 1,
            lines: Known::Is(true),
        }],
        files: vec![
            file("crates/x/src/kernel.rs", Verification::Verified),
            file("crates/x/src/walk.rs", Verification::Unverified { why: "changed".into() }),
        ],
    }
}

/// As files of a trace directory.
pub fn files(trace: &RawTrace) -> HashMap<String, Vec<u8>> {
    fn lines<T: serde::Serialize>(rows: &[T]) -> Vec<u8> {
        rows.iter().flat_map(|row| (serde_json::to_string(row).unwrap() + "\n").into_bytes()).collect()
    }
    let sources: String = trace.sources.iter().map(|(path, hash)| format!("{hash}  {path}\n")).collect();
    [
        ("calls.json", serde_json::to_vec(&trace.calls).unwrap()),
        ("threads.json", serde_json::to_vec(&trace.threads).unwrap()),
        ("steps.jsonl", lines(&trace.steps)),
        ("spans.jsonl", lines(&trace.spans)),
        ("samples.jsonl", lines(&trace.samples)),
        ("kernel-functions.json", serde_json::to_vec(&trace.kernel_functions).unwrap()),
        ("executables.json", serde_json::to_vec(&trace.executables).unwrap()),
        ("maps.txt", trace.maps.clone().into_bytes()),
        ("sources.sha256", sources.into_bytes()),
        ("counters.json", serde_json::to_vec(&trace.counters).unwrap()),
    ]
    .into_iter()
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .collect()
}

pub fn conditions() -> Conditions {
    Conditions {
        binary: Binary { version: "0".into(), build_id: missing(), commit: missing(), dirty: Known::Is(false) },
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
        features: Vec::new(),
        kernels: Vec::new(),
    }
}

pub fn metadata() -> CaptureMetadata {
    let mechanisms = Mechanisms { capacity_cache: true, register_cached_rmsnorm: true, tiled_prefill: true };
    let mut metadata = CaptureMetadata {
        schema: CaptureMetadata::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: Workload {
            model: "synthetic:tiny@0".into(),
            weights_hash: "ab".repeat(32),
            phase: Phase::Decode,
            context_tokens: 8,
            new_rows: 1,
            capacity: 8,
            output_tokens: 0,
            logits: LogitsMode::Last,
            sampling: "greedy".into(),
            seed: 0,
            prompt_rule: "ids".into(),
            token_trace_hash: "cd".repeat(32),
        },
        workload_id: String::new(),
        conditions: conditions(),
        conditions_id: String::new(),
        subject: Subject {
            solution: "hourglass".into(),
            checkpoint: "fast".into(),
            mechanisms,
            engine: "hourglass".into(),
            version: "0".into(),
            weights_form: "BF16".into(),
            conversions: Vec::new(),
        },
        process_id: 10,
        warmup: 2,
        steps: 2,
        ended: Ended::AsAsked,
        wall_ns: 1800,
        precision: missing(),
        sampling: SamplingUse {
            rung: SamplingRung::CpuClock,
            why: "a test".into(),
            frequency_hz: Known::Is(1000),
            samples: 30,
            lost: Known::Is(0),
        },
        overhead: missing(),
        simulation: missing(),
        caution: CAUTION.into(),
        trace: TracePackage { basename: "t".into(), files: 10, bytes: 1, manifest_sha256: "0".repeat(64) },
        checks: Vec::new(),
        void: false,
    };
    metadata.close();
    metadata
}

/// What `lines` makes of the trace and the resolution.
pub fn lines_record() -> LinesRecord {
    let (trace, metadata, resolution) = (trace(), metadata(), resolution());
    let placed = placed(&trace);
    let LineTable { places, frames, stacks } = LineTable::new(&trace, &placed, &resolution);
    let mut record = LinesRecord {
        schema: LinesRecord::SCHEMA.into(),
        created: metadata.created.clone(),
        workload: metadata.workload.clone(),
        workload_id: String::new(),
        conditions: metadata.conditions.clone(),
        conditions_id: String::new(),
        subject: metadata.subject.clone(),
        provenance: Provenance {
            metadata_sha256: missing(),
            trace: missing(),
            profile_sha256: missing(),
            source: Source { commit: missing(), dirty: missing(), tree_sha256: missing(), files: Known::Is(2) },
            reduced_by: metadata.conditions.binary.clone(),
        },
        stretch: Stretch::of(&metadata),
        method: SHARE_METHOD.into(),
        samples: placed.samples.len() as u64,
        executables: resolution.executables,
        files: resolution.files,
        places,
        frames,
        stacks,
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}

/// Ceilings of two threads with one bandwidth for every footprint and one peak.
pub fn ceilings_like(gigabytes: f64, gigaflops: f64) -> Ceilings {
    let rate = |value: f64, unit| Known::Is(Measured::new(vec![value], unit).unwrap());
    let row = BandwidthRow {
        level: Level::Memory,
        traffic: Traffic::Read,
        streams: 4,
        footprint_bytes: Known::Is(1 << 29),
        up_to_bytes: None,
        rate: rate(gigabytes, Unit::GigabytesPerSecond),
    };
    let peak = PeakRow {
        path: InstructionPath::Fp32Avx512,
        operands: Operands::Registers,
        rate: rate(gigaflops, Unit::GigaflopsPerSecond),
    };
    let surroundings = Surroundings {
        seconds: 1.0,
        steal: missing(),
        others: missing(),
        cpu_pressure: missing(),
        memory_pressure: missing(),
        involuntary_switches: Known::Is(0),
        frequency_before: missing(),
        frequency_after: missing(),
        load_before: missing(),
    };
    let mut ceilings = Ceilings {
        schema: Ceilings::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: CeilingsWorkload { rounds: 1, sample_ms: 1, threads: vec![2], streams: vec![4], huge_pages: false },
        workload_id: String::new(),
        conditions: conditions(),
        conditions_id: String::new(),
        processor_share: missing(),
        surroundings,
        threads: vec![ThreadCeilings {
            threads: 2,
            bandwidth: vec![row],
            peaks: vec![peak],
            barrier: rate(0.001, Unit::Microseconds),
            dispatch: missing(),
        }],
        checks: Vec::new(),
        void: false,
    };
    ceilings.close();
    ceilings
}
