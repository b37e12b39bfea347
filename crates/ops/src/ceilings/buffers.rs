//! Memory whose contents are known, and the workers that read or copy exactly so much of it: the sum of what they read says
//! that they read it. Not here: how one worker reads its part (`traffic.rs`), and how long it took.

use super::traffic::{self, LINE};
use crate::{Arena, Workers};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Odd, so that every word of a buffer differs from its neighbours in all of its bits' places.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A source of known words and a target to copy to, in huge pages where the system grants them.
pub struct Buffers {
    source: Arena,
    target: Arena,
}

/// The wrapping sum of the first `bytes / 8` words of a source.
pub fn expected_sum(bytes: usize) -> u64 {
    let words = (bytes / 8) as u64;
    // One of two neighbours is even, so the division is exact before the product wraps.
    let pairs = if words.is_multiple_of(2) {
        (words / 2).wrapping_mul(words.wrapping_sub(1))
    } else {
        words.wrapping_mul(words.wrapping_sub(1) / 2)
    };
    pairs.wrapping_mul(STEP)
}

impl Buffers {
    /// A source of `source` bytes and a target of `target` bytes (each rounded up to lines of 64); their pages are first
    /// touched by the workers that will use them when all of `workers` go through everything.
    ///
    /// # Errors
    /// The operating system's when it refuses the memory.
    pub fn new(source: usize, target: usize, workers: &Workers) -> std::io::Result<Buffers> {
        let (source, target) = (source.next_multiple_of(LINE), target.next_multiple_of(LINE));
        let mut buffers = Buffers { source: Arena::new(source)?, target: Arena::new(target)? };
        let shares = shares(source, workers.count());
        let parts = split(buffers.source.as_mut_slice(), &shares);
        workers.run(&|worker| {
            let first_word = shares[worker].start / 8;
            let mut part = parts[worker].lock().unwrap_or_else(PoisonError::into_inner);
            for (index, word) in part.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&((first_word + index) as u64).wrapping_mul(STEP).to_le_bytes());
            }
        });
        let parts = split(buffers.target.as_mut_slice(), &self::shares(target, workers.count()));
        workers.run(&|worker| parts[worker].lock().unwrap_or_else(PoisonError::into_inner).fill(1));
        drop(parts);
        Ok(buffers)
    }

    /// Bytes of the source.
    pub fn bytes(&self) -> usize {
        self.source.len()
    }

    /// All workers together read the first `footprint` bytes (whole lines of 64) `passes` times, each its part from `streams`
    /// places in turn. Returns the wrapping sum of all words read: `passes` times [`expected_sum`].
    ///
    /// # Panics
    /// Beyond the source, of a broken line, or with a number of streams that is not in [`super::STREAMS`].
    pub fn read(&self, workers: &Workers, footprint: usize, streams: usize, passes: u64) -> u64 {
        assert!(footprint <= self.bytes() && footprint.is_multiple_of(LINE), "{footprint} of {}", self.bytes());
        let shares = shares(footprint, workers.count());
        let (source, total) = (self.source.as_slice(), AtomicU64::new(0));
        workers.run(&|worker| {
            let part = &source[shares[worker].clone()];
            let sum = (0..passes).fold(0u64, |sum, _| sum.wrapping_add(traffic::read(part, streams)));
            total.fetch_add(sum, Relaxed);
        });
        total.into_inner()
    }

    /// All workers together copy the first `bytes` bytes (whole lines of 64) of the source into the target `passes` times.
    ///
    /// # Panics
    /// Beyond the target, of a broken line, or with a number of streams that is not in [`super::STREAMS`].
    pub fn copy(&mut self, workers: &Workers, bytes: usize, streams: usize, passes: u64) {
        assert!(bytes <= self.target.len() && bytes.is_multiple_of(LINE), "{bytes} of {}", self.target.len());
        let shares = shares(bytes, workers.count());
        let source = self.source.as_slice();
        let parts = split(&mut self.target.as_mut_slice()[..bytes], &shares);
        workers.run(&|worker| {
            let mut part = parts[worker].lock().unwrap_or_else(PoisonError::into_inner);
            for _ in 0..passes {
                traffic::copy(&source[shares[worker].clone()], &mut part, streams);
            }
        });
    }
}

/// Each worker's part of `bytes` bytes, in whole lines.
fn shares(bytes: usize, workers: usize) -> Vec<Range<usize>> {
    let lines = (bytes / LINE) as u128;
    let at = |worker: usize| (lines * worker as u128 / workers as u128) as usize * LINE;
    (0..workers).map(|worker| at(worker)..at(worker + 1)).collect()
}

/// The parts, each for the one worker that locks it.
fn split<'a>(mut whole: &'a mut [u8], shares: &[Range<usize>]) -> Vec<Mutex<&'a mut [u8]>> {
    let mut parts = Vec::with_capacity(shares.len());
    for share in shares {
        let (part, rest) = whole.split_at_mut(share.len());
        parts.push(Mutex::new(part));
        whole = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_expected_sum_is_the_sum_of_the_words() {
        for words in [0u64, 1, 2, 7, 8, 1000] {
            let sum = (0..words).fold(0u64, |sum, word| sum.wrapping_add(word.wrapping_mul(STEP)));
            assert_eq!(expected_sum(words as usize * 8), sum);
        }
    }

    #[test]
    fn every_byte_is_read_once_per_pass_whatever_the_workers_and_streams() {
        for count in 1..=3 {
            let workers = Workers::new(count, false).unwrap();
            let buffers = Buffers::new(1 << 17, 1 << 16, &workers).unwrap();
            for footprint in [0, 64, 64 * 17, 64 * 1000, 1 << 17] {
                for streams in traffic::STREAMS {
                    let sum = buffers.read(&workers, footprint, streams, 3);
                    assert_eq!(sum, expected_sum(footprint).wrapping_mul(3), "{count} {footprint} {streams}");
                }
            }
        }
    }

    #[test]
    fn a_copy_is_the_source_as_far_as_it_goes() {
        let workers = Workers::new(3, false).unwrap();
        for streams in traffic::STREAMS {
            for bytes in [0, 64, 64 * 17, 64 * 501] {
                let mut buffers = Buffers::new(1 << 17, 1 << 16, &workers).unwrap();
                buffers.copy(&workers, bytes, streams, 2);
                assert_eq!(buffers.target.as_slice()[..bytes], buffers.source.as_slice()[..bytes]);
                assert!(buffers.target.as_slice()[bytes..].iter().all(|byte| *byte == 1), "{streams} {bytes}");
            }
        }
    }
}
