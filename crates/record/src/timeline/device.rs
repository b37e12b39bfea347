//! What a device's own profiler recorded of a traced request, held against what was launched.
//! Not here: the slices, which are lanes of the trace like those of the workers.

use crate::check::Check;
use crate::known::Known;
use crate::quantity::Reading;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The launches of the whole traced request, also of its parts outside of the window.
///
/// A kernel may start before the one before it has ended, and waits for it inside. Its slice begins where that one ends, so that the
/// slices of a stream are disjoint, and are together exactly the time in which any kernel ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceTrace {
    /// Name and version.
    pub profiler: String,
    /// Kernels that were put into the device's queue, those of replayed graphs among them.
    pub launched: u64,
    /// Of these, those that were found among the recorded ones, each as one launch.
    pub recorded: u64,
    /// Kernels that were replayed as parts of graphs.
    pub in_graphs: u64,
    /// Records that the profiler dropped.
    pub dropped: u64,
    /// Kernels that began before the pass was dispatched that they belong to, or ended after it, by more than the clocks' error.
    pub outside_dispatch: u64,
    /// Calls of a pass that no launch served: such as have nothing to do, or the launches are not the program's.
    pub unserved_calls: u64,
    /// Time in which a kernel had started before the one before it had ended.
    pub overlapped_ns: u64,
    /// Time between a replayed graph's kernels in which none ran: median over the graphs.
    pub gaps_in_graph_ns: u64,
    /// Of a request in which whole graphs were timed, before the profiler was there.
    pub pauses: Known<DevicePauses>,
    /// How far the profiler's clock and the monotonic one may be apart, and how far they drifted apart during the request.
    pub clock_error_ns: u64,
    pub clock_drift_ns: i64,
    /// The most bytes of the device's memory that were allocated at once within the window, weights included.
    pub peak_allocation: Reading,
}

/// How long a device pauses in a step that is as long as one that nobody watches: recording every kernel makes steps longer, and the
/// pauses in them with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DevicePauses {
    /// The median step.
    pub step: Reading,
    /// Part of a step in which no kernel ran: what is in no graph, and the pauses in it. Median over the steps.
    pub idle_share: Reading,
}

/// Of a request that ran on the CPU, or was traced before this was recorded.
pub(crate) fn none() -> Known<DeviceTrace> {
    Known::unavailable(
        "the kernels ran on the CPU, which has no profiler of its own",
        "`hourglass timeline --device cuda`",
    )
}

impl DeviceTrace {
    /// Whether it holds what it must: every launch recorded, none dropped, each within its dispatch.
    pub fn checks_pass(&self) -> bool {
        self.checks().iter().all(|check| check.passed)
    }

    pub(crate) fn checks(&self) -> [Check; 3] {
        [
            Check::counts("kernels that were launched and recorded", self.launched, self.recorded),
            Check::counts("records that the device's profiler dropped", 0, self.dropped),
            Check::counts("kernels outside of their dispatch", 0, self.outside_dispatch),
        ]
    }
}
