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

/// A group's step and its inverse, both powers of two (the step NaN if the group is not finite).
pub(super) struct Scaling {
    pub(super) step: f32,
    pub(super) inverse: f32,
}

impl Factors {
    /// From the largest magnitude of a group, as bfloat16 bits.
    #[inline]
    pub(super) fn scaling(largest: u32) -> Scaling {
        // The exponent field; 1.9921875 * 2^14 would exceed 32,639, so the largest significand moves up.
        let exponent = (largest >> 7) + u32::from(largest & 0x7f == 0x7f);
        // Steps below 2^-114 would need a factor above the largest float; such groups round to a coarser step.
        let exponent = exponent.clamp(27, 255);
        let step = if largest < 0x7f80 { f32::from_bits((exponent - 14) << 23) } else { f32::NAN };
        Scaling { step, inverse: f32::from_bits((254 + 14 - exponent) << 23) }
    }
}

/// Addresses of the planes of all rows in scratch: per group and line of codes, per row, the four-byte words that a line's
/// lanes are multiplied with: (high, low) of Int8's columns, (high, low) of the low nibbles' columns and then of the high
/// nibbles' for Affine4. Then, per group and row, [`Factors`].
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) words: *const i32,
    pub(super) factors: *const Factors,
}

impl Planes {
    pub(super) const NONE: Planes = Planes { words: std::ptr::null(), factors: std::ptr::null() };
}

/// Bytes of scratch that the planes of `(rows, cols)` take.
pub(super) const fn scratch_bytes(rows: usize, cols: usize, group: usize) -> usize {
    rows * cols * 2 + rows * (cols / group) * size_of::<Factors>()
}

/// Converts all rows.
///
/// # Safety
/// - `x` is `(rows, cols)` bfloat16, `group` divides `cols`, and by 32 (Affine4) or 16 (Int8).
/// - Nothing else uses `scratch`, which is 8-byte aligned.
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
                factors.add(index * rows + row).write(made);
            }
        }
    }
    Planes { words, factors }
}

