//! Asking memory for lines that will be read later. Not here: when that pays, which is each kernel's to measure.

#![allow(unsafe_code, reason = "prefetches")]

use crate::weight::LINE;

/// Asks for `bytes` bytes from `at` on, into the second-level cache.
#[inline(always)]
pub(super) fn second_level(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        let at = at.wrapping_add(line);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program could see and never faults.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}
