//! What a worker waited for at each barrier: what the last to come to it did meanwhile, and from then on the release.
//! Not here: that the time was lost to a barrier, which is `partition.rs`, and sums over all workers (`lost_to.rs`).

use super::partition::{Partition, State};
use super::segments::{Segment, within};
use super::{Awaited, AwaitedTime, Cause};
use crate::trace::{Category, Lane, Meeting, SliceRef, Trace};
use std::collections::HashMap;

/// A part of a worker's time at barriers.
pub(super) struct Wait {
    pub(super) what: Awaited,
    /// The last to come (a position in `Partition::lanes`) and what it did; `None` at and after its coming, and if it is not known.
    pub(super) state: Option<(usize, State)>,
    pub(super) wall_ns: u64,
}

/// The barrier time of device lane `lane` (a position in `partition.lanes`), in order of time.
pub(super) fn waits(trace: &Trace, partition: &Partition, met: &Meetings<'_>, lane: usize) -> Vec<Wait> {
    let window = (trace.start_ns, trace.end_ns);
    let number = partition.lanes[lane];
    let mut found = Vec::new();
    for (slice, (start, end)) in barriers(&trace.lanes[number], window) {
        let meeting = met.get(&SliceRef { lane: number, slice });
        let last = meeting.and_then(|meeting| {
            Some((meeting.arrived_ns, partition.lanes.iter().position(|&other| other == meeting.last_lane)?))
        });
        // The part that this worker lost by itself is no waiting.
        let own =
            within(&partition.states[lane], (start, end)).filter(|part| part.value == State::Idle(Cause::Barrier));
        for Segment { start_ns, end_ns, .. } in own {
            let mut push = |what, state, wall_ns| {
                if wall_ns > 0 {
                    found.push(Wait { what, state, wall_ns });
                }
            };
            let Some((arrived, slowest)) = last else {
                push(Awaited::Unknown, None, end_ns - start_ns);
                continue;
            };
            for part in within(&partition.states[slowest], (start_ns, end_ns.min(arrived))) {
                let what = match part.value {
                    State::Busy(_) => Awaited::Computing,
                    State::Idle(Cause::Steal) => Awaited::Steal,
                    State::Idle(Cause::Descheduled) => Awaited::Descheduled,
                    State::Idle(Cause::PageFault) => Awaited::PageFault,
                    State::Idle(_) => Awaited::Elsewhere,
                };
                push(what, Some((slowest, part.value)), part.wall_ns());
            }
            push(Awaited::Release, None, end_ns.saturating_sub(start_ns.max(arrived)));
        }
    }
    found
}

/// Sums by what was awaited, longest first.
pub(super) fn awaited(waits: &[Wait]) -> Vec<AwaitedTime> {
    let mut times = [0u64; Awaited::ALL.len()];
    for wait in waits {
        times[wait.what as usize] += wait.wall_ns;
    }
    let all = Awaited::ALL.iter().map(|&what| AwaitedTime { what, wall_ns: times[what as usize] });
    let mut found: Vec<_> = all.filter(|time| time.wall_ns > 0).collect();
    found.sort_by_key(|time| std::cmp::Reverse(time.wall_ns));
    found
}

/// The meeting of each barrier slice that has one.
pub(super) type Meetings<'a> = HashMap<SliceRef, &'a Meeting>;

pub(super) fn meetings(trace: &Trace) -> Meetings<'_> {
    trace.meetings.iter().flat_map(|meeting| meeting.waits.iter().map(move |&wait| (wait, meeting))).collect()
}

/// Position and time of the lane's barrier slices; nothing is nested in one (`verify` says so).
fn barriers(lane: &Lane, window: (u64, u64)) -> impl Iterator<Item = (usize, (u64, u64))> {
    lane.slices
        .iter()
        .enumerate()
        .filter(|(_, slice)| slice.category == Category::Barrier)
        .map(move |(number, slice)| (number, (slice.start_ns.max(window.0), slice.end_ns.min(window.1))))
        .filter(|(_, wait)| wait.0 < wait.1)
}
