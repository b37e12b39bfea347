//! Units of values in records and in sentences, and how a number is written in one.
//! Not here: where numbers come from (`value.rs`).

use anyhow::{Result, bail};

/// Powers of second, byte, operation and token.
pub(crate) type Dimension = [i32; 4];

pub(crate) const NONE: Dimension = [0; 4];
const SECONDS: Dimension = [1, 0, 0, 0];
const BYTES: Dimension = [0, 1, 0, 0];
const OPERATIONS: Dimension = [0, 0, 1, 0];
const TOKENS: Dimension = [0, 0, 0, 1];

/// A number in seconds, bytes, operations and tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Amount {
    pub(crate) value: f64,
    pub(crate) dimension: Dimension,
}

/// (name, how many of the base unit, dimension).
const UNITS: &[(&str, f64, Dimension)] = &[
    ("s", 1.0, SECONDS),
    ("ms", 1e-3, SECONDS),
    ("us", 1e-6, SECONDS),
    ("ns", 1e-9, SECONDS),
    ("B", 1.0, BYTES),
    ("kB", 1e3, BYTES),
    ("MB", 1e6, BYTES),
    ("GB", 1e9, BYTES),
    ("KiB", 1024.0, BYTES),
    ("MiB", 1_048_576.0, BYTES),
    ("GiB", 1_073_741_824.0, BYTES),
    ("GB/s", 1e9, [-1, 1, 0, 0]),
    ("FLOP", 1.0, OPERATIONS),
    ("MFLOP", 1e6, OPERATIONS),
    ("GFLOP", 1e9, OPERATIONS),
    ("GFLOP/s", 1e9, [-1, 0, 1, 0]),
    ("TFLOP/s", 1e12, [-1, 0, 1, 0]),
    ("FLOP/B", 1.0, [0, -1, 1, 0]),
    ("tok", 1.0, TOKENS),
    ("tok/s", 1.0, [-1, 0, 0, 1]),
    ("share", 1.0, NONE),
    ("%", 0.01, NONE),
    ("x", 1.0, NONE),
    ("", 1.0, NONE),
];

fn named(name: &str) -> Option<(f64, Dimension)> {
    UNITS.iter().find(|unit| unit.0 == name).map(|unit| (unit.1, unit.2))
}

/// `value` of a unit that has a name.
///
/// # Errors
/// A name that is no unit.
pub(crate) fn amount(value: f64, unit: &str) -> Result<Amount> {
    match named(unit) {
        Some((factor, dimension)) => Ok(Amount { value: value * factor, dimension }),
        None => bail!("'{unit}' is no unit; there are {}", names()),
    }
}

/// The unit that a field's name carries (`wall_ns`, `peak_bytes`, `flops`); of none without one.
pub(crate) fn of_field(name: &str) -> &'static str {
    let parts: Vec<&str> = name.split('_').collect();
    match (parts.first().copied(), parts.last().copied()) {
        (_, Some("bytes")) | (Some("bytes"), _) => "B",
        (_, Some("flops")) | (Some("flops"), _) => "FLOP",
        (_, Some("percent")) => "%",
        (_, Some("ns")) => "ns",
        (_, Some("us")) => "us",
        (_, Some("ms")) => "ms",
        (_, Some("s" | "seconds")) => "s",
        _ => "",
    }
}

