//! From a device's recorded launches to the slices of its streams' lanes, named by the calls that they serve.
//! Not here: recording launches (`ops-cuda`), and what the lanes come to (`record::timeline`).

use super::notes::Plan;
use ops::recording::{Launch, Recording};
use record::timeline::{DevicePauses, DeviceTrace, PlannedCalls};
use record::trace::{Category, Lane, LaneKind, Names, Slice, SliceRef, Value};
use record::{Known, Reading, Samples, Unit};
use std::ops::Range;

/// What lanes are made of.
pub(super) struct Launched<'a> {
    pub(super) plan: &'a Plan,
    pub(super) recording: &'a Recording,
    /// When each pass of the request was dispatched, and when the main thread went on.
    pub(super) walks: &'a [(u64, u64)],
    /// Passes that lie in the window.
    pub(super) passes: Range<usize>,
    /// Whether the window is the whole request, with what was launched between its passes.
    pub(super) whole: bool,
    pub(super) window: (u64, u64),
    pub(super) peak_bytes: usize,
}

/// Lanes of all streams, and what is said of them.
pub(super) struct Streams {
    pub(super) lanes: Vec<Lane>,
    /// Of each pass in the window, its first slice, by the lane's place among these.
    pub(super) firsts: Vec<Option<SliceRef>>,
    /// How often each operator was launched in the window.
    pub(super) planned: Vec<PlannedCalls>,
    pub(super) trace: DeviceTrace,
}

/// The lanes, in the order in which their streams were first used.
pub(super) fn streams(names: &mut Names, launched: &Launched<'_>) -> Streams {
    let Launched { plan, recording, walks, window, .. } = launched;
    let shown = shown_runs(launched);
    let pass_of = passes_of(recording);
    let (layer, kernel, early) = (names.intern("layer"), names.intern("kernel"), names.intern("started early by ns"));
    let mut lanes: Vec<(Lane, u64)> = Vec::new();
    let mut firsts = vec![None; launched.passes.len()];
    let (mut overlapped_ns, mut outside_dispatch) = (0, 0);
    for span in &recording.spans {
        let run = recording.runs[span.run];
        let pass = pass_of[span.run];
        let allowed = recording.clock_error_ns;
        if let Some(walk) = pass.and_then(|pass| walks.get(pass))
            && (span.start_ns + allowed < walk.0 || span.end_ns > walk.1 + allowed)
        {
            outside_dispatch += 1;
        }
        if !shown.contains(&span.run) {
            continue;
        }
        let kind = LaneKind::Stream { device: span.device, stream: span.stream };
        let at = lanes.iter().position(|(lane, _)| lane.kind == kind).unwrap_or_else(|| {
            let name = format!("GPU {} stream {}", span.device, span.stream);
            lanes.push((Lane { kind, name, slices: Vec::new(), instants: Vec::new(), dropped: 0 }, window.0));
            lanes.len() - 1
        });
        let (lane, cursor) = &mut lanes[at];
        let launch = &recording.lists[run.list][span.launch];
        let calls = pass.map_or(&[][..], |pass| plan.program(pass));
        // A kernel waits for the one before it: from there on it is its own.
        let start_ns = span.start_ns.max(*cursor).min(window.1);
        let end_ns = span.end_ns.max(start_ns + 1).min(window.1);
        if start_ns >= end_ns {
            continue;
        }
        let mut args = vec![(kernel, Value::Text(names.intern(&launch.kernel)))];
        let of = launch.calls.first().and_then(|call| calls.get(*call as usize));
        args.extend(of.and_then(|call| call.layer).map(|number| (layer, Value::Integer(number as i64))));
        if span.start_ns < start_ns && span.start_ns >= window.0 {
            let ahead = start_ns - span.start_ns;
            overlapped_ns += ahead;
            args.push((early, Value::Integer(i64::try_from(ahead).unwrap_or(i64::MAX))));
        }
        let name = names.intern(&name(launch, calls));
        if let Some(first) = pass.and_then(|pass| pass.checked_sub(launched.passes.start)).filter(|_| span.launch == 0)
            && let Some(first) = firsts.get_mut(first)
        {
            *first = Some(SliceRef { lane: at, slice: lane.slices.len() });
        }
        lane.slices.push(Slice { name, category: Category::Operator, start_ns, end_ns, args });
        *cursor = end_ns;
    }
    let in_graphs = recording.runs.iter().filter(|run| run.graph).map(|run| recording.lists[run.list].len() as u64);
    let trace = DeviceTrace {
        profiler: recording.profiler.clone(),
        launched: recording.launched(),
        recorded: recording.spans.len() as u64,
        in_graphs: in_graphs.sum(),
        dropped: recording.dropped,
        outside_dispatch,
        unserved_calls: unserved(plan, recording, &pass_of),
        overlapped_ns,
        gaps_in_graph_ns: gaps_in_graph(recording),
        pauses: Known::unavailable("no request with whole graphs was recorded", "trace again"),
        clock_error_ns: recording.clock_error_ns,
        clock_drift_ns: recording.clock_drift_ns,
        peak_allocation: Reading::measured(launched.peak_bytes as f64, Unit::Bytes, 1),
    };
    let planned = planned(plan, recording, &pass_of, shown);
    Streams { lanes: lanes.into_iter().map(|(lane, _)| lane).collect(), firsts, planned, trace }
}

