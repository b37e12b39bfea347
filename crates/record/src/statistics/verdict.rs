//! What a comparison says: faster, slower, no difference seen within a bound, or inconclusive and how many repeats are missing.
//! Not here: how the interval is made (`paired.rs`) and how often the rule errs on this machine (`noise.rs`).
//!
//! Two conditions, both needed: the interval leaves out "no difference", and the estimate is at least the band, the smallest
//! difference that matters. "No difference" is a finding too: the whole interval lies inside the band. All else is
//! inconclusive.

use crate::bench::{Better, Interval, Metric, Verdict};
use crate::known::Known;
use crate::quantity::Unit;
use crate::statistics::paired::Comparison;
use crate::statistics::quantile::student_quantile;
use crate::statistics::{CONFIDENCE, POWER};

/// The smallest difference that matters unless somebody says otherwise: 2 %.
pub const DEFAULT_BAND: f64 = 0.02;

/// From so many more repeats on, a number is no advice.
const MOST_REPEATS: u64 = 1000;

/// The verdict on one metric of one arm, and all of it in words, verdict first.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Missing where there is no interval.
    pub verdict: Known<Verdict>,
    pub sentence: String,
}

/// What the sentence calls the two.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    pub control: &'a str,
    pub arm: &'a str,
}

/// A band that is no part of a whole.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the band is {0}, expected a part of the control's value from 0 to below 1, such as 0.02 for 2 %")]
pub struct BandError(pub f64);

/// The rule's three findings, and none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Better,
    Worse,
    NoDifference,
    None,
}

/// The rule alone, on logarithms oriented so that more is better.
pub(crate) fn decide(center: f64, (low, high): (f64, f64), band: f64) -> Finding {
    let (up, down) = (band.ln_1p(), (-band).ln_1p());
    if low > 0.0 && center >= up {
        Finding::Better
    } else if high < 0.0 && center <= down {
        Finding::Worse
    } else if low >= down && high <= up {
        Finding::NoDifference
    } else {
        Finding::None
    }
}

/// Judges a comparison of `metric`; `band` as a part of the control's value ([`DEFAULT_BAND`]).
///
/// # Errors
/// A band that is no part of a whole.
pub fn judge(comparison: &Comparison, metric: Metric, band: f64, names: Names<'_>) -> Result<Judgement, BandError> {
    judge_what(comparison, What { name: metric.name(), unit: metric.unit(), better: metric.better() }, band, names)
}

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub struct What<'a> {
    pub name: &'a str,
    pub unit: Unit,
    pub better: Better,
}

/// The same of what is no metric of a request.
///
/// # Errors
/// A band that is no part of a whole.
pub fn judge_what(
    comparison: &Comparison,
    what: What<'_>,
    band: f64,
    names: Names<'_>,
) -> Result<Judgement, BandError> {
    if !(0.0..1.0).contains(&band) {
        return Err(BandError(band));
    }
    let interval = match &comparison.interval {
        Known::Is(interval) => *interval,
        Known::Unavailable(missing) => {
            let sentence = format!(
                "{}: inconclusive, {}: {} against {}: no interval, for {}",
                what.name, missing.how_to_get, names.arm, names.control, missing.unavailable
            );
            return Ok(Judgement { verdict: Known::Unavailable(missing.clone()), sentence });
        }
    };
    let center = comparison.ratio.ln();
    let (low, high) = (interval.low.ln(), interval.high.ln());
    let finding = match what.better {
        Better::Higher => decide(center, (low, high), band),
        Better::Lower => decide(-center, (-high, -low), band),
    };
    let verdict = match finding {
        Finding::Better => Verdict::Better,
        Finding::Worse => Verdict::Worse,
        Finding::NoDifference => {
            // Not below zero, where the interval is a single point next to 1.
            let within = (interval.high - 1.0).max(1.0 - interval.low).max(0.0);
            Verdict::NoDifference { within_percent: within * 100.0 }
        }
        Finding::None => {
            let more_repeats = more_repeats(comparison.log_ratios.len(), center, (high - low) / 2.0, band);
            Verdict::Inconclusive { more_repeats }
        }
    };
    let sentence = sentence(verdict, comparison, interval, what, band, names);
    Ok(Judgement { verdict: Known::Is(verdict), sentence })
}

