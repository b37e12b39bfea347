//! The llama3 position scaling of a GGUF file, found again from its table of frequency factors.
//! Not here: applying it.
//!
//! A Llama 3.1 file carries no scaling parameters but `rope_freqs.weight`: one f32 per pair by which the pair's
//! frequency is divided. The llama3 rule makes such a table from four numbers: 1 for wavelengths below
//! `original / high`, `factor` above `original / low`, and in between `1 / factor + s (1 - 1 / factor)` as the reciprocal,
//! `s` growing linearly in `original / wavelength` from `low` to `high`. We look for four numbers that give the table
//! back; a table that no such numbers give is refused, never approximated.

use std::f64::consts::TAU;

use crate::RopeScaling;

/// The writer computes the table in f32 (relative error about 1e-6 through the power and the division); a table made by
/// any other rule is off by far more.
const TOLERANCE: f64 = 2e-5;

/// What all published Llama 3 models use.
const USUAL_LOW: f64 = 1.0;
const USUAL_HIGH: f64 = 4.0;
const USUAL_ORIGINAL: usize = 8192;

/// Finds the scaling. `factors` has one entry per pair (`head_dim / 2`).
/// None: no llama3 rule gives this table.
pub(crate) fn from_factors(factors: &[f32], theta: f64, head_dim: usize) -> Option<RopeScaling> {
    if factors.len() * 2 != head_dim || !factors.iter().all(|f| f.is_finite() && *f >= 1.0 - 1e-6) {
        return None;
    }
    let largest = f64::from(factors.iter().copied().fold(1.0, f32::max));
    if largest <= 1.0 + TOLERANCE {
        return Some(RopeScaling::None);
    }
    let usual = (0..).map(|i| 16usize << i).take_while(|o| *o <= 1 << 22);
    std::iter::once(USUAL_ORIGINAL)
        .chain(usual)
        .map(|original| llama3(largest, USUAL_LOW, USUAL_HIGH, original))
        .chain(fitted(factors, largest, theta, head_dim))
        .find(|scaling| matches(scaling, factors, theta, head_dim))
}

fn llama3(factor: f64, low: f64, high: f64, original: usize) -> RopeScaling {
    RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_max_position: original }
}

/// Only `original / (high - low)` and `low / (high - low)` shape the table, so `original` may be set to its usual value and
/// the other two read off the straight line through the first and last pair of the in-between range.
fn fitted(factors: &[f32], largest: f64, theta: f64, head_dim: usize) -> Option<RopeScaling> {
    let middle: Vec<usize> = (0..factors.len())
        .filter(|&i| f64::from(factors[i]) > 1.0 + TOLERANCE && f64::from(factors[i]) < largest * (1.0 - TOLERANCE))
        .collect();
    let (&first, &last) = (middle.first()?, middle.last()?);
    if first == last {
        return None;
    }
    let x = |i: usize| frequency(theta, head_dim, i) / TAU;
    let y = |i: usize| 1.0 / f64::from(factors[i]);
    let slope = (y(first) - y(last)) / (x(first) - x(last));
    let at_zero = y(last) - slope * x(last);
    let span = 1.0 - 1.0 / largest;
    let width = USUAL_ORIGINAL as f64 * span / slope;
    let low = (1.0 / largest - at_zero) / span * width;
    (width.is_finite() && width > 0.0 && low > 0.0).then(|| llama3(largest, low, low + width, USUAL_ORIGINAL))
}

fn frequency(theta: f64, head_dim: usize, pair: usize) -> f64 {
    theta.powf(-2.0 * pair as f64 / head_dim as f64)
}

fn matches(scaling: &RopeScaling, factors: &[f32], theta: f64, head_dim: usize) -> bool {
    let RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_max_position } = *scaling
    else {
        return false;
    };
    factors.iter().enumerate().all(|(i, &found)| {
        let periods = original_max_position as f64 * frequency(theta, head_dim, i) / TAU;
        let smooth = ((periods - low) / (high - low)).clamp(0.0, 1.0);
        let expected = 1.0 / ((1.0 - smooth) / factor + smooth);
        (f64::from(found) / expected - 1.0).abs() < TOLERANCE
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// The rule as the Llama 3.1 description states it, with its three cases apart, in f32 as writers do.
    fn table(theta: f32, dim: usize, factor: f32, low: f32, high: f32, original: f32) -> Vec<f32> {
        (0..dim / 2)
            .map(|i| {
                let wavelength = std::f32::consts::TAU * theta.powf(2.0 * i as f32 / dim as f32);
                if wavelength < original / high {
                    1.0
                } else if wavelength > original / low {
                    factor
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            })
            .collect()
    }

    #[test]
    fn published_tables_give_the_published_numbers() {
        for factor in [8.0, 32.0] {
            let found = from_factors(&table(500_000.0, 128, factor, 1.0, 4.0, 8192.0), 500_000.0, 128);
            assert_eq!(found, Some(llama3(factor.into(), 1.0, 4.0, 8192)));
        }
        let small = from_factors(&table(10_000.0, 64, 8.0, 1.0, 4.0, 64.0), 10_000.0, 64);
        assert_eq!(small, Some(llama3(8.0, 1.0, 4.0, 64)));
    }

    #[test]
    fn unusual_numbers_are_fitted_to_the_same_table() {
        let factors = table(500_000.0, 128, 16.0, 1.5, 3.0, 5000.0);
        let found = from_factors(&factors, 500_000.0, 128).unwrap();
        assert!(matches(&found, &factors, 500_000.0, 128));
    }

    #[test]
    fn other_tables_are_refused() {
        let mut factors = table(500_000.0, 128, 8.0, 1.0, 4.0, 8192.0);
        assert_eq!(from_factors(&factors, 10_000.0, 128), None, "made for another theta");
        factors[40] *= 1.001;
        assert_eq!(from_factors(&factors, 500_000.0, 128), None, "one factor changed");
        assert_eq!(from_factors(&factors[1..], 500_000.0, 128), None, "too short");
        assert_eq!(from_factors(&[1.0; 64], 500_000.0, 128), Some(RopeScaling::None));
        assert_eq!(from_factors(&[f32::NAN; 64], 500_000.0, 128), None);
        assert_eq!(from_factors(&[2.0; 64], 500_000.0, 128), None, "plain linear scaling is another rule");
    }
}
