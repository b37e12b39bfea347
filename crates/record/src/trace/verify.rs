//! The rules of a trace, checked: order, nesting, window, references. Writers and computations rely on them.
//! Not here: whether the trace is complete; that is in the record.

use crate::trace::{Category, LaneKind, Name, SliceRef, Trace, Value};
use std::collections::HashSet;

/// Which rule of a trace is broken, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceError {
    #[error("the trace ends at {end_ns} ns, before its start at {start_ns} ns; take both from one monotonic clock")]
    Window { start_ns: u64, end_ns: u64 },
    #[error("lane '{lane}': slice {slice} ends at {end_ns} ns, before its start at {start_ns} ns")]
    Backwards { lane: String, slice: usize, start_ns: u64, end_ns: u64 },
    #[error(
        "lane '{lane}': slice {slice} is out of order; sort slices by start, and the longer first of two that \
             start together"
    )]
    Order { lane: String, slice: usize },
    #[error(
        "lane '{lane}': slice {slice} ends at {end_ns} ns, after the slice around it at {outer_end_ns} ns; slices of \
         a lane nest, so give overlapping work a lane of its own"
    )]
    Nesting { lane: String, slice: usize, end_ns: u64, outer_end_ns: u64 },
    #[error("lane '{lane}': slice {slice} lies inside a barrier; a worker that waits does nothing else")]
    InBarrier { lane: String, slice: usize },
    #[error("{what} at {at_ns} ns lies outside the window of {start_ns} to {end_ns} ns")]
    OutsideWindow { what: String, at_ns: u64, start_ns: u64, end_ns: u64 },
    #[error("{what} is not in order of time; sort it")]
    Unsorted { what: String },
    #[error("{what} is not finite; leave the point out")]
    NotFinite { what: String },
    #[error("{what} refers to something that the trace does not hold")]
    Dangling { what: String },
    #[error("flow {id} leads back in time, from {from_ns} ns to {to_ns} ns")]
    FlowBackwards { id: u64, from_ns: u64, to_ns: u64 },
    #[error("flow {id}: an id is used once and is not 0")]
    FlowId { id: u64 },
    #[error("a meeting holds slice {slice} of lane {lane}, which {problem}")]
    Meeting { lane: usize, slice: usize, problem: &'static str },
    #[error("there are {found} main lanes; a trace has at most one")]
    MainLanes { found: usize },
}

/// Checks every rule that [`Trace`] states.
///
/// # Errors
/// The first rule that is broken.
pub fn verify(trace: &Trace) -> Result<(), TraceError> {
    if trace.end_ns < trace.start_ns {
        return Err(TraceError::Window { start_ns: trace.start_ns, end_ns: trace.end_ns });
    }
    let found = trace.lanes.iter().filter(|lane| matches!(lane.kind, LaneKind::Main { .. })).count();
    if found > 1 {
        return Err(TraceError::MainLanes { found });
    }
    for index in 0..trace.lanes.len() {
        lane(trace, index)?;
    }
    let mut ids = HashSet::new();
    for flow in &trace.flows {
        if flow.id == 0 || !ids.insert(flow.id) {
            return Err(TraceError::FlowId { id: flow.id });
        }
        let (Some(from), Some(to)) = (slice_at(trace, flow.from), slice_at(trace, flow.to)) else {
            return Err(TraceError::Dangling { what: format!("flow {}", flow.id) });
        };
        let (from_ns, to_ns) = (from.start_ns, to.start_ns);
        if from_ns > to_ns {
            return Err(TraceError::FlowBackwards { id: flow.id, from_ns, to_ns });
        }
    }
    meetings(trace)?;
    for counter in &trace.counters {
        let what = || format!("counter '{}'", counter.name);
        in_order(trace, counter.points.iter().map(|point| point.0), what)?;
        if counter.points.iter().any(|point| !point.1.is_finite()) {
            return Err(TraceError::NotFinite { what: what() });
        }
    }
    samples(trace)
}

fn meetings(trace: &Trace) -> Result<(), TraceError> {
    let mut met = HashSet::new();
    for meeting in &trace.meetings {
        let mut lanes = HashSet::new();
        if meeting.last_lane >= trace.lanes.len() {
            return Err(TraceError::Dangling { what: "a meeting".to_owned() });
        }
        inside(trace, meeting.arrived_ns, || "the last to come to a meeting".to_owned())?;
        for &place in &meeting.waits {
            let problem = match slice_at(trace, place) {
                None => "the trace does not hold",
                Some(slice) if slice.category != Category::Barrier => "is no barrier",
                Some(slice) if !(slice.start_ns..=slice.end_ns).contains(&meeting.arrived_ns) => {
                    "does not hold the moment at which the last one came"
                }
                Some(_) if !lanes.insert(place.lane) => "is its lane's second",
                Some(_) if !met.insert(place) => "is in another meeting too",
                Some(_) => continue,
            };
            return Err(TraceError::Meeting { lane: place.lane, slice: place.slice, problem });
        }
    }
    Ok(())
}

