//! How much memory this process has needed: what the operating system counted.
//! Not here: what was allocated (`ops::memory`); the two differ by what was reserved and never touched.

use record::{Reading, Unit};

/// Largest resident size of this process so far, file pages among it, in bytes (VmHWM).
pub(crate) fn peak_resident_bytes() -> Reading {
    let status = match std::fs::read_to_string("/proc/self/status") {
        Ok(status) => status,
        Err(error) => {
            return Reading::unavailable(format!("/proc/self/status cannot be read: {error}"), "mount /proc");
        }
    };
    match peak_in(&status) {
        Some(bytes) => Reading::measured(bytes as f64, Unit::Bytes, 1),
        None => Reading::unavailable("/proc/self/status has no VmHWM line", "use a kernel that reports it"),
    }
}

fn peak_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_line_is_read_in_bytes_and_a_missing_one_is_not_zero() {
        assert_eq!(peak_in("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"), Some(2048 * 1024));
        assert_eq!(peak_in("Name:\tx\nVmRSS:\t 1 kB\n"), None);
        assert_eq!(peak_in("VmHWM:\t99999999999999999999 kB\n"), None);
    }
}