/// How many more repeats would settle it with [`POWER`], if estimate and noise stay what they are; the interval's half-width
/// shrinks as Student's does.
fn more_repeats(pairs: usize, center: f64, half: f64, band: f64) -> u64 {
    let band = band.ln_1p();
    // Either the difference is real and the interval must come clear of 0, or there is none and it must fit into the band.
    // An estimate next to the band's edge would take for ever: there, half of the band is asked for.
    let wanted = if center.abs() >= band { center.abs() } else { (band - center.abs()).max(band / 2.0) };
    let total = repeats_for(half / interval_factor(pairs), wanted);
    // At least one more mirrored pair of rows, or the verdict would stand.
    total.saturating_sub(pairs as u64).max(2)
}

/// Half-width of an interval of `pairs` log-ratios per unit of their spread.
fn interval_factor(pairs: usize) -> f64 {
    let degrees = if pairs < 4 { pairs.saturating_sub(1).max(1) } else { pairs - 2 };
    student_quantile(1.0 - (1.0 - CONFIDENCE) / 2.0, degrees) / (pairs as f64).sqrt()
}

/// The fewest repeats (even) at which a difference of `wanted` is found with [`POWER`], for log-ratios of pairs that
/// spread by `spread` (standard deviation).
pub(crate) fn repeats_for(spread: f64, wanted: f64) -> u64 {
    // Ranks are a twentieth less sharp than means on calm data, and sharper on wild ones.
    let needed = 1.05 * spread / wanted;
    let enough = |repeats: u64| {
        let power = student_quantile(POWER, repeats as usize - 2) / (repeats as f64).sqrt();
        needed * (interval_factor(repeats as usize) + power) <= 1.0
    };
    let few: Vec<u64> = (2..=50).map(|half| half * 2).collect();
    if let Some(repeats) = few.get(few.partition_point(|repeats| !enough(*repeats))) {
        return *repeats;
    }
    // Student's factors are the normal distribution's by now: 1.96 and 0.84.
    let pairs = ((1.96 + 0.84) * needed).powi(2);
    // 0 / 0 and 1 / 0 as well: nothing to find is not found by any number.
    if pairs < 1e6 { (pairs / 2.0).ceil() as u64 * 2 } else { 1_000_000 }
}

fn sentence(
    verdict: Verdict,
    comparison: &Comparison,
    interval: Interval,
    what: What<'_>,
    band: f64,
    names: Names<'_>,
) -> String {
    let Names { control, arm } = names;
    let What { unit, name, .. } = what;
    let measured = change(comparison.ratio, unit);
    let evidence = format!("95 % interval {}, {} pairs", range(interval, unit), comparison.log_ratios.len());
    let band = percent(band);
    match verdict {
        Verdict::Better | Verdict::Worse => {
            let word = match (unit, verdict) {
                (Unit::Bytes, Verdict::Better) => "smaller",
                (Unit::Bytes, _) => "larger",
                (_, Verdict::Better) => "faster",
                (_, _) => "slower",
            };
            format!("{name}: {arm} is {word} than {control}: {measured} ({evidence})")
        }
        Verdict::NoDifference { within_percent } => format!(
            "{name}: no difference seen within ±{} % between {arm} and {control} ({evidence}; less than {band} % does \
             not matter)",
            percent_up(within_percent)
        ),
        Verdict::Inconclusive { more_repeats } => {
            let why = if interval.low > 1.0 || interval.high < 1.0 {
                format!("which may or may not reach the {band} % that matter")
            } else {
                "which leaves out neither a difference nor none".to_owned()
            };
            let next = if more_repeats <= MOST_REPEATS {
                format!("needs about {more_repeats} more repeats")
            } else {
                format!("would need more than {MOST_REPEATS} more repeats on a machine as noisy as this")
            };
            format!("{name}: inconclusive, {next}: {arm} measured {measured}, against {control} ({evidence}, {why})")
        }
    }
}

