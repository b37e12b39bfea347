//! What the others did while a worker waited at a barrier: why the slowest one was slow.
//! Not here: that the time was lost to a barrier, which is `partition.rs`.

use super::partition::{Partition, State};
use super::segments::{Segment, within};
use super::{Awaited, AwaitedTime, Cause};
use crate::trace::{Category, Lane, Trace};

/// The barrier time of device lane `lane` (a position in `partition.lanes`), by what was awaited; longest first.
///
/// The worker that came last is the one whose operator slice ended latest inside the wait. Until that end the wait is for what
/// that worker did, from then on for the release.
pub(super) fn awaited(trace: &Trace, partition: &Partition, ends: &[Vec<u64>], lane: usize) -> Vec<AwaitedTime> {
    let mut times = [0u64; Awaited::ALL.len()];
    let window = (trace.start_ns, trace.end_ns);
    for (start, end) in waits(&trace.lanes[partition.lanes[lane]], window) {
        let last = (0..partition.lanes.len())
            .filter(|&other| other != lane)
            .filter_map(|other| {
                let before = ends[other].partition_point(|&at| at <= end);
                let at = ends[other][..before].last().copied().filter(|&at| at > start)?;
                Some((at, other))
            })
            .max_by_key(|&(at, other)| (at, std::cmp::Reverse(other)));
        // The part that this worker lost by itself is no waiting.
        let own =
            within(&partition.states[lane], (start, end)).filter(|part| part.value == State::Idle(Cause::Barrier));
        for Segment { start_ns, end_ns, .. } in own {
            let Some((arrived, slowest)) = last else {
                times[Awaited::Unknown as usize] += end_ns - start_ns;
                continue;
            };
            times[Awaited::Release as usize] += end_ns.saturating_sub(start_ns.max(arrived));
            for part in within(&partition.states[slowest], (start_ns, end_ns.min(arrived))) {
                let what = match part.value {
                    State::Busy(_) => Awaited::Computing,
                    State::Idle(Cause::Steal) => Awaited::Steal,
                    State::Idle(Cause::Descheduled) => Awaited::Descheduled,
                    State::Idle(Cause::PageFault) => Awaited::PageFault,
                    State::Idle(_) => Awaited::Elsewhere,
                };
                times[what as usize] += part.wall_ns();
            }
        }
    }
    let all = Awaited::ALL.iter().map(|&what| AwaitedTime { what, wall_ns: times[what as usize] });
    let mut found: Vec<_> = all.filter(|time| time.wall_ns > 0).collect();
    found.sort_by_key(|time| std::cmp::Reverse(time.wall_ns));
    found
}

/// Ends of a lane's operator slices, rising.
pub(super) fn operator_ends(lane: &Lane) -> Vec<u64> {
    let operators = lane.slices.iter().filter(|slice| slice.category == Category::Operator);
    let mut ends: Vec<u64> = operators.map(|slice| slice.end_ns).collect();
    ends.sort_unstable();
    ends
}

/// Outermost barrier slices; nothing is nested in one (`verify` says so).
fn waits(lane: &Lane, window: (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    let clip = move |slice: &crate::trace::Slice| (slice.start_ns.max(window.0), slice.end_ns.min(window.1));
    lane.slices.iter().filter(|slice| slice.category == Category::Barrier).map(clip).filter(|wait| wait.0 < wait.1)
}
