//! Whole requests clocked in turn with the rounds of replayed cases, in the same process and the same minutes.
//! Not here: the request clock of fresh processes (`bench/`), whose times are a request's; these only say how fast the machine
//! was while the cases were replayed.

use crate::replay::Timing;
use crate::samples::{Samples, SamplesError};
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

/// The median of each turn's samples: rounds of one turn met the same moment of the machine. None where the samples are not
/// those of the turns.
pub(crate) fn by_turn(samples_us: &[f64], turns: &[usize]) -> Option<Vec<f64>> {
    let mut rest = samples_us;
    let mut medians = Vec::with_capacity(turns.len());
    for rounds in turns {
        let (own, later) = rest.split_at_checked(*rounds)?;
        medians.push(Samples::new(own).ok()?.median());
        rest = later;
    }
    (rest.is_empty() && !medians.is_empty()).then_some(medians)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_turn_count_once() {
        let samples = [1.0, 2.0, 9.0, 4.0, 5.0, 6.0];
        assert_eq!(by_turn(&samples, &[3, 1, 2]), Some(vec![2.0, 4.0, 5.5]));
        for turns in [&[3, 1][..], &[3, 4], &[]] {
            assert_eq!(by_turn(&samples, turns), None, "{turns:?}");
        }
    }
}
