//! Pages of packed weights near the worker that reads them: on a machine whose processors have memory of their own (NUMA), a page
//! lies where the thread runs that touches it first. Not here: packing, which writes the pages afterwards.

#![allow(unsafe_code, reason = "pages of an arena that nobody uses yet are touched from several threads")]

use super::{Entry, LANES};
use crate::arena::Arena;
use crate::invocation::portion;
use crate::workers::affinity;
use std::ops::Range;

/// The smallest page of the processors that this runs on. A larger page comes with its first part.
const PAGE: usize = 4096;

/// Touches every page of the weights on the processor of the worker that reads it, `workers` of them pinned as [`Workers`] pins
/// them. Pages of two megabytes and shares that are smaller mix: what helps is as fine as the pages are.
///
/// [`Workers`]: crate::Workers
///
/// # Errors
/// A thread that cannot be made; the processors that may be used are unknown.
pub(super) fn touch(arena: &Arena, entries: &[Entry], workers: usize) -> std::io::Result<()> {
    let processors = affinity::allowed()?;
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let processor = processors[worker % processors.len()];
            std::thread::Builder::new().spawn_scoped(scope, move || {
                // Memory far away is slower, not wrong.
                let _ = affinity::pin(processor);
                for entry in entries {
                    for blocks in blocks_of(entry.rows.div_ceil(LANES), worker, workers) {
                        touch_bytes(arena, entry.bytes_of(blocks));
                    }
                }
            })?;
        }
        Ok(())
    })
}

/// The row blocks that a worker reads: its portion of three quarters, as `Invocation::portions` deals them, and each of the others
/// in turn, as nobody knows who takes those.
fn blocks_of(blocks: usize, worker: usize, workers: usize) -> impl Iterator<Item = Range<usize>> {
    let open = blocks / 4;
    let rest = (blocks - open + worker..blocks).step_by(workers).map(|block| block..block + 1);
    std::iter::once(portion(blocks - open, worker, workers)).chain(rest)
}

fn touch_bytes(arena: &Arena, bytes: Range<usize>) {
    assert!(bytes.end <= arena.len(), "weights lie within the arena");
    let first = bytes.start.next_multiple_of(PAGE);
    for at in (first..bytes.end).step_by(PAGE) {
        // SAFETY: within the arena (asserted), whose bytes are zero and not in use: no two threads touch the same one.
        unsafe { arena.as_mut_ptr().add(at).write_volatile(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_near_one_worker_and_fixed_shares_near_their_own() {
        for blocks in [0, 1, 3, 7, 64, 193] {
            for workers in [1, 2, 3, 8] {
                let mut near = vec![0; blocks];
                for worker in 0..workers {
                    for range in blocks_of(blocks, worker, workers) {
                        range.for_each(|block| near[block] += 1);
                    }
                }
                assert!(near.iter().all(|count| *count == 1), "{blocks} blocks, {workers} workers: {near:?}");
            }
        }
        let first: Vec<Range<usize>> = blocks_of(16, 1, 2).collect();
        assert_eq!(first, [6..12, 13..14, 15..16]);
    }
}
