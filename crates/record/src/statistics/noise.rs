//! What the verdict rule is worth on this machine today: how often it errs where nothing differs, and what it can find.
//! Not here: the rule (`verdict.rs`).
//!
//! From log-ratios of the same thing against itself: new experiments of as many pairs are drawn from them, each log-ratio
//! with a random sign (nothing differs, so both signs are as likely) and a little smoothing (so that four numbers are not the
//! only four that can occur), and judged by the rule itself.

use crate::bench::{Metric, Noise};
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::samples::Samples;
use crate::statistics::paired::{Comparison, Estimator};
use crate::statistics::random::Random;
use crate::statistics::verdict::{Finding, decide, repeats_for};
use crate::statistics::{CONFIDENCE, POWER};

/// Experiments drawn; a share of 5 % is then known to ±1 %.
pub const RESAMPLES: u64 = 2000;

/// What the chosen number of repeats is worth against noise like that of `comparisons` in `metric`.
///
/// Where a comparison is of the control with itself, its log-ratios are noise and nothing else. Of others, what is left
/// without their estimate is. The effect of the order is taken out, as the rule does it. `source` is for the record.
pub fn assess(
    metric: Metric,
    comparisons: &[&Comparison],
    source: &str,
    repeats: usize,
    band: f64,
    seed: u64,
) -> Noise {
    let differences: Vec<f64> = comparisons
        .iter()
        .flat_map(|comparison| Estimator::new(&comparison.control_first).residuals(&comparison.log_ratios))
        .collect();
    of_differences(metric, &differences, source, repeats, band, seed)
}

fn of_differences(metric: Metric, differences: &[f64], source: &str, repeats: usize, band: f64, seed: u64) -> Noise {
    let count = differences.len() as u64;
    let missing = || Known::unavailable(TOO_FEW, MORE);
    let mut noise = Noise {
        metric,
        source: source.to_owned(),
        differences: count,
        repeats: repeats as u64,
        pair_spread: missing(),
        false_positives: missing(),
        detectable_percent: Known::unavailable(TOO_FEW, MORE),
        repeats_for_3_percent: Known::unavailable(TOO_FEW, MORE),
    };
    if differences.len() < 2 || repeats < 2 {
        return noise;
    }
    let spread = (differences.iter().map(|log| log * log).sum::<f64>() / differences.len() as f64).sqrt();
    noise.pair_spread = Reading::measured(spread, Unit::Share, count);
    noise.repeats_for_3_percent = Known::Is(repeats_for(spread, f64::ln_1p(0.03)));
    if repeats > MOST_REPEATS {
        // A record from elsewhere may claim any number; nothing is allocated by it.
        noise.false_positives = Known::unavailable(TOO_MANY, FEWER);
        noise.detectable_percent = Known::unavailable(TOO_MANY, FEWER);
        return noise;
    }
    // Two of four orders are the mirror image, as the schedule has them.
    let orders: Vec<bool> = (0..repeats).map(|row| row % 4 == 0 || row % 4 == 3).collect();
    let estimator = Estimator::new(&orders);
    let mut random = Random::new(seed);
    // Silverman's width, and shrunk so that smoothing does not add spread.
    let width = (differences.len() as f64).powf(-0.2);
    let shrink = 1.0 / (1.0 + width * width).sqrt();
    let mut drawn = vec![0.0; repeats];
    let mut wrong = 0u64;
    let mut found_from = Vec::with_capacity(RESAMPLES as usize);
    for _ in 0..RESAMPLES {
        for log in &mut drawn {
            let seen = differences[random.below(differences.len())] * random.sign();
            *log = shrink * (seen + width * spread * random.normal());
        }
        let estimate = estimator.estimate(&drawn);
        let Some(ends) = estimate.ends else { return noise };
        wrong += u64::from(matches!(decide(estimate.center, ends, band), Finding::Better | Finding::Worse));
        // A true difference moves center and ends alike: from this one on, this experiment would have found it.
        found_from.push((-ends.0).max(band.ln_1p() - estimate.center));
    }
    noise.false_positives = Reading::measured(wrong as f64 / RESAMPLES as f64, Unit::Share, RESAMPLES);
    if let Ok(found_from) = Samples::new(&found_from) {
        noise.detectable_percent = Known::Is(found_from.percentile(POWER * 100.0).max(0.0).exp_m1() * 100.0);
    }
    noise
}

/// For more, experiments are not drawn: it would take longer than it is worth.
pub const MOST_REPEATS: usize = 200;

