//! One request traced from outside: what every worker and the main thread did when, with CPU samples and counters; what that
//! comes to; and what tracing cost. Not here: the record's types (`record::timeline`), and what is printed.

mod assemble;
mod counters;
mod notes;
mod overhead;
mod request;

pub(crate) use notes::ThreadIds;
pub use request::MainThread;

use crate::clock;
use crate::error::Error;
use crate::sampler::{Sampled, Sampler};
use assemble::Parts;
use counters::{Counters, Quantities};
use model::Engine;
use notes::{Notes, Plan, Planner, Silent};
use ops::{Both, Observer, Traced, Until};
use record::timeline::{
    PlannedCalls, SamplingUse, TimelineSummary, TracingOverhead, from_samples, from_steal, from_switches, summarise,
};
use record::trace::Trace;
use record::{Known, LogitsMode, Phase, Reading, Unit};
use request::Run;
use std::sync::Arc;

/// Allocations from this size on are shown: a page of huge memory's worth is, a string is not.
pub const ALLOCATION_BYTES: usize = 64 << 10;

/// The request to trace.
#[derive(Clone, Copy)]
pub struct TimelineRequest<'a> {
    pub prompt: &'a [u32],
    /// Tokens to generate, at least two.
    pub output_tokens: usize,
    pub logits: LogitsMode,
    /// Which part of the request is traced; a prefill ends with its token.
    pub phase: Phase,
    /// Complete requests before the traced one, at least one.
    pub warmup: usize,
    /// CPU samples per second and thread; `None` for spans alone.
    pub frequency_hz: Option<u64>,
    /// How often four requests (without tracing, with, with, without) say what tracing costs; 0 for not at all.
    pub overhead_rounds: usize,
}

/// What a traced request gives.
pub struct Timeline {
    pub trace: Trace,
    pub summary: TimelineSummary,
    /// Time on a processor of the main thread, worker 0's among it.
    pub main_thread_cpu: Reading,
    /// Without what the tracer itself holds.
    pub peak_allocation: Reading,
    pub kv_allocation: Reading,
    pub overhead: Known<TracingOverhead>,
    pub sampling: SamplingUse,
    /// Generated ids.
    pub tokens: Vec<u32>,
}

/// Runs the request `warmup` times, then traced, then in alternation with and without tracing. `beside` walks along in every
/// one of them: nothing, for a measurement. `progress(done, total, what)` is called between requests.
///
/// # Errors
/// Fewer than two tokens, a step that fails, an interruption, or a trace that breaks its own rules.
pub fn timeline<O: Observer>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    main: &mut MainThread<'_>,
    beside: &O,
    progress: &dyn Fn(usize, usize, &str),
) -> Result<Timeline, Error> {
    if request.output_tokens < 2 {
        return Err(Error::OutputTooShort(request.output_tokens));
    }
    let total = request.warmup.max(1) + 1 + 4 * request.overhead_rounds;
    progress(0, total, "warm-up request");
    clock::require_finite(engine, request.prompt, request.output_tokens, request.logits)?;
    let plan = plan(engine, request, main, beside)?;
    for round in 1..request.warmup {
        progress(round, total, "warm-up request");
        untraced(engine, request, main, beside)?;
    }
    progress(total - 1 - 4 * request.overhead_rounds, total, "traced request");
    let acquired = acquire(engine, request, main, beside, &plan)?;
    let mut timeline = finish(request, &plan, acquired)?;
    timeline.overhead = overhead::measure(request.overhead_rounds, |traced, done| {
        progress(total - 4 * request.overhead_rounds + done, total, "what tracing costs");
        let run = if traced {
            acquire(engine, request, main, beside, &plan)?.run
        } else {
            untraced(engine, request, main, beside)?
        };
        let (start, end) = run.window(request.phase);
        Ok((end.wall_ns - start.wall_ns) as f64 / 1e9)
    })?;
    Ok(timeline)
}

/// The first request: which calls its passes make, and which threads the workers are.
fn plan<O: Observer>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    main: &mut MainThread<'_>,
    beside: &O,
) -> Result<Plan, Error> {
    let threads = ThreadIds::new(engine.options().threads.max(1));
    let cancelled = Arc::clone(&engine.options().cancelled);
    let until = Until(&cancelled);
    let mut planner = Planner::default();
    request::run(engine, request, main, &Both(beside, &Both(&until, &threads)), &mut planner)?;
    Ok(planner.plan(&threads))
}

