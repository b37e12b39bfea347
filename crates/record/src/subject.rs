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
