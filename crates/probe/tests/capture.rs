//! A capture on a tiny synthetic model: what its files hold is what the program plans, as often as was asked for.
//! Not here: the verb, its outputs and its refusals, which the tests of the binary show.

#![allow(clippy::unwrap_used, reason = "tests")]

use model::{Engine, LoadOptions};
use ops::{MechanismControls, Registry};
use probe::{Capture, CaptureCase, Error, Extent, capture, prompt};
use record::capture::Ended;
use record::capture::manifest::Manifest;
use record::capture::raw::{
    self, CounterKind, KernelFunction, RawCall, RawCounter, RawExecutable, RawSample, RawSpans, RawStep, RawThread,
};
use record::timeline::SamplingRung;
use record::{LogitsMode, Phase, Workload};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weights::{ModelSource, OpenOptions};

/// One at a time: what is sampled and counted is the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn engine(checkpoint: &str, threads: usize) -> Engine {
    let files = weights::open(&ModelSource::parse("synthetic:tiny").unwrap(), &OpenOptions::default()).unwrap();
    let mut options = LoadOptions::new(Registry::standard().checkpoint(checkpoint).unwrap());
    options.controls = MechanismControls::default();
    options.threads = threads;
    Engine::load(&files, options).unwrap()
}

fn workload(phase: Phase, tokens: usize, capacity: usize) -> Workload {
    Workload {
        model: "synthetic:tiny".to_owned(),
        weights_hash: String::new(),
        phase,
        context_tokens: tokens as u64,
        new_rows: if phase == Phase::Decode { 1 } else { tokens as u64 },
        capacity: capacity as u64,
        output_tokens: 0,
        logits: LogitsMode::All,
        sampling: "greedy".to_owned(),
        seed: 0,
        prompt_rule: probe::PROMPT_RULE.to_owned(),
        token_trace_hash: String::new(),
    }
}

fn take(engine: &mut Engine, workload: &Workload, extent: Extent) -> Result<Capture, Error> {
    let tokens = prompt(workload.context_tokens as usize, engine.config().vocab_size, &[], 0);
    let case = CaptureCase {
        workload,
        tokens: &tokens,
        warmup: 2,
        extent,
        frequency_hz: 1997,
        counters: true,
        overhead_rounds: 0,
        directory: Path::new("/"),
    };
    capture(engine, &case, &|_, _, _| {})
}

/// A trace directory, read.
struct Trace {
    calls: Vec<RawCall>,
    threads: Vec<RawThread>,
    steps: Vec<RawStep>,
    spans: Vec<RawSpans>,
    samples: Vec<RawSample>,
    functions: Vec<KernelFunction>,
    executables: Vec<RawExecutable>,
    counters: Vec<RawCounter>,
    sources: Manifest,
}

fn whole<T: DeserializeOwned>(directory: &Path, name: &str) -> T {
    serde_json::from_slice(&std::fs::read(directory.join(name)).unwrap()).unwrap()
}