const TOO_MANY: &str = "experiments of more than 200 repeats are not drawn";
const FEWER: &str = "look at the intervals themselves";
const TOO_FEW: &str = "fewer than two pairs of the same against itself";
const MORE: &str = "run with --repeats 4 or more";

/// One line for a person.
pub fn words(noise: &Noise) -> String {
    let name = noise.metric.name();
    let (Some(rate), Some(detectable)) = (noise.false_positives.value(), noise.detectable_percent.known()) else {
        let missing = noise.false_positives.missing();
        let (why, how) = missing.map_or((TOO_FEW, MORE), |missing| (&missing.unavailable, &missing.how_to_get));
        return format!("{name} noise: not known, for {why}; {how}");
    };
    let three = match noise.repeats_for_3_percent.known() {
        Some(repeats) if *repeats <= 1000 => format!("; 3 % takes about {repeats} repeats"),
        _ => String::new(),
    };
    format!(
        "{name} noise ({}, {} pairs): {} repeats give a false alarm in {:.1} % of experiments (at most {:.0} % is promised) \
         and find differences from {detectable:.1} % on in {:.0} %{three}",
        noise.source,
        noise.differences,
        noise.repeats,
        rate * 100.0,
        (1.0 - CONFIDENCE) * 100.0,
        POWER * 100.0,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::statistics::paired::{Pair, compare};

    fn normal(count: usize, spread: f64, seed: u64) -> Vec<f64> {
        let mut random = Random::new(seed);
        (0..count).map(|_| spread * random.normal()).collect()
    }

    fn noise_of(differences: &[f64], repeats: usize, band: f64) -> Noise {
        of_differences(Metric::Decode, differences, "test", repeats, band, 5)
    }

    /// With normal noise of a known spread, the answers are those of the textbook's power formula.
    #[test]
    fn answers_are_those_of_the_textbook_for_normal_noise() {
        let noise = noise_of(&normal(400, 0.02, 1), 8, 0.0);
        let rate = noise.false_positives.value().unwrap();
        assert!((rate - 0.05).abs() < 0.015, "{rate}");
        // t(0.975, 6) = 2.447; the 80th percentile of the noncentral t is about t + 0.9 here.
        let detectable = noise.detectable_percent.known().unwrap();
        let expected = 2.0 / 8f64.sqrt() * (2.447 + 0.9);
        assert!((detectable / expected - 1.0).abs() < 0.1, "{detectable} against {expected}");
    }

    #[test]
    fn more_repeats_find_less_and_seeds_repeat() {
        let differences = normal(12, 0.03, 2);
        let sizes =
            [4, 8, 16, 32].map(|repeats| *noise_of(&differences, repeats, 0.02).detectable_percent.known().unwrap());
        assert!(sizes.windows(2).all(|pair| pair[1] < pair[0]), "{sizes:?}");
        assert_eq!(noise_of(&differences, 8, 0.02), noise_of(&differences, 8, 0.02));
    }

    #[test]
    fn a_difference_between_the_arms_is_not_taken_for_noise() {
        let of = |effect: f64| {
            let pairs: Vec<Pair> = normal(8, 0.02, 3)
                .iter()
                .enumerate()
                .map(|(row, log)| Pair { control: 1.0, arm: (log + effect).exp(), control_first: row % 2 == 0 })
                .collect();
            assess(Metric::Decode, &[&compare(&pairs).unwrap()], "residuals", 8, 0.02, 1).pair_spread.value().unwrap()
        };
        assert!((of(0.0) - of(0.7)).abs() < 1e-9 && of(0.0) > 0.01);
    }

    #[test]
    fn nothing_is_said_without_pairs() {
        let noise = noise_of(&[0.01], 4, 0.02);
        assert!(noise.false_positives.missing().is_some() && words(&noise).contains("--repeats"));
        let many = noise_of(&[0.01, 0.02], usize::MAX, 0.02);
        assert!(many.false_positives.missing().is_some() && many.pair_spread.value().is_some());
        assert!(assess(Metric::Ttft, &[], "nothing", 4, 0.02, 1).detectable_percent.missing().is_some());
    }

    #[test]
    fn identical_samples_are_no_noise() {
        let noise = noise_of(&[0.0; 8], 4, 0.02);
        assert_eq!(noise.false_positives.value(), Some(0.0));
        assert!((noise.detectable_percent.known().unwrap() - 2.0).abs() < 1e-9, "the band remains");
    }
}
