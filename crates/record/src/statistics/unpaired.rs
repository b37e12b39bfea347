//! Two sets of samples of two different runs: a ratio, and an interval wide enough for what a run cannot show about itself.
//! Not here: samples of one alternated run, which are paired (`paired.rs`).
//!
//! A run sees the mood of its own minutes and no other. What differs from run to run (the machine's load, its clock rate, where
//! pages lie) falls on all of its samples alike and does not show in their spread. So the interval is not that of a test
//! between two sets: to its variance comes that of two runs, each at least [`BETWEEN_RUNS`] or as much as its samples spread.
//! `tests/compare_by_simulation.rs` holds the false alarms of pretended machines to 5 %.

use crate::bench::{Better, Interval, Metric, Verdict};
use crate::quantity::Unit;
use crate::samples::Samples;
use crate::statistics::paired::PairError;
use crate::statistics::quantile::student_quantile;
use crate::statistics::verdict::{Finding, Names, change, decide, percent, percent_up, range, repeats_for};

/// Standard deviation of the logarithm of a run's typical time, from run to run, that is assumed at the least.
pub const BETWEEN_RUNS: f64 = 0.05;
/// The same of a single sample, which shows no spread.
pub const SINGLE: f64 = 0.10;
/// The same of a process's physical memory, which depends on what else is cached and not on any clock.
pub const BETWEEN_PROCESSES_MEMORY: f64 = 0.02;

/// The normal distribution's 97.5th percentile.
const NORMAL: f64 = 1.959_964;

/// What two sets of samples say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unpaired {
    /// After over before: of geometric means, from six samples a side on of medians.
    pub ratio: f64,
    pub interval: Interval,
    /// Standard deviation of a sample's logarithm on both sides together; what was assumed where both have a single one.
    pub spread: f64,
}

/// What is compared, for what two runs of it are assumed to differ by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// By a clock.
    Time,
    /// Physical memory.
    Resident,
    /// Counted, the same in every run of the same program: bytes allocated.
    Count,
}

impl Measured {
    pub fn of(metric: Metric) -> Measured {
        match metric {
            Metric::Peak => Measured::Count,
            Metric::PeakRss => Measured::Resident,
            _ => Measured::Time,
        }
    }
}

/// Compares samples of one run with those of another; all above 0.
///
/// # Errors
/// A side without samples, or a value that has no logarithm.
pub fn compare(before: &[f64], after: &[f64], measured: Measured) -> Result<Unpaired, PairError> {
    if before.is_empty() || after.is_empty() {
        return Err(PairError::Empty);
    }
    for (index, value) in before.iter().chain(after).enumerate() {
        if !value.is_finite() || *value <= 0.0 {
            return Err(PairError::NotPositive { index, value: *value });
        }
    }
    between(&Logs::of(before), &Logs::of(after), measured)
}

/// A median of times of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianOf {
    pub median: f64,
    /// Median absolute deviation.
    pub deviation: f64,
    pub n: u64,
}

/// The same of two medians whose samples are not at hand.
///
/// # Errors
/// A median that has no logarithm, or of nothing.
pub fn compare_medians(before: MedianOf, after: MedianOf) -> Result<Unpaired, PairError> {
    for (index, side) in [before, after].iter().enumerate() {
        if !side.median.is_finite() || side.median <= 0.0 || !side.deviation.is_finite() {
            return Err(PairError::NotPositive { index, value: side.median });
        }
        if side.n == 0 {
            return Err(PairError::Empty);
        }
    }
    between(&Logs::of_median(before), &Logs::of_median(after), Measured::Time)
}

fn between(before: &Logs, after: &Logs, measured: Measured) -> Result<Unpaired, PairError> {
    let degrees = before.degrees + after.degrees;
    let pooled = if degrees == 0 { 0.0 } else { ((before.squares + after.squares) / degrees as f64).sqrt() };
    let floor = match measured {
        Measured::Time if before.degrees == 0 || after.degrees == 0 => SINGLE,
        Measured::Time => BETWEEN_RUNS,
        Measured::Resident => BETWEEN_PROCESSES_MEMORY,
        Measured::Count => 0.0,
    };
    let between = if measured == Measured::Count { 0.0 } else { floor.max(pooled) };
    let student = if degrees == 0 { NORMAL } else { student_quantile(0.975, degrees) };
    let within = student * pooled * (before.widening / before.count + after.widening / after.count).sqrt();
    let half = within.hypot(NORMAL * between * std::f64::consts::SQRT_2);
    let center = after.center - before.center;
    let interval = Interval { low: (center - half).exp(), high: (center + half).exp() };
    if !interval.low.is_finite() || !interval.high.is_finite() {
        return Err(PairError::NotPositive { index: 0, value: interval.high });
    }
    let spread = if degrees == 0 { between } else { pooled };
    Ok(Unpaired { ratio: center.exp(), interval, spread })
}

