//! What a device did, launch by launch, as its own profiler saw it: the form in which an observer gets it.
//! Not here: recording it (`ops-cuda`), and what it comes to (`probe`).

/// One launch as it was put into the device's queue: the same in every run that replays it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The function's name on the device.
    pub kernel: String,
    /// Calls of the program that it serves, by number; none for what the device adds to a run, such as the step's data.
    pub calls: Vec<u32>,
}

/// One run, or what was launched between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index into [`Recording::lists`].
    pub list: usize,
    /// Whether it ran a program; other launches are the device's own.
    pub program: bool,
    /// Whether it was replayed as one graph.
    pub graph: bool,
}

/// When a launch ran, in nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSpan {
    /// Index into [`Recording::runs`], and of the launch in that run's list.
    pub run: usize,
    pub launch: usize,
    pub device: u32,
    pub stream: u32,
    /// It may start before the launch before it has ended, and then waits for it inside.
    pub start_ns: u64,
    pub end_ns: u64,
}

/// What a device records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    Nothing,
    /// Every launch, those in replayed graphs among them.
    Launches,
    /// Each replayed graph as a whole, which costs next to nothing.
    Graphs,
    /// The calls of each run alone, for [`crate::Device::calls_ns`]: they are put into the stream while something before them still runs
    /// there, so that neither the host nor the way of the step's data is in their time.
    Calls,
}

/// Everything that ran while a device was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Each different list of launches once.
    pub lists: Vec<Vec<Launch>>,
    /// In the order in which they ran.
    pub runs: Vec<Run>,
    /// By start: those that could be told to be a launch of a run.
    pub spans: Vec<LaunchSpan>,
    /// Of each run of a program how many nanoseconds its graph took, if it was replayed as one; where graphs were recorded.
    pub graphs: Vec<Option<u64>>,
    /// Kernels that the profiler recorded, whether or not they could be told apart.
    pub kernels: u64,
    /// Records that the profiler dropped.
    pub dropped: u64,
    /// From which launch on kernels could not be told apart, and why.
    pub problem: Option<String>,
    /// Name and version of the profiler.
    pub profiler: String,
    /// How far the profiler's clock and the monotonic one may be apart, and by how much they moved against each other.
    pub clock_error_ns: u64,
    pub clock_drift_ns: i64,
}

impl Recording {
    /// Launches of all runs.
    pub fn launched(&self) -> u64 {
        self.runs.iter().map(|run| self.lists[run.list].len() as u64).sum()
    }
}

/// A device at one moment, by its own sensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    pub clock_mhz: u32,
    pub memory_clock_mhz: u32,
    pub celsius: u32,
    pub milliwatts: u32,
    /// Why its clocks are lower than they could be, in words; nothing where they are not.
    pub held_back: Vec<&'static str>,
}
