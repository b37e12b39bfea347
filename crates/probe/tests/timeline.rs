//! The timeline on a tiny synthetic model: what it counts is what the program plans, and what is made slow on purpose is named.
//! Truths are injected from outside, by an observer that walks along, by the choice of tokens, or by processes beside this one.

#![allow(clippy::unwrap_used, reason = "tests")]

use memmap2::{Advice, MmapMut};
use model::{Engine, LoadOptions, Logits};
use ops::{BoundCall, Observer, Plain, Registry};
use probe::{MainThread, Timeline, TimelineRequest, prompt, timeline};
use record::timeline::{Awaited, Cause, LaneTime, LostTo, OutlierKind, OverheadUnit, SamplingRung};
use record::trace::{Category, LaneKind, LossKind, Value, verify};
use record::{LogitsMode, Phase};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weights::{ModelSource, OpenOptions, Tensor};

#[global_allocator]
static ALLOCATOR: ops::memory::CountingAllocator = ops::memory::CountingAllocator;

/// One request at a time: what is allocated and sampled is the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn engine(checkpoint: &str) -> Engine {
    let files = weights::open(&ModelSource::parse("synthetic:tiny").unwrap(), &OpenOptions::default()).unwrap();
    let mut options = LoadOptions::new(Registry::standard().checkpoint(checkpoint).unwrap());
    options.threads = 2;
    options.prefill_chunk = 16;
    Engine::load(&files, options).unwrap()
}