/// Where one set's typical value lies, without anything about other runs: Student's interval on the logarithms. None for a
/// single sample of what a clock measured.
pub fn within(samples: &[f64], measured: Measured) -> Option<Interval> {
    if samples.iter().any(|value| !value.is_finite() || *value <= 0.0) {
        return None;
    }
    match (samples, measured) {
        ([], _) => None,
        ([only], Measured::Count) => Some(Interval { low: *only, high: *only }),
        ([_], _) => None,
        _ => {
            let logs = Logs::of(samples);
            let spread = (logs.squares / logs.degrees as f64).sqrt();
            let half = student_quantile(0.975, logs.degrees) * spread * (logs.widening / logs.count).sqrt();
            let ends = Interval { low: (logs.center - half).exp(), high: (logs.center + half).exp() };
            (ends.low.is_finite() && ends.high.is_finite()).then_some(ends)
        }
    }
}

/// From so many samples on, a set's center is its median and its spread the median absolute deviation: a few samples that
/// another process delayed then hardly move them. Of fewer, both are too coarse.
const MEDIANS_FROM: usize = 6;
/// The normal distribution's deviation over its median absolute deviation.
const DEVIATION: f64 = 1.4826;

struct Logs {
    count: f64,
    center: f64,
    /// Of the differences from the center, or what they would be at the robust spread.
    squares: f64,
    degrees: usize,
    /// Variance of the center over that of a mean.
    widening: f64,
}

impl Logs {
    /// Of a median above 0: a small deviation is nearly the same part of it as its logarithm's.
    fn of_median(side: MedianOf) -> Logs {
        let (count, degrees) = (side.n as f64, side.n as usize - 1);
        let spread = DEVIATION * side.deviation / side.median * (1.0 + 1.0 / count);
        let squares = spread * spread * degrees as f64;
        Logs { count, center: side.median.ln(), squares, degrees, widening: std::f64::consts::FRAC_PI_2 }
    }

    /// Of at least one sample.
    fn of(samples: &[f64]) -> Logs {
        let count = samples.len() as f64;
        let degrees = samples.len() - 1;
        // Equal samples have no spread, not even that of rounding.
        if samples.windows(2).all(|pair| pair[0] == pair[1]) {
            return Logs { count, center: samples[0].ln(), squares: 0.0, degrees, widening: 1.0 };
        }
        let logs: Vec<f64> = samples.iter().map(|sample| sample.ln()).collect();
        if samples.len() >= MEDIANS_FROM {
            let sorted = Samples::new(&logs).expect("logarithms of positive numbers are finite");
            let spread = DEVIATION * sorted.median_absolute_deviation() * (1.0 + 1.0 / count);
            let squares = spread * spread * degrees as f64;
            return Logs { count, center: sorted.median(), squares, degrees, widening: std::f64::consts::FRAC_PI_2 };
        }
        let center = logs.iter().sum::<f64>() / count;
        let squares = logs.iter().map(|log| (log - center).powi(2)).sum();
        Logs { count, center, squares, degrees, widening: 1.0 }
    }
}

