//! The operator replay: the real bound pass at one fixed shape, on real weights and a cache seeded by a real prefill, with
//! only one group's calls running, or one operator's. What it times is by construction what the model calls; whether a request
//! calls it is not shown here (`wiring.rs`). What is timed is in `replay/rows.rs`, what it could take in `replay/floors.rs`.

mod floors;
pub(crate) mod rows;

use crate::error::Error;
use crate::processor::{ProcessorTime, Stretches};
use crate::seeded::{Seeded, seeded};
use crate::stopwatch::Stopwatch;
use model::{Cache, Engine, Keep};
use ops::{Both, Only, Plain, Until, Where};
use record::{CacheBlock, CacheCounters, Ceilings, Coverage, Known, Replay, Timing, Workload};
use rows::{Calls, Row};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// One shape of one phase.
pub struct Case<'a> {
    /// Phase, context length S (the prompt's for a prefill), capacity and logits mode come from here.
    pub workload: Workload,
    /// S token ids, at least one: a prefill runs them all, a decode pass the last one after a real prefill of the others.
    pub tokens: &'a [u32],
    /// Rounds before the timed ones.
    pub warmup: usize,
    /// Timed rounds.
    pub iterations: usize,
    /// Whether each operator is timed too, alone, in a rotation of its own after the groups'.
    pub operators: bool,
    /// What the floors are at; without them there are none.
    pub ceilings: Option<&'a Ceilings>,
}

/// What is timed in turn within a round.
#[derive(Clone, Copy, PartialEq)]
enum Slot {
    Only(Calls),
    /// No call at all; a device runs nothing for it.
    Nothing,
    /// All calls, then the choice of a token from the logits.
    Whole,
}

impl Slot {
    fn name(self) -> String {
        match self {
            Slot::Only(Calls::Group(group)) => group.name().to_owned(),
            Slot::Only(Calls::Operator { slot, operator }) => format!("{slot}: {operator}"),
            Slot::Nothing => "dispatch floor".to_owned(),
            Slot::Whole => "whole pass, then sampling".to_owned(),
        }
    }
}

/// Positions of `count` things in round `round`: each round starts one later, so that over `count` rounds everything is at
/// every position once.
fn rotation(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |position| (position + round) % count)
}

/// What a turn of `rounds` rounds from number `first` on times, in order: which of two rotations, the round, the index in it.
///
/// One rotation after the other: an operator between two samples of itself lets all others run and nothing that holds its own
/// calls, so that about a pass's bytes go by before its weights are touched again, as in a request.
fn turn(first: usize, rounds: usize, counts: [usize; 2]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..2).flat_map(move |part| {
        (first..first + rounds)
            .flat_map(move |round| rotation(round, counts[part]).map(move |index| (part, round, index)))
    })
}

/// Replays one case alone. `progress(done, total, what)` is called between rounds.
///
/// A case that cannot run, or is interrupted, comes back incomplete with the reason and without a total.
///
/// # Errors
/// A clock that gives no number.
pub fn replay(engine: &mut Engine, case: &Case<'_>, progress: &dyn Fn(usize, usize, &str)) -> Result<Replay, Error> {
    let rounds = case.warmup + case.iterations;
    let run = |engine: &mut Engine| {
        let mut replaying = Replaying::begin(engine, case)?;
        for round in 0..rounds {
            progress(round, rounds, case.workload.phase.name());
            replaying.turn(engine, 1, round >= case.warmup)?;
        }
        replaying.end(engine)
    };
    let not =
        |engine: &Engine, why: &str| Ok(Replay::not_measured(engine.checkpoint().name, case.workload.clone(), why));
    match run(engine) {
        Err(Error::Model(model::Error::Interrupted)) => not(engine, "interrupted before every round was timed"),
        Err(Error::Model(error)) => not(engine, &error.to_string()),
        other => other,
    }
}

/// Things that are timed in turn, and their samples in round order.
struct Rotation {
    slots: Vec<Slot>,
    samples: Vec<Vec<f64>>,
}

impl Rotation {
    fn of(slots: Vec<Slot>) -> Rotation {
        Rotation { samples: vec![Vec::new(); slots.len()], slots }
    }
}

