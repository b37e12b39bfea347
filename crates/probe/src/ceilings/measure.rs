//! Measuring the ceilings: every quantity once per round, in an order that starts one later each round, so that a slow moment
//! falls on all of them. Not here: when that is done again (`ceilings.rs`), and the kernels (`ops::ceilings`).

use super::CeilingsError;
use super::caches::CacheLevel;
use crate::conditions::{available_memory, binary, host, now};
use crate::processor::{ProcessorTime, involuntary_switches, switches_since};
use crate::surroundings::Before;
use ops::ceilings::{Buffers, STREAMS, barriers, peaks};
use ops::{Features, Workers};
use record::bench::Surroundings;
use record::{
    BandwidthRow, Ceilings, CeilingsWorkload, Conditions, InstructionPath, Known, Level, Measured, Operands, PeakRow,
    Reading, ThreadCeilings, Traffic, Unit,
};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Shortest time of a sample: thousands of times what starting the workers takes.
const SAMPLE: Duration = Duration::from_millis(8);
/// Of a cost, which is much shorter, a sample is the fastest of so many stretches that take this time together: a worker that
/// loses its processor for some milliseconds spoils a stretch and not the sample.
const STRETCHES: u32 = 16;
/// Up to so many threads every number is measured; above, every power of two and the largest.
const EVERY: u64 = 8;
/// The memory that is read from is at least so large, and so many times the last cache.
const SMALLEST_MEMORY: u64 = 256 << 20;
const TIMES_LAST_CACHE: u64 = 4;
/// And at most what the known-traffic check reads.
const LARGEST_MEMORY: u64 = super::CHECK_BYTES;

/// The numbers of threads that are measured on a machine with so many processors, of which `threads` are asked for: always all
/// of the machine's, so that what is kept serves every command.
pub(super) fn thread_counts(threads: u64, processors: u64) -> Vec<u64> {
    let most = threads.max(processors);
    let mut counts: Vec<u64> = (1..=most.min(EVERY)).collect();
    counts.extend(std::iter::successors(Some(2 * EVERY), |n| n.checked_mul(2)).take_while(|n| *n < most));
    counts.extend([threads, processors]);
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Bytes of the memory that is read for the ceiling: a power of two that divides the check's bytes.
pub(super) fn memory_footprint(last_cache: u64, free: u64) -> u64 {
    let wanted =
        (last_cache.saturating_mul(TIMES_LAST_CACHE)).clamp(SMALLEST_MEMORY, LARGEST_MEMORY).next_power_of_two();
    let mut footprint = wanted.min(LARGEST_MEMORY);
    // The source and a target of half its size must leave most of the memory to others.
    while footprint > 1 << 24 && footprint > free / 4 {
        footprint /= 2;
    }
    footprint
}

/// Where a quantity's samples go: a row of one number of threads.
#[derive(Clone, Copy)]
enum Row {
    Bandwidth(usize),
    Peak(usize),
    Barrier,
    Dispatch,
}

impl Row {
    fn of(self, entry: &mut ThreadCeilings) -> &mut Known<Measured> {
        match self {
            Row::Bandwidth(index) => &mut entry.bandwidth[index].rate,
            Row::Peak(index) => &mut entry.peaks[index].rate,
            Row::Barrier => &mut entry.barrier,
            Row::Dispatch => &mut entry.dispatch,
        }
    }
}

/// What is timed, how often per sample, and what its samples were.
struct Quantity<'a> {
    /// Index of its number of threads, and the row there.
    entry: usize,
    row: Row,
    what: String,
    threads: u64,
    run: Box<dyn Fn(u64) + 'a>,
    /// Of a repeat: bytes or operations; None where its time is what counts.
    amount: Option<f64>,
    unit: Unit,
    repeats: u64,
    samples: Vec<f64>,
}

impl Quantity<'_> {
    fn time(&self) -> f64 {
        let start = Instant::now();
        (self.run)(self.repeats);
        start.elapsed().as_secs_f64()
    }

    /// Finds the number of repeats that a sample takes, while caches, pages and clocks warm up.
    fn warm_up(&mut self) {
        let wanted = (SAMPLE / self.stretches()).as_secs_f64();
        loop {
            // The faster of two: one that lost its processor meanwhile would pass for long enough with next to no repeats, and
            // samples of so few would say a hundredth of the rate.
            let seconds = self.time().min(self.time());
            if seconds >= wanted / 4.0 || self.repeats > 1 << 40 {
                self.repeats = ((self.repeats as f64 * wanted / seconds).ceil() as u64).max(1);
                return;
            }
            self.repeats *= 4;
        }
    }

    /// Parts of a sample, of which the fastest counts.
    fn stretches(&self) -> u32 {
        if self.amount.is_some() { 1 } else { STRETCHES }
    }

    /// One sample; the seconds that it took.
    fn sample(&mut self) -> f64 {
        let stretches: Vec<f64> = (0..self.stretches()).map(|_| self.time()).collect();
        let (fastest, repeats) = (stretches.iter().copied().fold(f64::INFINITY, f64::min), self.repeats as f64);
        self.samples.push(match self.amount {
            Some(amount) => amount * repeats / fastest / 1e9,
            None => fastest / repeats * 1e6,
        });
        stretches.iter().sum()
    }
}

