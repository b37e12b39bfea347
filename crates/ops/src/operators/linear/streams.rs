//! `matvec/avx512-vnni`: packed weights against split-plane activations, several streams of W at once.
//! Not here: how activations become planes (`planes.rs`).

#![allow(unsafe_code, reason = "AVX-512 loads through pointers into checked operands and private scratch")]

use super::Operands;
use super::matvec::few_rows;
use super::planes::{self, Planes};
use super::vector::{Outputs, code_lines, for_format, header, header_bytes, is_affine4, lockstep};
use crate::operator::CallShape;
use crate::weight::LINE;
use crate::{Feature, Invocation, Kernel, kernel};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes that each stream is prefetched ahead.
const AHEAD: usize = 1024;

pub(crate) static AVX512_VNNI: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "avx512-vnni",
    features: &[Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl, Feature::Avx512dq, Feature::Avx512vnni],
    supports: few_rows, scratch: scratch,
    nmse: 6e-6, because: "one bfloat16 rounding of the output; activations are exact to 2^-16 of their group's largest",
    run: run,
};

fn scratch(shape: &CallShape) -> usize {
    let w = shape.weights[0];
    planes::scratch_bytes(shape.inputs[0].rows, w.cols, w.format.group())
}

fn run(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    let format = operands.w.format;
    // SAFETY: `bind` checked the processor's features, `supports` the element types and the format.
    unsafe { for_format!(format, any_rows::<_>(i, &operands)) }
}

/// # Safety
/// - The processor has the kernel's features; operands are what `supports` admits, of the format of `FORMAT`.
unsafe fn any_rows<const FORMAT: u8>(i: &Invocation<'_>, operands: &Operands<'_>) {
    // SAFETY: the caller's contract. Rows times streams is at most eight: two integer sums and one f32 sum each.
    unsafe {
        match operands.x.rows {
            1 => rows::<FORMAT, 1, 8>(i, operands),
            2 => rows::<FORMAT, 2, 4>(i, operands),
            3 => rows::<FORMAT, 3, 2>(i, operands),
            4 => rows::<FORMAT, 4, 2>(i, operands),
            5 => rows::<FORMAT, 5, 1>(i, operands),
            6 => rows::<FORMAT, 6, 1>(i, operands),
            7 => rows::<FORMAT, 7, 1>(i, operands),
            8 => rows::<FORMAT, 8, 1>(i, operands),
            more => unreachable!("`supports` admits eight rows, not {more}"),
        }
    }
}

/// Addresses that every block of a call shares.
struct Sweep {
    /// W's first byte.
    w: *const u8,
    row_block_bytes: usize,
    block_bytes: usize,
    groups: usize,
    lines: usize,
    x: Planes,
    outputs: Outputs,
}

/// # Safety
/// - As for [`any_rows`], and x has `ROWS` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn rows<const FORMAT: u8, const ROWS: usize, const STREAMS: usize>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let (x, w) = (&operands.x, &operands.w);
    let group = w.format.group();
    assert!(x.rows == ROWS && x.dtype == crate::DType::BF16, "`supports` admits bfloat16 rows");
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    // SAFETY: x is (rows, cols) bfloat16 (asserted), the group divides the columns (`Operands::of`) and is a multiple of 32
    // or 16 (packing checks it); scratch is private and aligned, and `split` checks its length.
    let planes = unsafe { planes::split::<FORMAT>(x.as_ptr().cast(), ROWS, w.cols, group, scratch) };
    let sweep = Sweep {
        w: w.bytes.as_ptr(),
        row_block_bytes: w.format.row_block_bytes(w.cols),
        block_bytes: w.format.block_lines() * LINE,
        groups: w.cols / group,
        lines: code_lines(w.format),
        x: planes,
        outputs: Outputs::of(operands),
    };
    let blocks = i.share(w.rows.div_ceil(crate::weight::LANES));
    let (length, rest): (usize, Range<usize>) = lockstep(&blocks, STREAMS);
    // SAFETY: all block numbers are this worker's and below W's count.
    unsafe {
        for block in blocks.start..blocks.start + length {
            sweep.blocks::<FORMAT, ROWS, STREAMS>(block, length);
        }
        for block in rest {
            sweep.blocks::<FORMAT, ROWS, 1>(block, 0);
        }
    }
}

