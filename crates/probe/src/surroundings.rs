//! The machine around a process that is being measured: what the hypervisor and other processes took, pressure, clock rate.
//! Not here: the process's own times (`clock.rs`), and from where on they are too much (the binary says).

use record::bench::Surroundings;
use record::{Known, Reading, Unit};
use std::fs;
use std::hint::black_box;
use std::time::Instant;

const HOW: &str = "measure on Linux with /proc mounted";

/// Spins that the best is taken of, and dependent operations of each: about a millisecond.
const SPINS: usize = 5;
const OPERATIONS: u64 = 3_000_000;

/// What was read just before a process starts.
pub struct Before {
    frequency: Known<f64>,
    load: Known<f64>,
}

/// A watch over a running child, from [`Before::watch`] to [`Watch::stop`].
pub struct Watch {
    before: Before,
    process: u32,
    started: Instant,
    counters: Counters,
}

/// A stopped watch; complete once the child has ended.
pub struct Watched {
    before: Before,
    seconds: f64,
    steal: Reading,
    others: Reading,
    cpu_pressure: Reading,
    memory_pressure: Reading,
}

impl Before {
    /// Reads load and clock rate; takes a few milliseconds of one processor.
    pub fn now() -> Before {
        Before { frequency: frequency(), load: load() }
    }

    /// Starts watching.
    pub fn watch(self, process: u32) -> Watch {
        Watch { before: self, process, started: Instant::now(), counters: Counters::now(process) }
    }
}

impl Watch {
    /// Stops; the child must not have been waited for yet, or what others used is unknown.
    pub fn stop(self) -> Watched {
        let now = Counters::now(self.process);
        let seconds = self.started.elapsed().as_secs_f64();
        let (steal, others) = shares(&self.counters, &now);
        let pressure = |before: &Result<u64, String>, now: &Result<u64, String>| match (before, now) {
            // Microseconds in which at least one task waited.
            (Ok(before), Ok(now)) => Reading::ratio(now.saturating_sub(*before) as f64 / 1e6, seconds, Unit::Share, 1),
            (Err(why), _) | (_, Err(why)) => Known::unavailable(why.as_str(), "boot with psi=1"),
        };
        Watched {
            cpu_pressure: pressure(&self.counters.cpu_pressure, &now.cpu_pressure),
            memory_pressure: pressure(&self.counters.memory_pressure, &now.memory_pressure),
            before: self.before,
            seconds,
            steal,
            others,
        }
    }
}

impl Watched {
    /// The whole of it; reads the clock rate again.
    pub fn finish(self, involuntary_switches: Known<u64>) -> Surroundings {
        Surroundings {
            seconds: self.seconds,
            steal: self.steal,
            others: self.others,
            cpu_pressure: self.cpu_pressure,
            memory_pressure: self.memory_pressure,
            involuntary_switches,
            frequency_before: self.before.frequency,
            frequency_after: frequency(),
            load_before: self.before.load,
        }
    }
}

/// Counters since boot, or why they cannot be read.
struct Counters {
    machine: Result<Ticks, String>,
    /// Of the watched process.
    child: Result<u64, String>,
    cpu_pressure: Result<u64, String>,
    memory_pressure: Result<u64, String>,
}

/// Ticks of all processors together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    all: u64,
    busy: u64,
    steal: u64,
}

impl Counters {
    fn now(process: u32) -> Counters {
        Counters {
            machine: read("/proc/stat", ticks),
            child: read(&format!("/proc/{process}/stat"), child_ticks),
            cpu_pressure: read("/proc/pressure/cpu", some_total),
            memory_pressure: read("/proc/pressure/memory", some_total),
        }
    }
}

fn read<T>(path: &str, parse: fn(&str) -> Option<T>) -> Result<T, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}"))?;
    parse(&text).ok_or_else(|| format!("{path} is not as expected"))
}

