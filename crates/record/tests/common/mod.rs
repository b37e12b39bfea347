//! Traces for tests: random small ones that keep the rules, and a hand-made request of two workers.

#![allow(dead_code, reason = "each test file uses a part")]

use proptest::prelude::*;
use record::trace::{
    Category, Flow, Frame, Lane, LaneKind, LossKind, Lost, Meeting, Process, Sample, Slice, SliceRef, Trace, Value,
};

pub const MAIN: u32 = 100;
pub const HELPER: u32 = 101;

pub fn lane(kind: LaneKind, name: &str) -> Lane {
    Lane { kind, name: name.into(), slices: Vec::new(), instants: Vec::new(), dropped: 0 }
}

pub fn empty(end_ns: u64) -> Trace {
    Trace {
        process: Process { id: MAIN, name: "hourglass".into() },
        end_ns,
        lanes: vec![
            lane(LaneKind::Main { thread: MAIN }, "main"),
            lane(LaneKind::Worker { worker: 0, thread: MAIN }, "worker 0"),
            lane(LaneKind::Worker { worker: 1, thread: HELPER }, "worker 1"),
        ],
        ..Trace::default()
    }
}

pub fn add(trace: &mut Trace, lane: usize, category: Category, name: &str, start_ns: u64, end_ns: u64) -> SliceRef {
    let name = trace.names.intern(name);
    trace.lanes[lane].slices.push(Slice { name, category, start_ns, end_ns, args: Vec::new() });
    SliceRef { lane, slice: trace.lanes[lane].slices.len() - 1 }
}

/// Sorts every lane as a trace wants it.
pub fn sort(trace: &mut Trace) {
    for lane in &mut trace.lanes {
        lane.slices.sort_by_key(|slice| (slice.start_ns, std::cmp::Reverse(slice.end_ns)));
    }
}

/// What a proposed slice of a lane is; those that would not nest are left out.
type Proposal = (u64, u64, Category, u8);

fn proposals(categories: &'static [Category], window: u64) -> impl Strategy<Value = Vec<Proposal>> {
    prop::collection::vec((0..window, 0..window / 2, prop::sample::select(categories), 0..3u8), 0..14)
}

fn fill(trace: &mut Trace, lane: usize, proposals: &[Proposal]) {
    let end = trace.end_ns;
    for &(start, length, category, number) in proposals {
        let (start, stop) = (start, (start + length).min(end));
        // An empty slice at the start of another lies inside it; at its end it lies after it.
        let (around, inside, apart) = (
            |a: (u64, u64), b: (u64, u64)| a.0 <= b.0 && b.1 <= a.1 && b.0 < a.1,
            |a: (u64, u64), b: (u64, u64)| b.0 <= a.0 && a.1 <= b.1 && a.0 < b.1,
            |a: (u64, u64), b: (u64, u64)| a.0 >= b.1 || b.0 >= a.1,
        );
        let own = (start, stop);
        let fits = trace.lanes[lane].slices.iter().all(|slice| {
            let other = (slice.start_ns, slice.end_ns);
            own != other
                && match (around(own, other), inside(own, other)) {
                    (true, _) => category != Category::Barrier,
                    (_, true) => slice.category != Category::Barrier,
                    _ => apart(own, other),
                }
        });
        if fits {
            add(trace, lane, category, &format!("{}{number}", category.name()), start, stop);
        }
    }
}

/// Small traces of a main lane, two workers and sometimes a stream, with samples.
pub fn traces() -> impl Strategy<Value = Trace> {
    const WINDOW: u64 = 60;
    use Category::{Allocation, Barrier, Dispatch, Operator, Request, Sampling, Setup, Step, Tokenising};
    let main = proposals(&[Request, Step, Dispatch, Sampling, Tokenising, Setup, Allocation], WINDOW);
    let device = || proposals(&[Operator, Operator, Barrier], WINDOW);
    let stream = prop::option::of(proposals(&[Operator], WINDOW));
    let samples = prop::collection::vec((0..WINDOW, prop::bool::ANY, 0..3usize, 1..20u64), 0..12);
    // Of the barrier slices in turn: who came last (0: nobody knows), and when inside the slice.
    let met = prop::collection::vec((0..4usize, 0..WINDOW), 8);
    let all = (main, device(), device(), stream, samples, 1..WINDOW, met, losses());
    all.prop_map(|(main, first, second, stream, samples, end, met, lost)| {
        let mut trace = empty(end);
        for (lane, proposals) in [main, first, second].iter().enumerate() {
            let inside: Vec<_> = proposals.iter().copied().filter(|proposal| proposal.0 <= end).collect();
            fill(&mut trace, lane, &inside);
        }
        if let Some(proposals) = stream {
            trace.lanes.push(lane(LaneKind::Stream { device: 0, stream: 7 }, "stream 7"));
            let inside: Vec<_> = proposals.into_iter().filter(|proposal| proposal.0 <= end).collect();
            fill(&mut trace, 3, &inside);
        }
        sort(&mut trace);
        stacks(&mut trace, &samples.into_iter().filter(|sample| sample.0 <= end).collect::<Vec<_>>());
        meetings(&mut trace, &met);
        trace.lost = lost;
        trace
    })
}

