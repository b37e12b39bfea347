//! A trace in memory: what every lane did when, on one monotonic clock in nanoseconds, beside counters and CPU samples.
//! Not here: recording one (`probe`), what it comes to (`timeline.rs`), and the check of its rules (`trace/verify.rs`).

mod chrome;
mod firefox;
mod folded;
mod json;
mod lost;
mod names;
mod perfetto;
pub(crate) mod protobuf;
mod samples;
mod slice;
mod speedscope;
mod verify;

pub use chrome::{MAX_CHROME_EVENTS, write_chrome};
pub use firefox::write_firefox;
pub use folded::write_folded;
pub use lost::{LossKind, Lost};
pub use names::{Name, Names};
pub use perfetto::{WriteError, write_perfetto};
pub use samples::{CpuSamples, Frame, FrameId, Sample, StackId};
pub use slice::{Category, Instant, Slice, Value};
pub use speedscope::write_speedscope;
pub use verify::{TraceError, verify};

/// Everything recorded between `start_ns` and `end_ns`.
///
/// All times are nanoseconds of one monotonic clock. The rules that readers and writers of a trace rely on (order, nesting, no
/// dangling reference) are checked by [`verify`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub process: Process,
    /// Every name in the trace, once.
    pub names: Names,
    /// The window that was recorded.
    pub start_ns: u64,
    pub end_ns: u64,
    /// At most one of kind [`LaneKind::Main`].
    pub lanes: Vec<Lane>,
    pub flows: Vec<Flow>,
    pub meetings: Vec<Meeting>,
    /// By time of its start; what lies outside the window counts for nothing, and what overlaps once.
    pub lost: Vec<Lost>,
    pub counters: Vec<Counter>,
    pub samples: CpuSamples,
}

/// The process that was traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    pub name: String,
}

/// One sequence of work in which at most one thing happens at a time, at any depth.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    pub kind: LaneKind,
    /// What a viewer shows, e.g. `worker 1`.
    pub name: String,
    /// By start; of two that start together the longer first. Each lies inside those that are still open at its start.
    pub slices: Vec<Slice>,
    /// By time.
    pub instants: Vec<Instant>,
    /// Slices that were not recorded for want of room: above zero the lane is incomplete.
    pub dropped: u64,
}

/// What a lane belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneKind {
    /// The thread that serves the request: input, dispatch, choice of tokens, text.
    Main { thread: u32 },
    /// A CPU worker; number 0 runs on the main thread and still has a lane of its own.
    Worker { worker: u32, thread: u32 },
    /// A queue of a device, ordered by itself.
    Stream { device: u32, stream: u32 },
}

impl LaneKind {
    /// Whether the model's operators run here.
    pub fn is_device(self) -> bool {
        !matches!(self, LaneKind::Main { .. })
    }

    /// The operating system's thread behind the lane, if it is one's.
    pub fn thread(self) -> Option<u32> {
        match self {
            LaneKind::Main { thread } | LaneKind::Worker { thread, .. } => Some(thread),
            LaneKind::Stream { .. } => None,
        }
    }

    /// The spelling in records.
    pub const fn name(self) -> &'static str {
        match self {
            LaneKind::Main { .. } => "main",
            LaneKind::Worker { .. } => "worker",
            LaneKind::Stream { .. } => "stream",
        }
    }
}

/// A slice by its place: `trace.lanes[lane].slices[slice]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceRef {
    pub lane: usize,
    pub slice: usize,
}

/// One slice caused another: a dispatch and what a worker did for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Not zero, and of this flow alone.
    pub id: u64,
    pub from: SliceRef,
    pub to: SliceRef,
}

/// A barrier: who came to it last, and the slices of those who waited, at most one of each lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    pub last_lane: usize,
    /// When it came: no slice below begins later or ends earlier.
    pub arrived_ns: u64,
    /// Barrier slices; the last to come may have one too.
    pub waits: Vec<SliceRef>,
}

/// A quantity over time; each value holds until the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    pub name: String,
    pub unit: CounterUnit,
    /// (time in ns, finite value), by time.
    pub points: Vec<(u64, f64)>,
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterUnit {
    Bytes,
    TokensPerSecond,
    /// 0 to 1, e.g. the part of the time in which a runnable thread had no processor.
    Share,
    Count,
}

impl CounterUnit {
    /// The spelling that viewers show.
    pub const fn name(self) -> &'static str {
        match self {
            CounterUnit::Bytes => "B",
            CounterUnit::TokensPerSecond => "tok/s",
            CounterUnit::Share => "share",
            CounterUnit::Count => "count",
        }
    }
}

impl Trace {
    /// Length of the window.
    pub fn wall_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    /// The main thread's lane.
    pub fn main_lane(&self) -> Option<usize> {
        self.lanes.iter().position(|lane| matches!(lane.kind, LaneKind::Main { .. }))
    }

    /// Lanes that operators run on.
    pub fn device_lanes(&self) -> impl Iterator<Item = usize> + '_ {
        self.lanes.iter().enumerate().filter(|(_, lane)| lane.kind.is_device()).map(|(index, _)| index)
    }

    /// Slices dropped on all lanes.
    pub fn dropped(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.dropped).sum()
    }

    /// Every thread of the operating system that has a lane or a sample, with a name: its first lane's, if it has one.
    pub fn threads(&self) -> Vec<(u32, String)> {
        let mut threads: Vec<(u32, String)> = Vec::new();
        let lanes = self.lanes.iter().filter_map(|lane| Some((lane.kind.thread()?, lane.name.clone())));
        for (thread, name) in lanes {
            if threads.iter().all(|(known, _)| *known != thread) {
                threads.push((thread, name));
            }
        }
        let named = threads.len();
        for sample in &self.samples.samples {
            if threads.iter().all(|(known, _)| *known != sample.thread) {
                threads.push((sample.thread, format!("thread {}", sample.thread)));
            }
        }
        threads[named..].sort_unstable();
        threads
    }
}
