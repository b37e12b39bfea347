//! One request traced from outside: what every worker and the main thread did when, with CPU samples and counters; what that
//! comes to; and what tracing cost. Not here: the record's types (`record::timeline`), and what is printed.

mod assemble;
mod counters;
mod launched;
mod notes;
mod overhead;
mod request;
mod walked;

pub(crate) use notes::ThreadIds;
pub use request::MainThread;

use crate::clock;
use crate::error::Error;
use crate::sampler::{Sampled, Sampler};
use assemble::Parts;
use counters::{Counters, Quantities};
use model::Engine;
use notes::{Notes, Plan, Planner, Silent};
use ops::recording::{Record, Recording};
use ops::{Both, Device, Observer, Traced, Until};
use record::timeline::{
    DeviceTrace, OverheadSample, OverheadUnit, PlannedCalls, SamplingUse, TimelineSummary, TracingOverhead,
    from_samples, from_steal, from_switches, summarise,
};
use record::trace::Trace;
use record::{Coverage, Known, LogitsMode, Phase, Reading, Unit};
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
    /// Requests in which decode steps with and without tracing alternate, to say what it costs, or as often eight prefills, four
    /// with it; 0 for not at all.
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
    pub device: Known<DeviceTrace>,
    /// Generated ids.
    pub tokens: Vec<u32>,
}

/// Runs the request `warmup` times, then traced, then with tracing switched on and off. `beside` walks along in every one of
/// them: nothing, for a measurement. `progress(done, total, what)` is called between requests.
///
/// # Errors
/// Fewer than two tokens, a step that fails, an interruption, a device without a profiler, or a trace that breaks its own rules.
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
    let rounds = request.overhead_rounds;
    let total = request.warmup.max(1) + 1 + rounds;
    progress(0, total, "warm-up request");
    clock::require_finite(engine, request.prompt, request.output_tokens, request.logits)?;
    let plan = plan(engine, request, main, beside)?;
    for round in 1..request.warmup {
        progress(round, total, "warm-up request");
        untraced(engine, request, main, beside)?;
    }
    // Before the device's profiler is there: that alone makes every launch longer.
    let timed = match engine.options().device.clone() {
        Some(device) => Some(timed_graphs(engine, request, main, beside, &plan, &device)?),
        None => None,
    };
    progress(total - 1 - rounds, total, "traced request");
    let acquired = acquire(engine, request, main, beside, &plan, plan.calls())?;
    let mut timeline = finish(request, &plan, acquired)?;
    if let (Some((steps, graphs)), Known::Is(trace)) = (timed, &mut timeline.device) {
        trace.pauses = launched::pauses(&steps, &graphs, trace.gaps_in_graph_ns);
    }
    timeline.overhead = cost(engine, request, main, beside, &plan, &|round| {
        progress(total - rounds + round, total, "what tracing costs");
    })?;
    Ok(timeline)
}

/// What tracing costs; `round(n)` is called before each.
fn cost<O: Observer>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    main: &mut MainThread<'_>,
    beside: &O,
    plan: &Plan,
    round: &dyn Fn(usize),
) -> Result<Known<TracingOverhead>, Error> {
    let (of, units) = match request.phase {
        Phase::Prefill => (OverheadUnit::Prefill, 1),
        Phase::Request | Phase::Decode => (OverheadUnit::DecodeStep, request.output_tokens - 1),
    };
    // Whole blocks: where a request has less, several make a round.
    let per_round = (units / overhead::BLOCK).max(1) * overhead::BLOCK;
    let wanted = request.overhead_rounds * per_round;
    let mut samples: Vec<OverheadSample> = Vec::with_capacity(wanted);
    let cancelled = Arc::clone(&engine.options().cancelled);
    let until = Until(&cancelled);
    let of_engine = engine.options().device.clone();
    let device = of_engine.as_ref();
    let mut switch = overhead::Switch::default();
    while samples.len() < wanted {
        if samples.len().is_multiple_of(per_round) {
            round(samples.len() / per_round);
        }
        let traced = Traced::new(plan.workers(), plan.calls());
        let mut notes = Notes::new(plan, request);
        let mut refused = None;
        let tools = Tools::start(request).inspect_err(|_| off(device))?;
        tools.switch(false);
        let plain = Both(beside, &until);
        let mut next = |wall_ns: Option<u64>| {
            // Whatever it does is between two units, outside their clocks.
            let counts = switch.counts(wall_ns.is_some());
            if let Some(wall_ns) = wall_ns.filter(|_| counts) {
                let traced = overhead::traced(samples.len());
                samples.push(OverheadSample { traced, wall_s: wall_ns as f64 / 1e9 });
            }
            let with = overhead::traced(samples.len());
            let goes_on = samples.len() < wanted;
            tools.switch(with && goes_on);
            if let Some(device) = device
                && switch.turns(with && goes_on)
            {
                refused = record(device, if with && goes_on { Record::Launches } else { Record::Nothing }).err();
            }
            (goes_on && refused.is_none()).then_some(with)
        };
        let observers = (&plain, &Both(beside, &Both(&until, &traced)));
        let ran = request::alternate(engine, request, main, observers, &mut notes, &mut next);
        tools.stop();
        let ran = ran.and(refused.map_or(Ok(()), Err));
        ran.inspect_err(|_| off(device))?;
    }
    Ok(overhead::estimate(of, samples))
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
    Ok(match engine.options().device {
        Some(_) => planner.plan_of_device(),
        None => planner.plan(&threads),
    })
}

