//! The summary of a trace: the computations of this folder put together.
//! Not here: the record around it, which needs what a trace does not know.

use super::awaited::{awaited, meetings, waits};
use super::lost_to::lost_to;
use super::operators::PlannedCalls;
use super::partition::{Partition, State, partition};
use super::segments::Segment;
use super::{LaneTime, Occupation, PhaseTime, TimelineSummary, cause_times, gaps, operators, steps};
use crate::coverage::Coverage;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::trace::{Category, Trace, TraceError, verify};

/// What `trace` comes to, given what is known of the calls that the program plans.
///
/// # Errors
/// A trace that breaks its own rules.
pub fn summarise(trace: &Trace, planned: &Known<Vec<PlannedCalls>>) -> Result<TimelineSummary, TraceError> {
    verify(trace)?;
    let partition = partition(trace);
    let met = meetings(trace);
    let waits: Vec<_> = (0..partition.lanes.len()).map(|position| waits(trace, &partition, &met, position)).collect();
    let (lost, stragglers) = lost_to(trace, &partition, &waits);
    let lanes = (0..partition.lanes.len())
        .map(|position| {
            let lane = &trace.lanes[partition.lanes[position]];
            LaneTime {
                name: lane.name.clone(),
                kind: lane.kind.name().to_owned(),
                occupation: occupation(&partition.states[position], trace.wall_ns()),
                awaited: awaited(&waits[position]),
                dropped: lane.dropped,
            }
        })
        .collect();
    Ok(TimelineSummary {
        coverage: coverage(trace, &partition),
        dropped: trace.dropped(),
        wall_ns: trace.wall_ns(),
        phases: phases(trace),
        device: occupation(&partition.device, trace.wall_ns()),
        lanes,
        lost,
        stragglers,
        gaps: gaps::longest(trace, &partition.device),
        operators: operators::rows(trace, &partition, planned),
        steps: steps::series(trace, &partition),
    })
}

/// The main lane's phases, those of one name together.
fn phases(trace: &Trace) -> Vec<PhaseTime> {
    let mut phases: Vec<PhaseTime> = Vec::new();
    let slices = trace.main_lane().map_or(&[][..], |main| &trace.lanes[main].slices);
    for slice in slices.iter().filter(|slice| slice.category == Category::Phase) {
        let (name, wall_ns) = (trace.names.text(slice.name), slice.duration_ns());
        match phases.iter_mut().find(|phase| phase.name == name) {
            Some(phase) => phase.wall_ns += wall_ns,
            None => phases.push(PhaseTime { name: name.to_owned(), wall_ns }),
        }
    }
    phases
}

fn coverage(trace: &Trace, partition: &Partition) -> Coverage {
    if trace.dropped() > 0 {
        Coverage::incomplete(format!("{} slices were dropped for want of room", trace.dropped()))
    } else if trace.samples.lost > 0 {
        Coverage::incomplete(format!("{} CPU samples were lost", trace.samples.lost))
    } else if partition.lanes.is_empty() {
        Coverage::incomplete("no worker or stream was traced")
    } else if trace.main_lane().is_none() {
        Coverage::incomplete("the main thread was not traced")
    } else {
        Coverage::complete()
    }
}

fn occupation(states: &[Segment<State>], wall_ns: u64) -> Occupation {
    let mut busy_ns = 0;
    let mut idle = Vec::new();
    for segment in states {
        match segment.value {
            State::Busy(_) => busy_ns += segment.wall_ns(),
            State::Idle(cause) => idle.push((cause, segment.wall_ns())),
        }
    }
    Occupation {
        busy_ns,
        busy_share: Reading::ratio(busy_ns as f64, wall_ns as f64, Unit::Share, 1),
        idle_ns: idle.iter().map(|(_, wall)| wall).sum(),
        idle_by_cause: cause_times(idle.into_iter()),
    }
}
