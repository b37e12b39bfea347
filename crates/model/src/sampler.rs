//! Choosing a token from logits: greedy, or temperature with top-k, top-p, min-p and a repetition penalty.
//! Not here: where logits come from, and what the caller does with a stop token.

use crate::error::{Error, Result};

/// How tokens are chosen. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingOptions {
    /// 0 takes the most likely token, before any filter.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most likely tokens until their probability reaches this, the crossing one included; 0 or 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits (multiplies negative ones) of tokens seen before; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Starts the draws' random numbers; log-probabilities are natural logarithms (nats) whatever it is.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> SamplingOptions {
        SamplingOptions { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub token: u32,
    /// Its natural log-probability under the model's own distribution (no penalty, no filter, temperature 1).
    pub log_probability: f32,
}

/// Draws tokens; the same seed and logits give the same tokens.
pub struct Sampler {
    options: SamplingOptions,
    state: u64,
    order: Vec<u32>,
    /// Distinct tokens of the history, ascending.
    seen: Vec<u32>,
    /// What the penalized logits were, by token, ascending.
    unmodified: Vec<(u32, f32)>,
}

impl Sampler {
    /// # Errors
    /// An option outside its range, named.
    pub fn new(options: SamplingOptions) -> Result<Sampler> {
        let range = |what, expected, value: f32, ok: bool| {
            if ok { Ok(()) } else { Err(Error::Option { what, expected, found: value.to_string() }) }
        };
        let SamplingOptions { temperature, top_p, min_p, repetition_penalty, .. } = options;
        range(
            "temperature",
            "a finite number of at least 0",
            temperature,
            temperature.is_finite() && temperature >= 0.0,
        )?;
        range("top-p", "a number from 0 to 1", top_p, (0.0..=1.0).contains(&top_p))?;
        range("min-p", "a number from 0 to 1", min_p, (0.0..=1.0).contains(&min_p))?;
        let positive = repetition_penalty.is_finite() && repetition_penalty > 0.0;
        range("repetition penalty", "a finite number above 0", repetition_penalty, positive)?;
        Ok(Sampler { options, state: options.seed, order: Vec::new(), seen: Vec::new(), unmodified: Vec::new() })
    }

    /// Makes room for histories of this many tokens if a penalty will need it; a bound too large is left to grow.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        if self.options.repetition_penalty != 1.0 {
            let _ = self.seen.try_reserve_exact(tokens);
            let _ = self.unmodified.try_reserve_exact(tokens);
        }
    }

    /// Whether it chooses the lowest token with the largest logit, whatever came before.
    pub fn takes_largest(&self) -> bool {
        self.options.temperature == 0.0 && self.options.repetition_penalty == 1.0
    }

    /// Chooses from `logits` `(vocabulary)`, which it uses as scratch. `history` are the tokens that the repetition penalty
    /// applies to.
    pub fn sample(&mut self, logits: &mut [f32], history: &[u32]) -> Choice {
        let normaliser = log_sum_exp(logits);
        if self.takes_largest() {
            let token = argmax(logits);
            return Choice { token, log_probability: logits[token as usize] - normaliser };
        }
        self.penalize(logits, history);
        let token = if self.options.temperature == 0.0 { argmax(logits) } else { self.draw(logits) };
        let penalized = self.unmodified.binary_search_by_key(&token, |(id, _)| *id);
        let logit = penalized.map_or(logits[token as usize], |index| self.unmodified[index].1);
        Choice { token, log_probability: logit - normaliser }
    }

    /// Applies the repetition penalty and remembers what the changed logits were.
    fn penalize(&mut self, logits: &mut [f32], history: &[u32]) {
        let penalty = self.options.repetition_penalty;
        self.unmodified.clear();
        if penalty == 1.0 {
            return;
        }
        self.seen.clear();
        self.seen.extend_from_slice(history);
        self.seen.sort_unstable();
        self.seen.dedup();
        for id in &self.seen {
            let Some(logit) = logits.get_mut(*id as usize) else { continue };
            self.unmodified.push((*id, *logit));
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }

    /// Filters, in the order top-k, top-p, min-p, then temperature, then a draw.
    fn draw(&mut self, logits: &[f32]) -> u32 {
        let SamplingOptions { temperature, top_k, top_p, min_p, .. } = self.options;
        let normaliser = log_sum_exp(logits);
        self.order.clear();
        self.order.extend(0..logits.len() as u32);
        let by_likelihood = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if top_k > 0 && top_k < self.order.len() {
            self.order.select_nth_unstable_by(top_k - 1, by_likelihood);
            self.order.truncate(top_k);
        }
        if top_p > 0.0 && top_p < 1.0 {
            self.order.sort_unstable_by(by_likelihood);
            // Probabilities are of the whole distribution, not renormalised after top-k.
            let mut before = 0.0f64;
            let mut kept = 0;
            for id in &self.order {
                if before >= f64::from(top_p) {
                    break;
                }
                before += f64::from(logits[*id as usize] - normaliser).exp();
                kept += 1;
            }
            self.order.truncate(kept.max(1));
        }
        let best = self.order.iter().map(|id| logits[*id as usize]).fold(f32::NEG_INFINITY, f32::max);
        if min_p > 0.0 {
            self.order.retain(|id| logits[*id as usize] - best >= min_p.ln());
        }
        let weight = |id: u32| f64::from((logits[id as usize] - best) / temperature).exp();
        let total: f64 = self.order.iter().map(|id| weight(*id)).sum();
        let mut left = self.uniform() * total;
        for id in &self.order {
            left -= weight(*id);
            if left < 0.0 {
                return *id;
            }
        }
        *self.order.last().unwrap_or(&0)
    }

    /// Uniform in [0, 1), SplitMix64.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit == best).unwrap_or(0) as u32
}

