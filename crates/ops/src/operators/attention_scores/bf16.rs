//! Scores with the bfloat16 dot-product instruction: keys are used as they are stored, sixteen at a time.
//! Not here: machines without it (`mod.rs`).

#![allow(unsafe_code, reason = "vector instructions and exclusive parts of the scores")]

use crate::operator::{CallShape, Kernel};
use crate::program::Attributes;
use crate::{Invocation, KvView, kernel};
use std::arch::x86_64::*;
use std::ops::Range;

use super::super::isa::{AVX512_BF16, for_isa};
use super::super::sequences::{Span, spans};
use super::bf16_inputs;

#[inline(always)]
fn rows(i: &Invocation<'_>) {
    let Attributes { heads, kv_heads, head_dim, .. } = *i.attributes();
    let group = heads / kv_heads;
    for Span { row, head: kv_head, positions, sequence } in spans(i, i.input(0).rows, kv_heads) {
        let keys = i.kv(sequence, false);
        let mut head = kv_head * group;
        let end = head + group;
        while head < end {
            let positions = positions.clone();
            // SAFETY: kernels of this function need the instructions (their features); `spans` deals out disjoint positions.
            unsafe {
                head += match (head_dim, end - head) {
                    (64, 1) => heads_at_once::<2, 1>(i, row, head, positions, kv_head, &keys),
                    (64, _) => heads_at_once::<2, 2>(i, row, head, positions, kv_head, &keys),
                    (_, 1) => heads_at_once::<4, 1>(i, row, head, positions, kv_head, &keys),
                    _ => heads_at_once::<4, 2>(i, row, head, positions, kv_head, &keys),
                };
            }
        }
    }
}

/// Scores of `HEADS` heads of `32 * VECTORS` elements, from `head` on; returns `HEADS`.
///
/// # Safety
/// - The processor has the instructions.
/// - No other worker writes these positions of these heads' rows of scores.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn heads_at_once<const VECTORS: usize, const HEADS: usize>(
    i: &Invocation<'_>,
    row: usize,
    head: usize,
    positions: Range<usize>,
    kv_head: usize,
    keys: &KvView<'_>,
) -> usize {
    let Attributes { heads, scale, .. } = *i.attributes();
    let (q, scores) = (i.input(0).bf16(row), i.output(0));
    let dim = 32 * VECTORS;
    assert!(positions.end <= keys.positions && keys.head_dim == dim, "positions and head size are the view's");
    assert!(positions.end <= scores.width && row * heads + head + HEADS <= scores.rows, "inside the scores");
    let mut queries = [[_mm512_setzero_si512(); VECTORS]; HEADS];
    for (h, query) in queries.iter_mut().enumerate() {
        for (v, vector) in query.iter_mut().enumerate() {
            let part = &q[(head + h) * dim + 32 * v..][..32];
            // SAFETY: 32 elements, as sliced.
            *vector = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
        }
    }
    let first_key = keys.head_ptr(kv_head).cast::<u16>();
    let scale = _mm512_set1_ps(scale);
    let last = positions.end - 1;
    for start in positions.clone().step_by(16) {
        let mut quads = [[_mm512_setzero_ps(); 4]; HEADS];
        for quad in 0..4 {
            let mut sums = [[_mm512_setzero_ps(); 4]; HEADS];
            for key in 0..4 {
                // Beyond the last position, the last one again: its scores are not stored.
                let position = (start + 4 * quad + key).min(last);
                for v in 0..VECTORS {
                    // SAFETY: a valid position of the view (asserted), whose rows are `dim` elements long.
                    let vector =
                        unsafe { _mm512_loadu_si512(first_key.add(position * keys.position_stride + 32 * v).cast()) };
                    for h in 0..HEADS {
                        let (a, b) = (bits(vector), bits(queries[h][v]));
                        sums[h][key] = _mm512_dpbf16_ps(sums[h][key], a, b);
                    }
                }
            }
            for h in 0..HEADS {
                quads[h][quad] = quarter_sums(sums[h]);
            }
        }
        let left = positions.end - start;
        let mask = if left >= 16 { u16::MAX } else { (1 << left) - 1 };
        for h in 0..HEADS {
            let sums = _mm512_mul_ps(across_quarters(quads[h]), scale);
            let at = (row * heads + head + h) * scores.width + start;
            // SAFETY: the masked positions lie inside the scores (asserted); exclusive by the caller's contract.
            unsafe { _mm512_mask_storeu_ps(scores.as_mut_ptr().cast::<f32>().add(at), mask, sums) };
        }
    }
    HEADS
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn bits(vector: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes without invalid patterns.
    unsafe { std::mem::transmute(vector) }
}

/// In each quarter of the result, lane n is the sum of that quarter of vector n.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn quarter_sums([a, b, c, d]: [__m512; 4]) -> __m512 {
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
    _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
}

/// Quarter n of the result is the sum of the quarters of vector n.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn across_quarters([a, b, c, d]: [__m512; 4]) -> __m512 {
    let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
    let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd))
}

for_isa!(avx512_bf16, rows_bf16, rows);

fn supported(shape: &CallShape) -> Result<(), String> {
    match shape.attributes.head_dim {
        64 | 128 => bf16_inputs(shape),
        other => Err(format!("needs heads of 64 or 128, these have {other}")),
    }
}

pub static VECTOR: Kernel = kernel! {
    operator: "attention_scores", name: "rows", isa: "avx512-bf16", features: AVX512_BF16, supports: supported,
    nmse: 1e-12, because: "f32 sums of exact products", run: rows_bf16,
};