/// Of each run which pass it is, if it ran a program: passes are run in their order.
fn passes_of(recording: &Recording) -> Vec<Option<usize>> {
    let mut passes = 0..;
    recording.runs.iter().map(|run| if run.program { passes.next() } else { None }).collect()
}

/// Runs of the passes in the window, and what was launched between them.
fn shown_runs(launched: &Launched<'_>) -> Range<usize> {
    let runs = &launched.recording.runs;
    if launched.whole {
        return 0..runs.len();
    }
    let numbers: Vec<usize> = (0..runs.len()).filter(|&run| runs[run].program).collect();
    let own = numbers.get(launched.passes.clone()).unwrap_or(&[]);
    match (own.first(), own.last()) {
        (Some(&first), Some(&last)) => first..last + 1,
        _ => 0..0,
    }
}

/// What a slice is called: the calls that it serves, or the kernel itself where it serves none.
fn name(launch: &Launch, calls: &[super::notes::PlannedCall]) -> String {
    let served: Vec<&str> =
        launch.calls.iter().filter_map(|call| calls.get(*call as usize)).map(|call| call.name.as_str()).collect();
    if served.is_empty() { format!("[{}]", launch.kernel) } else { served.join(" + ") }
}

fn planned(plan: &Plan, recording: &Recording, pass_of: &[Option<usize>], shown: Range<usize>) -> Vec<PlannedCalls> {
    let mut planned: Vec<PlannedCalls> = Vec::new();
    for run in shown {
        let calls = pass_of[run].map_or(&[][..], |pass| plan.program(pass));
        for launch in &recording.lists[recording.runs[run].list] {
            let operator = name(launch, calls);
            match planned.iter_mut().find(|known| known.operator == operator) {
                Some(known) => known.calls += 1,
                None => planned.push(PlannedCalls { operator, calls: 1 }),
            }
        }
    }
    planned
}

/// Calls that no launch of their pass served, in the pass with the most of them.
fn unserved(plan: &Plan, recording: &Recording, pass_of: &[Option<usize>]) -> u64 {
    let missing = pass_of.iter().enumerate().filter_map(|(run, pass)| {
        let calls = plan.program((*pass)?).len();
        let mut served = vec![false; calls];
        let launches = &recording.lists[recording.runs[run].list];
        for call in launches.iter().flat_map(|launch| &launch.calls) {
            if let Some(served) = served.get_mut(*call as usize) {
                *served = true;
            }
        }
        Some(served.iter().filter(|served| !**served).count() as u64)
    });
    missing.max().unwrap_or(0)
}

