//! One number before and after, with the interval of its ratio and the verdict on it.
//! Not here: the statistics (`statistics/`), and which numbers there are.

use crate::bench::{Better, Interval, Method, Metric, Verdict};
use crate::gate::replay_row;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::samples::Samples;
use crate::statistics::paired::{self, Pair};
use crate::statistics::unpaired::{self, Measured, MedianOf};
use crate::statistics::verdict::{self, Names, What};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One row of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Delta {
    /// As rules and gates call it: `decode`, `replay.decode.projections`.
    pub name: String,
    /// Medians.
    pub before: Reading,
    pub after: Reading,
    /// Where each side's typical value lies, from its own samples alone: nothing about other runs.
    pub before_interval: Known<Interval>,
    pub after_interval: Known<Interval>,
    /// After over before.
    pub ratio: Reading,
    /// Where the true ratio lies, in 95 of 100 experiments.
    pub interval: Known<Interval>,
    pub method: DeltaMethod,
    pub verdict: Known<Verdict>,
    /// The verdict in words.
    pub sentence: String,
}

/// How ratio and interval were made; `docs/methods.md` has the formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeltaMethod {
    /// Neighbouring samples of one alternated run: Student's interval on the mean log-ratio.
    PairedT,
    /// The same after the effect of the order within pairs is taken out.
    OrderAdjustedT,
    /// Hodges and Lehmann's estimate and the signed-rank interval, after the same step.
    OrderAdjustedSignedRank,
    /// Samples that were not taken in alternation: what runs may differ by is in the interval.
    Unpaired,
    /// Single numbers: there is no interval.
    Single,
}

impl DeltaMethod {
    fn of(method: Method) -> DeltaMethod {
        match method {
            Method::PairedT => DeltaMethod::PairedT,
            Method::OrderAdjustedT => DeltaMethod::OrderAdjustedT,
            Method::OrderAdjustedSignedRank => DeltaMethod::OrderAdjustedSignedRank,
        }
    }
}

/// What a row is called and which way it is better.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meaning<'a> {
    pub name: &'a str,
    pub unit: Unit,
    pub better: Better,
    pub measured: Measured,
}

impl Meaning<'_> {
    pub(super) fn of(metric: Metric) -> Meaning<'static> {
        Meaning { name: metric.name(), unit: metric.unit(), better: metric.better(), measured: Measured::of(metric) }
    }
}

impl Delta {
    /// Of pairs from one alternated run; `before` and `after` are all samples of each side that count.
    pub(super) fn paired(
        meaning: Meaning<'_>,
        pairs: &[Pair],
        before: &[f64],
        after: &[f64],
        band: f64,
        names: Names<'_>,
    ) -> Option<Delta> {
        let comparison = paired::compare(pairs).ok()?;
        let what = What { name: meaning.name, unit: meaning.unit, better: meaning.better };
        let judgement = verdict::judge_what(&comparison, what, band, names).ok()?;
        let n = pairs.len() as u64;
        let mut delta = Delta::of_medians(meaning, before, after);
        delta.ratio = Reading::measured(comparison.ratio, Unit::Ratio, n);
        delta.interval = comparison.interval;
        delta.method = DeltaMethod::of(comparison.method);
        delta.verdict = judgement.verdict;
        delta.sentence = judgement.sentence;
        Some(delta)
    }

    /// Of samples that were not taken in alternation.
    pub(super) fn unpaired(
        meaning: Meaning<'_>,
        before: &[f64],
        after: &[f64],
        band: f64,
        names: Names<'_>,
    ) -> Option<Delta> {
        let found = unpaired::compare(before, after, meaning.measured).ok()?;
        let (verdict, sentence) = unpaired::judge(&found, meaning.name, meaning.unit, meaning.better, band, names);
        let n = before.len().min(after.len()) as u64;
        let mut delta = Delta::of_medians(meaning, before, after);
        delta.ratio = Reading::measured(found.ratio, Unit::Ratio, n);
        delta.interval = Known::Is(found.interval);
        delta.method = DeltaMethod::Unpaired;
        delta.verdict = Known::Is(verdict);
        delta.sentence = sentence;
        Some(delta)
    }

