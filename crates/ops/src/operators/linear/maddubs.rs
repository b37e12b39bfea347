//! `matvec/avx2-maddubs`: 4-bit codes against split-plane activations with AVX2's byte products.
//! Not here: Int8, whose products of full bytes would saturate `vpmaddubsw`.

#![allow(unsafe_code, reason = "AVX2 loads through pointers into checked operands and private scratch")]

use super::Operands;
use super::ahead::ahead;
use super::gated::{GATED, GATED_REASON};
use super::lanes::{AVX2, groups, header, row_block, store};
use super::matvec::{LEAST, few_rows};
use super::planes::{Factors, scratch_bytes};
use crate::bits::bf16_to_f32;
use crate::operator::CallShape;
use crate::operators::maths::silu;
use crate::weight::{LANES, LINE, WeightFormat};
use crate::{Invocation, Kernel, kernel};
use std::arch::x86_64::*;

const REASON: &str = "one bfloat16 rounding of the output; activations are exact to 2^-16 of their group's largest";

pub(crate) static MATVEC_AVX2: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "avx2-maddubs", features: AVX2, supports: few_rows_of_nibbles,
    scratch: scratch, ahead: |i, piece| ahead(i, 1, piece),
    nmse: 6e-6, because: REASON, run: run,
};

pub(crate) static GATED_AVX2: Kernel = kernel! {
    operator: "gated_linear", name: "matvec", isa: "avx2-maddubs", features: AVX2, supports: few_rows_of_nibbles,
    scratch: scratch, ahead: |i, piece| ahead(i, 1, piece),
    nmse: GATED, because: GATED_REASON, run: run_gated,
};

/// Lines whose byte products fit 16-bit sums: 4 lines of two products of 15 * 128, twice.
pub(super) const LINES: usize = 4;
/// Bytes of x in both planes that a line of codes meets.
pub(super) const WORDS: usize = 16;
/// Columns of the longest group whose fixed-point values fit the stack.
const LONGEST: usize = 256;

fn few_rows_of_nibbles(shape: &CallShape) -> Result<(), String> {
    few_rows(shape)?;
    nibbles(shape)
}

/// Whether W is of 4-bit codes in groups that can be split.
pub(super) fn nibbles(shape: &CallShape) -> Result<(), String> {
    match shape.weights[0].format {
        WeightFormat::Affine4 { group, .. } if group <= LONGEST => Ok(()),
        format => Err(format!("needs 4-bit weights in groups of at most {LONGEST}, found {format}")),
    }
}

fn scratch(shape: &CallShape) -> usize {
    let w = shape.weights[0];
    scratch_bytes(shape.inputs[0].rows, w.cols, w.format.group())
}

fn run(i: &Invocation<'_>) {
    // SAFETY: `bind` checked the processor's features, `supports` the element types and the format.
    unsafe { sweep(i) }
}

/// Row block by row block, whose codes stay in the nearest cache while all rows of x pass over it, one at a time.
///
/// Moves the packed W once; `2 * rows * in * out` flops. Floor: the bytes of W at the read bandwidth for one row, about 13
/// instructions per 64 weights and row for more. On two cores of an AMD EPYC (Zen 4), Qwen3-0.6B in 4 bits, one row: 10.8 ms and
/// 0.7 of a plain read beside it at groups of 128 (19 ms and 0.5 at groups of 32); eight rows of the layers in 70 ms.
#[target_feature(enable = "avx2,fma")]
fn sweep(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    let planes = split(i, &operands);
    for block in i.portions(operands.w.rows.div_ceil(LANES), LEAST).flatten() {
        for (row, planes) in planes.chunks_exact(row_bytes(&operands)).take(operands.x.rows).enumerate() {
            store(&operands, row, block, &block_sums(&operands, block, planes));
        }
    }
}

fn run_gated(i: &Invocation<'_>) {
    // SAFETY: as for `run`.
    unsafe { sweep_gated(i) }
}

/// Two matrices of one shape: both blocks' sums, then the gated product. Moves both once; for the rest as [`sweep`].
#[target_feature(enable = "avx2,fma")]
fn sweep_gated(i: &Invocation<'_>) {
    let [gate, up] = Operands::gated(i);
    let planes = split(i, &gate);
    for block in i.portions(gate.w.rows.div_ceil(LANES), LEAST).flatten() {
        for (row, planes) in planes.chunks_exact(row_bytes(&gate)).take(gate.x.rows).enumerate() {
            let mut sums = block_sums(&gate, block, planes);
            let factors = block_sums(&up, block, planes);
            for (gate, up) in sums.iter_mut().zip(factors) {
                *gate = silu::<true>(*gate) * up;
            }
            store(&gate, row, block, &sums);
        }
    }
}

/// Bytes of one row's planes.
fn row_bytes(operands: &Operands<'_>) -> usize {
    scratch_bytes(1, operands.w.cols, operands.w.format.group())
}

/// The planes of all rows, one after another, in the worker's scratch.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn split<'a>(i: &'a Invocation<'_>, operands: &Operands<'_>) -> &'a [u8] {
    let (group, cols) = (operands.w.format.group(), operands.w.cols);
    // SAFETY: the only slice of the scratch in this call.
    let scratch = unsafe { i.scratch() };
    for (row, planes) in scratch.chunks_exact_mut(row_bytes(operands)).take(operands.x.rows).enumerate() {
        let (words, factors) = planes.split_at_mut(cols * 2);
        let parts = words.chunks_exact_mut(group * 2).zip(factors.chunks_exact_mut(8));
        for ((words, factors), x) in parts.zip(operands.x.bf16(row).chunks_exact(group)) {
            store_factors(split_group(x, words, WORDS), factors);
        }
    }
    scratch
}

