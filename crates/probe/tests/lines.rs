//! Costs that are known because they are made of counted multiplications, sampled in this very process and found again by line.
//! The limits of what a sample says are in the intervals: the known share must lie within a 99.9 % one. Not here: the verbs.

#![allow(clippy::unwrap_used, reason = "tests")]

use probe::lines::{Given, Resolved, lines_record};
use probe::sampler::{Address, Sampler};
use record::capture::lines::{LineRow, LinesRecord, PlaceLines, Verification};
use record::capture::load::RawTrace;
use record::capture::raw::{
    Place as RawPlace, RawAddress, RawCall, RawExecutable, RawSample, RawSpans, RawStep, RawThread,
};
use record::capture::share::Share;
use record::capture::{CAUTION, CaptureMetadata, Cost, Ended, Place, TracePackage, placed};
use record::timeline::{SamplingRung, SamplingUse};
use record::{Known, LogitsMode, Mechanisms, Phase, Subject, Workload};
use sha2::{Digest, Sha256};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const THIS: &str = "crates/probe/tests/lines.rs";
const PIECE: u64 = 20_000;

/// Three parts of the cost are on one line, one part on the other: a chain of multiplications that each need the one before, so
/// that the time is their latency, whatever else the processor could do meanwhile.
#[inline(never)]
#[rustfmt::skip]
fn two_lines(mut x: u64) -> (u64, u32) {
    const FIRST: u32 = line!() + 1;
    for _ in 0..3 * PIECE { x = x.wrapping_mul(3).rotate_left(5).wrapping_mul(7).rotate_left(9).wrapping_mul(11).rotate_left(13).wrapping_mul(17).rotate_left(19); }
    for _ in 0..PIECE { x = x.wrapping_mul(3).rotate_left(5).wrapping_mul(7).rotate_left(9).wrapping_mul(11).rotate_left(13).wrapping_mul(17).rotate_left(19); }
    (x, FIRST)
}

/// Other numbers than above: of two functions with one body the compiler keeps one.
#[inline(always)]
#[rustfmt::skip]
fn helper(x: u64) -> u64 { x.wrapping_mul(19).rotate_left(7).wrapping_mul(23).rotate_left(11).wrapping_mul(29).rotate_left(15).wrapping_mul(31).rotate_left(21) }
const HELPER: u32 = line!() - 1;

/// The same body inlined at two places, three times as often at the first.
#[inline(never)]
#[rustfmt::skip]
fn inlined_twice(mut x: u64) -> (u64, u32) {
    const FIRST: u32 = line!() + 1;
    for _ in 0..3 * PIECE { x = helper(x); }
    for _ in 0..PIECE { x = helper(x); }
    (x, FIRST)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn own_thread() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn call(number: u32, kernel: &str) -> RawCall {
    RawCall {
        call: number,
        layer: None,
        slot: "s".into(),
        group: "projections".into(),
        operator: "test".into(),
        kernel: kernel.into(),
        source: format!("{THIS}:1"),
        inputs: Vec::new(),
        outputs: Vec::new(),
        weights: Vec::new(),
        bytes_read: 1,
        bytes_written: 0,
        flops: 1,
    }
}

/// Passes of both kernels until each has had enough processor time, sampled. None where nothing can sample, which it says.
fn captured() -> Option<(RawTrace, SamplingRung)> {
    let thread = own_thread();
    let sampler = Sampler::start(&[thread], 1999);
    let (mut steps, mut spans) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    let mut x = 7;
    // Counted passes, so that nothing depends on how busy the machine is but how long it takes; the limit is for a machine that
    // hardly runs this at all.
    while steps.len() < 1500 && begun.elapsed() < Duration::from_secs(120) {
        let start = monotonic_ns();
        x = two_lines(black_box(x)).0;
        let middle = monotonic_ns();
        x = inlined_twice(black_box(x)).0;
        let end = monotonic_ns();
        let step = steps.len() as u64;
        steps.push(RawStep { start_ns: start, end_ns: end + 1 });
        let calls = vec![[0, start, start, middle], [1, middle, middle, end]];
        spans.push(RawSpans { step, worker: 0, spans: calls, dropped: 0 });
    }
    black_box(x);
    let sampled = sampler.stop();
    if sampled.rung == SamplingRung::None || sampled.samples.len() < 400 {
        println!("not checked: {} samples here ({})", sampled.samples.len(), sampled.why);
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "nothing samples here");
        return None;
    }
    let raw = |address: &Address| {
        RawAddress::from(RawPlace { at: address.at, kernel: address.kernel, returns: address.returns })
    };
    let samples = sampled
        .samples
        .iter()
        .map(|sample| RawSample {
            at_ns: sample.at_ns,
            thread: sample.thread,
            weight_ns: sample.weight_ns,
            stack: sample.stack.iter().map(raw).collect(),
        })
        .collect();
    let path = std::env::current_exe().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let executable = RawExecutable {
        path: path.to_str().unwrap().to_owned(),
        build_id: Known::unavailable("a test", "nothing"),
        sha256: Known::Is(hexadecimal(&Sha256::digest(&bytes))),
        bytes: Known::Is(bytes.len() as u64),
        program: true,
    };
    let source = std::fs::read(root().join(THIS)).unwrap();
    let trace = RawTrace {
        calls: vec![call(0, "two_lines"), call(1, "inlined_twice")],
        threads: vec![RawThread { thread, name: "test".into(), worker: Some(0) }],
        steps,
        spans,
        samples,
        executables: vec![executable],
        maps: std::fs::read_to_string("/proc/self/maps").unwrap(),
        sources: vec![(THIS.to_owned(), hexadecimal(&Sha256::digest(&source)))],
        ..RawTrace::default()
    };
    Some((trace, sampled.rung))
}

