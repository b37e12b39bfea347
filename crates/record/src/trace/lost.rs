//! Time that a thread lost although it wanted to run: to the hypervisor, to another thread, to a page that was brought in.
//! Not here: how that is known (`timeline/evidence.rs`), and what it comes to in a lane (`timeline/partition.rs`).

use crate::trace::Trace;

/// A thread lost this stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    pub thread: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    pub why: LossKind,
}

/// What a thread lost time to. Where evidence overlaps, the first of these counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LossKind {
    Steal,
    Descheduled,
    PageFault,
}

impl LossKind {
    pub const ALL: [LossKind; 3] = [LossKind::Steal, LossKind::Descheduled, LossKind::PageFault];

    /// The spelling in every format.
    pub const fn name(self) -> &'static str {
        match self {
            LossKind::Steal => "steal",
            LossKind::Descheduled => "descheduled",
            LossKind::PageFault => "page fault",
        }
    }
}

impl Trace {
    /// What a thread lost inside the window, disjoint and in order.
    pub fn lost_by(&self, thread: u32) -> Vec<Lost> {
        let own: Vec<_> = self
            .lost
            .iter()
            .filter(|lost| lost.thread == thread)
            .map(|lost| (lost.start_ns, lost.end_ns, lost.why))
            .collect();
        let segments = crate::timeline::smallest(&own, (self.start_ns, self.end_ns));
        segments
            .into_iter()
            .map(|segment| Lost { thread, start_ns: segment.start_ns, end_ns: segment.end_ns, why: segment.value })
            .collect()
    }
}