/// What of steps the device was idle for: `steps` are all of a request's, in order, with whether they count; a step that was launched
/// kernel by kernel is left out. Pauses of `gaps_ns` in a graph are idle, too.
pub(super) fn pauses(steps: &[((u64, u64), bool)], recording: &Recording, gaps_ns: u64) -> Known<DevicePauses> {
    let counted = steps.iter().zip(&recording.graphs).filter(|((_, counts), _)| *counts);
    let found: Vec<(f64, f64)> = counted
        .filter_map(|(((start, end), _), graph)| {
            let wall = end.saturating_sub(*start).max(1) as f64;
            let busy = (*graph)?.saturating_sub(gaps_ns) as f64;
            Some((wall / 1e9, 1.0 - (busy / wall).min(1.0)))
        })
        .collect();
    let (walls, shares): (Vec<f64>, Vec<f64>) = found.into_iter().unzip();
    match (Samples::new(&walls), Samples::new(&shares)) {
        (Ok(walls), Ok(idle)) => {
            let n = walls.count() as u64;
            Known::Is(DevicePauses {
                step: Reading::measured(walls.median(), Unit::Seconds, n),
                idle_share: Reading::measured(idle.median(), Unit::Share, n),
            })
        }
        _ => Known::unavailable("no step was replayed as a graph", "trace a longer request"),
    }
}

/// The time between a graph's kernels in which none ran: the median over the graphs that were replayed.
fn gaps_in_graph(recording: &Recording) -> u64 {
    let mut gaps: Vec<u64> = Vec::new();
    for (number, _) in recording.runs.iter().enumerate().filter(|(_, run)| run.graph) {
        let mut own = recording.spans.iter().filter(|span| span.run == number).map(|span| (span.start_ns, span.end_ns));
        let Some((_, mut end)) = own.next() else { continue };
        let mut idle = 0;
        for span in own {
            idle += span.0.saturating_sub(end);
            end = end.max(span.1);
        }
        gaps.push(idle);
    }
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or(0)
}