/// The 16 sums of a row block for the row of x whose planes these are.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn block_sums(operands: &Operands<'_>, block: usize, planes: &[u8]) -> [f32; LANES] {
    let (format, cols) = (operands.w.format, operands.w.cols);
    let (words, factors) = planes.split_at(cols * 2);
    let parts = words.chunks_exact(format.group() * 2).zip(factors.chunks_exact(8));
    let mut sums = [_mm256_setzero_ps(); 2];
    for (block, (words, factors)) in groups(format, row_block(operands, block)).zip(parts) {
        let exact = group_sums(&block[format.header_lines() * LINE..], words);
        let number = |at: usize| f32::from_le_bytes([factors[at], factors[at + 1], factors[at + 2], factors[at + 3]]);
        let (step, total) = (_mm256_set1_ps(number(0)), _mm256_set1_ps(number(4)));
        let (scales, biases) = header(format, block);
        for half in 0..2 {
            // SAFETY: both halves lie in the 16 lanes.
            let (scales, biases) = unsafe {
                let at = half * 8;
                (_mm256_loadu_ps(scales.as_ptr().add(at)), _mm256_loadu_ps(biases.as_ptr().add(at)))
            };
            let products = _mm256_cvtepi32_ps(exact[half]);
            sums[half] = _mm256_fmadd_ps(products, _mm256_mul_ps(scales, step), sums[half]);
            sums[half] = _mm256_fmadd_ps(biases, total, sums[half]);
        }
    }
    // SAFETY: 64 bytes of numbers either way.
    unsafe { std::mem::transmute::<[__m256; 2], [f32; LANES]>(sums) }
}

/// Σ code * t of the 16 rows over one group, exactly: 4-bit codes times each plane's bytes, pairs summed in 16 bits for a few
/// lines, then in 32.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn group_sums(codes: &[u8], words: &[u8]) -> [__m256i; 2] {
    let (mask, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1));
    let mut sums = [_mm256_setzero_si256(); 2];
    for (codes, words) in codes.chunks_exact(LINES * LINE).zip(words.chunks_exact(LINES * WORDS)) {
        let (mut high, mut low) = ([_mm256_setzero_si256(); 2], [_mm256_setzero_si256(); 2]);
        for line in 0..LINES {
            let word = |n: usize| {
                let at = line * WORDS + n * 4;
                _mm256_set1_epi32(i32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]))
            };
            let x = [word(0), word(1), word(2), word(3)];
            for half in 0..2 {
                // SAFETY: half a line, inside the slice; the prefetch reads nothing and never faults.
                let codes = unsafe {
                    let at = codes.as_ptr().add(line * LINE + half * 32);
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(512).cast());
                    _mm256_loadu_si256(at.cast())
                };
                let lower = _mm256_and_si256(codes, mask);
                let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask);
                let plane = |lower_x: __m256i, upper_x: __m256i| {
                    _mm256_add_epi16(_mm256_maddubs_epi16(lower, lower_x), _mm256_maddubs_epi16(upper, upper_x))
                };
                high[half] = _mm256_add_epi16(high[half], plane(x[0], x[2]));
                low[half] = _mm256_add_epi16(low[half], plane(x[1], x[3]));
            }
        }
        for half in 0..2 {
            let (high, low) = (_mm256_madd_epi16(high[half], ones), _mm256_madd_epi16(low[half], ones));
            sums[half] = _mm256_add_epi32(sums[half], _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low));
        }
    }
    sums
}

/// The planes of one group of one row, those of line n from byte `n * stride` on; the same numbers as `planes.rs` makes.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn split_group(x: &[u16], words: &mut [u8], stride: usize) -> Factors {
    let largest = x.iter().fold(0, |largest, x| largest.max(x & 0x7fff));
    let scaling = Factors::scaling(u32::from(largest));
    let mut fixed = [0i32; LONGEST];
    let mut total = 0;
    for (fixed, x) in fixed.iter_mut().zip(x) {
        // Adding 1.5 * 2^23 rounds to an integer, ties to even, in the sum's low bits.
        const ROUND: f32 = 12_582_912.0;
        *fixed = ((bf16_to_f32(*x) * scaling.inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
        total += *fixed;
    }
    let (lower, upper) = fixed[..x.len()].split_at(x.len() / 2);
    let fours = lower.as_chunks::<4>().0.iter().zip(upper.as_chunks::<4>().0);
    for (words, (lower, upper)) in words.chunks_mut(stride).zip(fours) {
        // SAFETY: four numbers each.
        let [lower, upper] = [lower, upper].map(|four| unsafe { both_planes(_mm_loadu_si128(four.as_ptr().cast())) });
        let words = &mut words[..WORDS];
        // SAFETY: sixteen bytes, as sliced.
        unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), _mm_unpacklo_epi64(lower, upper)) };
    }
    Factors { step: scaling.step, total: (scaling.step * total as f32).to_bits() }
}

/// The high bytes of four numbers (rounded, so that what remains is a signed byte), then their low bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn both_planes(fixed: __m128i) -> __m128i {
    let first_bytes = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    let high = _mm_srai_epi32::<8>(_mm_add_epi32(fixed, _mm_set1_epi32(128)));
    _mm_unpacklo_epi32(_mm_shuffle_epi8(high, first_bytes), _mm_shuffle_epi8(fixed, first_bytes))
}

/// Writes a group's factors.
pub(super) fn store_factors(made: Factors, to: &mut [u8]) {
    to[..4].copy_from_slice(&made.step.to_le_bytes());
    to[4..8].copy_from_slice(&made.total.to_le_bytes());
}
