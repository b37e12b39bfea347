//! Decode: one row at a time against all that it sees, tile after tile of keys and values with a running softmax. The heads
//! that share keys and values go through a tile together. No arithmetic on tiles here but the portable one; the bfloat16
//! version is in `bf16_decode.rs`. Not here: prefill (`tiled.rs`), and a row's positions in parts (`split.rs`), which goes the same
//! way through each part.
//!
//! Scores are in base 2. A worker has whole (row, key/value head) pairs; where those are few and the workers do not divide them,
//! whole (row, query head) pairs, and keys and values are then read by several workers.

#![allow(unsafe_code, reason = "scratch as floats, exclusive parts of the output")]

use crate::operator::{CallShape, Kernel};
use crate::program::Attributes;
use crate::rewrite::{DECODE_HEAD_DIMS, TILED_MIN_ROWS};
use crate::{DType, Invocation, KvView, bf16_to_f32, f32_to_bf16, kernel};
use std::ops::Range;

use super::super::attention_scores::{bf16_inputs, dot};
use super::super::isa::{AVX2, AVX512, for_isa};
use super::super::maths::{exp2, multiply_add};
use super::super::prefetch::second_level;
use super::super::sequences::{Unit, units};
use super::super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON, flat_mut};

/// Positions of a tile. Measured: 32 is a tenth slower everywhere; 128 is a little faster up to 256 positions and a tenth slower
/// at 2,048.
pub(super) const KEYS: usize = 64;

/// Positions of the next head that are asked for while one is worked on.
const FIRST: usize = 16;

/// Consecutive positions of one key/value head.
#[derive(Clone)]
pub(super) struct Tile<'a> {
    pub(super) keys: KvView<'a>,
    pub(super) values: KvView<'a>,
    pub(super) head: usize,
    /// At least one, at most [`KEYS`].
    pub(super) positions: Range<usize>,
}

/// How a tile is multiplied. Sums of a head are in an order of the implementation's choice.
pub(super) trait Arithmetic {
    const FMA: bool;

    /// `scores[h][n] = queries[h] · keys[n]` for the tile's positions; the rest may hold anything finite. `queries` is
    /// `(heads, head_dim)`.
    fn scores(tile: &Tile<'_>, queries: &[u16], scores: &mut [[f32; KEYS]]);

    /// `sums[h] = sums[h] * shrink[h] + Σ probabilities[h][n] * values[n]`; `sums` is `(heads, head_dim)`.
    fn mix(tile: &Tile<'_>, probabilities: &[[f32; KEYS]], shrink: &[f32], sums: &mut [f32]);

    /// `y[d] = each(sums[d])` of one head, in the head's order.
    fn finish<Y>(sums: &[f32], y: &mut [Y], each: impl Fn(f32) -> Y);
}

/// The running softmax of heads that share keys and values, in the worker's scratch.
pub(super) struct Running<'s> {
    scores: &'s mut [[f32; KEYS]],
    /// `(heads, head_dim)`, in the arithmetic's order.
    sums: &'s mut [f32],
    pub(super) largest: &'s mut [f32],
    pub(super) totals: &'s mut [f32],
    shrink: &'s mut [f32],
}

impl<'s> Running<'s> {
    /// Of so many heads.
    ///
    /// # Safety
    /// - Nothing else has the worker's scratch while this lives.
    #[inline(always)]
    pub(super) unsafe fn of(i: &'s Invocation<'_>, heads: usize) -> Running<'s> {
        let head_dim = i.attributes().head_dim;
        // SAFETY: the only slice of this worker's scratch (the caller's contract).
        let (head_bytes, floats, _) = unsafe { i.scratch().align_to_mut::<f32>() };
        assert!(
            head_bytes.is_empty() && floats.len() >= heads * (KEYS + head_dim + 3),
            "the scratch that was asked for"
        );
        let (scores, floats) = floats.split_at_mut(heads * KEYS);
        let (sums, floats) = floats.split_at_mut(heads * head_dim);
        let (largest, floats) = floats.split_at_mut(heads);
        let (totals, floats) = floats.split_at_mut(heads);
        let scores = scores.as_chunks_mut::<KEYS>().0;
        Running { scores, sums, largest, totals, shrink: &mut floats[..heads] }
    }