/// log Σ exp, in f64 beyond the maximum.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - best).exp())).sum();
    (f64::from(best) + sum.ln()) as f32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, -1.0, 2.5];

    fn drawn(options: SamplingOptions) -> Vec<u32> {
        let mut sampler = Sampler::new(options).unwrap();
        let mut seen: Vec<u32> = (0..2000).map(|_| sampler.sample(&mut LOGITS.to_vec(), &[]).token).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn zero_temperature_takes_the_first_largest() {
        let mut sampler = Sampler::new(SamplingOptions { top_k: 1, ..Default::default() }).unwrap();
        let choice = sampler.sample(&mut [0.0, 2.0, 2.0], &[]);
        assert_eq!(choice.token, 1);
        let want = (1.0f64 / (2.0 + (-2.0f64).exp())).ln();
        assert!((f64::from(choice.log_probability) - want).abs() < 1e-6);
    }

    #[test]
    fn filters_keep_what_they_say() {
        let hot = SamplingOptions { temperature: 5.0, ..Default::default() };
        assert_eq!(drawn(hot), [0, 1, 2, 3, 4]);
        assert_eq!(drawn(SamplingOptions { top_k: 2, ..hot }), [1, 4]);
        // p = 0.4535, 0.2751, 0.1668, ...: the token that crosses 0.5 is kept, the next is not.
        assert_eq!(drawn(SamplingOptions { top_p: 0.5, ..hot }), [1, 4]);
        assert_eq!(drawn(SamplingOptions { top_p: 0.45, ..hot }), [1]);
        assert_eq!(drawn(SamplingOptions { min_p: 0.3, ..hot }), [1, 2, 4]);
    }

    #[test]
    fn draws_follow_the_distribution_and_the_seed() {
        let options = SamplingOptions { temperature: 1.0, seed: 3, ..Default::default() };
        let counts = |seed| {
            let mut sampler = Sampler::new(SamplingOptions { seed, ..options }).unwrap();
            let mut counts = [0u32; 5];
            for _ in 0..20_000 {
                counts[sampler.sample(&mut LOGITS.to_vec(), &[]).token as usize] += 1;
            }
            counts
        };
        assert_eq!(counts(3), counts(3));
        let total = log_sum_exp(&LOGITS);
        for (count, logit) in counts(4).iter().zip(LOGITS) {
            let want = f64::from((logit - total).exp());
            assert!((f64::from(*count) / 20_000.0 - want).abs() < 0.015, "{count} draws, want {want}");
        }
    }

    #[test]
    fn the_penalty_lowers_seen_tokens_and_log_probabilities_ignore_it() {
        let options = SamplingOptions { repetition_penalty: 2.0, ..Default::default() };
        let mut sampler = Sampler::new(options).unwrap();
        let choice = sampler.sample(&mut LOGITS.to_vec(), &[1, 1, 4, 99]);
        assert_eq!(choice.token, 2);
        let choice = sampler.sample(&mut [4.0, 1.0], &[0]);
        assert_eq!(choice.token, 0);
        assert!((choice.log_probability - (4.0 - log_sum_exp(&[4.0, 1.0]))).abs() < 1e-6);
    }

    #[test]
    fn options_out_of_range_are_named() {
        for options in [
            SamplingOptions { temperature: -1.0, ..Default::default() },
            SamplingOptions { temperature: f32::NAN, ..Default::default() },
            SamplingOptions { top_p: 1.5, ..Default::default() },
            SamplingOptions { min_p: -0.1, ..Default::default() },
            SamplingOptions { repetition_penalty: 0.0, ..Default::default() },
        ] {
            assert!(matches!(Sampler::new(options), Err(Error::Option { .. })), "{options:?}");
        }
    }
}
