//! What is noted on the main thread during a request, in room reserved before it; and the plan that says how much room.
//! Not here: what workers note, which is an observer's (`ops::Traced`).

use super::TimelineRequest;
use super::request::{DECODE_STEP, NOTES_PER_PASS, NOTES_PER_REQUEST, PREFILL_STEP};
use crate::monotonic::now_ns;
use model::Prepared;
use ops::Observer;
use record::Phase;
use record::timeline::PlannedCalls;
use record::trace::Category;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A kind of the main thread's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct What {
    pub(super) name: &'static str,
    pub(super) category: Category,
}

/// Takes notes, or not.
pub(super) trait Notebook {
    /// The time, for a later [`Notebook::note`].
    fn now(&self) -> u64;
    /// `what` lasted from `start_ns` to `end_ns`.
    fn span(&mut self, what: What, start_ns: u64, end_ns: u64);
    /// `what` lasted from `start_ns` until now.
    #[inline]
    fn note(&mut self, what: What, start_ns: u64) {
        self.span(what, start_ns, self.now());
    }
    /// This pass is about to run.
    fn pass(&mut self, step: &Prepared<'_, '_>);
    /// A token is there; so many bytes of keys and values are held.
    fn token(&mut self, kv_bytes: usize);
}

/// For requests without tracing.
pub(super) struct Silent;

impl Notebook for Silent {
    #[inline]
    fn now(&self) -> u64 {
        0
    }
    #[inline]
    fn span(&mut self, _: What, _: u64, _: u64) {}
    #[inline]
    fn pass(&mut self, _: &Prepared<'_, '_>) {}
    #[inline]
    fn token(&mut self, _: usize) {}
}

/// A slice of the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) what: What,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

/// A traced request's notes.
pub(super) struct Notes {
    pub(super) notes: Vec<Note>,
    /// When each token was there, and the bytes of keys and values then.
    pub(super) tokens: Vec<(u64, u64)>,
    /// Notes that found no room.
    pub(super) dropped: u64,
}

impl Notes {
    /// Room for what the plan says.
    pub(super) fn new(plan: &Plan, request: &TimelineRequest<'_>) -> Notes {
        let room = NOTES_PER_PASS * plan.passes.len() + NOTES_PER_REQUEST;
        let what = What { name: "", category: Category::Request };
        // Written once now, so that no page is met for the first time during the request.
        let mut notes = vec![Note { what, start_ns: 1, end_ns: 1 }; room];
        let mut tokens = vec![(1, 1); request.output_tokens];
        notes.clear();
        tokens.clear();
        Notes { notes, tokens, dropped: 0 }
    }
}

impl Notes {
    /// When each step of the request began and ended, in order, and whether it counts: prefill passes where the prefill is traced, else
    /// decode steps.
    pub(super) fn steps(&self, phase: Phase) -> Vec<((u64, u64), bool)> {
        let counts = if phase == Phase::Prefill { PREFILL_STEP } else { DECODE_STEP };
        let steps = self.notes.iter().filter(|note| [PREFILL_STEP, DECODE_STEP].contains(&note.what));
        steps.map(|note| ((note.start_ns, note.end_ns), note.what == counts)).collect()
    }
}

impl Notebook for Notes {
    #[inline]
    fn now(&self) -> u64 {
        now_ns()
    }

    #[inline]
    fn span(&mut self, what: What, start_ns: u64, end_ns: u64) {
        if self.notes.len() < self.notes.capacity() {
            self.notes.push(Note { what, start_ns, end_ns });
        } else {
            self.dropped += 1;
        }
    }

    #[inline]
    fn pass(&mut self, _: &Prepared<'_, '_>) {}

    #[inline]
    fn token(&mut self, kv_bytes: usize) {
        if self.tokens.len() < self.tokens.capacity() {
            self.tokens.push((now_ns(), kv_bytes as u64));
        }
    }
}

/// One call of a program, as a trace shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedCall {
    /// Slot and operator.
    pub(super) name: String,
    pub(super) layer: Option<usize>,
    pub(super) kernel: String,
    pub(super) barrier: bool,
}

