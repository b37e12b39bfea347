//! `matvec/avx512-vnni-pairs`: the sums of `streams.rs` with fewer products, for processors that add
//! beside multiplying. Not here: the words of x (`words.rs`), rows too few to be limited by products (`streams.rs`).
//!
//! Two products are one product and two additions (Winograd, 1968), where what depends on x or W alone is summed by itself:
//!
//! `a p + b q = (p + b) (q + a) - p q - a b`
//!
//! With codes a, b of four (eight) bits and words p, q of at most 32,639, the sums fit 16 bits, and everything is exact modulo 2^32, in
//! which a group's sum fits: the results are those of two byte planes, bit by bit.

#![allow(unsafe_code, reason = "AVX-512 loads through pointers into checked operands and private scratch")]
#![allow(clippy::out_of_bounds_indexing, reason = "`unrolled!` leaves out what lies beyond the eight rows")]

use super::Operands;
use super::ahead::ahead;
use super::matvec::few_rows;
use super::streams::{FIRST_PIECES, REASON, Sweep};
use super::unrolled::unrolled;
use super::vector::{for_format, header, header_bytes, is_affine4, lockstep};
use super::words::{self, Finish, Words};
use crate::operator::CallShape;
use crate::weight::{LANES, LINE};
use crate::{DType, Feature, Invocation, Kernel, kernel};
use std::arch::x86_64::*;

const FEATURES: &[Feature] = &[
    Feature::Avx512f,
    Feature::Avx512bw,
    Feature::Avx512vl,
    Feature::Avx512dq,
    Feature::Avx512vnni,
    Feature::SideAdds,
];

pub(crate) static MATVEC: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "avx512-vnni-pairs", features: FEATURES, supports: eight_rows,
    scratch: scratch, ahead: |i, piece| ahead(i, STREAMS, piece),
    nmse: 6e-6, because: REASON, run: run_matvec,
};

/// Row blocks in lockstep: each word of x that is broadcast serves as many products.
const STREAMS: usize = 2;
/// Bytes that each stream is prefetched ahead. Measured: 512, 1,024 and 2,048 are alike.
const AHEAD: usize = 1024;
/// Rows at which it was seen to win: at five and six some formats lost, and seven were not measured.
const ROWS: usize = 8;

/// Whether row `row` of a tile multiplies pairs: five of the eight, evenly spread, so that additions take as long as products.
const fn is_paired(row: usize) -> bool {
    row * 5 % ROWS < 5
}

fn eight_rows(shape: &CallShape) -> Result<(), String> {
    few_rows(shape)?;
    match shape.inputs[0].rows {
        ROWS => Ok(()),
        rows => Err(format!("is for {ROWS} rows, found {rows}")),
    }
}

fn scratch(shape: &CallShape) -> usize {
    let w = shape.weights[0];
    words::scratch_bytes(shape.inputs[0].rows, w.cols, w.format.group())
}

fn run_matvec(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: `bind` checked the processor's features, `supports` the element types and the format.
    unsafe { for_format!(operands.w.format, matvec::<_>(i, &operands)) }
}

/// All rows in one pass over W, two row blocks in lockstep.
///
/// Moves W once. Of eight rows, five are paired: a line of codes takes 24 multiplications and 26 other operations, where byte
/// planes take 32 multiplications; the floor that `replay` counts has one for each pair, 16.
///
/// Outcome on an AMD EPYC (Zen 4), the layers of Qwen3-0.6B at W4 g128, 8 rows, medians of 15 alternated rounds: two cores 16.5
/// to 17.1 ms where planes take 17.9 to 18.1, one core 31.3 and 34.1. The loop has no spills and takes 24.7 cycles per line from
/// the first-level cache, where planes take 31.6: the rest of that difference is memory, the conversion of x by every worker, and
/// what ends a group. One stream in place of two lost it all. As a `matmul` of tiles of ten rows it took 0.97 of the planes' time
/// at 128 rows, and 1.02 in groups of 64, so there is none.
///
/// # Safety
/// - The processor has the kernel's features; operands are what `supports` admits, of the format of `FORMAT`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn matvec<const FORMAT: u8>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let sweep = Sweep::of(operands);
    if i.fetches_ahead() {
        (0..FIRST_PIECES).for_each(|piece| {
            ahead(i, STREAMS, piece);
        });
    }
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    // SAFETY: the caller's contract.
    let x = unsafe { words_of::<FORMAT>(operands, scratch) };
    for blocks in i.portions(operands.w.rows.div_ceil(LANES), 4) {
        let (length, rest) = lockstep(&blocks, STREAMS);
        for block in blocks.start..blocks.start + length {
            // SAFETY: the worker's blocks; the words are of all rows.
            unsafe { sweep.paired_blocks::<FORMAT, STREAMS>(block, length, x) };
        }
        for block in rest {
            // SAFETY: as above.
            unsafe { sweep.paired_blocks::<FORMAT, 1>(block, 0, x) };
        }
    }
}

/// The words of all rows of x.
///
/// # Safety
/// - As for [`matvec`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn words_of<const FORMAT: u8>(operands: &Operands<'_>, scratch: &mut [u8]) -> Words {
    let x = &operands.x;
    assert!(x.dtype == DType::BF16, "`supports` admits bfloat16 rows");
    // SAFETY: x is bfloat16 (asserted); the group divides the columns (`Operands::of`) and is a multiple of 32 or 16
    // (packing checks it); scratch is private, and `convert` checks its length.
    unsafe { words::convert::<FORMAT>(x.as_ptr().cast(), x.rows, x.width, operands.w.format.group(), scratch) }
}

