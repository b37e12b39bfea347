//! From notes, spans, samples and counters of one request to one trace on one clock.
//! Not here: taking them, and what the trace comes to.

use super::counters::Quantities;
use super::launched::{self, Launched, Streams};
use super::notes::{Notes, Plan};
use super::request::{REQUEST, WALK};
use super::walked::{Walked, WorkerLanes};
use crate::monotonic;
use crate::sampler::{Sampled, Symbols};
use ops::recording::Recording;
use ops::{Span, Traced};
use record::trace::{
    Category, Counter, CounterUnit, Flow, Instant, Lane, LaneKind, Names, Process, Sample, Slice, SliceRef, Trace,
    Value,
};
use std::cmp::Reverse;
use std::ops::Range;

/// What a trace is made of.
pub(super) struct Parts<'a> {
    pub(super) plan: &'a Plan,
    pub(super) window: (u64, u64),
    pub(super) notes: &'a Notes,
    pub(super) traced: &'a mut Traced,
    pub(super) sampled: &'a Sampled,
    pub(super) quantities: &'a Quantities,
    pub(super) allocations: &'a [ops::memory::Allocation],
    pub(super) allocations_dropped: u64,
    /// What a device did, and the most bytes of its memory that were taken.
    pub(super) recorded: Option<(&'a Recording, usize)>,
}

/// The trace of the window, which of the request's passes lie in it, and what a device's streams are.
pub(super) fn trace(parts: Parts<'_>) -> (Trace, Range<usize>, Option<Streams>) {
    let Parts { plan, window, notes, traced, sampled, quantities, allocations, allocations_dropped, recorded } = parts;
    let mut trace = Trace {
        process: Process { id: std::process::id(), name: "hourglass".to_owned() },
        start_ns: window.0,
        end_ns: window.1,
        ..Trace::default()
    };
    let main_thread = plan.threads().first().copied().unwrap_or(0);
    let slices = main_slices(&mut trace.names, notes, window);
    let dropped = notes.dropped + allocations_dropped;
    let kind = LaneKind::Main { thread: main_thread };
    trace.lanes.push(Lane { kind, name: "main thread".to_owned(), slices, instants: Vec::new(), dropped });

    // When the passes ran, in order: all of the request's, and which of them are in the window.
    let walks: Vec<(u64, u64)> =
        notes.notes.iter().filter(|note| note.what == WALK).map(|note| (note.start_ns, note.end_ns)).collect();
    let first = walks.partition_point(|walk| walk.0 < window.0);
    let passes = first..walks.partition_point(|walk| walk.1 <= window.1).max(first);
    let origin_ns = monotonic::at_ns(traced.origin());
    let workers: Vec<(Vec<Vec<Span>>, u64)> = (0..plan.workers())
        .map(|worker| {
            let (spans, dropped) = traced.spans(worker);
            (by_pass(spans), dropped)
        })
        .collect();
    let dispatches: Vec<usize> = {
        let walk = trace.names.intern(WALK.name);
        let main = &trace.lanes[0].slices;
        (0..main.len()).filter(|&slice| main[slice].name == walk && main[slice].category == WALK.category).collect()
    };
    let mut lanes = WorkerLanes::new(&mut trace.names, 1, workers.len(), window.0);
    for pass in passes.clone() {
        let spans = workers.iter().map(|(spans, _)| spans.get(pass).map_or(&[][..], Vec::as_slice)).collect();
        let firsts = lanes.pass(&Walked { program: plan.program(pass), spans, origin_ns, end_ns: walks[pass].1 });
        let Some(&from) = dispatches.get(pass - passes.start) else { continue };
        for (worker, slice) in firsts.into_iter().enumerate() {
            let Some(slice) = slice else { continue };
            let id = trace.flows.len() as u64 + 1;
            let (from, to) = (SliceRef { lane: 0, slice: from }, SliceRef { lane: worker + 1, slice });
            trace.flows.push(Flow { id, from, to });
        }
    }
    let (slices, meetings) = lanes.finish();
    trace.meetings = meetings;
    for ((worker, slices), (_, dropped)) in slices.into_iter().enumerate().zip(&workers) {
        let kind = LaneKind::Worker { worker: worker as u32, thread: plan.threads()[worker] };
        let (name, dropped) = (format!("worker {worker}"), *dropped);
        trace.lanes.push(Lane { kind, name, slices, instants: Vec::new(), dropped });
    }
    let whole = notes.notes.iter().any(|note| note.what == REQUEST && (note.start_ns, note.end_ns) == window);
    let streams = recorded.map(|(recording, peak_bytes)| {
        let launched = Launched { plan, recording, walks: &walks, passes: passes.clone(), whole, window, peak_bytes };
        let mut streams = launched::streams(&mut trace.names, &launched);
        let before = trace.lanes.len();
        trace.lanes.append(&mut streams.lanes);
        for (from, first) in dispatches.iter().zip(&streams.firsts) {
            let Some(first) = first else { continue };
            let (from, to) =
                (SliceRef { lane: 0, slice: *from }, SliceRef { lane: before + first.lane, slice: first.slice });
            let at = |place: SliceRef| trace.lanes[place.lane].slices[place.slice].start_ns;
            // One that lies before its dispatch is counted as such, and is no flow.
            if at(from) <= at(to) {
                trace.flows.push(Flow { id: trace.flows.len() as u64 + 1, from, to });
            }
        }
        streams
    });
    instants(&mut trace, allocations, sampled);
    trace.counters = counters(notes, sampled, window);
    trace.counters.extend(quantities.counters(window));
    samples(&mut trace, sampled);
    (trace, passes, streams)
}

