//! What is said of a record whose own checks fail: a verb that ends with 1 because of them names them on stderr.
//! Not here: the checks, which every kind of record has its own of.

use record::{Check, Record};

use crate::output;

/// Failed checks that are named; the others are counted.
const NAMED: usize = 3;

/// Says which checks void a record, and whether there are any.
pub(crate) fn said(record: &impl Record) -> bool {
    if let Some(why) = failed(record.checks()) {
        output::note(format_args!("hourglass: the record is void: {why}; nothing in it may be relied on"));
    }
    record.void()
}

/// The checks that failed, in words; None if all hold.
pub(crate) fn failed(checks: &[Check]) -> Option<String> {
    let failed: Vec<&Check> = checks.iter().filter(|check| !check.passed).collect();
    let words = |check: &&Check| format!("{}: expected {}, found {}", check.name, check.expected, check.found);
    let named: Vec<String> = failed.iter().take(NAMED).map(words).collect();
    let more = failed.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    (!failed.is_empty()).then(|| format!("{}{more}", named.join("; ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn failed_checks_are_named_and_those_that_hold_are_not() {
        let mut checks = vec![Check::counts("holds", 1, 1)];
        assert_eq!(failed(&checks), None);
        checks.extend((0..5).map(|at| Check::counts(format!("check {at}"), 1, 2)));
        let words = failed(&checks).unwrap();
        assert!(
            words.starts_with("check 0: expected 1, found 2; check 1") && words.ends_with("; and 2 more"),
            "{words}"
        );
        assert!(!words.contains("holds"), "{words}");
    }
}
