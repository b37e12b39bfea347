//! A capture: one steady stretch of exactly one step, run again and again, with every worker's calls, CPU samples of every thread
//! and counters. Not here: what is done with it (`reduce` reads the files that `capture/package.rs` writes).

mod counters;
mod executables;
mod overhead;
mod package;
mod perf_counters;
mod precision;
mod profiled;
mod room;
mod simulated;
mod stretch;

pub use profiled::{ProfiledPass, profiled_pass, write_sources};
pub use simulated::{on_valgrind, simulated_pass};

use crate::conditions::bound_kernels;
use crate::error::Error;
use crate::sampler::{Sampled, Symbols};
use crate::seeded::{Seeded, seeded};
use crate::timeline::ThreadIds;
use crate::wiring_plan::{operands, source};
use model::{Engine, Prepared};
use ops::{Both, Traced, Until};
use record::capture::Ended;
use record::capture::raw::{KernelFunction, RawCall, RawCounter, RawStep, RawThread};
use record::timeline::SamplingUse;
use record::{BoundKernel, Known, Reading, Workload};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stretch::{Limit, Setup, Stretch};

/// Passes with spans and nothing else, that tell how long one takes and which kernel has which share.
const PILOT: usize = 5;
/// Samples per thread that the sampler has room for.
const MOST_SAMPLES: f64 = 50_000.0;
/// Longest stretch where the precision decides.
const MOST_SECONDS: f64 = 30.0;
/// Spans of the longest stretch where the precision decides: about 200 MB of trace. A tiny model has thousands in a millisecond.
const MOST_SPANS: usize = 4_000_000;
/// Room beyond what the pilot says, because later passes may be faster or samples rarer.
const MARGIN: f64 = 1.3;

/// How much to capture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extent {
    /// So many passes.
    Steps(usize),
    /// At least so long.
    Seconds(f64),
    /// Until the widest 95 % interval of a kernel's share of the samples has this half-width, as far as can be told before.
    HalfWidth(f64),
}

/// What to capture.
pub struct CaptureCase<'a> {
    /// Phase, capacity and logits mode come from here; decode or prefill.
    pub workload: &'a Workload,
    /// As for a replay: a prefill runs them all, a decode pass the last one after a real prefill of the others.
    pub tokens: &'a [u32],
    /// Passes of the same shape before everything else, at least one.
    pub warmup: usize,
    pub extent: Extent,
    /// CPU samples per second and thread.
    pub frequency_hz: u64,
    /// Whether the processor's and the operating system's counters are read.
    pub counters: bool,
    /// How often four blocks of passes (plain, captured, captured, plain) tell what capturing costs; 0: not at all.
    pub overhead_rounds: usize,
    /// Where the trace's directory will be: the room there is looked at before the stretch.
    pub directory: &'a Path,
}

/// A captured stretch, in memory.
pub struct Capture {
    pub kernels: Vec<BoundKernel>,
    /// Passes before the stretch.
    pub warmup: u64,
    pub ended: Ended,
    /// Half-width that was reached, if one was asked for.
    pub precision: Known<f64>,
    pub sampling: SamplingUse,
    pub overhead: Known<Reading>,
    pub steps: Vec<RawStep>,
    pub counters: Vec<RawCounter>,
    calls: Vec<RawCall>,
    threads: Vec<RawThread>,
    functions: Vec<KernelFunction>,
    sampled: Sampled,
    traced: Traced,
    /// Of the monotonic clock, what spans count from.
    origin_ns: u64,
    workers: usize,
}

impl Capture {
    /// From the first pass's start to the last one's end.
    pub fn wall_ns(&self) -> u64 {
        match (self.steps.first(), self.steps.last()) {
            (Some(first), Some(last)) => last.end_ns - first.start_ns,
            _ => 0,
        }
    }

    /// Calls of one pass.
    pub fn calls(&self) -> &[RawCall] {
        &self.calls
    }
}

