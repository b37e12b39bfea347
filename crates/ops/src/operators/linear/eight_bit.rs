//! `matmul-8bit`: packed weights against activations of eight bits, a scale for every 32 columns of a row. A contract of its
//! own: half of the products that `matmul`'s two planes take, and an error that is larger than the rounding of the output.
//! Here: the conversion in words, the list, the portable body. Not here: the AVX-512 version (`eight_bit_vnni.rs`).
//!
//! Per row and [`COLUMNS`] columns: `t = round(x / s)` with `s = max|x| / 127`, ties to even, and the product takes `t * s` for
//! x. Over x normally distributed the error has 2.5e-5 of the square of x: `s^2 / 12` with the largest of 32 at 2.2 standard
//! deviations. One value that is fifty times its neighbours leaves them one bit.

#![allow(unsafe_code, reason = "scratch; calls of the body compiled for other instruction sets")]

use super::lanes::{self, Vector, compiled, decode, groups, header, row_block, store};
use super::{Operands, packed};
use crate::bits::bf16_to_f32;
use crate::operator::CallShape;
use crate::weight::{LANES, LINE, WeightFormat};
use crate::{Invocation, Kernel, kernel};

/// Columns with one scale, or the group of the weights where that is shorter.
pub(super) const COLUMNS: usize = 32;

pub(super) const NMSE: f64 = 5e-4;
pub(super) const REASON: &str =
    "activations have eight bits: 2e-5 to 5e-5 of their square, and ten times that beside outliers";

pub(super) static PORTABLE: Kernel = kernel! {
    operator: "linear", name: "matmul-8bit", isa: "portable", features: &[], supports: whole_scales, scratch: scratch,
    nmse: NMSE, because: REASON, run: run_plain,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX2: Kernel = kernel! {
    operator: "linear", name: "matmul-8bit", isa: "avx2", features: lanes::AVX2, supports: whole_scales,
    scratch: scratch,
    nmse: NMSE, because: REASON, run: run_avx2,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX512F: Kernel = kernel! {
    operator: "linear", name: "matmul-8bit", isa: "avx512f", features: lanes::AVX512F, supports: whole_scales,
    scratch: scratch,
    nmse: NMSE, because: REASON, run: run_avx512f,
};

#[cfg(target_arch = "x86_64")]
pub(super) use super::eight_bit_vnni::AVX512_VNNI;

compiled!(body, 1, 1, 1);

/// Packed weights whose groups, and the halves of 4-bit ones, are whole numbers of scales; or one scale is a group's.
pub(super) fn whole_scales(shape: &CallShape) -> Result<(), String> {
    packed(shape)?;
    let format = shape.weights[0].format;
    let halves = if let WeightFormat::Affine4 { .. } = format { 2 } else { 1 };
    if format.group() <= COLUMNS || format.group().is_multiple_of(halves * COLUMNS) {
        return Ok(());
    }
    Err(format!("needs groups of at most {COLUMNS}, or multiples of {}, found {format}", halves * COLUMNS))
}

/// A group's codes as numbers, and a row of converted x.
fn scratch(shape: &CallShape) -> usize {
    let w = shape.weights[0];
    w.format.group() * LANES * size_of::<f32>() + w.cols * size_of::<f32>()
}

/// As `vanilla`, with x converted: for machines without byte products, where eight bits win nothing.
#[inline(always)]
fn body<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    let (format, cols) = (operands.w.format, operands.w.cols);
    let group = format.group();
    // SAFETY: the only slice of the scratch in this call.
    let scratch = unsafe { i.scratch() };
    // SAFETY: any bytes are floats; the scratch is page aligned.
    let (_, floats, _) = unsafe { scratch.align_to_mut::<f32>() };
    let (columns, x) = floats.split_at_mut(group * LANES);
    let (columns, _) = columns.as_chunks_mut::<LANES>();
    for row in 0..operands.x.rows {
        let x = &mut x[..cols];
        for (out, x) in x.chunks_mut(COLUMNS.min(group)).zip(operands.x.bf16(row).chunks(COLUMNS.min(group))) {
            convert(x, out);
        }
        for block in i.share(operands.w.rows.div_ceil(LANES)) {
            let mut sums = V::splat(0.0);
            for (group, x) in groups(format, row_block(&operands, block)).zip(x.chunks_exact(group)) {
                decode::<V>(format, group, columns);
                let (scales, biases) = header(format, group);
                let (scales, biases) = (V::load(&scales), V::load(&biases));
                for (codes, x) in columns.iter().zip(x) {
                    let weights = biases.add_product(V::load(codes), scales);
                    sums = sums.add_product(weights, V::splat(*x));
                }
            }
            store(&operands, row, block, &sums.lanes());
        }
    }
}

/// The nearest numbers that eight bits hold; all NaN if one is not finite.
#[inline(always)]
fn convert(x: &[u16], out: &mut [f32]) {
    let mut largest = 0u16;
    for x in x {
        largest = largest.max(x & 0x7fff);
    }
    let largest = if largest < 0x7f80 { bf16_to_f32(largest) } else { f32::NAN };
    let (step, inverse) = steps(largest);
    for (out, x) in out.iter_mut().zip(x) {
        // Adding and subtracting 1.5 * 2^23 rounds to a whole number, ties to even.
        let whole = (bf16_to_f32(*x) * inverse + 12_582_912.0) - 12_582_912.0;
        *out = whole * step;
    }
}

/// The step between neighbouring values and its inverse, of columns whose largest magnitude this is; zeros for zeros.
#[inline(always)]
pub(super) fn steps(largest: f32) -> (f32, f32) {
    // Below 2^-120 the inverse would leave the range of f32: such columns are rounded to zeros.
    if largest < 2f32.powi(-120) { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) }
}

const _: () = assert!(COLUMNS.is_multiple_of(4) && LINE == 4 * LANES);
