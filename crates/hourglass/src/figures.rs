//! How measured numbers look in tables.
//! Not here: the tables, and where numbers come from.

use record::Reading;

/// A measured number as `form` shows it, or `n/a` (the record holds the reason).
pub(crate) fn show(reading: &Reading, form: impl Fn(f64) -> String) -> String {
    reading.value().map_or_else(|| "n/a".to_owned(), form)
}

/// A part of 1.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

pub(crate) fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

/// Whole numbers in groups of three; small ones with a decimal.
pub(crate) fn thousands(number: f64) -> String {
    if number.abs() < 100.0 && number.fract() != 0.0 {
        return format!("{number:.1}");
    }
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number <= -0.5 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let shown = [0.0, 7.25, 99.96, 100.4, 1234.4, -1_234_567.0, 999_999.6].map(thousands);
        assert_eq!(shown, ["0", "7.2", "100.0", "100", "1,234", "-1,234,567", "1,000,000"]);
    }

    #[test]
    fn what_is_missing_is_not_shown_as_zero() {
        let missing = Reading::unavailable("why", "how");
        assert_eq!(show(&missing, thousands), "n/a");
    }
}
