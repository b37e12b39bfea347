//! Activations as 16-bit fixed point per group, each kept as one 16-bit word: operands of `vpdpwssd`, in the order of `pairs.rs`.
//! Not here: the steps of the fixed point, which are those of the byte planes (`planes.rs`), and the products.

#![allow(unsafe_code, reason = "AVX-512 loads and stores through pointers into private scratch")]

use super::planes::{Factors, Scaling, largest};
use super::vector::is_affine4;
use std::arch::x86_64::*;

/// What a group's integer sums are begun and finished with, per row.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Finish {
    /// The step between values; NaN if the group holds an infinity or NaN.
    pub(super) step: f32,
    /// The sum of x over the group, as step * Σ t (Affine4).
    pub(super) total: f32,
    /// `-Σ p q` over the paired words p and q, modulo 2^32.
    pub(super) undo: i32,
}

/// Addresses of all rows' words in scratch. Per group and line of codes, per row, four pairs of columns (two for Int8), in the order
/// in which a line's codes are taken apart: with k = 4 * line and h = half the group, (k, k+2), (h+k, h+k+2), (k+1, k+3),
/// (h+k+1, h+k+3); for Int8 (k, k+2), (k+1, k+3). Then, per group and row, [`Finish`].
#[derive(Clone, Copy)]
pub(super) struct Words {
    pub(super) pairs: *const i32,
    pub(super) finish: *const Finish,
}

/// Bytes of scratch that the words of `(rows, cols)` take.
pub(super) const fn scratch_bytes(rows: usize, cols: usize, group: usize) -> usize {
    rows * cols * 2 + rows * (cols / group) * size_of::<Finish>()
}

/// Converts all rows.
///
/// # Safety
/// - `x` is `(rows, cols)` bfloat16, `group` divides `cols`, and by 32 (Affine4) or 16 (Int8).
/// - Nothing else uses `scratch`, which is 4-byte aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn convert<const FORMAT: u8>(
    x: *const u16,
    rows: usize,
    cols: usize,
    group: usize,
    scratch: &mut [u8],
) -> Words {
    assert!(scratch.len() >= scratch_bytes(rows, cols, group), "scratch as asked for");
    let pairs = scratch.as_mut_ptr().cast::<i32>();
    let finish = scratch[rows * cols * 2..].as_mut_ptr().cast::<Finish>();
    for row in 0..rows {
        for index in 0..cols / group {
            // SAFETY: the group lies in the row; its words and its end lie in the scratch (asserted).
            unsafe {
                let x = x.add(row * cols + index * group);
                let pairs = pairs.add(index * group / 2 * rows);
                finish.add(index * rows + row).write(convert_group::<FORMAT>(x, group, row, rows, pairs));
            }
        }
    }
    Words { pairs, finish }
}

