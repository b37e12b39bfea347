//! CPU samples with stacks, context switches and page faults of this process's threads, by the best way that works here.
//! Not here: what they mean for a request (`timeline.rs`); the ways themselves are in `sampler/`.

pub(crate) mod kernel;
mod perf;
mod records;
mod symbols;
mod timer;

pub use symbols::Symbols;

use record::timeline::{Fault, OffProcessor, SamplingRung};
use record::{Known, Unit};
use std::io::PipeWriter;
use std::thread::JoinHandle;

/// Samples per second of all workers together where nothing else is asked for: no divisor of the timer's own rates, so that it
/// does not beat with them. Together, because a worker that is interrupted holds up all that wait for it: on a virtual machine
/// without a cycle counter a sample took 22 us of its thread, which would be 4.4 % of a pass for two workers at 997 Hz each.
pub const FREQUENCY_HZ: u64 = 997;

/// A running sampler. Stop it: dropped, it takes its samples with it.
pub struct Sampler {
    source: Source,
    rung: SamplingRung,
    why: String,
    frequency_hz: u64,
}

enum Source {
    /// The reader ends when `stop` is closed.
    Perf {
        switch: perf::Switch,
        stop: PipeWriter,
        reader: JoinHandle<perf::Threads>,
    },
    Timers(timer::Timers),
    Nothing,
}

/// What a sampler has seen.
#[derive(Clone, Debug)]
pub struct Sampled {
    pub rung: SamplingRung,
    /// Why the rungs above could not be used.
    pub why: String,
    pub frequency_hz: Known<u64>,
    /// By time.
    pub samples: Vec<RawSample>,
    /// Samples, switches and faults that found no room.
    pub lost: Known<u64>,
    /// By time; why they are not known.
    pub switches: Known<Vec<OffProcessor>>,
    /// By time; why they are not known.
    pub faults: Known<Vec<PageFault>>,
}

/// A thread was seen at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSample {
    /// Of the monotonic clock.
    pub at_ns: u64,
    pub thread: u32,
    /// Time that it stands for, ending at `at_ns`.
    pub weight_ns: u64,
    /// Innermost first.
    pub stack: Vec<Address>,
}

/// One place in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub at: u64,
    pub kernel: bool,
    /// Where a call returns to, which is one instruction behind the call.
    pub returns: bool,
}

/// A thread met a page that was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    pub thread: u32,
    /// Of the monotonic clock.
    pub at_ns: u64,
    pub instruction: u64,
    /// What was touched.
    pub address: u64,
}

impl PageFault {
    /// As evidence of lost time.
    pub fn evidence(self) -> Fault {
        Fault { thread: self.thread, at_ns: self.at_ns }
    }
}

/// Every thread that this process has now, by the operating system's number, with its name.
pub fn threads() -> Vec<(u32, String)> {
    let Ok(folder) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let named = folder.filter_map(|entry| {
        let path = entry.ok()?.path();
        let number = path.file_name()?.to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        Some((number, name.trim().to_owned()))
    });
    let mut found: Vec<(u32, String)> = named.collect();
    found.sort_unstable();
    found
}

impl Sampler {
    /// Samples nothing, because `why`.
    pub fn none(why: impl Into<String>) -> Sampler {
        Sampler { source: Source::Nothing, rung: SamplingRung::None, why: why.into(), frequency_hz: 0 }
    }

    /// Starts sampling `threads` `frequency_hz` times a second each: with hardware cycles, else the kernel's CPU clock, else a
    /// timer per thread, else not at all. What was tried in vain is kept.
    pub fn start(threads: &[u32], frequency_hz: u64) -> Sampler {
        let mut tried = Vec::new();
        for rung in [SamplingRung::Cycles, SamplingRung::CpuClock] {
            match perf::Threads::open(threads, rung, frequency_hz) {
                Ok(opened) => {
                    let why = match (tried.is_empty(), opened.sees_kernel()) {
                        (true, true) => "the best that there is".to_owned(),
                        (true, false) => "without kernel functions: not permitted".to_owned(),
                        (false, true) => tried.join("; "),
                        (false, false) => format!("{}; without kernel functions: not permitted", tried.join("; ")),
                    };
                    match Sampler::read(opened) {
                        Ok(source) => return Sampler { source, rung, why, frequency_hz },
                        Err(error) => tried.push(format!("{}: no thread to read with: {error}", name(rung))),
                    }
                }
                Err(error) => tried.push(format!("{}: {error}", name(rung))),
            }
        }
        match timer::Timers::start(threads, frequency_hz) {
            Ok(timers) => Sampler {
                source: Source::Timers(timers),
                rung: SamplingRung::ThreadTimer,
                why: tried.join("; "),
                frequency_hz,
            },
            Err(error) => {
                tried.push(format!("{}: {error}", name(SamplingRung::ThreadTimer)));
                Sampler::none(tried.join("; "))
            }
        }
    }

    /// Which way is used.
    pub fn rung(&self) -> SamplingRung {
        self.rung
    }

    fn read(mut opened: perf::Threads) -> std::io::Result<Source> {
        let (stopped, stop) = std::io::pipe()?;
        let switch = opened.switch();
        // Before the thread runs, so that what is watched never begins earlier.
        switch.enable(true);
        let body = move || {
            let mut waiter = opened.waiter(&stopped);
            while waiter.wait() {
                opened.drain();
            }
            opened.drain();
            opened
        };
        let reader = std::thread::Builder::new().name("sampler".to_owned()).spawn(body)?;
        Ok(Source::Perf { switch, stop, reader })
    }

