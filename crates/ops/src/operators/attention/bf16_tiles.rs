//! Tiles of bfloat16 pairs for the tiled prefill, multiplied with the bfloat16 dot-product instruction: twice the products of
//! an f32 instruction, and nothing is widened. Probabilities are rounded to bfloat16 before they meet the values.
//! Not here: the walk over tiles and the softmax (`tiled.rs`).

#![allow(unsafe_code, reason = "vector instructions")]

use crate::operator::Kernel;
use crate::{Invocation, KvView, kernel};
use std::arch::x86_64::*;
use std::ops::Range;

use super::super::isa::{AVX512_BF16, for_isa};
use super::tiled::{HEAD_DIM, KEYS, QUERIES, Tiles, scratch_bytes, supported, tiled};

/// A right operand holds, for each pair of rows, one line per 16 columns: lane n = (even row, odd row) of column n.
pub(super) struct Bf16Tiles;

impl Tiles for Bf16Tiles {
    type Element = u16;
    const FMA: bool = true;

    #[inline(always)]
    fn pack_query(query: &[u16; HEAD_DIM], row: &mut [u16; HEAD_DIM]) {
        *row = *query;
    }

    #[inline(always)]
    fn pack_keys(keys: &KvView<'_>, head: usize, positions: Range<usize>, tile: &mut [u16; HEAD_DIM * KEYS]) {
        // SAFETY: only kernels that need the instructions (their features) use this type.
        unsafe { pack_keys(keys, head, positions, tile) }
    }

    #[inline(always)]
    fn pack_values(values: &KvView<'_>, head: usize, positions: Range<usize>, tile: &mut [u16; KEYS * HEAD_DIM]) {
        // SAFETY: as above.
        unsafe { pack_values(values, head, positions, tile) }
    }

    #[inline(always)]
    fn pack_probabilities(probabilities: &[f32; KEYS], row: &mut [u16; KEYS]) {
        // SAFETY: as above.
        unsafe { round(probabilities, row) }
    }

    #[inline(always)]
    fn multiply<const DEPTH: usize, const ADD: bool>(rows: usize, a: &[u16], b: &[u16], c: &mut [f32], stride: usize) {
        // SAFETY: as above.
        unsafe { multiply::<DEPTH, ADD>(rows, a, b, c, stride) }
    }
}

/// Lanes of a vector of pairs.
const LANES: usize = 16;

/// Transposes blocks of 16 keys by 16 pairs: a line of a key becomes a lane of 16 lines.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn pack_keys(keys: &KvView<'_>, head: usize, positions: Range<usize>, tile: &mut [u16; HEAD_DIM * KEYS]) {
    for column in (0..KEYS).step_by(LANES) {
        for pair in (0..HEAD_DIM / 2).step_by(LANES) {
            let mut block = [_mm512_setzero_si512(); LANES];
            for (lane, row) in block.iter_mut().enumerate() {
                let position = positions.start + column + lane;
                if position < positions.end {
                    let part = &keys.bf16(head, position)[2 * pair..][..2 * LANES];
                    // SAFETY: 32 elements, as sliced.
                    *row = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
                }
            }
            for (p, line) in transposed(block).into_iter().enumerate() {
                let out = &mut tile[((pair + p) * KEYS + column) * 2..][..2 * LANES];
                // SAFETY: 32 elements, as sliced.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), line) };
            }
        }
    }
}

/// The 16 x 16 matrix of 32-bit lanes, transposed.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let zero = _mm512_setzero_si512();
    let (mut pairs, mut quads, mut halves, mut out) = ([zero; 16], [zero; 16], [zero; 16], [zero; 16]);
    for n in 0..8 {
        pairs[2 * n] = _mm512_unpacklo_epi32(rows[2 * n], rows[2 * n + 1]);
        pairs[2 * n + 1] = _mm512_unpackhi_epi32(rows[2 * n], rows[2 * n + 1]);
    }
    // quads[4 g + k]: in quarter j, column 4 j + k of rows 4 g .. 4 g + 4.
    for g in 0..4 {
        for k in 0..2 {
            quads[4 * g + 2 * k] = _mm512_unpacklo_epi64(pairs[4 * g + k], pairs[4 * g + 2 + k]);
            quads[4 * g + 2 * k + 1] = _mm512_unpackhi_epi64(pairs[4 * g + k], pairs[4 * g + 2 + k]);
        }
    }
    for k in 0..4 {
        for g in 0..2 {
            // Quarters 0 and 2 (then 1 and 3) of two groups of rows.
            halves[4 * k + 2 * g] = _mm512_shuffle_i32x4::<0x88>(quads[8 * g + k], quads[8 * g + 4 + k]);
            halves[4 * k + 2 * g + 1] = _mm512_shuffle_i32x4::<0xdd>(quads[8 * g + k], quads[8 * g + 4 + k]);
        }
        for odd in 0..2 {
            let (low, high) = (halves[4 * k + odd], halves[4 * k + 2 + odd]);
            out[4 * odd + k] = _mm512_shuffle_i32x4::<0x88>(low, high);
            out[8 + 4 * odd + k] = _mm512_shuffle_i32x4::<0xdd>(low, high);
        }
    }
    out
}

