//! How much of the processors this process got while it was timed: on a busy machine every time is too long, and this says so.
//! Not here: the times themselves (`clock.rs`).

use record::{Known, Reading, Unit};
use std::fs;
use std::time::Duration;

/// The tick of `/proc/self/stat` (USER_HZ, 100 on every Linux that this builds for).
const TICK: f64 = 0.01;
/// Shorter stretches are too few ticks to divide.
const SHORTEST: Duration = Duration::from_millis(500);

/// Processor time that this process has used so far.
pub(crate) struct ProcessorTime(Result<f64, String>);

impl ProcessorTime {
    pub(crate) fn now() -> ProcessorTime {
        let text = fs::read_to_string("/proc/self/stat").map_err(|error| format!("/proc/self/stat: {error}"));
        ProcessorTime(
            text.and_then(|text| seconds(&text).ok_or_else(|| "/proc/self/stat is not as expected".to_owned())),
        )
    }

    /// Seconds of processor time used since; why not, if they cannot be read.
    pub(crate) fn seconds_since(&self) -> Result<f64, String> {
        Ok(ProcessorTime::now().0? - self.0.clone()?)
    }

    /// The part of `elapsed` (ending now) that `workers` workers spent on a processor, at most the whole.
    pub(crate) fn share_since(&self, elapsed: Duration, workers: usize) -> Reading {
        let mut stretches = Stretches::none();
        stretches.add(self, elapsed);
        stretches.share(workers)
    }
}

/// Processor time over stretches with something else between them.
pub(crate) struct Stretches {
    used: Result<f64, String>,
    elapsed: Duration,
}

impl Stretches {
    pub(crate) fn none() -> Stretches {
        Stretches { used: Ok(0.0), elapsed: Duration::ZERO }
    }

    /// A stretch of `elapsed` that began with `since` and ends now.
    pub(crate) fn add(&mut self, since: &ProcessorTime, elapsed: Duration) {
        self.elapsed += elapsed;
        if let Ok(used) = &mut self.used {
            match since.seconds_since() {
                Ok(seconds) => *used += seconds,
                Err(why) => self.used = Err(why),
            }
        }
    }

    /// The part of all stretches that `workers` workers spent on a processor, at most the whole.
    pub(crate) fn share(&self, workers: usize) -> Reading {
        let how = "clock a longer request on Linux, with /proc mounted";
        if self.elapsed < SHORTEST {
            let why = format!("{:.0} ms are too few of its 10 ms ticks", self.elapsed.as_secs_f64() * 1e3);
            return Known::unavailable(why, how);
        }
        match &self.used {
            Ok(used) => {
                let processors = ops::processors();
                let whole = self.elapsed.as_secs_f64() * workers.min(processors) as f64;
                Reading::ratio(used.min(whole), whole, Unit::Share, 1)
            }
            Err(why) => Known::unavailable(why.as_str(), how),
        }
    }
}

/// How often a thread of this process has lost its processor to another task, over the threads that live now.
pub(crate) fn involuntary_switches() -> Result<u64, String> {
    let folder = "/proc/self/task";
    let threads = fs::read_dir(folder).map_err(|error| format!("{folder} cannot be read: {error}"))?;
    let mut total = 0_u64;
    for thread in threads {
        let path = thread.map_err(|error| format!("{folder} cannot be read: {error}"))?.path().join("status");
        // A thread that ended meanwhile is none that is measured.
        let Ok(status) = fs::read_to_string(&path) else { continue };
        let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
        let count = line.and_then(|count| count.trim().parse::<u64>().ok());
        total += count.ok_or_else(|| format!("{} does not count involuntary switches", path.display()))?;
    }
    Ok(total)
}

/// The same since an earlier reading.
pub(crate) fn switches_since(before: Result<u64, String>) -> Known<u64> {
    match (before, involuntary_switches()) {
        (Ok(before), Ok(now)) => Known::Is(now.saturating_sub(before)),
        (Err(why), _) | (_, Err(why)) => Known::unavailable(why, "measure on Linux, with /proc mounted"),
    }
}

/// User and system time: fields 14 and 15, counted behind the name in brackets, which may hold anything.
fn seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user.checked_add(system)? as f64 * TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let stat = "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0";
        assert_eq!(seconds(stat), Some(3.0));
        assert_eq!(seconds("7 (a) R 1 2"), None);
        assert_eq!(seconds(""), None);
    }

    #[test]
    fn switches_only_ever_grow() {
        let before = involuntary_switches().unwrap_or(0);
        assert!(involuntary_switches().is_ok_and(|after| after >= before));
    }

    #[test]
    fn a_short_stretch_has_no_share() {
        let share = ProcessorTime::now().share_since(Duration::from_millis(20), 2);
        assert!(share.missing().is_some_and(|missing| missing.unavailable.contains("too few")));
    }
}
