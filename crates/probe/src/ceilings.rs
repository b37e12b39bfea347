//! The ceilings of this machine: from the cache file if they still hold, else measured. Whether they hold is asked of a kernel
//! that reads exactly one GiB. Not here: how they are measured (`measure.rs`), the file (`store.rs`), what they mean (`record`).

mod caches;
mod device;
mod measure;
mod store;

pub use device::of_device;

use crate::processor::ProcessorTime;
use ops::ceilings::expected_sum;
use record::{Ceilings, Known, Level, Quantity, Reading, Traffic, Unit};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Rounds of a measurement that nobody asked for by name.
pub const ROUNDS: u64 = 9;
/// Bytes that the known-traffic check reads.
pub const CHECK_BYTES: u64 = 1 << 30;
/// How far the known-traffic check may be from the ceiling before the ceilings are measured again. Between two quiet minutes
/// of a virtual machine memory differs by some percent; a tenth is another state of the machine.
pub const CHECK_TOLERANCE: f64 = 0.10;
/// With a smaller part of the processors a check that came out too low says how busy the machine is, and nothing about ceilings.
const UNDISTURBED: f64 = 0.9;
/// Attempts of the check; the fastest counts, because other load can only make it slower.
const CHECK_ATTEMPTS: usize = 5;
/// Older ceilings are measured again.
const OLDEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Why there are no ceilings.
#[derive(Debug, thiserror::Error)]
pub enum CeilingsError {
    #[error("cannot start {threads} threads: {source}; ask for fewer with --threads")]
    Threads { threads: u64, source: std::io::Error },
    #[error("cannot reserve {bytes} bytes to read and copy: {source}; free some memory")]
    Memory { bytes: u64, source: std::io::Error },
    #[error("interrupted while the ceilings were measured; nothing was kept")]
    Interrupted,
    #[error("a clock gave a time that is no number: {0}")]
    Samples(#[from] record::SamplesError),
    #[error(
        "the known-traffic check read {bytes} bytes and their words sum to {found:#x} where {expected:#x} was written: this \
         memory or processor returns wrong values"
    )]
    Sum { bytes: u64, expected: u64, found: u64 },
}

/// Ceilings to use, and how they came about.
pub struct Current {
    pub ceilings: Ceilings,
    /// Measured by this call.
    pub fresh: bool,
    /// What a person should know: why a file was passed over, or could not be written.
    pub notes: Vec<String>,
    /// The check that followed.
    pub check: KnownTraffic,
    /// Where they are kept, if they could be.
    pub path: Option<PathBuf>,
}

/// A read of exactly [`CHECK_BYTES`], held against the ceiling.
#[derive(Clone, Debug)]
pub struct KnownTraffic {
    pub threads: u64,
    pub seconds: f64,
    /// 10^9 bytes per second.
    pub rate: f64,
    /// `rate` less the ceiling, as a part of the ceiling.
    pub difference: f64,
    /// Part of the processors that this process got meanwhile.
    pub processor_share: Reading,
}

impl KnownTraffic {
    /// Whether it is within [`CHECK_TOLERANCE`] of the ceiling.
    pub fn agrees(&self) -> bool {
        self.difference.abs() <= CHECK_TOLERANCE
    }

    /// Whether it was too slow only because other processes ran: then what it is held against may well hold.
    pub fn disturbed(&self) -> bool {
        self.difference < 0.0 && self.processor_share.value().is_some_and(|share| share < UNDISTURBED)
    }
}

/// The ceilings that are kept for this machine and still hold by their date; nothing is measured, and nothing checked.
///
/// # Errors
/// Why what is kept cannot be used, in words.
pub fn kept(threads: u64) -> Result<Option<Ceilings>, String> {
    store::path().map_or(Ok(None), |path| store::load(&path, threads, OLDEST))
}

/// This machine's ceilings up to `threads` threads, kept in `$XDG_CACHE_HOME/hourglass` for a day.
///
/// They are measured (some seconds) if none are kept, if what is kept is older than a day, of another machine, void, without
/// an entry for `threads` or unreadable, or if the known-traffic check contradicts it. A check that was slow while other
/// processes had the processors contradicts nothing: measured now, the ceilings would be worse.
/// `progress(done, total, what)` is called between samples; `cancelled` ends the measurement.
///
/// # Errors
/// Threads or memory that the system refuses, interruption, or memory that returns wrong values. A file that cannot be read or
/// written is a note.
pub fn current(
    threads: u64,
    cancelled: &AtomicBool,
    progress: &dyn Fn(usize, usize, &str),
) -> Result<Current, CeilingsError> {
    let mut why = None;
    if let Some(path) = store::path() {
        match store::load(&path, threads, OLDEST) {
            Ok(Some(ceilings)) => {
                let check = check(&ceilings)?;
                let came_to = format!(
                    "a read of exactly 1 GiB came to {:.1} GB/s, {:+.0} % from the ceiling that was kept",
                    check.rate,
                    100.0 * check.difference
                );
                if check.agrees() || check.disturbed() {
                    let busy = || format!("{came_to}, but other processes were running: the kept ceilings stay");
                    let notes = if check.agrees() { Vec::new() } else { vec![busy()] };
                    return Ok(Current { ceilings, fresh: false, notes, check, path: Some(path) });
                }
                why = Some(came_to);
            }
            Ok(None) => {}
            Err(reason) => why = Some(reason),
        }
    }
    let mut current = refresh(threads, ROUNDS, cancelled, progress)?;
    current.notes.splice(0..0, why.map(|why| format!("the ceilings were measured again: {why}")));
    Ok(current)
}