/// Clipped to the window; what lies outside is left out.
fn main_slices(names: &mut Names, notes: &Notes, window: (u64, u64)) -> Vec<Slice> {
    let mut slices: Vec<Slice> = notes
        .notes
        .iter()
        .filter(|note| note.end_ns > window.0 && note.start_ns < window.1)
        .map(|note| Slice {
            name: names.intern(note.what.name),
            category: note.what.category,
            start_ns: note.start_ns.max(window.0),
            end_ns: note.end_ns.min(window.1),
            args: Vec::new(),
        })
        .collect();
    // Categories are in the order of nesting.
    slices.sort_by_key(|slice| (slice.start_ns, Reverse(slice.end_ns), slice.category));
    slices
}

/// A worker's spans, pass by pass: within one, calls rise.
fn by_pass(spans: &[Span]) -> Vec<Vec<Span>> {
    let mut passes: Vec<Vec<Span>> = Vec::new();
    for span in spans {
        match passes.last_mut().filter(|pass| pass.last().is_some_and(|last| last.call < span.call)) {
            Some(pass) => pass.push(*span),
            None => passes.push(vec![*span]),
        }
    }
    passes
}

/// Large allocations on the first lane of their thread, and pages that were touched for the first time on the last one, which is
/// the worker's.
fn instants(trace: &mut Trace, allocations: &[ops::memory::Allocation], sampled: &Sampled) {
    let [allocation, bytes, fault, address] =
        ["allocation", "bytes", "page fault", "address"].map(|text| trace.names.intern(text));
    let integer = |value: u64| Value::Integer(i64::try_from(value).unwrap_or(i64::MAX));
    let allocated = allocations.iter().map(|made| {
        let args = vec![(bytes, integer(made.bytes))];
        (made.thread, Instant { name: allocation, category: Category::Allocation, at_ns: made.at_ns, args })
    });
    let faulted = sampled.faults.known().into_iter().flatten().map(|met| {
        let args = vec![(address, integer(met.address))];
        (met.thread, Instant { name: fault, category: Category::PageFault, at_ns: met.at_ns, args })
    });
    let window = trace.start_ns..=trace.end_ns;
    for (thread, instant) in allocated.chain(faulted).filter(|(_, instant)| window.contains(&instant.at_ns)) {
        let mut own = trace.lanes.iter_mut().filter(|lane| lane.kind.thread() == Some(thread));
        let lane = if instant.category == Category::Allocation { own.next() } else { own.next_back() };
        if let Some(lane) = lane {
            lane.instants.push(instant);
        }
    }
    trace.lanes.iter_mut().for_each(|lane| lane.instants.sort_by_key(|instant| instant.at_ns));
}

/// What the request itself knows: keys and values, tokens per second, page faults.
fn counters(notes: &Notes, sampled: &Sampled, window: (u64, u64)) -> Vec<Counter> {
    let inside = |at: &u64| (window.0..=window.1).contains(at);
    let held = notes.tokens.iter().filter(|(at, _)| inside(at)).map(|&(at, bytes)| (at, bytes as f64)).collect();
    let rates = notes
        .tokens
        .windows(2)
        .filter(|pair| inside(&pair[0].0) && inside(&pair[1].0) && pair[1].0 > pair[0].0)
        .map(|pair| (pair[0].0, 1e9 / (pair[1].0 - pair[0].0) as f64))
        .collect();
    let met = sampled.faults.known().into_iter().flatten().filter(|fault| inside(&fault.at_ns));
    let faults = met.enumerate().map(|(count, fault)| (fault.at_ns, (count + 1) as f64)).collect();
    let counter = |name: &str, unit, points| Counter { name: name.to_owned(), unit, points };
    let all: [Counter; 3] = [
        counter("keys and values", CounterUnit::Bytes, held),
        counter("tokens per second", CounterUnit::TokensPerSecond, rates),
        counter("page faults", CounterUnit::Count, faults),
    ];
    all.into_iter().filter(|counter| !counter.points.is_empty()).collect()
}

fn samples(trace: &mut Trace, sampled: &Sampled) {
    trace.samples.lost = sampled.lost.known().copied().unwrap_or(0);
    let inside: Vec<_> =
        sampled.samples.iter().filter(|sample| (trace.start_ns..=trace.end_ns).contains(&sample.at_ns)).collect();
    if inside.is_empty() {
        return;
    }
    let mut symbols = Symbols::new();
    for sample in inside {
        let stack = symbols.stack(&sample.stack, &mut trace.names, &mut trace.samples);
        let (at_ns, thread, weight_ns) = (sample.at_ns, sample.thread, sample.weight_ns);
        trace.samples.samples.push(Sample { at_ns, thread, stack, weight_ns });
    }
}
