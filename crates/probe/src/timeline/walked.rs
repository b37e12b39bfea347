//! From the spans of all workers to the slices of their lanes, and to who came last to each barrier.
//! Not here: taking spans (`ops::Traced`), and what the waits come to (`record::timeline`).

use super::notes::PlannedCall;
use ops::Span;
use record::trace::{Category, Meeting, Name, Names, Slice, SliceRef, Value};
use std::collections::BTreeMap;

/// One pass as the workers walked it.
pub(super) struct Walked<'a> {
    pub(super) program: &'a [PlannedCall],
    /// Of each worker, calls rising; without those that found no room.
    pub(super) spans: Vec<&'a [Span]>,
    /// What the spans' times count from.
    pub(super) origin_ns: u64,
    /// When the main thread went on.
    pub(super) end_ns: u64,
}

/// The lanes of all workers, filled pass by pass.
pub(super) struct WorkerLanes<'a> {
    names: &'a mut Names,
    /// Position of worker 0's lane in the trace.
    first_lane: usize,
    lanes: Vec<Lane>,
    pub(super) meetings: Vec<Meeting>,
}

struct Lane {
    slices: Vec<Slice>,
    /// Where the last slice ended.
    cursor: u64,
}

/// A worker came to a barrier.
struct Arrival {
    worker: usize,
    at_ns: u64,
    /// Its wait, unless that took no time.
    slice: Option<usize>,
}

