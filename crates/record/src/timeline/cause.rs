//! Why a device lane was idle, as records name it.
//! How a moment is given its cause is in `partition.rs`.

use crate::trace::LossKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a lane's time that is not busy was lost to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The hypervisor ran something else.
    Steal,
    /// The thread could run and another one had its processor.
    Descheduled,
    /// A page was brought in.
    PageFault,
    /// The main thread chose a token.
    Sampling,
    /// The main thread turned text into tokens or back.
    Tokenising,
    /// The main thread was starting the device's work.
    Dispatch,
    /// The main thread made or released input and cache.
    Setup,
    /// The worker had done its share and another had not.
    Barrier,
    /// Nothing that was recorded says why.
    Unexplained,
}

impl Cause {
    pub const ALL: [Cause; 9] = [
        Cause::Steal,
        Cause::Descheduled,
        Cause::PageFault,
        Cause::Sampling,
        Cause::Tokenising,
        Cause::Dispatch,
        Cause::Setup,
        Cause::Barrier,
        Cause::Unexplained,
    ];

    /// For tables.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Steal => "steal by the hypervisor",
            Cause::Descheduled => "descheduled",
            Cause::PageFault => "page fault",
            Cause::Sampling => "sampling",
            Cause::Tokenising => "tokenising",
            Cause::Dispatch => "dispatch",
            Cause::Setup => "set-up",
            Cause::Barrier => "barrier",
            Cause::Unexplained => "unexplained",
        }
    }
}

impl LossKind {
    /// As a cause of idle time.
    pub const fn cause(self) -> Cause {
        match self {
            LossKind::Steal => Cause::Steal,
            LossKind::Descheduled => Cause::Descheduled,
            LossKind::PageFault => Cause::PageFault,
        }
    }
}

/// Time lost to one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CauseTime {
    pub cause: Cause,
    pub wall_ns: u64,
}

/// Sums times by cause: longest first, causes without time left out.
pub(super) fn cause_times(times: impl Iterator<Item = (Cause, u64)>) -> Vec<CauseTime> {
    let mut sums = [0u64; Cause::ALL.len()];
    for (cause, wall_ns) in times {
        sums[cause as usize] += wall_ns;
    }
    let all = Cause::ALL.iter().map(|&cause| CauseTime { cause, wall_ns: sums[cause as usize] });
    let mut found: Vec<CauseTime> = all.filter(|time| time.wall_ns > 0).collect();
    found.sort_by_key(|time| (std::cmp::Reverse(time.wall_ns), time.cause));
    found
}

/// What the worker that came last to a barrier did while the others waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Awaited {
    /// It computed its share.
    Computing,
    Steal,
    Descheduled,
    PageFault,
    /// It was between its calls.
    Elsewhere,
    /// It had arrived: the time until this worker noticed.
    Release,
    /// Who came last was not recorded.
    Unknown,
}

impl Awaited {
    pub const ALL: [Awaited; 7] = [
        Awaited::Computing,
        Awaited::Steal,
        Awaited::Descheduled,
        Awaited::PageFault,
        Awaited::Elsewhere,
        Awaited::Release,
        Awaited::Unknown,
    ];

    /// For tables.
    pub const fn name(self) -> &'static str {
        match self {
            Awaited::Computing => "computing",
            Awaited::Steal => "steal by the hypervisor",
            Awaited::Descheduled => "descheduled",
            Awaited::PageFault => "page fault",
            Awaited::Elsewhere => "between calls",
            Awaited::Release => "release",
            Awaited::Unknown => "unknown",
        }
    }
}

/// Part of a lane's barrier time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AwaitedTime {
    pub what: Awaited,
    pub wall_ns: u64,
}