/// `12.3 % more tokens per second`, `4.0 % less time`, `2.50 times the memory`: the sign is in the words.
pub(crate) fn change(ratio: f64, unit: Unit) -> String {
    if ratio >= 2.0 {
        return format!("{ratio:.2} times the {}", noun(unit));
    }
    let (word, size) = side(ratio, unit);
    format!("{size} % {word} {}", noun(unit))
}

// Metrics are rates, times and bytes.
fn noun(unit: Unit) -> &'static str {
    match unit {
        Unit::TokensPerSecond => "tokens per second",
        Unit::Bytes => "memory",
        _ => "time",
    }
}

fn side(ratio: f64, unit: Unit) -> (&'static str, String) {
    let less = if unit == Unit::TokensPerSecond { "fewer" } else { "less" };
    (if ratio >= 1.0 { "more" } else { less }, percent(ratio - 1.0))
}

pub(crate) fn range(interval: Interval, unit: Unit) -> String {
    if interval.low >= 2.0 {
        return format!("{:.2} to {:.2} times", interval.low, interval.high);
    }
    let ((low_word, low), (high_word, high)) = (side(interval.low, unit), side(interval.high, unit));
    if low_word == high_word {
        // The smaller size first.
        let (from, to) = if interval.low >= 1.0 { (low, high) } else { (high, low) };
        format!("{from} to {to} % {low_word}")
    } else {
        format!("{low} % {low_word} to {high} % {high_word}")
    }
}

pub(crate) fn percent(part: f64) -> String {
    let percent = part.abs() * 100.0;
    if percent >= 0.1 || percent == 0.0 { format!("{percent:.1}") } else { format!("{percent:.2}") }
}