/// Prepares and warms the pass, then runs it again and again with nothing in between. `progress(done, total, what)` is called
/// between the parts.
///
/// # Errors
/// A pass that fails, an interruption before anything was captured, too little room on the disk or in memory for what was asked
/// for, more samples than the sampler holds.
pub fn capture(
    engine: &mut Engine,
    case: &CaptureCase<'_>,
    progress: &dyn Fn(usize, usize, &str),
) -> Result<Capture, Error> {
    let parts = 3 + case.overhead_rounds;
    progress(0, parts, "warm-up");
    let Seeded { mut cache, tokens, keep } = seeded(engine, case.workload, case.tokens)?;
    let cancelled = Arc::clone(&engine.options().cancelled);
    let workers = engine.options().threads.max(1);
    let mut step = engine.prepare(&mut cache, tokens, keep)?;
    let calls = calls(&step);
    let threads = ThreadIds::new(workers);
    let until = Until(&cancelled);
    let warmup = case.warmup.max(1);
    for _ in 0..warmup {
        step.run(&Both(&until, &threads))?;
    }
    let setup = Setup {
        calls: calls.len(),
        workers: threads.threads(),
        threads: crate::sampler::threads().iter().map(|(number, _)| *number).collect(),
        frequency_hz: case.frequency_hz,
        counters: case.counters,
        cancelled: &cancelled,
    };
    progress(1, parts, "pilot");
    let pilot = stretch::spans_alone(&mut step, &setup, PILOT);
    if setup.is_cancelled() {
        return Err(model::Error::Interrupted.into());
    }
    let plan = plan(case, &calls, &setup, pilot)?;
    let need = room::Need {
        spans: plan.limit.steps as u64 * (calls.len() * workers) as u64,
        steps: plan.limit.steps as u64,
        samples: (plan.seconds * case.frequency_hz as f64 * setup.threads.len() as f64) as u64,
    };
    room::check(need, case.directory)?;

    progress(2, parts, "stretch");
    let mut stretch = stretch::captured(&mut step, &setup, plan.limit);
    if stretch.steps.is_empty() {
        return Err(model::Error::Interrupted.into());
    }
    let (first, last) = (stretch.steps[0].start_ns, stretch.steps[stretch.steps.len() - 1].end_ns);
    stretch.sampled.samples.retain(|sample| (first..=last).contains(&sample.at_ns));
    let precision = precision(case.extent, &calls, &setup, &mut stretch);
    let overhead = overhead::measure(&mut step, &setup, case.overhead_rounds, &|done| {
        progress(3 + done, parts, "what capturing costs");
    });
    let kernels = bound_kernels(case.workload.phase, step.bound());
    let ended = match (stretch.interrupted, plan.cut || stretch.full) {
        (true, _) => Ended::Interrupted,
        (false, true) => Ended::AtMost,
        (false, false) => Ended::AsAsked,
    };
    let Stretch { traced, origin_ns, steps, sampled, counters, .. } = stretch;
    Ok(Capture {
        kernels,
        warmup: (warmup + PILOT) as u64,
        ended,
        precision,
        sampling: SamplingUse {
            rung: sampled.rung,
            why: sampled.why.clone(),
            frequency_hz: sampled.frequency_hz.clone(),
            samples: sampled.samples.len() as u64,
            lost: sampled.lost.clone(),
        },
        overhead,
        steps,
        counters,
        calls,
        threads: named(&setup),
        functions: functions(&sampled),
        sampled,
        traced,
        origin_ns,
        workers,
    })
}

/// The program's calls, with the least that each moves and computes.
fn calls(step: &Prepared<'_, '_>) -> Vec<RawCall> {
    let (bound, sequences) = (step.bound(), step.step_shape());
    let planned = bound.program().calls.iter().zip(bound.calls()).enumerate();
    let call = |(index, (planned, call)): (usize, (&ops::Call, &ops::BoundCall))| {
        let shape = bound.program().call_shape(planned, &sequences);
        let cost = bound.cost(index, &sequences);
        let (inputs, outputs, weights) = operands(&shape);
        RawCall {
            call: index as u32,
            layer: call.layer.map(|layer| layer as u64),
            slot: call.slot.to_owned(),
            group: call.group.name().to_owned(),
            operator: call.kernel.operator.to_owned(),
            kernel: call.kernel.label(),
            source: source(call.kernel),
            inputs,
            outputs,
            weights,
            bytes_read: cost.bytes_read,
            bytes_written: cost.bytes_written,
            flops: cost.flops,
        }
    };
    planned.map(call).collect()
}