fn lane(trace: &Trace, index: usize) -> Result<(), TraceError> {
    let lane = &trace.lanes[index];
    // End, and whether it is a barrier, of the slices that are open around the one looked at.
    let mut open: Vec<(u64, bool)> = Vec::new();
    let mut before: Option<(u64, u64)> = None;
    for (number, slice) in lane.slices.iter().enumerate() {
        let (start_ns, end_ns) = (slice.start_ns, slice.end_ns);
        let what = || format!("lane '{}': slice {number}", lane.name);
        if end_ns < start_ns {
            return Err(TraceError::Backwards { lane: lane.name.clone(), slice: number, start_ns, end_ns });
        }
        if before.is_some_and(|(start, end)| start > start_ns || (start == start_ns && end < end_ns)) {
            return Err(TraceError::Order { lane: lane.name.clone(), slice: number });
        }
        before = Some((start_ns, end_ns));
        for at in [start_ns, end_ns] {
            inside(trace, at, what)?;
        }
        while open.last().is_some_and(|&(end, _)| end <= start_ns) {
            open.pop();
        }
        if let Some(&(outer_end_ns, barrier)) = open.last() {
            if end_ns > outer_end_ns {
                return Err(TraceError::Nesting { lane: lane.name.clone(), slice: number, end_ns, outer_end_ns });
            }
            if barrier {
                return Err(TraceError::InBarrier { lane: lane.name.clone(), slice: number });
            }
        }
        open.push((end_ns, slice.category == Category::Barrier));
        words(trace, slice.name, &slice.args, what)?;
    }
    let what = || format!("an instant of lane '{}'", lane.name);
    in_order(trace, lane.instants.iter().map(|instant| instant.at_ns), what)?;
    for instant in &lane.instants {
        words(trace, instant.name, &instant.args, what)?;
    }
    Ok(())
}

fn samples(trace: &Trace) -> Result<(), TraceError> {
    let what = || "a CPU sample".to_owned();
    in_order(trace, trace.samples.samples.iter().map(|sample| sample.at_ns), what)?;
    let dangling = |what: &str| Err(TraceError::Dangling { what: what.to_owned() });
    let (frames, stacks) = (trace.samples.frames(), trace.samples.stacks());
    if trace.samples.samples.iter().any(|sample| sample.stack.0 as usize >= stacks.len()) {
        return dangling("a CPU sample");
    }
    if stacks.iter().flatten().any(|frame| frame.0 as usize >= frames.len()) {
        return dangling("a stack");
    }
    let held = |name: &Name| trace.names.holds(*name);
    if !frames.iter().all(|frame| held(&frame.function) && frame.file.as_ref().is_none_or(held)) {
        return dangling("a frame");
    }
    Ok(())
}

fn words(trace: &Trace, name: Name, args: &[(Name, Value)], what: impl Fn() -> String) -> Result<(), TraceError> {
    let held = trace.names.holds(name)
        && args.iter().all(|(key, value)| {
            trace.names.holds(*key) && !matches!(value, Value::Text(text) if !trace.names.holds(*text))
        });
    if !held {
        return Err(TraceError::Dangling { what: what() });
    }
    if args.iter().any(|(_, value)| matches!(value, Value::Number(number) if !number.is_finite())) {
        return Err(TraceError::NotFinite { what: what() });
    }
    Ok(())
}

fn in_order(trace: &Trace, times: impl Iterator<Item = u64>, what: impl Fn() -> String) -> Result<(), TraceError> {
    let mut before = trace.start_ns;
    for at in times {
        inside(trace, at, &what)?;
        if at < before {
            return Err(TraceError::Unsorted { what: what() });
        }
        before = at;
    }
    Ok(())
}

fn inside(trace: &Trace, at_ns: u64, what: impl Fn() -> String) -> Result<(), TraceError> {
    let (start_ns, end_ns) = (trace.start_ns, trace.end_ns);
    if at_ns < start_ns || at_ns > end_ns {
        return Err(TraceError::OutsideWindow { what: what(), at_ns, start_ns, end_ns });
    }
    Ok(())
}

fn slice_at(trace: &Trace, place: SliceRef) -> Option<&crate::trace::Slice> {
    trace.lanes.get(place.lane)?.slices.get(place.slice)
}
