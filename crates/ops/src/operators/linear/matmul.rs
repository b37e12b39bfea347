//! `matmul`: packed weights, any number of rows. A panel of W is dequantized once into private scratch and serves every
//! row. Here: the portable body, shared with `dense`, and the list of versions. Not here: the AVX-512 versions, which are in
//! `tiles.rs` (BF16) and `streams.rs` (VNNI).

#![allow(unsafe_code, reason = "scratch; calls of the body compiled for other instruction sets")]

use super::lanes::{
    self, Lanes, Vector, compiled, decode, groups, header, products, row_block, rows_from, scratch_columns, store,
};
use super::unrolled::unrolled;
use super::{Operands, packed};
use crate::bits::bf16_to_f32;
use crate::operator::CallShape;
use crate::weight::{LANES, WeightFormat};
use crate::{Invocation, Kernel, kernel};

const REASON: &str = "one bfloat16 rounding of the output; sums in f32";

pub(super) static PORTABLE: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "portable", features: &[], supports: packed, scratch: panel_bytes,
    nmse: 6e-6, because: REASON, run: run_plain,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX2: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "avx2", features: lanes::AVX2, supports: packed, scratch: panel_bytes,
    nmse: 6e-6, because: REASON, run: run_avx2,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX512F: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "avx512f", features: lanes::AVX512F, supports: packed, scratch: panel_bytes,
    nmse: 6e-6, because: REASON, run: run_avx512f,
};

#[cfg(target_arch = "x86_64")]
pub(super) use super::streams::MATMUL_AVX512_VNNI as AVX512_VNNI;
#[cfg(target_arch = "x86_64")]
pub(super) use super::tiles::MATMUL_AVX512_BF16 as AVX512_BF16;

compiled!(body, 2, 6, 12);

/// Rows of x that are widened at a time; a multiple of every version's rows, and small enough for the second-level cache.
const CHUNK: usize = 96;
/// The least common multiple of the versions' rows.
const STEP: usize = 12;

/// A panel, 16 rows of W as f32, `(columns padded to even, 16)`; then x as f32, in tiles of `(columns, rows of the tile)`.
pub(super) fn panel_bytes(shape: &CallShape) -> usize {
    let (rows, cols) = (shape.inputs[0].rows, shape.weights[0].cols);
    let panel = cols.next_multiple_of(2) * LANES;
    let x = if rows == 1 { 0 } else { rows.min(CHUNK).next_multiple_of(STEP) * cols };
    (panel + x.next_multiple_of(LANES)) * size_of::<f32>()
}

/// Row block by row block: decode it to f32, then pass `ROWS` rows of x at a time over it. Moves W once per 96 rows, and the panel
/// from the second-level cache once per `ROWS` rows; `2 * rows * in * out` flops. Floor: the peak of f32 multiply-adds.
///
/// x is widened once and laid out as the loop takes it, so that a multiply-add's second factor is one load that fills a register,
/// and a block's 16 outputs are rounded and stored as one vector. On two cores of an AMD EPYC (Zen 4), Qwen3-0.6B's layers at 128
/// rows, W4 in groups of 128 with AVX2: 624 ms, 181 GFLOP/s of a peak of 230; storing outputs one by one took as long again.
#[inline(always)]
pub(super) fn body<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    if i.input(0).rows == 1 { one_row::<V>(i) } else { tiles::<V, ROWS>(i) }
}

#[inline(always)]
fn one_row<V: Vector>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    let cols = operands.w.cols;
    // SAFETY: the only slice of the scratch in this call.
    let panel = unsafe { scratch_columns(i, cols.next_multiple_of(2)) };
    for block in i.share(operands.w.rows.div_ceil(LANES)) {
        dequantize::<V>(operands.w.format, row_block(&operands, block), panel);
        let [sums]: [V; 1] = products(&panel[..cols], rows_from(&operands, 0));
        store(&operands, 0, block, &sums.lanes());
    }
}

#[inline(always)]
fn tiles<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    const { assert!(STEP.is_multiple_of(ROWS) && CHUNK.is_multiple_of(STEP)) };
    let operands = Operands::of(i);
    let (rows, cols) = (operands.x.rows, operands.w.cols);
    let (panel, widened) = (cols.next_multiple_of(2), rows.min(CHUNK).next_multiple_of(STEP) * cols);
    // SAFETY: the only slice of the scratch in this call.
    let scratch = unsafe { scratch_columns(i, panel + widened.div_ceil(LANES)) };
    let (panel, widened) = scratch.split_at_mut(panel);
    let widened = widened.as_flattened_mut();
    for first in (0..rows).step_by(CHUNK) {
        let count = CHUNK.min(rows - first);
        for (tile, x) in widened.chunks_exact_mut(ROWS * cols).enumerate().take(count.div_ceil(ROWS)) {
            for row in 0..ROWS {
                let from = first + tile * ROWS + row;
                // Beyond the last row, the last one again.
                for (x, value) in x.chunks_exact_mut(ROWS).zip(operands.x.bf16(from.min(rows - 1))) {
                    x[row] = bf16_to_f32(*value);
                }
            }
        }
        for block in i.share(operands.w.rows.div_ceil(LANES)) {
            dequantize::<V>(operands.w.format, row_block(&operands, block), panel);
            for (tile, x) in widened.chunks_exact(ROWS * cols).enumerate().take(count.div_ceil(ROWS)) {
                let mut sums = [V::splat(0.0); ROWS];
                for (weights, x) in panel[..cols].iter().zip(x.as_chunks::<ROWS>().0) {
                    let weights = V::load(weights);
                    for row in 0..ROWS {
                        sums[row] = sums[row].add_product(weights, V::splat(x[row]));
                    }
                }
                let mut done = [[0.0; LANES]; ROWS];
                unrolled!(ROW in 0..ROWS => {
                    done[ROW] = sums[ROW].lanes();
                });
                for (row, sums) in done.iter().enumerate().take(count - tile * ROWS) {
                    store(&operands, first + tile * ROWS + row, block, sums);
                }
            }
        }
    }
}

#[inline(always)]
fn dequantize<V: Vector>(format: WeightFormat, bytes: &[u8], panel: &mut [Lanes]) {
    if format == WeightFormat::Bf16 {
        for (group, columns) in groups(format, bytes).zip(panel.chunks_exact_mut(2)) {
            decode::<V>(format, group, columns);
        }
        return;
    }
    for (group, columns) in groups(format, bytes).zip(panel.chunks_exact_mut(format.group())) {
        decode::<V>(format, group, columns);
        let (scales, biases) = header(format, group);
        let (scales, biases) = (V::load(&scales), V::load(&biases));
        for column in columns {
            *column = biases.add_product(V::load(column), scales).lanes();
        }
    }
}
