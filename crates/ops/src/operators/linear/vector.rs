//! AVX-512 pieces that the vector kernels share: headers of packed groups, rounding and storing outputs, addresses.
//! Not here: any loop over weights.

#![allow(unsafe_code, reason = "AVX-512 loads and stores through pointers")]

use super::Operands;
use crate::weight::{LANES, LINE, WeightFormat};
use std::arch::x86_64::*;
use std::ops::Range;

/// Packed formats as a const parameter: each gets its own compiled loop.
pub(super) const AFFINE4_BF16: u8 = 0;
pub(super) const AFFINE4_F16: u8 = 1;
pub(super) const AFFINE4_F32: u8 = 2;
pub(super) const INT8: u8 = 3;

/// Calls `$function::<FORMAT, ..>` with the const of a packed format.
macro_rules! for_format {
    ($format:expr, $function:ident::<_ $(, $parameter:tt)*>($($argument:expr),*)) => {{
        use crate::weight::{ElementType, WeightFormat};
        use crate::operators::linear::vector::{AFFINE4_BF16, AFFINE4_F16, AFFINE4_F32, INT8};
        match $format {
            WeightFormat::Affine4 { parameters: ElementType::BF16, .. } => {
                $function::<AFFINE4_BF16 $(, $parameter)*>($($argument),*)
            }
            WeightFormat::Affine4 { parameters: ElementType::F16, .. } => {
                $function::<AFFINE4_F16 $(, $parameter)*>($($argument),*)
            }
            WeightFormat::Affine4 { parameters: ElementType::F32, .. } => {
                $function::<AFFINE4_F32 $(, $parameter)*>($($argument),*)
            }
            WeightFormat::Int8 { .. } => $function::<INT8 $(, $parameter)*>($($argument),*),
            WeightFormat::F32 | WeightFormat::Bf16 => unreachable!("`supports` admits packed formats only"),
        }
    }};
}
pub(super) use for_format;

/// Bytes of a format's header.
pub(super) const fn header_bytes(format: u8) -> usize {
    if format == AFFINE4_F32 { 2 * LINE } else { LINE }
}

/// Scales and biases (zero for Int8) of the 16 rows of a group.
///
/// # Safety
/// - `block` points to a whole block of the format.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn header<const FORMAT: u8>(block: *const u8) -> (__m512, __m512) {
    // SAFETY: the header's first line lies in the block.
    let first = unsafe { _mm512_loadu_si512(block.cast()) };
    match FORMAT {
        AFFINE4_BF16 => {
            let scales = _mm512_and_si512(first, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(scales), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(first)))
        }
        AFFINE4_F16 => {
            let scales = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(first));
            (_mm512_cvtph_ps(scales), _mm512_cvtph_ps(_mm512_cvtepi32_epi16(first)))
        }
        AFFINE4_F32 => {
            // SAFETY: this format's header has a second line.
            let second = unsafe { _mm512_loadu_si512(block.add(LINE).cast()) };
            (_mm512_castsi512_ps(first), _mm512_castsi512_ps(second))
        }
        _ => (_mm512_castsi512_ps(first), _mm512_setzero_ps()),
    }
}

/// Rounds to bfloat16, ties to even; NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn round_bf16(values: __m512) -> __m256i {
    let bits = _mm512_castps_si512(values);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet)))
}

/// Where results go: the outputs of a call, as addresses.
#[derive(Clone, Copy)]
pub(super) struct Outputs {
    y: *mut u16,
    bias: *const f32,
    rows: usize,
    width: usize,
}

impl Outputs {
    pub(super) fn of(operands: &Operands<'_>) -> Outputs {
        assert_eq!(operands.y.dtype, crate::DType::BF16, "`supports` admits bfloat16 outputs only");
        let bias = operands.bias.map_or(std::ptr::null(), <[f32]>::as_ptr);
        Outputs { y: operands.y.as_mut_ptr().cast(), bias, rows: operands.y.rows, width: operands.y.width }
    }

    /// Adds the bias, rounds, and stores 16 sums of `row` as the outputs of row block `block` that exist.
    ///
    /// # Safety
    /// - `row` and `block` are within the outputs, and the block is this worker's.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn store(&self, row: usize, block: usize, sums: __m512) {
        let first = block * LANES;
        debug_assert!(row < self.rows && first < self.width);
        let count = (self.width - first).min(LANES);
        let mask = (0xffff_u32 >> (LANES - count)) as __mmask16;
        let mut sums = sums;
        if !self.bias.is_null() {
            // SAFETY: the bias has as many numbers as there are outputs; lanes beyond are masked.
            sums = _mm512_add_ps(sums, unsafe { _mm512_maskz_loadu_ps(mask, self.bias.add(first)) });
        }
        // SAFETY: inside the output by the caller's contract; lanes beyond the last output are masked.
        unsafe { _mm256_mask_storeu_epi16(self.y.add(row * self.width + first).cast(), mask, round_bf16(sums)) };
    }
}

impl Outputs {
    /// Outputs of a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Where the outputs of `row` in row blocks `block` and `block + 1` lie, if they are whole blocks and nothing is added to them;
    /// else null.
    pub(super) fn line(&self, row: usize, block: usize) -> *mut u16 {
        let first = block * LANES;
        if first + 2 * LANES > self.width || !self.bias.is_null() {
            return std::ptr::null_mut();
        }
        self.y.wrapping_add(row * self.width + first)
    }

    /// [`Outputs::store`] for `block` and, if `both`, the one after it.
    ///
    /// # Safety
    /// - As for [`Outputs::store`], of each block.
    #[cold]
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn store_some(&self, row: usize, block: usize, both: bool, sums: [__m512; 2]) {
        for (n, sums) in sums.into_iter().enumerate().take(1 + usize::from(both)) {
            // SAFETY: the caller's contract.
            unsafe { self.store(row, block + n, sums) };
        }
    }
}

/// Splits a worker's row blocks into `streams` ranges of equal length that are walked in lockstep, and a rest.
pub(super) fn lockstep(blocks: &Range<usize>, streams: usize) -> (usize, Range<usize>) {
    let length = blocks.len() / streams;
    (length, blocks.start + length * streams..blocks.end)
}

/// Lines of codes of one group.
pub(super) fn code_lines(format: WeightFormat) -> usize {
    format.block_lines() - format.header_lines()
}

/// Whether a format's scales and biases are 4-bit codes'.
pub(super) const fn is_affine4(format: u8) -> bool {
    format != INT8
}

const _: () = assert!(LINE == 64 && LANES == 16, "the layouts are made for 512-bit vectors");