fn traced<O: Observer>(
    engine: &mut Engine,
    (phase, input, output): (Phase, usize, usize),
    choose: &mut dyn FnMut(&Logits<'_>, usize) -> Result<u32, model::Error>,
    beside: &O,
) -> Timeline {
    let prompt = prompt(input, engine.config().vocab_size, &engine.config().eos_tokens, 3);
    let request = TimelineRequest {
        prompt: &prompt,
        output_tokens: output,
        logits: LogitsMode::Last,
        phase,
        warmup: 1,
        frequency_hz: Some(997),
        overhead_rounds: 0,
    };
    trace_of(engine, &request, choose, beside, &|_| {})
}

/// `before(what)` is called before each request: a warm-up, the traced one.
fn trace_of<O: Observer>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    choose: &mut dyn FnMut(&Logits<'_>, usize) -> Result<u32, model::Error>,
    beside: &O,
    before: &dyn Fn(&str),
) -> Timeline {
    let mut main = MainThread { input: None, choose, output: None };
    timeline(engine, request, &mut main, beside, &|_, _, what| before(what)).unwrap()
}

/// What most time was lost to, but for what only other processes can do to this one: those may be running.
fn own_loss(timeline: &Timeline) -> LostTo {
    let of_others = [LostTo::Steal, LostTo::Descheduled];
    timeline.summary.lost.iter().find(|time| !of_others.contains(&time.to)).unwrap().to
}

fn lost_to(timeline: &Timeline, to: LostTo) -> u64 {
    timeline.summary.lost.iter().filter(|time| time.to == to).map(|time| time.wall_ns).sum()
}

/// Nanoseconds that this thread was on a processor.
fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn greedy(logits: &Logits<'_>, row: usize) -> Result<u32, model::Error> {
    logits.argmax(row)
}

fn lost(lane: &LaneTime, cause: Cause) -> f64 {
    lane.occupation.lost_to(cause) as f64 / 1e9
}

/// Whether the way of sampling sees what the test needs; says so if not.
fn sees(timeline: &Timeline) -> bool {
    let perf = matches!(timeline.sampling.rung, SamplingRung::Cycles | SamplingRung::CpuClock);
    if !perf {
        println!("skipped: needs perf events: {}", timeline.sampling.why);
    }
    perf
}

#[test]
fn every_call_of_every_pass_is_there_on_every_kind_of_rung() {
    let _alone = alone();
    for (checkpoint, input) in [("week1", 10), ("kv-cache", 40), ("selected", 10), ("selected", 40)] {
        let mut engine = engine(checkpoint);
        let layers = engine.config().layers as u64;
        for phase in [Phase::Request, Phase::Prefill, Phase::Decode] {
            let timeline = traced(&mut engine, (phase, input, 7), &mut greedy, &Plain);
            let (trace, summary) = (&timeline.trace, &timeline.summary);
            let what = format!("{checkpoint} {input} {phase:?}");
            verify(trace).unwrap();
            assert!(summary.coverage.is_complete(), "{what}: {:?}", summary.coverage);
            assert_eq!(summary.lanes.len(), 2, "{what}");
            for row in &summary.operators {
                let planned = *row.planned_calls.known().unwrap();
                assert!(planned > 0 && row.calls == [planned, planned], "{what}: {row:?}");
            }
            // Without a cache the prompt is one pass; else it is cut into chunks of 16.
            let prefill = if checkpoint == "week1" { 1 } else { input.div_ceil(16) as u64 };
            let (prefill, decode) = match phase {
                Phase::Request => (prefill, 6),
                Phase::Prefill => (prefill, 0),
                Phase::Decode => (0, 6),
            };
            let steps: Vec<(&str, u64)> =
                summary.steps.iter().map(|series| (&series.name[..], series.steps.len() as u64)).collect();
            let wanted: Vec<(&str, u64)> =
                [("prefill pass", prefill), ("decode step", decode)].into_iter().filter(|(_, n)| *n > 0).collect();
            assert_eq!(steps, wanted, "{what}");
            let queries = summary.operators.iter().find(|row| row.operator == "q_proj (linear)").unwrap();
            assert_eq!(queries.calls, [layers * (prefill + decode); 2], "{what}: one per layer and pass");
            let lane = &trace.lanes[0];
            assert!(matches!(lane.kind, LaneKind::Main { thread } if thread > 0), "{what}");
            let workers: Vec<u32> = trace.lanes[1..].iter().map(|lane| lane.kind.thread().unwrap()).collect();
            assert!(workers[0] != workers[1] && Some(workers[0]) == lane.kind.thread(), "{what}: {workers:?}");
            assert_eq!(trace.flows.len() as u64, 2 * (prefill + decode), "{what}: one per pass and worker");
            assert_eq!(timeline.tokens.len(), if phase == Phase::Prefill { 1 } else { 7 });
        }
    }
}

#[test]
fn a_growing_cache_shows_its_allocations_and_its_bytes() {
    let _alone = alone();
    let mut engine = engine("kv-cache");
    let timeline = traced(&mut engine, (Phase::Request, 200, 4), &mut greedy, &Plain);
    let held = timeline.trace.counters.iter().find(|counter| counter.name == "keys and values").unwrap();
    let bytes: Vec<f64> = held.points.iter().map(|point| point.1).collect();
    assert!(bytes.len() == 4 && bytes.windows(2).all(|pair| pair[0] < pair[1]), "{bytes:?}");
    assert_eq!(timeline.kv_allocation.value(), bytes.last().copied());
    // The main thread makes the storage, in one piece, anew for each token.
    let sizes: Vec<f64> = timeline.trace.lanes[0]
        .instants
        .iter()
        .filter(|instant| instant.category == Category::Allocation)
        .filter_map(|instant| match instant.args[0].1 {
            Value::Integer(bytes) => Some(bytes as f64),
            _ => None,
        })
        .collect();
    assert!(bytes.iter().all(|held| sizes.contains(held)), "{bytes:?} among {sizes:?}");
    let peak = timeline.peak_allocation.value().unwrap();
    assert!(peak >= engine.weight_bytes() as f64 + bytes[3], "{peak}");
}

/// Sleeps after token 9 alone, longer than anything else takes.
#[test]
fn a_sleep_in_the_choice_of_a_token_is_named() {
    let _alone = alone();
    let sleep = Duration::from_millis(2);
    let mut engine = engine("selected");
    let mut every = |logits: &Logits<'_>, row: usize| {
        std::thread::sleep(sleep);
        logits.argmax(row)
    };
    let timeline = traced(&mut engine, (Phase::Decode, 10, 33), &mut every, &Plain);
    let device = &timeline.summary.device;
    // A sleep lasts at least as long as it was asked to; what the kernel took besides is another cause.
    let least = 32 * sleep.as_nanos() as u64;
    assert!(device.lost_to(Cause::Sampling) >= least - least / 10, "{device:?}");
    assert_eq!(own_loss(&timeline), LostTo::Sampling, "{:?}", timeline.summary.lost);
    // Whether they are among the longest gaps depends on what others do meanwhile; one sleep that is longer than that follows.

    let mut count = 0;
    let mut once = |logits: &Logits<'_>, row: usize| {
        count += 1;
        if count % 34 == 10 {
            std::thread::sleep(Duration::from_millis(400));
        }
        logits.argmax(row)
    };
    // 33 tokens of the plan, 33 of the trace: `count` goes on, so the slow one is made to come in both.
    let timeline = traced(&mut engine, (Phase::Decode, 10, 34), &mut once, &Plain);
    let series = timeline.summary.steps.iter().find(|series| series.name == "decode step").unwrap();
    let outliers = series.outliers.known().unwrap();
    let longest = outliers.first().unwrap();
    assert_eq!(longest.step, 8, "token 10 is decode step 9: {longest:?}");
    assert_eq!(longest.cause.known().unwrap().what, OutlierKind::Idle(Cause::Sampling), "{longest:?}");
}

