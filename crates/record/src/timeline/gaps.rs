//! The longest stretches in which no device lane was busy, and what threads were doing inside them.
//! Not here: why a moment counts as idle (`partition.rs`).

use super::partition::State;
use super::segments::{Segment, append, within};
use super::{Gap, SampledFunction, cause_times};
use crate::trace::Trace;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Gaps that are kept.
const LONGEST: usize = 10;
/// Functions named per gap.
const TOP: usize = 5;

/// The longest gaps of the device, longest first; of equal ones the earlier.
pub(super) fn longest(trace: &Trace, device: &[Segment<State>]) -> Vec<Gap> {
    let mut idle = Vec::new();
    for segment in device.iter().filter(|segment| matches!(segment.value, State::Idle(_))) {
        append(&mut idle, segment.start_ns, segment.end_ns, ());
    }
    idle.sort_by_key(|gap| (Reverse(gap.wall_ns()), gap.start_ns));
    idle.truncate(LONGEST);
    idle.iter().map(|gap| describe(trace, device, gap)).collect()
}

fn describe(trace: &Trace, device: &[Segment<State>], gap: &Segment<()>) -> Gap {
    let causes = within(device, (gap.start_ns, gap.end_ns)).filter_map(|part| match part.value {
        State::Idle(cause) => Some((cause, part.wall_ns())),
        State::Busy(_) => None,
    });
    let all = &trace.samples.samples;
    let first = all.partition_point(|sample| sample.at_ns < gap.start_ns);
    let inside = &all[first..all.partition_point(|sample| sample.at_ns < gap.end_ns).max(first)];
    let mut functions: HashMap<&str, u64> = HashMap::new();
    for sample in inside {
        let innermost = trace.samples.frames_of(sample.stack).next_back();
        let name = innermost.map_or("(no stack)", |frame| trace.names.text(frame.function));
        *functions.entry(name).or_default() += 1;
    }
    let mut top: Vec<_> = functions
        .into_iter()
        .map(|(function, samples)| SampledFunction { function: function.to_owned(), samples })
        .collect();
    top.sort_by(|a, b| (Reverse(a.samples), &a.function).cmp(&(Reverse(b.samples), &b.function)));
    top.truncate(TOP);
    Gap {
        start_ns: gap.start_ns - trace.start_ns,
        wall_ns: gap.wall_ns(),
        by_cause: cause_times(causes),
        samples: inside.len() as u64,
        top,
    }
}
