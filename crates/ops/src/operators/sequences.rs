//! What rows of a step see of their sequence, and the shape rules and costs that follow. No attention arithmetic.

use crate::Invocation;
use crate::operator::CallShape;
use crate::program::Keys;
use crate::step::{Sequence, SequenceShape, Step};
use std::ops::Range;

/// The sequence that row `row` of the step belongs to, and how many positions the row sees (at least its own).
pub(crate) fn sequence_of<'s, 'a>(step: &'s Step<'a>, row: usize) -> (&'s Sequence<'a>, usize) {
    let index = step.sequences.partition_point(|sequence| sequence.first_row <= row) - 1;
    let sequence = &step.sequences[index];
    (sequence, sequence.offset + row - sequence.first_row + 1)
}

/// Calls `body(row, kv_head, unit, sequence, visible)` for this worker's part of all (row, key/value head, unit) triples,
/// `units` per head, where the work of each grows with what its row sees. In order; a part is a contiguous run.
#[inline(always)]
pub(crate) fn each_unit<'a>(
    i: &Invocation<'a>,
    rows: usize,
    heads: usize,
    units: usize,
    mut body: impl FnMut(usize, usize, usize, &Sequence<'a>, usize),
) {
    let part = i.share(step_pairs(i.step) * heads * units);
    let mut begin = 0;
    for row in 0..rows {
        let (sequence, visible) = sequence_of(i.step, row);
        // A unit is the worker's in whose part of the work it begins.
        let row_end = begin + visible * heads * units;
        if row_end > part.start && begin < part.end {
            for unit in 0..heads * units {
                if part.contains(&(begin + unit * visible)) {
                    body(row, unit / units, unit % units, sequence, visible);
                }
            }
        }
        begin = row_end;
    }
}

/// Calls `body(row, kv_head, positions, sequence)` for this worker's part of all (row, key/value head, visible position)
/// triples, in order: even a single row and head is shared among all workers.
#[inline(always)]
pub(crate) fn each_span<'a>(
    i: &Invocation<'a>,
    rows: usize,
    heads: usize,
    mut body: impl FnMut(usize, usize, Range<usize>, &Sequence<'a>),
) {
    let part = i.share(step_pairs(i.step) * heads);
    let mut begin = 0;
    for row in 0..rows {
        let (sequence, visible) = sequence_of(i.step, row);
        for head in 0..heads {
            let (start, end) = (part.start.max(begin), part.end.min(begin + visible));
            if start < end {
                body(row, head, start - begin..end - begin, sequence);
            }
            begin += visible;
        }
    }
}

/// [`visible_pairs`] of a step.
fn step_pairs(step: &Step<'_>) -> usize {
    step.sequences.iter().map(|s| s.rows * s.offset + s.rows * (s.rows + 1) / 2).sum()
}

/// Σ over rows of the positions that each sees.
pub(crate) fn visible_pairs(sequences: &[SequenceShape]) -> u64 {
    let pairs = |s: &SequenceShape| (s.rows * s.offset + s.rows * (s.rows + 1) / 2) as u64;
    sequences.iter().map(pairs).sum()
}

/// Bytes of the keys (or the values) that a step attends to, each position once per key/value head.
pub(crate) fn kv_bytes(shape: &CallShape) -> u64 {
    let attributes = &shape.attributes;
    let positions: usize = shape.sequences.iter().map(|s| s.offset + s.rows).sum();
    let element = match attributes.keys {
        Keys::Cache => shape.cache_dtype,
        Keys::Step => shape.inputs.last().map_or(shape.cache_dtype, |view| view.dtype),
    };
    (positions * attributes.kv_heads * attributes.head_dim * element.bytes()) as u64
}

/// The heads of an attention operator are consistent.
pub(crate) fn check_heads(shape: &CallShape) -> Result<(), String> {
    let a = &shape.attributes;
    if a.head_dim == 0 || a.kv_heads == 0 || a.heads == 0 || !a.heads.is_multiple_of(a.kv_heads) {
        let (heads, kv_heads, head_dim) = (a.heads, a.kv_heads, a.head_dim);
        return Err(format!("{heads} heads of {head_dim} cannot share {kv_heads} key/value heads"));
    }
    Ok(())
}

/// Inputs `from..` are keys or values of the step: `(rows, kv_heads * head_dim)`.
pub(crate) fn check_step_keys(shape: &CallShape, from: usize, rows: usize) -> Result<(), String> {
    let want = (rows, shape.attributes.kv_heads * shape.attributes.head_dim);
    for (index, view) in shape.inputs.iter().enumerate().skip(from) {
        if (view.rows, view.width) != want {
            return Err(format!("input {index} is {:?}, expected {want:?}", (view.rows, view.width)));
        }
    }
    Ok(())
}

/// How many of an attention operator's inputs are keys or values: `count` with [`Keys::Step`], none with a cache.
pub(crate) fn kv_inputs(shape: &CallShape, count: usize) -> usize {
    if shape.attributes.keys == Keys::Step { count } else { 0 }
}
