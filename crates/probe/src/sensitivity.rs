//! The sensitivity probe: whole requests in one warm process, with time added to one operator's calls or to none, in turn.
//! Not here: the delay itself (`ops::Delay`), the slope and its verdict (`record`), replaying operators alone (`replay.rs`).

mod trace;

use crate::error::Error;
use crate::processor::{involuntary_switches, switches_since};
use crate::surroundings::Before;
use model::{Engine, Keep, Prepared};
use ops::{Both, BoundCall, CachePolicy, Delay, Group, Plain, Traced, Until};
use record::bench::Surroundings;
use record::{Clocked, Coverage, Known, LogitsMode, Phase, Reading, Target, Unit, Verdict};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
pub use trace::{StepTimes, expected_slope};

/// Where time is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Group(Group),
    /// All calls of one operator, by its name.
    Operator(String),
}

impl Place {
    /// A group by its name or the beginning of it, or an operator by its name.
    ///
    /// # Errors
    /// The names that there are.
    pub fn parse(text: &str, operators: &[&str]) -> Result<Place, String> {
        let wanted = text.to_lowercase();
        if let Some(group) =
            Group::ALL.into_iter().find(|group| !wanted.is_empty() && group.name().starts_with(&wanted))
        {
            return Ok(Place::Group(group));
        }
        if operators.contains(&text) {
            return Ok(Place::Operator(text.to_owned()));
        }
        let groups: Vec<_> = Group::ALL.iter().map(|group| format!("'{}'", group.name())).collect();
        Err(format!(
            "no group or operator '{text}'; groups are {}; operators are {}",
            groups.join(", "),
            operators.join(", ")
        ))
    }

    pub fn name(&self) -> &str {
        match self {
            Place::Group(group) => group.name(),
            Place::Operator(name) => name,
        }
    }

    fn holds(&self, call: &BoundCall) -> bool {
        match self {
            Place::Group(group) => call.group == *group,
            Place::Operator(name) => call.kernel.operator == name,
        }
    }
}

/// What to probe.
pub struct Probe<'a> {
    pub prompt: &'a [u32],
    /// Tokens to generate, at least two.
    pub output_tokens: usize,
    pub logits: LogitsMode,
    /// In whose passes time is added; [`Phase::Request`]: in both.
    pub phase: Phase,
    pub places: &'a [Place],
    pub rounds: usize,
    /// Part of a request's time that the smaller delay adds; the larger adds twice as much.
    pub added_share: f64,
}

/// What the probe gives: targets without slopes, which follow from the samples.
pub struct Probed {
    pub targets: Vec<Target>,
    pub samples: Vec<Clocked>,
    pub coverage: Coverage,
    pub surroundings: Surroundings,
}

/// What is run in turn within a round.
struct Arm {
    /// Index of the place, and 1 or 2 times the delay; None: nothing is added.
    added: Option<(usize, u64)>,
    /// One per kind of step.
    delays: Vec<Delay>,
}

