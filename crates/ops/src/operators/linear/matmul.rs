//! `matmul`: packed weights, any number of rows. A panel of W is dequantized once into private scratch and serves every
//! row. Here: the portable body, shared with `dense`, and the list of versions; the AVX-512 BF16 version is in `tiles.rs`.

#![allow(unsafe_code, reason = "scratch as rows of lanes; calls of the body compiled for other instruction sets")]

use super::lanes::{self, Lanes, accumulate, compiled_for_vectors, each_column, header, multiply_add, row_block, store};
use super::{Operands, packed};
use crate::bits::bf16_to_f32;
use crate::operator::CallShape;
use crate::weight::{LANES, LINE, WeightFormat};
use crate::{Invocation, Kernel, kernel};

const REASON: &str = "one bfloat16 rounding of the output; sums in f32";

pub(super) static PORTABLE: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "portable", features: &[], supports: packed, scratch: panel_bytes,
    nmse: 6e-6, because: REASON, run: body::<false>,
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
pub(super) use super::tiles::MATMUL_AVX512_BF16 as AVX512_BF16;

compiled_for_vectors!(body);

/// A panel: 16 rows of W as f32, `(columns padded to even, 16)`.
pub(super) fn panel_bytes(shape: &CallShape) -> usize {
    shape.weights[0].cols.next_multiple_of(2) * LANES * size_of::<f32>()
}

/// Row block by row block: decode it to f32, then pass rows of x over it four at a time.
#[inline(always)]
pub(super) fn body<const FUSED: bool>(i: &Invocation<'_>) {
    const ROWS: usize = 4;
    let operands = Operands::of(i);
    let rows = operands.x.rows;
    // SAFETY: the only slice of the scratch in this call; every bit pattern is a valid f32, and align_to checks alignment.
    let (head, panel, _) = unsafe { i.scratch().align_to_mut::<Lanes>() };
    assert!(head.is_empty(), "scratch is aligned");
    let panel = &mut panel[..operands.w.cols.next_multiple_of(2)];
    for block in i.share(operands.w.rows.div_ceil(LANES)) {
        dequantize::<FUSED>(operands.w.format, row_block(&operands, block), panel);
        let panel = &panel[..operands.w.cols];
        for first in (0..rows).step_by(ROWS) {
            let x: [&[u16]; ROWS] = std::array::from_fn(|row| operands.x.bf16((first + row).min(rows - 1)));
            let mut sums = [[0.0; LANES]; ROWS];
            for (column, weights) in panel.iter().enumerate() {
                for row in 0..ROWS {
                    accumulate::<FUSED>(&mut sums[row], weights, bf16_to_f32(x[row][column]));
                }
            }
            for (row, sums) in sums.iter().enumerate().take(rows - first) {
                store(&operands, first + row, block, sums);
            }
        }
    }
}

#[inline(always)]
fn dequantize<const FUSED: bool>(format: WeightFormat, bytes: &[u8], panel: &mut [Lanes]) {
    // A bf16 line holds two columns.
    let width = if format == WeightFormat::Bf16 { 2 } else { format.group() };
    for (group, panel) in bytes.chunks_exact(format.block_lines() * LINE).zip(panel.chunks_exact_mut(width)) {
        if format == WeightFormat::Bf16 {
            each_column(format, group, |column, weights| panel[column] = *weights);
            continue;
        }
        let (scales, biases) = header(format, group);
        each_column(format, group, |column, codes| {
            panel[column] = std::array::from_fn(|n| multiply_add::<FUSED>(codes[n], scales[n], biases[n]));
        });
    }
}