impl<'a> WorkerLanes<'a> {
    pub(super) fn new(names: &'a mut Names, first_lane: usize, workers: usize, start_ns: u64) -> WorkerLanes<'a> {
        let lanes = (0..workers).map(|_| Lane { slices: Vec::new(), cursor: start_ns }).collect();
        WorkerLanes { names, first_lane, lanes, meetings: Vec::new() }
    }

    /// Of each worker, and the meetings.
    pub(super) fn finish(self) -> (Vec<Vec<Slice>>, Vec<Meeting>) {
        (self.lanes.into_iter().map(|lane| lane.slices).collect(), self.meetings)
    }

    /// Appends a pass; gives each worker's first slice of it.
    pub(super) fn pass(&mut self, walked: &Walked<'_>) -> Vec<Option<usize>> {
        let before: Vec<usize> = self.lanes.iter().map(|lane| lane.slices.len()).collect();
        let mut arrivals: BTreeMap<u32, Vec<Arrival>> = BTreeMap::new();
        for (worker, spans) in walked.spans.iter().enumerate() {
            self.calls(worker, spans, walked, &mut arrivals);
        }
        for came in arrivals.into_values() {
            // Who came last is known only if it is known of all when they came.
            if came.len() == self.lanes.len() {
                self.meet(&came);
            }
        }
        self.end(walked);
        (0..self.lanes.len())
            .map(|worker| (self.lanes[worker].slices.len() > before[worker]).then_some(before[worker]))
            .collect()
    }

    fn calls(
        &mut self,
        worker: usize,
        spans: &[Span],
        walked: &Walked<'_>,
        arrivals: &mut BTreeMap<u32, Vec<Arrival>>,
    ) {
        let barrier = self.names.intern("barrier");
        let (layer, kernel) = (self.names.intern("layer"), self.names.intern("kernel"));
        for span in spans {
            let Some(call) = walked.program.get(span.call as usize) else { continue };
            let [arrive, start, end] = [span.arrive_ns, span.start_ns, span.end_ns].map(|at| walked.origin_ns + at);
            let mut args = vec![(kernel, Value::Text(self.names.intern(&call.kernel)))];
            args.extend(call.layer.map(|number| (layer, Value::Integer(number as i64))));
            let name = self.names.intern(&call.name);
            let lane = &mut self.lanes[worker];
            if call.barrier {
                let at_ns = arrive.max(lane.cursor);
                let slice = lane.push(barrier, Category::Barrier, at_ns, start, Vec::new());
                arrivals.entry(span.call).or_default().push(Arrival { worker, at_ns, slice });
            }
            // A slice takes at least a nanosecond, or it could not be told from its neighbour's end.
            let start = start.max(lane.cursor);
            lane.push(name, Category::Operator, start, end.max(start + 1), args);
        }
    }

    /// Who came last to a barrier, and who waited.
    fn meet(&mut self, came: &[Arrival]) {
        let Some(last) = came.iter().max_by_key(|arrival| (arrival.at_ns, std::cmp::Reverse(arrival.worker))) else {
            return;
        };
        let slice = |arrival: &Arrival| Some((arrival.worker, arrival.slice?));
        let waits: Vec<(usize, usize)> = came.iter().filter_map(slice).collect();
        let of = |&(worker, slice): &(usize, usize)| &self.lanes[worker].slices[slice];
        // Two processors' clocks may differ by some nanoseconds: nobody goes on before the last one came.
        let arrived_ns = waits.iter().map(|wait| of(wait).end_ns).fold(last.at_ns, u64::min);
        let waits = waits
            .iter()
            .filter(|wait| of(wait).start_ns <= arrived_ns)
            .map(|&(worker, slice)| SliceRef { lane: self.first_lane + worker, slice })
            .collect();
        self.meetings.push(Meeting { last_lane: self.first_lane + last.worker, arrived_ns, waits });
    }

    /// The step is over when the last worker is: until then the others wait.
    fn end(&mut self, walked: &Walked<'_>) {
        let name = self.names.intern("end of the pass");
        let ran: Vec<usize> = (0..self.lanes.len()).filter(|&worker| !walked.spans[worker].is_empty()).collect();
        let over_ns = ran.iter().map(|&worker| self.lanes[worker].cursor).max().unwrap_or(0).min(walked.end_ns);
        let mut came = Vec::new();
        for worker in ran {
            let lane = &mut self.lanes[worker];
            let at_ns = lane.cursor;
            came.push(Arrival { worker, at_ns, slice: lane.push(name, Category::Barrier, at_ns, over_ns, Vec::new()) });
        }
        self.meet(&came);
    }
}

impl Lane {
    /// The slice's position, unless nothing is left of it behind the one before.
    fn push(
        &mut self,
        name: Name,
        category: Category,
        start_ns: u64,
        end_ns: u64,
        args: Vec<(Name, Value)>,
    ) -> Option<usize> {
        let start_ns = start_ns.max(self.cursor);
        if start_ns >= end_ns {
            return None;
        }
        self.cursor = end_ns;
        self.slices.push(Slice { name, category, start_ns, end_ns, args });
        Some(self.slices.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use proptest::prelude::*;
    use record::Known;
    use record::timeline::{Awaited, LostTo, summarise};
    use record::trace::{Lane as TraceLane, LaneKind, Process, Trace};
    use std::ops::Range;

    /// What each worker does at each call: nanoseconds from the call before to this one, of noticing that a barrier is open, of
    /// computing.
    type Work = (u64, u64, u64);

    /// A worker's calls: (came, started, ended).
    type Times = Vec<(u64, u64, u64)>;

    /// Walks as workers do: through the calls, meeting at the barriers alone.
    fn walk(barriers: &[bool], work: &[Vec<Work>]) -> Vec<Times> {
        let mut times: Vec<Times> = vec![Vec::new(); work.len()];
        for (call, &barrier) in barriers.iter().enumerate() {
            let came: Vec<u64> =
                (0..work.len()).map(|w| times[w].last().map_or(10, |last| last.2) + work[w][call].0).collect();
            let all = *came.iter().max().unwrap();
            for (worker, times) in times.iter_mut().enumerate() {
                let (_, noticing, computing) = work[worker][call];
                let start = if barrier { all + noticing } else { came[worker] };
                times.push((came[worker], start, start + computing));
            }
        }
        times
    }

    /// What each waited for, nanosecond by nanosecond, straight from the walk; and for whom while it computed in which call.
    fn truth(
        barriers: &[bool],
        times: &[Times],
        worker: usize,
    ) -> (BTreeMap<Awaited, u64>, BTreeMap<(usize, usize), u64>) {
        let (mut awaited, mut slow) = (BTreeMap::new(), BTreeMap::new());
        let end = times.iter().map(|own| own.last().unwrap().2).max().unwrap();
        let mut count = |wait: Range<u64>, came: Vec<u64>| {
            let all = *came.iter().max().unwrap();
            let last = came.iter().position(|&at| at == all).unwrap();
            for now in wait {
                let what = if now >= all {
                    Awaited::Release
                } else if let Some(call) = times[last].iter().position(|&(_, start, end)| (start..end).contains(&now)) {
                    *slow.entry((last, call)).or_default() += 1;
                    Awaited::Computing
                } else {
                    Awaited::Elsewhere
                };
                *awaited.entry(what).or_default() += 1;
            }
        };
        for (call, _) in barriers.iter().enumerate().filter(|(_, barrier)| **barrier) {
            let (came, start, _) = times[worker][call];
            count(came..start, times.iter().map(|own| own[call].0).collect());
        }
        count(times[worker].last().unwrap().2..end, times.iter().map(|own| own.last().unwrap().2).collect());
        (awaited, slow)
    }

    fn programs() -> impl Strategy<Value = (Vec<bool>, Vec<Vec<Work>>)> {
        (1..=4usize, 1..=8usize).prop_flat_map(|(workers, calls)| {
            let barriers = prop::collection::vec(prop::bool::ANY, calls);
            let work = (0..3u64, 0..30u64, 1..20u64);
            (barriers, prop::collection::vec(prop::collection::vec(work, calls), workers))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

        /// A worker that notices late does so while others are already several calls on, where the data flow needs no barrier.
        #[test]
        fn who_came_last_is_right_however_few_barriers_there_are((barriers, work) in programs()) {
            let times = walk(&barriers, &work);
            let calls = barriers.iter().enumerate();
            let program: Vec<PlannedCall> = calls
                .map(|(call, &barrier)| PlannedCall { name: format!("call {call}"), layer: None, kernel: String::new(), barrier })
                .collect();
            let spans: Vec<Vec<Span>> = times
                .iter()
                .map(|own| {
                    let span = |(call, &(arrive_ns, start_ns, end_ns))| Span { call: call as u32, arrive_ns, start_ns, end_ns };
                    own.iter().enumerate().map(span).collect()
                })
                .collect();
            let end_ns = times.iter().map(|own| own.last().unwrap().2).max().unwrap() + 5;
            let mut trace = Trace { process: Process { id: 1, name: "test".into() }, end_ns, ..Trace::default() };
            let mut lanes = WorkerLanes::new(&mut trace.names, 0, times.len(), 0);
            let first = lanes.pass(&Walked {
                program: &program,
                spans: spans.iter().map(Vec::as_slice).collect(),
                origin_ns: 0,
                end_ns,
            });
            prop_assert!(first.iter().all(|slice| *slice == Some(0)));
            let (slices, meetings) = lanes.finish();
            trace.meetings = meetings;
            trace.lanes = slices
                .into_iter()
                .enumerate()
                .map(|(worker, slices)| TraceLane {
                    kind: LaneKind::Worker { worker: worker as u32, thread: worker as u32 + 1 },
                    name: format!("worker {worker}"),
                    slices,
                    instants: Vec::new(),
                    dropped: 0,
                })
                .collect();
            let summary = summarise(&trace, &Known::unavailable("a test", "plan it")).unwrap();
            let mut stragglers: BTreeMap<(String, String), u64> = BTreeMap::new();
            for (worker, lane) in summary.lanes.iter().enumerate() {
                let (awaited, slow) = truth(&barriers, &times, worker);
                let found: BTreeMap<_, _> = lane.awaited.iter().map(|time| (time.what, time.wall_ns)).collect();
                prop_assert_eq!(found, awaited, "worker {}", worker);
                for ((worker, call), waited) in slow {
                    *stragglers.entry((format!("worker {worker}"), format!("call {call}"))).or_default() += waited;
                }
            }
            let sum: u64 = stragglers.values().sum();
            let lost = summary.lost.iter().filter(|time| time.to == LostTo::SlowestWorker).map(|time| time.wall_ns);
            prop_assert_eq!(lost.sum::<u64>(), sum);
            let found: BTreeMap<_, _> = summary
                .stragglers
                .iter()
                .map(|straggler| ((straggler.worker.clone(), straggler.operator.clone()), straggler.waited_ns))
                .collect();
            prop_assert_eq!(found, stragglers);
        }
    }
}
