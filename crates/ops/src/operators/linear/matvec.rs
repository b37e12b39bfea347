//! `matvec`: packed weights, at most eight rows, one pass over W for all of them. The decode kernel.
//! Here: the portable body. Not here: the versions on exact integers, in `streams.rs` (AVX-512) and `maddubs.rs` (AVX2).

#![allow(unsafe_code, reason = "scratch; calls of the body compiled for other instruction sets")]

use super::ahead::ahead;
use super::lanes::{
    self, Lanes, Vector, compiled, decode, groups, header, products, row_block, rows_from, scratch_columns, store,
};
use super::{Operands, packed};
use crate::bits::bf16_to_f32;
use crate::ladder::MATVEC_MAX_ROWS;
use crate::operator::CallShape;
use crate::weight::LANES;
use crate::{Invocation, Kernel, kernel};

pub(super) static PORTABLE: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "portable", features: &[], supports: few_rows, scratch: scratch,
    ahead: |i, piece| ahead(i, 1, piece),
    nmse: 6e-6, because: "one bfloat16 rounding of the output; sums in f32", run: run_plain,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX2: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "avx2", features: lanes::AVX2, supports: few_rows, scratch: scratch,
    ahead: |i, piece| ahead(i, 1, piece),
    nmse: 6e-6, because: "one bfloat16 rounding of the output; sums in f32", run: run_avx2,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX512F: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "avx512f", features: lanes::AVX512F, supports: few_rows, scratch: scratch,
    ahead: |i, piece| ahead(i, 1, piece),
    nmse: 6e-6, because: "one bfloat16 rounding of the output; sums in f32", run: run_avx512f,
};

#[cfg(target_arch = "x86_64")]
pub(super) use super::streams::MATVEC_AVX512_VNNI as AVX512_VNNI;

/// Row blocks that a worker takes at a time of those that belong to none: some microseconds of work.
pub(super) const LEAST: usize = 2;

compiled!(body, 2, 4, 8);

/// Packed weights and no more rows than accumulators.
pub(super) fn few_rows(shape: &CallShape) -> Result<(), String> {
    packed(shape)?;
    let rows = shape.inputs[0].rows;
    if rows <= MATVEC_MAX_ROWS { Ok(()) } else { Err(format!("takes at most {MATVEC_MAX_ROWS} rows, found {rows}")) }
}

/// Codes are multiplied as they are; a group's scale and bias enter once, through the sum of products and the sum of x. The
/// group's codes are decoded to f32 once and serve `ROWS` rows at a time. Bytes and flops as for the AVX-512 VNNI version; the
/// decoding, four operations per 16 weights, is its floor: with AVX2, two cores of an AMD EPYC (Zen 4) decode Qwen3-0.6B
/// (W4 g128) in 24 ms per token, 0.4 of a plain read.
#[inline(always)]
fn body<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    if i.input(0).rows == 1 { tiles::<V, 1>(i) } else { tiles::<V, ROWS>(i) }
}

#[inline(always)]
fn tiles<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: once in this call.
    let (columns, totals) = unsafe { prepared(i, &operands) };
    for block in i.portions(operands.w.rows.div_ceil(LANES), LEAST).flatten() {
        let sums = block_sums::<V, ROWS>(&operands, block, columns, totals);
        for (row, sums) in sums.iter().enumerate().take(operands.x.rows) {
            store(&operands, row, block, &sums.lanes());
        }
    }
}

/// The worker's scratch: room for the decoded columns of a group, and the sums of x per row and group.
///
/// # Safety
/// Once in a call: the slices are of the one scratch that the worker has.
#[inline(always)]
#[expect(clippy::mut_from_ref, reason = "scratch is private to the worker; the contract forbids two slices")]
pub(super) unsafe fn prepared<'a>(i: &'a Invocation<'_>, operands: &Operands<'_>) -> (&'a mut [Lanes], &'a [f32]) {
    let (width, rows) = (operands.w.format.group(), operands.x.rows);
    let count = operands.w.cols / width;
    // SAFETY: once in a call, by this function's own contract.
    let (columns, totals) = unsafe { scratch_columns(i, width + total_lanes(rows, count)) }.split_at_mut(width);
    let totals = totals.as_flattened_mut();
    for row in 0..rows {
        for (x, total) in operands.x.bf16(row).chunks_exact(width).zip(&mut totals[row * count..]) {
            *total = x.iter().map(|x| bf16_to_f32(*x)).sum();
        }
    }
    (columns, totals)
}

/// The 16 sums of a row block for every row of x.
#[inline(always)]
pub(super) fn block_sums<V: Vector, const ROWS: usize>(
    operands: &Operands<'_>,
    block: usize,
    columns: &mut [Lanes],
    totals: &[f32],
) -> [V; MATVEC_MAX_ROWS] {
    let (format, rows) = (operands.w.format, operands.x.rows);
    let width = format.group();
    let count = operands.w.cols / width;
    let mut sums = [V::splat(0.0); MATVEC_MAX_ROWS];
    for (index, group) in groups(format, row_block(operands, block)).enumerate() {
        decode::<V>(format, group, columns);
        let (scales, biases) = header(format, group);
        let (scales, biases) = (V::load(&scales), V::load(&biases));
        for first in (0..rows).step_by(ROWS) {
            let x = rows_from::<ROWS>(operands, first).map(|x| &x[index * width..(index + 1) * width]);
            let products: [V; ROWS] = products(columns, x);
            for (row, products) in (first..rows).zip(products) {
                let total = V::splat(totals[row * count + index]);
                sums[row] = sums[row].add_product(scales, products).add_product(biases, total);
            }
        }
    }
    sums
}

/// Scratch: the decoded columns of a group, and the sum of x per row and group.
pub(super) fn scratch(shape: &CallShape) -> usize {
    let w = shape.weights[0];
    let group = w.format.group();
    (group + total_lanes(shape.inputs[0].rows, w.cols / group)) * size_of::<Lanes>()
}

/// Sums of x, as rows of 16 lanes.
const fn total_lanes(rows: usize, groups: usize) -> usize {
    (rows * groups).div_ceil(LANES)
}