/// In its place where nothing was recorded.
pub(super) fn none() -> Known<DeviceTrace> {
    record::TimelineRecord::without_device()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::notes::PlannedCall;
    use super::*;
    use ops::recording::{LaunchSpan, Run};
    use record::timeline::summarise;
    use record::trace::{Process, Trace};

    fn call(name: &str, layer: Option<usize>) -> PlannedCall {
        PlannedCall { name: name.to_owned(), layer, kernel: "k/cuda".to_owned(), barrier: true }
    }

    fn launch(kernel: &str, calls: &[u32]) -> Launch {
        Launch { kernel: kernel.to_owned(), calls: calls.to_vec() }
    }

    /// Two passes of one program: the step's data, then one launch for two calls, then one for the third, whose launches begin
    /// while the one before them runs.
    fn recorded() -> (Plan, Recording, Vec<(u64, u64)>) {
        let program = vec![call("q", Some(0)), call("k", Some(0)), call("down", Some(0))];
        let plan = Plan::of_device(vec![program], vec![0, 0], 7);
        let list = vec![launch("step_in", &[]), launch("matvec", &[0, 1]), launch("ahead", &[2])];
        let span = |run, launch, start_ns, end_ns| LaunchSpan { run, launch, device: 0, stream: 13, start_ns, end_ns };
        let recording = Recording {
            lists: vec![list, vec![launch("argmax", &[])]],
            runs: vec![
                Run { list: 0, program: true, graph: false },
                Run { list: 1, program: false, graph: false },
                Run { list: 0, program: true, graph: true },
            ],
            spans: vec![
                span(0, 0, 110, 120),
                span(0, 1, 130, 150),
                span(0, 2, 135, 170),
                span(1, 0, 190, 195),
                span(2, 0, 210, 220),
                span(2, 1, 215, 250),
                span(2, 2, 230, 280),
            ],
            kernels: 7,
            clock_error_ns: 1,
            ..Recording::default()
        };
        (plan, recording, vec![(100, 180), (205, 290)])
    }

    fn streams_of(plan: &Plan, recording: &Recording, walks: &[(u64, u64)], whole: bool) -> (Trace, Streams) {
        let (passes, window) = if whole { (0..2, (90, 300)) } else { (1..2, (200, 300)) };
        let mut trace = Trace { process: Process { id: 1, name: "test".into() }, ..Trace::default() };
        (trace.start_ns, trace.end_ns) = window;
        let launched = Launched { plan, recording, walks, passes, whole, window, peak_bytes: 5 };
        let streams = streams(&mut trace.names, &launched);
        trace.lanes = streams.lanes.clone();
        (trace, streams)
    }

    #[test]
    fn slices_are_disjoint_their_union_is_what_ran_and_they_are_named_by_their_calls() {
        let (plan, recording, walks) = recorded();
        let (trace, streams) = streams_of(&plan, &recording, &walks, true);
        let summary = summarise(&trace, &Known::Is(streams.planned.clone())).unwrap();
        // 10 + (130 to 170) + 5 + (210 to 280), counted by hand.
        assert_eq!((summary.device.busy_ns, summary.lanes.len()), (10 + 40 + 5 + 70, 1));
        let slices: Vec<(&str, u64, u64)> = trace.lanes[0]
            .slices
            .iter()
            .map(|slice| (trace.names.text(slice.name), slice.start_ns, slice.end_ns))
            .collect();
        assert_eq!(slices[1..3], [("q + k", 130, 150), ("down", 150, 170)]);
        assert_eq!((slices[0].0, slices[3].0), ("[step_in]", "[argmax]"));
        for row in &summary.operators {
            let seen: u64 = row.calls.iter().sum();
            assert_eq!(row.planned_calls.known(), Some(&seen), "{}", row.operator);
        }
        assert_eq!(streams.firsts, [Some(SliceRef { lane: 0, slice: 0 }), Some(SliceRef { lane: 0, slice: 4 })]);
        let found = &streams.trace;
        assert_eq!((found.launched, found.recorded, found.in_graphs, found.outside_dispatch), (7, 7, 3, 0));
        assert_eq!((found.overlapped_ns, found.unserved_calls), (15 + 5 + 20, 0));
        assert!(found.checks_pass());
        assert_eq!(found.gaps_in_graph_ns, 0, "215 to 280 without a pause");
    }

    /// A prefill that does not count, steps of 100 ns with graphs of 80 and 90, of which 5 are pauses, and one without a graph.
    #[test]
    fn what_of_a_step_is_in_no_graph_is_idle() {
        let recording = Recording { graphs: vec![Some(1), Some(80), Some(90), None], ..Recording::default() };
        let steps = [((0, 100), false), ((100, 200), true), ((200, 300), true), ((300, 400), true)];
        let found = pauses(&steps, &recording, 5);
        let found = found.known().unwrap();
        assert_eq!((found.step.value(), found.step.known().unwrap().n()), (Some(1e-7), 2));
        assert!((found.idle_share.value().unwrap() - 0.2).abs() < 1e-12, "{found:?}");
        assert!(pauses(&steps[3..], &recording, 5).known().is_some(), "steps and graphs are told by their order");
        assert!(pauses(&steps, &Recording::default(), 5).known().is_none());
    }

    #[test]
    fn a_part_of_the_request_shows_its_own_passes() {
        let (plan, recording, walks) = recorded();
        let (trace, streams) = streams_of(&plan, &recording, &walks, false);
        assert_eq!(trace.lanes[0].slices.len(), 3);
        assert_eq!(streams.planned.iter().map(|row| row.calls).sum::<u64>(), 3);
        assert_eq!(streams.trace.launched, 7, "of the whole request");
    }

    #[test]
    fn what_is_missing_or_elsewhere_is_counted() {
        let (plan, mut recording, walks) = recorded();
        recording.spans.pop();
        recording.lists[0][2].calls.clear();
        recording.spans[0].start_ns = 98;
        let (trace, streams) = streams_of(&plan, &recording, &walks, true);
        let found = &streams.trace;
        assert_eq!((found.launched, found.recorded, found.outside_dispatch, found.unserved_calls), (7, 6, 1, 1));
        assert!(!found.checks_pass());
        let summary = summarise(&trace, &Known::Is(streams.planned)).unwrap();
        let ahead = summary.operators.iter().find(|row| row.operator == "[ahead]").unwrap();
        assert_eq!((ahead.planned_calls.known(), ahead.calls[0]), (Some(&2), 1));
    }
}
