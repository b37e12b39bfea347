//! One metric of one arm against the control: the ratio and its interval, from pairs of neighbouring samples.
//! Not here: which way is better and what follows (`verdict.rs`); how well this works today (`noise.rs`).
//!
//! A pair is the two samples of one row (`order.rs`). Its log-ratio is free of everything that both samples shared. Three
//! methods, by the number of pairs alone, never by looking at the data:
//!
//! - fewer than 4 pairs: Student's interval on the mean log-ratio;
//! - 4 to 9: the same after the effect of the order is taken out. Half of the pairs ran the control first and half the arm,
//!   so half the difference of their means is what running second costs; one more degree of freedom pays for it;
//! - 10 to 400: Hodges and Lehmann's estimate with the signed-rank interval, after the same step with medians, and one
//!   order statistic wider to pay for it. A few wild samples hardly move it;
//! - more than 400: the second method again, because the third one's work grows with the square.
//!
//! A percentile bootstrap is not used: of pairs as few as these it finds differences where there are none in 10 to 20 % of
//! experiments; `tests/statistics_by_simulation.rs` shows it.

use crate::bench::{Interval, Method};
use crate::known::Known;
use crate::statistics::CONFIDENCE;
use crate::statistics::quantile::{signed_rank_depth, student_quantile};

/// Two neighbouring samples of a metric, both above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    pub control: f64,
    pub arm: f64,
    /// The control's sample was taken before the arm's.
    pub control_first: bool,
}

/// A metric of an arm over that of the control.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub method: Method,
    /// Arm over control, the estimate.
    pub ratio: f64,
    /// Holds the true ratio in 95 of 100 experiments; missing for a single pair.
    pub interval: Known<Interval>,
    /// Second sample of a pair over the first, whichever arm it is; missing where the method does not estimate it.
    pub second_over_first: Known<f64>,
    /// ln(arm / control) of every pair, in the order given.
    pub log_ratios: Vec<f64>,
    /// Of every pair: the control's sample was taken before the arm's.
    pub control_first: Vec<bool>,
}

/// Why pairs cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum PairError {
    #[error("there is no pair to compare: in no row of the order do both arms have a sample that counts; run again")]
    Empty,
    #[error("pair number {index}: {value} was found where a ratio needs a finite number above 0")]
    NotPositive { index: usize, value: f64 },
}

/// Compares the pairs.
///
/// # Errors
/// No pair, or a value that has no logarithm.
pub fn compare(pairs: &[Pair]) -> Result<Comparison, PairError> {
    if pairs.is_empty() {
        return Err(PairError::Empty);
    }
    for (index, pair) in pairs.iter().enumerate() {
        for value in [pair.control, pair.arm] {
            if !value.is_finite() || value <= 0.0 {
                return Err(PairError::NotPositive { index, value });
            }
        }
    }
    // The difference of logarithms, because the ratio itself may overflow.
    let log_ratios: Vec<f64> = pairs.iter().map(|pair| pair.arm.ln() - pair.control.ln()).collect();
    let control_first: Vec<bool> = pairs.iter().map(|pair| pair.control_first).collect();
    let estimator = Estimator::new(&control_first);
    let estimate = estimator.estimate(&log_ratios);
    let interval = match estimate.ends.map(|(low, high)| Interval { low: low.exp(), high: high.exp() }) {
        Some(interval) if interval.low.is_finite() && interval.high.is_finite() => Known::Is(interval),
        Some(_) => Known::unavailable(
            "the pairs differ so much that the interval has no finite end",
            "look at the samples: at least one of them measured something else",
        ),
        None => Known::unavailable("a single pair shows no spread", "use --repeats 2 or more"),
    };
    let second_over_first = match estimate.order.map(f64::exp) {
        // A log-ratio holds the effect with + where the arm ran second.
        Some(order) if order.is_finite() => Known::Is(order),
        Some(_) => Known::unavailable("the pairs differ so much that it is not finite", "look at the samples"),
        None => Known::unavailable("fewer than 4 pairs, or all in one order", "use --repeats 4 or more"),
    };
    let ratio = estimate.center.exp();
    Ok(Comparison { method: estimator.method, ratio, interval, second_over_first, log_ratios, control_first })
}

