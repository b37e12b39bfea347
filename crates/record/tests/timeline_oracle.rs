//! The timeline's sums against an oracle that asks about every nanosecond by itself, on random small traces.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::traces;
use proptest::prelude::*;
use record::Known;
use record::timeline::{Awaited, Cause, LostTo, summarise};
use record::trace::{Category, Lane, Slice, SliceRef, Trace};
use std::collections::BTreeMap;

/// `None` is busy.
fn at(trace: &Trace, lane: &Lane, now: u64) -> Option<Cause> {
    let last = |lane: &Lane, wanted: &[Category]| {
        let mut covers =
            lane.slices.iter().filter(|s| s.start_ns <= now && now < s.end_ns && wanted.contains(&s.category));
        covers.next_back().map(|slice| slice.category)
    };
    let lost_by = |thread: Option<u32>| {
        let covers =
            trace.lost.iter().filter(|lost| Some(lost.thread) == thread && lost.start_ns <= now && now < lost.end_ns);
        covers.map(|lost| lost.why.cause()).min()
    };
    let main = &trace.lanes[0];
    let (own, of_main) = (lost_by(lane.kind.thread()), lost_by(main.kind.thread()));
    match last(lane, &[Category::Operator, Category::Barrier]) {
        Some(Category::Barrier) => return Some(own.unwrap_or(Cause::Barrier)),
        Some(_) => return own,
        None => {}
    }
    use Category::{Dispatch, Sampling, Setup, Tokenising};
    let doing = last(main, &[Dispatch, Sampling, Tokenising, Setup]).map(|category| match category {
        Dispatch => Cause::Dispatch,
        Sampling => Cause::Sampling,
        Tokenising => Cause::Tokenising,
        _ => Cause::Setup,
    });
    Some(match doing {
        Some(Cause::Dispatch) => own.or(of_main).unwrap_or(Cause::Dispatch),
        Some(doing) => of_main.unwrap_or(doing),
        None => own.or(of_main).unwrap_or(Cause::Unexplained),
    })
}

/// Of a moment by itself.
fn in_the_end(cause: Cause) -> LostTo {
    match cause {
        Cause::Steal => LostTo::Steal,
        Cause::Descheduled => LostTo::Descheduled,
        Cause::PageFault => LostTo::PageFault,
        Cause::Sampling => LostTo::Sampling,
        Cause::Tokenising => LostTo::Tokenising,
        Cause::Dispatch => LostTo::Dispatch,
        Cause::Setup => LostTo::Setup,
        Cause::Barrier => LostTo::Release,
        Cause::Unexplained => LostTo::Unexplained,
    }
}

fn sums(states: &[Option<Cause>]) -> (u64, BTreeMap<Cause, u64>) {
    let mut causes = BTreeMap::new();
    for cause in states.iter().flatten() {
        *causes.entry(*cause).or_default() += 1;
    }
    (states.iter().filter(|state| state.is_none()).count() as u64, causes)
}

