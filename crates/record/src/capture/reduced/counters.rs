//! What was counted over the captured passes: by the processor, by the operating system, by a simulated processor.
//! Not here: reading perf's and callgrind's files (`perf_stat.rs`, `callgrind.rs`).

use crate::capture::raw::CounterKind;
use crate::known::Known;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counters and what follows from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CounterTree {
    pub rows: Vec<CounterRow>,
    /// Only those whose two counters both exist.
    pub rates: Vec<CounterRate>,
    /// Lines of the other tool's file that were no objects, and counters in it; unavailable if there was none.
    pub profile: Known<ProfileUse>,
    /// Instructions by function, counted on a simulated processor: exact, and of another dispatch path.
    pub simulated: Known<SimulatedTree>,
}

/// One counter over the whole stretch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CounterRow {
    /// perf's name.
    pub name: String,
    pub kind: CounterKind,
    pub origin: CounterOrigin,
    /// Summed over the workers, scaled up if the counter was not on the whole time.
    pub count: Known<f64>,
    /// The part of the time that it counted, 0 to 1.
    pub running: Known<f64>,
}

/// From which file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CounterOrigin {
    /// The trace's: exactly the captured passes of the workers.
    Trace,
    /// A file of `perf stat -j`: whatever that command covered.
    PerfStat,
}

/// One counter divided by another, of the same file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CounterRate {
    /// E.g. `instructions per cycle`.
    pub name: String,
    pub value: f64,
    pub origin: CounterOrigin,
    /// Numerator, denominator.
    pub from: [String; 2],
}

/// How another tool's file was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileUse {
    pub counters: u64,
    /// Lines that are no objects, or objects that are no counters.
    pub skipped_lines: u64,
}

/// What callgrind counted in one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulatedTree {
    /// Why these are not the captured kernels.
    pub note: String,
    /// What is counted: `Ir` is instructions.
    pub event: String,
    pub total: u64,
    /// Each function's own, largest first, at most 40; the rest is in `others`.
    pub functions: Vec<SimulatedFunction>,
    pub others: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulatedFunction {
    pub function: String,
    /// As the debugging information has it; empty if it has none.
    pub file: String,
    pub own: u64,
}