/// From how many pairs on each method is used.
const ADJUSTED_FROM: usize = 4;
const RANKS_FROM: usize = 10;
const RANKS_UP_TO: usize = 400;

/// The rule for a given set of orders, with its critical values looked up once.
pub(crate) struct Estimator {
    pub(crate) method: Method,
    control_first: Vec<bool>,
    /// Student's quantile.
    t: f64,
    /// How many Walsh averages the interval leaves out on either side, plus one.
    depth: usize,
}

/// Logarithms.
pub(crate) struct Estimate {
    pub(crate) center: f64,
    /// The interval's ends.
    pub(crate) ends: Option<(f64, f64)>,
    order: Option<f64>,
}

impl Estimator {
    pub(crate) fn new(control_first: &[bool]) -> Estimator {
        let n = control_first.len();
        let both = control_first.contains(&true) && control_first.contains(&false);
        let method = match n {
            0..ADJUSTED_FROM => Method::PairedT,
            RANKS_FROM..=RANKS_UP_TO => Method::OrderAdjustedSignedRank,
            _ if both => Method::OrderAdjustedT,
            _ => Method::PairedT,
        };
        let degrees = match method {
            Method::PairedT => n.saturating_sub(1),
            _ => n - 2,
        };
        let tail = (1.0 - CONFIDENCE) / 2.0;
        let t = if degrees == 0 { f64::NAN } else { student_quantile(1.0 - tail, degrees) };
        let depth = if method == Method::OrderAdjustedSignedRank { signed_rank_depth(n, tail) - 1 } else { 0 };
        Estimator { method, control_first: control_first.to_vec(), t, depth }
    }

    /// Of as many logarithms of ratios as there are orders.
    pub(crate) fn estimate(&self, logs: &[f64]) -> Estimate {
        match self.method {
            Method::PairedT => {
                let center = mean(logs);
                let squares: f64 = logs.iter().map(|log| (log - center).powi(2)).sum();
                let n = logs.len() as f64;
                let half = self.t * (squares / (n - 1.0) / n).sqrt();
                let ends = (logs.len() > 1).then_some((center - half, center + half));
                Estimate { center, ends, order: None }
            }
            Method::OrderAdjustedT => {
                let (first, second) = self.split(logs);
                let (first_mean, second_mean) = (mean(&first), mean(&second));
                let center = f64::midpoint(first_mean, second_mean);
                let squares: f64 = first.iter().map(|log| (log - first_mean).powi(2)).sum::<f64>()
                    + second.iter().map(|log| (log - second_mean).powi(2)).sum::<f64>();
                let variance = squares / (logs.len() - 2) as f64;
                let half = self.t * (variance * (1.0 / first.len() as f64 + 1.0 / second.len() as f64)).sqrt() / 2.0;
                let order = Some((first_mean - second_mean) / 2.0);
                Estimate { center, ends: Some((center - half, center + half)), order }
            }
            Method::OrderAdjustedSignedRank => {
                let order = self.order_by_medians(logs);
                let adjusted: Vec<f64> = self.without_order(logs, order.unwrap_or(0.0));
                let mut walsh: Vec<f64> = (0..adjusted.len())
                    .flat_map(|one| (0..=one).map(move |other| (one, other)))
                    .map(|(one, other)| f64::midpoint(adjusted[one], adjusted[other]))
                    .collect();
                let last = walsh.len() - 1;
                let ends = Some((nth(&mut walsh, self.depth - 1), nth(&mut walsh, last + 1 - self.depth)));
                Estimate { center: median(&mut walsh), ends, order }
            }
        }
    }

