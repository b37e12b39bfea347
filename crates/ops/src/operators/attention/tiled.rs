//! The tiled prefill: blocks of queries against tiles of keys with a running softmax, in private scratch. No arithmetic on
//! whole tiles here: that is `f32_tiles.rs` and `bf16_tiles.rs`.
//!
//! The rows of a block of queries are (row, head of the group) pairs, so that the heads that share keys and values share
//! each tile's packing. Scores are in base 2. When a tile raises a row's maximum, its sum and output so far are scaled down.

#![allow(unsafe_code, reason = "scratch as a typed struct, exclusive parts of the output")]

use crate::operator::CallShape;
use crate::program::Attributes;
use crate::rewrite::{TILED_HEAD_DIM, TILED_MIN_ROWS};
use crate::step::Sequence;
use crate::{DType, Invocation, KvView, f32_to_bf16};
use std::ops::Range;

use super::super::attention_scores::bf16_inputs;
use super::super::maths::exp2;
use super::super::shapes::flat_mut;

/// The one head size that is handled.
pub(super) const HEAD_DIM: usize = TILED_HEAD_DIM;
/// Query rows of a block: rows of the step times heads of a group.
pub(super) const QUERIES: usize = 64;
/// Keys of a tile, and columns of every multiplication.
pub(super) const KEYS: usize = 64;
/// Halves of a head, each as wide as a tile.
const HALVES: usize = HEAD_DIM / KEYS;

/// How tiles are laid out and multiplied.
pub(super) trait Tiles {
    type Element: Copy + 'static;
    const FMA: bool;

    /// One query row.
    fn pack_query(query: &[u16; HEAD_DIM], row: &mut [Self::Element; HEAD_DIM]);

