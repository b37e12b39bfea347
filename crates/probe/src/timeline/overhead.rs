//! What tracing costs: single decode steps (or prefills) without and with it, in an order that drifts do not tell apart.
//! Not here: running them.

use record::statistics::CONFIDENCE;
use record::statistics::paired::{Pair, compare};
use record::timeline::{OverheadSample, OverheadUnit, TracingOverhead};
use record::{Known, Reading, Unit};

/// Samples that are compared as one pair: the four without tracing against the four with it.
pub(super) const BLOCK: usize = 8;

const MORE: &str = "trace a longer request, or raise `--overhead-rounds`";

/// In its place where it was not measured.
pub(super) fn not_measured() -> Known<TracingOverhead> {
    Known::unavailable("not measured", "leave out `--overhead-rounds 0`")
}

/// Whether sample number `sample` is taken with tracing: the Thue-Morse sequence (odd numbers of binary ones). In every block of
/// eight, a cost that changes steadily, or like a square, weighs on both sides alike; every second block is the other way around.
pub(super) fn traced(sample: usize) -> bool {
    !sample.count_ones().is_multiple_of(2)
}

/// A device's recording, which is switched between units, of one request or of several. The unit behind a switch makes its profiler's
/// buffers and takes its graph apart: it is no sample.
#[derive(Default)]
pub(super) struct Switch {
    on: bool,
    settling: bool,
}

impl Switch {
    /// Whether the unit that has just ended, if one has, is a sample.
    pub(super) fn counts(&mut self, ended: bool) -> bool {
        let counts = ended && !self.settling;
        self.settling &= !ended;
        counts
    }

    /// Whether recording must be switched to be `on`; it is taken to be from then on.
    pub(super) fn turns(&mut self, on: bool) -> bool {
        let turns = self.on != on;
        self.on = on;
        self.settling |= turns;
        turns
    }
}

/// From samples in the order of [`traced`], which is what their flags say too; whole blocks count.
pub(super) fn estimate(of: OverheadUnit, samples: Vec<OverheadSample>) -> Known<TracingOverhead> {
    let pair = |block: &[OverheadSample]| {
        let sum = |traced| block.iter().filter(|sample| sample.traced == traced).map(|sample| sample.wall_s).sum();
        Pair { control: sum(false), arm: sum(true), control_first: !block[0].traced }
    };
    let pairs: Vec<Pair> = samples.chunks_exact(BLOCK).map(pair).collect();
    if pairs.is_empty() {
        return not_measured();
    }
    match compare(&pairs) {
        Ok(comparison) => {
            let n = pairs.len() as u64;
            let share = |ratio: f64| Reading::measured(ratio - 1.0, Unit::Share, n);
            let (low, high) = match &comparison.interval {
                Known::Is(interval) => (share(interval.low), share(interval.high)),
                Known::Unavailable(missing) => {
                    // The comparison's own advice names a flag of another verb.
                    let unknown = || Known::unavailable(missing.unavailable.clone(), MORE);
                    (unknown(), unknown())
                }
            };
            let confidence = Reading::measured(CONFIDENCE, Unit::Share, n);
            Known::Is(TracingOverhead { of, share: share(comparison.ratio), low, high, confidence, samples })
        }
        Err(error) => Known::unavailable(error.to_string(), MORE),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// 5 % slower with tracing, on a drift of 1 % per sample, and one sample in a hundred that something else held up.
    #[test]
    fn a_known_cost_is_found_through_a_drift_and_disturbances() {
        let sample = |n: usize| {
            let (drift, held_up) = (1.0 + 0.01 * n as f64, if n % 100 == 37 { 3.0 } else { 0.0 });
            OverheadSample { traced: traced(n), wall_s: if traced(n) { 1.05 * drift } else { drift } + held_up }
        };
        let samples: Vec<_> = (0..40 * BLOCK).map(sample).collect();
        let overhead = estimate(OverheadUnit::DecodeStep, samples);
        let overhead = overhead.known().unwrap();
        let [share, low, high] =
            [&overhead.share, &overhead.low, &overhead.high].map(|reading| reading.value().unwrap());
        assert!((share - 0.05).abs() < 2e-3 && low <= 0.05 && high >= 0.05 && high - low < 0.01, "{overhead:?}");
    }

    /// Sums over the numbers with and without tracing agree up to the second power: what cancels out.
    #[test]
    fn every_block_balances_steady_and_square_drifts_and_turns_around() {
        for block in 0..64 {
            let numbers = block * BLOCK..(block + 1) * BLOCK;
            for power in [0, 1, 2] {
                let sum = |with| -> usize {
                    numbers.clone().filter(|&n| traced(n) == with).map(|n| (n - block * BLOCK).pow(power)).sum()
                };
                assert_eq!(sum(true), sum(false), "block {block}, power {power}");
            }
        }
        assert_eq!([0, 8, 16, 24].map(traced), [false, true, true, false], "either side begins");
    }

    #[test]
    fn no_whole_block_is_no_cost_of_zero() {
        assert!(estimate(OverheadUnit::Prefill, Vec::new()).known().is_none());
        let one = OverheadSample { traced: false, wall_s: 1.0 };
        assert!(estimate(OverheadUnit::Prefill, vec![one]).known().is_none());
    }

    /// A request of prefill alone has one unit: what is switched at its end is settled in the next request, and counts in the one after.
    #[test]
    fn samples_come_to_an_end_however_few_units_a_request_has() {
        for units in [1, 3, 8] {
            let mut switch = Switch::default();
            let (mut samples, mut on, mut requests) = (Vec::new(), false, 0);
            // Units since it was switched; it has been off for long.
            let mut since = 9;
            while samples.len() < 2 * BLOCK {
                requests += 1;
                assert!(requests < 100, "{units} units: {samples:?}");
                for ended in 0..=units {
                    since += usize::from(ended > 0);
                    if switch.counts(ended > 0) {
                        assert!(since > 1, "the unit behind a switch is none: {samples:?}");
                        samples.push(on);
                    }
                    let with = traced(samples.len());
                    assert_eq!(switch.turns(with), on != with);
                    if on != with {
                        (on, since) = (with, 0);
                    }
                }
            }
            let wanted: Vec<bool> = (0..samples.len()).map(traced).collect();
            assert_eq!(samples, wanted);
        }
    }
}
