//! The request clock of both sides: every metric before and after, the split into phases, and whether the tokens are the same.
//! Not here: what follows from it (`outcome.rs`).

use super::delta::{Delta, Meaning};
use super::sides::Clocked;
use crate::bench::Metric;
use crate::check::Check;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::request::RequestClock;
use crate::samples::Samples;
use crate::statistics::of_record::pairs_of;
use crate::statistics::verdict::Names;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Two clocked requests of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestView {
    pub workload_id: String,
    /// Both sides are arms of one alternated run: what both met cancels. Else every interval holds what runs may differ by.
    pub paired: bool,
    /// How the samples were taken, in words.
    pub design: String,
    /// The smallest difference that matters, as a part of the value before.
    pub band: Reading,
    /// One per metric that both sides have, in the order of the metrics; memory is among them.
    pub rows: Vec<Delta>,
    /// Prefill and decode.
    pub phases: Vec<PhaseTimes>,
    /// Whether every request of both sides generated the same tokens.
    pub tokens_equal: Known<bool>,
}

/// What a phase took of the request: medians.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PhaseTimes {
    /// `prefill` or `decode`.
    pub phase: String,
    pub before: Reading,
    pub after: Reading,
    /// Part of both phases together.
    pub share_before: Reading,
    pub share_after: Reading,
}

impl RequestView {
    pub(super) fn of(before: &Clocked<'_>, after: &Clocked<'_>, names: Names<'_>) -> RequestView {
        let one_run = before.evidence.sha256() == after.evidence.sha256() && before.arm != after.arm;
        let run = one_run.then_some((before.run, before.arm, after.arm));
        let band = before.band();
        let rows = Metric::ALL.into_iter().filter_map(|metric| {
            let (a, b) = (before.values(metric), after.values(metric));
            match run {
                Some((record, control, arm)) => {
                    Delta::paired(Meaning::of(metric), &pairs_of(record, control, arm, metric), &a, &b, band, names)
                }
                None => Delta::unpaired(Meaning::of(metric), &a, &b, band, names),
            }
        });
        let rows: Vec<Delta> = rows.collect();
        let samples = |side: &Clocked<'_>| side.clocks().len();
        let design = match run {
            Some((record, ..)) => format!("both in one alternated run: {}", record.protocol.design),
            None => format!(
                "two runs that were not alternated, of {} and {} requests: intervals hold what runs may differ by",
                samples(before),
                samples(after)
            ),
        };
        let (a, b) = (before.clocks(), after.clocks());
        RequestView {
            workload_id: before.workload.id(),
            paired: run.is_some(),
            design,
            band: Reading::measured(band, Unit::Share, 1),
            rows,
            phases: phases(&a, &b),
            tokens_equal: tokens_equal(&a, &b),
        }
    }

    pub fn row(&self, metric: Metric) -> Option<&Delta> {
        self.rows.iter().find(|row| row.name == metric.name())
    }

    pub fn phase(&self, name: &str) -> Option<&PhaseTimes> {
        self.phases.iter().find(|phase| phase.phase == name)
    }

    /// Every ratio lies in its interval; shares sum to 1.
    pub(super) fn checks(&self) -> Vec<Check> {
        let with: Vec<_> =
            self.rows.iter().filter_map(|row| Some((row.ratio.value()?, row.interval.known()?))).collect();
        let slack = 1.0 + 1e-9;
        let inside = with.iter().filter(|(ratio, ends)| ends.low <= ratio * slack && *ratio <= ends.high * slack);
        let mut checks =
            vec![Check::counts("request: ratios in their intervals", with.len() as u64, inside.count() as u64)];
        let shares: Vec<f64> = self.phases.iter().filter_map(|phase| phase.share_before.value()).collect();
        if !shares.is_empty() {
            checks.push(Check::sums("request: the phases' shares sum to 1", 1.0, shares.iter().sum()));
        }
        checks
    }
}

fn phases(before: &[&RequestClock], after: &[&RequestClock]) -> Vec<PhaseTimes> {
    let median = |clocks: &[&RequestClock], pick: fn(&RequestClock) -> &Reading| {
        let values: Vec<f64> = clocks.iter().filter_map(|clock| pick(clock).value()).collect();
        match Samples::new(&values) {
            Ok(samples) => Reading::measured(samples.median(), Unit::Seconds, values.len() as u64),
            Err(_) => Reading::unavailable("no request was clocked to its end", "clock complete requests"),
        }
    };
    type Pick = fn(&RequestClock) -> &Reading;
    let picks: [(&str, Pick); 2] = [("prefill", |clock| &clock.prefill), ("decode", |clock| &clock.decode)];
    let times = picks.map(|(name, pick)| (name, median(before, pick), median(after, pick)));
    let all_before: Option<f64> = times.iter().map(|(_, before, _)| before.value()).sum();
    let all_after: Option<f64> = times.iter().map(|(_, _, after)| after.value()).sum();
    let share = |part: &Reading, whole: Option<f64>| match (part, whole) {
        (Known::Is(part), Some(whole)) => Reading::ratio(part.value(), whole, Unit::Share, part.n()),
        _ => Known::unavailable("a phase has no time", "clock complete requests"),
    };
    times
        .iter()
        .map(|(phase, before, after)| PhaseTimes {
            phase: (*phase).to_owned(),
            share_before: share(before, all_before),
            share_after: share(after, all_after),
            before: before.clone(),
            after: after.clone(),
        })
        .collect()
}

fn tokens_equal(before: &[&RequestClock], after: &[&RequestClock]) -> Known<bool> {
    let hashes: Vec<&str> = before.iter().chain(after).map(|clock| clock.output_hash.as_str()).collect();
    match hashes.first() {
        Some(first) if hashes.iter().all(|hash| !hash.is_empty()) => Known::Is(hashes.iter().all(|hash| hash == first)),
        _ => {
            Known::unavailable("a side does not say what it generated", "clock it with an engine that gives token ids")
        }
    }
}
