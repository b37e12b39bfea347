//! Walking a bound program: every worker goes through all calls, does its share of each and meets the others at the
//! barriers. An observer decides which calls run and what is noted around them; the plain walk has none of it compiled in.
//! Not here: which calls need a barrier (`bind.rs`), and records made of spans. Unsafe code is in the inner module `ring` alone.

use crate::bind::{Bound, BoundCall};
use crate::invocation::Invocation;
use crate::operator::Group;
use crate::step::Step;
use crate::workers::Workers;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Looks on from outside while workers walk. All methods default to nothing.
pub trait Observer: Sync {
    /// Whether this call runs.
    #[inline]
    fn wants(&self, _call: &BoundCall) -> bool {
        true
    }

    /// Whether a call that was wanted is still computed. Once this turns false it stays so: barriers are kept, so that the
    /// workers need not agree on the moment, and the step's results are worthless.
    #[inline]
    fn goes_on(&self) -> bool {
        true
    }

    /// Worker `worker` is about to walk through the program.
    #[inline]
    fn begins(&self, _worker: usize) {}

    /// Worker `worker` comes to call `index` (before its barrier).
    #[inline]
    fn arrives(&self, _worker: usize, _index: usize) {}

    /// It starts its share, after a barrier if `waited`.
    #[inline]
    fn starts(&self, _worker: usize, _index: usize, _waited: bool) {}

    /// It has done its share.
    #[inline]
    fn ends(&self, _worker: usize, _index: usize, _call: &BoundCall) {}
}

/// Observes nothing: the walk that requests are served by.
pub struct Plain;
impl Observer for Plain {}

/// The plain walk, given up soon after the flag becomes true: then nothing of the step may be used.
pub struct Until<'a>(pub &'a AtomicBool);
impl Observer for Until<'_> {
    #[inline]
    fn goes_on(&self) -> bool {
        !self.0.load(Relaxed)
    }
}

/// Two observers at once: a call runs, and goes on, if both want it to; the first is told before the second.
pub struct Both<'a, A, B>(pub &'a A, pub &'a B);
impl<A: Observer, B: Observer> Observer for Both<'_, A, B> {
    #[inline]
    fn wants(&self, call: &BoundCall) -> bool {
        self.0.wants(call) && self.1.wants(call)
    }

    #[inline]
    fn goes_on(&self) -> bool {
        self.0.goes_on() && self.1.goes_on()
    }

    #[inline]
    fn begins(&self, worker: usize) {
        self.0.begins(worker);
        self.1.begins(worker);
    }

    #[inline]
    fn arrives(&self, worker: usize, index: usize) {
        self.0.arrives(worker, index);
        self.1.arrives(worker, index);
    }

    #[inline]
    fn starts(&self, worker: usize, index: usize, waited: bool) {
        self.0.starts(worker, index, waited);
        self.1.starts(worker, index, waited);
    }

    #[inline]
    fn ends(&self, worker: usize, index: usize, call: &BoundCall) {
        self.0.ends(worker, index, call);
        self.1.ends(worker, index, call);
    }
}

/// Runs only the calls of one group, at their real operands; `None` runs no call at all (what dispatch itself costs).
pub struct Only(pub Option<Group>);
impl Observer for Only {
    #[inline]
    fn wants(&self, call: &BoundCall) -> bool {
        Some(call.group) == self.0
    }
}

/// Runs only the calls that the predicate picks, at their real operands. Every worker asks it about every call, so it must
/// answer alike however often it is asked.
pub struct Where<F>(pub F);
impl<F: Fn(&BoundCall) -> bool + Sync> Observer for Where<F> {
    #[inline]
    fn wants(&self, call: &BoundCall) -> bool {
        (self.0)(call)
    }
}

/// One worker's passage through one call, in nanoseconds since the trace's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub call: u32,
    /// It reached the call; until `start_ns` it waited at the barrier, if there is one.
    pub arrive_ns: u64,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// Notes a [`Span`] per call and worker, in rings reserved beforehand; a full ring drops and counts.
///
/// The clock is what a span costs, so it is read as seldom as the times allow: once per call, and once more after a barrier. A call
/// is reached when the one before it ended, and starts when it is reached unless there is a barrier between.
pub struct Traced {
    origin: Instant,
    rings: Vec<ring::Ring>,
}

impl Traced {
    /// Room for `spans` spans per worker.
    pub fn new(workers: usize, spans: usize) -> Traced {
        Traced { origin: Instant::now(), rings: (0..workers).map(|_| ring::Ring::new(spans)).collect() }
    }

    /// What the spans' times count from.
    pub fn origin(&self) -> Instant {
        self.origin
    }