/// Measures the ceilings of `threads` threads and of every number up to this machine's processors (above eight, every power of
/// two), `rounds` times each, whatever is kept, and keeps them.
///
/// # Errors
/// As for [`current`].
pub fn refresh(
    threads: u64,
    rounds: u64,
    cancelled: &AtomicBool,
    progress: &dyn Fn(usize, usize, &str),
) -> Result<Current, CeilingsError> {
    let processors = ops::processors() as u64;
    let counts = measure::thread_counts(threads.max(1), processors);
    let ceilings = measure::measure(&counts, rounds.max(1), cancelled, progress)?;
    let mut notes = Vec::new();
    let mut path = store::path();
    match &path {
        None => notes.push("neither XDG_CACHE_HOME nor HOME names a folder: the ceilings are not kept".to_owned()),
        Some(place) => {
            if let Err(error) = store::save(place, &ceilings) {
                notes.push(format!("{}: cannot be written, so the ceilings are not kept: {error}", place.display()));
                path = None;
            }
        }
    }
    let check = check(&ceilings)?;
    Ok(Current { ceilings, fresh: true, notes, check, path })
}

/// Reads exactly [`CHECK_BYTES`] with the most threads and the best number of streams of `ceilings`; the words' sum proves that
/// every byte was read.
///
/// # Errors
/// As for [`current`].
pub fn check(ceilings: &Ceilings) -> Result<KnownTraffic, CeilingsError> {
    let threads = ceilings.workload.threads.last().copied().unwrap_or(1);
    let workers = measure::team(threads)?;
    let rows = ceilings.threads.iter().filter(|entry| entry.threads == threads).flat_map(|entry| &entry.bandwidth);
    let highest = |row: &record::BandwidthRow| row.rate.known().and_then(|rate| rate.highest().value());
    let best = rows
        .filter(|row| row.level == Level::Memory && row.traffic == Traffic::Read)
        .max_by(|a, b| highest(a).unwrap_or(0.0).total_cmp(&highest(b).unwrap_or(0.0)));
    let footprint = best.and_then(|row| row.footprint_bytes.known().copied()).unwrap_or(CHECK_BYTES);
    let streams = best.map_or(8, |row| row.streams as usize);
    // Whole passes over a footprint that divides it, or one over all of it.
    let footprint = if CHECK_BYTES.is_multiple_of(footprint.max(1)) { footprint } else { CHECK_BYTES };
    let passes = CHECK_BYTES / footprint;
    let buffers = measure::buffers(footprint, 0, &workers)?;
    let expected = expected_sum(footprint as usize).wrapping_mul(passes);
    let ceiling = ceilings.bandwidth(threads, u64::MAX).known().copied().map_or(0.0, Quantity::value);
    let (mut fastest, mut whole) = (f64::INFINITY, 0.0);
    let processor = ProcessorTime::now();
    for _ in 0..CHECK_ATTEMPTS {
        let start = Instant::now();
        let found = buffers.read(&workers, footprint as usize, streams, passes);
        let seconds = start.elapsed().as_secs_f64();
        if found != expected {
            return Err(CeilingsError::Sum { bytes: CHECK_BYTES, expected, found });
        }
        whole += seconds;
        fastest = fastest.min(seconds);
    }
    let rate = CHECK_BYTES as f64 / fastest / 1e9;
    let difference = if ceiling > 0.0 { rate / ceiling - 1.0 } else { f64::MAX };
    let processors = ops::processors() as u64;
    let wanted = whole * threads.min(processors) as f64;
    let processor_share = match processor.seconds_since() {
        Ok(used) => Reading::ratio(used.min(wanted), wanted, Unit::Share, CHECK_ATTEMPTS as u64),
        Err(why) => Known::unavailable(why, "check on Linux, with /proc mounted"),
    };
    Ok(KnownTraffic { threads, seconds: fastest, rate, difference, processor_share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_check_on_a_busy_machine_says_nothing_and_a_quick_one_always_does() {
        let check = |difference: f64, share: f64| KnownTraffic {
            threads: 2,
            seconds: 0.05,
            rate: 20.0,
            difference,
            processor_share: Reading::measured(share, Unit::Share, 1),
        };
        assert!(check(-0.3, 0.4).disturbed() && !check(-0.3, 0.4).agrees());
        assert!(!check(-0.3, 0.98).disturbed(), "the machine has become slower");
        assert!(!check(0.3, 0.4).disturbed(), "the ceiling was too low");
        assert!(check(-0.05, 0.4).agrees() && check(0.05, 0.98).agrees());
    }
}
