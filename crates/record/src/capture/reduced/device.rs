//! What a GPU's counters say of each kernel of a profiled pass: time, bytes from memory, units that were busy, what warps waited for.
//! Not here: reading a profiler's pages (`ncu.rs`).

use crate::capture::reduced::kernels::{Bound, KernelTree, Limiter, LimiterPart, Sure};
use crate::check::Check;
use crate::known::Known;
use crate::quantity::Reading;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One pass. Kernels ran one by one, several times each, with empty caches: times are no latencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceTree {
    /// Launches that were to be profiled (of layers that run the same kernels not all are), and those that the profiler has.
    pub launches_expected: u64,
    pub launches: u64,
    /// Bytes of samples that the profiler could not keep.
    #[serde(default = "not_read")]
    pub dropped: Known<u64>,
    /// Most time first.
    pub kernels: Vec<DeviceKernel>,
}

/// All launches of one kernel in one operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceKernel {
    /// [`DeviceKernel::OWN`] for what the device adds to a pass.
    pub operator: String,
    /// `name/isa`.
    pub kernel: String,
    /// What it is called on the device.
    pub functions: Vec<String>,
    pub launches: u64,
    /// Sum over the launches, in microseconds.
    pub time: Reading,
    pub dram_read: Reading,
    pub dram_written: Reading,
    /// Of the peak of the memory, of the busiest unit of the multiprocessors, and of the tensor cores: means over time.
    pub dram_share: Reading,
    pub sm_share: Reading,
    pub tensor_share: Reading,
    pub l2_hit_share: Reading,
    /// Warps of those that a multiprocessor holds, while it has any.
    pub occupancy: Reading,
    /// Most of a launch, per thread.
    pub registers: Known<u64>,
    /// Of warps, each counted once at its instruction; and as the profiler itself counted them.
    pub samples: u64,
    pub samples_counted: Known<u64>,
    /// Instructions of warps, likewise.
    pub executed: u64,
    pub executed_counted: Known<u64>,
    /// What warps waited for when they were sampled, most first; the profiler's words.
    pub stalls: Vec<StallRow>,
}

/// Samples of warps that waited for one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StallRow {
    pub reason: String,
    pub samples: u64,
}

/// Of a pass on the CPU, or one that could not be profiled.
pub(crate) fn none() -> Known<DeviceTree> {
    Known::unavailable("the pass ran on the CPU", "`hourglass capture --device cuda`")
}

fn not_read() -> Known<u64> {
    Known::unavailable("the record was made without reading it", "reduce the trace again with this build")
}

/// A part is no more than its whole, but for rounding.
const MOST_SHARE: f64 = 1.005;
/// A unit that is so busy is the limit.
const STRONG: f64 = 0.7;
/// More than half of the time is explained.
const WEAK: f64 = 0.5;

impl DeviceTree {
    pub(crate) fn checks(&self, checks: &mut Vec<Check>) {
        checks.push(Check::counts("launches that were profiled", self.launches_expected, self.launches));
        let of_kernels = self.kernels.iter().map(|kernel| kernel.launches).sum();
        checks.push(Check::counts("the kernels' launches are the profiled ones", self.launches, of_kernels));
        if let Known::Is(dropped) = self.dropped {
            checks.push(Check::counts("bytes of samples that the profiler dropped", 0, dropped));
        }
        for kernel in &self.kernels {
            let name = format!("{}: {}", kernel.operator, kernel.kernel);
            for (what, share) in kernel.shares() {
                if share.value().is_some_and(|share| !(0.0..=MOST_SHARE).contains(&share)) {
                    checks.push(Check::counts(format!("{name}: {what} is a part of a whole"), 1, 0));
                }
            }
            if let Known::Is(counted) = kernel.samples_counted {
                let name = format!("{name}: samples at its instructions are those that were counted");
                checks.push(Check::counts(name, counted, kernel.samples));
            }
            let stalls = kernel.stalls.iter().map(|row| row.samples).sum();
            checks.push(Check::counts(format!("{name}: reasons are its samples"), kernel.samples, stalls));
        }
    }

    /// Puts what the counters say in place of what cannot be inferred for a GPU from the CPU's ceilings.
    pub fn judge(&self, tree: &mut KernelTree) {
        for row in &mut tree.rows {
            let own = |kernel: &&DeviceKernel| kernel.operator == row.operator && kernel.kernel == row.kernel;
            if let Some(kernel) = self.kernels.iter().find(own) {
                row.limiter = kernel.limiter();
            }
        }
    }
}

impl DeviceKernel {
    /// Operator of what a device launches beside the program's calls.
    pub const OWN: &str = "[device]";

    fn shares(&self) -> [(&'static str, &Reading); 5] {
        [
            ("dram_share", &self.dram_share),
            ("sm_share", &self.sm_share),
            ("tensor_share", &self.tensor_share),
            ("l2_hit_share", &self.l2_hit_share),
            ("occupancy", &self.occupancy),
        ]
    }

    fn limiter(&self) -> Limiter {
        let part = |limit, fraction: &Reading, from: &str| LimiterPart {
            limit,
            fraction: fraction.clone(),
            from: from.to_owned(),
        };
        let parts = vec![
            part(Bound::Memory, &self.dram_share, "the profiler: how busy the memory was, of its peak"),
            part(Bound::ComputePath, &self.tensor_share, "the profiler: how busy the tensor cores were, of their peak"),
            part(Bound::Issue, &self.sm_share, "the profiler: how busy the busiest unit of the multiprocessors was"),
        ];
        let known = parts.iter().filter_map(|part| Some((part.limit, part.fraction.value()?)));
        let Some((limit, most)) = known.max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return Limiter {
                verdict: Known::unavailable("the profiler did not collect how busy the units were", "capture again"),
                sure: Sure::None,
                how: "nothing is known of it".to_owned(),
                parts,
            };
        };
        let waited = self.stalls.iter().find(|row| !["selected", "not_selected"].contains(&row.reason.as_str()));
        let waited = waited.map_or_else(String::new, |row| {
            let share = 100.0 * row.samples as f64 / self.samples.max(1) as f64;
            format!("; {share:.0} % of its warps' samples are waits of the kind {}", row.reason)
        });
        let sure = match most {
            STRONG.. => Sure::Strong,
            WEAK.. => Sure::Weak,
            _ => Sure::None,
        };
        let verdict = match sure {
            Sure::None => Known::unavailable(
                format!("no unit was busy for more than half of the time{waited}: its launches are short, or wait"),
                "see what its warps wait for, and `hourglass timeline --device cuda` for what runs beside it",
            ),
            _ => Known::Is(limit),
        };
        Limiter { verdict, sure, how: format!("{} at {:.0} % of its peak{waited}", limit.name(), 100.0 * most), parts }
    }
}
