//! `matmul/avx2-maddubs`: 4-bit codes against split-plane activations with AVX2's byte products, three rows of x at a time.
//! Not here: few rows, which are limited by the bytes of W, and how a group of x is split (`maddubs.rs`).

#![allow(unsafe_code, reason = "AVX2 loads through pointers into checked slices; private scratch")]

use super::lanes::{AVX2, groups, header, row_block, store};
use super::maddubs::{LINES, WORDS, nibbles, split_group, store_factors};
use super::planes::scratch_bytes;
use super::unrolled::unrolled;
use super::{Operands, packed};
use crate::operator::CallShape;
use crate::weight::{LANES, LINE};
use crate::{Invocation, Kernel, kernel};
use std::arch::x86_64::*;

pub(crate) static MATMUL_AVX2: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "avx2-maddubs", features: AVX2, supports: packed_nibbles, scratch: scratch,
    nmse: 6e-6, because: "one bfloat16 rounding of the output; activations are exact to 2^-16 of their group's largest",
    run: run,
};

/// Most rows of a tile: their sums, of both planes in 16 bits and of one in 32, fill 9 of the 16 registers. With four, sums are
/// spilled, which cost a tenth.
const TILE: usize = 3;
/// Rows of x that are split at a time: with 3,072 columns 0.4 MB, which second-level caches hold; W is read once for as many.
const CHUNK: usize = 64;
fn packed_nibbles(shape: &CallShape) -> Result<(), String> {
    packed(shape)?;
    nibbles(shape)
}

/// The planes of a chunk of rows, and the scales and biases of a row block.
fn scratch(shape: &CallShape) -> usize {
    let w = shape.weights[0];
    let planes = scratch_bytes(shape.inputs[0].rows.min(CHUNK), w.cols, w.format.group());
    planes.next_multiple_of(LINE) + w.cols / w.format.group() * size_of::<Header>()
}

/// Scales and biases of the 16 rows of a group's block.
type Header = [[f32; LANES]; 2];

fn run(i: &Invocation<'_>) {
    // SAFETY: `bind` checked the processor's features, `supports` the element types and the format.
    unsafe { sweep(i) }
}

/// Row block by row block: its codes (16 outputs, 8 KB for 1,024 columns) stay in the nearest cache while tiles of x pass over them,
/// half a line, eight outputs, at a time.
///
/// Moves W once per 64 rows, x and y once per worker; `2 * rows * in * out` flops. Floor: for eight outputs, eight columns and a
/// row, 4 products and 4 additions in 16 bits, and a quarter as many instructions for taking codes apart and for the sums in 32:
/// 10 for 64 products, where f32 multiply-adds take 16 beside their loads. On two cores of an AMD EPYC (Zen 4), Qwen3-0.6B's layers
/// at 128 rows: groups of 128 in 504 ms (224 GFLOP/s) where f32 takes 624, and groups of 32 as long as f32.
#[target_feature(enable = "avx2,fma")]
fn sweep(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    let (format, cols, rows) = (operands.w.format, operands.w.cols, operands.x.rows);
    let (words_of_row, bytes_of_row) = (cols * 2, scratch_bytes(1, cols, format.group()));
    // SAFETY: the only slice of the scratch in this call.
    let scratch = unsafe { i.scratch() };
    let (planes, headers) = scratch.split_at_mut((rows.min(CHUNK) * bytes_of_row).next_multiple_of(LINE));
    // SAFETY: every bit pattern is a valid f32; align_to checks alignment.
    let (unaligned, headers, _) = unsafe { headers.align_to_mut::<Header>() };
    assert!(unaligned.is_empty() && headers.len() >= cols / format.group(), "scratch as asked for");
    for first in (0..rows).step_by(CHUNK) {
        let count = CHUNK.min(rows - first);
        for tile in (0..count).step_by(TILE) {
            let size = TILE.min(count - tile);
            let planes = &mut planes[tile * bytes_of_row..][..size * bytes_of_row];
            let (words, factors) = planes.split_at_mut(size * words_of_row);
            for row in 0..size {
                split(&operands, first + tile + row, words, factors, row, size);
            }
        }
        for block in i.share(operands.w.rows.div_ceil(LANES)) {
            let codes = row_block(&operands, block);
            for (made, group) in headers.iter_mut().zip(groups(format, codes)) {
                let (scales, biases) = header(format, group);
                *made = [scales, biases];
            }
            for tile in (0..count).step_by(TILE) {
                let size = TILE.min(count - tile);
                let planes = &planes[tile * bytes_of_row..][..size * bytes_of_row];
                let (words, factors) = planes.split_at(size * words_of_row);
                let at = (first + tile, block);
                match size {
                    1 => multiply::<1>(&operands, codes, headers, words, factors, at),
                    2 => multiply::<2>(&operands, codes, headers, words, factors, at),
                    _ => multiply::<TILE>(&operands, codes, headers, words, factors, at),
                }
            }
        }
    }
}

