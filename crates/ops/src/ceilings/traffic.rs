//! One worker's reading and copying: every line of its part once, from several places in turn, with the widest loads there are.
//! Not here: whose part is what, and what the words should be (`buffers.rs`).

#![allow(unsafe_code, reason = "loads and stores of whole lines through pointers into checked slices")]

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Numbers of places that a worker may read from in turn. Which is faster depends on the machine's prefetchers.
pub const STREAMS: [usize; 2] = [4, 8];

/// Bytes that a stream is asked for ahead of use. Measured on two cores of a Zen 4: without it reading memory loses a tenth.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1024;

/// The wrapping sum of the part's words, read once each.
///
/// # Panics
/// If `streams` is not in [`STREAMS`].
pub(super) fn read(part: &[u8], streams: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: each is called behind the detection of the features that it is compiled for.
        unsafe {
            match (is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("avx2"), streams) {
                (true, _, 4) => return x86::read_avx512::<4>(part),
                (true, _, 8) => return x86::read_avx512::<8>(part),
                (false, true, 4) => return x86::read_avx2::<4>(part),
                (false, true, 8) => return x86::read_avx2::<8>(part),
                _ => {}
            }
        }
    }
    assert!(STREAMS.contains(&streams), "{streams} streams");
    words(part)
}

/// `to` becomes `from`; whole lines are written past the caches where the machine can.
///
/// # Panics
/// If the lengths differ, or `streams` is not in [`STREAMS`].
pub(super) fn copy(from: &[u8], to: &mut [u8], streams: usize) {
    assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && to.as_ptr().align_offset(LINE) == 0 {
        // SAFETY: the feature is there, the lengths are equal, and the target is aligned to lines.
        unsafe {
            match streams {
                4 => return x86::copy_avx512::<4>(from, to),
                8 => return x86::copy_avx512::<8>(from, to),
                _ => {}
            }
        }
    }
    assert!(STREAMS.contains(&streams), "{streams} streams");
    to.copy_from_slice(from);
}

fn words(part: &[u8]) -> u64 {
    let words = part.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    words.fold(0, u64::wrapping_add)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{AHEAD, LINE, words};
    use std::arch::x86_64::*;

    /// Lines per stream: an odd number, so that the streams do not fall into the same cache sets and memory banks. The few
    /// lines that are left over follow at the end.
    fn per_stream(bytes: usize, streams: usize) -> usize {
        let lines = bytes / LINE / streams;
        if lines.is_multiple_of(2) { lines.saturating_sub(1) } else { lines }
    }

    /// # Safety
    /// The processor has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn read_avx512<const STREAMS: usize>(part: &[u8]) -> u64 {
        let lines = per_stream(part.len(), STREAMS);
        let mut sums = [_mm512_setzero_si512(); STREAMS];
        let start = part.as_ptr();
        for line in 0..lines {
            for (stream, sum) in sums.iter_mut().enumerate() {
                let at = start.wrapping_add((stream * lines + line) * LINE);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                // SAFETY: `STREAMS * lines` lines lie within the part.
                *sum = _mm512_add_epi64(*sum, unsafe { _mm512_loadu_si512(at.cast()) });
            }
        }
        let total = sums.into_iter().fold(_mm512_setzero_si512(), |total, sum| _mm512_add_epi64(total, sum));
        (_mm512_reduce_add_epi64(total) as u64).wrapping_add(words(&part[STREAMS * lines * LINE..]))
    }

    /// # Safety
    /// The processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn read_avx2<const STREAMS: usize>(part: &[u8]) -> u64 {
        let lines = per_stream(part.len(), STREAMS);
        let mut sums = [_mm256_setzero_si256(); STREAMS];
        let start = part.as_ptr();
        for line in 0..lines {
            for (stream, sum) in sums.iter_mut().enumerate() {
                let at = start.wrapping_add((stream * lines + line) * LINE);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                // SAFETY: `STREAMS * lines` lines lie within the part.
                let (low, high) =
                    unsafe { (_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.wrapping_add(LINE / 2).cast())) };
                *sum = _mm256_add_epi64(*sum, _mm256_add_epi64(low, high));
            }
        }
        let total = sums.into_iter().fold(_mm256_setzero_si256(), |total, sum| _mm256_add_epi64(total, sum));
        let mut lanes = [0u64; 4];
        // SAFETY: four words of room.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), total) };
        lanes.into_iter().fold(words(&part[STREAMS * lines * LINE..]), u64::wrapping_add)
    }

    /// # Safety
    /// The processor has AVX-512F, the lengths are equal, and `to` starts on a line.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn copy_avx512<const STREAMS: usize>(from: &[u8], to: &mut [u8]) {
        let lines = per_stream(from.len(), STREAMS);
        let (source, target) = (from.as_ptr(), to.as_mut_ptr());
        for line in 0..lines {
            for stream in 0..STREAMS {
                let at = (stream * lines + line) * LINE;
                _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(at + AHEAD).cast());
                // SAFETY: `STREAMS * lines` lines lie within both, and the target's are aligned.
                unsafe {
                    let values = _mm512_loadu_si512(source.wrapping_add(at).cast());
                    _mm512_stream_si512(target.wrapping_add(at).cast(), values);
                }
            }
        }
        // Stores past the caches are ordered by nothing else.
        _mm_sfence();
        to[STREAMS * lines * LINE..].copy_from_slice(&from[STREAMS * lines * LINE..]);
    }
}