fn lines<T: DeserializeOwned>(directory: &Path, name: &str) -> Vec<T> {
    let text = std::fs::read_to_string(directory.join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn written(capture: &mut Capture) -> Trace {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    capture.write(at).unwrap();
    Trace {
        calls: whole(at, raw::CALLS),
        threads: whole(at, raw::THREADS),
        steps: lines(at, raw::STEPS),
        spans: lines(at, raw::SPANS),
        samples: lines(at, raw::SAMPLES),
        functions: whole(at, raw::KERNEL_FUNCTIONS),
        executables: whole(at, raw::EXECUTABLES),
        counters: whole(at, raw::COUNTERS),
        sources: Manifest::parse("sources", &std::fs::read(at.join(raw::SOURCES)).unwrap()).unwrap(),
    }
}

/// Every worker has every call of every pass once, in order, inside the pass.
fn check_spans(trace: &Trace, workers: usize) {
    assert_eq!(trace.spans.len(), trace.steps.len() * workers);
    let mut seen = BTreeSet::new();
    for spans in &trace.spans {
        assert!(seen.insert((spans.step, spans.worker)), "pass {} of worker {} twice", spans.step, spans.worker);
        let calls: Vec<u64> = spans.spans.iter().map(|span| span[0]).collect();
        assert_eq!(calls, (0..trace.calls.len() as u64).collect::<Vec<_>>());
        assert_eq!(spans.dropped, 0);
        let step = &trace.steps[spans.step as usize];
        let mut before = step.start_ns;
        for [_, arrive, start, end] in &spans.spans {
            assert!(before <= *arrive && arrive <= start && start <= end, "{spans:?}");
            before = *end;
        }
        assert!(before <= step.end_ns);
    }
    for pair in trace.steps.windows(2) {
        assert!(pair[0].end_ns <= pair[1].start_ns);
    }
}

#[test]
fn calls_are_program_times_steps_times_workers_on_every_kind_of_rung() {
    let _alone = alone();
    for (checkpoint, threads, steps) in [("week1", 1, 3), ("kv-cache", 2, 5), ("selected", 3, 20), ("fast", 1, 7)] {
        let mut engine = engine(checkpoint, threads);
        for (phase, tokens) in [(Phase::Decode, 9), (Phase::Prefill, 12)] {
            let workload = workload(phase, tokens, tokens + 3);
            let mut captured = take(&mut engine, &workload, Extent::Steps(steps)).unwrap();
            assert_eq!((captured.steps.len(), captured.ended), (steps, Ended::AsAsked), "{checkpoint}");
            // What would run at this shape, counted by the engine.
            let rows = if phase == Phase::Decode && checkpoint != "week1" { 1 } else { tokens };
            let keep = if phase == Phase::Decode { model::Keep::Last } else { model::Keep::All };
            let planned = engine.kernels(rows, keep, tokens + 3).unwrap().calls().len();
            assert_eq!(captured.calls().len(), planned, "{checkpoint} {phase:?}");
            let trace = written(&mut captured);
            check_spans(&trace, threads);
            let spans: usize = trace.spans.iter().map(|spans| spans.spans.len()).sum();
            assert_eq!(spans, planned * steps * threads);
            assert!(captured.precision.missing().unwrap().unavailable.contains("length was given"));
            assert!(captured.overhead.known().is_none(), "not asked for");
            assert_eq!(captured.kernels.iter().map(|kernel| kernel.calls).sum::<u64>(), planned as u64);
        }
    }
}

#[test]
fn samples_are_of_known_threads_inside_the_stretch_and_their_places_are_known() {
    let _alone = alone();
    let mut engine = engine("selected", 2);
    let workload = workload(Phase::Prefill, 64, 64);
    let mut captured = take(&mut engine, &workload, Extent::Seconds(0.3)).unwrap();
    let trace = written(&mut captured);
    check_spans(&trace, 2);
    let (first, last) = (trace.steps[0].start_ns, trace.steps[trace.steps.len() - 1].end_ns);
    assert!(last - first >= 300_000_000 || captured.ended == Ended::AtMost, "{} ns", last - first);
    assert_eq!(captured.wall_ns(), last - first);
    assert_eq!(captured.sampling.samples, trace.samples.len() as u64);
    if captured.sampling.rung == SamplingRung::None {
        println!("skipped: nothing samples here: {}", captured.sampling.why);
        return;
    }
    assert!(!trace.samples.is_empty());
    assert!(trace.samples.iter().all(|sample| (first..=last).contains(&sample.at_ns)));
    assert!(trace.samples.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns), "by time");
    let workers: BTreeSet<Option<u32>> = trace.threads.iter().map(|thread| thread.worker).collect();
    assert!(workers.contains(&Some(0)) && workers.contains(&Some(1)), "{:?}", trace.threads);
    let threads: BTreeSet<u32> = trace.threads.iter().map(|thread| thread.thread).collect();
    for sample in &trace.samples {
        assert!(threads.contains(&sample.thread));
        let places: Vec<_> = sample.stack.iter().map(|address| address.place().unwrap()).collect();
        assert!(!places.is_empty() && !places[0].returns, "{sample:?}");
        // A kernel's address belongs to the last function that begins before it, where the kernel tells.
        for place in places.iter().filter(|place| place.kernel && !trace.functions.is_empty()) {
            assert!(trace.functions[0].start <= place.at);
        }
    }
    let program: Vec<&RawExecutable> = trace.executables.iter().filter(|executable| executable.program).collect();
    assert_eq!(program.len(), 1, "{:?}", trace.executables);
    assert_eq!(Path::new(&program[0].path), std::env::current_exe().unwrap().canonicalize().unwrap());
}

#[test]
fn every_counter_is_counted_or_says_why_not() {
    let _alone = alone();
    let mut engine = engine("selected", 2);
    let workload = workload(Phase::Decode, 16, 16);
    let mut captured = take(&mut engine, &workload, Extent::Steps(300)).unwrap();
    let trace = written(&mut captured);
    let names: BTreeSet<&str> = trace.counters.iter().map(|counter| counter.name.trim_end_matches(":u")).collect();
    for name in ["cycles", "instructions", "cache-misses", "LLC-loads", "page-faults", "context-switches", "task-clock"]
    {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    for counter in &trace.counters {
        assert_ne!(counter.kind, CounterKind::Simulated);
        if let Some(missing) = counter.count.missing() {
            assert!(missing.unavailable.len() > 5 && missing.how_to_get.len() > 5, "{counter:?}");
        }
        let clock = counter.name.starts_with("task-clock");
        if let (true, Some(nanoseconds)) = (clock, counter.count.known()) {
            // Of two workers, at most the whole stretch each, and what is around it.
            assert!(*nanoseconds > 0.0, "{counter:?}");
        }
    }
}

#[test]
fn sources_are_those_that_the_repository_has() {
    let _alone = alone();
    let mut engine = engine("selected", 1);
    let mut captured = take(&mut engine, &workload(Phase::Decode, 4, 4), Extent::Steps(1)).unwrap();
    let sources = written(&mut captured).sources;
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().into();
    for path in ["crates/ops/src/walk.rs", "crates/probe/src/capture.rs", "crates/probe/build.rs"] {
        assert!(sources.get(path).is_some(), "{path}");
    }
    assert!(sources.files().all(|(path, _)| root.join(path).is_file()));
    assert!(sources.files().all(|(path, _)| !path.contains("/tests/")), "what is compiled into it, and nothing else");
}

#[test]
fn precision_is_reached_or_said_to_be_missed() {
    let _alone = alone();
    let mut engine = engine("selected", 2);
    let captured = take(&mut engine, &workload(Phase::Prefill, 64, 64), Extent::HalfWidth(0.1)).unwrap();
    match captured.precision.known() {
        Some(half_width) => assert!((0.0..=0.1).contains(half_width)),
        None => assert!(captured.precision.missing().unwrap().how_to_get.contains("--seconds")),
    }
}

#[test]
fn an_interruption_keeps_whole_passes_or_nothing() {
    let _alone = alone();
    let mut engine = engine("selected", 2);
    let workload = workload(Phase::Decode, 16, 16);
    let cancelled = Arc::clone(&engine.options().cancelled);
    cancelled.store(true, Relaxed);
    let nothing = take(&mut engine, &workload, Extent::Steps(5));
    assert!(matches!(nothing, Err(Error::Model(model::Error::Interrupted))));
    cancelled.store(false, Relaxed);
    let tokens = prompt(16, engine.config().vocab_size, &[], 0);
    let case = CaptureCase {
        workload: &workload,
        tokens: &tokens,
        warmup: 1,
        extent: Extent::Seconds(5.0),
        frequency_hz: 997,
        counters: false,
        overhead_rounds: 1,
        directory: Path::new("/"),
    };
    let stop = |_, _, what: &str| {
        if what == "stretch" {
            let cancelled = Arc::clone(&cancelled);
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                cancelled.store(true, Relaxed);
            });
        }
    };
    match capture(&mut engine, &case, &stop) {
        Ok(mut captured) => {
            assert_eq!(captured.ended, Ended::Interrupted);
            assert!(captured.overhead.missing().unwrap().unavailable.contains("interrupted"));
            check_spans(&written(&mut captured), 2);
        }
        // On a machine so slow that no pass was over by then.
        Err(error) => assert!(matches!(error, Error::Model(model::Error::Interrupted)), "{error}"),
    }
}

#[test]
fn what_cannot_fit_is_refused_before_it_runs() {
    let _alone = alone();
    let mut engine = engine("selected", 1);
    let workload = workload(Phase::Decode, 4, 4);
    let error = take(&mut engine, &workload, Extent::Seconds(3600.0)).err().unwrap().to_string();
    assert!(error.contains("samples") && error.contains("lower frequency"), "{error}");
    let tokens = prompt(4, engine.config().vocab_size, &[], 0);
    let case = CaptureCase {
        workload: &workload,
        tokens: &tokens,
        warmup: 1,
        extent: Extent::Seconds(40_000.0),
        frequency_hz: 1,
        counters: false,
        overhead_rounds: 0,
        directory: Path::new("/"),
    };
    let error = capture(&mut engine, &case, &|_, _, _| {}).err().unwrap().to_string();
    assert!(error.contains("MiB") && error.contains("free"), "{error}");
    // More tokens than the cache has positions.
    let small = Workload { capacity: 2, ..workload };
    assert!(take(&mut engine, &small, Extent::Steps(1)).is_err());
}