    /// The spans of one worker so far, in order, and how many were dropped for want of room.
    pub fn spans(&mut self, worker: usize) -> (&[Span], u64) {
        self.rings[worker].contents()
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

impl Observer for Traced {
    #[inline]
    fn begins(&self, worker: usize) {
        self.rings[worker].interrupt();
    }

    #[inline]
    fn arrives(&self, worker: usize, index: usize) {
        let ring = &self.rings[worker];
        let call = index as u32;
        let at = match ring.open_span() {
            Some(before) if before.call.wrapping_add(1) == call => before.end_ns,
            _ => self.now(),
        };
        ring.open(Span { call, arrive_ns: at, start_ns: at, end_ns: at });
    }

    #[inline]
    fn starts(&self, worker: usize, _index: usize, waited: bool) {
        if waited {
            let now = self.now();
            self.rings[worker].update(|span| span.start_ns = now);
        }
    }

    #[inline]
    fn ends(&self, worker: usize, _index: usize, _call: &BoundCall) {
        let now = self.now();
        self.rings[worker].update(|span| span.end_ns = now);
    }
}

/// Rings that one worker each writes.
mod ring {
    #![allow(unsafe_code, reason = "each ring is written by one worker only")]

    use super::Span;
    use std::cell::UnsafeCell;

    struct Inner {
        spans: Vec<Span>,
        open: bool,
        dropped: u64,
    }

    pub(super) struct Ring(UnsafeCell<Inner>);

    // SAFETY: during a walk only the worker of this ring's number calls anything but `contents`, which takes `&mut`.
    unsafe impl Sync for Ring {}

    impl Ring {
        pub(super) fn new(spans: usize) -> Ring {
            // Written once now, so that no page is met for the first time during the walk.
            let mut reserved = vec![Span { call: u32::MAX, ..Span::default() }; spans];
            reserved.clear();
            Ring(UnsafeCell::new(Inner { spans: reserved, open: false, dropped: 0 }))
        }

        /// What comes next does not follow what was before.
        #[inline]
        pub(super) fn interrupt(&self) {
            // SAFETY: this worker alone uses the ring during the walk (see the impl of Sync).
            let inner = unsafe { &mut *self.0.get() };
            inner.open = false;
        }

        /// The span before, unless it was dropped or does not follow.
        #[inline]
        pub(super) fn open_span(&self) -> Option<Span> {
            // SAFETY: as in `interrupt`.
            let inner = unsafe { &*self.0.get() };
            if inner.open { inner.spans.last().copied() } else { None }
        }

        #[inline]
        pub(super) fn open(&self, span: Span) {
            // SAFETY: as in `interrupt`.
            let inner = unsafe { &mut *self.0.get() };
            inner.open = inner.spans.len() < inner.spans.capacity();
            if inner.open {
                inner.spans.push(span);
            } else {
                inner.dropped += 1;
            }
        }

        #[inline]
        pub(super) fn update(&self, change: impl FnOnce(&mut Span)) {
            // SAFETY: as in `interrupt`.
            let inner = unsafe { &mut *self.0.get() };
            if inner.open
                && let Some(span) = inner.spans.last_mut()
            {
                change(span);
            }
        }

        pub(super) fn contents(&mut self) -> (&[Span], u64) {
            let inner = self.0.get_mut();
            (&inner.spans, inner.dropped)
        }
    }
}

/// Runs `bound` once for `step`. The result is [`Bound::output`].
///
/// # Panics
/// If `workers` is not the number the program was bound for, or the step does not fit the program (rows, layers' caches).
pub fn run<O: Observer>(bound: &mut Bound, workers: &Workers, step: &Step<'_>, observer: &O) {
    assert_eq!(bound.workers(), workers.count(), "the program was bound for another number of workers");
    assert_eq!(bound.program().rows, step.tokens.len(), "the program was lowered for another number of rows");
    let covered = step.sequences.iter().try_fold(0, |row, s| (s.first_row == row).then_some(row + s.rows));
    assert_eq!(covered, Some(step.tokens.len()), "sequences cover the rows in order");
    let context = bound.program().context;
    assert!(
        step.sequences.iter().all(|s| s.offset + s.rows <= context),
        "the step exceeds the program's context {context}"
    );
    let bound = &*bound;
    for taken in bound.calls().iter().filter_map(|call| call.taken.as_ref()) {
        taken.store(0, Relaxed);
    }
    workers.run(&|worker| walk(bound, workers, step, observer, worker));
}

fn walk<O: Observer>(bound: &Bound, workers: &Workers, step: &Step<'_>, observer: &O, worker: usize) {
    let (scratch, scratch_bytes) = bound.scratch(worker);
    let mut skipped_barrier = false;
    let invocation =
        |call| Invocation { worker, workers: workers.count(), step, call, scratch, scratch_bytes, queue: None };
    // What this worker has asked for while it waited: so many pieces of this call's.
    let (mut fetched_for, mut pieces) = (usize::MAX, 0);
    observer.begins(worker);
    for (index, call) in bound.calls().iter().enumerate() {
        // A skipped call leaves its barrier to the next one that runs: it may order calls on both sides of it.
        if !observer.wants(call) {
            skipped_barrier |= call.barrier_before;
            continue;
        }
        observer.arrives(worker, index);
        let waits = call.barrier_before || skipped_barrier;
        if waits {
            match call.ahead.filter(|ahead| observer.wants(&bound.calls()[*ahead])) {
                Some(ahead) => {
                    if fetched_for != ahead {
                        (fetched_for, pieces) = (ahead, 0);
                    }
                    let later = &bound.calls()[ahead];
                    let fetch = later.kernel.ahead.expect("bind looks for calls that name something");
                    workers.barrier_while(|| {
                        let more = fetch(&invocation(later), pieces);
                        pieces += usize::from(more);
                        more
                    });
                }
                None => workers.barrier(),
            }
            skipped_barrier = false;
        }
        observer.starts(worker, index, waits);
        if !observer.goes_on() {
            continue;
        }
        (call.kernel.run)(&invocation(call));
        observer.ends(worker, index, call);
        if worker == 0 {
            call.dispatches.store(call.dispatches.load(Relaxed) + 1, Relaxed);
        }
    }
}
