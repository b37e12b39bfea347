//! Decode with the bfloat16 dot-product instruction for scores, and values widened in registers for up to four heads at once.
//! Probabilities stay f32. No prefetches: the processor's own find the two streams of keys and values, and asking for lines by
//! hand made one thread read 17 GB/s where it now reads 27 (2,048 positions, Zen 4). Not here: the walk over tiles and the softmax (`decode.rs`).

#![allow(unsafe_code, reason = "vector instructions")]

use crate::kernel;
use crate::operator::Kernel;
use std::arch::x86_64::*;

use super::super::attention_scores::bf16::{across_quarters, bits, quarter_sums};
use super::super::isa::{AVX512_BF16, for_isa};
use super::super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON};
use super::decode::{Arithmetic, KEYS, Tile, decode, scratch, supported};

/// Sums of a head are held as 16 even and 16 odd elements in turn: the halves of a word of two values, widened by a shift and
/// by a mask.
pub(super) struct Bf16;

/// Elements of a vector of bfloat16.
const WIDTH: usize = 32;
const LANES: usize = 16;

/// Calls `$function::<VECTORS, HEADS>` on as many heads at a time as the registers hold.
macro_rules! in_groups {
    ($dim:expr, $heads:expr, |$head:ident| $function:ident($($argument:expr),*)) => {{
        let mut $head = 0;
        while $head < $heads {
            // SAFETY: only kernels that need the instructions (their features) use this type.
            $head += unsafe {
                match ($dim, $heads - $head) {
                    (64, 1) => { $function::<2, 1>($($argument),*); 1 }
                    (64, 2 | 3) => { $function::<2, 2>($($argument),*); 2 }
                    (64, _) => { $function::<2, 4>($($argument),*); 4 }
                    (128, 1) => { $function::<4, 1>($($argument),*); 1 }
                    (128, _) => { $function::<4, 2>($($argument),*); 2 }
                    (other, _) => unreachable!("`supported` admits no heads of {other}"),
                }
            };
        }
    }};
}

impl Arithmetic for Bf16 {
    const FMA: bool = true;

    #[inline(always)]
    fn scores(tile: &Tile<'_>, queries: &[u16], scores: &mut [[f32; KEYS]]) {
        let dim = tile.keys.head_dim;
        in_groups!(dim, scores.len(), |head| score(tile, &queries[head * dim..], &mut scores[head..]));
    }

    #[inline(always)]
    fn mix(tile: &Tile<'_>, probabilities: &[[f32; KEYS]], shrink: &[f32], sums: &mut [f32]) {
        let dim = tile.keys.head_dim;
        in_groups!(dim, shrink.len(), |head| add_values(
            tile,
            &probabilities[head..],
            &shrink[head..],
            &mut sums[head * dim..]
        ));
    }

    #[inline(always)]
    fn finish<Y>(sums: &[f32], y: &mut [Y], each: impl Fn(f32) -> Y) {
        for (y, sums) in y.as_chunks_mut::<WIDTH>().0.iter_mut().zip(sums.as_chunks::<WIDTH>().0) {
            for lane in 0..LANES {
                y[2 * lane] = each(sums[lane]);
                y[2 * lane + 1] = each(sums[LANES + lane]);
            }
        }
    }
}

