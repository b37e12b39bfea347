//! Activations as 16-bit fixed point per group, split into two planes of signed bytes: exact operands for `vpdpbusd`.
//! Not here: the products (`streams.rs`).
//!
//! Per row and group: `t = round(x / s)` with s the power of two that puts the largest |t| into 16,384..=32,639, and
//! `t = 256 * high + low`, both signed bytes. A bfloat16 value within 2^-7 of the group's largest is represented exactly;
//! the others are off by at most 2^-16 of the largest.

#![allow(unsafe_code, reason = "AVX-512 loads and stores through pointers into private scratch")]

use super::vector::is_affine4;
use std::arch::x86_64::*;

/// What a group's integer sums are finished with, per row.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Factors {
    /// s; NaN if the group holds an infinity or NaN, so that the outputs are NaN.
    pub(super) step: f32,
    /// Affine4: Σ x, as s * Σ t. Int8: the i32 `-128 * Σ t`, which undoes the 128 added to every code, as bits.
    pub(super) total: u32,
}

/// Addresses of the planes of all rows in scratch: per group and line of codes, per row, the four-byte words that a line's
/// lanes are multiplied with: (high, low) of Int8's columns, (high, low) of the low nibbles' columns and then of the high
/// nibbles' for Affine4. Then, per group and row, [`Factors`].
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) words: *const i32,
    pub(super) factors: *const Factors,
}

/// Bytes of scratch that the planes of `(rows, cols)` take.
pub(super) const fn scratch_bytes(rows: usize, cols: usize, group: usize) -> usize {
    rows * cols * 2 + rows * (cols / group) * size_of::<Factors>()
}

/// Converts all rows.
///
/// # Safety
/// - `x` is `(rows, cols)` bfloat16, `group` divides `cols`, and by 32 (Affine4) or 16 (Int8).
/// - `scratch` has [`scratch_bytes`] bytes, 64-byte aligned, that nothing else uses.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn split<const FORMAT: u8>(
    x: *const u16,
    rows: usize,
    cols: usize,
    group: usize,
    scratch: &mut [u8],
) -> Planes {
    assert!(scratch.len() >= scratch_bytes(rows, cols, group), "scratch as asked for");
    let words = scratch.as_mut_ptr().cast::<i32>();
    let factors = scratch[rows * cols * 2..].as_mut_ptr().cast::<Factors>();
    for row in 0..rows {
        for index in 0..cols / group {
            // SAFETY: the group lies in the row; its words and factors lie in the scratch (asserted).
            unsafe {
                let x = x.add(row * cols + index * group);
                let words = words.add(index * group / 2 * rows);
                let made = split_group::<FORMAT>(x, group, row, rows, words);
                factors.add(index * rows + row).write_unaligned(made);
            }
        }
    }
    Planes { words, factors }
}

/// One group of one row. `words` is the group's start; `row` of `rows` says which words are this row's.
///
/// # Safety
/// - As for [`split`], within one group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn split_group<const FORMAT: u8>(
    x: *const u16,
    group: usize,
    row: usize,
    rows: usize,
    words: *mut i32,
) -> Factors {
    // SAFETY: callers below pass columns inside the group.
    let load = |column: usize| unsafe { _mm256_loadu_si256(x.add(column).cast()) };
    let mut largest = _mm256_setzero_si256();
    for column in (0..group).step_by(16) {
        largest = _mm256_max_epu16(largest, _mm256_and_si256(load(column), _mm256_set1_epi16(0x7fff)));
    }
    let largest = _mm512_reduce_max_epu32(_mm512_cvtepu16_epi32(largest));
    // The bfloat16's exponent field; 1.9921875 * 2^14 would round above 32,639, so the largest significand moves up.
    let exponent = (largest >> 7) + u32::from(largest & 0x7f == 0x7f);
    let finite = largest < 0x7f80;
    // Steps below 2^-114 would need a factor above the largest float; such groups round to a coarser step.
    let exponent = exponent.clamp(27, 255);
    let step = f32::from_bits((exponent - 14) << 23);
    let inverse = _mm512_set1_ps(f32::from_bits((254 + 14 - exponent) << 23));
    let mut total = _mm512_setzero_si512();
    let mut convert = |column: usize| {
        let value = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load(column))));
        let fixed = _mm512_cvtps_epi32(_mm512_mul_ps(value, inverse));
        total = _mm512_add_epi32(total, fixed);
        let high = _mm512_srai_epi32::<8>(_mm512_add_epi32(fixed, _mm512_set1_epi32(128)));
        let low = _mm512_sub_epi32(fixed, _mm512_slli_epi32::<8>(high));
        (_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low))
    };
    if is_affine4(FORMAT) {
        for column in (0..group / 2).step_by(16) {
            let ((high, low), (high2, low2)) = (convert(column), convert(group / 2 + column));
            let (a, b) = (_mm_unpacklo_epi32(high, low), _mm_unpackhi_epi32(high, low));
            let (c, d) = (_mm_unpacklo_epi32(high2, low2), _mm_unpackhi_epi32(high2, low2));
            let lines = [
                _mm_unpacklo_epi64(a, c),
                _mm_unpackhi_epi64(a, c),
                _mm_unpacklo_epi64(b, d),
                _mm_unpackhi_epi64(b, d),
            ];
            for (n, line) in lines.into_iter().enumerate() {
                // SAFETY: line `column / 4 + n` of the group, four words per line and row.
                unsafe { _mm_storeu_si128(words.add(((column / 4 + n) * rows + row) * 4).cast(), line) };
            }
        }
    } else {
        for column in (0..group).step_by(16) {
            let (high, low) = convert(column);
            let (a, b) = (_mm_unpacklo_epi32(high, low), _mm_unpackhi_epi32(high, low));
            for (n, line) in [a, _mm_unpackhi_epi64(a, a), b, _mm_unpackhi_epi64(b, b)].into_iter().enumerate() {
                // SAFETY: line `column / 4 + n` of the group, two words per line and row.
                unsafe { _mm_storel_epi64(words.add(((column / 4 + n) * rows + row) * 2).cast(), line) };
            }
        }
    }
    let total = _mm512_reduce_add_epi32(total);
    let step = if finite { step } else { f32::NAN };
    let total = if is_affine4(FORMAT) { (step * total as f32).to_bits() } else { (-128 * total) as u32 };
    Factors { step, total }
}
