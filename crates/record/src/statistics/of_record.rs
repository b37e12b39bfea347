//! The comparisons and the noise of a `bench/1` record, from its own samples: whoever holds the record can compute them again.
//! Not here: the statistics (`paired.rs`, `verdict.rs`, `noise.rs`).

use crate::bench::{ArmKind, BenchRecord, Metric, MetricComparison, Noise};
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::statistics::noise::assess;
use crate::statistics::paired::{Comparison, Pair, PairError, compare};
use crate::statistics::verdict::{BandError, Names, judge};
use std::collections::BTreeMap;

/// The pairs of an arm with the control in one metric, one per block in which both have a sample that counts.
pub fn pairs(record: &BenchRecord, arm: usize, metric: Metric) -> Vec<Pair> {
    pairs_of(record, 0, arm, metric)
}

/// The same of an arm with any other.
pub fn pairs_of(record: &BenchRecord, control: usize, arm: usize, metric: Metric) -> Vec<Pair> {
    let of = |arm: usize| {
        record.samples_of(arm).filter_map(move |sample| {
            let value = metric.of(&sample.counting()?.clock).value()?;
            Some((sample.block, (sample.order, value)))
        })
    };
    let control: BTreeMap<u64, (u64, f64)> = of(control).collect();
    of(arm)
        .filter_map(|(block, (order, value))| {
            let (control_order, control) = control.get(&block)?;
            Some(Pair { control: *control, arm: value, control_first: *control_order < order })
        })
        .collect()
}

fn compared(record: &BenchRecord) -> impl Iterator<Item = usize> {
    let control = record.arms.first().is_some_and(|arm| arm.counts);
    (1..record.arms.len()).filter(move |arm| control && record.arms[*arm].counts)
}

/// Every arm that counts against the control, metric by metric; metrics that one of them lacks are left out.
///
/// # Errors
/// The protocol's band is no part of a whole.
pub fn comparisons(record: &BenchRecord) -> Result<Vec<MetricComparison>, BandError> {
    let band = record.protocol.practical_percent / 100.0;
    let mut rows = Vec::new();
    for arm in compared(record) {
        for metric in Metric::ALL {
            let pairs = pairs(record, arm, metric);
            let comparison = match compare(&pairs) {
                Ok(comparison) => comparison,
                Err(PairError::Empty | PairError::NotPositive { .. }) => continue,
            };
            let names = Names { control: &record.arms[0].name, arm: &record.arms[arm].name };
            let judgement = judge(&comparison, metric, band, names)?;
            rows.push(MetricComparison {
                arm: arm as u64,
                metric,
                pairs: pairs.len() as u64,
                ratio: Reading::measured(comparison.ratio, Unit::Ratio, pairs.len() as u64),
                interval: comparison.interval,
                method: comparison.method,
                second_over_first: comparison.second_over_first,
                verdict: judgement.verdict,
                sentence: judgement.sentence,
            });
        }
    }
    Ok(rows)
}

/// The time of an assessment grows with the square of the repeats; one of more than these would only find less noise.
const MOST_ASSESSED: usize = 50;

/// What the run's repeats are worth against its own noise, metric by metric.
pub fn noise(record: &BenchRecord) -> Known<Vec<Noise>> {
    let rows: Vec<Noise> = Metric::ALL.into_iter().filter_map(|metric| noise_of(record, metric)).collect();
    if rows.is_empty() {
        return Known::unavailable("no two arms have samples that count", "compare two arms, or add --variant A/A");
    }
    Known::Is(rows)
}

/// The noise of one metric: from the arm that is the control again where there is one, else from what the other arms' pairs
/// spread around their estimates. None: no two arms have it.
pub fn noise_of(record: &BenchRecord, metric: Metric) -> Option<Noise> {
    let same: Vec<usize> = compared(record).filter(|arm| record.arms[*arm].kind == ArmKind::SameAgain).collect();
    let (arms, source) = if same.is_empty() {
        (compared(record).collect(), "what pairs spread around their estimate")
    } else {
        (same, "the control against itself")
    };
    let comparisons: Vec<Comparison> =
        arms.iter().filter_map(|arm| compare(&pairs(record, *arm, metric)).ok()).collect();
    let comparisons: Vec<&Comparison> = comparisons.iter().collect();
    let band = record.protocol.practical_percent / 100.0;
    let (repeats, seed) = ((record.protocol.repeats as usize).min(MOST_ASSESSED), record.protocol.seed);
    (!comparisons.is_empty()).then(|| assess(metric, &comparisons, source, repeats, band, seed))
}
