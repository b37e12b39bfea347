//! Whole requests clocked in turn with the rounds of replayed cases, in the same process and the same minutes.
//! Not here: the request clock of fresh processes (`bench/`), whose times are a request's; these only say how fast the machine
//! was while the cases were replayed.

use crate::replay::Timing;
use crate::samples::SamplesError;
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The requests of one checkpoint, one per turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestsBetween {
    pub checkpoint: String,
    pub workload: Workload,
    pub workload_id: String,
    /// Microseconds of each request's parts, in the order of the turns.
    pub prefill: Timing,
    /// All decode steps together.
    pub decode: Timing,
    pub whole_request: Timing,
}

impl RequestsBetween {
    /// `samples_us`: prefill, decode and whole request of each turn.
    ///
    /// # Errors
    /// No samples, or one that is not finite.
    pub fn new(checkpoint: &str, workload: Workload, samples_us: &[[f64; 3]]) -> Result<RequestsBetween, SamplesError> {
        let of = |part: usize| Timing::new(samples_us.iter().map(|sample| sample[part]).collect());
        Ok(RequestsBetween {
            checkpoint: checkpoint.to_owned(),
            workload_id: workload.id(),
            workload,
            prefill: of(0)?,
            decode: of(1)?,
            whole_request: of(2)?,
        })
    }

    /// As turns name it, like a case: `selected:request:128`.
    pub fn name(&self) -> String {
        format!("{}:request:{}", self.checkpoint, self.workload.context_tokens)
    }

    pub(crate) fn samples(&self) -> usize {
        let parts = [&self.prefill, &self.decode, &self.whole_request];
        parts.iter().map(|timing| timing.samples_us.len()).min().unwrap_or(0)
    }
}