    /// Begins anew with these positions of the unit's key/value head; `queries` is `(heads, head_dim)`.
    #[inline(always)]
    pub(super) fn see<'a, A: Arithmetic>(
        &mut self,
        i: &Invocation<'a>,
        unit: &Unit<'_, 'a>,
        positions: Range<usize>,
        queries: &[u16],
    ) {
        let factor = i.attributes().scale * std::f32::consts::LOG2_E;
        self.sums.fill(0.0);
        self.totals.fill(0.0);
        self.largest.fill(LOWEST);
        for start in positions.clone().step_by(KEYS) {
            let tile = tile_of(i, unit, start..positions.end.min(start + KEYS));
            A::scores(&tile, queries, self.scores);
            for head in 0..self.scores.len() {
                let (seen, largest) = (tile.positions.len(), &mut self.largest[head]);
                self.shrink[head] =
                    softmax_step::<A>(&mut self.scores[head], seen, factor, largest, &mut self.totals[head]);
            }
            A::mix(&tile, self.scores, self.shrink, self.sums);
        }
    }

    /// Sums of one head, in the arithmetic's order.
    #[inline(always)]
    pub(super) fn sums_of(&self, head: usize) -> &[f32] {
        let dim = self.sums.len() / self.totals.len();
        &self.sums[head * dim..(head + 1) * dim]
    }
}

/// Floats of scratch: per head of a group its scores of a tile, sums, largest score, sum of exponentials, and shrinking factor.
pub(super) fn scratch(shape: &CallShape) -> usize {
    let Attributes { heads, kv_heads, head_dim, .. } = shape.attributes;
    heads / kv_heads * (KEYS + head_dim + 3) * DType::F32.bytes()
}

pub(super) fn supported(shape: &CallShape) -> Result<(), String> {
    if shape.outputs[0].dtype != DType::BF16 {
        return Err("needs a bfloat16 output".to_owned());
    }
    few_rows(shape)
}

/// Queries, keys and values that the walk takes.
pub(super) fn few_rows(shape: &CallShape) -> Result<(), String> {
    let (rows, dim) = (shape.inputs[0].rows, shape.attributes.head_dim);
    if !DECODE_HEAD_DIMS.contains(&dim) {
        return Err(format!("needs heads of 64 or 128, these have {dim}"));
    }
    if rows >= TILED_MIN_ROWS {
        return Err(format!("takes at most {} rows, there are {rows}", TILED_MIN_ROWS - 1));
    }
    bf16_inputs(shape)
}

/// Moves the keys and values of each (row, key/value head) once, and queries and output; `4 * heads * head_dim` flops per
/// position. Floor: those bytes at the read bandwidth, as it holds no score beyond its tile's. On two cores of an AMD EPYC
/// (Zen 4), Qwen3-0.6B's 28 layers: 0.70 to 0.81 of the time of the readable three calls at 128 positions and 0.54 to 0.65 at
/// 2,048; one core reads 53 GB/s where all lies in its second-level cache (the arithmetic's own bound) and 25 GB/s from memory.
#[inline(always)]
pub(super) fn decode<A: Arithmetic>(i: &Invocation<'_>) {
    let (q, y) = (i.input(0), i.output(0));
    let Attributes { heads, kv_heads, head_dim, .. } = *i.attributes();
    let parts = parts(y.rows * kv_heads, heads / kv_heads, i.workers);
    let group = heads / kv_heads / parts;
    // SAFETY: nothing else here uses the scratch.
    let mut running = unsafe { Running::of(i, group) };
    let mut units = units(i, y.rows, kv_heads, parts).peekable();
    while let Some(unit) = units.next() {
        if i.fetches_ahead()
            && let Some(next) = units.peek()
        {
            // The processor's own prefetchers do not see where the next head begins.
            let tile = tile_of(i, next, 0..next.visible.min(KEYS));
            for view in [&tile.keys, &tile.values] {
                let bytes = tile.positions.len().min(FIRST) * view.position_stride * DType::BF16.bytes();
                second_level(view.head_ptr(tile.head), bytes);
            }
        }
        let first = (unit.head * parts + unit.unit) * group * head_dim;
        let queries = &q.bf16(unit.row)[first..first + group * head_dim];
        running.see::<A>(i, &unit, 0..unit.visible, queries);
        // SAFETY: (row, key/value head) pairs are shared out; these are the heads of one.
        let y = unsafe { flat_mut(&y, unit.row * y.width + first..unit.row * y.width + first + group * head_dim) };
        for (head, y) in y.chunks_exact_mut(head_dim).enumerate() {
            // The largest score's exponential is 1, so the total is at least that.
            let factor = 1.0 / running.totals[head];
            A::finish(running.sums_of(head), y, |sum| f32_to_bf16(sum * factor));
        }
    }
}

/// Parts that the query heads of a key/value head are worked on in, `group` heads each before: one, unless some workers would have
/// much more to do than others.
fn parts(pairs: usize, group: usize, workers: usize) -> usize {
    if pairs.is_multiple_of(workers) || pairs >= 8 * workers { 1 } else { group }
}

#[inline(always)]
fn tile_of<'a>(i: &Invocation<'a>, unit: &Unit<'_, 'a>, positions: Range<usize>) -> Tile<'a> {
    let (keys, values) = (i.kv(unit.sequence, false), i.kv(unit.sequence, true));
    Tile { keys, values, head: unit.head, positions }
}

