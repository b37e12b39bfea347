//! What was measured: the thing that comparisons vary while the workload stays.
//! Its machine and threads are in `conditions.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An engine at one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Whose kernels and checkpoints: `hourglass` or `lab`.
    pub solution: String,
    pub checkpoint: String,
    /// The checkpoint's three mechanisms as they were after the command's switches.
    pub mechanisms: Mechanisms,
    pub engine: String,
    pub version: String,
    /// What the file holds, e.g. `BF16`.
    pub weights_form: String,
    /// What was converted at load, and how; empty if nothing was.
    pub conversions: Vec<String>,
}

/// State of the three switchable mechanisms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mechanisms {
    pub capacity_cache: bool,
    pub register_cached_rmsnorm: bool,
    pub tiled_prefill: bool,
}

impl std::fmt::Display for Mechanisms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let switch = |on: bool| if on { "on" } else { "off" };
        let Mechanisms { capacity_cache, register_cached_rmsnorm, tiled_prefill } = *self;
        write!(
            f,
            "capacity cache {}, register-cached RMSNorm {}, tiled prefill {}",
            switch(capacity_cache),
            switch(register_cached_rmsnorm),
            switch(tiled_prefill)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In comparisons, beside what else differs.
    #[test]
    fn mechanisms_are_told_in_words() {
        let mechanisms = Mechanisms { capacity_cache: true, register_cached_rmsnorm: true, tiled_prefill: false };
        assert_eq!(mechanisms.to_string(), "capacity cache on, register-cached RMSNorm on, tiled prefill off");
    }
}
