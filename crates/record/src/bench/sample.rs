//! One process of a bench run: where it stood in the order, what it measured or why it is lost, and the machine around it.
//! Not here: what follows from all of them (`record.rs`).

use crate::bench::child::EndpointTimes;
use crate::known::Known;
use crate::quantity::Reading;
use crate::request::RequestClock;
use crate::wiring::Wiring;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A place in the planned order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Index into the record's arms.
    pub arm: u64,
    /// Slots of one block stand together, and what is compared is compared within it.
    pub block: u64,
}

/// One process, in the order of execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Its slot: index into the record's schedule.
    pub order: u64,
    pub arm: u64,
    pub block: u64,
    /// Of the child.
    pub process_id: Known<u32>,
    /// UTC, RFC 3339.
    pub started: String,
    /// From start to end of the process, load and warm-up included.
    pub process_s: f64,
    pub outcome: Outcome,
    pub surroundings: Known<Surroundings>,
    /// Limits that the machine was above while it ran; a marked sample is kept.
    pub marks: Vec<String>,
    /// Why the stated rule leaves it out of summaries and comparisons. Absent: it is in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded: Option<String>,
}

/// What became of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Measured(Box<Measured>),
    /// No numbers: why.
    Lost(String),
}

/// What a process measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    pub clock: RequestClock,
    /// Generated ids.
    pub tokens: Known<Vec<u32>>,
    /// How far each chosen token's logit was above the next best.
    pub margins: Known<Vec<f64>>,
    /// Of the clocked request; empty for engines that do not say.
    pub wiring: Vec<Wiring>,
    /// What a client saw of a server's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointTimes>,
}

/// The machine from the child's header to its request's end: warm-up and measured request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Surroundings {
    pub seconds: f64,
    /// Part of all processors' time that the hypervisor gave to others.
    pub steal: Reading,
    /// Part of all processors' time that other processes than the child used.
    pub others: Reading,
    /// Part of the time in which some task waited for a processor (`/proc/pressure/cpu`). The child's own threads count.
    pub cpu_pressure: Reading,
    /// Part of the time in which some task waited for memory.
    pub memory_pressure: Reading,
    /// How often a thread of the child lost its processor during the request.
    pub involuntary_switches: Known<u64>,
    /// Dependent one-cycle operations per nanosecond of one spinning thread just before the process started: about the clock
    /// rate in GHz.
    pub frequency_before: Known<f64>,
    /// The same just after it ended.
    pub frequency_after: Known<f64>,
    /// Runnable tasks just before the process started, averaged over a minute.
    pub load_before: Known<f64>,
}

impl Sample {
    pub fn measured(&self) -> Option<&Measured> {
        match &self.outcome {
            Outcome::Measured(measured) => Some(measured),
            Outcome::Lost(_) => None,
        }
    }

    /// Its numbers, if they count: measured and not excluded.
    pub fn counting(&self) -> Option<&Measured> {
        self.measured().filter(|_| self.excluded.is_none())
    }
}
