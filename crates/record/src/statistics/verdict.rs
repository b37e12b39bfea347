//! What a comparison says: faster, slower, no difference seen within a bound, or inconclusive and how many repeats are missing.
//! Not here: how the interval is made (`paired.rs`) and how often the rule errs on this machine (`noise.rs`).
//!
//! Two conditions, both needed: the interval leaves out "no difference", and the estimate is at least the band, the smallest
//! difference that matters. "No difference" is a finding too: the whole interval lies inside the band. All else is
//! inconclusive.

use crate::quantity::Unit;
use crate::statistics::paired::{Comparison, Interval};
use crate::statistics::quantile::student_quantile;
use crate::statistics::{CONFIDENCE, POWER};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The smallest difference that matters unless somebody says otherwise: 2 %.
pub const DEFAULT_BAND: f64 = 0.02;

/// Above so many more repeats, a number is no advice.
pub const MOST_REPEATS: u64 = 1000;

/// The arm beside the control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// More per second, or less time or memory.
    Faster,
    /// Fewer per second, or more time or memory.
    Slower,
    NoDifference,
    Inconclusive,
}

/// The verdict on one metric of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    pub outcome: Outcome,
    /// The smallest difference that matters, as a part of the control's value.
    pub band: f64,
    /// Of "no difference": the largest difference, either way, that the interval leaves possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<f64>,
    /// Of "inconclusive": about how many more repeats of both arms would decide, if the noise stays what it was. Absent
    /// there as well: no interval yet, or more than 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_repeats: Option<u64>,
    /// All of it in words, verdict first.
    pub sentence: String,
}

/// What the sentence calls things.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    pub metric: &'a str,
    /// Also says which way is better.
    pub unit: Unit,
    pub control: &'a str,
    pub arm: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the band is {0}, expected a part of the whole from 0 to below 1, such as 0.02 for 2 %")]
pub struct BandError(pub f64);

impl Outcome {
    pub const ALL: [Outcome; 4] = [Outcome::Faster, Outcome::Slower, Outcome::NoDifference, Outcome::Inconclusive];

    /// The spelling in records and gates.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Faster => "faster",
            Outcome::Slower => "slower",
            Outcome::NoDifference => "no_difference",
            Outcome::Inconclusive => "inconclusive",
        }
    }
}

/// Is more of this unit better?
pub(crate) fn higher_is_better(unit: Unit) -> bool {
    match unit {
        Unit::TokensPerSecond | Unit::GigabytesPerSecond | Unit::GigaflopsPerSecond => true,
        Unit::Seconds | Unit::Microseconds | Unit::Bytes | Unit::Share => false,
    }
}

/// The rule alone, on logarithms oriented so that more is better.
pub(crate) fn decide(center: f64, (low, high): (f64, f64), band: f64) -> Outcome {
    let (up, down) = (band.ln_1p(), (-band).ln_1p());
    if low > 0.0 && center >= up {
        Outcome::Faster
    } else if high < 0.0 && center <= down {
        Outcome::Slower
    } else if low >= down && high <= up {
        Outcome::NoDifference
    } else {
        Outcome::Inconclusive
    }
}

/// Judges a comparison; `band` as a part of the control's value ([`DEFAULT_BAND`]).
///
/// # Errors
/// A band that is no part of a whole.
pub fn judge(comparison: &Comparison, band: f64, names: Names<'_>) -> Result<Verdict, BandError> {
    if !(0.0..1.0).contains(&band) {
        return Err(BandError(band));
    }
    let Some(interval) = comparison.interval.known() else {
        let why = comparison.interval.missing().map_or("", |missing| &missing.unavailable);
        let sentence = format!(
            "{}: inconclusive: {} against {}: no interval ({why}); run more repeats",
            names.metric, names.arm, names.control
        );
        return Ok(Verdict { outcome: Outcome::Inconclusive, band, within: None, more_repeats: None, sentence });
    };
    let center = comparison.ratio.ln();
    let (low, high) = (interval.low.ln(), interval.high.ln());
    // An arm that takes less is better: turned over.
    let oriented = if higher_is_better(names.unit) { (center, (low, high)) } else { (-center, (-high, -low)) };
    let outcome = decide(oriented.0, oriented.1, band);
    let within = (outcome == Outcome::NoDifference).then(|| (interval.high - 1.0).max(1.0 - interval.low));
    let more_repeats = (outcome == Outcome::Inconclusive)
        .then(|| more_repeats(comparison.log_ratios.len(), oriented.0, (high - low) / 2.0, band))
        .flatten();
    let mut verdict = Verdict { outcome, band, within, more_repeats, sentence: String::new() };
    verdict.sentence = sentence(&verdict, comparison.ratio, *interval, comparison.log_ratios.len(), names);
    Ok(verdict)
}