/// A request's steps, with whether they count.
type Steps = Vec<((u64, u64), bool)>;

/// A request in which whole graphs are timed, not their kernels: that costs next to nothing, so its steps are as long as those of a
/// request that nobody watches. What of a step is in no graph the device was idle for.
fn timed_graphs<O: Observer>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    main: &mut MainThread<'_>,
    beside: &O,
    plan: &Plan,
    device: &Arc<dyn Device>,
) -> Result<(Steps, Recording), Error> {
    let mut notes = Notes::new(plan, request);
    let cancelled = Arc::clone(&engine.options().cancelled);
    record(device, Record::Graphs)?;
    let run = request::run(engine, request, main, &Both(beside, &Until(&cancelled)), &mut notes);
    let recording = recorded(device)?;
    run?;
    Ok((notes.steps(request.phase), recording))
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

/// What watches from other threads, or in the kernel.
struct Tools {
    counters: Counters,
    sampler: Sampler,
}

impl Tools {
    fn start(request: &TimelineRequest<'_>) -> Result<Tools, Error> {
        // Before the tracer's own threads are there.
        let threads: Vec<u32> = crate::sampler::threads().iter().map(|(number, _)| *number).collect();
        let counters = Counters::start().map_err(Error::Thread)?;
        let sampler = match request.frequency_hz {
            Some(frequency_hz) => Sampler::start(&threads, frequency_hz),
            None => Sampler::none("samples were not asked for"),
        };
        Ok(Tools { counters, sampler })
    }

    /// Whether they watch from now on; forgets the allocations that were noted.
    fn switch(&self, on: bool) {
        self.sampler.switch(on);
        self.counters.switch(on);
        ops::memory::note_from(if on { ALLOCATION_BYTES } else { usize::MAX });
    }

    fn stop(self) -> (Sampled, Quantities) {
        (self.sampler.stop(), self.counters.stop())
    }
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
    /// What a device did, and the most bytes of its memory that were taken.
    recorded: Option<(Recording, usize)>,
}

/// Switches a device's recording.
fn record(device: &Arc<dyn Device>, what: Record) -> Result<(), Error> {
    device.record(what).map_err(Error::of_device(device))
}

/// Stops recording where an error is on its way, which says more than that this failed too.
fn off(device: Option<&Arc<dyn Device>>) {
    if let Some(device) = device {
        let _ = record(device, Record::Nothing);
    }
}

/// What was recorded since; recording is stopped.
fn recorded(device: &Arc<dyn Device>) -> Result<Recording, Error> {
    record(device, Record::Nothing)?;
    device.recorded().map_err(Error::of_device(device))
}

/// One request with everything watched. What watching needs is made before it and read after it: room for `spans` of each worker.
fn acquire<O: Observer>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    main: &mut MainThread<'_>,
    beside: &O,
    plan: &Plan,
    spans: usize,
) -> Result<Acquired, Error> {
    let before = ops::memory::current_bytes();
    let traced = Traced::new(plan.workers(), spans);
    let mut notes = Notes::new(plan, request);
    let cancelled = Arc::clone(&engine.options().cancelled);
    let of_engine = engine.options().device.clone();
    let device = of_engine.as_ref();
    if let Some(device) = device {
        record(device, Record::Launches)?;
        // What the profiler makes when it meets kernels and graphs for the first time belongs to no request.
        let warm = untraced(engine, request, main, beside).and_then(|_| record(device, Record::Launches));
        warm.inspect_err(|_| off(Some(device)))?;
        device.reset_peak();
    }
    let tools = Tools::start(request).inspect_err(|_| off(device))?;
    let own = ops::memory::current_bytes().saturating_sub(before);
    tools.switch(true);
    ops::memory::reset_peak();
    let until = Until(&cancelled);
    let run = request::run(engine, request, main, &Both(beside, &Both(&until, &traced)), &mut notes);
    let peak_bytes = ops::memory::peak_bytes().saturating_sub(own);
    let (allocations, allocations_dropped) = ops::memory::noted();
    let (sampled, quantities) = tools.stop();
    let recorded = match device {
        Some(device) => Some((recorded(device)?, device.peak_bytes())),
        None => None,
    };
    let run = run?;
    Ok(Acquired { run, notes, traced, sampled, quantities, allocations, allocations_dropped, peak_bytes, recorded })
}