fn metadata(steps: u64, rung: SamplingRung) -> CaptureMetadata {
    let missing = || Known::unavailable("a test", "nothing");
    let conditions = record::Conditions {
        binary: probe::binary(),
        host: probe::host(),
        threads: 1,
        pinned: false,
        features: Vec::new(),
        kernels: Vec::new(),
    };
    let workload = Workload {
        model: "none".into(),
        weights_hash: String::new(),
        phase: Phase::Decode,
        context_tokens: 1,
        new_rows: 1,
        capacity: 1,
        output_tokens: 0,
        logits: LogitsMode::Last,
        sampling: "greedy".into(),
        seed: 0,
        prompt_rule: "none".into(),
        token_trace_hash: String::new(),
    };
    let mut metadata = CaptureMetadata {
        schema: "capture-metadata/1".into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload,
        workload_id: String::new(),
        conditions,
        conditions_id: String::new(),
        subject: Subject {
            solution: "test".into(),
            checkpoint: "test".into(),
            mechanisms: Mechanisms { capacity_cache: true, register_cached_rmsnorm: true, tiled_prefill: true },
            engine: "test".into(),
            version: "0".into(),
            weights_form: "none".into(),
            conversions: Vec::new(),
        },
        process_id: std::process::id(),
        warmup: 0,
        steps,
        ended: Ended::AsAsked,
        wall_ns: 1,
        precision: missing(),
        sampling: SamplingUse {
            rung,
            why: "a test".into(),
            frequency_hz: Known::Is(1999),
            samples: 0,
            lost: Known::Is(0),
        },
        overhead: Known::unavailable("a test", "nothing"),
        simulation: Known::unavailable("a test", "nothing"),
        caution: CAUTION.into(),
        trace: TracePackage { basename: "t".into(), files: 0, bytes: 0, manifest_sha256: String::new() },
        checks: Vec::new(),
        void: false,
    };
    metadata.close();
    metadata
}

fn record(trace: &RawTrace, rung: SamplingRung, binary: Option<&Path>, sources: &Path) -> (LinesRecord, Resolved) {
    let metadata = metadata(trace.steps.len() as u64, rung);
    let missing = || Known::unavailable("a test", "nothing");
    let given = Given {
        metadata: &metadata,
        metadata_sha256: missing(),
        trace: Known::unavailable("a test", "nothing"),
        tree_sha256: missing(),
        profile_sha256: missing(),
    };
    let resolved = Resolved::new(trace, binary, sources);
    (lines_record(&given, trace, &placed(trace), &resolved), resolved)
}

/// A 95 % interval widened to 99.9 %.
fn holds(share: &Share, truth: f64) -> bool {
    let wider = 3.291 / 1.960;
    let (low, high) =
        (share.value - (share.value - share.low) * wider, share.value + (share.high - share.value) * wider);
    (low..=high).contains(&truth)
}

fn place<'a>(record: &'a LinesRecord, kernel: &str) -> &'a PlaceLines {
    let is = |place: &&PlaceLines| matches!(&place.place, Place::Kernel { kernel: own, .. } if own == kernel);
    record.places.iter().find(is).unwrap()
}

fn row(place: &PlaceLines, line: u32) -> &LineRow {
    place.rows.iter().find(|row| row.file == THIS && row.line == line).unwrap_or_else(|| panic!("{line}: {place:#?}"))
}

