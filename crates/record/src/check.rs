//! Cross-foot checks: two ways to the same number. A record carries them, and one that fails voids it, visibly.
//! Which checks a record has is said in its own file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Two numbers that must agree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What must equal what.
    pub name: String,
    pub expected: f64,
    pub found: f64,
    /// Largest difference allowed, relative to the expected number; 0 for counts.
    pub tolerance: f64,
    pub passed: bool,
}

impl Check {
    /// Counts that must be equal.
    pub fn counts(name: impl Into<String>, expected: u64, found: u64) -> Check {
        let (name, passed) = (name.into(), expected == found);
        Check { name, expected: expected as f64, found: found as f64, tolerance: 0.0, passed }
    }

    /// Sums of floating-point numbers: equal up to their rounding.
    pub fn sums(name: impl Into<String>, expected: f64, found: f64) -> Check {
        let tolerance = 1e-9;
        let passed = (expected - found).abs() <= tolerance * expected.abs().max(f64::MIN_POSITIVE);
        Check { name: name.into(), expected, found, tolerance, passed }
    }
}