/// How many more repeats would settle it with [`POWER`], if estimate and noise stay what they are; the interval's half-width
/// shrinks as Student's does.
fn more_repeats(pairs: usize, center: f64, half: f64, band: f64) -> Option<u64> {
    let band = band.ln_1p();
    // Either the difference is real and the interval must come clear of 0, or there is none and it must fit into the band.
    // An estimate next to the band's edge would take for ever: there, half of the band is asked for.
    let wanted = if center.abs() >= band { center.abs() } else { (band - center.abs()).max(band / 2.0) };
    let spread = half / interval_factor(pairs);
    let total = repeats_for(spread, wanted)?;
    // At least one more mirrored pair of rows, or the verdict would stand.
    Some(total.saturating_sub(pairs as u64).max(2)).filter(|more| *more <= MOST_REPEATS)
}

/// Half-width of an interval of `pairs` log-ratios per unit of their spread.
fn interval_factor(pairs: usize) -> f64 {
    let degrees = if pairs < 4 { pairs.saturating_sub(1).max(1) } else { pairs - 2 };
    student_quantile(1.0 - (1.0 - CONFIDENCE) / 2.0, degrees) / (pairs as f64).sqrt()
}

/// The fewest repeats (even) at which a difference of `wanted` is found with [`POWER`], for log-ratios of pairs that
/// spread by `spread` (standard deviation). None: more than [`MOST_REPEATS`].
pub(crate) fn repeats_for(spread: f64, wanted: f64) -> Option<u64> {
    (2..=MOST_REPEATS / 2).map(|half| half * 2).find(|repeats| {
        let degrees = *repeats as usize - 2;
        let power = student_quantile(POWER, degrees) / (*repeats as f64).sqrt();
        // Ranks are a twentieth less sharp than means on calm data, and sharper on wild ones.
        1.05 * spread * (interval_factor(*repeats as usize) + power) <= wanted
    })
}

fn sentence(verdict: &Verdict, ratio: f64, interval: Interval, pairs: usize, names: Names<'_>) -> String {
    let Names { metric, unit, control, arm } = names;
    let measured = change(ratio, unit);
    let range = range(interval, unit);
    let evidence = format!("95 % interval {range}, {pairs} pairs");
    let band = percent(verdict.band);
    match verdict.outcome {
        Outcome::Faster | Outcome::Slower => {
            let better = verdict.outcome == Outcome::Faster;
            let word = match (unit, better) {
                (Unit::Bytes, true) => "smaller",
                (Unit::Bytes, false) => "larger",
                (_, true) => "faster",
                (_, false) => "slower",
            };
            format!("{metric}: {arm} is {word} than {control}: {measured} ({evidence})")
        }
        Outcome::NoDifference => {
            let within = percent_up(verdict.within.unwrap_or(verdict.band));
            format!(
                "{metric}: no difference seen within ±{within} % between {arm} and {control} ({evidence}; less than \
                 {band} % does not matter)"
            )
        }
        Outcome::Inconclusive => {
            let excludes = interval.low > 1.0 || interval.high < 1.0;
            let why = if excludes {
                format!("which may or may not reach the {band} % that matter")
            } else {
                "which leaves out neither a difference nor none".to_owned()
            };
            let next = verdict.more_repeats.map_or_else(
                || format!("more than {MOST_REPEATS} more repeats would be needed: quieten the machine instead"),
                |more| format!("needs about {more} more repeats"),
            );
            format!("{metric}: inconclusive, {next}: {arm} measured {measured} than {control} ({evidence}, {why})")
        }
    }
}

/// `12.3 % more tokens per second`, `4.0 % less time`: the sign is in the word.
fn change(ratio: f64, unit: Unit) -> String {
    let (word, size) = side(ratio, unit);
    format!("{size} % {word} {}", noun(unit))
}

fn noun(unit: Unit) -> &'static str {
    match unit {
        Unit::TokensPerSecond => "tokens per second",
        Unit::Seconds | Unit::Microseconds => "time",
        Unit::Bytes => "memory",
        Unit::GigabytesPerSecond => "bandwidth",
        Unit::GigaflopsPerSecond => "throughput",
        Unit::Share => "of the whole",
    }
}

fn side(ratio: f64, unit: Unit) -> (&'static str, String) {
    let less = if unit == Unit::TokensPerSecond { "fewer" } else { "less" };
    (if ratio >= 1.0 { "more" } else { less }, percent(ratio - 1.0))
}

fn range(interval: Interval, unit: Unit) -> String {
    let ((low_word, low), (high_word, high)) = (side(interval.low, unit), side(interval.high, unit));
    if low_word == high_word {
        // The smaller size first.
        let (from, to) = if interval.low >= 1.0 { (low, high) } else { (high, low) };
        format!("{from} to {to} % {low_word}")
    } else {
        format!("{low} % {low_word} to {high} % {high_word}")
    }
}

fn percent(part: f64) -> String {
    let percent = part.abs() * 100.0;
    if percent >= 0.1 || percent == 0.0 { format!("{percent:.1}") } else { format!("{percent:.2}") }
}