/// One test, because a capture takes seconds: everything that is said about it.
#[test]
fn known_costs_are_found_on_their_lines() {
    let Some((trace, rung)) = captured() else { return };
    let (record, resolved) = record(&trace, rung, None, &root());
    assert!(!record.void, "{:?}", record.checks);
    assert_eq!(record.files.iter().find(|file| file.file == THIS).unwrap().verification, Verification::Verified);
    // What the operating system did inside a kernel is not on a line of it; it belongs to the caller's line all the same.
    let within = |cost: &Cost, truth: f64, what: &str| {
        assert!(
            holds(&cost.share, truth),
            "{what}: expected {truth}, found {:?} of {} samples",
            cost.share,
            cost.samples
        );
    };

    let (_, first) = two_lines(1);
    let direct = place(&record, "two_lines");
    let (dear, cheap) = (row(direct, first), row(direct, first + 1));
    within(&dear.self_in_repository, 0.75, "three of four parts");
    within(&cheap.self_in_repository, 0.25, "one of four parts");
    assert_eq!((dear.rank, cheap.rank), (Some(1), Some(2)), "told apart");
    assert!(dear.verified && dear.in_repository);

    let (_, first) = inlined_twice(1);
    let inlined = place(&record, "inlined_twice");
    // The inlined body is one line, and its samples count once.
    let body = row(inlined, HELPER);
    assert!(body.self_in_repository.share.value > 0.9, "{body:?}");
    assert!(body.self_in_repository.samples <= inlined.cost.samples);
    let sum: u64 = inlined.rows.iter().map(|row| row.self_in_repository.samples).sum();
    assert_eq!(sum, inlined.cost.samples, "nothing twice");
    // The two lines that it was inlined into have the cost in the column that adds up to nothing.
    let (dear, cheap) = (row(inlined, first), row(inlined, first + 1));
    within(&dear.inclusive_not_summable, 0.75, "the first call");
    within(&cheap.inclusive_not_summable, 0.25, "the second call");
    // Both chains are there, each from the helper's line to the line that it is inlined into.
    let chains: Vec<(u32, u64)> = record
        .stacks
        .iter()
        .filter(|stack| stack.place == inlined.place)
        .filter_map(|stack| {
            let frames: Vec<_> = stack.frames.iter().map(|id| &record.frames[*id as usize]).collect();
            let helper = frames.iter().position(|frame| frame.line == HELPER && frame.file == THIS)?;
            assert!(frames[helper].inlined, "{frames:?}");
            Some((frames[helper + 1].line, stack.samples))
        })
        .collect();
    let of = |line: u32| chains.iter().filter(|(own, _)| *own == line).map(|(_, samples)| samples).sum::<u64>();
    assert!(of(first) > of(first + 1) && of(first + 1) > 0, "{chains:?}");
    assert_eq!(of(first) + of(first + 1), chains.iter().map(|(_, samples)| samples).sum::<u64>());

    // The hot loop holds most samples and multiplies with scalar instructions, which no ceiling is measured for.
    let placed = placed(&trace);
    let instructions = resolved.instructions(&trace, &placed, rung);
    let kernels = &instructions.known().unwrap().kernels;
    let kernel = kernels.iter().find(|kernel| kernel.kernel == "two_lines").unwrap();
    let hot = kernel.hot_loop.known().unwrap();
    assert!(hot.function.contains("two_lines"), "{hot:?}");
    assert!(hot.samples * 2 >= hot.kernel_samples && hot.instructions >= 8, "{hot:?}");
    assert_eq!(hot.classes.iter().map(|row| row.samples).sum::<u64>(), hot.samples);

    moved_changed_and_stripped(&trace, rung);
}

/// The same trace beside a checkout and an executable that are not the captured ones.
fn moved_changed_and_stripped(trace: &RawTrace, rung: SamplingRung) {
    let folder = tempfile::tempdir().unwrap();
    let why = |record: &LinesRecord| {
        let file = record.files.iter().find(|file| file.file == THIS).unwrap();
        match &file.verification {
            Verification::Verified => "verified".to_owned(),
            Verification::Unverified { why } => why.clone(),
        }
    };
    let (moved, _) = record(trace, rung, None, folder.path());
    assert!(why(&moved).contains("moved"), "{}", why(&moved));
    let path = folder.path().join(THIS);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "// something else\n").unwrap();
    let (changed, _) = record(trace, rung, None, folder.path());
    assert!(why(&changed).contains("changed"), "{}", why(&changed));
    assert!(changed.places.iter().flat_map(|place| &place.rows).all(|row| !row.verified));
    assert!(!changed.void, "the numbers are what they were");
    // Not in the list of what it was compiled from.
    let mut unlisted = trace.clone();
    unlisted.sources.clear();
    let (unlisted, _) = record(&unlisted, rung, None, &root());
    assert!(why(&unlisted).contains("not in the list"), "{}", why(&unlisted));

    // Another executable, and the same without its debugging information.
    let mut stripped = trace.clone();
    let other = folder.path().join("other");
    std::fs::write(&other, b"\x7fELF").unwrap();
    let resolved = Resolved::new(&stripped, Some(&other), &root());
    assert!(resolved.program_without_lines().is_some());
    let copy = folder.path().join("stripped");
    let strip = std::process::Command::new("strip").arg("-o").arg(&copy).arg(&stripped.executables[0].path).status();
    if !strip.is_ok_and(|status| status.success()) {
        println!("not checked: strip is not here; it comes with binutils");
        return;
    }
    let why = |resolved: &Resolved| resolved.program_without_lines().unwrap().unavailable.clone();
    let resolved = Resolved::new(&stripped, Some(&copy), &root());
    assert!(why(&resolved).contains("another file"), "{}", why(&resolved));
    stripped.executables[0].sha256 = Known::Is(hexadecimal(&Sha256::digest(std::fs::read(&copy).unwrap())));
    let resolved = Resolved::new(&stripped, Some(&copy), &root());
    assert!(why(&resolved).contains("stripped"), "{}", why(&resolved));
}
