//! `matmul`: packed weights, any number of rows. A panel of W is dequantized once into private scratch and serves every
//! row. Here: the portable body, shared with `dense`, and the list of versions. Not here: the AVX-512 versions, which are in
//! `tiles.rs` (BF16) and `streams.rs` (VNNI).

#![allow(unsafe_code, reason = "scratch; calls of the body compiled for other instruction sets")]

use super::lanes::{
    self, Lanes, Vector, compiled, decode, groups, header, products, row_block, rows_from, scratch_columns, store,
};
use super::{Operands, packed};
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

compiled!(body, 2, 4, 8);

/// A panel: 16 rows of W as f32, `(columns padded to even, 16)`.
pub(super) fn panel_bytes(shape: &CallShape) -> usize {
    shape.weights[0].cols.next_multiple_of(2) * LANES * size_of::<f32>()
}

/// Row block by row block: decode it to f32, then pass `ROWS` rows of x at a time over it. Moves W once, and the panel from the
/// second-level cache once per `ROWS` rows; `2 * rows * in * out` flops. Floor: the peak of f32 multiply-adds. With AVX2, two
/// cores of an AMD EPYC (Zen 4) reach 98 GFLOP/s at 8 rows of Qwen3-0.6B's layers.
#[inline(always)]
pub(super) fn body<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    if i.input(0).rows == 1 { tiles::<V, 1>(i) } else { tiles::<V, ROWS>(i) }
}

#[inline(always)]
fn tiles<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    let (rows, cols) = (operands.x.rows, operands.w.cols);
    // SAFETY: the only slice of the scratch in this call.
    let panel = unsafe { scratch_columns(i, cols.next_multiple_of(2)) };
    for block in i.share(operands.w.rows.div_ceil(LANES)) {
        dequantize::<V>(operands.w.format, row_block(&operands, block), panel);
        for first in (0..rows).step_by(ROWS) {
            let sums: [V; ROWS] = products(&panel[..cols], rows_from(&operands, first));
            for (row, sums) in sums.iter().enumerate().take(rows - first) {
                store(&operands, first + row, block, &sums.lanes());
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