/// Rounded up, so that what is stated as a bound is one.
pub(crate) fn percent_up(percent: f64) -> String {
    // Adding zero makes a negative one positive.
    format!("{:.1}", (percent * 10.0 - 1e-9).ceil() / 10.0 + 0.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::statistics::paired::{Pair, compare};

    const NAMES: Names<'_> = Names { control: "selected", arm: "fast" };

    fn judged(ratios: &[f64], metric: Metric) -> (Verdict, String) {
        let pairs: Vec<Pair> = ratios
            .iter()
            .enumerate()
            .map(|(row, ratio)| Pair { control: 10.0, arm: 10.0 * ratio, control_first: row % 4 == 0 || row % 4 == 3 })
            .collect();
        let judgement = judge(&compare(&pairs).unwrap(), metric, DEFAULT_BAND, NAMES).unwrap();
        (*judgement.verdict.known().unwrap(), judgement.sentence)
    }

    const UP: [f64; 6] = [1.10, 1.11, 1.09, 1.10, 1.105, 1.095];
    const DOWN: [f64; 6] = [0.90, 0.91, 0.89, 0.90, 0.905, 0.895];

    #[test]
    fn sentences_say_the_verdict_first_and_no_sign_contradicts_a_word() {
        use Verdict::{Better, Worse};
        for (ratios, metric, verdict, start) in [
            (UP, Metric::Decode, Better, "decode: fast is faster than selected: 10.0 % more tokens per second"),
            (DOWN, Metric::Decode, Worse, "decode: fast is slower than selected: 10.0 % fewer tokens per second"),
            (DOWN, Metric::Ttft, Better, "ttft: fast is faster than selected: 10.0 % less time"),
            (UP, Metric::Request, Worse, "request: fast is slower than selected: 10.0 % more time"),
            (UP, Metric::Peak, Worse, "peak: fast is larger than selected: 10.0 % more memory"),
            (
                UP.map(|ratio| 5.0 * ratio),
                Metric::Decode,
                Better,
                "decode: fast is faster than selected: 5.50 times the tok",
            ),
            (DOWN, Metric::PeakRss, Better, "peak_rss: fast is smaller than selected: 10.0 % less memory"),
        ] {
            let (found, sentence) = judged(&ratios, metric);
            assert_eq!(found, verdict, "{sentence}");
            assert!(sentence.starts_with(start), "{sentence}");
            assert!(!sentence.contains(['+', '-']), "{sentence}");
        }
    }

    #[test]
    fn no_difference_states_a_bound_that_holds() {
        let (verdict, sentence) = judged(&[1.001, 0.999, 1.002, 0.998, 1.0, 1.001], Metric::Ttft);
        let Verdict::NoDifference { within_percent } = verdict else { panic!("{sentence}") };
        assert!(within_percent > 0.1 && within_percent < 0.2, "{within_percent}");
        assert!(sentence.starts_with("ttft: no difference seen within ±0.2 % between fast and selected"), "{sentence}");
        // Certain, but too small to matter.
        let (verdict, sentence) = judged(&[1.005, 1.0055, 1.0045, 1.005], Metric::Ttft);
        assert!(matches!(verdict, Verdict::NoDifference { .. }), "{sentence}");
        // Bytes that are equal to the last one.
        let (verdict, _) = judged(&[1.0; 4], Metric::Peak);
        assert_eq!(verdict, Verdict::NoDifference { within_percent: 0.0 });
    }

    #[test]
    fn a_certain_sign_alone_is_not_enough() {
        // The interval leaves out 0, the estimate is below the band, the interval reaches past it.
        let (verdict, sentence) = judged(&[1.012, 1.018, 1.006, 1.024], Metric::Decode);
        assert!(matches!(verdict, Verdict::Inconclusive { .. }), "{sentence}");
    }

    #[test]
    fn inconclusive_says_how_many_more() {
        let (verdict, sentence) = judged(&[1.10, 0.97, 1.02, 1.06], Metric::Decode);
        let Verdict::Inconclusive { more_repeats } = verdict else { panic!("{sentence}") };
        assert!(more_repeats.is_multiple_of(2) && (4..100).contains(&more_repeats), "{more_repeats}");
        let start = format!("decode: inconclusive, needs about {more_repeats} more repeats: fast measured ");
        assert!(sentence.starts_with(&start), "{sentence}");
        let single = compare(&[Pair { control: 1.0, arm: 1.1, control_first: true }]).unwrap();
        let judgement = judge(&single, Metric::Decode, DEFAULT_BAND, NAMES).unwrap();
        assert!(judgement.verdict.missing().is_some() && judgement.sentence.contains("--repeats"), "{judgement:?}");
    }

    /// The textbook's number: ((1.96 + 0.84) spread / difference)^2, a little more for few.
    #[test]
    fn promised_repeats_are_the_textbooks() {
        let many = repeats_for(0.10, 0.01);
        assert!((780..=900).contains(&many), "{many}");
        let few = repeats_for(0.02, 0.02);
        assert!((10..=16).contains(&few), "{few}");
        assert_eq!(repeats_for(0.0, 0.01), 4);
        assert_eq!(repeats_for(0.01, 0.0), 1_000_000);
        assert!(repeats_for(0.0, 0.0) >= 4);
    }

    #[test]
    fn a_band_that_is_a_percentage_is_refused() {
        let comparison = compare(&[Pair { control: 1.0, arm: 1.0, control_first: true }]).unwrap();
        for band in [2.0, -0.1, f64::NAN, 1.0] {
            assert!(judge(&comparison, Metric::Decode, band, NAMES).is_err(), "{band}");
        }
    }
}