    /// Keys `positions` of a head as the right operand of `queries · keysᵀ`; columns beyond are zeros.
    fn pack_keys(keys: &KvView<'_>, head: usize, positions: Range<usize>, tile: &mut [Self::Element; HEAD_DIM * KEYS]);

    /// Values `positions` of a head as the right operands of `probabilities · values`, half a head after the other; rows
    /// beyond are zeros.
    fn pack_values(
        values: &KvView<'_>,
        head: usize,
        positions: Range<usize>,
        tile: &mut [Self::Element; KEYS * HEAD_DIM],
    );

    /// One row of probabilities.
    fn pack_probabilities(probabilities: &[f32; KEYS], row: &mut [Self::Element; KEYS]);

    /// `c = a · b`, or `c += a · b` with `ADD`: `a` (rows, DEPTH), `b` a packed right operand (DEPTH, 64), `c` has `stride`
    /// floats from one row to the next, of which 64 are written. Rows are rounded up to a multiple of four.
    fn multiply<const DEPTH: usize, const ADD: bool>(
        rows: usize,
        a: &[Self::Element],
        b: &[Self::Element],
        c: &mut [f32],
        stride: usize,
    );
}

/// A worker's scratch.
#[repr(C, align(64))]
struct Scratch<E> {
    queries: [[E; HEAD_DIM]; QUERIES],
    keys: [E; HEAD_DIM * KEYS],
    values: [E; KEYS * HEAD_DIM],
    scores: [[f32; KEYS]; QUERIES],
    probabilities: [[E; KEYS]; QUERIES],
    output: [[f32; HEAD_DIM]; QUERIES],
    largest: [f32; QUERIES],
    sums: [f32; QUERIES],
}

pub(super) const fn scratch_bytes<T: Tiles>() -> usize {
    size_of::<Scratch<T::Element>>()
}

pub(super) fn supported(shape: &CallShape) -> Result<(), String> {
    let Attributes { head_dim, heads, kv_heads, .. } = shape.attributes;
    let rows = shape.outputs[0].rows;
    if head_dim != HEAD_DIM {
        return Err(format!("needs heads of {HEAD_DIM}, these have {head_dim}"));
    }
    if rows < TILED_MIN_ROWS {
        return Err(format!("needs at least {TILED_MIN_ROWS} rows, there are {rows}"));
    }
    if heads / kv_heads > QUERIES {
        return Err(format!("needs groups of at most {QUERIES} heads, these have {}", heads / kv_heads));
    }
    if shape.outputs[0].dtype != DType::BF16 {
        return Err("needs a bfloat16 output".to_owned());
    }
    bf16_inputs(shape)
}

#[inline(always)]
pub(super) fn tiled<T: Tiles>(i: &Invocation<'_>) {
    let Attributes { heads, kv_heads, .. } = *i.attributes();
    let rows = QUERIES / (heads / kv_heads);
    // SAFETY: the only slice of this worker's scratch.
    let scratch = unsafe { i.scratch() };
    let (scratch, length) = (scratch.as_mut_ptr().cast::<Scratch<T::Element>>(), scratch.len());
    assert!(scratch.is_aligned() && length >= scratch_bytes::<T>(), "the scratch that the kernel asked for");
    // SAFETY: large and aligned enough (asserted); every bit pattern is a valid element.
    let scratch = unsafe { &mut *scratch };
    // Blocks are dealt out in turn, the later (longer) ones last: workers end within a block of each other.
    let mut turn = 0;
    for sequence in i.step.sequences {
        for first in (0..sequence.rows).step_by(rows) {
            let block = first..sequence.rows.min(first + rows);
            for kv_head in 0..kv_heads {
                if turn % i.workers == i.worker {
                    attend::<T>(i, sequence, block.clone(), kv_head, scratch);
                }
                turn += 1;
            }
        }
    }
}

/// Attention of `block` (rows of the sequence) for the heads of one key/value head.
#[inline(always)]
fn attend<T: Tiles>(
    i: &Invocation<'_>,
    sequence: &Sequence<'_>,
    block: Range<usize>,
    kv_head: usize,
    scratch: &mut Scratch<T::Element>,
) {
    let Attributes { heads, kv_heads, scale, .. } = *i.attributes();
    let group = heads / kv_heads;
    let (q, y) = (i.input(0), i.output(0));
    let (keys, values) = (i.kv(sequence, false), i.kv(sequence, true));
    let queries = block.len() * group;
    let column = |query: usize| (kv_head * group + query % group) * HEAD_DIM;
    let row = |query: usize| sequence.first_row + block.start + query / group;
    let visible = |query: usize| sequence.offset + block.start + query / group + 1;
    for query in 0..queries {
        let Some(source) = q.bf16(row(query))[column(query)..].first_chunk() else {
            unreachable!("heads lie within the row")
        };
        T::pack_query(source, &mut scratch.queries[query]);
        scratch.output[query] = [0.0; HEAD_DIM];
        (scratch.largest[query], scratch.sums[query]) = (LOWEST, 0.0);
    }
    let factor = scale * std::f32::consts::LOG2_E;
    // Tiles beyond the last row's own position are not touched at all.
    for start in (0..visible(queries - 1)).step_by(KEYS) {
        let positions = start..keys.positions.min(start + KEYS);
        T::pack_keys(&keys, kv_head, positions.clone(), &mut scratch.keys);
        T::pack_values(&values, kv_head, positions, &mut scratch.values);
        let a = scratch.queries.as_flattened();
        T::multiply::<HEAD_DIM, false>(queries, a, &scratch.keys, scratch.scores.as_flattened_mut(), KEYS);
        for query in 0..queries {
            let seen = visible(query).saturating_sub(start).min(KEYS);
            let (probabilities, shrink) = softmax_step::<T>(
                &scratch.scores[query],
                seen,
                factor,
                &mut scratch.largest[query],
                &mut scratch.sums[query],
            );
            T::pack_probabilities(&probabilities, &mut scratch.probabilities[query]);
            if shrink != 1.0 {
                for sum in &mut scratch.output[query] {
                    *sum *= shrink;
                }
            }
        }
        let a = scratch.probabilities.as_flattened();
        for half in 0..HALVES {
            let b = &scratch.values[half * KEYS * KEYS..][..KEYS * KEYS];
            let c = &mut scratch.output.as_flattened_mut()[half * KEYS..];
            T::multiply::<KEYS, true>(queries, a, b, c, HEAD_DIM);
        }
    }
    for query in 0..queries {
        let from = row(query) * y.width + column(query);
        // SAFETY: (block, key/value head) pairs are one worker's each; this is one head of one row of it.
        let out = unsafe { flat_mut(&y, from..from + HEAD_DIM) };
        // A row sees at least itself, so its sum is at least 1 for the largest score.
        let inverse = 1.0 / scratch.sums[query];
        for (y, sum) in out.iter_mut().zip(&scratch.output[query]) {
            *y = f32_to_bf16(sum * inverse);
        }
    }
}

/// Below every score in base 2, and far enough from the end of the range that differences stay finite.
const LOWEST: f32 = -1e30;

/// The tile's probabilities relative to the new maximum, and what earlier ones must be multiplied by.
#[inline(always)]
fn softmax_step<T: Tiles>(
    scores: &[f32; KEYS],
    seen: usize,
    factor: f32,
    largest: &mut f32,
    sum: &mut f32,
) -> ([f32; KEYS], f32) {
    let mut scaled = [LOWEST; KEYS];
    for key in 0..KEYS {
        scaled[key] = if key < seen { scores[key] * factor } else { LOWEST };
    }
    let mut lanes = [*largest; 16];
    for block in scaled.as_chunks::<16>().0 {
        for (lane, score) in lanes.iter_mut().zip(block) {
            *lane = if *score > *lane { *score } else { *lane };
        }
    }
    let new = folded::<false>(lanes);
    let mut sums = [0.0f32; 16];
    for (block, first) in scaled.as_chunks_mut::<16>().0.iter_mut().zip([0, 16, 32, 48]) {
        for lane in 0..16 {
            let exponential = exp2_of::<T>(block[lane] - new);
            block[lane] = if first + lane < seen { exponential } else { 0.0 };
            sums[lane] += block[lane];
        }
    }
    let shrink = if new > *largest { exp2_of::<T>(*largest - new) } else { 1.0 };
    *largest = new;
    *sum = *sum * shrink + folded::<true>(sums);
    (scaled, shrink)
}

/// The sum or the largest of the lanes, halves onto halves: four dependent operations where one after the other would be fifteen.
#[inline(always)]
fn folded<const SUM: bool>(lanes: [f32; 16]) -> f32 {
    let (mut eight, mut four) = ([0.0f32; 8], [0.0f32; 4]);
    for n in 0..8 {
        eight[n] = folded_two::<SUM>(lanes[n], lanes[n + 8]);
    }
    for n in 0..4 {
        four[n] = folded_two::<SUM>(eight[n], eight[n + 4]);
    }
    folded_two::<SUM>(folded_two::<SUM>(four[0], four[2]), folded_two::<SUM>(four[1], four[3]))
}

#[inline(always)]
fn folded_two<const SUM: bool>(a: f32, b: f32) -> f32 {
    if SUM {
        a + b
    } else if a > b {
        a
    } else {
        b
    }
}

#[inline(always)]
fn exp2_of<T: Tiles>(x: f32) -> f32 {
    if T::FMA { exp2::<true>(x) } else { exp2::<false>(x) }
}