/// Interleaves the elements of each two positions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) fn pack_values(
    values: &KvView<'_>,
    head: usize,
    positions: Range<usize>,
    tile: &mut [u16; KEYS * HEAD_DIM],
) {
    // Lane n of the first line is element n of both vectors, of the second element n + 16.
    let mut order = [[0u16; 32]; 2];
    for n in 0..LANES as u16 {
        for (line, order) in order.iter_mut().enumerate() {
            let from = n + (line * LANES) as u16;
            (order[2 * n as usize], order[2 * n as usize + 1]) = (from, from + 32);
        }
    }
    // SAFETY: 32 elements each.
    let order = order.map(|order| unsafe { _mm512_loadu_si512(order.as_ptr().cast()) });
    for pair in 0..KEYS / 2 {
        let even = positions.start + 2 * pair;
        for d in (0..HEAD_DIM).step_by(2 * LANES) {
            let mut both = [_mm512_setzero_si512(); 2];
            for (row, position) in both.iter_mut().zip([even, even + 1]) {
                if position < positions.end {
                    let part = &values.bf16(head, position)[d..][..2 * LANES];
                    // SAFETY: 32 elements, as sliced.
                    *row = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
                }
            }
            let (half, column) = (d / KEYS, d % KEYS);
            for (line, order) in order.iter().enumerate() {
                let at = half * KEYS * KEYS + (pair * KEYS + column + line * LANES) * 2;
                let out = &mut tile[at..][..2 * LANES];
                let mixed = _mm512_permutex2var_epi16(both[0], *order, both[1]);
                // SAFETY: 32 elements, as sliced.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), mixed) };
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn round(probabilities: &[f32; KEYS], row: &mut [u16; KEYS]) {
    for (from, to) in probabilities.as_chunks::<LANES>().0.iter().zip(row.as_chunks_mut::<LANES>().0) {
        // SAFETY: 16 floats in, 16 halves of them out.
        unsafe {
            let rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from.as_ptr()));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), std::mem::transmute::<__m256bh, __m256i>(rounded));
        }
    }
}

/// Four rows by 64 columns at a time: sixteen accumulators, four lines of `b` and four broadcasts per pair.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn multiply<const DEPTH: usize, const ADD: bool>(rows: usize, a: &[u16], b: &[u16], c: &mut [f32], stride: usize) {
    const ROWS: usize = 4;
    const LINES: usize = KEYS / LANES;
    let rows = rows.next_multiple_of(ROWS);
    assert!(rows <= QUERIES && a.len() >= rows * DEPTH, "{rows} rows of {DEPTH}");
    assert!(b.len() >= DEPTH * KEYS && c.len() >= (rows - 1) * stride + KEYS, "whole tiles");
    for first in (0..rows).step_by(ROWS) {
        let mut sums = [[_mm512_setzero_ps(); LINES]; ROWS];
        if ADD {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: inside `c` (asserted).
                    *sum = unsafe { _mm512_loadu_ps(c.as_ptr().add((first + r) * stride + n * LANES)) };
                }
            }
        }
        for pair in 0..DEPTH / 2 {
            let mut lines = [_mm512_setzero_si512(); LINES];
            for (n, line) in lines.iter_mut().enumerate() {
                // SAFETY: inside `b` (asserted).
                *line = unsafe { _mm512_loadu_si512(b.as_ptr().add((pair * KEYS + n * LANES) * 2).cast()) };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: inside `a` (asserted); two elements.
                let both = unsafe { a.as_ptr().add((first + r) * DEPTH + 2 * pair).cast::<i32>().read_unaligned() };
                let both = bits(_mm512_set1_epi32(both));
                for (sum, line) in sums.iter_mut().zip(lines) {
                    *sum = _mm512_dpbf16_ps(*sum, both, bits(line));
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                // SAFETY: inside `c` (asserted).
                unsafe { _mm512_storeu_ps(c.as_mut_ptr().add((first + r) * stride + n * LANES), *sum) };
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn bits(vector: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes without invalid patterns.
    unsafe { std::mem::transmute(vector) }
}

#[inline(always)]
fn body(i: &Invocation<'_>) {
    tiled::<Bf16Tiles>(i);
}

for_isa!(avx512_bf16, tiled_bf16, body);

pub(super) const NMSE: f64 = 3e-5;
pub(super) const REASON: &str = "one bfloat16 rounding of each probability and one of the result, 2^-8 each at most";

pub static VECTOR: Kernel = kernel! {
    operator: "attention", name: "tiled", isa: "avx512-bf16", features: AVX512_BF16, supports: supported,
    scratch: |_| scratch_bytes::<Bf16Tiles>(),
    nmse: NMSE, because: REASON,
    run: tiled_bf16,
};
