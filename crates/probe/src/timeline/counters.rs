//! Quantities read a few times a second beside a request, into room reserved before it: resident memory, pressure, steal.
//! Not here: what the request itself knows (tokens, keys and values).

use crate::monotonic::now_ns;
use record::timeline::StealReading;
use record::trace::{Counter, CounterUnit};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(50);
/// Ten minutes' worth.
const ROOM: usize = 12_000;
/// Of `/proc/stat`, whose lines of processors come first.
const TEXT_BYTES: usize = 16 << 10;
/// The unit of `/proc/stat` (USER_HZ, 100 on every Linux that this builds for).
const TICK_NS: u64 = 10_000_000;

/// A thread that reads.
pub(super) struct Counters {
    stop: Arc<AtomicBool>,
    paused: Arc<AtomicBool>,
    reader: JoinHandle<Vec<Reading>>,
}

/// What was read at once; `None` where it cannot be read here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    at_ns: u64,
    resident_bytes: Option<u64>,
    /// Microseconds in which something that could run had to wait, since boot.
    waited_us: Option<u64>,
    /// Ticks stolen from all processors since boot.
    stolen: Option<u64>,
}

impl Counters {
    /// # Errors
    /// No thread to be had.
    pub(super) fn start() -> std::io::Result<Counters> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let paused = Arc::new(AtomicBool::new(false));
        let rests = Arc::clone(&paused);
        let mut readings = vec![Reading { at_ns: 1, ..Reading::default() }; ROOM];
        readings.clear();
        let mut text = vec![0_u8; TEXT_BYTES];
        let [memory, pressure, processors] =
            ["/proc/self/status", "/proc/pressure/cpu", "/proc/stat"].map(|path| File::open(path).ok());
        let body = move || {
            while readings.len() < readings.capacity() {
                let mut read = |file: &Option<File>, parse: fn(&str) -> Option<u64>| {
                    let length = file.as_ref()?.read_at(&mut text, 0).ok()?;
                    // A cut line at the end of a long file is not looked at.
                    parse(std::str::from_utf8(&text[..length]).ok()?)
                };
                if !rests.load(Relaxed) {
                    readings.push(Reading {
                        at_ns: now_ns(),
                        resident_bytes: read(&memory, resident_bytes),
                        waited_us: read(&pressure, waited_us),
                        stolen: read(&processors, stolen_ticks),
                    });
                }
                if seen.load(Relaxed) {
                    break;
                }
                std::thread::park_timeout(PERIOD);
            }
            readings
        };
        let reader = std::thread::Builder::new().name("counters".to_owned()).spawn(body)?;
        Ok(Counters { stop, paused, reader })
    }

    /// Whether anything is read from now on.
    pub(super) fn switch(&self, on: bool) {
        self.paused.store(!on, Relaxed);
    }

    /// Counters over time, and what was stolen between two readings if all was stolen from one processor.
    pub(super) fn stop(self) -> Quantities {
        self.stop.store(true, Relaxed);
        self.reader.thread().unpark();
        Quantities(self.reader.join().unwrap_or_default())
    }
}

/// What a reader has read.
pub(super) struct Quantities(Vec<Reading>);

impl Quantities {
    /// Resident memory, pressure and steal, where they can be read, between two moments.
    pub(super) fn counters(&self, window: (u64, u64)) -> Vec<Counter> {
        let inside = |at: u64| (window.0..=window.1).contains(&at);
        let resident: Vec<(u64, f64)> = self
            .0
            .iter()
            .filter(|reading| inside(reading.at_ns))
            .filter_map(|reading| Some((reading.at_ns, reading.resident_bytes? as f64)))
            .collect();
        // A share of the time since the reading before holds from there.
        let shares = |part_ns: fn(&Reading, &Reading) -> Option<u64>, processors: f64| -> Vec<(u64, f64)> {
            self.0
                .windows(2)
                .filter(|pair| inside(pair[0].at_ns) && pair[1].at_ns > pair[0].at_ns)
                .filter_map(|pair| {
                    let wall = (pair[1].at_ns - pair[0].at_ns) as f64 * processors;
                    Some((pair[0].at_ns, (part_ns(&pair[0], &pair[1])? as f64 / wall).min(1.0)))
                })
                .collect()
        };
        let waited = |a: &Reading, b: &Reading| Some(b.waited_us?.saturating_sub(a.waited_us?) * 1000);
        let stolen = |a: &Reading, b: &Reading| Some(b.stolen?.saturating_sub(a.stolen?) * TICK_NS);
        let processors = ops::processors() as f64;
        let counter = |name: &str, unit, points| Counter { name: name.to_owned(), unit, points };
        [
            counter("resident memory", CounterUnit::Bytes, resident),
            counter("runnable without a processor", CounterUnit::Share, shares(waited, 1.0)),
            counter("stolen by the hypervisor", CounterUnit::Share, shares(stolen, processors)),
        ]
        .into_iter()
        .filter(|counter| !counter.points.is_empty())
        .collect()
    }

    /// What was stolen from all processors together, as the mean of each, on these threads' behalf.
    pub(super) fn steal(&self, threads: &[u32]) -> Vec<StealReading> {
        let processors = ops::processors() as u64;
        let pairs = self.0.windows(2).filter_map(|pair| {
            let stolen_ns = pair[1].stolen?.saturating_sub(pair[0].stolen?) * TICK_NS / processors;
            Some((pair[0].at_ns, pair[1].at_ns, stolen_ns))
        });
        pairs
            .filter(|(_, _, stolen_ns)| *stolen_ns > 0)
            .flat_map(|(start_ns, end_ns, stolen_ns)| {
                threads.iter().map(move |&thread| StealReading { thread, start_ns, end_ns, stolen_ns })
            })
            .collect()
    }
}

/// Behind `VmRSS:` in `/proc/self/status`.
fn resident_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Behind `some ... total=`.
fn waited_us(text: &str) -> Option<u64> {
    text.lines().find(|line| line.starts_with("some"))?.rsplit_once("total=")?.1.trim().parse().ok()
}

/// The eighth number of the first line of `/proc/stat`.
fn stolen_ticks(text: &str) -> Option<u64> {
    text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn files_are_read_as_documented() {
        assert_eq!(resident_bytes("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t   250 kB\n"), Some(250 * 1024));
        assert_eq!(waited_us("some avg10=0.00 avg60=0.12 avg300=0.05 total=123456\nfull total=9\n"), Some(123_456));
        assert_eq!(stolen_ticks("cpu  100 5 20 1000 30 2 3 40 7 0\ncpu0 1 2\n"), Some(40));
        assert_eq!(
            (resident_bytes("VmHWM: 9 kB"), waited_us("full total=9"), stolen_ticks("cpu  1 2")),
            (None, None, None)
        );
    }

    #[test]
    fn shares_are_of_the_time_between_two_readings() {
        let reading = |at_ns, waited_us, stolen| Reading { at_ns, resident_bytes: Some(4096), waited_us, stolen };
        let second = 1_000_000_000;
        let quantities = Quantities(vec![
            reading(0, Some(0), None),
            reading(second, Some(250_000), None),
            reading(2 * second, Some(250_000), None),
        ]);
        let counters = quantities.counters((0, second));
        assert_eq!(counters.len(), 2, "steal cannot be read: no counter");
        assert_eq!(counters[0].points, [(0, 4096.0), (second, 4096.0)]);
        assert_eq!(counters[1].points, [(0, 0.25), (second, 0.0)]);
        assert!(quantities.steal(&[1]).is_empty());
    }
}
