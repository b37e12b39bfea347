//! The raw files of a trace directory, read and held against each other: whatever is computed from them can rely on it.
//! Not here: the manifest (`manifest.rs`), and finding the directory.

use crate::capture::ncu::{Imported, NcuError, import};
use crate::capture::raw::{
    CALLS, COUNTERS, EXECUTABLES, KERNEL_FUNCTIONS, KernelFunction, MAPS, NCU_RAW, NCU_SASS, NCU_SOURCE, PROFILE,
    RawCall, RawCounter, RawExecutable, RawProfile, RawProfiler, RawSample, RawSpans, RawStep, RawThread, SAMPLES,
    SOURCES, SPANS, STEPS, THREADS,
};
use crate::capture::reduced::device::DeviceTree;
use crate::known::Known;
use crate::letters;
use serde::de::DeserializeOwned;
use std::collections::{BTreeSet, HashMap};
use std::io::BufRead;

/// More than any machine has processors.
const MOST_WORKERS: usize = 1 << 16;
/// A capture is over long before: a day.
const LONGEST_NS: u64 = 100_000_000_000_000;

/// Everything in a trace directory but `callgrind.out`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawTrace {
    pub calls: Vec<RawCall>,
    pub threads: Vec<RawThread>,
    /// By time; they do not overlap.
    pub steps: Vec<RawStep>,
    pub spans: Vec<RawSpans>,
    /// By time.
    pub samples: Vec<RawSample>,
    /// By start.
    pub kernel_functions: Vec<KernelFunction>,
    pub executables: Vec<RawExecutable>,
    pub maps: String,
    /// (path from the repository's root, SHA-256), by path.
    pub sources: Vec<(String, String)>,
    pub counters: Vec<RawCounter>,
}