/// Spins after each call of one worker.
struct Slow {
    worker: usize,
    extra: Duration,
}

impl Observer for Slow {
    fn ends(&self, worker: usize, _: usize, _: &BoundCall) {
        if worker == self.worker {
            let start = Instant::now();
            while start.elapsed() < self.extra {
                std::hint::spin_loop();
            }
        }
    }
}

#[test]
fn a_slow_worker_is_named_and_the_other_waits_for_its_computing() {
    let _alone = alone();
    let mut engine = engine("selected");
    for slow in [0, 1] {
        let beside = Slow { worker: slow, extra: Duration::from_millis(1) };
        let timeline = traced(&mut engine, (Phase::Decode, 10, 12), &mut greedy, &beside);
        let summary = &timeline.summary;
        let imbalances: Vec<_> = summary.operators.iter().filter_map(|row| row.imbalance.known()).collect();
        let named = imbalances.iter().filter(|imbalance| imbalance.slowest == format!("worker {slow}")).count();
        // Another process may hold the other worker up in a call or two.
        assert!(2 * named > imbalances.len(), "worker {slow}: {named} of {}", imbalances.len());
        let other = &summary.lanes[1 - slow];
        assert!(lost(other, Cause::Barrier) > lost(&summary.lanes[slow], Cause::Barrier), "worker {slow}");
        let computing = |lane: &LaneTime| {
            lane.awaited.iter().filter(|time| time.what == Awaited::Computing).map(|time| time.wall_ns).sum::<u64>()
        };
        assert!(computing(other) > computing(&summary.lanes[slow]), "worker {slow}: {:?}", other.awaited);
    }
}

/// Makes every worker's share of every call take so much processor time, and a fifth more on one worker: whatever else runs, one
/// is slower by 20 % in proportion.
struct Fifth {
    slow: usize,
    started_ns: [AtomicU64; 2],
}

const SHARE_NS: u64 = 2_000_000;

impl Observer for Fifth {
    fn starts(&self, worker: usize, _: usize, _: bool) {
        self.started_ns[worker].store(processor_ns(), Relaxed);
    }

