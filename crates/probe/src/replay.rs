//! The operator replay: the real bound pass at one fixed shape, on real weights and a cache seeded by a real prefill, with
//! only one group's calls running, or one operator's. What it times is by construction what the model calls; whether a request
//! calls it is not shown here (`wiring.rs`). What is timed is in `replay/rows.rs`, what it could take in `replay/floors.rs`.

mod floors;
pub(crate) mod rows;

use crate::error::Error;
use crate::processor::ProcessorTime;
use model::{Cache, Engine, Keep};
use ops::{Only, Plain, Where};
use record::{CacheBlock, CacheCounters, Ceilings, Coverage, Known, Phase, Replay, Timing, Workload};
use rows::{Calls, Row};
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
    let keep = match case.workload.logits {
        record::LogitsMode::Last => Keep::Last,
        record::LogitsMode::All => Keep::All,
    };
    let new = match case.workload.phase {
        Phase::Decode => case.tokens.len() - 1,
        Phase::Prefill | Phase::Request => 0,
    };
    let (seed, tokens) = case.tokens.split_at(new);
    let mut cache = engine.new_cache(case.workload.capacity as usize);
    if !seed.is_empty() {
        engine.forward(&mut cache, seed, Keep::Last)?;
    }
    let step = engine.prepare(&mut cache, tokens, keep)?;
    let (bound, shape) = (step.bound(), step.step_shape());
    let mut groups = rows::groups(bound, &shape);
    let mut operators = if case.operators { rows::operators(bound, &shape) } else { Vec::new() };
    let mut slots: Vec<Slot> = groups.iter().map(|row| Slot::Only(row.calls)).collect();
    slots.extend([Slot::Nothing, Slot::Whole]);
    let own_rotation: Vec<Slot> = operators.iter().map(|row| Slot::Only(row.calls)).collect();

    let (before, seeding) = (cache.offset(), counters(&cache));
    let mut pass = Pass { engine, cache, tokens, keep, before, cache_block: None, sampling: Vec::new() };
    let mut samples = vec![Vec::with_capacity(case.iterations); slots.len()];
    let mut operator_samples = vec![Vec::with_capacity(case.iterations); operators.len()];
    let mut round_order = Vec::with_capacity(case.iterations);
    let rounds = case.warmup + case.iterations;
    let (processor_time, start) = (ProcessorTime::now(), Instant::now());
    for round in 0..rounds {
        progress(round, rounds, case.workload.phase.name());
        let timed = round >= case.warmup;
        let mut order = Vec::with_capacity(slots.len() + own_rotation.len());
        for (slots, samples) in [(&slots, &mut samples), (&own_rotation, &mut operator_samples)] {
            for index in rotation(round, slots.len()) {
                let elapsed = pass.time(slots[index], seeding, timed)?;
                if timed {
                    order.push(slots[index].name());
                    samples[index].push(elapsed);
                }
            }
        }
        if timed {
            round_order.push(order);
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
        floors::fill(&mut groups, &mut operators, ceilings, engine.options().threads as u64, &floor.median);
    }
    let mut replay = Replay::not_measured(engine.checkpoint().name, case.workload.clone(), "not measured");
    replay.coverage = Coverage::complete();
    replay.groups = groups.into_iter().map(|row| row.row).collect();
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
        if self.engine.options().cancelled.load(Relaxed) {
            return Err(model::Error::Interrupted.into());
        }
        let mut step = self.engine.prepare(&mut self.cache, self.tokens, self.keep)?;
        let start = Instant::now();
        match slot {
            Slot::Only(Calls::Group(group)) => step.run(&Only(Some(group))),
            Slot::Only(calls) => step.run(&Where(|call: &ops::BoundCall| calls.has(call))),
            Slot::Nothing => step.run(&Only(None)),
            Slot::Whole => step.run(&Plain),
        }
        let elapsed = start.elapsed();
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
    use super::rotation;
    use std::collections::HashSet;

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
}