/// An amount in words: `12.3 ms`, `45 %`, `1.31 times`. `form` is a unit, or `n` for a count, or `number`; `.DIGITS` after it sets
/// the number of decimals, else three digits count.
///
/// # Errors
/// A unit of another kind than the amount.
pub(crate) fn write(amount: Amount, form: &str) -> Result<String> {
    let (unit, decimals) = match form.rsplit_once('.') {
        Some((unit, digits)) => match digits.parse::<usize>() {
            Ok(digits) => (unit, Some(digits)),
            Err(_) => bail!("'{form}': expected a number of decimals after the dot"),
        },
        None => (form, None),
    };
    if !amount.value.is_finite() {
        bail!("the value is {}, no number", amount.value);
    }
    if unit == "n" {
        if amount.value.fract().abs() > 1e-6 {
            bail!("{} is no count; give it a unit", amount.value);
        }
        return Ok(grouped(amount.value.round(), 0));
    }
    let (factor, dimension) = match (unit, named(unit)) {
        ("number", _) => (1.0, NONE),
        ("" | "share", _) | (_, None) => bail!("'{unit}' is no form; there are n, number, {}", names()),
        (_, Some(found)) => found,
    };
    if amount.dimension != dimension {
        bail!("it is of {}, which cannot be written in '{unit}'", dimension_words(amount.dimension));
    }
    let value = amount.value / factor;
    let digits = decimals.unwrap_or_else(|| decimals_for(value));
    let number = grouped(value, digits);
    // A space that does not break, so that no line begins with a unit.
    Ok(match unit {
        "number" => number,
        "x" => format!("{number}\u{a0}times"),
        "us" => format!("{number}\u{a0}µs"),
        "tok" => format!("{number}\u{a0}tokens"),
        "tok/s" => format!("{number}\u{a0}tokens/s"),
        unit => format!("{number}\u{a0}{unit}"),
    })
}

/// Decimals that leave three digits that count.
fn decimals_for(value: f64) -> usize {
    let size = value.abs();
    if size == 0.0 || size >= 100.0 {
        return 0;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the logarithm of a finite number is small")]
    let magnitude = size.log10().floor() as i32;
    usize::try_from(2 - magnitude).unwrap_or(0)
}

/// A number with its thousands apart.
fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut out = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    let sign = if value < 0.0 && text.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{out}{point}{fraction}")
}

fn names() -> String {
    UNITS.iter().map(|unit| unit.0).filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ")
}

fn dimension_words(dimension: Dimension) -> String {
    let names = ["seconds", "bytes", "operations", "tokens"];
    let parts: Vec<String> = names
        .iter()
        .zip(dimension)
        .filter(|(_, power)| *power != 0)
        .map(|(name, power)| if power == 1 { (*name).to_owned() } else { format!("{name}^{power}") })
        .collect();
    if parts.is_empty() { "no unit".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn three_digits_count_unless_decimals_are_given() {
        let cases = [
            (1.75296, "s", "s", "1.75\u{a0}s"),
            (0.0123456, "s", "ms", "12.3\u{a0}ms"),
            (351_797_989.0, "B", "MB", "352\u{a0}MB"),
            (0.0654, "share", "%", "6.54\u{a0}%"),
            (0.0654, "share", "%.1", "6.5\u{a0}%"),
            (7168.6, "us", "us", "7,169\u{a0}µs"),
            (1.306, "x", "x", "1.31\u{a0}times"),
            (1_234_567.0, "", "n", "1,234,567"),
            (-0.0001, "", "number.1", "0.0"),
            (-1234.5, "", "number.1", "-1,234.5"),
        ];
        for (value, unit, form, words) in cases {
            assert_eq!(write(amount(value, unit).unwrap(), form).unwrap(), words);
        }
    }

    #[test]
    fn a_unit_of_another_kind_is_refused() {
        let seconds = amount(1.0, "s").unwrap();
        assert!(write(seconds, "GB").unwrap_err().to_string().contains("seconds"));
        assert!(write(seconds, "parsec").is_err());
        assert!(write(amount(1.5, "").unwrap(), "n").is_err());
        assert!(write(amount(f64::NAN, "").unwrap(), "number").is_err());
        assert!(amount(1.0, "parsec").is_err());
    }

    #[test]
    fn a_fields_name_carries_its_unit() {
        for (name, unit) in [
            ("wall_ns", "ns"),
            ("bytes_read", "B"),
            ("peak_bytes", "B"),
            ("flops", "FLOP"),
            ("calls", ""),
            ("samples_us", "us"),
        ] {
            assert_eq!(of_field(name), unit, "{name}");
        }
    }
}
