//! One request: the prompt's pass, then a token at a time until a stop token or the bound.
//! Not here: how a token is chosen (`sampler.rs`), text, or several requests at once.

use crate::cache::Cache;
use crate::engine::{Engine, Keep};
use crate::error::{Error, Result};
use crate::sampler::{Sampler, SamplingOptions};
use std::time::{Duration, Instant};

/// What to generate.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most new tokens; 0 generates none and runs nothing.
    pub max_tokens: usize,
    /// How each token is chosen from its logits.
    pub sampling: SamplingOptions,
    /// A token of these is handed out (marked) and ends the generation.
    pub stop_tokens: Vec<u32>,
    /// Whether each token comes with its log-probability, for which all logits of its step are read.
    pub log_probabilities: bool,
}

/// A new token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generated {
    pub token: u32,
    /// Natural logarithm of its probability, if that was asked for.
    pub log_probability: Option<f32>,
    /// Time of the step that produced it: the prompt's pass for the first token, else one decode step; sampling included.
    pub elapsed: Duration,
    /// It is a stop token.
    pub stop: bool,
}

/// Generates after what `cache` holds and `prompt`. Tokens are made as the iterator is advanced; the last one is never fed
/// back, so `cache` ends at what it held + prompt + new tokens − 1.
///
/// # Errors
/// An empty prompt, a request beyond the cache's capacity or the model's positions, or sampling options out of range:
/// before anything runs. Errors of the steps themselves come through the iterator.
pub fn generate<'a>(
    engine: &'a mut Engine,
    cache: &'a mut Cache,
    prompt: &[u32],
    options: GenerateOptions,
) -> Result<Generation<'a>> {
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let fed = (cache.offset() + prompt.len()).saturating_add(options.max_tokens.saturating_sub(1));
    if fed > cache.capacity() {
        return Err(Error::CapacityExceeded { capacity: cache.capacity(), rows: prompt.len(), end: fed });
    }
    let limit = engine.config().max_positions;
    if fed > limit {
        return Err(Error::ContextLimit { wanted: fed, limit });
    }
    let mut sampler = Sampler::new(options.sampling)?;
    // Room for every token now, so that decode steps allocate nothing. A bound too large to reserve is no error here: the
    // history then grows as tokens come.
    let mut history = prompt.to_vec();
    let _ = history.try_reserve_exact(options.max_tokens);
    sampler.reserve(history.capacity());
    Ok(Generation {
        engine,
        cache,
        next: prompt.to_vec(),
        history,
        sampler,
        left: options.max_tokens,
        stop_tokens: options.stop_tokens,
        log_probabilities: options.log_probabilities,
        first: true,
        logits: Vec::new(),
    })
}

/// The stream of one request's tokens.
pub struct Generation<'a> {
    engine: &'a mut Engine,
    cache: &'a mut Cache,
    /// Tokens not fed yet.
    next: Vec<u32>,
    history: Vec<u32>,
    sampler: Sampler,
    left: usize,
    stop_tokens: Vec<u32>,
    log_probabilities: bool,
    /// The prompt's pass is still to come.
    first: bool,
    logits: Vec<f32>,
}

impl Generation<'_> {
    fn step(&mut self) -> Result<Generated> {
        let start = Instant::now();
        // Where the token alone is wanted, a device finds it, looks whether logits are numbers, and may begin the step after it
        // meanwhile. On the CPU the row is at hand, and every step's is looked at here.
        let on_device = self.engine.options().device.is_some();
        let greedy = on_device && self.sampler.takes_largest() && !self.log_probabilities && !self.first;
        let keep = if greedy && self.left > 1 { Keep::Next } else { Keep::Last };
        let logits = self.engine.forward(self.cache, &self.next, keep)?;
        let (token, log_probability) = if greedy {
            (logits.argmax(0)?, None)
        } else {
            logits.row(0, &mut self.logits)?;
            let choice = self.sampler.sample(&mut self.logits, &self.history);
            if !choice.log_probability.is_finite() {
                return Err(Error::Logits);
            }
            (choice.token, self.log_probabilities.then_some(choice.log_probability))
        };
        self.first = false;
        let elapsed = start.elapsed();
        self.next.clear();
        self.next.push(token);
        self.history.push(token);
        let stop = self.stop_tokens.contains(&token);
        self.left = if stop { 0 } else { self.left - 1 };
        Ok(Generated { token, log_probability, elapsed, stop })
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Generated>;

    fn next(&mut self) -> Option<Result<Generated>> {
        if self.left == 0 {
            return None;
        }
        let step = self.step();
        if step.is_err() {
            self.left = 0;
        }
        Some(step)
    }
}
