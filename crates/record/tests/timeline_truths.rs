//! Things known to be in a trace because they were put there: the summary names each of them as the cause.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{HELPER, MAIN, add, request, sort};
use record::Known;
use record::timeline::{
    Awaited, Cause, Fault, LostTo, OffProcessor, OutlierKind, PlannedCalls, StealReading, TimelineSummary,
    from_samples, from_steal, from_switches, summarise,
};
use record::trace::{Category, Frame, Lane, LaneKind, LossKind, Lost, Meeting, Sample, Slice, SliceRef, Trace};

/// Breaks a rule of a trace.
type Change = fn(&mut Trace);

fn planned(calls: u64) -> Known<Vec<PlannedCalls>> {
    Known::Is(vec![PlannedCalls { operator: "matvec".into(), calls }])
}

fn summary(trace: &Trace, lost: &[Lost]) -> TimelineSummary {
    summarise(&Trace { lost: lost.to_vec(), ..trace.clone() }, &planned(40)).unwrap()
}

/// The outliers of the only series.
fn outliers(summary: &TimelineSummary) -> Vec<(u64, Option<OutlierKind>, u64)> {
    let [series] = summary.steps.as_slice() else { panic!("one series, not {}", summary.steps.len()) };
    let found = series.outliers.known().unwrap().iter();
    found.map(|found| (found.step, found.cause.known().map(|cause| cause.what.clone()), found.excess_ns)).collect()
}

#[test]
fn an_even_request_is_busy_but_for_dispatch_and_sampling() {
    let trace = request(20, |_, _, _| 0);
    let summary = summary(&trace, &[]);
    assert_eq!(summary.wall_ns, 20 * 950);
    assert_eq!(summary.device.busy_ns, 20 * 800);
    assert_eq!(summary.device.lost_to(Cause::Dispatch), 20 * 50);
    assert_eq!(summary.device.lost_to(Cause::Sampling), 20 * 100);
    assert_eq!(summary.device.idle_ns, 20 * 150);
    assert!(summary.coverage.is_complete());
    let row = &summary.operators[0];
    assert_eq!((row.calls.as_slice(), &row.planned_calls), (&[40, 40][..], &Known::Is(40)));
    let imbalance = row.imbalance.known().unwrap();
    assert_eq!((imbalance.slowest_over_mean.value(), imbalance.lost_ns), (Some(0.0), 0));
    assert_eq!(outliers(&summary), []);
    // The longest gap is sampling and the next dispatch together; the last is sampling alone.
    assert_eq!(summary.gaps.len(), 10);
    assert_eq!((summary.gaps[0].start_ns, summary.gaps[0].wall_ns), (850, 150));
    assert_eq!(summary.steps[0].steps[1].start_ns, 950);
    assert_eq!(summary.steps[0].steps[1].spans_ns, 800);
}

#[test]
fn a_sleep_in_the_sampler_is_sampling_and_is_seen_in_the_longest_gap() {
    let mut trace = request(20, |_, _, _| 0);
    let end = trace.end_ns;
    // Time stretches by 2,000 ns inside the sampling that follows step 7, at 7 * 950 + 900.
    let at = 7 * 950 + 900;
    let later = |time: &mut u64| *time += if *time > at { 2000 } else { 0 };
    for slice in trace.lanes.iter_mut().flat_map(|lane| &mut lane.slices) {
        later(&mut slice.start_ns);
        later(&mut slice.end_ns);
    }
    trace.samples.samples.iter_mut().for_each(|sample| later(&mut sample.at_ns));
    trace.counters.clear();
    trace.end_ns = end + 2000;
    let sleep = trace.names.intern("nanosleep");
    let frame = trace.samples.frame(Frame { function: sleep, file: None, line: None, inlined: false });
    let stack = trace.samples.stack(&[frame]);
    let sample = |n| Sample { at_ns: at + n * 400, thread: MAIN, stack, weight_ns: 400 };
    trace.samples.samples.extend([1u64, 2, 3, 4].map(sample));
    trace.samples.samples.sort_by_key(|sample| sample.at_ns);
    // The thread gave its processor up itself: that is what the sampler does, not a loss of its own.
    let off = [OffProcessor { thread: MAIN, start_ns: at, end_ns: at + 2000, preempted: false }];
    let lost = from_switches(&trace, &off, &[]);
    assert_eq!(lost, []);
    let summary = summary(&trace, &lost);
    assert_eq!(summary.device.lost_to(Cause::Sampling), 20 * 100 + 2000);
    let gap = &summary.gaps[0];
    assert_eq!((gap.wall_ns, gap.by_cause[0].cause, gap.by_cause[0].wall_ns), (2150, Cause::Sampling, 2100));
    assert_eq!((gap.top[0].function.as_str(), gap.top[0].samples), ("nanosleep", 4));
}

