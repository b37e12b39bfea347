//! What tracing costs: the same request without and with it, in alternation.
//! Not here: running it.

use crate::error::Error;
use record::statistics::CONFIDENCE;
use record::statistics::paired::{Pair, compare};
use record::timeline::{OverheadSample, TracingOverhead};
use record::{Known, Reading, Unit};

const HOW: &str = "leave out `--overhead-rounds 0`";

/// In its place where it was not measured.
pub(super) fn not_measured() -> Known<TracingOverhead> {
    Known::unavailable("not measured", HOW)
}

/// `clocked(traced, done)` runs one request and gives its seconds. A round is four of them: without, with, with, without, so
/// that a drift weighs on both sides alike.
pub(super) fn measure(
    rounds: usize,
    mut clocked: impl FnMut(bool, usize) -> Result<f64, Error>,
) -> Result<Known<TracingOverhead>, Error> {
    let (mut samples, mut pairs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for plain_first in [true, false] {
            let mut seconds = [0.0; 2];
            for traced in if plain_first { [false, true] } else { [true, false] } {
                let request_s = clocked(traced, samples.len())?;
                samples.push(OverheadSample { traced, request_s });
                seconds[usize::from(traced)] = request_s;
            }
            pairs.push(Pair { control: seconds[0], arm: seconds[1], control_first: plain_first });
        }
    }
    if pairs.is_empty() {
        return Ok(not_measured());
    }
    Ok(match compare(&pairs) {
        Ok(comparison) => {
            let n = pairs.len() as u64;
            let share = |ratio: f64| Reading::measured(ratio - 1.0, Unit::Share, n);
            let (low, high) = match &comparison.interval {
                Known::Is(interval) => (share(interval.low), share(interval.high)),
                Known::Unavailable(missing) => {
                    (Known::Unavailable(missing.clone()), Known::Unavailable(missing.clone()))
                }
            };
            let confidence = Reading::measured(CONFIDENCE, Unit::Share, n);
            Known::Is(TracingOverhead { share: share(comparison.ratio), low, high, confidence, samples })
        }
        Err(error) => Known::unavailable(error.to_string(), "trace a longer request"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// 5 % slower with tracing, and a drift of 1 % per request that the alternation takes out.
    #[test]
    fn a_known_cost_is_found_through_a_drift() {
        let overhead = measure(2, |traced, done| {
            let drift = 1.0 + 0.01 * done as f64;
            Ok(if traced { 1.05 * drift } else { drift })
        });
        let overhead = overhead.unwrap();
        let overhead = overhead.known().unwrap();
        assert!((overhead.share.value().unwrap() - 0.05).abs() < 1e-3, "{overhead:?}");
        assert!(overhead.low.value().unwrap() <= 0.05 && overhead.high.value().unwrap() >= 0.05, "{overhead:?}");
        let order: Vec<bool> = overhead.samples.iter().map(|sample| sample.traced).collect();
        assert_eq!(order, [false, true, true, false, false, true, true, false]);
    }

    #[test]
    fn no_round_is_no_cost_of_zero() {
        assert!(measure(0, |_, _| Ok(1.0)).unwrap().known().is_none());
    }
}
