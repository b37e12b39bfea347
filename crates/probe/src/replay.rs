//! The operator replay: the real bound pass at one fixed shape, on real weights and a cache seeded by a real prefill, with
//! only one group's calls running, or one operator's. What it times is by construction what the model calls; whether a request
//! calls it is not shown here (`wiring.rs`). What is timed is in `replay/rows.rs`, what it could take in `replay/floors.rs`.

mod floors;
pub(crate) mod rows;

use crate::error::Error;
use crate::processor::ProcessorTime;
use crate::seeded::{Seeded, seeded};
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
    /// No call at all.
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

/// Replays one case. `progress(done, total, what)` is called between rounds.
///
/// A case that cannot run, or is interrupted, comes back incomplete with the reason and without a total.
///
/// # Errors
/// A clock that gives no number.
pub fn replay(engine: &mut Engine, case: &Case<'_>, progress: &dyn Fn(usize, usize, &str)) -> Result<Replay, Error> {
    let name = engine.checkpoint().name;
    match measure(engine, case, progress) {
        Ok(replay) => Ok(replay),
        Err(Error::Model(model::Error::Interrupted)) => {
            Ok(Replay::not_measured(name, case.workload.clone(), "interrupted before every round was timed"))
        }
        Err(Error::Model(error)) => Ok(Replay::not_measured(name, case.workload.clone(), &error.to_string())),
        Err(error) => Err(error),
    }
}

fn measure(engine: &mut Engine, case: &Case<'_>, progress: &dyn Fn(usize, usize, &str)) -> Result<Replay, Error> {
    let Seeded { mut cache, tokens, keep } = seeded(engine, &case.workload, case.tokens)?;
    let step = engine.prepare(&mut cache, tokens, keep)?;
    let (bound, shape) = (step.bound(), step.step_shape());
    let mut groups = rows::groups(bound, &shape);
    let absent = rows::absent(bound);
    let mut operators = if case.operators { rows::operators(bound, &shape) } else { Vec::new() };
    let mut slots: Vec<Slot> = groups.iter().map(|row| Slot::Only(row.calls)).collect();
    slots.extend([Slot::Nothing, Slot::Whole]);
    let own_rotation: Vec<Slot> = operators.iter().map(|row| Slot::Only(row.calls)).collect();

    let (before, seeding) = (cache.offset(), counters(&cache));
    let mut pass = Pass { engine, cache, tokens, keep, before, cache_block: None, sampling: Vec::new() };
    let mut samples = vec![Vec::with_capacity(case.iterations); slots.len()];
    let mut operator_samples = vec![Vec::with_capacity(case.iterations); operators.len()];
    let mut round_order = vec![Vec::with_capacity(slots.len() + own_rotation.len()); case.iterations];
    let rounds = case.warmup + case.iterations;
    let parts = [(&slots, &mut samples), (&own_rotation, &mut operator_samples)];
    let (mut done, total) = (0, rounds * if operators.is_empty() { 1 } else { 2 });
    let (processor_time, start) = (ProcessorTime::now(), Instant::now());
    // One rotation after the other: an operator between two samples of itself lets all others run and nothing that holds its
    // own calls, so that about a pass's bytes go by before its weights are touched again, as in a request.
    for (slots, samples) in parts.into_iter().filter(|(slots, _)| !slots.is_empty()) {
        for round in 0..rounds {
            progress(done, total, case.workload.phase.name());
            done += 1;
            let timed = round.checked_sub(case.warmup);
            for index in rotation(round, slots.len()) {
                let elapsed = pass.time(slots[index], seeding, timed.is_some())?;
                if let Some(round) = timed {
                    round_order[round].push(slots[index].name());
                    samples[index].push(elapsed);
                }
            }
        }
    }

    let processor_share = processor_time.share_since(start.elapsed(), pass.engine.options().threads);
    let whole = samples.pop().unwrap_or_default();
    let floor = Timing::new(samples.pop().unwrap_or_default())?;
    let rows = groups.iter_mut().zip(samples).chain(operators.iter_mut().zip(operator_samples));
    for (row, samples) in rows {
        row.row.timing = Timing::new(samples)?;
    }
    let Pass { engine, cache_block, sampling, .. } = pass;
    if let Some(ceilings) = case.ceilings
        && case.operators
    {
        floors::fill(&mut groups, &mut operators, ceilings, engine.options().threads as u64, &floor.lowest());
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
    replay.sampling = Known::Is(Timing::new(sampling)?);
    replay.dispatch_floor = Known::Is(floor);
    replay.whole_pass = Known::Is(Timing::new(whole)?);
    replay.cache =
        cache_block.map_or_else(|| Known::unavailable("no round ran", "ask for at least one iteration"), Known::Is);
    replay.round_order = round_order;
    replay.processor_share = processor_share;
    replay.total();
    Ok(replay)
}

/// The pass that is run again and again.
struct Pass<'e, 't> {
    engine: &'e mut Engine,
    cache: Cache,
    tokens: &'t [u32],
    keep: Keep,
    /// Cached tokens before the pass.
    before: usize,
    cache_block: Option<CacheBlock>,
    /// Microseconds of each timed choice of a token.
    sampling: Vec<f64>,
}

impl Pass<'_, '_> {
    /// Runs what `slot` picks of the pass once and gives its microseconds. The cache is afterwards as it was before.
    fn time(&mut self, slot: Slot, seeding: CacheCounters, timed: bool) -> Result<f64, Error> {
        let cancelled = Arc::clone(&self.engine.options().cancelled);
        let mut step = self.engine.prepare(&mut self.cache, self.tokens, self.keep)?;
        let start = Instant::now();
        match slot {
            Slot::Only(Calls::Group(group)) => step.run(&Both(&Until(&cancelled), &Only(Some(group))))?,
            Slot::Only(calls) => {
                step.run(&Both(&Until(&cancelled), &Where(|call: &ops::BoundCall| calls.has(call))))?;
            }
            Slot::Nothing => step.run(&Both(&Until(&cancelled), &Only(None)))?,
            Slot::Whole => step.run(&Both(&Until(&cancelled), &Plain))?,
        }
        let elapsed = start.elapsed();
        if cancelled.load(Relaxed) {
            return Err(model::Error::Interrupted.into());
        }
        if slot == Slot::Whole {
            let logits = step.commit();
            let start = Instant::now();
            std::hint::black_box(logits.argmax(logits.rows() - 1));
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
        Ok(elapsed.as_secs_f64() * 1e6)
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
        let mut touched: Vec<Option<usize>> = vec![None; bytes.len()];
        let (mut time, mut distances) = (0, vec![Vec::new(); slots.len() + own.len()]);
        let part = |first: usize, count: usize| {
            (0..24).flat_map(move |round| rotation(round, count).map(move |index| first + index))
        };
        for index in part(0, slots.len()).chain(part(slots.len(), own.len())) {
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
                    let since: u64 =
                        (0..bytes.len()).filter(|other| touched[*other] > Some(last)).map(|other| bytes[other]).sum();
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
        for (index, mut rounds) in distances.into_iter().enumerate().filter(|(_, rounds)| !rounds.is_empty()) {
            rounds.sort_by(f64::total_cmp);
            let (median, slot) = (rounds[rounds.len() / 2], slots.iter().chain(&own).nth(index).unwrap());
            assert!(median > 0.8, "{}: {:.0} % of a pass in the middle round", slot.name(), 100.0 * median);
        }
    }
}