#[test]
fn a_worker_a_fifth_slower_is_named_and_what_the_other_waited_for_is_its_computing() {
    let trace = request(20, |_, worker, _| if worker == 1 { 80 } else { 0 });
    let summary = summary(&trace, &[]);
    let imbalance = summary.operators[0].imbalance.known().unwrap();
    assert_eq!(imbalance.slowest, "worker 1");
    assert!((imbalance.slowest_over_mean.value().unwrap() - 40.0 / 440.0).abs() < 1e-12);
    assert_eq!(imbalance.lost_ns, 40 * 40);
    let waiting = &summary.lanes[0];
    assert_eq!(waiting.occupation.lost_to(Cause::Barrier), 40 * 80);
    assert_eq!(waiting.awaited.len(), 1);
    assert_eq!((waiting.awaited[0].what, waiting.awaited[0].wall_ns), (Awaited::Computing, 40 * 80));
    assert_eq!(summary.lanes[1].occupation.lost_to(Cause::Barrier), 0);
    // All of it is named: for whom, and in what. Both lanes also wait for dispatch and sampling.
    let lost: Vec<_> = summary.lost.iter().map(|time| (time.to, time.wall_ns)).collect();
    let wanted = [(LostTo::Sampling, 2 * 20 * 100), (LostTo::SlowestWorker, 40 * 80), (LostTo::Dispatch, 2 * 20 * 50)];
    assert_eq!(lost, wanted);
    let [straggler] = &summary.stragglers[..] else { panic!("{:?}", summary.stragglers) };
    assert_eq!((&straggler.worker[..], &straggler.operator[..], straggler.waited_ns), ("worker 1", "matvec", 40 * 80));
}

#[test]
fn a_hog_that_takes_the_processor_is_the_cause_of_the_long_step_and_of_the_others_wait() {
    let trace = request(20, |step, worker, call| if (step, worker, call) == (5, 1, 1) { 3000 } else { 0 });
    let start = 5 * 950 + 450;
    let off = [OffProcessor { thread: HELPER, start_ns: start + 100, end_ns: start + 3100, preempted: true }];
    let lost = from_switches(&trace, &off, &[]);
    let summary = summary(&trace, &lost);
    assert_eq!(summary.lanes[1].occupation.lost_to(Cause::Descheduled), 3000);
    assert_eq!(summary.lanes[1].occupation.busy_ns, 20 * 800);
    // The hog came 100 ns into the call and left 300 ns of computing; the other worker waited from its 400th ns on.
    let awaited: Vec<_> = summary.lanes[0].awaited.iter().map(|time| (time.what, time.wall_ns)).collect();
    assert_eq!(awaited, [(Awaited::Descheduled, 2700), (Awaited::Computing, 300)]);
    assert_eq!(summary.device.lost_to(Cause::Descheduled), 2700);
    // The hog took 3,000 ns from worker 1, and 2,700 of worker 0's wait were for that.
    assert_eq!((summary.lost[0].to, summary.lost[0].wall_ns), (LostTo::Descheduled, 3000 + 2700));
    assert_eq!(outliers(&summary), [(5, Some(OutlierKind::Idle(Cause::Descheduled)), 3000)]);
    assert_eq!(summary.gaps[0].by_cause[0].cause, Cause::Descheduled);
}

/// Worker 0 parks at a barrier at 150 µs; worker 1 arrives at 300 µs; worker 0 runs again at 890 µs.
#[test]
fn a_worker_that_is_woken_and_gets_no_processor_is_descheduled_from_then_on() {
    let mut trace = Trace { end_ns: 1_000_000, ..Trace::default() };
    let (work, wait) = (trace.names.intern("linear"), trace.names.intern("barrier"));
    let slice = |name, category, start_ns, end_ns| Slice { name, category, start_ns, end_ns, args: Vec::new() };
    let lane = |worker, thread, slices| Lane {
        kind: LaneKind::Worker { worker, thread },
        name: format!("worker {worker}"),
        slices,
        instants: Vec::new(),
        dropped: 0,
    };
    trace.lanes = vec![
        lane(
            0,
            MAIN,
            vec![slice(work, Category::Operator, 0, 100_000), slice(wait, Category::Barrier, 100_000, 900_000)],
        ),
        lane(1, HELPER, vec![slice(work, Category::Operator, 0, 300_000)]),
    ];
    let waits = vec![SliceRef { lane: 0, slice: 1 }];
    trace.meetings = vec![Meeting { last_lane: 1, arrived_ns: 300_000, waits }];
    let off = |end_ns| [OffProcessor { thread: MAIN, start_ns: 150_000, end_ns, preempted: false }];
    let late = summary(&trace, &from_switches(&trace, &off(890_000), &[]));
    assert_eq!(late.lanes[0].occupation.lost_to(Cause::Descheduled), 590_000);
    let awaited: Vec<_> = late.lanes[0].awaited.iter().map(|time| (time.what, time.wall_ns)).collect();
    assert_eq!(awaited, [(Awaited::Computing, 200_000), (Awaited::Release, 10_000)]);
    assert!(from_switches(&trace, &off(390_000), &[]).is_empty(), "waking up takes that long");
    assert!(from_switches(&trace, &off(250_000), &[]).is_empty(), "nobody had arrived");
}