/// Why a directory is no whole trace. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{file}: cannot be read: {source}; give the whole directory that `hourglass capture --trace` wrote")]
    Read { file: &'static str, source: std::io::Error },
    #[error("{file}, line {line}: {why}; the trace was cut or changed: capture again")]
    Line { file: &'static str, line: usize, why: String },
    #[error("{file}: {why}; the trace was cut or changed: capture again")]
    File { file: &'static str, why: String },
    #[error(transparent)]
    Ncu(#[from] NcuError),
}

/// What the trace of a GPU's pass has beside spans and samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Profiled {
    /// By the address as samples have it: function, and (file as the profiler names it, line) innermost first.
    pub chains: HashMap<String, (String, Vec<(String, u32)>)>,
    pub tree: DeviceTree,
    pub profiler: RawProfiler,
}

impl RawTrace {
    /// Reads every file through `read`, which is given its name.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, and files that contradict each other.
    pub fn read(mut read: impl FnMut(&str) -> std::io::Result<Vec<u8>>) -> Result<RawTrace, LoadError> {
        let mut bytes = |file: &'static str| read(file).map_err(|source| LoadError::Read { file, source });
        let trace = RawTrace {
            calls: whole(CALLS, &bytes(CALLS)?)?,
            threads: whole(THREADS, &bytes(THREADS)?)?,
            steps: lines(STEPS, &bytes(STEPS)?)?,
            spans: lines(SPANS, &bytes(SPANS)?)?,
            samples: lines(SAMPLES, &bytes(SAMPLES)?)?,
            kernel_functions: whole(KERNEL_FUNCTIONS, &bytes(KERNEL_FUNCTIONS)?)?,
            executables: whole(EXECUTABLES, &bytes(EXECUTABLES)?)?,
            maps: text(MAPS, bytes(MAPS)?)?,
            sources: sources(&text(SOURCES, bytes(SOURCES)?)?)?,
            counters: whole(COUNTERS, &bytes(COUNTERS)?)?,
        };
        trace.check()?;
        Ok(trace)
    }

    /// The same of a pass that a GPU ran: its stream stands for a worker, and its profiler's samples for those of a thread. The
    /// pages are unpacked by `unpack`. Unavailable, with the reason, if it could not be profiled.
    ///
    /// # Errors
    /// As for [`RawTrace::read`], and pages of another pass.
    pub fn read_profiled(
        mut read: impl FnMut(&str) -> std::io::Result<Vec<u8>>,
        unpack: impl Fn(Vec<u8>) -> Box<dyn BufRead>,
    ) -> Result<Known<(RawTrace, Profiled)>, LoadError> {
        let mut bytes = |file: &'static str| read(file).map_err(|source| LoadError::Read { file, source });
        let calls: Vec<RawCall> = whole(CALLS, &bytes(CALLS)?)?;
        let profile: RawProfile = serde_json::from_slice(&bytes(PROFILE)?)
            .map_err(|error| LoadError::File { file: PROFILE, why: error.to_string() })?;
        let sources = sources(&text(SOURCES, bytes(SOURCES)?)?)?;
        let profiler = match &profile.ncu {
            Known::Is(profiler) => profiler.clone(),
            Known::Unavailable(missing) => return Ok(Known::Unavailable(missing.clone())),
        };
        let outside =
            profile.launches.iter().flat_map(|launch| &launch.calls).find(|call| **call as usize >= calls.len());
        if let Some(call) = outside {
            return Err(LoadError::File { file: PROFILE, why: format!("call {call} of {}", calls.len()) });
        }
        let names = profile.launches.iter().map(|launch| &launch.kernel);
        let names = names.chain([&profiler.version]).chain(&profiler.arguments);
        plain(PROFILE, names.map(String::as_str))?;
        let pages = (unpack(bytes(NCU_RAW)?), unpack(bytes(NCU_SASS)?), unpack(bytes(NCU_SOURCE)?));
        let Imported { steps, threads, spans, samples, chains, tree } = import(&calls, &profile, pages)?;
        let trace = RawTrace { calls, threads, steps, spans, samples, sources, ..RawTrace::default() };
        trace.check()?;
        Ok(Known::Is((trace, Profiled { chains, tree, profiler })))
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.threads.iter().filter(|thread| thread.worker.is_some()).count()
    }

    fn check(&self) -> Result<(), LoadError> {
        let file = |file, why: String| Err(LoadError::File { file, why });
        let line = |file, index: usize, why: String| Err(LoadError::Line { file, line: index + 1, why });
        if self.calls.is_empty() || self.steps.is_empty() {
            let empty = if self.calls.is_empty() { CALLS } else { STEPS };
            return file(empty, "holds nothing, expected at least one entry".to_owned());
        }
        for call in &self.calls {
            let names = [&call.slot, &call.group, &call.operator, &call.kernel, &call.source];
            let forms = [&call.inputs, &call.outputs, &call.weights].into_iter().flatten().map(|shape| &shape.form);
            plain(CALLS, names.into_iter().chain(forms).map(String::as_str))?;
        }
        plain(THREADS, self.threads.iter().map(|thread| thread.name.as_str()))?;
        plain(KERNEL_FUNCTIONS, self.kernel_functions.iter().map(|function| function.name.as_str()))?;
        plain(EXECUTABLES, self.executables.iter().map(|executable| executable.path.as_str()))?;
        plain(COUNTERS, self.counters.iter().map(|counter| counter.name.as_str()))?;
        plain(SOURCES, self.sources.iter().map(|(path, _)| path.as_str()))?;
        if let Some((index, call)) = self.calls.iter().enumerate().find(|(index, call)| call.call as usize != *index) {
            return file(CALLS, format!("entry {index} is call {}, expected the calls in their order", call.call));
        }
        let workers: BTreeSet<u32> = self.threads.iter().filter_map(|thread| thread.worker).collect();
        if workers.is_empty()
            || workers.len() > MOST_WORKERS
            || workers.len() != self.workers()
            || !workers.iter().copied().eq(0..workers.len() as u32)
        {
            return file(
                THREADS,
                format!(
                    "workers are {}, expected each number from 0 on once, and no more than 65536",
                    listed(&workers)
                ),
            );
        }
        let numbers: BTreeSet<u32> = self.threads.iter().map(|thread| thread.thread).collect();
        if numbers.len() != self.threads.len() {
            return file(THREADS, "a thread is named twice".to_owned());
        }
        let mut before = 0;
        for (index, step) in self.steps.iter().enumerate() {
            if step.start_ns < before || step.end_ns <= step.start_ns {
                let why = format!("{} to {} ns, expected a pass after {before} ns", step.start_ns, step.end_ns);
                return line(STEPS, index, why);
            }
            before = step.end_ns;
        }
        // Sums of what follows stay far from the end of 64 bits.
        if before - self.steps[0].start_ns > LONGEST_NS {
            return file(STEPS, format!("the passes take {} ns together", before - self.steps[0].start_ns));
        }
        let amounts = self.calls.iter().flat_map(|call| [call.bytes_read, call.bytes_written, call.flops]);
        if total(amounts).is_none() {
            return file(CALLS, "bytes and operations exceed 64 bits".to_owned());
        }
        if total(self.samples.iter().map(|sample| sample.weight_ns)).is_none() {
            return file(SAMPLES, "the weights exceed 64 bits".to_owned());
        }
        let mut seen = BTreeSet::new();
        for (index, spans) in self.spans.iter().enumerate() {
            let Some(step) = self.steps.get(spans.step as usize) else {
                return line(SPANS, index, format!("step {} of {}", spans.step, self.steps.len()));
            };
            if !workers.contains(&spans.worker) {
                return line(SPANS, index, format!("worker {} of {}", spans.worker, workers.len()));
            }
            if !seen.insert((spans.step, spans.worker)) {
                return line(SPANS, index, format!("step {} of worker {} comes twice", spans.step, spans.worker));
            }
            let mut before = step.start_ns;
            for &[call, arrive, start, end] in &spans.spans {
                if call >= self.calls.len() as u64 {
                    return line(SPANS, index, format!("call {call} of {}", self.calls.len()));
                }
                if arrive < before || start < arrive || end < start || end > step.end_ns {
                    return line(SPANS, index, format!("call {call} at {arrive}, {start}, {end} ns is out of order"));
                }
                before = end;
            }
        }
        if let Some(index) = (1..self.samples.len()).find(|i| self.samples[*i].at_ns < self.samples[i - 1].at_ns) {
            return line(SAMPLES, index, "a sample before the last one, expected them by time".to_owned());
        }
        Ok(())
    }
}

/// Names are shown in lines and tables, and to terminals.
///
/// # Errors
/// One that holds a line end or another letter that is obeyed and not shown.
fn plain<'a>(file: &'static str, mut names: impl Iterator<Item = &'a str>) -> Result<(), LoadError> {
    names.try_for_each(letters::plain).map_err(|why| LoadError::File { file, why })
}

fn listed(numbers: &BTreeSet<u32>) -> String {
    numbers.iter().take(8).map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The sum, with some room above it.
fn total(mut amounts: impl Iterator<Item = u64>) -> Option<u64> {
    amounts.try_fold(0_u64, u64::checked_add).filter(|sum| *sum < u64::MAX / 4)
}

fn text(file: &'static str, bytes: Vec<u8>) -> Result<String, LoadError> {
    String::from_utf8(bytes).map_err(|error| LoadError::File { file, why: format!("is not UTF-8 ({error})") })
}

fn whole<T: DeserializeOwned>(file: &'static str, bytes: &[u8]) -> Result<T, LoadError> {
    serde_json::from_slice(bytes)
        .map_err(|error| LoadError::File { file, why: format!("expected a JSON list: {error}") })
}

fn lines<T: DeserializeOwned>(file: &'static str, bytes: &[u8]) -> Result<Vec<T>, LoadError> {
    if bytes.last().is_some_and(|last| *last != b'\n') {
        let line = bytes.split(|byte| *byte == b'\n').count();
        return Err(LoadError::Line { file, line, why: "the file ends within the line".to_owned() });
    }
    let parse = |(index, line): (usize, &[u8])| {
        serde_json::from_slice(line).map_err(|error| LoadError::Line { file, line: index + 1, why: error.to_string() })
    };
    let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if whole.is_empty() {
        return Ok(Vec::new());
    }
    whole.split(|byte| *byte == b'\n').enumerate().map(parse).collect()
}

fn sources(text: &str) -> Result<Vec<(String, String)>, LoadError> {
    let parse = |(index, line): (usize, &str)| {
        let (hash, path) = line.split_once("  ").filter(|(hash, path)| {
            hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) && !path.is_empty()
        })?;
        Some((index, path.to_owned(), hash.to_owned()))
    };
    let mut found: Vec<(String, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some((_, path, hash)) = parse((index, line)) else {
            let why = "expected a SHA-256, two spaces and a path".to_owned();
            return Err(LoadError::Line { file: SOURCES, line: index + 1, why });
        };
        if found.last().is_some_and(|(before, _)| *before >= path) {
            let why = format!("'{path}' does not come after the line before, expected sorted paths");
            return Err(LoadError::Line { file: SOURCES, line: index + 1, why });
        }
        found.push((path, hash));
    }
    Ok(found)
}