/// Rounded up, so that what is stated as a bound is one.
fn percent_up(part: f64) -> String {
    format!("{:.1}", (part * 1000.0 - 1e-9).ceil() / 10.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::statistics::paired::{Pair, compare};

    fn verdict(ratios: &[f64], unit: Unit) -> Verdict {
        let pairs: Vec<Pair> = ratios
            .iter()
            .enumerate()
            .map(|(row, ratio)| Pair { control: 10.0, arm: 10.0 * ratio, control_first: row % 4 == 0 || row % 4 == 3 })
            .collect();
        let names = Names { metric: "decode", unit, control: "selected", arm: "fast" };
        judge(&compare(&pairs).unwrap(), DEFAULT_BAND, names).unwrap()
    }

    const UP: [f64; 6] = [1.10, 1.11, 1.09, 1.10, 1.105, 1.095];
    const DOWN: [f64; 6] = [0.90, 0.91, 0.89, 0.90, 0.905, 0.895];

    #[test]
    fn which_way_is_better_follows_the_unit() {
        assert_eq!(verdict(&UP, Unit::TokensPerSecond).outcome, Outcome::Faster);
        assert_eq!(verdict(&UP, Unit::Seconds).outcome, Outcome::Slower);
        assert_eq!(verdict(&UP, Unit::Bytes).outcome, Outcome::Slower);
        assert_eq!(verdict(&DOWN, Unit::TokensPerSecond).outcome, Outcome::Slower);
        assert_eq!(verdict(&DOWN, Unit::Seconds).outcome, Outcome::Faster);
        assert_eq!(verdict(&DOWN, Unit::Bytes).outcome, Outcome::Faster);
    }

    #[test]
    fn sentences_say_the_verdict_first_and_no_sign_contradicts_a_word() {
        let cases = [
            (
                verdict(&UP, Unit::TokensPerSecond),
                "decode: fast is faster than selected: 10.0 % more tokens per second",
            ),
            (verdict(&DOWN, Unit::TokensPerSecond), "decode: fast is slower than selected: 10.0 % fewer tokens per"),
            (verdict(&DOWN, Unit::Seconds), "decode: fast is faster than selected: 10.0 % less time"),
            (verdict(&UP, Unit::Bytes), "decode: fast is larger than selected: 10.0 % more memory"),
        ];
        for (verdict, start) in cases {
            assert!(verdict.sentence.starts_with(start), "{}", verdict.sentence);
            assert!(!verdict.sentence.contains(['+', '-']), "{}", verdict.sentence);
        }
    }

    #[test]
    fn no_difference_states_a_bound_that_holds() {
        let verdict = verdict(&[1.001, 0.999, 1.002, 0.998, 1.0, 1.001], Unit::Seconds);
        assert_eq!(verdict.outcome, Outcome::NoDifference);
        let within = verdict.within.unwrap();
        assert!(within > 0.0 && within < DEFAULT_BAND);
        assert!(verdict.sentence.contains("no difference seen within ±0.2 %"), "{within}: {}", verdict.sentence);
        // Certain, but too small to matter.
        let small = super::tests::verdict(&[1.005, 1.0055, 1.0045, 1.005], Unit::Seconds);
        assert_eq!(small.outcome, Outcome::NoDifference, "{}", small.sentence);
    }

    #[test]
    fn a_certain_sign_alone_is_not_enough() {
        // The interval leaves out 0, the estimate is below the band, the interval reaches past it.
        let verdict = verdict(&[1.012, 1.018, 1.006, 1.024], Unit::TokensPerSecond);
        assert_eq!(verdict.outcome, Outcome::Inconclusive, "{}", verdict.sentence);
    }

    #[test]
    fn inconclusive_says_how_many_more() {
        let verdict = verdict(&[1.10, 0.97, 1.02, 1.06], Unit::TokensPerSecond);
        assert_eq!(verdict.outcome, Outcome::Inconclusive);
        let more = verdict.more_repeats.unwrap();
        assert!(more >= 2 && more.is_multiple_of(2), "{more}");
        assert!(verdict.sentence.starts_with(&format!("decode: inconclusive, needs about {more} more repeats: ")));
        let single = super::tests::verdict(&[1.1], Unit::TokensPerSecond);
        assert!(single.more_repeats.is_none() && single.sentence.contains("more repeats"), "{}", single.sentence);
    }

    #[test]
    fn a_band_that_is_a_percentage_is_refused() {
        let comparison = compare(&[Pair { control: 1.0, arm: 1.0, control_first: true }]).unwrap();
        let names = Names { metric: "decode", unit: Unit::Seconds, control: "a", arm: "b" };
        for band in [2.0, -0.1, f64::NAN, 1.0] {
            assert!(judge(&comparison, band, names).is_err(), "{band}");
        }
    }
}