/// The trace and what it comes to.
fn finish(request: &TimelineRequest<'_>, plan: &Plan, acquired: Acquired) -> Result<Timeline, Error> {
    let Acquired {
        run,
        notes,
        mut traced,
        sampled,
        quantities,
        allocations,
        allocations_dropped,
        peak_bytes,
        recorded,
    } = acquired;
    let (start, end) = run.window(request.phase);
    let window = (start.wall_ns, end.wall_ns);
    let (mut trace, passes, streams) = assemble::trace(Parts {
        plan,
        window,
        notes: &notes,
        traced: &mut traced,
        sampled: &sampled,
        quantities: &quantities,
        allocations: &allocations,
        allocations_dropped,
        recorded: recorded.as_ref().map(|(recording, bytes)| (recording, *bytes)),
    });
    let faults: Vec<_> = sampled.faults.known().into_iter().flatten().map(|fault| fault.evidence()).collect();
    let off = sampled.switches.known().map_or(&[][..], Vec::as_slice);
    let mut lost = from_switches(&trace, off, &faults);
    lost.extend(from_samples(&trace.samples, &trace.names, &faults));
    lost.extend(from_steal(&quantities.steal(plan.threads())));
    lost.sort_by_key(|lost| lost.start_ns);
    trace.lost = lost;
    let (planned, device): (Vec<PlannedCalls>, _) = match streams {
        Some(streams) => (streams.planned, Known::Is(streams.trace)),
        None => (plan.planned(passes), launched::none()),
    };
    let mut summary = summarise(&trace, &Known::Is(planned))?;
    if let Some(problem) = recorded.and_then(|(recording, _)| recording.problem) {
        summary.coverage =
            Coverage::incomplete(format!("the recorded kernels are not those that were launched: {problem}"));
    }
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
        device,
        tokens: run.tokens,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use model::LoadOptions;
    use ops::{Plain, Registry};
    use weights::{ModelSource, OpenOptions};

    /// Rings that end in the middle of the request: what found no room is counted on its lane, and the summary is not complete.
    #[test]
    fn spans_without_room_are_counted_and_make_it_incomplete() {
        let files = weights::open(&ModelSource::parse("synthetic:tiny").unwrap(), &OpenOptions::default()).unwrap();
        let mut options = LoadOptions::new(Registry::standard().checkpoint("selected").unwrap());
        options.threads = 2;
        let mut engine = Engine::load(&files, options).unwrap();
        let request = TimelineRequest {
            prompt: &[1, 2, 3],
            output_tokens: 4,
            logits: LogitsMode::Last,
            phase: Phase::Request,
            warmup: 1,
            frequency_hz: None,
            overhead_rounds: 0,
        };
        let mut main = MainThread { input: None, choose: &mut |logits, row| logits.argmax(row), output: None };
        let plan = plan(&mut engine, &request, &mut main, &Plain).unwrap();
        for room in [0, 1, plan.calls() / 2, plan.calls() - 1] {
            let acquired = acquire(&mut engine, &request, &mut main, &Plain, &plan, room).unwrap();
            let summary = finish(&request, &plan, acquired).unwrap().summary;
            let missing = (plan.calls() - room) as u64;
            assert_eq!(summary.lanes.iter().map(|lane| lane.dropped).collect::<Vec<_>>(), [missing, missing]);
            assert_eq!(summary.dropped, 2 * missing);
            assert!(summary.coverage.reason().unwrap().contains("were dropped"), "{:?}", summary.coverage);
        }
        let acquired = acquire(&mut engine, &request, &mut main, &Plain, &plan, plan.calls()).unwrap();
        assert!(finish(&request, &plan, acquired).unwrap().summary.coverage.is_complete());
    }
}
