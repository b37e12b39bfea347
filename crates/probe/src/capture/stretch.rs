//! Running one prepared pass again and again: plain, with spans, or with everything that a capture watches.
//! Not here: how often and why.

use super::counters::{Counters, Machine, not_asked};
use super::perf_counters::PerfEvents;
use crate::monotonic;
use crate::sampler::{Sampled, Sampler};
use model::Prepared;
use ops::{Both, Traced, Until};
use record::capture::raw::{RawCounter, RawStep};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What is watched.
pub(super) struct Setup<'a> {
    /// Calls of a pass.
    pub(super) calls: usize,
    /// The thread of each worker.
    pub(super) workers: Vec<u32>,
    /// All threads of the process, the workers' among them.
    pub(super) threads: Vec<u32>,
    pub(super) frequency_hz: u64,
    pub(super) counters: bool,
    pub(super) cancelled: &'a AtomicBool,
}

impl Setup<'_> {
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    fn traced(&self, steps: usize) -> Traced {
        Traced::new(self.workers.len(), self.calls * steps)
    }
}

/// When to stop: after so many passes, or with the first that ends later than so long after the first one's start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) steps: usize,
    pub(super) time: Option<Duration>,
}

/// Passes with their spans.
pub(super) struct Spans {
    pub(super) traced: Traced,
    /// Start and end of each complete pass, nanoseconds since the trace's origin.
    times: Vec<(u64, u64)>,
    interrupted: bool,
}

impl Spans {
    /// Of all passes together.
    pub(super) fn seconds(&self) -> f64 {
        self.times.iter().map(|(start, end)| (end - start) as f64 / 1e9).sum()
    }

    /// Of the fastest pass, never nothing.
    pub(super) fn fastest_s(&self) -> f64 {
        self.times.iter().map(|(start, end)| end - start).min().unwrap_or(1).max(1) as f64 / 1e9
    }
}

/// A captured stretch.
pub(super) struct Stretch {
    pub(super) traced: Traced,
    pub(super) origin_ns: u64,
    pub(super) steps: Vec<RawStep>,
    pub(super) sampled: Sampled,
    pub(super) counters: Vec<RawCounter>,
    /// By Ctrl-C.
    pub(super) interrupted: bool,
    /// There was no room for more passes, and time was left.
    pub(super) full: bool,
}

/// Plain passes; the seconds of each.
pub(super) fn plain(step: &mut Prepared<'_, '_>, setup: &Setup<'_>, steps: usize) -> Vec<f64> {
    let until = Until(setup.cancelled);
    let mut seconds = Vec::with_capacity(steps);
    for _ in 0..steps {
        let start = Instant::now();
        step.run(&until).expect("a capture is of the CPU, whose walk gives no error");
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds
}

/// Passes with spans and nothing else.
pub(super) fn spans_alone(step: &mut Prepared<'_, '_>, setup: &Setup<'_>, steps: usize) -> Spans {
    run(step, setup, setup.traced(steps), Limit { steps, time: None })
}

/// Passes with spans, samples and counters. What watching needs is made before the first and read after the last.
pub(super) fn captured(step: &mut Prepared<'_, '_>, setup: &Setup<'_>, limit: Limit) -> Stretch {
    let traced = setup.traced(limit.steps);
    let mut counters = setup.counters.then(|| Counters::open(PerfEvents, Machine::this(), &setup.workers));
    let sampler = Sampler::start(&setup.threads, setup.frequency_hz);
    if let Some(counters) = &mut counters {
        counters.enable(true);
    }
    let Spans { traced, times, interrupted } = run(step, setup, traced, limit);
    if let Some(counters) = &mut counters {
        counters.enable(false);
    }
    let sampled = sampler.stop();
    let counters = counters.map_or_else(not_asked, Counters::read);
    let origin_ns = monotonic::at_ns(traced.origin());
    let last = times.last().map_or(0, |(_, end)| *end);
    let full = !interrupted && limit.time.is_some_and(|time| u128::from(last) < time.as_nanos());
    let step = |(start, end): (u64, u64)| RawStep { start_ns: origin_ns + start, end_ns: origin_ns + end };
    Stretch { origin_ns, steps: times.into_iter().map(step).collect(), sampled, counters, interrupted, full, traced }
}

fn run(step: &mut Prepared<'_, '_>, setup: &Setup<'_>, traced: Traced, limit: Limit) -> Spans {
    let mut spans =
        // Written once now, so that no page is met for the first time during the passes.
        Spans { traced, times: vec![(1, 1); limit.steps], interrupted: false };
    spans.times.clear();
    let time_ns = limit.time.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let until = Until(setup.cancelled);
    let origin = spans.traced.origin();
    let now = || origin.elapsed().as_nanos() as u64;
    for _ in 0..limit.steps {
        let start = now();
        step.run(&Both(&until, &spans.traced)).expect("a capture is of the CPU, whose walk gives no error");
        let end = now();
        // Whether the pass was cut short cannot be told: it does not count.
        if setup.is_cancelled() {
            spans.interrupted = true;
            break;
        }
        spans.times.push((start, end));
        if end - spans.times[0].0 >= time_ns {
            break;
        }
    }
    spans
}