/// Stretches that may overlap, be empty, and reach beyond the window.
fn losses() -> impl Strategy<Value = Vec<Lost>> {
    let one = (prop::sample::select(vec![MAIN, HELPER]), 0..60u64, 0..30u64, prop::sample::select(&LossKind::ALL));
    let lost = |(thread, start_ns, length, why)| Lost { thread, start_ns, end_ns: start_ns + length, why };
    prop::collection::vec(one.prop_map(lost), 0..6).prop_map(|mut lost| {
        lost.sort_by_key(|lost| lost.start_ns);
        lost
    })
}

/// A meeting for each barrier slice, or for two that overlap.
fn meetings(trace: &mut Trace, met: &[(usize, u64)]) {
    let places: Vec<SliceRef> = (0..trace.lanes.len())
        .flat_map(|lane| (0..trace.lanes[lane].slices.len()).map(move |slice| SliceRef { lane, slice }))
        .filter(|place| trace.lanes[place.lane].slices[place.slice].category == Category::Barrier)
        .collect();
    let mut free = vec![true; places.len()];
    for (number, &(last_lane, within)) in (0..places.len()).zip(met) {
        let slice = |place: &SliceRef| &trace.lanes[place.lane].slices[place.slice];
        if last_lane == 0 || last_lane >= trace.lanes.len() || !free[number] {
            continue;
        }
        let own = slice(&places[number]);
        let arrived_ns = (own.start_ns + within).min(own.end_ns);
        let mut waits = vec![places[number]];
        let joins = (number + 1..places.len()).find(|&other| {
            let slice = slice(&places[other]);
            free[other]
                && places[other].lane != places[number].lane
                && (slice.start_ns..=slice.end_ns).contains(&arrived_ns)
        });
        if let Some(other) = joins {
            free[other] = false;
            waits.push(places[other]);
        }
        trace.meetings.push(Meeting { last_lane, arrived_ns, waits });
    }
}

/// Samples as (time, whether of the helper, which stack, weight).
fn stacks(trace: &mut Trace, samples: &[(u64, bool, usize, u64)]) {
    let mut samples = samples.to_vec();
    samples.sort_by_key(|sample| sample.0);
    let outer = trace.names.intern("serve");
    let file = trace.names.intern("src/serve.rs");
    let outer = trace.samples.frame(Frame { function: outer, file: Some(file), line: Some(3), inlined: false });
    let inner = ["dot", "choose", "exc_page_fault"].map(|text| {
        let function = trace.names.intern(text);
        trace.samples.frame(Frame { function, file: None, line: None, inlined: text == "dot" })
    });
    for (at_ns, helper, stack, weight_ns) in samples {
        let stack = trace.samples.stack(&[outer, inner[stack]]);
        let thread = if helper { HELPER } else { MAIN };
        trace.samples.samples.push(Sample { at_ns, thread, stack, weight_ns });
    }
}

