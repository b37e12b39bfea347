//! How often things were done in one process, as records of replays state it.
//! Not here: the protocol of a bench run, which has many processes (`bench/record.rs`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often things were done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Rounds before the timed ones.
    pub warmup: u64,
    /// Timed rounds of each replay.
    pub iterations: u64,
    /// All samples of the record come from this one process.
    pub process_id: u32,
}
