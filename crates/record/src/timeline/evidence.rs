//! Evidence that a thread had no processor, or waited for a page, although it wanted to run: made of what the kernel tells.
//! Not here: reading the kernel's events, and what the evidence comes to in a lane.

use crate::trace::{Category, CpuSamples, Lane, LossKind, Lost, Names, SliceRef, Trace};
use std::collections::HashMap;

/// A thread was off its processor, as context switches tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffProcessor {
    pub thread: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    /// It could have run on: another thread was preferred.
    pub preempted: bool,
}

/// A thread met a page that was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub thread: u32,
    pub at_ns: u64,
}

/// The hypervisor ran something else on a thread's processor for `stolen_ns` of the time between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StealReading {
    /// Pinned to the processor that was read; any thread, where the reading is the mean of all processors.
    pub thread: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    pub stolen_ns: u64,
}

/// Kernel functions that bring a page in, on x86-64 and AArch64.
const FAULT_HANDLERS: [&str; 6] =
    ["asm_exc_page_fault", "exc_page_fault", "do_user_addr_fault", "handle_mm_fault", "do_page_fault", "do_mem_abort"];

/// What context switches and faults say.
///
/// A preempted stretch is time descheduled. One that the thread gave up itself counts inside an operator, which makes no
/// system call: then it waited for a page if it met a fault in that operator before, and was descheduled otherwise. Given up at a
/// barrier, it was waiting until the last worker came, which is no loss of its own; what it then still had
/// to wait for is a processor, if that took longer than waking up does. So it is from a dispatch to the slice that the dispatch's
/// flow leads to. Given up elsewhere it is no loss.
pub fn from_switches(trace: &Trace, off: &[OffProcessor], faults: &[Fault]) -> Vec<Lost> {
    let mut faults = faults.to_vec();
    faults.sort_unstable_by_key(|fault| (fault.thread, fault.at_ns));
    let mut operators: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
    for lane in trace.lanes.iter().filter(|lane| lane.kind.is_device()) {
        if let Some(thread) = lane.kind.thread() {
            operators.entry(thread).or_default().extend(outermost_operators(lane));
        }
    }
    operators.values_mut().for_each(|list| list.sort_unstable());
    let released = releases(trace);
    let mut found = Vec::new();
    for &OffProcessor { thread, start_ns, end_ns, preempted } in off {
        if preempted {
            found.push(Lost { thread, start_ns, end_ns, why: LossKind::Descheduled });
            continue;
        }
        let list = operators.get(&thread).map_or(&[][..], Vec::as_slice);
        let first = list.partition_point(|&(_, end)| end <= start_ns);
        for &(start, end) in list[first..].iter().take_while(|&&(start, _)| start < end_ns) {
            let until = end_ns.min(end);
            let first = faults.partition_point(|fault| (fault.thread, fault.at_ns) < (thread, start));
            let faulted = faults.get(first).is_some_and(|fault| fault.thread == thread && fault.at_ns <= until);
            let why = if faulted { LossKind::PageFault } else { LossKind::Descheduled };
            found.push(Lost { thread, start_ns: start_ns.max(start), end_ns: until, why });
        }
        let list = released.get(&thread).map_or(&[][..], Vec::as_slice);
        let first = list.partition_point(|&(_, end)| end <= start_ns);
        for &(release, end) in list[first..].iter().take_while(|&&(release, _)| release < end_ns) {
            let (from, until) = (start_ns.max(release), end_ns.min(end));
            if until > from + WAKING_NS {
                found.push(Lost { thread, start_ns: from, end_ns: until, why: LossKind::Descheduled });
            }
        }
    }
    found
}

/// A thread that is woken has its processor by then, unless another one has it.
const WAKING_NS: u64 = 100_000;

/// When each thread could have gone on, and when it did: from the moment at which the last worker came to a barrier to the end of
/// its own wait there, and from a dispatch to its first slice. Disjoint and in order.
fn releases(trace: &Trace) -> HashMap<u32, Vec<(u64, u64)>> {
    let mut found: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
    for meeting in &trace.meetings {
        for wait in &meeting.waits {
            let Some(thread) = trace.lanes[wait.lane].kind.thread() else { continue };
            let slice = &trace.lanes[wait.lane].slices[wait.slice];
            found.entry(thread).or_default().push((meeting.arrived_ns.max(slice.start_ns), slice.end_ns));
        }
    }
    let slice = |at: SliceRef| trace.lanes.get(at.lane)?.slices.get(at.slice);
    for flow in &trace.flows {
        let (Some(from), Some(to)) = (slice(flow.from), slice(flow.to)) else { continue };
        if let Some(thread) = trace.lanes[flow.to.lane].kind.thread()
            && from.start_ns < to.start_ns
        {
            found.entry(thread).or_default().push((from.start_ns, to.start_ns));
        }
    }
    found.values_mut().for_each(|list| list.sort_unstable());
    found
}

/// (start, end) of the lane's operator slices that are inside no other operator slice: disjoint and in order.
fn outermost_operators(lane: &Lane) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for slice in lane.slices.iter().filter(|slice| slice.category == Category::Operator) {
        if found.last().is_none_or(|&(_, end)| slice.start_ns >= end) {
            found.push((slice.start_ns, slice.end_ns));
        }
    }
    found
}

/// Samples whose stack is inside the kernel's handling of a page fault: each stands for its weight of time before it, but for what
/// lies before the first fault that the thread is known to have met in that time.
pub fn from_samples(samples: &CpuSamples, names: &Names, faults: &[Fault]) -> Vec<Lost> {
    let mut faults = faults.to_vec();
    faults.sort_unstable_by_key(|fault| (fault.thread, fault.at_ns));
    let start = |sample: &crate::trace::Sample| {
        let start_ns = sample.at_ns.saturating_sub(sample.weight_ns);
        let first = faults.partition_point(|fault| (fault.thread, fault.at_ns) < (sample.thread, start_ns));
        let met = faults.get(first).filter(|met| met.thread == sample.thread && met.at_ns <= sample.at_ns);
        met.map_or(start_ns, |met| met.at_ns)
    };
    let handling = |frame: &crate::trace::Frame| FAULT_HANDLERS.contains(&names.text(frame.function));
    let stacks: Vec<bool> = samples
        .stacks()
        .iter()
        .map(|stack| stack.iter().filter_map(|frame| samples.frames().get(frame.0 as usize)).any(handling))
        .collect();
    let faulting = |sample: &&crate::trace::Sample| stacks.get(sample.stack.0 as usize).copied().unwrap_or(false);
    samples
        .samples
        .iter()
        .filter(faulting)
        .map(|sample| Lost {
            thread: sample.thread,
            start_ns: start(sample),
            end_ns: sample.at_ns,
            why: LossKind::PageFault,
        })
        .collect()
}

/// Readings in which at least half of the processor's time was stolen. Where in a reading it was stolen is not known, so a
/// smaller part is not placed.
pub fn from_steal(readings: &[StealReading]) -> Vec<Lost> {
    let most = |reading: &&StealReading| {
        let wall = reading.end_ns.saturating_sub(reading.start_ns);
        wall > 0 && reading.stolen_ns >= wall - wall / 2
    };
    let lost = |reading: &StealReading| Lost {
        thread: reading.thread,
        start_ns: reading.start_ns,
        end_ns: reading.end_ns,
        why: LossKind::Steal,
    };
    readings.iter().filter(most).map(lost).collect()
}