/// Adds a quantity to those that are measured: its row, its name, what a repeat amounts to (None: its time counts) in which
/// unit, and how to do so many repeats.
type Add<'a, 'f> = &'f mut dyn FnMut(Row, String, Option<f64>, Unit, Box<dyn Fn(u64) + 'a>);

/// Measures everything for these numbers of threads, ascending and at least one, `rounds` times. `progress(done, total, what)` is called between samples.
///
/// # Errors
/// Threads or memory that the system refuses, interruption, or a clock that stands still.
pub(super) fn measure(
    counts: &[u64],
    rounds: u64,
    cancelled: &AtomicBool,
    progress: &dyn Fn(usize, usize, &str),
) -> Result<Ceilings, CeilingsError> {
    let most = counts.last().copied().unwrap_or(1);
    let teams = counts.iter().map(|threads| team(*threads)).collect::<Result<Vec<Workers>, CeilingsError>>()?;
    let largest = teams.last().expect("at least one thread");
    let caches = Caches { second: CacheLevel::of(2), third: CacheLevel::of(3) };
    let memory = memory_footprint(caches.last(most), available_memory());
    let buffers = RefCell::new(buffers(memory, memory / 2, largest)?);

    let mut quantities: Vec<Quantity<'_>> = Vec::new();
    let mut entries: Vec<ThreadCeilings> = Vec::new();
    for (entry, workers) in teams.iter().enumerate() {
        let threads = workers.count() as u64;
        let mut add = |row, what, amount, unit, run| {
            let samples = Vec::with_capacity(rounds as usize);
            quantities.push(Quantity { entry, row, what, threads, run, amount, unit, repeats: 1, samples });
        };
        entries.push(ThreadCeilings {
            threads,
            bandwidth: bandwidth(workers, &buffers, memory, &caches, &mut add),
            peaks: peak_rows(workers, &mut add),
            barrier: untimed(),
            dispatch: untimed(),
        });
        let meet = Box::new(|times| barriers(workers, times));
        add(Row::Barrier, "barrier".to_owned(), None, Unit::Microseconds, meet);
        let start = Box::new(|times| (0..times).for_each(|_| workers.run(&|_| {})));
        add(Row::Dispatch, "dispatch".to_owned(), None, Unit::Microseconds, start);
    }

    let load = sample(&mut quantities, rounds, cancelled, progress)?;
    for quantity in &mut quantities {
        let measured = Measured::new(std::mem::take(&mut quantity.samples), quantity.unit)?;
        *quantity.row.of(&mut entries[quantity.entry]) = Known::Is(measured);
    }
    let features = Features::detect().iter().map(|feature| feature.name().to_owned()).collect();
    let mut ceilings = Ceilings {
        schema: <Ceilings as record::Record>::SCHEMA.to_owned(),
        created: now(),
        workload: CeilingsWorkload {
            rounds,
            sample_ms: SAMPLE.as_millis() as u64,
            threads: counts.to_vec(),
            streams: STREAMS.map(|streams| streams as u64).to_vec(),
            huge_pages: true,
        },
        workload_id: String::new(),
        conditions: Conditions {
            binary: binary(),
            host: host(),
            threads: most,
            pinned: false,
            features,
            kernels: Vec::new(),
        },
        conditions_id: String::new(),
        processor_share: load.processor_share,
        surroundings: load.surroundings,
        threads: entries,
        checks: Vec::new(),
        void: false,
    };
    ceilings.close();
    Ok(ceilings)
}

/// Workers that are not pinned: the operating system spreads them over cores as it does the engine's.
pub(super) fn team(threads: u64) -> Result<Workers, CeilingsError> {
    Workers::new(threads as usize, false).map_err(|source| CeilingsError::Threads { threads, source })
}

