//! The request clock: how long one warmed request took, and the most memory it had allocated.
//! Which operator the time went to is the replay's to say.

use crate::coverage::Coverage;
use crate::quantity::Reading;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestClock {
    pub coverage: Coverage,
    /// Forward pass over the prompt and choice of token 1; input and cache exist before it starts.
    pub prefill: Reading,
    /// Sum over the remaining tokens, each a forward pass and a choice.
    pub decode: Reading,
    /// Prompt tokens per second of prefill.
    pub prefill_rate: Reading,
    /// Tokens after the first per second of decode.
    pub decode_rate: Reading,
    /// From the start of the request, input and cache set-up included, to token 1.
    pub time_to_first_token: Reading,
    /// The whole request, including set-up and release of input and cache.
    pub whole_request: Reading,
    /// Generated tokens per second of the whole request.
    pub output_rate: Reading,
    pub inter_token_median: Reading,
    /// Nearest rank.
    pub inter_token_p95: Reading,
    /// The most bytes allocated at once during the request, resident weights included; not the process's physical memory.
    pub peak_allocation: Reading,
    /// Part of the request that its workers spent on a processor; far below 1, other processes ran and every time is too long.
    pub processor_share: Reading,
    /// Seconds of each generated token in order: the first is the prefill's.
    pub token_seconds: Vec<f64>,
    /// Token-trace hash of the generated ids.
    pub output_hash: String,
}
