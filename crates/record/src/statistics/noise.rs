//! What the verdict rule is worth on this machine today: how often it errs where nothing differs, and what it can find.
//! Not here: the rule (`verdict.rs`).
//!
//! From log-ratios of the same thing against itself: new experiments of as many pairs are drawn from them, each log-ratio
//! with a random sign (nothing differs, so both signs are as likely) and a little smoothing (so that four numbers are not the
//! only four that can occur), and judged by the rule itself.

use crate::quantity::{Reading, Unit};
use crate::statistics::paired::{Comparison, Estimator};
use crate::statistics::random::Random;
use crate::statistics::verdict::{Outcome, decide, repeats_for};
use crate::statistics::{CONFIDENCE, POWER};
use crate::{Known, Samples};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Experiments drawn; a share of 5 % is then known to ±1 %.
pub const RESAMPLES: u64 = 2000;

/// How the rule fares against noise like this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    pub source: Source,
    /// Log-ratios of the same against itself that stand behind it.
    pub differences: u64,
    /// Repeats per arm that the answers are for.
    pub repeats: u64,
    pub seed: u64,
    /// Standard deviation of a pair's log-ratio, about the relative difference of two samples of one row.
    pub pair_spread: Reading,
    /// Share of experiments in which the rule says faster or slower although nothing differs. At most 0.05 is promised.
    pub false_positive_rate: Reading,
    /// The smallest difference that is found in 80 of 100 experiments, as a part of the control's value.
    pub detectable: Reading,
    /// About how many repeats it takes to find a difference of 3 % in 80 of 100 experiments.
    pub repeats_for_3_percent: Known<u64>,
}

/// Where the noise was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// An arm that is the control again.
    SameAgain,
    /// The control's own samples, each with its successor; they stand further apart than the samples of a row, so it is more
    /// noise rather than less.
    Control,
    /// What the pairs of a comparison spread around their own estimate.
    Residuals,
}

/// From a comparison: of the control with itself ([`Source::SameAgain`]), or what any comparison leaves unexplained.
/// The effect of the order is taken out, as the rule does.
pub fn from_comparison(comparison: &Comparison, source: Source, repeats: usize, band: f64, seed: u64) -> Noise {
    let residuals = Estimator::new(&comparison.control_first).residuals(&comparison.log_ratios);
    assess(&residuals, source, repeats, band, seed)
}

/// From the control's samples alone, in the order of execution; each above 0.
pub fn from_control(samples: &[f64], repeats: usize, band: f64, seed: u64) -> Noise {
    let differences: Vec<f64> =
        samples.chunks_exact(2).map(|pair| pair[1].ln() - pair[0].ln()).filter(|log| log.is_finite()).collect();
    assess(&differences, Source::Control, repeats, band, seed)
}

fn assess(differences: &[f64], source: Source, repeats: usize, band: f64, seed: u64) -> Noise {
    let count = differences.len() as u64;
    let mut noise = Noise {
        source,
        differences: count,
        repeats: repeats as u64,
        seed,
        pair_spread: missing(),
        false_positive_rate: missing(),
        detectable: missing(),
        repeats_for_3_percent: Known::unavailable(TOO_FEW, MORE),
    };
    if differences.len() < 2 || repeats < 2 {
        return noise;
    }
    let spread = (differences.iter().map(|log| log * log).sum::<f64>() / differences.len() as f64).sqrt();
    noise.pair_spread = Reading::measured(spread, Unit::Share, count);
    noise.repeats_for_3_percent = match repeats_for(spread, f64::ln_1p(0.03)) {
        Some(repeats) => Known::Is(repeats),
        None => Known::unavailable("more than 1000: the noise is too large", "quieten the machine"),
    };
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
        wrong += u64::from(matches!(decide(estimate.center, ends, band), Outcome::Faster | Outcome::Slower));
        // A true difference moves center and ends alike: from this one on, this experiment would have found it.
        found_from.push((-ends.0).max(band.ln_1p() - estimate.center));
    }
    noise.false_positive_rate = Reading::measured(wrong as f64 / RESAMPLES as f64, Unit::Share, RESAMPLES);
    if let Ok(found_from) = Samples::new(&found_from) {
        let log = found_from.percentile(POWER * 100.0).max(0.0);
        noise.detectable = Reading::measured(log.exp_m1(), Unit::Share, RESAMPLES);
    }
    noise
}

const TOO_FEW: &str = "fewer than two pairs of the same against itself";
const MORE: &str = "run with --repeats 4 or more, or add --variant A/A";

fn missing() -> Reading {
    Known::unavailable(TOO_FEW, MORE)
}

impl Noise {
    /// One line for a person.
    pub fn words(&self) -> String {
        let source = match self.source {
            Source::SameAgain => "the control against itself",
            Source::Control => "the control's own samples",
            Source::Residuals => "what the pairs spread around their mean",
        };
        match (self.false_positive_rate.value(), self.detectable.value()) {
            (Some(rate), Some(detectable)) => format!(
                "noise ({source}, {} pairs): with {} repeats a false alarm in {:.1} % of experiments (at most {:.0} % is \
                 promised), and differences from {:.1} % on are found in {:.0} %{}",
                self.differences,
                self.repeats,
                rate * 100.0,
                (1.0 - CONFIDENCE) * 100.0,
                detectable * 100.0,
                POWER * 100.0,
                self.repeats_for_3_percent
                    .known()
                    .map_or_else(String::new, |repeats| format!("; 3 % takes about {repeats} repeats")),
            ),
            _ => format!("noise: not known: {TOO_FEW}; {MORE}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn normal(count: usize, spread: f64, seed: u64) -> Vec<f64> {
        let mut random = Random::new(seed);
        (0..count).map(|_| spread * random.normal()).collect()
    }

    /// With normal noise of a known spread, the answers are those of the textbook's power formula.
    #[test]
    fn answers_are_those_of_the_textbook_for_normal_noise() {
        let noise = assess(&normal(400, 0.02, 1), Source::SameAgain, 8, 0.0, 5);
        let rate = noise.false_positive_rate.value().unwrap();
        assert!((rate - 0.05).abs() < 0.015, "{rate}");
        // t(0.975, 6) = 2.447; the 80th percentile of the noncentral t is about t + 0.9 here.
        let detectable = noise.detectable.value().unwrap();
        let expected = 0.02 / 8f64.sqrt() * (2.447 + 0.9);
        assert!((detectable / expected - 1.0).abs() < 0.1, "{detectable} against {expected}");
    }

    #[test]
    fn more_repeats_find_less_and_seeds_repeat() {
        let differences = normal(12, 0.03, 2);
        let found = |repeats| assess(&differences, Source::Residuals, repeats, 0.02, 9);
        let sizes: Vec<f64> = [4, 8, 16, 32].map(|repeats| found(repeats).detectable.value().unwrap()).to_vec();
        assert!(sizes.windows(2).all(|pair| pair[1] < pair[0]), "{sizes:?}");
        assert_eq!(found(8), found(8));
    }

    #[test]
    fn nothing_is_said_without_pairs() {
        let noise = assess(&[0.01], Source::Control, 4, 0.02, 1);
        assert!(noise.false_positive_rate.missing().is_some() && noise.words().contains("--repeats"));
        assert!(from_control(&[], 4, 0.02, 1).detectable.missing().is_some());
    }

    #[test]
    fn identical_samples_are_no_noise() {
        let noise = from_control(&[5.0; 8], 4, 0.02, 1);
        assert_eq!(noise.false_positive_rate.value(), Some(0.0));
        assert!((noise.detectable.value().unwrap() - 0.02).abs() < 1e-9, "the band remains");
    }
}
