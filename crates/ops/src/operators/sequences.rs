//! What rows of a step see of their sequence, and the shape rules and costs that follow.
//! Not here: attention arithmetic.

use crate::Invocation;
use crate::operator::CallShape;
use crate::program::Keys;
use crate::step::{Sequence, SequenceShape, Step};
use std::ops::Range;

/// The sequence that row `row` of the step belongs to, and how many positions the row sees (at least its own).
pub fn sequence_of<'s, 'a>(step: &'s Step<'a>, row: usize) -> (&'s Sequence<'a>, usize) {
    let index = step.sequences.partition_point(|sequence| sequence.first_row <= row) - 1;
    let sequence = &step.sequences[index];
    (sequence, sequence.offset + row - sequence.first_row + 1)
}

/// One unit of work of an attention operator: `unit` of the units of a key/value head, for one row.
pub(crate) struct Unit<'s, 'a> {
    pub(crate) row: usize,
    pub(crate) head: usize,
    pub(crate) unit: usize,
    pub(crate) sequence: &'s Sequence<'a>,
    /// Positions that the row sees.
    pub(crate) visible: usize,
}

/// This worker's part of all (row, head, unit) triples, `units` per head, where the work of each grows with what its row
/// sees. In order; a part is a contiguous run. An iterator, not a callback, for the reason given at `segments`.
pub(crate) fn units<'s, 'a>(
    i: &'s Invocation<'a>,
    rows: usize,
    heads: usize,
    units: usize,
) -> impl Iterator<Item = Unit<'s, 'a>> {
    let step = i.step;
    let part = i.share(step_pairs(step) * heads * units);
    (0..rows).flat_map(move |row| {
        let (sequence, visible) = sequence_of(step, row);
        let begin = pairs_before(step, row) * heads * units;
        // A unit is the worker's in whose part of the work it begins.
        let first = part.start.saturating_sub(begin).div_ceil(visible).min(heads * units);
        let last = part.end.saturating_sub(begin).div_ceil(visible).min(heads * units);
        (first..last).map(move |at| Unit { row, head: at / units, unit: at % units, sequence, visible })
    })
}

/// A run of positions that one row and key/value head sees.
pub(crate) struct Span<'s, 'a> {
    pub(crate) row: usize,
    pub(crate) head: usize,
    pub(crate) positions: Range<usize>,
    pub(crate) sequence: &'s Sequence<'a>,
}

/// This worker's part of all (row, head, visible position) triples, in order: even a single row and head is shared among all
/// workers.
pub(crate) fn spans<'s, 'a>(i: &'s Invocation<'a>, rows: usize, heads: usize) -> impl Iterator<Item = Span<'s, 'a>> {
    let step = i.step;
    let part = i.share(step_pairs(step) * heads);
    (0..rows * heads).filter_map(move |at| {
        let (row, head) = (at / heads, at % heads);
        let (sequence, visible) = sequence_of(step, row);
        let begin = pairs_before(step, row) * heads + head * visible;
        let (start, end) = (part.start.max(begin), part.end.min(begin + visible));
        (start < end).then(|| Span { row, head, positions: start - begin..end - begin, sequence })
    })
}

/// (row, visible position) pairs of the step's rows before `row`.
fn pairs_before(step: &Step<'_>, row: usize) -> usize {
    let before = step.sequences.iter().take_while(|s| s.first_row < row);
    before
        .map(|s| {
            let rows = s.rows.min(row - s.first_row);
            rows * s.offset + rows * (rows + 1) / 2
        })
        .sum()
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