fn shares(before: &Counters, now: &Counters) -> (Reading, Reading) {
    let missing = |why: &str| Reading::unavailable(why, HOW);
    let (before_ticks, now_ticks) = match (&before.machine, &now.machine) {
        (Ok(before), Ok(now)) => (before, now),
        (Err(why), _) | (_, Err(why)) => return (missing(why), missing(why)),
    };
    let all = now_ticks.all.saturating_sub(before_ticks.all) as f64;
    let share = |ticks: u64| Reading::ratio((ticks as f64).min(all), all, Unit::Share, 1);
    let others = match (&before.child, &now.child) {
        (Ok(child_before), Ok(child_now)) => {
            let busy = now_ticks.busy.saturating_sub(before_ticks.busy);
            share(busy.saturating_sub(child_now.saturating_sub(*child_before)))
        }
        (Err(why), _) | (_, Err(why)) => missing(why),
    };
    (share(now_ticks.steal.saturating_sub(before_ticks.steal)), others)
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user already.
fn ticks(text: &str) -> Option<Ticks> {
    let fields: Vec<u64> =
        text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, idle, waiting, irq, softirq, steal, ..] = fields[..] else { return None };
    let busy = user + nice + system + irq + softirq;
    Some(Ticks { all: busy + idle + waiting + steal, busy, steal })
}

/// User and system ticks of a process and all its threads, behind the name in brackets.
fn child_ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

/// Microseconds behind `some ... total=`.
fn some_total(text: &str) -> Option<u64> {
    text.lines().find(|line| line.starts_with("some"))?.rsplit_once("total=")?.1.trim().parse().ok()
}

fn load() -> Known<f64> {
    match read("/proc/loadavg", |text| {
        text.split_whitespace().next()?.parse::<f64>().ok().filter(|load| load.is_finite())
    }) {
        Ok(load) => Known::Is(load),
        Err(why) => Known::unavailable(why, HOW),
    }
}

/// Dependent one-cycle operations per nanosecond of this thread: the best of a few short spins, so that a spin that lost its
/// processor does not count.
fn frequency() -> Known<f64> {
    let spin = || {
        let start = Instant::now();
        let mut x = black_box(0x9e37_79b9_7f4a_7c15_u64);
        // Three shifts and three exclusive-ors, each waiting for the one before it; no closed form to fold them into.
        for _ in 0..OPERATIONS / 6 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
        }
        black_box(x);
        start.elapsed().as_nanos()
    };
    match (0..SPINS).map(|_| spin()).min() {
        Some(nanoseconds) if nanoseconds > 0 => Known::Is(OPERATIONS as f64 / nanoseconds as f64),
        _ => Known::unavailable("the clock did not move while a thread spun", "use a machine with a working clock"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn counters_are_read_as_documented() {
        let stat = "cpu  100 5 20 1000 30 2 3 40 7 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(ticks(stat), Some(Ticks { all: 1200, busy: 130, steal: 40 }));
        assert_eq!(ticks("cpu  1 2 3\n"), None);
        assert_eq!(child_ticks("7 (a) b) R 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0"), Some(300));
        let pressure = "some avg10=0.00 avg60=0.12 avg300=0.05 total=123456\nfull avg10=0.00 total=9\n";
        assert_eq!(some_total(pressure), Some(123_456));
        assert_eq!(some_total("full total=9"), None);
    }

    #[test]
    fn the_child_is_not_among_the_others() {
        let counters = |busy, steal, child: Result<u64, String>| Counters {
            machine: Ok(Ticks { all: 1000 + busy + steal, busy, steal }),
            child,
            cpu_pressure: Err("no".into()),
            memory_pressure: Err("no".into()),
        };
        let (mut before, mut now) = (counters(100, 0, Ok(10)), counters(300, 50, Ok(150)));
        before.machine.as_mut().unwrap().all = 1000;
        now.machine.as_mut().unwrap().all = 1500;
        let (steal, others) = shares(&before, &now);
        assert_eq!((steal.value(), others.value()), (Some(0.1), Some((200.0 - 140.0) / 500.0)));
        let (steal, others) = shares(&before, &counters(300, 50, Err("/proc/7/stat cannot be read".into())));
        assert!(steal.known().is_some() && others.missing().unwrap().unavailable.contains("/proc/7/stat"));
    }

    /// This process watched by itself: everything that can be read on this machine is finite and in range.
    #[test]
    fn a_watch_gives_shares() {
        let watch = Before::now().watch(std::process::id());
        let surroundings = watch.stop().finish(Known::Is(0));
        for reading in [&surroundings.steal, &surroundings.others] {
            assert!(reading.value().is_none_or(|share| (0.0..=1.0).contains(&share)), "{surroundings:?}");
        }
        assert!(surroundings.frequency_before.known().is_some_and(|rate| *rate > 0.0));
    }
}
