//! The clock that everything in a timeline counts from: CLOCK_MONOTONIC, in nanoseconds, as the kernel's own events use it.
//! Not here: durations within one thread, for which `Instant` is enough.

use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// How often two clocks are read to find how far they are apart.
const READINGS: usize = 64;

/// Now.
pub(crate) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Time that the calling thread has spent on a processor.
pub(crate) fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// An `Instant` of the past as such a time. Both read the same clock, but not at once: of several readings the one counts whose
/// two ends are closest. A single one that was interrupted put every span of a trace 6 us beside its samples.
pub(crate) fn at_ns(instant: Instant) -> u64 {
    let reading = |_| {
        let before = now_ns();
        let elapsed = u64::try_from(instant.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let after = now_ns();
        (after.saturating_sub(before), u64::midpoint(before, after).saturating_sub(elapsed))
    };
    (0..READINGS).map(reading).min().map_or(0, |(_, at)| at)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