/// The largest magnitude of a group, as bfloat16 bits.
///
/// # Safety
/// - `x` has `group` numbers, a multiple of 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn largest(x: *const u16, group: usize) -> u32 {
    let mut largest = _mm256_setzero_si256();
    for column in (0..group).step_by(16) {
        // SAFETY: sixteen numbers of the group.
        let numbers = unsafe { _mm256_loadu_si256(x.add(column).cast()) };
        largest = _mm256_max_epu16(largest, _mm256_and_si256(numbers, _mm256_set1_epi16(0x7fff)));
    }
    _mm512_reduce_max_epu32(_mm512_cvtepu16_epi32(largest))
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
    // SAFETY: the group, whose length is a multiple of 16.
    let Scaling { step, inverse } = Factors::scaling(unsafe { largest(x, group) });
    let inverse = _mm512_set1_ps(inverse);
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
    let total = if is_affine4(FORMAT) { (step * total as f32).to_bits() } else { (-128 * total) as u32 };
    Factors { step, total }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::vector::{AFFINE4_BF16, INT8};
    use super::*;
    use crate::bits::{bf16_to_f32, f32_to_bf16};
    use crate::testing::{Fill, Random};
    use crate::{DType, Feature, Features};

    const ROWS: usize = 3;
    const COLS: usize = 256;

    /// The planes of `x`, read back: values as step * t, and the factors per group and row.
    fn read_back<const FORMAT: u8>(x: &[u16], group: usize) -> Option<(Vec<f64>, Vec<Factors>)> {
        let needed = [Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl, Feature::Avx512dq];
        let missing = Features::of(&needed).missing_from(Features::detect());
        if !missing.is_empty() {
            println!("skipped: needs {missing}");
            return None;
        }
        let mut scratch = vec![0u64; scratch_bytes(ROWS, COLS, group) / 8];
        let bytes: &mut [u8] = as_bytes(&mut scratch);
        // SAFETY: the features were checked; x is (ROWS, COLS), the group divides COLS, and nobody else has the scratch.
        unsafe { split::<FORMAT>(x.as_ptr(), ROWS, COLS, group, bytes) };
        let bytes = &*bytes;
        let words_per_line = if is_affine4(FORMAT) { 4 } else { 2 };
        let factors: Vec<Factors> = bytes[ROWS * COLS * 2..]
            .chunks_exact(8)
            .map(|pair| {
                let word = |at: usize| u32::from_le_bytes(pair[at..at + 4].try_into().unwrap());
                Factors { step: f32::from_bits(word(0)), total: word(4) }
            })
            .collect();
        let mut values = vec![0.0; ROWS * COLS];
        for (index, value) in values.iter_mut().enumerate() {
            let (row, col) = (index / COLS, index % COLS);
            let (g, k) = (col / group, col % group);
            let half = if is_affine4(FORMAT) { group / 2 } else { group };
            let line = k % half / 4;
            let word = g * group / 2 * ROWS + (line * ROWS + row) * words_per_line + k / half * 2;
            let byte = |word: usize| f64::from(bytes[word * 4 + k % 4] as i8);
            *value = (256.0 * byte(word) + byte(word + 1)) * f64::from(factors[g * ROWS + row].step);
        }
        Some((values, factors))
    }

    fn as_bytes(words: &mut [u64]) -> &mut [u8] {
        // SAFETY: eight bytes of plain data per word.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 8) }
    }

    fn check<const FORMAT: u8>(fill: Fill, group: usize) {
        let mut random = Random::new(group as u64);
        let x: Vec<u16> = random.values(ROWS * COLS, fill, DType::BF16).into_iter().map(f32_to_bf16).collect();
        let Some((values, factors)) = read_back::<FORMAT>(&x, group) else { return };
        for (index, (value, x)) in values.iter().zip(&x).enumerate() {
            let row_group = index / group * group;
            let largest = values[row_group..row_group + group].iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let x = f64::from(bf16_to_f32(*x));
            assert!((value - x).abs() <= largest / 32_000.0, "{fill:?} element {index}: {value} for {x}");
            let exact = x.abs() * 128.0 >= largest;
            assert!(!exact || *value == x, "{fill:?} element {index}: {value} for {x}, which fits");
        }
        for (n, made) in factors.iter().enumerate() {
            let (g, row) = (n / ROWS, n % ROWS);
            let sum: f64 = values[row * COLS + g * group..][..group].iter().sum();
            let total = if is_affine4(FORMAT) {
                f64::from(f32::from_bits(made.total))
            } else {
                -f64::from(made.total as i32) / 128.0 * f64::from(made.step)
            };
            assert!((total - sum).abs() <= 1e-6 * sum.abs(), "group {g} of row {row}: {total} for {sum}");
        }
    }

    #[test]
    fn planes_hold_what_fits_exactly_and_the_rest_to_sixteen_bits() {
        for fill in
            [Fill::Normal(1.0), Fill::Outliers, Fill::Normal(1e-30), Fill::Normal(1e30), Fill::Uniform(1.9, 2.0)]
        {
            check::<AFFINE4_BF16>(fill, 128);
            check::<AFFINE4_BF16>(fill, 32);
            check::<INT8>(fill, 32);
            check::<INT8>(fill, 16);
        }
    }

    #[test]
    fn zeros_stay_zero_and_what_is_not_finite_stays_visible() {
        let mut x = vec![0u16; ROWS * COLS];
        x[COLS + 5] = f32_to_bf16(f32::INFINITY);
        x[2 * COLS + 200] = f32_to_bf16(f32::NAN);
        let Some((values, factors)) = read_back::<AFFINE4_BF16>(&x, 128) else { return };
        assert!(values[..COLS].iter().all(|value| *value == 0.0));
        let visible: Vec<bool> = factors.iter().map(|made| made.step.is_nan()).collect();
        assert_eq!(visible, [false, true, false, false, false, true]);
    }
}