/// A case that is replayed turn by turn, so that others can have theirs between: what is measured in the same minutes can be
/// compared although the machine's speed drifts.
pub struct Replaying<'c> {
    case: &'c Case<'c>,
    groups: Vec<Row>,
    operators: Vec<Row>,
    absent: Vec<record::AbsentGroup>,
    /// The groups', then the operators'.
    rotations: [Rotation; 2],
    pass: Pass<'c>,
    /// Rounds so far, timed or not, and timed turns.
    rounds: usize,
    turns: usize,
    /// The order within each timed round.
    round_order: Vec<Vec<String>>,
    processors: Stretches,
}

impl<'c> Replaying<'c> {
    /// Seeds the cache and binds the pass.
    ///
    /// # Errors
    /// A case that cannot run, or an interruption.
    pub fn begin(engine: &mut Engine, case: &'c Case<'c>) -> Result<Replaying<'c>, Error> {
        let Seeded { mut cache, tokens, keep } = seeded(engine, &case.workload, case.tokens)?;
        let device = engine.options().device.is_some();
        let step = engine.prepare(&mut cache, tokens, keep)?;
        let (bound, shape) = (step.bound(), step.step_shape());
        let groups = rows::groups(bound, &shape);
        let absent = rows::absent(bound);
        let operators = if case.operators { rows::operators(bound, &shape) } else { Vec::new() };
        let mut slots: Vec<Slot> = groups.iter().map(|row| Slot::Only(row.calls)).collect();
        slots.extend((!device).then_some(Slot::Nothing));
        slots.push(Slot::Whole);
        let own = operators.iter().map(|row| Slot::Only(row.calls)).collect();
        let (before, seeding) = (cache.offset(), counters(&cache));
        let pass = Pass { cache, tokens, keep, before, seeding, cache_block: None, sampling: Vec::new() };
        Ok(Replaying {
            case,
            groups,
            operators,
            absent,
            rotations: [Rotation::of(slots), Rotation::of(own)],
            pass,
            rounds: 0,
            turns: 0,
            round_order: Vec::new(),
            processors: Stretches::none(),
        })
    }

    /// Runs `rounds` rounds; `timed`: their times are kept. `engine` is the one that it was begun with.
    ///
    /// # Errors
    /// An interruption: the rounds of this turn do not count.
    pub fn turn(&mut self, engine: &mut Engine, rounds: usize, timed: bool) -> Result<(), Error> {
        let counts = [self.rotations[0].slots.len(), self.rotations[1].slots.len()];
        let (before, first) = (self.round_order.len(), self.rounds);
        let watch = Stopwatch::new(engine)?;
        // The workers may have slept through another case's turn.
        if self.rotations[0].slots.contains(&Slot::Nothing) {
            self.pass.time(engine, &watch, Slot::Nothing, false)?;
        }
        let (processor_time, start) = (ProcessorTime::now(), Instant::now());
        if timed {
            self.round_order.resize_with(before + rounds, Vec::new);
        }
        for (part, round, index) in turn(first, rounds, counts) {
            let slot = self.rotations[part].slots[index];
            let elapsed = match self.pass.time(engine, &watch, slot, timed) {
                Ok(elapsed) => elapsed,
                Err(error) => {
                    self.keep(before);
                    return Err(error);
                }
            };
            if timed {
                self.round_order[before + round - first].push(slot.name());
                self.rotations[part].samples[index].push(elapsed);
            }
        }
        self.rounds += rounds;
        self.turns += usize::from(timed);
        self.processors.add(&processor_time, start.elapsed());
        Ok(())
    }

    /// Timed turns so far.
    pub fn turns(&self) -> usize {
        self.turns
    }

    /// Forgets the rounds after the first `rounds` timed ones.
    fn keep(&mut self, rounds: usize) {
        self.round_order.truncate(rounds);
        let samples = self.rotations.iter_mut().flat_map(|rotation| &mut rotation.samples);
        samples.chain([&mut self.pass.sampling]).for_each(|samples| samples.truncate(rounds));
    }

    /// What its timed rounds come to.
    ///
    /// # Errors
    /// A clock that gave no number; no timed round.
    pub fn end(self, engine: &Engine) -> Result<Replay, Error> {
        let Replaying { case, mut groups, mut operators, absent, rotations, pass, round_order, processors, .. } = self;
        let [Rotation { slots, mut samples }, Rotation { samples: operator_samples, .. }] = rotations;
        let whole = samples.pop().unwrap_or_default();
        let floor = if slots.contains(&Slot::Nothing) {
            Known::Is(Timing::new(samples.pop().unwrap_or_default())?)
        } else {
            let why = "the GPU times its calls itself: starting a pass is in no row";
            Known::unavailable(why, "`hourglass timeline --device` has the GPU's pauses")
        };
        let rows = groups.iter_mut().zip(samples).chain(operators.iter_mut().zip(operator_samples));
        for (row, samples) in rows {
            row.row.timing = Timing::new(samples)?;
        }
        let threads = engine.options().threads;
        if let Some(ceilings) = case.ceilings
            && case.operators
        {
            let start = floor.known().map(Timing::lowest);
            floors::fill(&mut groups, &mut operators, ceilings, threads as u64, start.as_ref());
        }
        let mut replay = Replay::not_measured(engine.checkpoint().name, case.workload.clone(), "not measured");
        replay.coverage = Coverage::complete();
        replay.groups = groups.into_iter().map(|row| row.row).collect();
        replay.absent = absent;
        replay.operators = if case.operators {
            Known::Is(operators.into_iter().map(Row::into_operator).collect())
        } else {
            Known::unavailable("operators were not timed one by one", "`hourglass replay`")
        };
        replay.sampling = Known::Is(Timing::new(pass.sampling)?);
        replay.dispatch_floor = floor;
        replay.whole_pass = Known::Is(Timing::new(whole)?);
        replay.cache = pass
            .cache_block
            .map_or_else(|| Known::unavailable("no round ran", "ask for at least one iteration"), Known::Is);
        replay.round_order = round_order;
        replay.processor_share = processors.share(threads);
        replay.total();
        Ok(replay)
    }
}