    /// What is left of the logarithms without estimate and effect of the order, spread as widely as the noise was.
    pub(crate) fn residuals(&self, logs: &[f64]) -> Vec<f64> {
        let estimate = self.estimate(logs);
        let order = estimate.order.unwrap_or(0.0);
        let fitted = if estimate.order.is_some() { 2 } else { 1 };
        let Some(degrees) = logs.len().checked_sub(fitted).filter(|degrees| *degrees > 0) else {
            return Vec::new();
        };
        // The second factor makes the spread as often too large as too small (the median of chi squared).
        let widen = (logs.len() as f64 / degrees as f64).sqrt() * (1.0 + 1.0 / (3.0 * degrees as f64));
        self.without_order(logs, order).into_iter().map(|log| (log - estimate.center) * widen).collect()
    }

    fn split(&self, logs: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let of = |wanted: bool| {
            logs.iter().zip(&self.control_first).filter(|(_, first)| **first == wanted).map(|(log, _)| *log).collect()
        };
        (of(true), of(false))
    }

    fn without_order(&self, logs: &[f64], order: f64) -> Vec<f64> {
        logs.iter()
            .zip(&self.control_first)
            .map(|(log, first)| if *first { log - order } else { log + order })
            .collect()
    }

    fn order_by_medians(&self, logs: &[f64]) -> Option<f64> {
        let (first, second) = self.split(logs);
        let mut differences: Vec<f64> =
            first.iter().flat_map(|one| second.iter().map(move |other| (one - other) / 2.0)).collect();
        (!differences.is_empty()).then(|| median(&mut differences))
    }
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// The number at this place of the sorted order. Sorting all of them is most of the work of `noise.rs` otherwise.
fn nth(numbers: &mut [f64], place: usize) -> f64 {
    *numbers.select_nth_unstable_by(place, f64::total_cmp).1
}

/// Of at least one number.
fn median(numbers: &mut [f64]) -> f64 {
    let middle = numbers.len() / 2;
    let upper = nth(numbers, middle);
    if numbers.len() % 2 == 1 {
        return upper;
    }
    let lower = numbers[..middle].iter().copied().fold(f64::NEG_INFINITY, f64::max);
    f64::midpoint(lower, upper)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn pairs(logs: &[f64]) -> Vec<Pair> {
        logs.iter()
            .enumerate()
            .map(|(row, log)| Pair {
                control: 10.0,
                arm: 10.0 * log.exp(),
                control_first: row % 4 == 0 || row % 4 == 3,
            })
            .collect()
    }

    fn logs_of(comparison: &Comparison) -> (f64, f64, f64) {
        let interval = comparison.interval.known().unwrap();
        (comparison.ratio.ln(), interval.low.ln(), interval.high.ln())
    }

    #[test]
    fn two_pairs_give_students_interval() {
        // Mean 0.02, standard error 0.01, one degree of freedom.
        let (center, low, high) = logs_of(&compare(&pairs(&[0.01, 0.03])).unwrap());
        assert!((center - 0.02).abs() < 1e-12);
        assert!((low - (0.02 - 0.127_062_047)).abs() < 1e-8 && (high - (0.02 + 0.127_062_047)).abs() < 1e-8);
        let one = compare(&pairs(&[0.01])).unwrap();
        assert!(one.interval.missing().is_some() && (one.ratio.ln() - 0.01).abs() < 1e-12);
    }

    #[test]
    fn four_pairs_give_the_crossover_interval() {
        // Control first: 0.05, 0.07; arm first: 0.01, 0.03. Effect 0.04, order 0.02, residuals +-0.01, variance 0.0004/2.
        let comparison = compare(&pairs(&[0.05, 0.01, 0.03, 0.07])).unwrap();
        let (center, low, high) = logs_of(&comparison);
        let half = 4.302_652_73 * (0.0002f64 / 4.0).sqrt();
        assert!(
            (center - 0.04).abs() < 1e-12 && (low - (0.04 - half)).abs() < 1e-8 && (high - (0.04 + half)).abs() < 1e-8
        );
        assert!((comparison.second_over_first.known().unwrap().ln() - 0.02).abs() < 1e-12);
        assert_eq!(comparison.method, Method::OrderAdjustedT);
    }

    #[test]
    fn a_wild_sample_among_many_moves_little() {
        let mut logs: Vec<f64> = (0..16).map(|row| 0.03 + 0.002 * f64::from(row % 5 - 2)).collect();
        let (calm, ..) = logs_of(&compare(&pairs(&logs)).unwrap());
        logs[6] = -0.5;
        let (center, low, high) = logs_of(&compare(&pairs(&logs)).unwrap());
        assert!((center - calm).abs() < 0.001 && low > 0.02 && high < 0.04, "{low} {center} {high}");
    }

    /// Against plain loops over sorted averages: ten pairs without an effect of the order.
    #[test]
    fn ten_pairs_give_the_signed_rank_interval() {
        let logs = [0.01, 0.03, -0.02, 0.05, 0.04, 0.02, 0.00, 0.06, 0.035, 0.015];
        let pairs: Vec<Pair> =
            logs.iter().map(|log: &f64| Pair { control: 1.0, arm: log.exp(), control_first: true }).collect();
        let mut averages = Vec::new();
        for one in 0..10 {
            for other in one..10 {
                averages.push((logs[one] + logs[other]) / 2.0);
            }
        }
        averages.sort_by(f64::total_cmp);
        // The table's depth for ten pairs is 9, one less for the order.
        let (center, low, high) = logs_of(&compare(&pairs).unwrap());
        assert!((low - averages[7]).abs() < 1e-12 && (high - averages[55 - 8]).abs() < 1e-12);
        assert!((center - averages[27]).abs() < 1e-12);
    }

    /// The middle of two groups whose only difference is the order.
    #[test]
    fn what_running_second_costs_is_taken_out() {
        for n in [4, 8, 12, 40, 600] {
            let logs: Vec<f64> = (0..n)
                .map(|row| 0.05 + if row % 4 == 0 || row % 4 == 3 { 0.02 } else { -0.02 } + 1e-4 * f64::from(row % 3))
                .collect();
            let comparison = compare(&pairs(&logs)).unwrap();
            let (center, low, high) = logs_of(&comparison);
            assert!((center - 0.0501).abs() < 1e-4 && high - low < 1e-3, "{n}: {low} {center} {high}");
            assert!((comparison.second_over_first.known().unwrap().ln() - 0.02).abs() < 1e-4);
        }
    }

    #[test]
    fn exchanging_the_arms_inverts_the_ratio() {
        for n in [2, 3, 4, 7, 8, 10, 16, 31] {
            let logs: Vec<f64> = (0..n).map(|row| 0.01 * f64::from((row * 7) % 5) - 0.013).collect();
            let there = compare(&pairs(&logs)).unwrap();
            let back: Vec<Pair> = pairs(&logs)
                .iter()
                .map(|pair| Pair { control: pair.arm, arm: pair.control, control_first: !pair.control_first })
                .collect();
            let back = compare(&back).unwrap();
            assert!((there.ratio * back.ratio - 1.0).abs() < 1e-12);
            let (there, back) = (there.interval.known().unwrap(), back.interval.known().unwrap());
            assert!((there.low * back.high - 1.0).abs() < 1e-12, "{n}: {there:?} {back:?}");
        }
    }

    #[test]
    fn what_has_no_logarithm_is_refused() {
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let pair = Pair { control: 1.0, arm: value, control_first: true };
            assert!(matches!(compare(&[pair]), Err(PairError::NotPositive { index: 0, .. })), "{value}");
        }
        assert_eq!(compare(&[]), Err(PairError::Empty));
        // Absurd pairs: no infinity enters the record.
        let absurd =
            [(1e-300, 1e300), (1e300, 1e-300)].map(|(control, arm)| Pair { control, arm, control_first: true });
        assert!(compare(&absurd).unwrap().interval.missing().is_some());
        let absurd = [(1e-300, 1e300, true), (1e300, 1e-300, false), (1e-300, 1e300, true), (1e300, 1e-300, false)]
            .map(|(control, arm, control_first)| Pair { control, arm, control_first });
        assert!(compare(&absurd).unwrap().second_over_first.missing().is_some());
    }
}
