//! The clocked request in five numbers, out of a `bench/1` record.
//! Not here: the samples, which are that record's.

use crate::bench::{BenchRecord, Metric, Sample};
use crate::check::Check;
use crate::find::SecondsInterval;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::request::RequestClock;
use crate::samples::Samples;
use crate::statistics::median::median_interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Medians over the counting samples of the checkpoint's own arms, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestSummary {
    pub whole_request: Reading,
    /// Median absolute deviation.
    pub spread: Reading,
    pub interval: Known<SecondsInterval>,
    pub prefill: Reading,
    /// All steps together.
    pub decode: Reading,
    /// What is neither: making and releasing input and cache.
    pub set_up: Reading,
    /// The most bytes allocated at once.
    pub peak_allocation: Reading,
    pub peak_rss: Reading,
    /// Part of the request that its workers spent on a processor.
    pub processor_share: Reading,
    /// The smallest difference between two arms, in percent, that as many samples find four times out of five today.
    pub detectable_percent: Known<f64>,
    /// Every sample of the whole request behind these medians, in the order of execution.
    pub samples_s: Vec<f64>,
}

impl RequestSummary {
    /// Of the control and of the control again, which are the same thing.
    ///
    /// # Errors
    /// A sentence: no sample of the control counts.
    pub fn of(record: &BenchRecord) -> Result<RequestSummary, String> {
        let control = record.arms.first().ok_or("the clock's record has no arm")?;
        if !control.counts {
            let why = control.reason.as_deref().unwrap_or("no reason given");
            return Err(format!("the time of '{}' does not count: {why}", control.name));
        }
        let clocks: Vec<&RequestClock> = own_clocks(record).collect();
        let set_up = |clock: &RequestClock| {
            let parts = clock.prefill.value()? + clock.decode.value()?;
            Some(clock.whole_request.value()? - parts)
        };
        let whole: Vec<f64> = clocks.iter().filter_map(|clock| clock.whole_request.value()).collect();
        let samples = Samples::new(&whole).map_err(|_| "no request of the clock came to its end".to_owned())?;
        let n = samples.count() as u64;
        let median = |unit: Unit, values: Vec<f64>| match Samples::new(&values) {
            Ok(samples) => Reading::measured(samples.median(), unit, samples.count() as u64),
            Err(_) => Known::unavailable("no sample of the clock has it", "see the clock's record"),
        };
        let of = |unit: Unit, pick: fn(&RequestClock) -> &Reading| {
            median(unit, clocks.iter().filter_map(|clock| pick(clock).value()).collect())
        };
        let noise = record.noise.known().and_then(|rows| rows.iter().find(|row| row.metric == Metric::Request));
        Ok(RequestSummary {
            whole_request: Reading::measured(samples.median(), Unit::Seconds, n),
            spread: Reading::measured(samples.median_absolute_deviation(), Unit::Seconds, n),
            interval: SecondsInterval::of_median(&whole, 1.0),
            prefill: of(Unit::Seconds, |clock| &clock.prefill),
            decode: of(Unit::Seconds, |clock| &clock.decode),
            set_up: median(Unit::Seconds, clocks.iter().filter_map(|clock| set_up(clock)).collect()),
            peak_allocation: of(Unit::Bytes, |clock| &clock.peak_allocation),
            peak_rss: of(Unit::Bytes, |clock| &clock.peak_rss),
            processor_share: of(Unit::Share, |clock| &clock.processor_share),
            detectable_percent: match noise {
                Some(noise) => noise.detectable_percent.clone(),
                None => Known::unavailable("the clock had no two arms", "clock with --variant A/A"),
            },
            samples_s: whole,
        })
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let again = Samples::new(&self.samples_s).map_or(0.0, |samples| samples.median());
        let stated = self.whole_request.value().unwrap_or(0.0);
        vec![Check::sums("request: the median is that of the samples", again, stated)]
    }
}

/// Counting requests of the control and of the control again.
fn own_clocks(record: &BenchRecord) -> impl Iterator<Item = &RequestClock> {
    use crate::bench::ArmKind;
    let same = |arm: u64| {
        arm == 0 || record.arms.get(arm as usize).is_some_and(|arm| arm.counts && arm.kind == ArmKind::SameAgain)
    };
    let own = record.samples.iter().filter(move |sample| same(sample.arm));
    own.filter_map(Sample::counting).map(|measured| &measured.clock)
}

/// Seconds by which decoding took longer than all its steps would at their median, in the median request; None without steps.
pub(super) fn delayed_steps(record: &BenchRecord) -> Option<f64> {
    let beyond = |clock: &RequestClock| {
        let steps = Samples::new(clock.token_seconds.get(1..)?).ok()?;
        Some(steps.sum() - steps.count() as f64 * steps.median())
    };
    let all: Vec<f64> = own_clocks(record).filter_map(beyond).collect();
    Samples::new(&all).ok().map(|all| all.median())
}

impl SecondsInterval {
    /// Of the median of `samples`, each `scale` times as long.
    pub(super) fn of_median(samples: &[f64], scale: f64) -> Known<SecondsInterval> {
        match median_interval(samples) {
            Some((low, high, confidence)) => {
                Known::Is(SecondsInterval { low: low * scale, high: high * scale, confidence })
            }
            None => Known::unavailable("one sample has no spread", "measure more rounds"),
        }
    }
}
