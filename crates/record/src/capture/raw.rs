//! The raw files of a trace directory, one type per file or line: what a sampler and the workers' spans noted, unresolved.
//! Not here: writing the directory and its manifest, and anything that is computed from it.
//!
//! | file | holds |
//! |---|---|
//! | `calls.json` | `[RawCall]`, by call number |
//! | `threads.json` | `[RawThread]` |
//! | `steps.jsonl` | a [`RawStep`] per line: the captured passes in order |
//! | `spans.jsonl` | a [`RawSpans`] per line: one worker's calls in one pass |
//! | `samples.jsonl` | a [`RawSample`] per line, by time |
//! | `kernel-functions.json` | `[KernelFunction]`: names of the operating system's functions that samples are in |
//! | `executables.json` | `[RawExecutable]`: every mapped file that a sample is in |
//! | `maps.txt` | `/proc/self/maps` of the captured process |
//! | `sources.sha256` | what the executable was compiled from: sorted `sha256`, two spaces, path from the repository's root |
//! | `counters.json` | `[RawCounter]` |
//! | `callgrind.out` | only with `--counters callgrind`: as valgrind wrote it |
//!
//! Of a pass on a GPU there are, beside `calls.json` and `sources.sha256`:
//!
//! | file | holds |
//! |---|---|
//! | `profile.json` | a [`RawProfile`]: what was launched, and how it was profiled or why not |
//! | `ncu-raw.csv.gz`, `ncu-sass.csv.gz`, `ncu-source.csv.gz` | pages of Nsight Compute as it printed them: counters by launch, instructions, source lines |
//!
//! Times are nanoseconds of the monotonic clock.

use crate::known::Known;
use crate::wiring_plan::Shape;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub const CALLS: &str = "calls.json";
pub const THREADS: &str = "threads.json";
pub const STEPS: &str = "steps.jsonl";
pub const SPANS: &str = "spans.jsonl";
pub const SAMPLES: &str = "samples.jsonl";
pub const KERNEL_FUNCTIONS: &str = "kernel-functions.json";
pub const EXECUTABLES: &str = "executables.json";
pub const MAPS: &str = "maps.txt";
pub const SOURCES: &str = "sources.sha256";
pub const COUNTERS: &str = "counters.json";
pub const CALLGRIND: &str = "callgrind.out";
pub const PROFILE: &str = "profile.json";
pub const NCU_RAW: &str = "ncu-raw.csv.gz";
pub const NCU_SASS: &str = "ncu-sass.csv.gz";
pub const NCU_SOURCE: &str = "ncu-source.csv.gz";

/// One call of the captured program, with the least that it moves and computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCall {
    pub call: u32,
    /// Absent for calls outside the layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u64>,
    pub slot: String,
    pub group: String,
    pub operator: String,
    /// `name/isa`.
    pub kernel: String,
    /// `file:line` of the kernel.
    pub source: String,
    pub inputs: Vec<Shape>,
    pub outputs: Vec<Shape>,
    pub weights: Vec<Shape>,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub flops: u64,
}

/// A thread of the captured process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawThread {
    /// The operating system's number.
    pub thread: u32,
    pub name: String,
    /// Which worker it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
}

/// One captured pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawStep {
    pub start_ns: u64,
    pub end_ns: u64,
}

/// One worker's calls in one pass, in its order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSpans {
    /// Index into `steps.jsonl`.
    pub step: u64,
    pub worker: u32,
    /// `[call, arrive, start, end]` each: it waited at the call's barrier from `arrive` to `start` and computed until `end`.
    pub spans: Vec<[u64; 4]>,
    /// Calls that found no room.
    pub dropped: u64,
}

/// A thread was seen at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSample {
    pub at_ns: u64,
    pub thread: u32,
    /// Time that it stands for, ending at `at_ns`.
    pub weight_ns: u64,
    /// Innermost first.
    pub stack: Vec<RawAddress>,
}