#[test]
fn waits_for_pages_are_page_faults_by_switches_and_by_samples() {
    let trace = request(20, |step, _, call| if (step, call) == (5, 0) { 5000 } else { 0 });
    let start = 5 * 950 + 50;
    let off = |thread| OffProcessor { thread, start_ns: start + 200, end_ns: start + 5200, preempted: false };
    let faults = [MAIN, HELPER].map(|thread| Fault { thread, at_ns: start + 190 });
    let by_switches = from_switches(&trace, &[off(MAIN), off(HELPER)], &faults);
    let summary_by_switches = summary(&trace, &by_switches);
    assert_eq!(summary_by_switches.device.lost_to(Cause::PageFault), 5000);
    assert_eq!(outliers(&summary_by_switches), [(5, Some(OutlierKind::Idle(Cause::PageFault)), 5000)]);
    // Without a fault before it the same stretch is time descheduled.
    let unexplained = summary(&trace, &from_switches(&trace, &[off(MAIN), off(HELPER)], &[]));
    assert_eq!(unexplained.device.lost_to(Cause::Descheduled), 5000);

    let mut sampled = trace;
    sampled.samples.samples.clear();
    let handler = sampled.names.intern("handle_mm_fault");
    let leaf = sampled.names.intern("clear_huge_page");
    let [handler, leaf] = [handler, leaf]
        .map(|function| sampled.samples.frame(Frame { function, file: None, line: None, inlined: false }));
    let stack = sampled.samples.stack(&[handler, leaf]);
    for n in 1..=20 {
        for thread in [MAIN, HELPER] {
            sampled.samples.samples.push(Sample { at_ns: start + 200 + n * 250, thread, stack, weight_ns: 250 });
        }
    }
    let by_samples = from_samples(&sampled.samples, &sampled.names, &[]);
    assert_eq!(by_samples.len(), 40);
    assert_eq!(summary(&sampled, &by_samples).device.lost_to(Cause::PageFault), 5000);
    // Where faults are counted, nothing before the first one in a sample's time is lost to them: a lone one is short, in a storm
    // the whole time is.
    let of = |faults: &[u64]| {
        let met: Vec<_> = faults.iter().map(|at| Fault { thread: MAIN, at_ns: start + at }).collect();
        let lost = from_samples(&sampled.samples, &sampled.names, &met);
        let own = lost.iter().filter(|lost| lost.thread == MAIN && lost.end_ns == start + 450);
        own.map(|lost| lost.end_ns - lost.start_ns).collect::<Vec<_>>()
    };
    assert_eq!((of(&[440]), of(&[205, 300, 440]), of(&[460])), (vec![10], vec![245], vec![250]));
}

#[test]
fn an_operator_that_computed_longer_is_named_if_nothing_else_explains_the_step() {
    let trace = request(20, |step, _, call| if (step, call) == (9, 0) { 700 } else { 0 });
    let summary = summary(&trace, &[]);
    assert_eq!(outliers(&summary), [(9, Some(OutlierKind::Operator("matvec".into())), 700)]);
}

#[test]
fn stolen_time_counts_where_most_of_a_reading_was_stolen() {
    let reading = |start_ns, stolen_ns| StealReading { thread: HELPER, start_ns, end_ns: start_ns + 100, stolen_ns };
    let lost = from_steal(&[reading(0, 49), reading(100, 50), reading(200, 100)]);
    let stretches: Vec<_> = lost.iter().map(|lost| (lost.start_ns, lost.why)).collect();
    assert_eq!(stretches, [(100, LossKind::Steal), (200, LossKind::Steal)]);
}