/// Below every score in base 2, and far enough from the end of the range that differences stay finite.
const LOWEST: f32 = -1e30;

/// Turns the first `seen` scores of a tile into exponentials relative to the new largest score, and the rest into zeros;
/// returns what earlier sums must be multiplied by.
#[inline(always)]
fn softmax_step<A: Arithmetic>(
    scores: &mut [f32; KEYS],
    seen: usize,
    factor: f32,
    largest: &mut f32,
    total: &mut f32,
) -> f32 {
    let mut lanes = [*largest; 16];
    for (block, first) in scores.as_chunks_mut::<16>().0.iter_mut().zip((0..KEYS).step_by(16)) {
        for lane in 0..16 {
            block[lane] = if first + lane < seen { block[lane] * factor } else { LOWEST };
            lanes[lane] = if block[lane] > lanes[lane] { block[lane] } else { lanes[lane] };
        }
    }
    let new = folded(lanes, |a, b| if a > b { a } else { b });
    let mut sums = [0.0f32; 16];
    for (block, first) in scores.as_chunks_mut::<16>().0.iter_mut().zip((0..KEYS).step_by(16)) {
        for lane in 0..16 {
            let exponential = exp2_of::<A>(block[lane] - new);
            block[lane] = if first + lane < seen { exponential } else { 0.0 };
            sums[lane] += block[lane];
        }
    }
    let shrink = if new > *largest { exp2_of::<A>(*largest - new) } else { 1.0 };
    *largest = new;
    *total = *total * shrink + folded(sums, |a, b| a + b);
    shrink
}

/// All lanes in one, halves onto halves: one lane after the other would take most of a tile's time.
#[inline(always)]
fn folded(lanes: [f32; 16], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut eight = [0.0; 8];
    for lane in 0..8 {
        eight[lane] = join(lanes[lane], lanes[lane + 8]);
    }
    let mut four = [0.0; 4];
    for lane in 0..4 {
        four[lane] = join(eight[lane], eight[lane + 4]);
    }
    join(join(four[0], four[2]), join(four[1], four[3]))
}

#[inline(always)]
fn exp2_of<A: Arithmetic>(x: f32) -> f32 {
    if A::FMA { exp2::<true>(x) } else { exp2::<false>(x) }
}

/// Plain f32, vectorised by the compiler.
pub(super) struct F32<const FMA: bool>;

/// Elements of a head that are summed in registers at a time.
const COLUMNS: usize = 64;

impl<const FUSED: bool> Arithmetic for F32<FUSED> {
    const FMA: bool = FUSED;

    #[inline(always)]
    fn scores(tile: &Tile<'_>, queries: &[u16], scores: &mut [[f32; KEYS]]) {
        for (n, position) in tile.positions.clone().enumerate() {
            let key = tile.keys.bf16(tile.head, position);
            for (scores, query) in scores.iter_mut().zip(queries.chunks_exact(key.len())) {
                scores[n] = dot::<FUSED>(query, key);
            }
        }
    }

    #[inline(always)]
    fn mix(tile: &Tile<'_>, probabilities: &[[f32; KEYS]], shrink: &[f32], sums: &mut [f32]) {
        let dim = tile.values.head_dim;
        for ((sums, probabilities), shrink) in sums.chunks_exact_mut(dim).zip(probabilities).zip(shrink) {
            for (block, sums) in sums.as_chunks_mut::<COLUMNS>().0.iter_mut().enumerate() {
                let mut wide = *sums;
                for sum in &mut wide {
                    *sum *= shrink;
                }
                for (position, probability) in tile.positions.clone().zip(probabilities) {
                    let value = &tile.values.bf16(tile.head, position)[block * COLUMNS..];
                    let Some(value) = value.first_chunk::<COLUMNS>() else { unreachable!("heads are whole blocks") };
                    for column in 0..COLUMNS {
                        wide[column] = multiply_add::<FUSED>(*probability, bf16_to_f32(value[column]), wide[column]);
                    }
                }
                *sums = wide;
            }
        }
    }

    #[inline(always)]
    fn finish<Y>(sums: &[f32], y: &mut [Y], each: impl Fn(f32) -> Y) {
        for (y, sum) in y.iter_mut().zip(sums) {
            *y = each(*sum);
        }
    }
}

for_isa!(avx2, decode_avx2, decode::<F32<true>>);
for_isa!(avx512, decode_avx512, decode::<F32<true>>);

pub static PORTABLE: Kernel = kernel! {
    operator: "attention", name: "decode", isa: "portable", features: &[], supports: supported, scratch: scratch,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: decode::<F32<false>>,
};

pub static NARROW: Kernel = kernel! {
    operator: "attention", name: "decode", isa: "avx2", features: AVX2, supports: supported, scratch: scratch,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: decode_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "attention", name: "decode", isa: "avx512", features: AVX512, supports: supported, scratch: scratch,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: decode_avx512,
};
