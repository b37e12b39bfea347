//! What the workers' time was lost to in the end: a wait at a barrier counts for what the last to come did meanwhile, and each
//! worker that others waited for is named with the operator that it was slow in.
//! Not here: what each wait was for (`awaited.rs`), and the cause of each moment (`partition.rs`).

use super::awaited::Wait;
use super::partition::{Partition, State};
use super::{Awaited, Cause};
use crate::trace::{Name, Trace};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What a worker's time was lost to in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LostTo {
    Steal,
    Descheduled,
    PageFault,
    Sampling,
    Tokenising,
    Dispatch,
    Setup,
    /// It waited at a barrier while the last to come computed.
    SlowestWorker,
    /// All had come to the barrier, and this worker had not noticed.
    Release,
    Unexplained,
}

impl LostTo {
    /// For tables.
    pub const fn name(self) -> &'static str {
        match self {
            LostTo::Steal => "steal by the hypervisor",
            LostTo::Descheduled => "descheduled: another thread had the processor",
            LostTo::PageFault => "page faults",
            LostTo::Sampling => "sampling: the choice of a token",
            LostTo::Tokenising => "tokenising",
            LostTo::Dispatch => "dispatch",
            LostTo::Setup => "set-up",
            LostTo::SlowestWorker => "waiting at a barrier for the slowest worker",
            LostTo::Release => "barriers themselves: noticing that all had come",
            LostTo::Unexplained => "unexplained",
        }
    }

    /// Of a moment that has this cause by itself; a barrier's depends on what was awaited.
    fn of(cause: Cause) -> LostTo {
        match cause {
            Cause::Steal => LostTo::Steal,
            Cause::Descheduled => LostTo::Descheduled,
            Cause::PageFault => LostTo::PageFault,
            Cause::Sampling => LostTo::Sampling,
            Cause::Tokenising => LostTo::Tokenising,
            Cause::Dispatch => LostTo::Dispatch,
            Cause::Setup => LostTo::Setup,
            Cause::Barrier => LostTo::Release,
            Cause::Unexplained => LostTo::Unexplained,
        }
    }
}

/// Time of all workers together that was lost to one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LostTime {
    pub to: LostTo,
    /// Sum over the workers.
    pub wall_ns: u64,
}

/// A worker that others waited for while it computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Straggler {
    /// Its lane.
    pub worker: String,
    /// What it computed meanwhile.
    pub operator: String,
    /// How long the others waited, summed over them.
    pub waited_ns: u64,
}

/// Both lists, longest first. Together the lost times are the lanes' idle time; the stragglers' are what was lost to the slowest
/// worker. `waits` has a list for each lane of `partition`.
pub(super) fn lost_to(trace: &Trace, partition: &Partition, waits: &[Vec<Wait>]) -> (Vec<LostTime>, Vec<Straggler>) {
    let mut lost: BTreeMap<LostTo, u64> = BTreeMap::new();
    let mut slow: BTreeMap<(usize, Name), u64> = BTreeMap::new();
    for segment in partition.states.iter().flatten() {
        if let State::Idle(cause) = segment.value
            && cause != Cause::Barrier
        {
            *lost.entry(LostTo::of(cause)).or_default() += segment.wall_ns();
        }
    }
    for wait in waits.iter().flatten() {
        let to = match (wait.what, wait.state) {
            (Awaited::Release, _) => LostTo::Release,
            (_, None) => LostTo::Unexplained,
            (_, Some((_, State::Idle(cause)))) => LostTo::of(cause),
            (_, Some((lane, State::Busy(operator)))) => {
                *slow.entry((lane, operator)).or_default() += wait.wall_ns;
                LostTo::SlowestWorker
            }
        };
        *lost.entry(to).or_default() += wait.wall_ns;
    }
    let mut times: Vec<_> = lost.into_iter().map(|(to, wall_ns)| LostTime { to, wall_ns }).collect();
    times.sort_by_key(|time| (Reverse(time.wall_ns), time.to));
    let named = |((lane, operator), waited_ns): ((usize, Name), u64)| Straggler {
        worker: trace.lanes[partition.lanes[lane]].name.clone(),
        operator: trace.names.text(operator).to_owned(),
        waited_ns,
    };
    let mut stragglers: Vec<_> = slow.into_iter().map(named).collect();
    stragglers.sort_by(|a, b| {
        (Reverse(a.waited_ns), &a.worker, &a.operator).cmp(&(Reverse(b.waited_ns), &b.worker, &b.operator))
    });
    (times, stragglers)
}