fn untraced<O: Observer>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    main: &mut MainThread<'_>,
    beside: &O,
) -> Result<Run, Error> {
    let cancelled = Arc::clone(&engine.options().cancelled);
    request::run(engine, request, main, &Both(beside, &Until(&cancelled)), &mut Silent)
}

/// Everything that was noted during one request.
struct Acquired {
    run: Run,
    notes: Notes,
    traced: Traced,
    sampled: Sampled,
    quantities: Quantities,
    allocations: Vec<ops::memory::Allocation>,
    /// Allocations that found no room.
    allocations_dropped: u64,
    peak_bytes: usize,
}

/// One request with everything watched. What watching needs is made before it and read after it.
fn acquire<O: Observer>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    main: &mut MainThread<'_>,
    beside: &O,
    plan: &Plan,
) -> Result<Acquired, Error> {
    let before = ops::memory::current_bytes();
    let traced = Traced::new(plan.threads().len(), plan.calls());
    let mut notes = Notes::new(plan, request);
    let cancelled = Arc::clone(&engine.options().cancelled);
    // Before the tracer's own threads are there.
    let threads: Vec<u32> = crate::sampler::threads().iter().map(|(number, _)| *number).collect();
    let counters = Counters::start().map_err(Error::Thread)?;
    let sampler = match request.frequency_hz {
        Some(frequency_hz) => Sampler::start(&threads, frequency_hz),
        None => Sampler::none("samples were not asked for"),
    };
    let own = ops::memory::current_bytes().saturating_sub(before);
    ops::memory::note_from(ALLOCATION_BYTES);
    ops::memory::reset_peak();
    let until = Until(&cancelled);
    let run = request::run(engine, request, main, &Both(beside, &Both(&until, &traced)), &mut notes);
    let peak_bytes = ops::memory::peak_bytes().saturating_sub(own);
    let (allocations, allocations_dropped) = ops::memory::noted();
    let (sampled, quantities) = (sampler.stop(), counters.stop());
    Ok(Acquired { run: run?, notes, traced, sampled, quantities, allocations, allocations_dropped, peak_bytes })
}

/// The trace and what it comes to.
fn finish(request: &TimelineRequest<'_>, plan: &Plan, acquired: Acquired) -> Result<Timeline, Error> {
    let Acquired { run, notes, mut traced, sampled, quantities, allocations, allocations_dropped, peak_bytes } =
        acquired;
    let (start, end) = run.window(request.phase);
    let window = (start.wall_ns, end.wall_ns);
    let (trace, passes) = assemble::trace(Parts {
        plan,
        window,
        notes: &notes,
        traced: &mut traced,
        sampled: &sampled,
        quantities: &quantities,
        allocations: &allocations,
        allocations_dropped,
    });
    let faults: Vec<_> = sampled.faults.known().into_iter().flatten().map(|fault| fault.evidence()).collect();
    let off = sampled.switches.known().map_or(&[][..], Vec::as_slice);
    let mut lost = from_switches(&trace, off, &faults);
    lost.extend(from_samples(&trace.samples, &trace.names));
    lost.extend(from_steal(&quantities.steal(plan.threads())));
    let planned: Known<Vec<PlannedCalls>> = Known::Is(plan.planned(passes));
    let summary = summarise(&trace, &lost, &planned)?;
    let sampling = SamplingUse {
        rung: sampled.rung,
        why: sampled.why.clone(),
        frequency_hz: sampled.frequency_hz.clone(),
        samples: trace.samples.samples.len() as u64,
        lost: sampled.lost.clone(),
    };
    Ok(Timeline {
        trace,
        summary,
        main_thread_cpu: Reading::measured((end.cpu_ns - start.cpu_ns) as f64 / 1e9, Unit::Seconds, 1),
        peak_allocation: Reading::measured(peak_bytes as f64, Unit::Bytes, 1),
        kv_allocation: Reading::measured(run.kv_bytes as f64, Unit::Bytes, 1),
        overhead: overhead::not_measured(),
        sampling,
        tokens: run.tokens,
    })
}