/// One row block by `ROWS` rows of x, whose planes these are; `at` is the first row and the block.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply<const ROWS: usize>(
    operands: &Operands<'_>,
    codes: &[u8],
    headers: &[Header],
    words: &[u8],
    factors: &[u8],
    at: (usize, usize),
) {
    let format = operands.w.format;
    let mut done = [[0.0; LANES]; ROWS];
    for half in 0..2 {
        let mut sums = [_mm256_setzero_ps(); ROWS];
        let parts = groups(format, codes).zip(headers).zip(words.chunks_exact(format.group() * 2 * ROWS));
        for (((block, header), words), factors) in parts.zip(factors.chunks_exact(8 * ROWS)) {
            let exact = products::<ROWS>(&block[format.header_lines() * LINE..], half, words);
            // SAFETY: half of 16 numbers each.
            let [scales, biases] = [0, 1].map(|n| unsafe { _mm256_loadu_ps(header[n][half * 8..].as_ptr()) });
            for (row, sum) in sums.iter_mut().enumerate() {
                let number = |n: usize| {
                    let at = row * 8 + n * 4;
                    _mm256_set1_ps(f32::from_le_bytes([factors[at], factors[at + 1], factors[at + 2], factors[at + 3]]))
                };
                *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact[row]), _mm256_mul_ps(scales, number(0)), *sum);
                *sum = _mm256_fmadd_ps(biases, number(1), *sum);
            }
        }
        for (done, sum) in done.iter_mut().zip(sums) {
            // SAFETY: half of 16 numbers.
            unsafe { _mm256_storeu_ps(done[half * 8..].as_mut_ptr(), sum) };
        }
    }
    for (row, sums) in done.iter().enumerate() {
        store(operands, at.0 + row, at.1, sums);
    }
}

/// Σ code * t of eight outputs over one group, exactly, for each row: pairs of byte products summed in 16 bits for a few lines,
/// then in 32, where the high plane counts 256 times.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn products<const ROWS: usize>(codes: &[u8], half: usize, words: &[u8]) -> [__m256i; ROWS] {
    let mask = _mm256_set1_epi8(15);
    let (ones, planes) = (_mm256_set1_epi16(1), _mm256_set1_epi16(256));
    let mut sums = [_mm256_setzero_si256(); ROWS];
    assert_eq!(words.len() / WORDS, codes.len() / LINE * ROWS, "words of every line and row");
    for (codes, words) in codes.chunks_exact(LINES * LINE).zip(words.chunks_exact(LINES * ROWS * WORDS)) {
        let (mut high, mut low) = ([_mm256_setzero_si256(); ROWS], [_mm256_setzero_si256(); ROWS]);
        for line in 0..LINES {
            // SAFETY: half a line of the slice.
            let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().add(line * LINE + half * 32).cast()) };
            let lower = _mm256_and_si256(codes, mask);
            let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask);
            unrolled!(ROW in 0..ROWS => {
                let word = |n: usize| {
                    // SAFETY: one of the four words of the line and row, inside the slice.
                    let word = unsafe { words.as_ptr().add((line * ROWS + ROW) * WORDS + n * 4).cast::<i32>() };
                    // SAFETY: as above.
                    _mm256_set1_epi32(unsafe { word.read_unaligned() })
                };
                high[ROW] = _mm256_add_epi16(high[ROW], _mm256_maddubs_epi16(lower, word(0)));
                low[ROW] = _mm256_add_epi16(low[ROW], _mm256_maddubs_epi16(lower, word(1)));
                high[ROW] = _mm256_add_epi16(high[ROW], _mm256_maddubs_epi16(upper, word(2)));
                low[ROW] = _mm256_add_epi16(low[ROW], _mm256_maddubs_epi16(upper, word(3)));
            });
        }
        unrolled!(ROW in 0..ROWS => {
            let both = _mm256_add_epi32(_mm256_madd_epi16(high[ROW], planes), _mm256_madd_epi16(low[ROW], ones));
            sums[ROW] = _mm256_add_epi32(sums[ROW], both);
        });
    }
    sums
}

/// The planes of one row of x, as row `row` of a tile of `size`.
#[target_feature(enable = "avx2,fma")]
fn split(operands: &Operands<'_>, from: usize, words: &mut [u8], factors: &mut [u8], row: usize, size: usize) {
    let group = operands.w.format.group();
    let parts = words.chunks_exact_mut(group * 2 * size).zip(factors.chunks_exact_mut(8 * size));
    for ((words, factors), x) in parts.zip(operands.x.bf16(from).chunks_exact(group)) {
        store_factors(split_group(x, &mut words[row * WORDS..], WORDS * size), &mut factors[row * 8..]);
    }
}