/// Which calls a request makes, pass by pass, and on which threads.
pub(super) struct Plan {
    programs: Vec<Vec<PlannedCall>>,
    /// Of each pass, which program.
    passes: Vec<usize>,
    threads: Vec<u32>,
    workers: usize,
}

impl Plan {
    /// For a device that runs the programs itself, told what to do by thread `main`.
    pub(super) fn of_device(programs: Vec<Vec<PlannedCall>>, passes: Vec<usize>, main: u32) -> Plan {
        Plan { programs, passes, threads: vec![main], workers: 0 }
    }

    /// The program of a pass.
    pub(super) fn program(&self, pass: usize) -> &[PlannedCall] {
        self.passes.get(pass).map_or(&[], |program| &self.programs[*program])
    }

    /// Threads that walk the programs: none where a device runs them.
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// The operating system's numbers of the workers' threads, the main thread's first.
    pub(super) fn threads(&self) -> &[u32] {
        &self.threads
    }

    /// Calls of all passes.
    pub(super) fn calls(&self) -> usize {
        self.passes.iter().map(|program| self.programs[*program].len()).sum()
    }

    /// How often each operator is called in these passes.
    pub(super) fn planned(&self, passes: Range<usize>) -> Vec<PlannedCalls> {
        let mut planned: Vec<PlannedCalls> = Vec::new();
        for call in passes.flat_map(|pass| self.program(pass)) {
            match planned.iter_mut().find(|known| known.operator == call.name) {
                Some(known) => known.calls += 1,
                None => planned.push(PlannedCalls { operator: call.name.clone(), calls: 1 }),
            }
        }
        planned
    }
}

/// Writes a [`Plan`] down while a request runs.
#[derive(Default)]
pub(super) struct Planner {
    programs: Vec<Vec<PlannedCall>>,
    passes: Vec<usize>,
}

impl Planner {
    pub(super) fn plan(self, threads: &ThreadIds) -> Plan {
        let threads = threads.threads();
        Plan { programs: self.programs, passes: self.passes, workers: threads.len(), threads }
    }

    /// Where a device runs the programs.
    pub(super) fn plan_of_device(self) -> Plan {
        let main = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        Plan::of_device(self.programs, self.passes, main)
    }
}

impl Notebook for Planner {
    fn now(&self) -> u64 {
        0
    }

    fn span(&mut self, _: What, _: u64, _: u64) {}

    fn pass(&mut self, step: &Prepared<'_, '_>) {
        let named = |slot: &str, operator: &str| {
            if slot == operator { slot.to_owned() } else { format!("{slot} ({operator})") }
        };
        let program: Vec<PlannedCall> = step
            .bound()
            .calls()
            .iter()
            .map(|call| PlannedCall {
                name: named(call.slot, call.kernel.operator),
                layer: call.layer,
                kernel: call.kernel.label(),
                barrier: call.barrier_before,
            })
            .collect();
        // From the end, because decode steps all have the last one's.
        let known = self.programs.iter().rposition(|known| *known == program);
        self.passes.push(known.unwrap_or(self.programs.len()));
        if known.is_none() {
            self.programs.push(program);
        }
    }

    fn token(&mut self, _: usize) {}
}

/// Learns which thread each worker is.
pub(crate) struct ThreadIds(Vec<AtomicU32>);

impl ThreadIds {
    pub(crate) fn new(workers: usize) -> ThreadIds {
        ThreadIds((0..workers).map(|_| AtomicU32::new(0)).collect())
    }

    /// By worker; 0 for one that has not walked yet.
    pub(crate) fn threads(&self) -> Vec<u32> {
        self.0.iter().map(|id| id.load(Relaxed)).collect()
    }
}

impl Observer for ThreadIds {
    fn arrives(&self, worker: usize, _: usize) {
        if self.0[worker].load(Relaxed) == 0 {
            self.0[worker].store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Relaxed);
        }
    }
}
