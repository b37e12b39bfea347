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
        let how = "clock a longer request on Linux, with /proc mounted";
        if elapsed < SHORTEST {
            let why = format!("{:.0} ms are too few of its 10 ms ticks", elapsed.as_secs_f64() * 1e3);
            return Known::unavailable(why, how);
        }
        match (&self.0, ProcessorTime::now().0) {
            (Ok(before), Ok(now)) => {
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                let whole = elapsed.as_secs_f64() * workers.min(processors) as f64;
                Reading::ratio((now - before).min(whole), whole, Unit::Share, 1)
            }
            (Err(why), _) => Known::unavailable(why.as_str(), how),
            (_, Err(why)) => Known::unavailable(why, how),
        }
    }
}

/// Processor time of the whole machine so far, in ticks: what the hypervisor gave to others, and everything.
pub(crate) struct MachineTime(Result<(u64, u64), String>);

impl MachineTime {
    pub(crate) fn now() -> MachineTime {
        let text = fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"));
        MachineTime(text.and_then(|text| stolen(&text).ok_or_else(|| "/proc/stat is not as expected".to_owned())))
    }

    /// The part of the machine's processor time that was stolen since.
    pub(crate) fn steal_since(&self) -> Reading {
        let how = "measure for longer on Linux, with /proc mounted";
        match (&self.0, MachineTime::now().0) {
            (Ok((stolen, all)), Ok((stolen_now, all_now))) if all_now > *all => {
                let (stolen, all) = (stolen_now.saturating_sub(*stolen), all_now - all);
                Reading::ratio(stolen as f64, all as f64, Unit::Share, 1)
            }
            (Ok(_), Ok(_)) => Known::unavailable("less than one tick of 10 ms passed", how),
            (Err(why), _) => Known::unavailable(why.as_str(), how),
            (_, Err(why)) => Known::unavailable(why, how),
        }
    }
}

/// The steal column of the line of all processors, and the sum of its first eight columns (the others are parts of these).
fn stolen(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let columns: Vec<u64> = line.split_whitespace().take(8).map(|column| column.parse().ok()).collect::<Option<_>>()?;
    let all = columns.iter().try_fold(0u64, |sum, column| sum.checked_add(*column))?;
    Some((*columns.get(7)?, all))
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
    fn steal_is_the_eighth_column_of_all_processors() {
        let stat = "cpu  10 20 30 40 5 6 7 8 100 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(stolen(stat), Some((8, 126)));
        assert_eq!(stolen("cpu  1 2 3"), None);
        assert_eq!(stolen("cpu  1 2 3 4 5 6 7 x"), None);
    }

    #[test]
    fn a_short_stretch_has_no_share() {
        let share = ProcessorTime::now().share_since(Duration::from_millis(20), 2);
        assert!(share.missing().is_some_and(|missing| missing.unavailable.contains("too few")));
    }
}
