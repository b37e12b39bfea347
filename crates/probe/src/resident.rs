//! The most physical memory that this process has had: what the operating system counted.
//! Not here: what was allocated (`ops::memory`); the two differ by what was reserved and never touched, and by file pages.

use record::{Reading, Unit};

/// Largest resident size of this process, file pages among it, in bytes (VmHWM): since its start, or since
/// [`reset_peak_resident`].
pub fn peak_resident_bytes() -> Reading {
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

/// Sets the peak to what is resident now. False: the system does not allow it, and the peak goes on covering the process
/// since its start.
pub fn reset_peak_resident() -> bool {
    // 5 is the kernel's number for "reset the peak resident size" (proc_pid_clear_refs(5)).
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
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

    /// 64 MiB touched and given back count until the reset, and not after it.
    #[test]
    fn a_reset_forgets_what_was_released() {
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        drop(block);
        let before = peak_resident_bytes().value();
        if !reset_peak_resident() {
            println!("skipped: this system does not allow to reset the peak (/proc/self/clear_refs)");
            return;
        }
        let after = peak_resident_bytes().value();
        assert!(after < before, "{after:?} after a reset, {before:?} before");
    }
}
