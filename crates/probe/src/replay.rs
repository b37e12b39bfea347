//! The operator replay: the real bound pass at one fixed shape, on real weights and a cache seeded by a real prefill, with
//! only one group's calls running. What it times is by construction what the model calls; whether a request calls it is not
//! shown here (`wiring.rs`).

use crate::error::Error;
use model::{Cache, Engine, Keep};
use ops::{Cost, Group, Only, Plain};
use record::{CacheBlock, CacheCounters, Coverage, GroupRow, Known, Phase, Replay, Timing, Workload};
use std::collections::BTreeSet;
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
}

/// What is timed in turn within a round.
#[derive(Clone, Copy, PartialEq)]
enum Slot {
    Only(Option<Group>),
    /// All calls, then the choice of a token from the logits.
    Whole,
}

impl Slot {
    fn name(self) -> &'static str {
        match self {
            Slot::Only(Some(group)) => group.name(),
            Slot::Only(None) => "dispatch floor",
            Slot::Whole => "whole pass, then sampling",
        }
    }
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
    let (before, seeding) = (cache.offset(), counters(&cache));

    let mut groups = describe(engine, &mut cache, tokens, keep)?;
    let mut slots: Vec<Slot> = groups.iter().map(|(group, _)| Slot::Only(Some(*group))).collect();
    slots.extend([Slot::Only(None), Slot::Whole]);
    let mut samples = vec![Vec::with_capacity(case.iterations); slots.len()];
    let mut sampling = Vec::with_capacity(case.iterations);
    let mut round_order = Vec::with_capacity(case.iterations);
    let mut cache_block = None;
    let rounds = case.warmup + case.iterations;
    for round in 0..rounds {
        progress(round, rounds, case.workload.phase.name());
        let timed = round >= case.warmup;
        let mut order = Vec::with_capacity(slots.len());
        for position in 0..slots.len() {
            if engine.options().cancelled.load(Relaxed) {
                return Err(model::Error::Interrupted.into());
            }
            let index = (position + round) % slots.len();
            order.push(slots[index].name().to_owned());
            let mut step = engine.prepare(&mut cache, tokens, keep)?;
            let start = Instant::now();
            match slots[index] {
                Slot::Only(group) => step.run(&Only(group)),
                Slot::Whole => step.run(&Plain),
            }
            let elapsed = start.elapsed();
            if slots[index] == Slot::Whole {
                let logits = step.commit();
                let start = Instant::now();
                std::hint::black_box(logits.argmax(logits.rows() - 1));
                let chosen = start.elapsed();
                cache_block = Some(CacheBlock {
                    offset_before: before as u64,
                    offset_after: cache.offset() as u64,
                    capacity: cache.capacity() as u64,
                    seeding,
                    // The first committed pass: later ones add the same.
                    per_pass: cache_block
                        .map_or_else(|| difference(counters(&cache), seeding), |b: CacheBlock| b.per_pass),
                });
                cache.rewind(tokens.len())?;
                if timed {
                    sampling.push(chosen.as_secs_f64() * 1e6);
                }
            }
            if timed {
                samples[index].push(elapsed.as_secs_f64() * 1e6);
            }
        }
        if timed {
            round_order.push(order);
        }
    }

    let whole = samples.pop().unwrap_or_default();
    let floor = samples.pop().unwrap_or_default();
    for ((_, row), samples) in groups.iter_mut().zip(samples) {
        row.timing = Timing::new(samples)?;
    }
    let mut replay = Replay::not_measured(engine.checkpoint().name, case.workload.clone(), "not measured");
    replay.coverage = Coverage::complete();
    replay.groups = groups.into_iter().map(|(_, row)| row).collect();
    replay.sampling = Known::Is(Timing::new(sampling)?);
    replay.dispatch_floor = Known::Is(Timing::new(floor)?);
    replay.whole_pass = Known::Is(Timing::new(whole)?);
    replay.cache =
        cache_block.map_or_else(|| Known::unavailable("no round ran", "ask for at least one iteration"), Known::Is);
    replay.round_order = round_order;
    replay.total();
    Ok(replay)
}

/// One row for each group that the pass has calls of, in `Group::ALL` order, with exact costs and without times.
fn describe(
    engine: &mut Engine,
    cache: &mut Cache,
    tokens: &[u32],
    keep: Keep,
) -> Result<Vec<(Group, GroupRow)>, Error> {
    let step = engine.prepare(cache, tokens, keep)?;
    let (bound, shape) = (step.bound(), step.step_shape());
    let mut rows = Vec::new();
    for group in Group::ALL {
        let (mut cost, mut calls, mut kernels) = (Cost::default(), 0, BTreeSet::new());
        for (index, call) in bound.calls().iter().enumerate().filter(|(_, call)| call.group == group) {
            cost += bound.cost(index, &shape);
            calls += 1;
            kernels.insert(format!("{}: {}", call.kernel.operator, call.kernel.label()));
        }
        if calls == 0 {
            continue;
        }
        let untimed = || Known::unavailable("not timed", "let the replay finish");
        rows.push((
            group,
            GroupRow {
                group: group.name().to_owned(),
                kernels: kernels.into_iter().collect(),
                calls,
                bytes_read: cost.bytes_read,
                bytes_written: cost.bytes_written,
                flops: cost.flops,
                timing: Timing { median: untimed(), spread: untimed(), share: untimed(), samples_us: Vec::new() },
                bandwidth: untimed(),
                arithmetic: untimed(),
            },
        ));
    }
    Ok(rows)
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