/// Traces one request, chooses each place's delay, then clocks `probe.rounds` rounds of requests: one without added time, and
/// two per place; the order moves on by one each round. `progress(done, total, what)` is called between requests.
///
/// Interrupted in the middle, it keeps the rounds that it has; its coverage says so.
///
/// # Errors
/// Fewer than two tokens, a step that fails, interruption before the first round, or a clock that gives no number.
pub fn sensitivity(
    engine: &mut Engine,
    probe: &Probe<'_>,
    progress: &dyn Fn(usize, usize, &str),
) -> Result<Probed, Error> {
    if probe.output_tokens < 2 {
        return Err(Error::OutputTooShort(probe.output_tokens));
    }
    let cancelled = Arc::clone(&engine.options().cancelled);
    let arms_per_round = 1 + 2 * probe.places.len();
    let total = 3 + arms_per_round * probe.rounds;
    progress(0, total, "warm-up request");
    run(engine, probe, |step, _, _| step.run(&Both(&Until(&cancelled), &Plain)))?;
    progress(1, total, "traced request");
    let trace = traced(engine, probe)?;
    progress(2, total, "request without added time");
    let start = Instant::now();
    run(engine, probe, |step, _, _| step.run(&Both(&Until(&cancelled), &Plain)))?;
    let seconds = start.elapsed().as_secs_f64();

    let mut targets = Vec::new();
    let mut arms = vec![Arm { added: None, delays: trace.kinds.iter().map(|kind| kind.delay(&[], 0)).collect() }];
    for (index, place) in probe.places.iter().enumerate() {
        let chosen: Vec<&[bool]> = trace.kinds.iter().map(|kind| kind.chosen[index].as_slice()).collect();
        let calls = trace.calls(|kind| chosen[kind].iter().filter(|chosen| **chosen).count() as u64);
        let own = trace.seconds(|kind| trace.kinds[kind].times.own(chosen[kind]));
        let nanoseconds = (probe.added_share * seconds / calls.max(1) as f64 * 1e9).ceil() as u64;
        let expected = trace.expected_slope(index, nanoseconds);
        targets.push(Target {
            target: place.name().to_owned(),
            calls,
            own: match calls {
                0 => Known::unavailable("these passes have no such call", "probe the other phase"),
                _ => Reading::measured(own, Unit::Seconds, 1),
            },
            expected_slope: match expected {
                Some(slope) => Reading::measured(slope, Unit::Share, 1),
                None => Known::unavailable("these passes have no such call", "probe the other phase"),
            },
            slope: Known::unavailable("not fitted", "close the record"),
            at_stake: Known::unavailable("not fitted", "close the record"),
            verdict: Verdict::Inconclusive,
        });
        if calls > 0 {
            arms.extend([1, 2].map(|times| {
                Arm {
                    added: Some((index, times)),
                    delays: trace
                        .kinds
                        .iter()
                        .zip(&chosen)
                        .map(|(kind, chosen)| kind.delay(chosen, times * nanoseconds))
                        .collect(),
                }
            }));
        }
    }
    let switches = involuntary_switches();
    let watch = Before::now().watch(std::process::id());
    let mut samples = Vec::with_capacity(arms.len() * probe.rounds);
    let mut coverage = Coverage::complete();
    'rounds: for round in 0..probe.rounds {
        for place in 0..arms.len() {
            let arm = &arms[(round + place) % arms.len()];
            let target = arm.added.map(|(index, _)| probe.places[index].name());
            progress(3 + round * arms.len() + place, total, target.unwrap_or("request without added time"));
            arm.delays.iter().for_each(Delay::reset);
            let start = Instant::now();
            let clocked = run(engine, probe, |step, index, _| {
                step.run(&Both(&Until(&cancelled), &arm.delays[trace.steps[index]]))
            });
            if let Err(Error::Model(model::Error::Interrupted)) = clocked {
                coverage = Coverage::incomplete(format!("interrupted in round {} of {}", round + 1, probe.rounds));
                break 'rounds;
            }
            clocked?;
            let request_seconds = start.elapsed().as_secs_f64();
            samples.push(Clocked {
                round: round as u64,
                target: target.map(str::to_owned),
                times: arm.added.map_or(0, |(_, times)| times),
                injected_seconds: arm.delays.iter().map(Delay::injected).sum::<u64>() as f64 / 1e9,
                request_seconds,
            });
        }
    }
    let surroundings = watch.stop().finish(switches_since(switches));
    Ok(Probed { targets, samples, coverage, surroundings })
}