/// One place in a stack: the address in hexadecimal, after `k` for one of the operating system's, after `r` for the place
/// behind a call (`kr` for both), as a text: `"r55d0c0ffee00"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawAddress(pub String);

/// A [`RawAddress`], taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub at: u64,
    /// Of the operating system.
    pub kernel: bool,
    /// Where a call returns to, which is one instruction behind the call.
    pub returns: bool,
}

impl From<Place> for RawAddress {
    fn from(place: Place) -> RawAddress {
        let (kernel, returns) = (if place.kernel { "k" } else { "" }, if place.returns { "r" } else { "" });
        RawAddress(format!("{kernel}{returns}{:x}", place.at))
    }
}

impl RawAddress {
    /// `None` if it is not written as one.
    pub fn place(&self) -> Option<Place> {
        let (rest, kernel) = self.0.strip_prefix('k').map_or((&*self.0, false), |rest| (rest, true));
        let (rest, returns) = rest.strip_prefix('r').map_or((rest, false), |rest| (rest, true));
        // The library's parser takes a sign, too.
        let digits = rest.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits.then(|| u64::from_str_radix(rest, 16).ok()).flatten().map(|at| Place { at, kernel, returns })
    }
}

/// The operating system's function that starts at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFunction {
    pub start: u64,
    pub name: String,
}

/// A file that code was mapped from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawExecutable {
    pub path: String,
    /// The linker's build id, in hexadecimal.
    pub build_id: Known<String>,
    pub sha256: Known<String>,
    pub bytes: Known<u64>,
    /// Whether this is the program itself.
    pub program: bool,
}

/// One counter over all captured passes; a simulated one over one pass of [`crate::capture::Simulation`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCounter {
    /// perf's name: `instructions`, `cache-misses`, `page-faults`, with `:u` if the operating system's own are not in it;
    /// callgrind's for a simulated one: `Ir`, `D1mr`. `task-clock` is in nanoseconds.
    pub name: String,
    pub kind: CounterKind,
    /// Summed over the worker threads; scaled up if the counter was not on the whole time.
    pub count: Known<f64>,
    /// The part of the time that it counted, 0 to 1.
    pub running: Known<f64>,
}

/// Who counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CounterKind {
    /// The processor's performance monitoring unit.
    Hardware,
    /// The operating system.
    Software,
    /// A simulated processor: callgrind.
    Simulated,
}

/// A pass that a GPU ran under its profiler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawProfile {
    /// Those that were profiled, in the order in which they were put into the GPU's queue.
    pub launches: Vec<RawLaunch>,
    /// How it was profiled, or why it was not: then there are no pages.
    pub ncu: Known<RawProfiler>,
}

/// One launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawLaunch {
    /// The function's name on the GPU.
    pub kernel: String,
    /// Numbers of the calls that it serves; none for what the device adds.
    pub calls: Vec<u32>,
    /// As many launches of the pass it stands for, itself among them: layers that run the same kernels are not all profiled.
    pub stands_for: u64,
}

/// Nsight Compute as it was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawProfiler {
    pub version: String,
    /// Its own arguments, without the output's path and the program.
    pub arguments: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_and_read_alike() {
        for (text, at, kernel, returns) in [
            ("55d0c0ffee00", 0x55d0_c0ff_ee00, false, false),
            ("r10", 0x10, false, true),
            ("kffffffff81000000", 0xffff_ffff_8100_0000, true, false),
            ("kr0", 0, true, true),
        ] {
            let address = RawAddress(text.to_owned());
            assert_eq!(address.place(), Some(Place { at, kernel, returns }), "{text}");
            assert_eq!(RawAddress::from(Place { at, kernel, returns }), address);
        }
        for text in ["", "k", "rk1", "+1", "-1", "x", "10000000000000000", "0x1", "1 "] {
            assert_eq!(RawAddress(text.to_owned()).place(), None, "{text}");
        }
    }
}