    fn ends(&self, worker: usize, _: usize, _: &BoundCall) {
        let until =
            self.started_ns[worker].load(Relaxed) + SHARE_NS + if worker == self.slow { SHARE_NS / 5 } else { 0 };
        while processor_ns() < until {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn a_worker_that_is_a_fifth_slower_is_named_as_the_one_that_is_waited_for() {
    let _alone = alone();
    let mut engine = engine("selected");
    let beside = Fifth { slow: 1, started_ns: [AtomicU64::new(0), AtomicU64::new(0)] };
    let timeline = traced(&mut engine, (Phase::Decode, 10, 4), &mut greedy, &beside);
    if !sees(&timeline) {
        return;
    }
    let summary = &timeline.summary;
    // Both compute what they were made to, on a processor: the ratio holds on any machine.
    let [even, slow] = [0, 1].map(|worker| summary.lanes[worker].occupation.busy_ns as f64);
    assert!((slow / even - 1.2).abs() < 0.05, "{even} and {slow}");
    let (waited, disturbed) = (lost_to(&timeline, LostTo::SlowestWorker), lost_to(&timeline, LostTo::Descheduled));
    if waited < 2 * disturbed {
        println!("skipped the rest: other processes took {disturbed} ns, so that either worker may come last");
        return;
    }
    assert_eq!(own_loss(&timeline), LostTo::SlowestWorker, "{:?}", summary.lost);
    let for_slow = summary.stragglers.iter().filter(|straggler| straggler.worker == "worker 1");
    let for_slow: u64 = for_slow.map(|straggler| straggler.waited_ns).sum();
    assert!(2 * for_slow > waited, "{:?}", summary.stragglers);
    let worst = &summary.stragglers[0];
    assert_eq!(worst.worker, "worker 1", "{:?}", summary.stragglers);
    assert!(summary.operators.iter().any(|row| row.operator == worst.operator), "{worst:?}");
}

/// Weights in files, of which worker 1 reads every row after each of its calls: the engine itself runs on packed copies in memory
/// that has no file, so that dropping its model's files from the page cache takes nothing from it.
struct Mapped {
    files: Vec<File>,
    tensors: Vec<Tensor>,
    drops: AtomicBool,
}

impl Mapped {
    fn open(folder: &Path) -> Mapped {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures/qwen3-sharded-untied");
        let mut files = Vec::new();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            std::fs::copy(entry.path(), &path).unwrap();
            if path.extension().is_some_and(|extension| extension == "safetensors") {
                let file = File::open(path).unwrap();
                // What is not on the disk yet stays in the cache.
                file.sync_all().unwrap();
                files.push(file);
            }
        }
        let source = ModelSource::parse(folder.to_str().unwrap()).unwrap();
        let model = weights::open(&source, &OpenOptions::default()).unwrap();
        let names: Vec<String> = model.tensor_names().map(str::to_owned).collect();
        let tensors = names.iter().map(|name| model.tensor(name).unwrap()).collect();
        Mapped { files, tensors, drops: AtomicBool::new(false) }
    }

    /// Out of this process, then out of the page cache.
    fn drop_pages(&self) {
        self.tensors.iter().for_each(Tensor::release_pages);
        for file in &self.files {
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

impl Observer for Mapped {
    fn ends(&self, worker: usize, _: usize, _: &BoundCall) {
        if worker != 1 {
            return;
        }
        if self.drops.load(Relaxed) {
            self.drop_pages();
        }
        for tensor in &self.tensors {
            let mut row = vec![0.0; tensor.cols()];
            (0..tensor.rows()).for_each(|number| tensor.read_f32(number, &mut row));
            std::hint::black_box(&row);
        }
    }
}

#[test]
fn weights_dropped_from_the_page_cache_are_page_faults_of_the_worker_that_reads_them() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mapped = Mapped::open(folder.path());
    let mut engine = engine("selected");
    let prompt = prompt(10, engine.config().vocab_size, &engine.config().eos_tokens, 3);
    let request = TimelineRequest {
        prompt: &prompt,
        output_tokens: 6,
        logits: LogitsMode::Last,
        phase: Phase::Decode,
        warmup: 1,
        frequency_hz: Some(997),
        overhead_rounds: 0,
    };
    let resident = trace_of(&mut engine, &request, &mut greedy, &mapped, &|_| {});
    // They are there in the warm-up, and dropped from then on.
    let drop = |what: &str| mapped.drops.store(what == "traced request", Relaxed);
    let dropped = trace_of(&mut engine, &request, &mut greedy, &mapped, &drop);
    if !sees(&dropped) {
        return;
    }
    let faults = |timeline: &Timeline| {
        let counter = timeline.trace.counters.iter().find(|counter| counter.name == "page faults");
        counter.map_or(0.0, |counter| counter.points.last().unwrap().1)
    };
    let calls: u64 = dropped.summary.operators.iter().map(|row| row.calls[1]).sum();
    assert!(faults(&dropped) >= faults(&resident) + calls as f64, "{} and {}", faults(&resident), faults(&dropped));
    assert!(lost_to(&dropped, LostTo::PageFault) > lost_to(&resident, LostTo::PageFault));
    assert_eq!(own_loss(&dropped), LostTo::PageFault, "{:?}", dropped.summary.lost);
    let lanes = &dropped.summary.lanes;
    assert!(lost(&lanes[1], Cause::PageFault) > lost(&lanes[0], Cause::PageFault), "{lanes:?}");
    assert!(lanes[0].awaited.iter().any(|time| time.what == Awaited::PageFault), "{:?}", lanes[0].awaited);
    // Each is in the trace where it was met: on worker 1's lane, and its time in what that thread lost.
    let helper = dropped.trace.lanes[2].kind.thread().unwrap();
    let met = dropped.trace.lanes[2].instants.iter().filter(|instant| instant.category == Category::PageFault);
    assert!(met.count() as u64 >= calls);
    assert!(dropped.trace.lost_by(helper).iter().any(|lost| lost.why == LossKind::PageFault));
}

#[test]
fn what_tracing_costs_is_measured_step_by_step_in_balanced_order() {
    let _alone = alone();
    let mut engine = engine("selected");
    let prompt = prompt(10, engine.config().vocab_size, &engine.config().eos_tokens, 3);
    // 21 decode steps hold two blocks of eight; of 4, two requests make one; a prefill is one sample.
    for (phase, output_tokens, samples) in [(Phase::Decode, 22, 48), (Phase::Request, 5, 24), (Phase::Prefill, 2, 24)] {
        let request = TimelineRequest {
            prompt: &prompt,
            output_tokens,
            logits: LogitsMode::Last,
            phase,
            warmup: 1,
            frequency_hz: Some(997),
            overhead_rounds: 3,
        };
        let timeline = trace_of(&mut engine, &request, &mut greedy, &Plain, &|_| {});
        let overhead = timeline.overhead.known().unwrap();
        let unit = if phase == Phase::Prefill { OverheadUnit::Prefill } else { OverheadUnit::DecodeStep };
        assert_eq!((overhead.samples.len(), overhead.of), (samples, unit), "{phase:?}");
        for (number, sample) in overhead.samples.iter().enumerate() {
            assert_eq!(sample.traced, number.count_ones() % 2 == 1, "{phase:?}: {number}");
            assert!(sample.wall_s > 0.0);
        }
        assert!(overhead.low.value() <= overhead.share.value() && overhead.share.value() <= overhead.high.value());
        // The traced request itself is complete: nothing of the switching is in it.
        assert!(timeline.summary.coverage.is_complete(), "{:?}", timeline.summary.coverage);
    }
}

/// Touches fresh pages after each call of worker 1.
struct Storm;

const STORM_PAGES: usize = 512;

impl Observer for Storm {
    fn ends(&self, worker: usize, _: usize, _: &BoundCall) {
        if worker == 1 {
            let mut fresh = MmapMut::map_anon(STORM_PAGES * 4096).unwrap();
            // Huge pages would make one fault of many.
            fresh.advise(Advice::NoHugePage).unwrap();
            fresh.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            std::hint::black_box(&fresh);
        }
    }
}

#[test]
fn a_storm_of_page_faults_is_counted_and_named() {
    let _alone = alone();
    let mut engine = engine("selected");
    let timeline = traced(&mut engine, (Phase::Decode, 10, 12), &mut greedy, &Storm);
    if !sees(&timeline) {
        return;
    }
    let calls: u64 = timeline.summary.operators.iter().map(|row| row.calls[1]).sum();
    let faults = timeline.trace.counters.iter().find(|counter| counter.name == "page faults").unwrap();
    // So many that the kernel's ring may overflow: what was lost is counted.
    let counted = faults.points.last().unwrap().1 + *timeline.sampling.lost.known().unwrap() as f64;
    assert!(counted >= (calls * STORM_PAGES as u64) as f64, "{counted}");
    if std::fs::read_to_string("/proc/kallsyms").unwrap_or_default().starts_with("0000000000000000") {
        println!(
            "skipped the rest: the kernel's functions have no addresses; run with kernel.kptr_restrict = 0 or as root"
        );
        return;
    }
    let lanes = &timeline.summary.lanes;
    assert!(lost(&lanes[1], Cause::PageFault) > lost(&lanes[0], Cause::PageFault), "{lanes:?}");
    assert!(lost(&lanes[1], Cause::PageFault) > 0.0);
    let waited = lanes[0].awaited.iter().find(|time| time.what == Awaited::PageFault);
    assert!(waited.is_some_and(|time| time.wall_ns > 0), "{:?}", lanes[0].awaited);
}

/// Processes that only spin, two per processor; they end with the test.
struct Hogs(Vec<Child>);

impl Hogs {
    fn start() -> Hogs {
        let count = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap();
        Hogs((0..count).map(|_| spin()).collect())
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}

#[test]
fn processes_that_take_the_processors_are_named() {
    let _alone = alone();
    let mut engine = engine("selected");
    let _hogs = Hogs::start();
    // Each call takes long enough to lose its processor in.
    let beside = Slow { worker: 1, extra: Duration::from_millis(2) };
    let timeline = traced(&mut engine, (Phase::Decode, 10, 12), &mut greedy, &beside);
    if !sees(&timeline) {
        return;
    }
    let lane = &timeline.summary.lanes[1];
    let wall = timeline.summary.wall_ns as f64 / 1e9;
    assert!(lost(lane, Cause::Descheduled) > 0.1 * wall, "{:?}", lane.occupation);
    assert_eq!(timeline.summary.lost[0].to, LostTo::Descheduled, "{:?}", timeline.summary.lost);
}