/// One request: `step(pass, number, phase)` runs each of its passes.
///
/// # Errors
/// A pass that does not run, or interruption, which makes the results of the pass at hand worthless.
fn run(
    engine: &mut Engine,
    probe: &Probe<'_>,
    mut step: impl FnMut(&mut Prepared<'_, '_>, usize, Phase) -> Result<(), model::Error>,
) -> Result<(), Error> {
    let mut cache = engine.new_cache(probe.prompt.len() + probe.output_tokens);
    let whole = probe.logits == LogitsMode::All || engine.checkpoint().cache == CachePolicy::None;
    let chunk = if whole { probe.prompt.len().max(1) } else { engine.options().prefill_chunk };
    let keep = if probe.logits == LogitsMode::All { Keep::All } else { Keep::Last };
    let (mut number, mut next) = (0, 0);
    let cancelled = Arc::clone(&engine.options().cancelled);
    let interrupted = || cancelled.load(Relaxed).then_some(Error::Model(model::Error::Interrupted));
    for part in probe.prompt.chunks(chunk) {
        let mut pass = engine.prepare(&mut cache, part, keep)?;
        step(&mut pass, number, Phase::Prefill)?;
        if let Some(error) = interrupted() {
            return Err(error);
        }
        let logits = pass.commit();
        next = logits.argmax(logits.rows() - 1)?;
        number += 1;
    }
    for _ in 1..probe.output_tokens {
        let mut pass = engine.prepare(&mut cache, &[next], Keep::Last)?;
        step(&mut pass, number, Phase::Decode)?;
        if let Some(error) = interrupted() {
            return Err(error);
        }
        next = pass.commit().argmax(0)?;
        number += 1;
    }
    Ok(())
}

/// One request's passes, kind by kind.
struct Trace {
    /// Kind of each pass of the request, in order.
    steps: Vec<usize>,
    kinds: Vec<Kind>,
}

/// Passes of one program in one phase.
struct Kind {
    rows: usize,
    phase: Phase,
    times: StepTimes,
    /// Of each place, which calls time is added to.
    chosen: Vec<Vec<bool>>,
}

impl Kind {
    /// The delay that makes each chosen call so much longer on its slowest worker.
    fn delay(&self, chosen: &[bool], nanoseconds: u64) -> Delay {
        Delay::new(self.times.workers(), self.times.added(chosen, nanoseconds))
    }
}

impl Trace {
    /// Sum over the request's passes.
    fn calls(&self, of: impl Fn(usize) -> u64) -> u64 {
        self.steps.iter().map(|kind| of(*kind)).sum()
    }

    fn seconds(&self, of: impl Fn(usize) -> f64) -> f64 {
        self.steps.iter().map(|kind| of(*kind)).sum::<f64>() / 1e9
    }

    fn expected_slope(&self, place: usize, nanoseconds: u64) -> Option<f64> {
        let passes: Vec<(&StepTimes, &[bool])> = self
            .steps
            .iter()
            .map(|kind| (&self.kinds[*kind].times, self.kinds[*kind].chosen[place].as_slice()))
            .collect();
        expected_slope(&passes, nanoseconds)
    }
}

fn traced(engine: &mut Engine, probe: &Probe<'_>) -> Result<Trace, Error> {
    let workers = engine.options().threads;
    let cancelled = Arc::clone(&engine.options().cancelled);
    let (mut steps, mut kinds) = (Vec::new(), Vec::<Kind>::new());
    run(engine, probe, |step, _, phase| {
        let calls = step.bound().calls().len();
        let mut spans = Traced::new(workers, calls);
        step.run(&Both(&Until(&cancelled), &spans))?;
        let rows = step.bound().program().rows;
        let same = |kind: &Kind| kind.rows == rows && kind.phase == phase && kind.times.calls() == calls;
        let kind = kinds.iter().position(same).unwrap_or_else(|| {
            let bound = step.bound();
            let barriers = bound.calls().iter().map(|call| call.barrier_before).collect();
            let inside = probe.phase == Phase::Request || probe.phase == phase;
            let of = |place: &Place| bound.calls().iter().map(|call| inside && place.holds(call)).collect();
            let chosen = probe.places.iter().map(of).collect();
            kinds.push(Kind { rows, phase, times: StepTimes::new(workers, barriers), chosen });
            kinds.len() - 1
        });
        for worker in 0..workers {
            for span in spans.spans(worker).0 {
                kinds[kind].times.note(span.call as usize, worker, (span.end_ns - span.start_ns) as f64);
            }
        }
        steps.push(kind);
        Ok(())
    })?;
    Ok(Trace { steps, kinds })
}