/// A request of `steps` decode steps of 1,000 ns on two workers, each of two calls of `matvec` (400 ns a share) with a barrier
/// before the second, 100 ns of sampling and 50 ns of dispatch between steps, flows from each dispatch to worker 1, arguments,
/// counters and samples; `change` may lengthen one thing: (step, worker, call) -> more ns of computing.
pub fn request(steps: u64, more: impl Fn(u64, usize, u64) -> u64) -> Trace {
    let mut trace = empty(0);
    add(&mut trace, 0, Category::Request, "request", 0, u64::MAX);
    let layer = trace.names.intern("layer");
    let (mut now, mut waits) = (0, Vec::new());
    for step in 0..steps {
        let start = now;
        let dispatch = add(&mut trace, 0, Category::Dispatch, "dispatch", now, now + 50);
        now += 50;
        for call in 0..2 {
            let ends = [0, 1].map(|worker| now + 400 + more(step, worker, call));
            let all = ends[0].max(ends[1]);
            for worker in [0, 1] {
                let place = add(&mut trace, worker + 1, Category::Operator, "matvec", now, ends[worker]);
                trace.lanes[worker + 1].slices[place.slice].args.push((layer, Value::Integer(call as i64)));
                if worker == 1 && call == 0 {
                    trace.flows.push(Flow { id: step + 1, from: dispatch, to: place });
                }
                if ends[worker] < all {
                    add(&mut trace, worker + 1, Category::Barrier, "barrier", ends[worker], all);
                    waits.push((worker + 1, ends[worker], all));
                }
            }
            now = all;
        }
        let end = now;
        add(&mut trace, 0, Category::Step, "decode", start, end);
        add(&mut trace, 0, Category::Sampling, "sample", now, now + 100);
        now += 100;
    }
    trace.end_ns = now;
    trace.lanes[0].slices[0].end_ns = now;
    // Flows refer to places: the main lane is sorted here and they are moved with their slices.
    let starts: Vec<u64> = trace.flows.iter().map(|flow| trace.lanes[0].slices[flow.from.slice].start_ns).collect();
    sort(&mut trace);
    for (flow, start) in trace.flows.iter_mut().zip(starts) {
        let found = trace.lanes[0]
            .slices
            .iter()
            .position(|slice| slice.start_ns == start && slice.category == Category::Dispatch);
        flow.from.slice = found.unwrap_or(0);
    }
    for (lane, start, arrived_ns) in waits {
        let waiting = |slice: &Slice| slice.start_ns == start && slice.category == Category::Barrier;
        let slice = trace.lanes[lane].slices.iter().position(waiting).unwrap_or(0);
        // The other worker, which computed until then.
        let waits = vec![SliceRef { lane, slice }];
        trace.meetings.push(Meeting { last_lane: 3 - lane, arrived_ns, waits });
    }
    let samples: Vec<_> = (1..now / 250).map(|n| (n * 250, n % 2 == 0, (n % 3) as usize, 250)).collect();
    stacks(&mut trace, &samples);
    trace.counters.push(record::trace::Counter {
        name: "resident memory".into(),
        unit: record::trace::CounterUnit::Bytes,
        points: vec![(0, 1000.0), (now / 2, 2048.0), (now, 1500.0)],
    });
    trace.counters.push(record::trace::Counter {
        name: "decode rate".into(),
        unit: record::trace::CounterUnit::TokensPerSecond,
        points: vec![(now / 3, 61.25)],
    });
    trace
}

/// The same trace with every time multiplied and then moved.
pub fn moved(mut trace: Trace, factor: u64, by: u64) -> Trace {
    let change = |time: &mut u64| *time = *time * factor + by;
    change(&mut trace.start_ns);
    change(&mut trace.end_ns);
    for lane in &mut trace.lanes {
        for slice in &mut lane.slices {
            change(&mut slice.start_ns);
            change(&mut slice.end_ns);
        }
        lane.instants.iter_mut().for_each(|instant| change(&mut instant.at_ns));
    }
    trace.meetings.iter_mut().for_each(|meeting| change(&mut meeting.arrived_ns));
    for lost in &mut trace.lost {
        change(&mut lost.start_ns);
        change(&mut lost.end_ns);
    }
    for sample in &mut trace.samples.samples {
        change(&mut sample.at_ns);
        sample.weight_ns *= factor;
    }
    trace.counters.iter_mut().flat_map(|counter| &mut counter.points).for_each(|point| change(&mut point.0));
    trace
}

/// A request on two workers that has one of everything: a stream, instants, lost time, arguments of each kind, awkward names.
pub fn everything() -> Trace {
    let mut trace = request(3, |_, worker, _| worker as u64 * 30);
    let names =
        ["note", "bytes", "why", "share", "a \"quoted\"\n\u{1}; name \u{e9}"].map(|text| trace.names.intern(text));
    let [note, bytes, why, share, awkward] = names;
    trace.lanes[0].instants.push(record::trace::Instant {
        name: note,
        category: Category::Allocation,
        at_ns: 70,
        args: vec![(bytes, Value::Integer(-5)), (why, Value::Text(awkward)), (share, Value::Number(0.25))],
    });
    trace.lanes.push(lane(LaneKind::Stream { device: 0, stream: 7 }, "stream 7"));
    trace.lanes[3].slices.push(Slice {
        name: awkward,
        category: Category::Operator,
        start_ns: 100,
        end_ns: 100,
        args: Vec::new(),
    });
    let lost = |thread, start_ns, end_ns, why| Lost { thread, start_ns, end_ns, why };
    trace.lost = vec![
        lost(MAIN, 100, 200, LossKind::PageFault),
        // Both at once are one stretch each: the processor was taken while the page was awaited.
        lost(HELPER, 120, 300, LossKind::PageFault),
        lost(HELPER, 150, 180, LossKind::Descheduled),
        lost(HELPER, 1100, 1200, LossKind::Steal),
    ];
    trace.lanes[3].dropped = 2;
    trace.process.name = "hour;glass".into();
    trace
}
