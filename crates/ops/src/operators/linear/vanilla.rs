//! `vanilla`: the readable fallback for packed weights. One lane computes one output, start to end, for one row of x.
//! Deliberately not here: any reuse of a dequantized weight, any blocking over rows.

#![allow(unsafe_code, reason = "calls of the body compiled for other instruction sets")]

use super::lanes::{self, accumulate, compiled_for_vectors, each_column, header, multiply_add, row_block, store};
use super::{Operands, packed};
use crate::bits::bf16_to_f32;
use crate::weight::{LANES, LINE};
use crate::{Invocation, Kernel, kernel};

const REASON: &str = "one bfloat16 rounding of the output; sums in f32";

pub(super) static PORTABLE: Kernel = kernel! {
    operator: "linear", name: "vanilla", isa: "portable", features: &[], supports: packed,
    nmse: 6e-6, because: REASON, run: body::<false>,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX2: Kernel = kernel! {
    operator: "linear", name: "vanilla", isa: "avx2", features: lanes::AVX2, supports: packed,
    nmse: 6e-6, because: REASON, run: run_avx2,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX512F: Kernel = kernel! {
    operator: "linear", name: "vanilla", isa: "avx512f", features: lanes::AVX512F, supports: packed,
    nmse: 6e-6, because: REASON, run: run_avx512f,
};

compiled_for_vectors!(body);

/// Each weight becomes `q * scale + bias` in f32 and is multiplied into its output's sum, again for every row: W is read
/// from memory or cache once per row of x, `2 * rows * in * out` useful flops and as many again for dequantizing.
#[inline(always)]
fn body<const FUSED: bool>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    let format = operands.w.format;
    for block in i.share(operands.w.rows.div_ceil(LANES)) {
        let bytes = row_block(&operands, block);
        for row in 0..operands.x.rows {
            let mut sums = [0.0; LANES];
            let groups = bytes.chunks_exact(format.block_lines() * LINE);
            for (group, x) in groups.zip(operands.x.bf16(row).chunks_exact(format.group())) {
                let (scales, biases) = header(format, group);
                each_column(format, group, |column, codes| {
                    let weights = std::array::from_fn(|n| multiply_add::<FUSED>(codes[n], scales[n], biases[n]));
                    accumulate::<FUSED>(&mut sums, &weights, bf16_to_f32(x[column]));
                });
            }
            store(&operands, row, block, &sums);
        }
    }
}