pub(super) fn buffers(source: u64, target: u64, workers: &Workers) -> Result<Buffers, CeilingsError> {
    let refused = |error| CeilingsError::Memory { bytes: source + target, source: error };
    Buffers::new(source as usize, target as usize, workers).map_err(refused)
}

/// A footprint and the most that its level holds, or why the level is not measured.
type Footprint = Result<(u64, u64), String>;

/// The caches between the first level and memory.
struct Caches {
    second: Result<CacheLevel, String>,
    third: Result<CacheLevel, String>,
}

impl Caches {
    /// Bytes of the last level that is known, of all instances that `threads` threads use.
    fn last(&self, threads: u64) -> u64 {
        self.third.as_ref().or(self.second.as_ref()).map_or(0, |level| level.together(threads))
    }

    /// For each level, a footprint that stays in it and is too large for the level before, with the most that it holds.
    fn footprints(&self, threads: u64) -> [(Level, Footprint); 2] {
        let second = self.second.clone().map(|level| level.together(threads));
        let third = self.third.clone().map(|level| level.together(threads));
        let inner = second.clone().unwrap_or(0);
        let second = second.map(|holds| (lines(holds / 2), holds));
        let third = third.and_then(|holds| {
            let footprint = lines((holds / 4).max(2 * inner));
            if footprint <= holds / 2 {
                return Ok((footprint, holds));
            }
            Err(format!(
                "the level-3 cache of {holds} bytes is too small beside {inner} bytes of level 2 to be told apart"
            ))
        });
        [(Level::L2, second), (Level::L3, third)]
    }
}

/// Whole lines.
fn lines(bytes: u64) -> u64 {
    bytes / 64 * 64
}

fn untimed() -> Known<Measured> {
    Known::unavailable("not timed", "let the measurement finish")
}

fn bandwidth<'a>(
    workers: &'a Workers,
    buffers: &'a RefCell<Buffers>,
    memory: u64,
    caches: &Caches,
    add: Add<'a, '_>,
) -> Vec<BandwidthRow> {
    let mut rows = Vec::new();
    let threads = workers.count() as u64;
    let inner =
        caches.footprints(threads).map(|(level, found)| (level, found.map(|(bytes, most)| (bytes, Some(most)))));
    for (level, footprint) in inner.into_iter().chain([(Level::Memory, Ok((memory, None)))]) {
        for streams in STREAMS {
            let (traffic, streams_u64) = (Traffic::Read, streams as u64);
            let row = match &footprint {
                Ok((bytes, up_to_bytes)) => {
                    let bytes = *bytes;
                    let read = move |passes| {
                        std::hint::black_box(buffers.borrow().read(workers, bytes as usize, streams, passes));
                    };
                    let what = format!("read of {}, {streams} streams", level.name());
                    let place = Row::Bandwidth(rows.len());
                    add(place, what, Some(bytes as f64), Unit::GigabytesPerSecond, Box::new(read));
                    (Known::Is(bytes), *up_to_bytes, untimed())
                }
                Err(why) => {
                    let how = "measure on a machine that has it and tells of it";
                    (Known::unavailable(why.as_str(), how), None, Known::unavailable(why.as_str(), how))
                }
            };
            let (footprint_bytes, up_to_bytes, rate) = row;
            rows.push(BandwidthRow { level, traffic, streams: streams_u64, footprint_bytes, up_to_bytes, rate });
        }
    }
    for streams in STREAMS {
        let half = memory / 2;
        let copy = move |passes| buffers.borrow_mut().copy(workers, half as usize, streams, passes);
        let what = format!("copy of memory, {streams} streams");
        add(Row::Bandwidth(rows.len()), what, Some(2.0 * half as f64), Unit::GigabytesPerSecond, Box::new(copy));
        rows.push(BandwidthRow {
            level: Level::Memory,
            traffic: Traffic::Copy,
            streams: streams as u64,
            footprint_bytes: Known::Is(2 * half),
            up_to_bytes: None,
            rate: untimed(),
        });
    }
    rows
}

fn peak_rows<'a>(workers: &'a Workers, add: Add<'a, '_>) -> Vec<PeakRow> {
    let mut rows = Vec::new();
    for path in InstructionPath::ALL {
        for operands in [Operands::Registers, Operands::Loads] {
            let known = peaks().find(|peak| peak.path == path.name() && same(peak.operands, operands));
            let rate = match known.map(|peak| (peak, peak.unavailable(Features::detect()))) {
                None => Known::unavailable(
                    format!("this build has no loop of {} for this architecture", path.name()),
                    "measure on x86-64",
                ),
                Some((_, Some(why))) => Known::unavailable(why, "measure on a machine that has the instruction"),
                Some((peak, None)) => {
                    let all = workers.count() as f64 * peak.operations as f64;
                    let run = move |rounds| workers.run(&|_| peak.run(rounds));
                    let what = format!("{} from {}", path.name(), operands.name());
                    add(Row::Peak(rows.len()), what, Some(all), Unit::GigaflopsPerSecond, Box::new(run));
                    untimed()
                }
            };
            rows.push(PeakRow { path, operands, rate });
        }
    }
    rows
}

