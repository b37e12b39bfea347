//! `vanilla`: the readable fallback for packed weights. One lane computes one output, start to end, for one row of x.
//! Deliberately not here: any reuse of a dequantized weight, any blocking over rows.

#![allow(unsafe_code, reason = "scratch; calls of the body compiled for other instruction sets")]

use super::lanes::{self, Vector, compiled, decode, group_bytes, groups, header, row_block, scratch_columns, store};
use super::{Operands, packed};
use crate::bits::bf16_to_f32;
use crate::weight::LANES;
use crate::{Invocation, Kernel, kernel};

const REASON: &str = "one bfloat16 rounding of the output; sums in f32";

pub(super) static PORTABLE: Kernel = kernel! {
    operator: "linear", name: "vanilla", isa: "portable", features: &[], supports: packed, scratch: group_bytes,
    nmse: 6e-6, because: REASON, run: run_plain,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX2: Kernel = kernel! {
    operator: "linear", name: "vanilla", isa: "avx2", features: lanes::AVX2, supports: packed, scratch: group_bytes,
    nmse: 6e-6, because: REASON, run: run_avx2,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX512F: Kernel = kernel! {
    operator: "linear", name: "vanilla", isa: "avx512f", features: lanes::AVX512F, supports: packed, scratch: group_bytes,
    nmse: 6e-6, because: REASON, run: run_avx512f,
};

compiled!(body, 1, 1, 1);

/// Each weight becomes `q * scale + bias` in f32 and is multiplied into its output's sum, again for every row: W is read
/// from memory or cache once per row of x, `2 * rows * in * out` useful flops and as many again for dequantizing. Floor: four
/// operations per 16 weights and row. On two cores of an AMD EPYC (Zen 4), AVX-512: the layers of Qwen3-0.6B (W4 g128) at
/// 128 rows in 4.0 s, 28 GFLOP/s.
#[inline(always)]
fn body<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    let format = operands.w.format;
    // SAFETY: the only slice of the scratch in this call.
    let columns = unsafe { scratch_columns(i, format.group()) };
    for block in i.share(operands.w.rows.div_ceil(LANES)) {
        for row in 0..operands.x.rows {
            let x = operands.x.bf16(row).chunks_exact(format.group());
            let mut sums = V::splat(0.0);
            for (group, x) in groups(format, row_block(&operands, block)).zip(x) {
                decode::<V>(format, group, columns);
                let (scales, biases) = header(format, group);
                let (scales, biases) = (V::load(&scales), V::load(&biases));
                for (codes, x) in columns.iter().zip(x) {
                    let weights = biases.add_product(V::load(codes), scales);
                    sums = sums.add_product(weights, V::splat(bf16_to_f32(*x)));
                }
            }
            store(&operands, row, block, &sums.lanes());
        }
    }
}
