//! Where a median lies, from the order of its samples alone: no distribution is supposed.
//! Not here: medians themselves (`samples.rs`), and intervals of ratios (`paired.rs`).

use crate::samples::Samples;
use crate::statistics::CONFIDENCE;

/// The interval between the k-th smallest and the k-th largest sample, with the largest k at which it holds the true median
/// at least [`CONFIDENCE`] often, or k = 1 where too few samples allow no such k; and how often it does, which is
/// `1 - 2 P(Binomial(n, 1/2) < k)` for a continuous distribution.
///
/// None for fewer than two samples, or one that is not finite.
pub fn median_interval(samples: &[f64]) -> Option<(f64, f64, f64)> {
    let n = samples.len();
    Samples::new(samples).ok().filter(|_| n >= 2)?;
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    // P(Binomial(n, 1/2) = i), by the ratio of neighbours; logarithms, so that large n do not underflow.
    let mut log_mass = -(n as f64) * std::f64::consts::LN_2;
    let mut below = log_mass.exp();
    let (mut k, mut confidence) = (1, 1.0 - 2.0 * below);
    for i in 1..n.div_ceil(2) {
        log_mass += ((n - i + 1) as f64 / i as f64).ln();
        below += log_mass.exp();
        if 1.0 - 2.0 * below < CONFIDENCE {
            break;
        }
        (k, confidence) = (i + 1, 1.0 - 2.0 * below);
    }
    Some((sorted[k - 1], sorted[n - k], confidence))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::statistics::random::Random;

    /// The textbook's table of the sign test: n = 12 takes the 3rd and the 10th sample (96.1 %), n = 20 the 6th and the 15th
    /// (95.9 %); five samples cannot reach 95 %, and their range holds the median 15 times out of 16.
    #[test]
    fn ranks_and_confidence_are_the_textbooks() {
        let up_to = |n: usize| (1..=n).map(|i| i as f64).collect::<Vec<_>>();
        let (low, high, confidence) = median_interval(&up_to(12)).unwrap();
        assert_eq!((low, high), (3.0, 10.0));
        assert!((confidence - 0.9614).abs() < 1e-4, "{confidence}");
        let (low, high, confidence) = median_interval(&up_to(20)).unwrap();
        assert_eq!((low, high), (6.0, 15.0));
        assert!((confidence - 0.9586).abs() < 1e-4, "{confidence}");
        assert_eq!(median_interval(&up_to(5)), Some((1.0, 5.0, 0.9375)));
        assert_eq!(median_interval(&[2.0, 1.0]), Some((1.0, 2.0, 0.5)));
        assert_eq!(median_interval(&[1.0]), None);
        assert_eq!(median_interval(&[1.0, f64::NAN]), None);
        assert!(median_interval(&up_to(5000)).unwrap().2 >= CONFIDENCE);
    }

    #[test]
    fn the_interval_holds_the_median_as_often_as_it_says() {
        let mut random = Random::new(11);
        let held = (0..2000)
            .filter(|_| {
                // Far from symmetric; the median of exp(normal) is 1.
                let samples: Vec<f64> = (0..12).map(|_| random.normal().exp()).collect();
                let (low, high, _) = median_interval(&samples).unwrap();
                low <= 1.0 && 1.0 <= high
            })
            .count();
        // 1923 are expected, with a standard deviation of 9.
        assert!((1885..=1960).contains(&held), "{held}");
    }
}