fn same(of_ops: ops::ceilings::Operands, of_record: Operands) -> bool {
    matches!(
        (of_ops, of_record),
        (ops::ceilings::Operands::Registers, Operands::Registers) | (ops::ceilings::Operands::Loads, Operands::Loads)
    )
}

/// How the machine was loaded while it was measured.
struct Load {
    processor_share: Reading,
    surroundings: Surroundings,
}

/// The rounds. The order within a round starts one quantity later each time.
fn sample(
    quantities: &mut [Quantity<'_>],
    rounds: u64,
    cancelled: &AtomicBool,
    progress: &dyn Fn(usize, usize, &str),
) -> Result<Load, CeilingsError> {
    let total = quantities.len() * (rounds as usize + 1);
    let show = |done: usize, quantity: &Quantity<'_>| {
        progress(done, total, &format!("{}, {} threads", quantity.what, quantity.threads));
    };
    for (done, quantity) in quantities.iter_mut().enumerate() {
        if cancelled.load(Relaxed) {
            return Err(CeilingsError::Interrupted);
        }
        show(done, quantity);
        quantity.warm_up();
    }
    let switches = involuntary_switches();
    let (processor, watch) = (ProcessorTime::now(), Before::now().watch(std::process::id()));
    let (count, mut wanted) = (quantities.len(), 0.0);
    for round in 0..rounds as usize {
        for place in 0..count {
            if cancelled.load(Relaxed) {
                return Err(CeilingsError::Interrupted);
            }
            let quantity = &mut quantities[(round + place) % count];
            show(count * (round + 1) + place, quantity);
            wanted += quantity.sample() * quantity.threads as f64;
        }
    }
    let processor_share = match processor.seconds_since() {
        Ok(used) => Reading::ratio(used.min(wanted), wanted, Unit::Share, 1),
        Err(why) => Known::unavailable(why, "measure on Linux, with /proc mounted"),
    };
    Ok(Load { processor_share, surroundings: watch.stop().finish(switches_since(switches)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_get_every_number_of_threads_and_large_ones_powers_of_two() {
        assert_eq!(thread_counts(2, 2), [1, 2]);
        assert_eq!(thread_counts(8, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(thread_counts(9, 9), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(thread_counts(48, 48), [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 48]);
        assert_eq!(thread_counts(1, 2), [1, 2], "fewer are asked for: the machine's are measured too");
        assert_eq!(thread_counts(12, 32), [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32]);
        assert_eq!(thread_counts(3, 2), [1, 2, 3]);
    }

    #[test]
    fn the_memory_that_is_read_is_beyond_the_caches_and_divides_the_check() {
        for (cache, free) in [(32 << 20, 16 << 30), (300 << 20, 64 << 30), (0, 8 << 30), (1 << 40, 1 << 40)] {
            let footprint = memory_footprint(cache, free);
            assert!((SMALLEST_MEMORY..=LARGEST_MEMORY).contains(&footprint), "{footprint}");
            assert_eq!(super::super::CHECK_BYTES % footprint, 0);
        }
        assert_eq!(memory_footprint(300 << 20, 64 << 30), 1 << 30);
        assert!(memory_footprint(32 << 20, 512 << 20) <= 128 << 20, "a small machine keeps its memory");
    }

    #[test]
    fn footprints_stay_in_their_level_and_leave_the_one_before() {
        let level = |bytes, shared_by| Ok(CacheLevel { bytes, shared_by });
        let caches = Caches { second: level(1 << 20, 1), third: level(32 << 20, 8) };
        let [(_, second), (_, third)] = caches.footprints(2);
        assert_eq!((second, third), (Ok((1 << 20, 2 << 20)), Ok((8 << 20, 32 << 20))));
        assert_eq!(caches.last(16), 64 << 20);
        let small = Caches { second: level(2 << 20, 1), third: level(4 << 20, 8) };
        assert!(small.footprints(4)[1].1.as_ref().is_err_and(|why| why.contains("told apart")));
    }
}
