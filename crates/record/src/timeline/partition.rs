//! What each device lane, and the device as a whole, did at every moment of the window: busy, or idle with a cause.
//! Not here: sums over it.

use super::Cause;
use super::segments::{Cursor, Segment, append, boundaries};
use crate::trace::{Category, Lane, LossKind, Lost, Name, Trace};

/// What a lane did at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// This operator ran.
    Busy(Name),
    Idle(Cause),
}

/// Every moment of the window has exactly one state.
pub(super) struct Partition {
    /// Positions in `trace.lanes` of the device lanes, in order.
    pub(super) lanes: Vec<usize>,
    /// Of each of them.
    pub(super) states: Vec<Vec<Segment<State>>>,
    /// Busy while at least one lane is, with the operator of the first such lane; otherwise the cause that stands first in
    /// [`Cause::ALL`] among those of the lanes.
    pub(super) device: Vec<Segment<State>>,
}

/// The rules, for a device lane at a moment, the first that fits:
///
/// 1. in a barrier slice: lost time if the lane's thread lost it, else barrier;
/// 2. in an operator slice: lost time if the lane's thread lost it, else busy;
/// 3. outside both, with the main thread dispatching, sampling, tokenising or setting up: lost time if the main thread lost
///    it, or the lane's own thread while it is dispatched to, else what the main thread does;
/// 4. lost time of the lane's own thread, then of the main thread;
/// 5. unexplained.
pub(super) fn partition(trace: &Trace) -> Partition {
    let window = (trace.start_ns, trace.end_ns);
    let of_thread = |thread| segments(&trace.lost_by(thread));
    let lanes: Vec<usize> = trace.device_lanes().collect();
    let main = trace.main_lane().map(|index| &trace.lanes[index]);
    let main_work = main.map_or(Vec::new(), |lane| innermost(lane, window, main_cause));
    let main_lost = main.and_then(|lane| lane.kind.thread()).map_or(Vec::new(), of_thread);
    let states: Vec<_> = lanes
        .iter()
        .map(|&index| {
            let lane = &trace.lanes[index];
            let own_lost = lane.kind.thread().map_or(Vec::new(), of_thread);
            lane_states(lane, window, &own_lost, &main_work, &main_lost)
        })
        .collect();
    let device = together(&states, window);
    Partition { lanes, states, device }
}

/// What a device lane's slice does.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Operator(Name),
    Barrier,
}

fn lane_states(
    lane: &Lane,
    window: (u64, u64),
    own_lost: &[Segment<LossKind>],
    main_work: &[Segment<Cause>],
    main_lost: &[Segment<LossKind>],
) -> Vec<Segment<State>> {
    let work = innermost(lane, window, |slice| match slice.category {
        Category::Operator => Some(Work::Operator(slice.name)),
        Category::Barrier => Some(Work::Barrier),
        _ => None,
    });
    let mut times = boundaries(window, &[own_lost, main_lost], &[main_work]);
    times.extend(boundaries::<Work, Work>(window, &[&work], &[]));
    times.sort_unstable();
    times.dedup();
    let (mut work, mut main_work) = (Cursor::new(&work), Cursor::new(main_work));
    let (mut own_lost, mut main_lost) = (Cursor::new(own_lost), Cursor::new(main_lost));
    let mut states = Vec::new();
    for pair in times.windows(2) {
        let at = pair[0];
        let (own, main) = (own_lost.at(at).map(LossKind::cause), main_lost.at(at).map(LossKind::cause));
        let state = match work.at(at) {
            Some(Work::Barrier) => State::Idle(own.unwrap_or(Cause::Barrier)),
            Some(Work::Operator(name)) => own.map_or(State::Busy(name), State::Idle),
            None => State::Idle(match main_work.at(at) {
                Some(Cause::Dispatch) => own.or(main).unwrap_or(Cause::Dispatch),
                Some(doing) => main.unwrap_or(doing),
                None => own.or(main).unwrap_or(Cause::Unexplained),
            }),
        };
        append(&mut states, at, pair[1], state);
    }
    states
}

fn main_cause(slice: &crate::trace::Slice) -> Option<Cause> {
    match slice.category {
        Category::Dispatch => Some(Cause::Dispatch),
        Category::Sampling => Some(Cause::Sampling),
        Category::Tokenising => Some(Cause::Tokenising),
        Category::Setup => Some(Cause::Setup),
        _ => None,
    }
}

fn segments(lost: &[Lost]) -> Vec<Segment<LossKind>> {
    lost.iter().map(|lost| Segment { start_ns: lost.start_ns, end_ns: lost.end_ns, value: lost.why }).collect()
}

/// At each moment the innermost slice that `kind` gives a value to; moments without one are left out.
fn innermost<T: Copy + PartialEq>(
    lane: &Lane,
    window: (u64, u64),
    kind: impl Fn(&crate::trace::Slice) -> Option<T>,
) -> Vec<Segment<T>> {
    let mut list = Vec::new();
    let mut open: Vec<(u64, T)> = Vec::new();
    let mut from = window.0;
    let close_until = |open: &mut Vec<(u64, T)>, from: &mut u64, list: &mut Vec<Segment<T>>, at: u64| {
        while let Some(&(end, value)) = open.last()
            && end <= at
        {
            append(list, *from, end, value);
            *from = end.max(*from);
            open.pop();
        }
    };
    for slice in &lane.slices {
        let Some(value) = kind(slice) else { continue };
        close_until(&mut open, &mut from, &mut list, slice.start_ns);
        if let Some(&(_, outer)) = open.last() {
            append(&mut list, from, slice.start_ns, outer);
        }
        from = slice.start_ns;
        open.push((slice.end_ns, value));
    }
    close_until(&mut open, &mut from, &mut list, u64::MAX);
    list
}

fn together(states: &[Vec<Segment<State>>], window: (u64, u64)) -> Vec<Segment<State>> {
    let lists: Vec<&[Segment<State>]> = states.iter().map(Vec::as_slice).collect();
    let times = boundaries::<State, State>(window, &lists, &[]);
    let mut cursors: Vec<_> = lists.iter().map(|list| Cursor::new(list)).collect();
    let mut device = Vec::new();
    for pair in times.windows(2) {
        let mut state: Option<State> = None;
        for cursor in &mut cursors {
            let Some(lane) = cursor.at(pair[0]) else { continue };
            state = Some(match (state, lane) {
                (Some(busy @ State::Busy(_)), _) | (_, busy @ State::Busy(_)) => busy,
                (Some(State::Idle(first)), State::Idle(other)) => State::Idle(first.min(other)),
                (None, idle) => idle,
            });
        }
        append(&mut device, pair[0], pair[1], state.unwrap_or(State::Idle(Cause::Unexplained)));
    }
    device
}