fn as_map(occupation: &record::timeline::Occupation) -> (u64, BTreeMap<Cause, u64>) {
    let causes = occupation.idle_by_cause.iter().map(|time| (time.cause, time.wall_ns)).collect();
    (occupation.busy_ns, causes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_nanosecond_is_counted_where_the_rules_put_it(trace in traces()) {
        let summary = summarise(&trace, &Known::unavailable("a test", "plan it")).unwrap();
        let device: Vec<&Lane> = trace.lanes.iter().filter(|lane| lane.kind.is_device()).collect();
        let states: Vec<Vec<Option<Cause>>> = device
            .iter()
            .map(|lane| (0..trace.end_ns).map(|now| at(&trace, lane, now)).collect())
            .collect();
        for (row, states) in summary.lanes.iter().zip(&states) {
            prop_assert_eq!(as_map(&row.occupation), sums(states), "{}", &row.name);
        }
        let together: Vec<Option<Cause>> = (0..trace.end_ns as usize)
            .map(|now| if states.iter().any(|lane| lane[now].is_none()) {
                None
            } else {
                states.iter().filter_map(|lane| lane[now]).min()
            })
            .collect();
        prop_assert_eq!(as_map(&summary.device), sums(&together));

        // Gaps: runs of idle nanoseconds.
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        for (now, state) in together.iter().enumerate() {
            match gaps.last_mut() {
                Some((start, wall)) if state.is_some() && *start + *wall == now as u64 => *wall += 1,
                _ if state.is_some() => gaps.push((now as u64, 1)),
                _ => {}
            }
        }
        gaps.sort_by_key(|&(start, wall)| (std::cmp::Reverse(wall), start));
        gaps.truncate(10);
        prop_assert_eq!(gaps.len(), summary.gaps.len());
        for (&(start, wall), gap) in gaps.iter().zip(&summary.gaps) {
            prop_assert_eq!((start, wall), (gap.start_ns, gap.wall_ns));
            let part = &together[start as usize..(start + wall) as usize];
            let causes: BTreeMap<Cause, u64> = gap.by_cause.iter().map(|time| (time.cause, time.wall_ns)).collect();
            prop_assert_eq!(causes, sums(part).1);
            let inside = trace.samples.samples.iter().filter(|s| (start..start + wall).contains(&s.at_ns)).count();
            prop_assert_eq!(inside as u64, gap.samples);
            prop_assert_eq!(gap.top.iter().map(|top| top.samples).sum::<u64>(), gap.samples, "three functions in all");
        }

        // What was awaited, and what all time was lost to in the end.
        let mut lost: BTreeMap<LostTo, u64> = BTreeMap::new();
        let mut slow: BTreeMap<(String, String), u64> = BTreeMap::new();
        let first = trace.lanes.len() - device.len();
        for (index, lane) in device.iter().enumerate() {
            let mut expected: BTreeMap<Awaited, u64> = BTreeMap::new();
            let mut count = |now: u64| {
                let covers = |slice: &Slice| slice.start_ns <= now && now < slice.end_ns;
                let barrier = |slice: &&Slice| slice.category == Category::Barrier && covers(slice);
                let state = states[index][now as usize];
                let Some(cause) = state.filter(|cause| *cause == Cause::Barrier) else { return state.map(in_the_end) };
                let slice = lane.slices.iter().position(|slice| barrier(&slice)).unwrap();
                let place = SliceRef { lane: first + index, slice };
                let meeting = trace.meetings.iter().find(|meeting| meeting.waits.contains(&place));
                let (what, to) = match meeting.map(|meeting| (meeting.arrived_ns, meeting.last_lane - first)) {
                    None => (Awaited::Unknown, LostTo::Unexplained),
                    Some((arrived, _)) if now >= arrived => (Awaited::Release, LostTo::Release),
                    Some((_, last)) => match states[last][now as usize] {
                        None => {
                            let mut operators = device[last].slices.iter();
                            let inner = operators.rfind(|slice| slice.category == Category::Operator && covers(slice)).unwrap();
                            let key = (device[last].name.clone(), trace.names.text(inner.name).to_owned());
                            *slow.entry(key).or_default() += 1;
                            (Awaited::Computing, LostTo::SlowestWorker)
                        }
                        Some(cause @ Cause::Steal) => (Awaited::Steal, in_the_end(cause)),
                        Some(cause @ Cause::Descheduled) => (Awaited::Descheduled, in_the_end(cause)),
                        Some(cause @ Cause::PageFault) => (Awaited::PageFault, in_the_end(cause)),
                        Some(cause) => (Awaited::Elsewhere, in_the_end(cause)),
                    },
                };
                assert_eq!(cause, Cause::Barrier);
                *expected.entry(what).or_default() += 1;
                Some(to)
            };
            for now in 0..trace.end_ns {
                if let Some(to) = count(now) {
                    *lost.entry(to).or_default() += 1;
                }
            }
            let found: BTreeMap<_, _> = summary.lanes[index].awaited.iter().map(|t| (t.what, t.wall_ns)).collect();
            prop_assert_eq!(expected, found, "{}", &lane.name);
        }
        prop_assert_eq!(summary.lost.iter().map(|time| (time.to, time.wall_ns)).collect::<BTreeMap<_, _>>(), lost);
        let stragglers = summary.stragglers.iter().map(|slow| ((slow.worker.clone(), slow.operator.clone()), slow.waited_ns));
        prop_assert_eq!(stragglers.collect::<BTreeMap<_, _>>(), slow);

        // Operators: every slice of the name, nested or not.
        for row in &summary.operators {
            for (index, lane) in device.iter().enumerate() {
                let of_name = |slice: &&record::trace::Slice| {
                    slice.category == Category::Operator && trace.names.text(slice.name) == row.operator
                };
                let own: Vec<u64> = lane.slices.iter().filter(of_name).map(|s| s.end_ns - s.start_ns).collect();
                prop_assert_eq!((row.calls[index], row.wall_ns[index]), (own.len() as u64, own.iter().sum::<u64>()));
            }
        }

        // Steps: nanoseconds of the most occupied lane's outermost slices that start inside.
        for row in summary.steps.iter().flat_map(|series| &series.steps) {
            let step = row.start_ns..row.start_ns + row.wall_ns;
            let covered = |lane: &&Lane| -> u64 {
                let starting = lane.slices.iter().filter(|slice| step.contains(&slice.start_ns));
                let starting: Vec<_> = starting.map(|slice| slice.start_ns..slice.end_ns).collect();
                (0..trace.end_ns).filter(|now| starting.iter().any(|range| range.contains(now))).count() as u64
            };
            prop_assert_eq!(device.iter().map(covered).max().unwrap_or(0), row.spans_ns);
        }
    }
}