/// The pass that is run again and again.
struct Pass<'t> {
    cache: Cache,
    tokens: &'t [u32],
    keep: Keep,
    /// Cached tokens before the pass.
    before: usize,
    /// What the seeding prefill added to the cache's counters.
    seeding: CacheCounters,
    cache_block: Option<CacheBlock>,
    /// Microseconds of each timed choice of a token.
    sampling: Vec<f64>,
}

impl Pass<'_> {
    /// Runs what `slot` picks of the pass once and gives its microseconds. The cache is afterwards as it was before.
    fn time(&mut self, engine: &mut Engine, watch: &Stopwatch, slot: Slot, timed: bool) -> Result<f64, Error> {
        let (cancelled, seeding) = (Arc::clone(&engine.options().cancelled), self.seeding);
        let mut step = engine.prepare(&mut self.cache, self.tokens, self.keep)?;
        let elapsed = watch.time(|| match slot {
            Slot::Only(Calls::Group(group)) => step.run(&Both(&Until(&cancelled), &Only(Some(group)))),
            Slot::Only(calls) => step.run(&Both(&Until(&cancelled), &Where(|call: &ops::BoundCall| calls.has(call)))),
            Slot::Nothing => step.run(&Both(&Until(&cancelled), &Only(None))),
            Slot::Whole => step.run(&Both(&Until(&cancelled), &Plain)),
        });
        if cancelled.load(Relaxed) {
            return Err(model::Error::Interrupted.into());
        }
        let elapsed = elapsed?;
        if slot == Slot::Whole {
            let logits = step.commit();
            let start = Instant::now();
            std::hint::black_box(logits.argmax(logits.rows() - 1)?);
            let chosen = start.elapsed();
            // The first committed pass: later ones add the same.
            let per_pass =
                self.cache_block.take().map_or_else(|| difference(counters(&self.cache), seeding), |b| b.per_pass);
            self.cache_block = Some(CacheBlock {
                offset_before: self.before as u64,
                offset_after: self.cache.offset() as u64,
                capacity: self.cache.capacity() as u64,
                seeding,
                per_pass,
            });
            self.cache.rewind(self.tokens.len())?;
            if timed {
                self.sampling.push(chosen.as_secs_f64() * 1e6);
            }
        }
        Ok(elapsed)
    }
}

fn counters(cache: &Cache) -> CacheCounters {
    let model::CacheCounters { logical_copy_bytes, physical_growth_copy_bytes, growth_copy_bytes, slice_write_bytes } =
        cache.counters();
    CacheCounters { logical_copy_bytes, physical_growth_copy_bytes, growth_copy_bytes, slice_write_bytes }
}

