//! What may be gained somewhere, as the ranking states it: how much, on what evidence, and how it could be proved wrong.
//! Not here: where the numbers come from (`rows.rs`), and the words (`words.rs`).

use crate::evidence::EvidenceRef;
use crate::known::Known;
use crate::quantity::Reading;
use crate::replay::floor::Limit;
use crate::workload::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A part of the request's time that could be shorter. Times are seconds per request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// The place of the first candidate that this one is not surely below: those that cannot be told apart share a rank.
    pub rank: u64,
    pub kind: CandidateKind,
    /// e.g. `q_proj: linear`.
    pub name: String,
    /// In whose passes; `request` where it belongs to neither phase or to both.
    pub phase: Phase,
    pub multiplicity: Multiplicity,
    /// All of its time. `measured = waits + floor + recoverable`.
    pub measured: Reading,
    /// The part in which workers waited for the slowest of them: it is counted in the row of waits and not in this one.
    pub waits: Reading,
    /// The least time at the measured ceilings; unavailable: nothing was taken off.
    pub floor: Reading,
    /// What the request could gain at most.
    pub recoverable: Reading,
    /// Where `recoverable` lies, from the spread of its samples; floor and waits are taken as exact.
    pub interval: Known<SecondsInterval>,
    /// `recoverable` as a part of the request.
    pub share: Reading,
    /// What the request would take if all of it were gained.
    pub remaining: Reading,
    /// Whether the request's clock holds it; what lies beside the request is ranked and not summed.
    pub in_request: bool,
    /// What sets the floor.
    pub limit: Known<Limit>,
    /// Why it takes as long as it does, in a sentence that could be false.
    pub mechanism: String,
    /// The cheapest command that could show that changing this would not help.
    pub falsify: Experiment,
    /// Rungs and kernels that exist already and change this.
    pub tries: Known<Vec<Experiment>>,
    /// The records that its numbers are from.
    pub evidence: Vec<EvidenceRef>,
}

/// What kind of time it is. No moment of a request is in two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CandidateKind {
    /// An operator at one place of the layers, its waits left out.
    Operator,
    /// Workers that have done their share wait for the slowest.
    Waits,
    /// Starting the workers and walking the program.
    Dispatch,
    /// Choosing tokens.
    Sampling,
    /// Text to tokens and back.
    Tokenising,
    /// Making and releasing input and cache within the request.
    SetUp,
    /// Nobody computed, for a reason that no other kind names.
    Idle,
    /// Nobody computed, because the processors were taken away: nothing in the program gives it back.
    Machine,
}

impl CandidateKind {
    /// For tables.
    pub const fn name(self) -> &'static str {
        match self {
            CandidateKind::Operator => "operator",
            CandidateKind::Waits => "waits",
            CandidateKind::Dispatch => "dispatch",
            CandidateKind::Sampling => "sampling",
            CandidateKind::Tokenising => "tokenising",
            CandidateKind::SetUp => "set-up",
            CandidateKind::Idle => "idle",
            CandidateKind::Machine => "machine",
        }
    }
}

/// How a measured pass becomes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Multiplicity {
    /// Passes of the request that it is in.
    pub passes: u64,
    /// Calls in each.
    pub calls: u64,
    /// Tokens of context of the pass that was measured. Decode steps have a growing context; the replayed one stands in the
    /// middle of them, which gives the exact sum of everything that grows with the context by a line.
    pub context_tokens: u64,
}

/// An interval of seconds per request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecondsInterval {
    pub low: f64,
    pub high: f64,
    /// How often such an interval holds the true value: below 0.95 where there were too few samples for it.
    pub confidence: f64,
}

/// A command, and what its result would say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The words, `hourglass` first.
    pub command: Vec<String>,
    pub says: String,
}

/// A part of the memory, ranked apart from time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryRow {
    pub rank: u64,
    pub name: String,
    pub bytes: Reading,
    pub mechanism: String,
    pub evidence: Vec<EvidenceRef>,
}
