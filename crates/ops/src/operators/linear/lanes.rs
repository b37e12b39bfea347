//! The portable kernels' view of packed weights: 16 rows as 16 lanes of f32, one column after another.
//! Bodies built from these are compiled once per instruction set; no intrinsics here.

use super::Operands;
use crate::bits::bf16_to_f32;
use crate::weight::{ElementType, LANES, LINE, WeightFormat, half_to_f32};

/// One number per row of a row block.
pub(super) type Lanes = [f32; LANES];

/// `a * b + c`, fused where the instruction set has it (elsewhere a fused product would be a library call).
#[inline(always)]
pub(super) fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// `sums += lanes * x`.
#[inline(always)]
pub(super) fn accumulate<const FUSED: bool>(sums: &mut Lanes, lanes: &Lanes, x: f32) {
    for (sum, lane) in sums.iter_mut().zip(lanes) {
        *sum = multiply_add::<FUSED>(*lane, x, *sum);
    }
}

/// The bytes of row block `block`.
#[inline(always)]
pub(super) fn row_block<'a>(operands: &Operands<'a>, block: usize) -> &'a [u8] {
    let bytes = operands.w.format.row_block_bytes(operands.w.cols);
    &operands.w.bytes[block * bytes..(block + 1) * bytes]
}

#[inline(always)]
fn words(line: &[u8]) -> [u32; LANES] {
    std::array::from_fn(|lane| {
        let at = lane * 4;
        u32::from_le_bytes([line[at], line[at + 1], line[at + 2], line[at + 3]])
    })
}

/// Scales and biases of a group's block.
#[inline(always)]
pub(super) fn header(format: WeightFormat, block: &[u8]) -> (Lanes, Lanes) {
    let first = words(&block[..LINE]);
    match format {
        WeightFormat::Affine4 { parameters: ElementType::F32, .. } => {
            (first.map(f32::from_bits), words(&block[LINE..2 * LINE]).map(f32::from_bits))
        }
        WeightFormat::Affine4 { parameters, .. } => (
            first.map(|word| half_to_f32(parameters, (word >> 16) as u16)),
            first.map(|word| half_to_f32(parameters, word as u16)),
        ),
        _ => (first.map(f32::from_bits), [0.0; LANES]),
    }
}

/// Calls `each(column of the group, codes as f32)` for every column of a group's block (or of a pair of bf16 columns).
#[inline(always)]
pub(super) fn each_column(format: WeightFormat, block: &[u8], mut each: impl FnMut(usize, &Lanes)) {
    let lines = block[format.header_lines() * LINE..].chunks_exact(LINE).map(words).enumerate();
    match format {
        WeightFormat::Affine4 { group, .. } => {
            for (line, words) in lines {
                for byte in 0..4 {
                    each(line * 4 + byte, &words.map(|word| ((word >> (8 * byte)) & 15) as i32 as f32));
                }
                for byte in 0..4 {
                    let column = group / 2 + line * 4 + byte;
                    each(column, &words.map(|word| ((word >> (8 * byte + 4)) & 15) as i32 as f32));
                }
            }
        }
        WeightFormat::Int8 { .. } => {
            for (line, words) in lines {
                for byte in 0..4 {
                    each(line * 4 + byte, &words.map(|word| ((word << (24 - 8 * byte)) as i32 >> 24) as f32));
                }
            }
        }
        WeightFormat::Bf16 => {
            for (line, words) in lines {
                each(line * 2, &words.map(|word| bf16_to_f32(word as u16)));
                each(line * 2 + 1, &words.map(|word| bf16_to_f32((word >> 16) as u16)));
            }
        }
        WeightFormat::F32 => unreachable!("plain f32 matrices have no lanes; `supports` refuses them"),
    }
}

/// Writes 16 sums of one row, plus the bias, to the outputs of row block `block` that exist.
#[inline(always)]
pub(super) fn store(operands: &Operands<'_>, row: usize, block: usize, sums: &Lanes) {
    let first = block * LANES;
    for (lane, sum) in sums.iter().enumerate().take(operands.w.rows - first) {
        let bias = operands.bias.map_or(0.0, |bias| bias[first + lane]);
        operands.y.set(row, first + lane, sum + bias);
    }
}

/// Declares `run_avx2` and `run_avx512f`: the same body, compiled for those instruction sets.
macro_rules! compiled_for_vectors {
    ($body:ident) => {
        #[cfg(target_arch = "x86_64")]
        fn run_avx2(i: &crate::Invocation<'_>) {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn compiled(i: &crate::Invocation<'_>) {
                $body::<true>(i);
            }
            // SAFETY: `bind` checked that the processor has the features that the kernel names.
            unsafe { compiled(i) }
        }

        #[cfg(target_arch = "x86_64")]
        fn run_avx512f(i: &crate::Invocation<'_>) {
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
            fn compiled(i: &crate::Invocation<'_>) {
                $body::<true>(i);
            }
            // SAFETY: as above.
            unsafe { compiled(i) }
        }
    };
}
pub(super) use compiled_for_vectors;

/// What `run_avx2` needs.
#[cfg(target_arch = "x86_64")]
pub(super) const AVX2: &[crate::Feature] = &[crate::Feature::Avx2, crate::Feature::Fma, crate::Feature::F16c];

/// What `run_avx512f` needs.
#[cfg(target_arch = "x86_64")]
pub(super) const AVX512F: &[crate::Feature] = &[
    crate::Feature::Avx2,
    crate::Feature::Fma,
    crate::Feature::F16c,
    crate::Feature::Avx512f,
    crate::Feature::Avx512bw,
    crate::Feature::Avx512vl,
    crate::Feature::Avx512dq,
];
