//! A measured number with its unit and how many samples stand behind it; finite by construction.
//! What cannot be measured is `Known::Unavailable`, in `known.rs`.

use crate::known::Known;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A measured number, or why there is none.
pub type Reading = Known<Quantity>;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Unit {
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "B")]
    Bytes,
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    #[serde(rename = "GFLOP/s")]
    GigaflopsPerSecond,
    #[serde(rename = "tok/s")]
    TokensPerSecond,
    /// A part of a whole, 0 to 1.
    #[serde(rename = "share")]
    Share,
    /// One number divided by another of its kind.
    #[serde(rename = "x")]
    Ratio,
}

impl Unit {
    /// The spelling in records and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::Microseconds => "us",
            Unit::Bytes => "B",
            Unit::GigabytesPerSecond => "GB/s",
            Unit::GigaflopsPerSecond => "GFLOP/s",
            Unit::TokensPerSecond => "tok/s",
            Unit::Share => "share",
            Unit::Ratio => "x",
        }
    }
}

/// A finite number with its unit and the number of samples that it was made from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Raw")]
pub struct Quantity {
    value: f64,
    unit: Unit,
    n: u64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Raw {
    value: f64,
    unit: Unit,
    n: u64,
}

/// Why a number is no measurement.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantityError {
    #[error("{value} {unit} is not a finite number, so it is no measurement; say why it is unavailable instead")]
    NotFinite { value: f64, unit: Unit },
    #[error("{value} {unit} has no sample behind it (n = 0); say why it is unavailable instead")]
    NoSamples { value: f64, unit: Unit },
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Quantity {
    /// # Errors
    /// NaN, an infinity, or `n` of zero.
    pub fn new(value: f64, unit: Unit, n: u64) -> Result<Quantity, QuantityError> {
        if !value.is_finite() {
            return Err(QuantityError::NotFinite { value, unit });
        }
        if n == 0 {
            return Err(QuantityError::NoSamples { value, unit });
        }
        Ok(Quantity { value, unit, n })
    }

    pub fn value(self) -> f64 {
        self.value
    }

    pub fn unit(self) -> Unit {
        self.unit
    }

    /// Samples behind the value.
    pub fn n(self) -> u64 {
        self.n
    }
}

impl TryFrom<Raw> for Quantity {
    type Error = QuantityError;

    fn try_from(raw: Raw) -> Result<Quantity, QuantityError> {
        Quantity::new(raw.value, raw.unit, raw.n)
    }
}

impl Reading {
    /// A measured value; a number that is none becomes unavailable and says so.
    pub fn measured(value: f64, unit: Unit, n: u64) -> Reading {
        match Quantity::new(value, unit, n) {
            Ok(quantity) => Known::Is(quantity),
            Err(error) => Known::unavailable(error.to_string(), "measure again with more samples"),
        }
    }

    /// `part / whole` of one unit, as a rate or share; unavailable when the whole is zero or either is missing.
    pub fn ratio(part: f64, whole: f64, unit: Unit, n: u64) -> Reading {
        if whole == 0.0 {
            return Known::unavailable("nothing to divide by: the whole is zero", "use a larger shape");
        }
        Reading::measured(part / whole, unit, n)
    }

    /// The number alone.
    pub fn value(&self) -> Option<f64> {
        self.known().map(|quantity| quantity.value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn nan_and_infinity_and_no_sample_are_refused() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(matches!(Quantity::new(value, Unit::Seconds, 1), Err(QuantityError::NotFinite { .. })));
            assert!(Reading::measured(value, Unit::Seconds, 1).known().is_none());
        }
        assert!(matches!(Quantity::new(1.0, Unit::Bytes, 0), Err(QuantityError::NoSamples { .. })));
        assert!(Reading::ratio(1.0, 0.0, Unit::Share, 1).known().is_none());
    }

    #[test]
    fn zero_is_a_measurement() {
        let zero = Reading::measured(0.0, Unit::Bytes, 1);
        assert_eq!(zero.value(), Some(0.0));
        assert_eq!(serde_json::to_string(&zero).unwrap(), r#"{"value":0.0,"unit":"B","n":1}"#);
    }

    #[test]
    fn a_reading_round_trips_and_bad_ones_do_not_parse() {
        let reading = Reading::measured(12.5, Unit::TokensPerSecond, 3);
        let text = serde_json::to_string(&reading).unwrap();
        assert_eq!(serde_json::from_str::<Reading>(&text).unwrap(), reading);
        for bad in [
            r#"{"value":1e999,"unit":"s","n":1}"#,
            r#"{"value":1,"unit":"s","n":0}"#,
            r#"{"value":1,"unit":"parsec","n":1}"#,
            r#"{"value":null,"unit":"s","n":1}"#,
            r#"{"value":1,"unit":"s"}"#,
            r#"{"value":1,"unit":"s","n":1,"extra":2}"#,
            "3",
        ] {
            assert!(serde_json::from_str::<Reading>(bad).is_err(), "{bad}");
        }
    }
}