    /// Whether anything is sampled from now on.
    pub fn switch(&self, on: bool) {
        match &self.source {
            Source::Perf { switch, .. } => switch.enable(on),
            Source::Timers(timers) => timers.switch(on),
            Source::Nothing => {}
        }
    }

    /// Ends it and hands out what was seen.
    pub fn stop(self) -> Sampled {
        let Sampler { source, rung, why, frequency_hz } = self;
        let mut sampled = Sampled {
            rung,
            why,
            frequency_hz: Known::Is(frequency_hz),
            samples: Vec::new(),
            lost: Known::Is(0),
            switches: Known::unavailable("timers do not see context switches", PERF),
            faults: Known::unavailable("timers do not see page faults", PERF),
        };
        match source {
            Source::Perf { switch, stop, reader } => {
                switch.enable(false);
                drop(stop);
                match reader.join() {
                    Ok(threads) => threads.decode(&mut sampled),
                    Err(_) => sampled.missing("the thread that reads the samples gave up"),
                }
            }
            Source::Timers(timers) => {
                let (samples, lost) = timers.stop();
                (sampled.samples, sampled.lost) = (samples, Known::Is(lost));
            }
            Source::Nothing => {
                let why = sampled.why.clone();
                sampled.missing(&why);
            }
        }
        sampled.samples.sort_by_key(|sample| sample.at_ns);
        sampled
    }
}

const PERF: &str = "allow perf events: kernel.perf_event_paranoid of 2 or less, and no filter against perf_event_open";

impl Sampled {
    fn missing(&mut self, why: &str) {
        self.frequency_hz = Known::unavailable(why, PERF);
        self.lost = Known::unavailable(why, PERF);
        self.switches = Known::unavailable(why, PERF);
        self.faults = Known::unavailable(why, PERF);
    }

    /// The time that all samples stand for.
    pub fn seconds(&self) -> record::Reading {
        let sum: u64 = self.samples.iter().map(|sample| sample.weight_ns).sum();
        record::Reading::measured(sum as f64 / 1e9, Unit::Seconds, self.samples.len() as u64)
    }
}

fn name(rung: SamplingRung) -> &'static str {
    match rung {
        SamplingRung::Cycles => "hardware cycles",
        SamplingRung::CpuClock => "perf's CPU clock",
        SamplingRung::ThreadTimer => "timer per thread",
        SamplingRung::None => "nothing",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::monotonic::{now_ns, thread_cpu_ns};
    use record::trace::{CpuSamples, Names};
    use std::hint::black_box;

    /// Uses 0.2 s of this thread's processor time, in a function that a stack shows.
    #[inline(never)]
    fn landmark() -> u64 {
        let (start, mut sum) = (thread_cpu_ns(), 0);
        while thread_cpu_ns() < start + 200_000_000 {
            sum = (0..1000).fold(sum, |sum, n| black_box(sum ^ n));
        }
        black_box(sum)
    }

    fn own() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    /// The samples of this thread: about one per millisecond of processor time, nearly all in `landmark`.
    fn check(samples: &[RawSample], window: (u64, u64)) {
        let own: Vec<&RawSample> = samples.iter().filter(|sample| sample.thread == own()).collect();
        assert!(own.iter().all(|sample| (window.0..=window.1).contains(&sample.at_ns)), "on another clock");
        let seconds: f64 = own.iter().map(|sample| sample.weight_ns as f64 / 1e9).sum();
        assert!((0.1..0.4).contains(&seconds), "{} samples stand for {seconds} s of 0.2", own.len());
        let (mut names, mut stacks, mut symbols) = (Names::default(), CpuSamples::default(), Symbols::new());
        let inside = own.iter().filter(|sample| {
            let stack = symbols.stack(&sample.stack, &mut names, &mut stacks);
            stacks.frames_of(stack).any(|frame| names.text(frame.function).ends_with("landmark"))
        });
        let (inside, all) = (inside.count(), own.len());
        assert!(2 * inside > all, "{inside} of {all} samples have the function in their stack");
    }

    #[test]
    fn the_best_rung_here_sees_where_a_thread_is() {
        let sampler = Sampler::start(&[own()], FREQUENCY_HZ);
        let rung = sampler.rung();
        let start = now_ns();
        landmark();
        let sampled = sampler.stop();
        if rung == SamplingRung::None {
            println!("skipped: nothing samples here: {}", sampled.why);
            return;
        }
        check(&sampled.samples, (start - 1_000_000, now_ns()));
        assert_eq!(sampled.lost, Known::Is(0));
    }

    #[test]
    fn timers_see_where_a_thread_is() {
        let timers = match timer::Timers::start(&[own()], FREQUENCY_HZ) {
            Ok(timers) => timers,
            Err(error) => {
                println!("skipped: no timers here: {error}");
                return;
            }
        };
        let start = now_ns();
        assert!(timer::Timers::start(&[own()], FREQUENCY_HZ).is_err(), "one at a time");
        landmark();
        let (samples, lost) = timers.stop();
        check(&samples, (start - 1_000_000, now_ns()));
        assert_eq!(lost, 0);
        landmark();
        let again = timer::Timers::start(&[own()], FREQUENCY_HZ).unwrap();
        assert!(again.stop().0.len() < 20, "nothing is left of the run before");
    }

    #[test]
    fn switching_off_says_so() {
        let sampled = Sampler::none("a test").stop();
        assert_eq!((sampled.rung, &sampled.why[..]), (SamplingRung::None, "a test"));
        assert!(sampled.lost.known().is_none() && sampled.switches.known().is_none());
    }

    #[test]
    fn this_process_has_this_thread() {
        assert!(threads().iter().any(|(number, _)| *number == own()));
    }
}
