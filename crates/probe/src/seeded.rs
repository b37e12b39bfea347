//! A pass of one fixed shape, made ready to be run again and again: its cache holds a real prefill of what comes before it.
//! Not here: running it (`replay.rs`, `capture.rs`).

use model::{Cache, Engine, Error, Keep};
use record::{LogitsMode, Phase, Workload};

/// What `Engine::prepare` takes.
pub(crate) struct Seeded<'t> {
    pub(crate) cache: Cache,
    /// The pass's own tokens.
    pub(crate) tokens: &'t [u32],
    pub(crate) keep: Keep,
}

/// A cache of the workload's capacity, seeded for its phase: a prefill runs all of `tokens` (at least one), a decode pass the
/// last one after a real prefill of the others.
///
/// # Errors
/// The prefill's.
pub(crate) fn seeded<'t>(engine: &mut Engine, workload: &Workload, tokens: &'t [u32]) -> Result<Seeded<'t>, Error> {
    // The setting is about prompts: a decode step has the logits of its new token, also where it runs the whole prefix.
    let keep = match (workload.phase, workload.logits) {
        (Phase::Decode, _) | (_, LogitsMode::Last) => Keep::Last,
        (_, LogitsMode::All) => Keep::All,
    };
    let new = match workload.phase {
        Phase::Decode => tokens.len().saturating_sub(1),
        Phase::Prefill | Phase::Request => 0,
    };
    let (seed, tokens) = tokens.split_at(new);
    let mut cache = engine.new_cache(workload.capacity as usize);
    if !seed.is_empty() {
        engine.forward(&mut cache, seed, Keep::Last)?;
    }
    Ok(Seeded { cache, tokens, keep })
}
