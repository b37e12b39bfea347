//! What a clocked request really dispatched, beside what its programs plan.
//! A replay cannot show this: it chooses the calls itself.

use crate::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Dispatches of one phase of a clocked request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wiring {
    pub phase: Phase,
    /// Layers of the model.
    pub layers: u64,
    /// Layers of which every call was dispatched once per pass.
    pub layers_as_planned: u64,
    /// Passes of this phase in the request.
    pub passes: u64,
    /// Calls of one pass, those outside layers included (of the largest, where the passes of a prompt's chunks differ).
    pub calls_per_pass: u64,
    /// Dispatches that the programs plan: every call of every pass once.
    pub planned: u64,
    /// Dispatches counted over the request.
    pub dispatched: u64,
    /// Calls that were dispatched more or less often than planned: `layer 3 q_proj: 127 of 128`.
    pub deviations: Vec<String>,
}
