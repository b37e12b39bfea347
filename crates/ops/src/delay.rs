//! An observer that makes calls longer, each worker's share by its own time: would a faster operator move the request?
//! Not here: how long each worker is to be held back at which call, and what follows from it (`probe`).
//!
//! Holding every worker back alike would lengthen any request by just that: nobody could make up for it. A slower operator is
//! slower only where it has work, so a worker whose share of a call is empty must not be held back there.

use crate::bind::BoundCall;
use crate::walk::Observer;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Holds worker w back after its share of call c for a time of its own, and counts the time that this really took.
pub struct Delay {
    workers: usize,
    /// Nanoseconds, `(calls, workers)` row-major.
    wanted: Vec<u64>,
    /// The same, as they were over all walks; each element is written by one worker.
    spent: Vec<AtomicU64>,
}

impl Delay {
    /// `nanoseconds` is `(calls, workers)` row-major, for a program of so many calls.
    ///
    /// # Panics
    /// If it is not whole rows.
    pub fn new(workers: usize, nanoseconds: Vec<u64>) -> Delay {
        assert!(nanoseconds.len().is_multiple_of(workers), "one number per call and worker");
        let spent = nanoseconds.iter().map(|_| AtomicU64::new(0)).collect();
        Delay { workers, wanted: nanoseconds, spent }
    }

    /// Nanoseconds by which the calls became longer since the last reset: of each call its most delayed worker's.
    pub fn injected(&self) -> u64 {
        let longest = |call: &[AtomicU64]| call.iter().map(|spent| spent.load(Relaxed)).max().unwrap_or(0);
        self.spent.chunks_exact(self.workers).map(longest).sum()
    }

    /// Starts counting anew.
    pub fn reset(&self) {
        self.spent.iter().for_each(|spent| spent.store(0, Relaxed));
    }
}

impl Observer for Delay {
    #[inline]
    fn ends(&self, worker: usize, index: usize, _call: &BoundCall) {
        let place = index * self.workers + worker;
        let wanted = self.wanted[place];
        if wanted == 0 {
            return;
        }
        let start = Instant::now();
        let spent = loop {
            let spent = start.elapsed().as_nanos() as u64;
            if spent >= wanted {
                break spent;
            }
            std::hint::spin_loop();
        };
        let so_far = &self.spent[place];
        so_far.store(so_far.load(Relaxed) + spent, Relaxed);
    }
}