/// Scores of `HEADS` heads of `32 * VECTORS` elements.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn score<const VECTORS: usize, const HEADS: usize>(tile: &Tile<'_>, queries: &[u16], scores: &mut [[f32; KEYS]]) {
    let (keys, dim) = (&tile.keys, WIDTH * VECTORS);
    assert!(keys.head_dim == dim && queries.len() >= HEADS * dim && scores.len() >= HEADS, "heads of the view's size");
    assert!(tile.positions.end <= keys.positions && !tile.positions.is_empty(), "positions of the view");
    let mut query = [[_mm512_setzero_si512(); VECTORS]; HEADS];
    for (query, part) in query.as_flattened_mut().iter_mut().zip(queries.as_chunks::<WIDTH>().0) {
        // SAFETY: 32 elements.
        *query = unsafe { _mm512_loadu_si512(part.as_ptr().cast()) };
    }
    let first_key = keys.head_ptr(tile.head).cast::<u16>();
    let last = tile.positions.end - 1;
    for (block, start) in tile.positions.clone().step_by(LANES).enumerate() {
        let mut quads = [[_mm512_setzero_ps(); 4]; HEADS];
        for quad in 0..4 {
            let mut sums = [[_mm512_setzero_ps(); 4]; HEADS];
            for key in 0..4 {
                // Beyond the last position, the last one again: its scores are not used.
                let position = (start + 4 * quad + key).min(last);
                for v in 0..VECTORS {
                    // SAFETY: a valid position of the view (asserted), whose rows are `dim` elements long.
                    let part = unsafe {
                        _mm512_loadu_si512(first_key.add(position * keys.position_stride + WIDTH * v).cast())
                    };
                    for h in 0..HEADS {
                        sums[h][key] = _mm512_dpbf16_ps(sums[h][key], bits(part), bits(query[h][v]));
                    }
                }
            }
            for h in 0..HEADS {
                quads[h][quad] = quarter_sums(sums[h]);
            }
        }
        for h in 0..HEADS {
            let out = &mut scores[h][block * LANES..][..LANES];
            // SAFETY: 16 floats, as sliced.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), across_quarters(quads[h])) };
        }
    }
}

/// Adds a tile's values to the sums of `HEADS` heads of `32 * VECTORS` elements.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn add_values<const VECTORS: usize, const HEADS: usize>(
    tile: &Tile<'_>,
    probabilities: &[[f32; KEYS]],
    shrink: &[f32],
    sums: &mut [f32],
) {
    let (values, dim) = (&tile.values, WIDTH * VECTORS);
    assert!(values.head_dim == dim && sums.len() >= HEADS * dim, "heads of the view's size");
    assert!(probabilities.len() >= HEADS && shrink.len() >= HEADS && tile.positions.len() <= KEYS, "a row per head");
    assert!(tile.positions.end <= values.positions, "positions of the view");
    let mut even = [[_mm512_setzero_ps(); VECTORS]; HEADS];
    let mut odd = even;
    for h in 0..HEADS {
        let factor = _mm512_set1_ps(shrink[h]);
        for v in 0..VECTORS {
            let part = &sums[h * dim + WIDTH * v..][..WIDTH];
            // SAFETY: 32 floats, as sliced.
            let (low, high) = unsafe { (_mm512_loadu_ps(part.as_ptr()), _mm512_loadu_ps(part.as_ptr().add(LANES))) };
            (even[h][v], odd[h][v]) = (_mm512_mul_ps(low, factor), _mm512_mul_ps(high, factor));
        }
    }
    let first = values.head_ptr(tile.head).cast::<u16>();
    let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    for (n, position) in tile.positions.clone().enumerate() {
        for v in 0..VECTORS {
            // SAFETY: a valid position of the view (asserted), whose rows are `dim` elements long.
            let pairs = unsafe { _mm512_loadu_si512(first.add(position * values.position_stride + WIDTH * v).cast()) };
            let low = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
            let high = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
            for h in 0..HEADS {
                let probability = _mm512_set1_ps(probabilities[h][n]);
                even[h][v] = _mm512_fmadd_ps(probability, low, even[h][v]);
                odd[h][v] = _mm512_fmadd_ps(probability, high, odd[h][v]);
            }
        }
    }
    for h in 0..HEADS {
        for v in 0..VECTORS {
            let part = &mut sums[h * dim + WIDTH * v..][..WIDTH];
            // SAFETY: 32 floats, as sliced.
            unsafe {
                _mm512_storeu_ps(part.as_mut_ptr(), even[h][v]);
                _mm512_storeu_ps(part.as_mut_ptr().add(LANES), odd[h][v]);
            }
        }
    }
}

for_isa!(avx512_bf16, decode_bf16, decode::<Bf16>);

pub static VECTOR: Kernel = kernel! {
    operator: "attention", name: "decode", isa: "avx512-bf16", features: AVX512_BF16, supports: supported,
    scratch: scratch,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: decode_bf16,
};