/// How long the stretch may be.
struct Plan {
    limit: Limit,
    /// About, by the pilot.
    seconds: f64,
    /// More was asked for.
    cut: bool,
}

fn plan(
    case: &CaptureCase<'_>,
    calls: &[RawCall],
    setup: &Setup<'_>,
    mut pilot: stretch::Spans,
) -> Result<Plan, Error> {
    let pass_s = pilot.fastest_s();
    let most_s = MOST_SAMPLES / case.frequency_hz.max(1) as f64;
    let (steps, time, cut) = match case.extent {
        Extent::Steps(steps) => (steps, None, false),
        Extent::Seconds(seconds) => {
            ((MARGIN * seconds / pass_s).ceil() as usize + 1, Some(Duration::from_secs_f64(seconds)), false)
        }
        Extent::HalfWidth(half_width) => {
            let busy = precision::Busy::of_spans(calls, &mut pilot.traced, setup.workers.len());
            let seconds = busy.seconds_for(half_width, case.frequency_hz as f64, pilot.seconds()) * MARGIN;
            let most = MOST_SECONDS.min(most_s / MARGIN);
            let wanted = (seconds.min(most) / pass_s).ceil() as usize;
            let room = MOST_SPANS / (calls.len() * setup.workers.len()).max(1);
            (wanted.min(room).max(PILOT), None, seconds > most || wanted > room)
        }
    };
    let seconds = time.map_or(steps as f64 * pass_s, |time: Duration| time.as_secs_f64());
    if seconds > most_s && !matches!(case.extent, Extent::HalfWidth(_)) {
        return Err(Error::TooManySamples { seconds, frequency_hz: case.frequency_hz, most: MOST_SAMPLES as u64 });
    }
    Ok(Plan { limit: Limit { steps, time }, seconds, cut })
}

/// What became of the precision that was asked for.
fn precision(extent: Extent, calls: &[RawCall], setup: &Setup<'_>, stretch: &mut Stretch) -> Known<f64> {
    let Extent::HalfWidth(asked) = extent else {
        return Known::unavailable(
            "the stretch's length was given, not its precision",
            "`hourglass capture` without --steps and --seconds",
        );
    };
    let reached = precision::widest(calls, setup, &stretch.sampled.samples, &mut stretch.traced, stretch.origin_ns);
    match reached {
        Some(reached) if reached <= asked => Known::Is(reached),
        Some(reached) => Known::unavailable(
            format!("{asked} was asked for, {reached:.4} was reached with {} samples", stretch.sampled.samples.len()),
            "give --seconds, or a higher --frequency",
        ),
        None => Known::unavailable("no sample is inside a kernel", "see why in `sampling`; give --seconds"),
    }
}

/// Every thread that was sampled, by number.
fn named(setup: &Setup<'_>) -> Vec<RawThread> {
    let now = crate::sampler::threads();
    let one = |&thread: &u32| RawThread {
        thread,
        name: now.iter().find(|(number, _)| *number == thread).map_or_else(String::new, |(_, name)| name.clone()),
        worker: setup.workers.iter().position(|worker| *worker == thread).map(|worker| worker as u32),
    };
    setup.threads.iter().map(one).collect()
}

/// The kernel's functions that samples are in; resolved now, because its addresses change at the next boot.
fn functions(sampled: &Sampled) -> Vec<KernelFunction> {
    let symbols = Symbols::new();
    let kernel = sampled.samples.iter().flat_map(|sample| &sample.stack).filter(|address| address.kernel);
    let mut found: Vec<KernelFunction> = kernel
        .filter_map(|address| symbols.kernel_function(*address))
        .map(|(start, name)| KernelFunction { start, name: name.to_owned() })
        .collect();
    found.sort_unstable_by_key(|function| function.start);
    found.dedup_by_key(|function| function.start);
    found
}