impl Sweep {
    /// All columns of row blocks `first + n * step` for n below `STREAMS`, all rows of x.
    ///
    /// # Safety
    /// - The blocks exist and are this worker's; the planes are of `ROWS` rows and of the format.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn blocks<const FORMAT: u8, const ROWS: usize, const STREAMS: usize>(&self, first: usize, step: usize) {
        let nibbles = _mm512_set1_epi8(15);
        let flip = _mm512_set1_epi8(-128);
        let start = self.w.wrapping_add(first * self.row_block_bytes);
        let stride = step * self.row_block_bytes;
        let words_per_row = if is_affine4(FORMAT) { 4 } else { 2 };
        let mut sums = [[_mm512_setzero_ps(); ROWS]; STREAMS];
        let mut x = self.x.words;
        let mut factors = self.x.factors;
        let mut offset = 0;
        for _ in 0..self.groups {
            let mut high = [[_mm512_setzero_si512(); ROWS]; STREAMS];
            let mut low = high;
            if !is_affine4(FORMAT) {
                for row in 0..ROWS {
                    // SAFETY: `split` wrote factors for every group and row.
                    let undo = unsafe { (*factors.add(row)).total } as i32;
                    for stream in 0..STREAMS {
                        low[stream][row] = _mm512_set1_epi32(undo);
                    }
                }
            }
            let mut line = offset + header_bytes(FORMAT);
            for stream in 0..STREAMS {
                prefetch(start.wrapping_add(stream * stride + offset));
            }
            for _ in 0..self.lines {
                for stream in 0..STREAMS {
                    let at = start.wrapping_add(stream * stride + line);
                    prefetch(at);
                    // SAFETY: a line of the stream's row block.
                    let codes = unsafe { _mm512_loadu_si512(at.cast()) };
                    // SAFETY: the words of this line and row, which `split` wrote.
                    let word = |row: usize, n: usize| unsafe { _mm512_set1_epi32(*x.add(row * words_per_row + n)) };
                    if is_affine4(FORMAT) {
                        let lower = _mm512_and_si512(codes, nibbles);
                        let upper = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibbles);
                        for row in 0..ROWS {
                            let (h, l) = (&mut high[stream][row], &mut low[stream][row]);
                            *h = _mm512_dpbusd_epi32(*h, lower, word(row, 0));
                            *l = _mm512_dpbusd_epi32(*l, lower, word(row, 1));
                            *h = _mm512_dpbusd_epi32(*h, upper, word(row, 2));
                            *l = _mm512_dpbusd_epi32(*l, upper, word(row, 3));
                        }
                    } else {
                        // Signed codes plus 128 are unsigned ones.
                        let codes = _mm512_xor_si512(codes, flip);
                        for row in 0..ROWS {
                            let (h, l) = (&mut high[stream][row], &mut low[stream][row]);
                            *h = _mm512_dpbusd_epi32(*h, codes, word(row, 0));
                            *l = _mm512_dpbusd_epi32(*l, codes, word(row, 1));
                        }
                    }
                }
                x = x.wrapping_add(ROWS * words_per_row);
                line += LINE;
            }
            for stream in 0..STREAMS {
                // SAFETY: the group's block of the stream's row block.
                let (scales, biases) = unsafe { header::<FORMAT>(start.wrapping_add(stream * stride + offset)) };
                for row in 0..ROWS {
                    // SAFETY: as above.
                    let factors = unsafe { *factors.add(row) };
                    let exact = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[stream][row]), low[stream][row]);
                    let scales = _mm512_mul_ps(scales, _mm512_set1_ps(factors.step));
                    let sum = &mut sums[stream][row];
                    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scales, *sum);
                    if is_affine4(FORMAT) {
                        *sum = _mm512_fmadd_ps(biases, _mm512_set1_ps(f32::from_bits(factors.total)), *sum);
                    }
                }
            }
            factors = factors.wrapping_add(ROWS);
            offset += self.block_bytes;
        }
        for stream in 0..STREAMS {
            for row in 0..ROWS {
                // SAFETY: a row of the output and a block of this worker's.
                unsafe { self.outputs.store(row, first + stream * step, sums[stream][row]) };
            }
        }
    }
}

/// Asks for the line some way ahead of `at`; beyond the end it is a line of no use, which costs nothing else.
#[inline]
fn prefetch(at: *const u8) {
    // SAFETY: a prefetch reads nothing that the program could see and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast()) };
}
