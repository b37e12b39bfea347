//! Points and spans of time as people type them: `2026-11-29`, `7d`. UTC.
//! Not here: clocks of measurements.

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};

use crate::failure::usage;

const EXPECTED: &str = "a span such as 30m, 12h or 7d";

/// `30m`, `12h`, `7d`.
///
/// # Errors
/// Anything else; `flag` is named.
pub(crate) fn span(flag: &str, text: &str) -> Result<SignedDuration> {
    let wrong = || usage(format!("{flag} {text}: expected {EXPECTED}"));
    let (digits, seconds) = match text.char_indices().last() {
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3_600),
        Some((at, 'd')) => (&text[..at], 86_400),
        _ => return Err(wrong()),
    };
    let count: i64 = digits.parse().map_err(|_| wrong())?;
    // A hundred years, so that the arithmetic below cannot overflow.
    let seconds =
        count.checked_mul(seconds).filter(|seconds| (0..3_155_760_000).contains(seconds)).ok_or_else(wrong)?;
    Ok(SignedDuration::from_secs(seconds))
}

/// A span before now, a date, or a time: `2026-11-29`, `2026-11-29T10:00:00Z`.
///
/// # Errors
/// Anything else; `flag` is named.
pub(crate) fn since(flag: &str, text: &str) -> Result<Timestamp> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if let Ok(midnight) = format!("{text}T00:00:00Z").parse::<Timestamp>() {
        return Ok(midnight);
    }
    match span(flag, text) {
        Ok(span) => Ok(Timestamp::now() - span),
        Err(_) => {
            Err(usage(format!("{flag} {text}: expected {EXPECTED}, a date such as 2026-11-29, or a time in UTC")))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn spans_and_dates_are_read_and_nothing_else() {
        assert_eq!(span("--x", "7d").unwrap(), SignedDuration::from_secs(604_800));
        assert_eq!(span("--x", "90m").unwrap(), SignedDuration::from_secs(5_400));
        for wrong in ["", "d", "7", "-1d", "7w", "99999999999999999999d", "9223372036854775807d", "1.5h", "7é"] {
            let error = span("--older-than", wrong).unwrap_err().to_string();
            assert!(error.contains("--older-than") && error.contains("7d"), "{error}");
        }
        assert_eq!(since("--since", "1970-01-02").unwrap().as_second(), 86_400);
        assert_eq!(since("--since", "1970-01-01T00:01:00Z").unwrap().as_second(), 60);
        assert!(since("--since", "yesterday").is_err() && since("--since", "1h").unwrap() < Timestamp::now());
    }
}