/// Pair `pair` of a line's codes, as words: Affine4 has two pairs of (low nibbles, high nibbles), Int8 one of (even, odd) bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn words_of_codes<const FORMAT: u8>(codes: __m512i, pair: usize) -> (__m512i, __m512i) {
    let nibbles = _mm512_set1_epi16(15);
    match (is_affine4(FORMAT), pair) {
        (true, 0) => (_mm512_and_si512(codes, nibbles), _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibbles)),
        (true, _) => (_mm512_and_si512(_mm512_srli_epi16::<8>(codes), nibbles), _mm512_srli_epi16::<12>(codes)),
        (false, _) => (_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(codes)), _mm512_srai_epi16::<8>(codes)),
    }
}

/// `sum + a0 b0 + a1 b1` in every lane, of words, modulo 2^32: `vpdpwssd`. Written as the instruction, because the compiler takes the
/// intrinsic apart into a product and an addition, and additions are what these loops have enough of; and not as a pure one, which
/// the compiler moves about until sums no longer fit the registers.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn multiply_add(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    let mut sum = sum;
    // SAFETY: registers alone, of a feature that this function has.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {sum}, {a}, {b}",
            sum = inout(zmm_reg) sum, a = in(zmm_reg) a, b = in(zmm_reg) b,
            options(nomem, nostack, preserves_flags),
        );
    }
    sum
}

impl Sweep {
    /// As [`Sweep::blocks`].
    ///
    /// # Safety
    /// - The blocks exist and are this worker's; the words are of `ROWS` rows, of W's columns and format.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn paired_blocks<const FORMAT: u8, const STREAMS: usize>(&self, first: usize, step: usize, x: Words) {
        let pairs = if is_affine4(FORMAT) { 2 } else { 1 };
        let starts: [*const u8; STREAMS] =
            std::array::from_fn(|stream| self.w.wrapping_add((first + stream * step) * self.row_block_bytes));
        let Words { pairs: mut x, mut finish } = x;
        let mut sums = [[_mm512_setzero_ps(); ROWS]; STREAMS];
        let mut offset = 0;
        for _ in 0..self.groups {
            // Of `(p + b) (q + a) - p q` where rows are paired, of `a p + b q` elsewhere; and Σ a b.
            let mut whole = [[_mm512_setzero_si512(); ROWS]; STREAMS];
            let mut of_codes = [_mm512_setzero_si512(); STREAMS];
            unrolled!(N in 0..ROWS => {
                if is_paired(N) {
                    // SAFETY: `convert` wrote one for every group and row.
                    let undo = _mm512_set1_epi32(unsafe { (*finish.add(N)).undo });
                    for stream in 0..STREAMS {
                        whole[stream][N] = undo;
                    }
                }
            });
            let mut line = offset + header_bytes(FORMAT);
            for start in starts {
                prefetch(start.wrapping_add(offset));
            }
            for _ in 0..self.lines {
                let mut codes = [_mm512_setzero_si512(); STREAMS];
                for stream in 0..STREAMS {
                    let at = starts[stream].wrapping_add(line);
                    prefetch(at);
                    // SAFETY: a line of the stream's row block.
                    codes[stream] = unsafe { _mm512_loadu_si512(at.cast()) };
                }
                macro_rules! multiply {
                    ($pair:literal) => {
                        let (mut a, mut b) = (codes, codes);
                        for stream in 0..STREAMS {
                            (a[stream], b[stream]) = words_of_codes::<FORMAT>(codes[stream], $pair);
                            of_codes[stream] = multiply_add(of_codes[stream], a[stream], b[stream]);
                        }
                        unrolled!(N in 0..ROWS => {
                            // SAFETY: the words of this line and row, which `convert` wrote.
                            let word = |w: usize| unsafe { _mm512_set1_epi32(*x.add((N * pairs + $pair) * 2 + w)) };
                            let (p, q) = (word(0), word(1));
                            for stream in 0..STREAMS {
                                let (a, b, sum) = (a[stream], b[stream], &mut whole[stream][N]);
                                *sum = if is_paired(N) {
                                    multiply_add(*sum, _mm512_add_epi16(p, b), _mm512_add_epi16(q, a))
                                } else {
                                    multiply_add(multiply_add(*sum, a, p), b, q)
                                };
                            }
                        });
                    };
                }
                multiply!(0);
                if is_affine4(FORMAT) {
                    multiply!(1);
                }
                x = x.wrapping_add(ROWS * pairs * 2);
                line += LINE;
            }
            for stream in 0..STREAMS {
                // SAFETY: the group's block of the stream's row block.
                let (scales, biases) = unsafe { header::<FORMAT>(starts[stream].wrapping_add(offset)) };
                unrolled!(N in 0..ROWS => {
                    // SAFETY: as above.
                    let Finish { step, total, .. } = unsafe { *finish.add(N) };
                    let mut exact = whole[stream][N];
                    if is_paired(N) {
                        exact = _mm512_sub_epi32(exact, of_codes[stream]);
                    }
                    let sum = &mut sums[stream][N];
                    let scales = _mm512_mul_ps(scales, _mm512_set1_ps(step));
                    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scales, *sum);
                    if is_affine4(FORMAT) {
                        *sum = _mm512_fmadd_ps(biases, _mm512_set1_ps(total), *sum);
                    }
                });
            }
            finish = finish.wrapping_add(ROWS);
            offset += self.block_bytes;
        }
        for stream in 0..STREAMS {
            unrolled!(N in 0..ROWS => {
                // SAFETY: a row of the output and a block of this worker's.
                unsafe { self.outputs.store(N, first + stream * step, sums[stream][N]) };
            });
        }
    }
}

/// Asks for the line some way ahead of `at`; beyond the end it is a line of no use, which costs nothing else.
#[inline]
fn prefetch(at: *const u8) {
    // SAFETY: a prefetch reads nothing that the program could see and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast()) };
}