    /// Of two medians whose samples are not at hand, each of one run.
    pub(super) fn of_two_medians(
        meaning: Meaning<'_>,
        before: MedianOf,
        after: MedianOf,
        band: f64,
        names: Names<'_>,
    ) -> Option<Delta> {
        let found = unpaired::compare_medians(before, after).ok()?;
        let (verdict, sentence) = unpaired::judge(&found, meaning.name, meaning.unit, meaning.better, band, names);
        let reading = |side: MedianOf| Reading::measured(side.median, meaning.unit, side.n);
        let mut delta = Delta::single(meaning.name, reading(before), reading(after));
        delta.ratio = Reading::measured(found.ratio, Unit::Ratio, before.n.min(after.n));
        delta.interval = Known::Is(found.interval);
        delta.method = DeltaMethod::Unpaired;
        delta.verdict = Known::Is(verdict);
        delta.sentence = sentence;
        Some(delta)
    }

    /// Of two single numbers, or of what is missing on a side.
    pub(super) fn single(name: &str, before: Reading, after: Reading) -> Delta {
        let ratio = match (&before, &after) {
            (Known::Is(a), Known::Is(b)) => Reading::ratio(b.value(), a.value(), Unit::Ratio, a.n().min(b.n())),
            (Known::Unavailable(missing), _) | (_, Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
        };
        let sentence = match (before.missing(), after.missing()) {
            (None, None) => format!("{name}: single numbers, without an interval"),
            (Some(missing), _) => format!("{name}: missing before: {}", missing.unavailable),
            (_, Some(missing)) => format!("{name}: missing after: {}", missing.unavailable),
        };
        let no_interval = || Known::unavailable("a single number shows no spread", "measure it several times");
        Delta {
            name: name.to_owned(),
            before,
            after,
            before_interval: no_interval(),
            after_interval: no_interval(),
            ratio,
            interval: no_interval(),
            method: DeltaMethod::Single,
            verdict: Known::unavailable("there is no interval", "measure it several times"),
            sentence,
        }
    }

    fn of_medians(meaning: Meaning<'_>, before: &[f64], after: &[f64]) -> Delta {
        let median = |values: &[f64]| match Samples::new(values) {
            Ok(samples) => Reading::measured(samples.median(), meaning.unit, values.len() as u64),
            Err(_) => Reading::unavailable("no sample of it counts", "measure again"),
        };
        let within = |values: &[f64]| match unpaired::within(values, meaning.measured) {
            Some(interval) => Known::Is(interval),
            None => Known::unavailable("fewer than two samples show no spread", "measure with more repeats"),
        };
        let mut delta = Delta::single(meaning.name, median(before), median(after));
        (delta.before_interval, delta.after_interval) = (within(before), within(after));
        delta
    }

    /// Better, in the row's own direction.
    pub fn is_better(&self) -> bool {
        self.verdict.known() == Some(&Verdict::Better)
    }

    pub fn is_worse(&self) -> bool {
        self.verdict.known() == Some(&Verdict::Worse)
    }

    pub fn is_same(&self) -> bool {
        matches!(self.verdict.known(), Some(Verdict::NoDifference { .. }))
    }

    /// `before - after`; positive is less.
    pub fn saved(&self) -> Option<f64> {
        Some(self.before.value()? - self.after.value()?)
    }
}

/// The meaning of a replay's group.
pub(super) fn of_group(row: &str) -> Meaning<'_> {
    Meaning { name: row, unit: Unit::Microseconds, better: Better::Lower, measured: Measured::Time }
}

/// The row's name for a group of a phase.
pub(super) fn group_row(phase: &str, group: &str) -> String {
    replay_row(phase, group)
}
