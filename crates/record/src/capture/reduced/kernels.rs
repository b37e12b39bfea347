//! What each kernel of a captured pass costs, and what limits it; with the waits and pauses between the kernels.
//! Not here: attributing samples (`attribute.rs`), and how a limiter is inferred (`limiter.rs`).

use crate::capture::place::{Cost, Place};
use crate::check::Check;
use crate::known::Known;
use crate::quantity::Reading;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All workers' time in the stretch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelTree {
    /// Workers' samples inside the passes, which all shares are of.
    pub samples: u64,
    pub weight_ns: u64,
    /// How the intervals are made.
    pub method: String,
    /// Largest share first.
    pub rows: Vec<KernelRow>,
    pub barrier_wait: PauseRow,
    pub dispatch: PauseRow,
    pub uncounted: Uncounted,
    /// Calls in the program, and spans that every worker left of every pass together.
    pub program_calls: u64,
    pub workers: u64,
    pub spans: u64,
    /// Spans that found no room.
    pub dropped: u64,
}

/// One kernel in one operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelRow {
    /// Kernels whose intervals overlap have the same.
    pub rank: u64,
    pub operator: String,
    /// `name/isa`.
    pub kernel: String,
    /// `file:line` of the kernel.
    pub source: String,
    /// Samples, and their share of all workers' samples in the stretch.
    pub cost: Cost,
    /// The same share by the clock instead of by samples: workers' time inside the kernel over workers x wall of the passes.
    /// Time in which the operating system ran something else on a worker's processor is in it.
    pub clocked_share: Reading,
    /// Calls per pass.
    pub calls: u64,
    /// Calls x passes.
    pub dispatches: u64,
    /// Sum over a pass's calls of the slowest worker's time, in microseconds: median over the passes.
    pub per_pass: Reading,
    /// Median absolute deviation of the same.
    pub per_pass_spread: Reading,
    /// `per_pass` over `calls`.
    pub per_dispatch: Reading,
    /// The least that a call moves and computes, mean over the calls of a pass; a multiply-add is two operations.
    pub bytes_per_dispatch: f64,
    pub flops_per_dispatch: f64,
    /// `bytes` and `flops` of a pass over `per_pass`, in GB/s and GFLOP/s.
    pub bandwidth: Reading,
    pub arithmetic_rate: Reading,
    /// Of the measured ceilings.
    pub bandwidth_fraction: Reading,
    pub arithmetic_fraction: Reading,
    /// Part of the workers' time that uneven parts leave idle: 1 - (mean over workers) / (slowest worker).
    pub imbalance: Reading,
    pub limiter: Limiter,
}

/// What a kernel seems to wait for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limiter {
    pub verdict: Known<Bound>,
    pub sure: Sure,
    /// In words, with the numbers.
    pub how: String,
    /// Every possibility that could be judged, with the part of the kernel's time that it explains.
    pub parts: Vec<LimiterPart>,
}

/// What may limit a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Bytes from where they are, at the bandwidth that was measured there.
    Memory,
    /// A load's value, in one place of its code: latency, or a bandwidth that other accesses reach less of.
    Load,
    /// The instruction that multiplies.
    ComputePath,
    /// All instructions together: conversions, loads, address arithmetic beside the multiplications.
    Issue,
    /// Waiting for the slowest worker.
    Barrier,
    /// Starting and ending the call.
    Dispatch,
}

impl Bound {
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::Load => "waiting for a load",
            Bound::ComputePath => "compute path",
            Bound::Issue => "issue",
            Bound::Barrier => "barrier",
            Bound::Dispatch => "dispatch",
        }
    }
}

/// How much a verdict is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sure {
    /// A measured ceiling is nearly reached, or a counter says so.
    Strong,
    /// More than anything else explains, or what is left when the others are excluded.
    Weak,
    None,
}

impl Sure {
    pub const fn name(self) -> &'static str {
        match self {
            Sure::Strong => "strong",
            Sure::Weak => "weak",
            Sure::None => "none",
        }
    }
}

/// One possibility.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimiterPart {
    pub limit: Bound,
    /// The time that it alone would take, over the measured time. 1: nothing else is needed to explain it.
    pub fraction: Reading,
    /// From what.
    pub from: String,
}

/// Workers' time inside the passes and in no kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRow {
    /// A waiting worker that sleeps is not sampled.
    pub cost: Cost,
    /// By the clock, as a kernel's.
    pub clocked_share: Reading,
}

/// Samples that no share is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Uncounted {
    /// Workers', before, between and after the passes.
    pub outside_passes: u64,
    /// Threads that are no workers.
    pub other_threads: u64,
}

impl KernelTree {
    /// Every place with its samples: kernels, then waits, then pauses.
    pub fn places(&self) -> Vec<(Place, Cost)> {
        let kernel =
            |row: &KernelRow| (Place::Kernel { operator: row.operator.clone(), kernel: row.kernel.clone() }, row.cost);
        let pauses = [(Place::BarrierWait, self.barrier_wait.cost), (Place::Dispatch, self.dispatch.cost)];
        self.rows.iter().map(kernel).chain(pauses).collect()
    }

    pub(crate) fn checks(&self, steps: u64, checks: &mut Vec<Check>) {
        let samples = self.places().iter().map(|(_, cost)| cost.samples).sum();
        let weight = self.places().iter().map(|(_, cost)| cost.weight_ns).sum();
        let calls: u64 = self.rows.iter().map(|row| row.calls).sum();
        let dispatches: u64 = self.rows.iter().map(|row| row.dispatches).sum();
        checks.extend([
            Check::counts("kernels, barrier waits and dispatch are the samples in the passes", self.samples, samples),
            Check::counts("their weights likewise", self.weight_ns, weight),
            Check::counts("the kernels' calls are the program's", self.program_calls, calls),
            Check::counts("every pass made every call", self.program_calls * steps, dispatches),
            Check::counts("every worker passed every call", self.program_calls * steps * self.workers, self.spans),
            Check::counts("spans that found no room", 0, self.dropped),
        ]);
    }
}
