//! A part of the samples with its interval, and ranks that do not claim more than the intervals do.
//! Not here: what the samples are of.

use crate::statistics::quantile::student_quantile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How every [`Share`] is made, in one sentence for records.
pub const SHARE_METHOD: &str = "Wilson's 95 % interval on the effective number of samples: Kish's for unequal weights, \
                                divided by the design effect of whole passes as clusters (never below 1)";

/// A part of a whole that was sampled, 0 to 1, with its 95 % interval.
///
/// Samples of one pass resemble each other, so passes are the clusters of a ratio estimate: with `x_s` and `n_s` the part's and
/// the whole's weight in pass `s`, `p = sum x / sum n` has the linearised variance `k/(k-1) sum (x_s - p n_s)^2 / (sum n)^2`
/// (Cochran, Sampling Techniques, 3rd ed., 11.9). The effective number of samples is what would give a binomial that
/// variance, at most Kish's `(sum w)^2 / sum w^2`; Wilson's interval (1927) is taken on it, as Korn and Graubard (1998) do
/// for surveys, with Student's t of `k - 1` degrees of freedom.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    /// As many independent samples would give this interval.
    pub effective_samples: f64,
}

/// How much of the weight of each pass the whole has, and how uneven its samples are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Whole {
    /// Weight per pass, in nanoseconds.
    pub by_step: Vec<f64>,
    /// Sum of the squares of the samples' weights.
    pub squares: f64,
}

impl Whole {
    /// Of `steps` passes, with nothing in them yet.
    pub fn new(steps: usize) -> Whole {
        Whole { by_step: vec![0.0; steps], squares: 0.0 }
    }

    /// One sample more, of pass `step`.
    pub fn add(&mut self, step: usize, weight_ns: u64) {
        let weight = weight_ns as f64;
        self.by_step[step] += weight;
        self.squares += weight * weight;
    }

    pub fn weight(&self) -> f64 {
        self.by_step.iter().sum()
    }
}

impl Share {
    /// The share of a part that has `(pass, weight)` in the passes that it is in at all (each at most once). None where the
    /// whole has no weight.
    pub fn of(whole: &Whole, part: &[(usize, f64)]) -> Option<Share> {
        let total = whole.weight();
        if total <= 0.0 || whole.squares <= 0.0 {
            return None;
        }
        // Summed from zero: the sum of nothing would be -0.
        let value = (part.iter().fold(0.0, |sum, (_, weight)| sum + weight) / total).clamp(0.0, 1.0);
        let kish = total * total / whole.squares;
        let clusters = whole.by_step.iter().filter(|weight| **weight > 0.0).count();
        let binomial = value * (1.0 - value) / kish;
        let mut effective = kish;
        let mut t = NORMAL;
        if clusters >= 2 {
            // Passes without the part contribute (p n_s)^2 each.
            let squares: f64 = whole.by_step.iter().map(|weight| weight * weight).sum();
            let correction: f64 = part
                .iter()
                .map(|(step, x)| {
                    let without = value * whole.by_step[*step];
                    (x - without).powi(2) - without.powi(2)
                })
                .sum();
            let sum = (value * value * squares + correction).max(0.0);
            let clustered = clusters as f64 / (clusters - 1) as f64 * sum / (total * total);
            if clustered > binomial && binomial > 0.0 {
                effective = kish * binomial / clustered;
                t = student(clusters - 1);
            }
        }
        let effective = effective.max(1.0);
        let z2 = t * t / effective;
        let middle = (value + z2 / 2.0) / (1.0 + z2);
        let half = t / (1.0 + z2) * (value * (1.0 - value) / effective + z2 / (4.0 * effective)).sqrt();
        let low = if value == 0.0 { 0.0 } else { (middle - half).clamp(0.0, value) };
        let high = if value == 1.0 { 1.0 } else { (middle + half).clamp(value, 1.0) };
        Some(Share { value, low, high, effective_samples: effective })
    }
}

/// What a normal number stays below with probability 0.975.
const NORMAL: f64 = 1.959_963_984_540_054;

/// The same of Student's t; for many degrees of freedom by the expansion of Abramowitz and Stegun, 26.7.5.
fn student(degrees: usize) -> f64 {
    if degrees < 100 {
        return student_quantile(0.975, degrees);
    }
    let (z, nu) = (NORMAL, degrees as f64);
    z + (z.powi(3) + z) / (4.0 * nu) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * nu * nu)
}

