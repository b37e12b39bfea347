//! The timeline's sums against an oracle that asks about every nanosecond by itself, on random small traces.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{HELPER, MAIN, traces};
use proptest::prelude::*;
use record::Known;
use record::timeline::{Awaited, Cause, LossKind, Lost, summarise};
use record::trace::{Category, Lane, Trace};
use std::collections::BTreeMap;

fn losses() -> impl Strategy<Value = Vec<Lost>> {
    let kinds = prop::sample::select(vec![LossKind::Steal, LossKind::Descheduled, LossKind::PageFault]);
    let one = (prop::sample::select(vec![MAIN, HELPER]), 0..60u64, 0..30u64, kinds);
    let lost = |(thread, start_ns, length, why)| Lost { thread, start_ns, end_ns: start_ns + length, why };
    prop::collection::vec(one.prop_map(lost), 0..6)
}

/// `None` is busy.
fn at(trace: &Trace, lost: &[Lost], lane: &Lane, now: u64) -> Option<Cause> {
    let last = |lane: &Lane, wanted: &[Category]| {
        let mut covers =
            lane.slices.iter().filter(|s| s.start_ns <= now && now < s.end_ns && wanted.contains(&s.category));
        covers.next_back().map(|slice| slice.category)
    };
    let lost_by = |thread: Option<u32>| {
        let covers =
            lost.iter().filter(|lost| Some(lost.thread) == thread && lost.start_ns <= now && now < lost.end_ns);
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
    fn every_nanosecond_is_counted_where_the_rules_put_it(trace in traces(), lost in losses()) {
        let summary = summarise(&trace, &lost, &Known::unavailable("a test", "plan it")).unwrap();
        let device: Vec<&Lane> = trace.lanes.iter().filter(|lane| lane.kind.is_device()).collect();
        let states: Vec<Vec<Option<Cause>>> = device
            .iter()
            .map(|lane| (0..trace.end_ns).map(|now| at(&trace, &lost, lane, now)).collect())
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

        // What was awaited.
        for (index, lane) in device.iter().enumerate() {
            let mut expected: BTreeMap<Awaited, u64> = BTreeMap::new();
            for wait in lane.slices.iter().filter(|slice| slice.category == Category::Barrier) {
                let ends = (0..device.len()).filter(|&other| other != index).flat_map(|other| {
                    let operators = device[other].slices.iter().filter(|slice| slice.category == Category::Operator);
                    operators.map(move |slice| (slice.end_ns, other))
                });
                let inside = ends.filter(|&(end, _)| wait.start_ns < end && end <= wait.end_ns);
                let last = inside.max_by_key(|&(end, other)| (end, std::cmp::Reverse(other)));
                for now in wait.start_ns..wait.end_ns {
                    if states[index][now as usize] != Some(Cause::Barrier) {
                        continue;
                    }
                    let what = match last {
                        None => Awaited::Unknown,
                        Some((end, _)) if now >= end => Awaited::Release,
                        Some((_, other)) => match states[other][now as usize] {
                            None => Awaited::Computing,
                            Some(Cause::Steal) => Awaited::Steal,
                            Some(Cause::Descheduled) => Awaited::Descheduled,
                            Some(Cause::PageFault) => Awaited::PageFault,
                            Some(_) => Awaited::Elsewhere,
                        },
                    };
                    *expected.entry(what).or_default() += 1;
                }
            }
            let found: BTreeMap<_, _> = summary.lanes[index].awaited.iter().map(|t| (t.what, t.wall_ns)).collect();
            prop_assert_eq!(expected, found, "{}", &lane.name);
        }

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