/// One group of one row. `pairs` is the group's start; `row` of `rows` says which pairs are this row's.
///
/// # Safety
/// - As for [`convert`], within one group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn convert_group<const FORMAT: u8>(
    x: *const u16,
    group: usize,
    row: usize,
    rows: usize,
    pairs: *mut i32,
) -> Finish {
    // SAFETY: the group, whose length is a multiple of 16.
    let Scaling { step, inverse } = Factors::scaling(unsafe { largest(x, group) });
    let inverse = _mm512_set1_ps(inverse);
    let mut total = _mm512_setzero_si512();
    let mut undo = _mm512_setzero_si512();
    // Sixteen columns: of each four, the first and third in one pair, the second and fourth in the next; two of no use.
    let mut paired = |column: usize| {
        // SAFETY: callers below pass columns inside the group.
        let x = unsafe { _mm256_loadu_si256(x.add(column).cast()) };
        let value = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)));
        let fixed = _mm512_cvtps_epi32(_mm512_mul_ps(value, inverse));
        total = _mm512_add_epi32(total, fixed);
        let third = _mm512_slli_epi32::<16>(_mm512_shuffle_epi32::<0x4e>(fixed));
        _mm512_mask_blend_epi16(0xaaaa_aaaa, fixed, third)
    };
    let half = if is_affine4(FORMAT) { group / 2 } else { group };
    for column in (0..half).step_by(16) {
        let lines = if is_affine4(FORMAT) {
            _mm512_unpacklo_epi32(paired(column), paired(half + column))
        } else {
            paired(column)
        };
        undo = _mm512_dpwssd_epi32(undo, lines, _mm512_shuffle_epi32::<0xb1>(lines));
        let parts = [
            _mm512_castsi512_si128(lines),
            _mm512_extracti32x4_epi32::<1>(lines),
            _mm512_extracti32x4_epi32::<2>(lines),
            _mm512_extracti32x4_epi32::<3>(lines),
        ];
        for (n, part) in parts.into_iter().enumerate() {
            let at = (column / 4 + n) * rows + row;
            // SAFETY: line `column / 4 + n` of the group, four (two) words per line and row.
            unsafe {
                if is_affine4(FORMAT) {
                    _mm_storeu_si128(pairs.add(at * 4).cast(), part);
                } else {
                    _mm_storel_epi64(pairs.add(at * 2).cast(), part);
                }
            }
        }
    }
    // Each product of neighbours stands in both lanes; Int8's upper two lanes of four hold none.
    let once = if is_affine4(FORMAT) { 0x5555 } else { 0x1111 };
    Finish {
        step,
        total: step * _mm512_reduce_add_epi32(total) as f32,
        undo: _mm512_mask_reduce_add_epi32(once, undo).wrapping_neg(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::vector::{AFFINE4_BF16, INT8};
    use super::*;
    use crate::bits::f32_to_bf16;
    use crate::testing::{Fill, Random};
    use crate::{DType, Feature, Features};

    const ROWS: usize = 3;
    const COLS: usize = 256;

    /// Where column `k` of a group stands: line, word of the line's, half of the word.
    fn place<const FORMAT: u8>(k: usize, group: usize) -> (usize, usize, usize) {
        if is_affine4(FORMAT) {
            let half = group / 2;
            (k % half / 4, k % 2 * 2 + k / half, k / 2 % 2)
        } else {
            (k / 4, k % 2, k / 2 % 2)
        }
    }

    fn check<const FORMAT: u8>(fill: Fill, group: usize) {
        let needed = [Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl, Feature::Avx512dq, Feature::Avx512vnni];
        let missing = Features::of(&needed).missing_from(Features::detect());
        if !missing.is_empty() {
            println!("skipped: needs {missing}");
            return;
        }
        let mut random = Random::new(group as u64);
        let x: Vec<u16> = random.values(ROWS * COLS, fill, DType::BF16).into_iter().map(f32_to_bf16).collect();
        let mut scratch = vec![0u32; scratch_bytes(ROWS, COLS, group) / 4];
        // SAFETY: four bytes of plain data per word.
        let bytes: &mut [u8] =
            unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), scratch.len() * 4) };
        // SAFETY: the features were checked; x is (ROWS, COLS), the group divides COLS, and nobody else has the scratch.
        unsafe { convert::<FORMAT>(x.as_ptr(), ROWS, COLS, group, bytes) };
        let (pairs, finish) = scratch.split_at(ROWS * COLS / 2);
        let words = if is_affine4(FORMAT) { 4 } else { 2 };
        for (n, finish) in finish.chunks_exact(3).enumerate() {
            let (g, row) = (n / ROWS, n % ROWS);
            let step = f64::from(f32::from_bits(finish[0]));
            let word = |line: usize, word: usize| pairs[g * group / 2 * ROWS + (line * ROWS + row) * words + word];
            let (mut sum, mut products) = (0i64, 0i64);
            for k in 0..group {
                let (line, n, half) = place::<FORMAT>(k, group);
                let both = word(line, n);
                let t = i64::from(if half == 0 { both as i16 } else { (both >> 16) as i16 });
                let wanted = f64::from(crate::bits::bf16_to_f32(x[row * COLS + g * group + k]));
                assert!(
                    (t as f64 * step - wanted).abs() <= step / 2.0,
                    "{fill:?}, column {k}: {t} * {step} for {wanted}"
                );
                assert!(t.abs() <= 32_639, "{t} leaves no room for a code");
                sum += t;
                if n % 2 == 0 {
                    let other = word(line, n + 1);
                    products += t * i64::from(if half == 0 { other as i16 } else { (other >> 16) as i16 });
                }
            }
            let total = f64::from(f32::from_bits(finish[1]));
            assert!((total - sum as f64 * step).abs() <= 1e-6 * total.abs(), "group {g}, row {row}: {total}");
            assert_eq!(finish[2] as i32, -products as i32, "group {g}, row {row}");
        }
    }

    #[test]
    fn words_hold_columns_in_the_order_of_the_codes_and_what_pairs_add() {
        for fill in [Fill::Normal(1.0), Fill::Outliers, Fill::Uniform(-127.5, -127.5), Fill::Uniform(127.5, 127.5)] {
            check::<AFFINE4_BF16>(fill, 128);
            check::<AFFINE4_BF16>(fill, 32);
            check::<INT8>(fill, 32);
            check::<INT8>(fill, 16);
        }
    }
}
