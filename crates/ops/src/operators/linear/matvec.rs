//! `matvec`: packed weights, at most eight rows, one pass over W for all of them. The decode kernel.
//! Here: the portable body and the list of versions; the AVX-512 version is in `streams.rs`.

#![allow(unsafe_code, reason = "calls of the body compiled for other instruction sets")]

use super::lanes::{self, accumulate, compiled_for_vectors, each_column, header, multiply_add, row_block, store};
use super::{Operands, packed};
use crate::bits::bf16_to_f32;
use crate::ladder::MATVEC_MAX_ROWS;
use crate::operator::CallShape;
use crate::weight::{LANES, LINE};
use crate::{Invocation, Kernel, kernel};

pub(super) static PORTABLE: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "portable", features: &[], supports: few_rows,
    nmse: 6e-6, because: "one bfloat16 rounding of the output; sums in f32", run: body::<false>,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX2: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "avx2", features: lanes::AVX2, supports: few_rows,
    nmse: 6e-6, because: "one bfloat16 rounding of the output; sums in f32", run: run_avx2,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX512F: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "avx512f", features: lanes::AVX512F, supports: few_rows,
    nmse: 6e-6, because: "one bfloat16 rounding of the output; sums in f32", run: run_avx512f,
};

#[cfg(target_arch = "x86_64")]
pub(super) use super::streams::AVX512_VNNI;

compiled_for_vectors!(body);

/// Packed weights and no more rows than accumulators.
pub(super) fn few_rows(shape: &CallShape) -> Result<(), String> {
    packed(shape)?;
    let rows = shape.inputs[0].rows;
    if rows <= MATVEC_MAX_ROWS { Ok(()) } else { Err(format!("takes at most {MATVEC_MAX_ROWS} rows, found {rows}")) }
}

#[inline(always)]
fn body<const FUSED: bool>(i: &Invocation<'_>) {
    match i.input(0).rows {
        1 => rows::<FUSED, 1>(i),
        2 => rows::<FUSED, 2>(i),
        3 | 4 => rows::<FUSED, 4>(i),
        _ => rows::<FUSED, MATVEC_MAX_ROWS>(i),
    }
}

/// Codes are multiplied as they are; a group's scale and bias enter once, through the sum of products and the sum of x.
/// With fewer than `ROWS` rows the last one is computed again and thrown away.
#[inline(always)]
fn rows<const FUSED: bool, const ROWS: usize>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    let (format, rows) = (operands.w.format, operands.x.rows);
    let x: [&[u16]; ROWS] = std::array::from_fn(|row| operands.x.bf16(row.min(rows - 1)));
    let width = format.group();
    for block in i.share(operands.w.rows.div_ceil(LANES)) {
        let mut sums = [[0.0; LANES]; ROWS];
        let groups = row_block(&operands, block).chunks_exact(format.block_lines() * LINE);
        for (index, group) in groups.enumerate() {
            let x: [&[u16]; ROWS] = x.map(|x| &x[index * width..(index + 1) * width]);
            let (mut products, mut totals) = ([[0.0; LANES]; ROWS], [0.0f32; ROWS]);
            each_column(format, group, |column, codes| {
                for row in 0..ROWS {
                    let x = bf16_to_f32(x[row][column]);
                    totals[row] += x;
                    accumulate::<FUSED>(&mut products[row], codes, x);
                }
            });
            let (scales, biases) = header(format, group);
            for row in 0..ROWS {
                for lane in 0..LANES {
                    let sum = multiply_add::<FUSED>(scales[lane], products[row][lane], sums[row][lane]);
                    sums[row][lane] = multiply_add::<FUSED>(biases[lane], totals[row], sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate().take(rows) {
            store(&operands, row, block, sums);
        }
    }
}
