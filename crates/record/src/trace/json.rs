//! JSON written piece by piece: what the writers of viewers' formats share. Not here: any format, and reading.

use std::fmt::Display;
use std::io::{self, Write};

/// A JSON string: quoted, with control characters escaped.
pub(super) struct Text<'a>(pub(super) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // serde_json's own escaping; a string always serialises.
        f.write_str(&serde_json::to_string(self.0).unwrap_or_default())
    }
}

/// Nanoseconds as a decimal of a unit of 10^digits nanoseconds, exactly.
pub(super) struct Decimal {
    pub(super) ns: u64,
    pub(super) digits: u32,
}

impl Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = 10u64.pow(self.digits);
        write!(f, "{}.{:0width$}", self.ns / unit, self.ns % unit, width = self.digits as usize)
    }
}

/// Microseconds, to the nanosecond.
pub(super) fn micros(ns: u64) -> Decimal {
    Decimal { ns, digits: 3 }
}

/// Milliseconds, to the nanosecond.
pub(super) fn millis(ns: u64) -> Decimal {
    Decimal { ns, digits: 6 }
}

/// The items, separated by commas.
pub(super) fn list<T: Display>(out: &mut impl Write, items: impl Iterator<Item = T>) -> io::Result<()> {
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        write!(out, "{item}")?;
    }
    Ok(())
}

/// `"key":[items]`.
pub(super) fn column<T: Display>(out: &mut impl Write, key: &str, items: impl Iterator<Item = T>) -> io::Result<()> {
    write!(out, "\"{key}\":[")?;
    list(out, items)?;
    out.write_all(b"]")
}

/// The item, or `null`.
pub(super) fn or_null<T: Display>(item: Option<T>) -> String {
    item.map_or("null".to_owned(), |item| item.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_and_text_is_escaped() {
        assert_eq!(micros(1_234_567).to_string(), "1234.567");
        assert_eq!(micros(u64::MAX).to_string(), "18446744073709551.615");
        assert_eq!(millis(5).to_string(), "0.000005");
        assert_eq!(Text("a\"\n\u{1}é").to_string(), "\"a\\\"\\n\\u0001é\"");
    }
}
