//! How precisely samples tell a kernel's share: before the stretch from the pilot's spans, after it from the samples themselves.
//! Not here: the shares that a reader sees, which are computed from the trace's files.

use super::stretch::Setup;
use crate::sampler::RawSample;
use ops::Traced;
use record::capture::raw::RawCall;
use std::collections::BTreeMap;

/// Of the normal distribution, for 95 %.
const Z: f64 = 1.959_963_985;

/// Time or samples in each kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Busy<'a>(BTreeMap<&'a str, f64>);

impl<'a> Busy<'a> {
    /// Seconds in each kernel, over all workers.
    pub(super) fn of_spans(calls: &'a [RawCall], traced: &mut Traced, workers: usize) -> Busy<'a> {
        let mut busy = Busy::default();
        for worker in 0..workers {
            for span in traced.spans(worker).0 {
                if let Some(call) = calls.get(span.call as usize) {
                    busy.add(&call.kernel, (span.end_ns - span.start_ns) as f64 / 1e9);
                }
            }
        }
        busy
    }

    fn add(&mut self, kernel: &'a str, weight: f64) {
        *self.0.entry(kernel).or_default() += weight;
    }

    fn sum(&self) -> f64 {
        self.0.values().sum()
    }

    /// Variance p (1 - p) of the kernel whose share has the widest interval.
    fn widest_variance(&self) -> f64 {
        let sum = self.sum();
        let variances = self.0.values().map(|part| part / sum * (1.0 - part / sum));
        variances.filter(|variance| variance.is_finite()).fold(0.0, f64::max)
    }

    /// How long the passes that these seconds are of have to go on, `seconds` being all of them, for that half-width.
    pub(super) fn seconds_for(&self, half_width: f64, frequency_hz: f64, seconds: f64) -> f64 {
        let samples = Z * Z * self.widest_variance() / (half_width * half_width);
        let per_second = frequency_hz * self.sum() / seconds;
        if per_second > 0.0 { samples / per_second } else { f64::INFINITY }
    }

    /// If these are samples: the half-width of the widest 95 % interval of a share.
    fn half_width(&self) -> Option<f64> {
        let samples = self.sum();
        (samples > 0.0).then(|| Z * (self.widest_variance() / samples).sqrt())
    }
}

/// The half-width of the widest interval of a kernel's share of the samples that are in kernels; `None` if none is.
pub(super) fn widest(
    calls: &[RawCall],
    setup: &Setup<'_>,
    samples: &[RawSample],
    traced: &mut Traced,
    origin_ns: u64,
) -> Option<f64> {
    let mut busy = Busy::default();
    for (worker, thread) in setup.workers.iter().enumerate() {
        let spans = traced.spans(worker).0;
        for sample in samples.iter().filter(|sample| sample.thread == *thread) {
            let at = sample.at_ns.saturating_sub(origin_ns);
            let before = spans.partition_point(|span| span.start_ns <= at);
            let inside = before.checked_sub(1).map(|index| spans[index]).filter(|span| at < span.end_ns);
            if let Some(call) = inside.and_then(|span| calls.get(span.call as usize)) {
                busy.add(&call.kernel, 1.0);
            }
        }
    }
    busy.half_width()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 2401 samples at a share of one half, the textbook's interval is 2 percentage points to each side.
    #[test]
    fn the_textbook_number_of_samples_gives_the_textbook_interval() {
        let even = Busy(BTreeMap::from([("a", 1200.5), ("b", 1200.5)]));
        assert!(even.half_width().is_some_and(|half_width| (half_width - 0.02).abs() < 1e-6), "{even:?}");
        // Two workers busy three quarters of the time: 1.5 samples per tick.
        let seconds = Busy(BTreeMap::from([("a", 0.75), ("b", 0.75)])).seconds_for(0.02, 1000.0, 1.0);
        assert!((seconds - 2401.0 / 1500.0).abs() < 1e-3, "{seconds}");
        // The share nearest to one half is the widest.
        let uneven = Busy(BTreeMap::from([("a", 90.0), ("b", 10.0)]));
        assert!(uneven.half_width().is_some_and(|half_width| (half_width - 1.96 * 0.03).abs() < 1e-4));
    }

    #[test]
    fn one_kernel_alone_is_certain_and_nothing_is_unknown() {
        assert_eq!(Busy(BTreeMap::from([("a", 5.0)])).half_width(), Some(0.0));
        assert_eq!(Busy::default().half_width(), None);
        assert!(Busy::default().seconds_for(0.02, 1000.0, 1.0).is_infinite());
    }
}
