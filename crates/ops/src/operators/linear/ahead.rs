//! What a worker that waits for a matrix-vector call's input asks memory for: the first lines of its share of W, in the order
//! in which the kernel will read them. Not here: when it asks (`walk.rs`), and the kernels.

use super::super::prefetch::second_level;
use crate::Invocation;
use crate::weight::{LANES, LINE};

/// Bytes of one worker's share that are asked for at most: they must still lie in its second-level cache when the call begins.
const MOST: usize = 256 << 10;
/// Lines of each stream that are asked for at a time: a worker sees that the barrier has opened between two pieces.
const LINES: usize = 2;

/// The worker's first row blocks of weight 0, walked in `streams` streams of equal length: asks for piece `piece` of each; false beyond
/// what the streams hold, or what is worth asking for.
pub(super) fn ahead(i: &Invocation<'_>, streams: usize, piece: usize) -> bool {
    let w = i.weight(0);
    let row_block = w.format.row_block_bytes(w.cols);
    let blocks = i.portions(w.rows.div_ceil(LANES), 1).own();
    let (length, streams) = match blocks.len() / streams {
        0 => (blocks.len(), 1),
        length => (length, streams),
    };
    let offset = piece * LINES * LINE;
    if offset >= (length * row_block).min(MOST / streams) {
        return false;
    }
    for stream in 0..streams {
        let start = w.bytes.as_ptr().wrapping_add((blocks.start + stream * length) * row_block + offset);
        second_level(start, LINES * LINE);
    }
    true
}