#[test]
fn phases_are_summed_by_name_and_change_no_cause() {
    let mut trace = request(20, |_, _, _| 0);
    let plain = summary(&trace, &[]);
    add(&mut trace, 0, Category::Phase, "prefill", 0, 850);
    add(&mut trace, 0, Category::Phase, "decode", 950, 3700);
    add(&mut trace, 0, Category::Phase, "decode", 3800, 4650);
    sort(&mut trace);
    trace.flows.clear();
    let phased = summary(&trace, &[]);
    let found: Vec<_> = phased.phases.iter().map(|phase| (phase.name.as_str(), phase.wall_ns)).collect();
    assert_eq!(found, [("prefill", 850), ("decode", 2750 + 850)]);
    assert_eq!(phased.device, plain.device);
}

#[test]
fn few_steps_have_no_outliers_and_say_so() {
    let trace = request(4, |step, _, _| if step == 3 { 5000 } else { 0 });
    let summary = summary(&trace, &[]);
    assert!(summary.steps[0].outliers.missing().unwrap().unavailable.contains("4 steps are too few"));
}

#[test]
fn what_is_missing_makes_the_coverage_incomplete() {
    let mut trace = request(5, |_, _, _| 0);
    trace.lanes[2].dropped = 3;
    assert!(summary(&trace, &[]).coverage.reason().unwrap().contains("3 slices were dropped"));
    let mut trace = request(5, |_, _, _| 0);
    trace.samples.lost = 1;
    assert!(summary(&trace, &[]).coverage.reason().unwrap().contains("1 CPU samples were lost"));
    let mut trace = request(5, |_, _, _| 0);
    trace.flows.clear();
    trace.meetings.clear();
    trace.lanes.truncate(1);
    let nothing = summary(&trace, &[]);
    assert!(nothing.coverage.reason().unwrap().contains("no worker"));
    assert_eq!(nothing.device.busy_ns, 0);
    assert_eq!(nothing.device.idle_ns, nothing.wall_ns);
}

#[test]
fn streams_share_calls_between_them_and_need_no_thread() {
    let mut trace = request(6, |_, _, _| 0);
    for stream in [0, 1] {
        let kind = LaneKind::Stream { device: 0, stream };
        let name = format!("stream {stream}");
        trace.lanes.push(Lane { kind, name, slices: Vec::new(), instants: Vec::new(), dropped: 0 });
        add(&mut trace, 3 + stream as usize, Category::Operator, "gemm", 100, 200 + u64::from(stream) * 50);
    }
    sort(&mut trace);
    let summary = summary(&trace, &[]);
    let row = summary.operators.iter().find(|row| row.operator == "gemm").unwrap();
    assert_eq!(row.calls, [0, 0, 1, 1]);
    assert!(row.imbalance.known().is_none());
    assert_eq!(summary.lanes[3].kind, "stream");
    assert_eq!(summary.lanes[3].occupation.busy_ns, 150);
}

#[test]
fn a_trace_that_breaks_a_rule_is_refused_with_its_place() {
    let broken = |change: Change| {
        let mut trace = request(2, |_, worker, _| worker as u64 * 10);
        change(&mut trace);
        summarise(&trace, &planned(4)).unwrap_err().to_string()
    };
    let cases: [(Change, &str); 13] = [
        (|trace| trace.meetings[0].waits[0].slice = 99, "slice 99 of lane 1, which the trace does not hold"),
        (|trace| trace.meetings[0].waits[0].slice = 0, "slice 0 of lane 1, which is no barrier"),
        (|trace| trace.meetings[0].arrived_ns += 1, "does not hold the moment"),
        (|trace| trace.meetings.push(trace.meetings[0].clone()), "is in another meeting too"),
        (|trace| trace.lanes[1].slices.swap(0, 2), "lane 'worker 0': slice 1 is out of order"),
        (|trace| trace.lanes[1].slices[0].end_ns += 1000, "after the slice around it"),
        (|trace| trace.lanes[1].slices[0].end_ns = 1, "before its start"),
        (|trace| trace.end_ns -= 1, "outside the window"),
        (|trace| trace.flows[0].to.slice = 99, "flow 1 refers"),
        (|trace| trace.flows[0].id = 0, "flow 0: an id"),
        (|trace| trace.lanes[1].kind = LaneKind::Main { thread: 3 }, "2 main lanes"),
        (|trace| trace.counters[0].points[0].1 = f64::NAN, "counter 'resident memory' is not finite"),
        (
            |trace| {
                let mut inner = trace.lanes[1].slices[1].clone();
                inner.category = Category::Operator;
                inner.end_ns -= 5;
                trace.lanes[1].slices.insert(2, inner);
            },
            "lies inside a barrier",
        ),
    ];
    for (change, expected) in cases {
        let found = broken(change);
        assert!(found.contains(expected), "{found} does not say '{expected}'");
    }
}