/// The verdict's rule on an unpaired ratio, and all of it in words. `what` is the row's name, `band` a part of the control's
/// value.
pub fn judge(
    found: &Unpaired,
    what: &str,
    unit: Unit,
    better: Better,
    band: f64,
    names: Names<'_>,
) -> (Verdict, String) {
    let (center, low, high) = (found.ratio.ln(), found.interval.low.ln(), found.interval.high.ln());
    let finding = match better {
        Better::Higher => decide(center, (low, high), band),
        Better::Lower => decide(-center, (-high, -low), band),
    };
    let evidence = format!("95 % interval {}, unpaired", range(found.interval, unit));
    let Names { control, arm } = names;
    let measured = change(found.ratio, unit);
    match finding {
        Finding::Better | Finding::Worse => {
            let word = match (unit, finding) {
                (Unit::Bytes, Finding::Better) => "smaller",
                (Unit::Bytes, _) => "larger",
                (_, Finding::Better) => "faster",
                _ => "slower",
            };
            let verdict = if finding == Finding::Better { Verdict::Better } else { Verdict::Worse };
            (verdict, format!("{what}: {arm} is {word} than {control}: {measured} ({evidence})"))
        }
        Finding::NoDifference => {
            let within_percent = ((found.interval.high - 1.0).max(1.0 - found.interval.low)).max(0.0) * 100.0;
            let sentence = format!(
                "{what}: no difference seen within ±{} % between {arm} and {control} ({evidence}; less than {} % does not \
                 matter)",
                percent_up(within_percent),
                percent(band)
            );
            (Verdict::NoDifference { within_percent }, sentence)
        }
        Finding::None => {
            let wanted = if center.abs() >= band.ln_1p() { center.abs() } else { band.ln_1p().max(0.001) };
            let repeats = repeats_for(found.spread * std::f64::consts::SQRT_2, wanted);
            let sentence = format!(
                "{what}: inconclusive: {arm} measured {measured}, against {control} ({evidence}); about {repeats} repeats in \
                 one alternated run would tell"
            );
            (Verdict::Inconclusive { more_repeats: repeats }, sentence)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn two_runs_leave_more_open_than_their_samples_do() {
        let calm = compare(&[1.0, 1.001, 0.999], &[0.9, 0.901, 0.899], Measured::Time).unwrap();
        assert!((calm.ratio - 0.9).abs() < 1e-3 && calm.interval.low < 0.80 && calm.interval.high > 1.0, "{calm:?}");
        let single = compare(&[1.0], &[0.9], Measured::Time).unwrap();
        assert!(single.interval.low < calm.interval.low, "{single:?}");
        let twice = compare(&[1.0], &[0.5], Measured::Time).unwrap();
        assert!(twice.interval.high < 0.7, "{twice:?}");
    }

    #[test]
    fn a_median_and_its_deviation_say_what_the_samples_do() {
        let samples: Vec<f64> = (0..41).map(|i| 100.0 + 0.2 * f64::from(i - 20)).collect();
        let faster: Vec<f64> = samples.iter().map(|sample| 0.7 * sample).collect();
        let whole = compare(&samples, &faster, Measured::Time).unwrap();
        let of = |median: f64| MedianOf { median, deviation: 2.0 * median / 100.0, n: 41 };
        let short = compare_medians(of(100.0), of(70.0)).unwrap();
        assert!((whole.ratio - short.ratio).abs() < 1e-9);
        assert!((whole.interval.low - short.interval.low).abs() < 1e-3, "{whole:?} {short:?}");
        assert!(compare_medians(of(0.0), of(70.0)).is_err());
        assert!(compare_medians(MedianOf { n: 0, ..of(1.0) }, of(70.0)).is_err());
    }

    #[test]
    fn bytes_that_are_counted_are_compared_exactly() {
        let bytes = compare(&[600.0], &[599.0], Measured::Count).unwrap();
        assert!((bytes.interval.low - bytes.interval.high).abs() < 1e-12 && bytes.interval.high < 1.0, "{bytes:?}");
        assert_eq!(within(&[7.0], Measured::Count).unwrap(), Interval { low: 7.0, high: 7.0 });
        assert_eq!(within(&[7.0], Measured::Time), None);
    }

    /// Student's interval by hand: logs -0.1, 0, 0.1 have deviation 0.1; t(0.975, 2) = 4.3027.
    #[test]
    fn an_interval_within_a_run_is_students() {
        let samples = [(-0.1f64).exp(), 1.0, 0.1f64.exp()];
        let interval = within(&samples, Measured::Time).unwrap();
        let half = 4.302_653 * 0.1 / 3f64.sqrt();
        assert!((interval.high.ln() - half).abs() < 1e-6 && (interval.low.ln() + half).abs() < 1e-6, "{interval:?}");
    }

    /// One round of a replay that another process delayed hides nothing.
    #[test]
    fn a_wild_sample_among_many_hardly_moves_the_interval() {
        let rounds = |us: f64, wild: f64| [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, wild, 1.01].map(|factor| us * factor);
        let found = compare(&rounds(30.0, 1.0), &rounds(14.0, 40.0), Measured::Time).unwrap();
        assert!(found.interval.high < 0.6 && (found.ratio / (14.0 / 30.0) - 1.0).abs() < 0.02, "{found:?}");
    }

    #[test]
    fn what_has_no_logarithm_is_refused() {
        assert!(matches!(compare(&[], &[1.0], Measured::Time), Err(PairError::Empty)));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(compare(&[1.0], &[bad], Measured::Time), Err(PairError::NotPositive { .. })), "{bad}");
            assert_eq!(within(&[1.0, bad], Measured::Time), None);
        }
        assert!(compare(&[1e-300], &[1e300], Measured::Time).is_err(), "no finite interval");
    }
}