/// Ranks from 1: of shares in falling order, those whose intervals overlap, directly or through others between them, have the
/// same rank. The order of the result is that of `shares`.
pub fn ranks(shares: &[Share]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|a, b| shares[*b].value.total_cmp(&shares[*a].value));
    let mut ranks = vec![0; shares.len()];
    let (mut rank, mut lowest) = (1, f64::INFINITY);
    for (place, index) in order.into_iter().enumerate() {
        if shares[index].high < lowest && place > 0 {
            rank = place as u64 + 1;
            lowest = f64::INFINITY;
        }
        lowest = lowest.min(shares[index].low);
        ranks[index] = rank;
    }
    ranks
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::statistics::random::Random;

    fn whole(per_step: &[usize]) -> Whole {
        let mut whole = Whole::new(per_step.len());
        for (step, count) in per_step.iter().enumerate() {
            for _ in 0..*count {
                whole.add(step, 1000);
            }
        }
        whole
    }

    #[test]
    fn with_one_pass_it_is_wilsons_interval() {
        // Newcombe (1998), table I: 15 of 148, Wilson's score: 0.0624 to 0.1605.
        let share = Share::of(&whole(&[148]), &[(0, 15_000.0)]).unwrap();
        assert!((share.value - 15.0 / 148.0).abs() < 1e-12);
        assert!((share.low - 0.0624).abs() < 1e-4 && (share.high - 0.1605).abs() < 1e-4, "{share:?}");
        assert!((share.effective_samples - 148.0).abs() < 1e-9);
        // None and all of them: the interval ends there and is not empty.
        let none = Share::of(&whole(&[20]), &[]).unwrap();
        assert!(none.low == 0.0 && (none.high - 0.1611).abs() < 1e-4, "{none:?}");
        let all = Share::of(&whole(&[20]), &[(0, 20_000.0)]).unwrap();
        assert!(all.high == 1.0 && (all.low - 0.8389).abs() < 1e-4, "{all:?}");
        assert!(none.value.is_sign_positive(), "records and tables do not say -0");
        assert_eq!(Share::of(&Whole::new(3), &[]), None);
    }

    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says_also_where_passes_differ() {
        let mut random = Random::new(11);
        // (spread of the part's chance between passes, passes, samples per pass)
        for (spread, steps, per_step) in [(0.0, 40, 15), (0.2, 40, 15), (0.2, 12, 60), (0.0, 200, 3)] {
            let rounds = 2_000;
            let (mut held, mut width) = (0, 0.0);
            for _ in 0..rounds {
                let mut all = Whole::new(steps);
                let mut part = Vec::new();
                for step in 0..steps {
                    let chance = 0.3 + spread * (2.0 * random.uniform() - 1.0);
                    let mut weight = 0.0;
                    for _ in 0..per_step {
                        all.add(step, 1000);
                        weight += if random.uniform() < chance { 1000.0 } else { 0.0 };
                    }
                    part.push((step, weight));
                }
                let share = Share::of(&all, &part).unwrap();
                held += u32::from(share.low <= 0.3 && 0.3 <= share.high);
                width += share.high - share.low;
            }
            let held = f64::from(held) / f64::from(rounds);
            assert!(held > 0.93, "spread {spread}, {steps} passes: {held}");
            assert!(held < 0.995 && width / f64::from(rounds) < 0.25, "no wider than needed: {held}");
        }
    }

    #[test]
    fn the_expansion_continues_the_exact_quantiles() {
        for degrees in [100, 150, 400] {
            assert!((student(degrees) - student_quantile(0.975, degrees)).abs() < 1e-5, "{degrees}");
        }
    }

    #[test]
    fn unequal_weights_count_for_less() {
        let mut all = Whole::new(1);
        all.add(0, 10_000);
        for _ in 0..10 {
            all.add(0, 1_000);
        }
        let share = Share::of(&all, &[(0, 10_000.0)]).unwrap();
        assert!((share.effective_samples - 400.0 / 110.0).abs() < 1e-9, "{share:?}");
    }

    #[test]
    fn overlapping_intervals_share_a_rank() {
        let share =
            |value: f64, half: f64| Share { value, low: value - half, high: value + half, effective_samples: 9.0 };
        let shares = [share(0.1, 0.01), share(0.5, 0.02), share(0.12, 0.015), share(0.2, 0.01), share(0.01, 0.001)];
        assert_eq!(ranks(&shares), [3, 1, 3, 2, 5]);
        // Through the one between them.
        assert_eq!(ranks(&[share(0.5, 0.03), share(0.45, 0.03), share(0.4, 0.03)]), [1, 1, 1]);
        assert_eq!(ranks(&[]), [0u64; 0]);
    }
}