fn difference(now: CacheCounters, before: CacheCounters) -> CacheCounters {
    CacheCounters {
        logical_copy_bytes: now.logical_copy_bytes - before.logical_copy_bytes,
        physical_growth_copy_bytes: now.physical_growth_copy_bytes - before.physical_growth_copy_bytes,
        growth_copy_bytes: now.growth_copy_bytes - before.growth_copy_bytes,
        slice_write_bytes: now.slice_write_bytes - before.slice_write_bytes,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ops::Registry;
    use std::collections::HashSet;
    use weights::{ModelSource, OpenOptions};

    #[test]
    fn everything_is_at_every_position_once() {
        for count in 1..9 {
            let rounds: Vec<Vec<usize>> = (0..count).map(|round| rotation(round + 4, count).collect()).collect();
            for position in 0..count {
                let there: HashSet<usize> = rounds.iter().map(|round| round[position]).collect();
                assert_eq!(there.len(), count, "position {position} of {count}");
            }
            assert!(rounds.iter().all(|round| round.iter().collect::<HashSet<_>>().len() == count));
        }
    }

    /// A request touches every other weight and key before it comes back to one. Timed apart, calls must not come back to
    /// theirs much sooner, or a cache would serve what it cannot serve a request. Counted in bytes, whatever the cache.
    #[test]
    fn the_rotation_lets_about_a_pass_go_by_before_bytes_are_touched_again() {
        let files = weights::open(&ModelSource::parse("synthetic:tiny").unwrap(), &OpenOptions::default()).unwrap();
        let options = model::LoadOptions::new(Registry::standard().checkpoint("selected").unwrap());
        let mut engine = Engine::load(&files, options).unwrap();
        let bound = engine.kernels(1, Keep::Last, 24).unwrap();
        let shape = [ops::SequenceShape { rows: 1, offset: 23 }];
        let mut slots: Vec<Slot> = rows::groups(bound, &shape).iter().map(|row| Slot::Only(row.calls)).collect();
        slots.extend([Slot::Nothing, Slot::Whole]);
        let own: Vec<Slot> = rows::operators(bound, &shape).iter().map(|row| Slot::Only(row.calls)).collect();
        // The embedding reads one row of the table that the head reads whole.
        let cold = |call: usize| {
            let program = bound.program();
            let inputs = program.call_shape(&program.calls[call], &shape).inputs;
            bound.cost(call, &shape).bytes_read.saturating_sub(inputs.iter().map(|view| view.bytes()).sum())
        };
        let calls = bound.calls().iter().enumerate();
        let bytes: Vec<u64> = calls.map(|(call, of)| if of.slot == "embed" { 0 } else { cold(call) }).collect();
        let pass: u64 = bytes.iter().sum();
        // A turn of one round lets an operator follow its group sooner: of a model that no cache holds, a third of a pass is
        // still more than a cache.
        for (rounds, least) in [(1, 0.3), (4, 0.8), (24, 0.8)] {
            let mut touched: Vec<Option<usize>> = vec![None; bytes.len()];
            let (mut time, mut distances) = (0, vec![Vec::new(); slots.len() + own.len()]);
            let counts = [slots.len(), own.len()];
            let timed = (0..24 / rounds).flat_map(|number| turn(number * rounds, rounds, counts));
            for (rotation, _, index) in timed {
                let index = index + if rotation == 0 { 0 } else { slots.len() };
                let slot = *slots.iter().chain(&own).nth(index).unwrap();
                let (mut between, mut weight) = (0.0, 0.0);
                for (call, bound_call) in bound.calls().iter().enumerate() {
                    let runs = match slot {
                        Slot::Only(calls) => calls.has(bound_call),
                        Slot::Nothing => false,
                        Slot::Whole => true,
                    };
                    if !runs {
                        continue;
                    }
                    if let Some(last) = touched[call] {
                        let since: u64 = (0..bytes.len())
                            .filter(|other| touched[*other] > Some(last))
                            .map(|other| bytes[other])
                            .sum();
                        between += (since + bytes[call]) as f64 * bytes[call] as f64;
                        weight += bytes[call] as f64;
                    }
                    time += 1;
                    touched[call] = Some(time);
                }
                // Rows of a thousandth of the pass say nothing about a cache.
                if weight * 1000.0 > pass as f64 {
                    distances[index].push(between / weight / pass as f64);
                }
            }
            for (index, mut seen) in distances.into_iter().enumerate().filter(|(_, seen)| !seen.is_empty()) {
                seen.sort_by(f64::total_cmp);
                let (median, slot) = (seen[seen.len() / 2], slots.iter().chain(&own).nth(index).unwrap());
                let percent = 100.0 * median;
                assert!(median > least, "{rounds}, {}: {percent:.0} % of a pass in the middle round", slot.name());
            }
        }
    }
}
