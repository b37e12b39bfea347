//! The clock that everything in a timeline counts from: CLOCK_MONOTONIC, in nanoseconds, as the kernel's own events use it.
//! Not here: durations within one thread, for which `Instant` is enough.

use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Now.
pub(crate) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Time that the calling thread has spent on a processor.
pub(crate) fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// An `Instant` of the past as such a time. Both read the same clock; what lies between the two readings here is the error,
/// some tens of nanoseconds.
pub(crate) fn at_ns(instant: Instant) -> u64 {
    let elapsed = instant.elapsed();
    now_ns().saturating_sub(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
