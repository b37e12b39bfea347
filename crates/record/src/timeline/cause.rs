//! Why a device lane was idle, as records name it.
//! How a moment is given its cause is in `partition.rs`.

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

/// Time lost to one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CauseTime {
    pub cause: Cause,
    pub wall_ns: u64,
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
    /// No other worker's slice ended during the wait.
    Unknown,
}

/// Part of a lane's barrier time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AwaitedTime {
    pub what: Awaited,
    pub wall_ns: u64,
}
