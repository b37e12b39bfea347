//! Tiles of f32 for the tiled prefill: everything widened when packed, probabilities unrounded. Vectorised by the compiler.
//! Not here: the walk over tiles and the softmax (`tiled.rs`).

use crate::operator::Kernel;
use crate::{Invocation, KvView, bf16_to_f32, kernel};
use std::ops::Range;

use super::super::isa::{AVX2, AVX512, for_isa};
use super::super::maths::multiply_add;
use super::super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON};
use super::tiled::{HEAD_DIM, KEYS, QUERIES, Tiles, scratch_bytes, supported, tiled};

/// Multiplies in blocks of `ROWS` x `COLUMNS` sums, chosen to fit the registers.
struct F32Tiles<const FMA: bool, const ROWS: usize, const COLUMNS: usize>;

impl<const FMA: bool, const ROWS: usize, const COLUMNS: usize> Tiles for F32Tiles<FMA, ROWS, COLUMNS> {
    type Element = f32;
    const FMA: bool = FMA;

    #[inline(always)]
    fn pack_query(query: &[u16; HEAD_DIM], row: &mut [f32; HEAD_DIM]) {
        for (to, from) in row.iter_mut().zip(query) {
            *to = bf16_to_f32(*from);
        }
    }

    #[inline(always)]
    fn pack_keys(keys: &KvView<'_>, head: usize, positions: Range<usize>, tile: &mut [f32; HEAD_DIM * KEYS]) {
        let count = positions.len();
        for (column, position) in positions.enumerate() {
            for (d, key) in keys.bf16(head, position).iter().enumerate() {
                tile[d * KEYS + column] = bf16_to_f32(*key);
            }
        }
        for d in 0..HEAD_DIM {
            tile[d * KEYS + count..(d + 1) * KEYS].fill(0.0);
        }
    }

    #[inline(always)]
    fn pack_values(values: &KvView<'_>, head: usize, positions: Range<usize>, tile: &mut [f32; KEYS * HEAD_DIM]) {
        let count = positions.len();
        for (half, tile) in tile.chunks_exact_mut(KEYS * KEYS).enumerate() {
            for (row, position) in tile.chunks_exact_mut(KEYS).zip(positions.clone()) {
                for (to, from) in row.iter_mut().zip(&values.bf16(head, position)[half * KEYS..]) {
                    *to = bf16_to_f32(*from);
                }
            }
            tile[count * KEYS..].fill(0.0);
        }
    }

    #[inline(always)]
    fn pack_probabilities(probabilities: &[f32; KEYS], row: &mut [f32; KEYS]) {
        *row = *probabilities;
    }

    #[inline(always)]
    fn multiply<const DEPTH: usize, const ADD: bool>(rows: usize, a: &[f32], b: &[f32], c: &mut [f32], stride: usize) {
        const { assert!(QUERIES.is_multiple_of(ROWS) && KEYS.is_multiple_of(COLUMNS)) };
        for first in (0..rows).step_by(ROWS) {
            let a: [&[f32; DEPTH]; ROWS] = std::array::from_fn(|r| {
                let Some(row) = a[(first + r) * DEPTH..].first_chunk() else {
                    unreachable!("blocks of rows are whole")
                };
                row
            });
            for column in (0..KEYS).step_by(COLUMNS) {
                let mut sums = [[0.0f32; COLUMNS]; ROWS];
                if ADD {
                    for (r, sums) in sums.iter_mut().enumerate() {
                        sums.copy_from_slice(&c[(first + r) * stride + column..][..COLUMNS]);
                    }
                }
                for k in 0..DEPTH {
                    let Some(b) = b[k * KEYS + column..].first_chunk::<COLUMNS>() else {
                        unreachable!("tiles are whole")
                    };
                    for (sums, a) in sums.iter_mut().zip(&a) {
                        for n in 0..COLUMNS {
                            sums[n] = multiply_add::<FMA>(a[k], b[n], sums[n]);
                        }
                    }
                }
                for (r, sums) in sums.iter().enumerate() {
                    c[(first + r) * stride + column..][..COLUMNS].copy_from_slice(sums);
                }
            }
        }
    }
}

type Least = F32Tiles<false, 2, 16>;
type Narrow = F32Tiles<true, 4, 16>;
type Wide = F32Tiles<true, 4, 64>;

#[inline(always)]
fn narrow(i: &Invocation<'_>) {
    tiled::<Narrow>(i);
}

#[inline(always)]
fn wide(i: &Invocation<'_>) {
    tiled::<Wide>(i);
}

for_isa!(avx2, tiled_avx2, narrow);
for_isa!(avx512, tiled_avx512, wide);

pub static PORTABLE: Kernel = kernel! {
    operator: "attention", name: "tiled", isa: "portable", features: &[], supports: supported,
    scratch: |_| scratch_bytes::<Least>(),
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: tiled::<Least>,
};

pub static NARROW: Kernel = kernel! {
    operator: "attention", name: "tiled", isa: "avx2", features: AVX2, supports: supported,
    scratch: |_| scratch_bytes::<Narrow>(),
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: tiled_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "attention", name: "tiled", isa: "avx512", features: AVX512, supports: supported,
    scratch: |_| scratch_bytes::<Wide>(),
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: tiled_avx512,
};

/// What a rung that asks for `trimmed` gets where there are no bfloat16 products: the same as `tiled`.
pub static TRIMMED_PORTABLE: Kernel = kernel! {
    operator: "attention", name: "trimmed", isa: "portable", features: &[], supports: supported,
    scratch: |_| scratch_bytes::<Least>(),
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: tiled::<Least>,
};

pub static TRIMMED_NARROW: Kernel = kernel! {
    operator: "attention", name: "trimmed", isa: "avx2", features: AVX2, supports: supported,
    scratch: |_| scratch_bytes::<Narrow>(),
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: tiled_avx2,
};

pub static TRIMMED_WIDE: Kernel = kernel! {
    operator: "attention", name: "trimmed", isa: "avx512", features: AVX512, supports: supported,
    scratch: |_| scratch_bytes::<Wide>(),
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: tiled_avx512,
};
