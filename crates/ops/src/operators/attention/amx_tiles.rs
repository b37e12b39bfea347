//! The tiled prefill on the tile unit: operands as the bfloat16 products have them, multiplied two by two tiles at a time.
//! Not here: how operands are packed (`bf16_tiles.rs`), the walk over tiles of keys and the softmax (`tiled.rs`), and the unit's own
//! walk (`tile_walk.rs`).

#![allow(unsafe_code, reason = "operands as addresses, whose extent is asserted")]

use crate::operator::Kernel;
use crate::{Feature, Invocation, KvView, kernel};
use std::marker::PhantomData;
use std::ops::Range;

use super::super::isa::{AVX512_BF16, for_isa};
use super::super::tile_walk::{self, Between, Emulated, Left, PAIR, Quiet, Right, STEP, Sums, Walk};
use super::bf16_tiles::{Bf16Tiles, NMSE, REASON};
use super::tiled::{HEAD_DIM, KEYS, QUERIES, Tiles, scratch_bytes, supported, tiled};

/// A right operand holds, for each pair of rows, the pairs of all columns: 16 such rows are a tile for each 16 columns.
struct AmxTiles<Unit>(PhantomData<Unit>);

impl<Unit: tile_walk::Tiles> Tiles for AmxTiles<Unit> {
    type Element = u16;
    const FMA: bool = true;

    #[inline(always)]
    fn pack_query(query: &[u16; HEAD_DIM], row: &mut [u16; HEAD_DIM]) {
        Bf16Tiles::pack_query(query, row);
    }

    #[inline(always)]
    fn pack_keys(keys: &KvView<'_>, head: usize, positions: Range<usize>, tile: &mut [u16; HEAD_DIM * KEYS]) {
        Bf16Tiles::pack_keys(keys, head, positions, tile);
    }

    #[inline(always)]
    fn pack_values(values: &KvView<'_>, head: usize, positions: Range<usize>, tile: &mut [u16; KEYS * HEAD_DIM]) {
        Bf16Tiles::pack_values(values, head, positions, tile);
    }

    #[inline(always)]
    fn pack_probabilities(probabilities: &[f32; KEYS], row: &mut [u16; KEYS]) {
        Bf16Tiles::pack_probabilities(probabilities, row);
    }

    /// Rows are rounded up to 32: what lies beyond those that are asked for is computed and not read.
    #[inline(always)]
    fn multiply<const DEPTH: usize, const ADD: bool>(rows: usize, a: &[u16], b: &[u16], c: &mut [f32], stride: usize) {
        const { assert!(QUERIES.is_multiple_of(PAIR) && KEYS.is_multiple_of(PAIR) && DEPTH.is_multiple_of(STEP)) };
        /// Bytes of a row of the right operand.
        const ROW: usize = KEYS * 4;
        let rows = rows.next_multiple_of(PAIR);
        assert!(rows <= QUERIES && a.len() >= rows * DEPTH, "{rows} rows of {DEPTH}");
        assert!(b.len() >= DEPTH * KEYS && c.len() >= (rows - 1) * stride + KEYS, "whole tiles");
        for column in (0..KEYS).step_by(PAIR) {
            let left = Left { start: a.as_ptr().cast(), stride: DEPTH * 2 };
            let start = b.as_ptr().wrapping_add(2 * column).cast();
            let right = Right { start, stride: ROW, second: ROW / 4, step: STEP / 2 * ROW };
            let turns = [(PAIR * stride * 4) as isize; 2];
            let start = c.as_mut_ptr().wrapping_add(column).cast();
            let sums = Sums { start, stride: stride * 4, turns, add: ADD };
            let mut walk = Walk::new(left, right, sums, DEPTH / STEP, rows / PAIR, Between::NOTHING);
            // SAFETY: kernels of this type list the unit's features; operands are as large as asserted.
            unsafe { Unit::multiply(&mut walk) };
        }
    }
}

#[inline(always)]
fn hardware(i: &Invocation<'_>) {
    tiled::<AmxTiles<Quiet>>(i);
}

#[inline(always)]
fn emulated(i: &Invocation<'_>) {
    tiled::<AmxTiles<Emulated>>(i);
}

for_isa!(avx512_bf16, tiled_hardware, hardware);
for_isa!(avx512_bf16, tiled_emulated, emulated);

const FEATURES: &[Feature] = &[
    Feature::Avx2,
    Feature::Fma,
    Feature::Avx512f,
    Feature::Avx512bw,
    Feature::Avx512vl,
    Feature::Avx512dq,
    Feature::Avx512bf16,
    Feature::AmxTile,
    Feature::AmxBf16,
];

pub static TILES: Kernel = kernel! {
    operator: "attention", name: "tiled", isa: "amx-bf16", features: FEATURES, supports: supported,
    scratch: |_| scratch_bytes::<AmxTiles<Quiet>>(),
    nmse: NMSE, because: REASON, run: tiled_hardware,
};

/// The same on tiles that are plain memory: for the tests of machines without the unit, never for speed.
pub static EMULATED: Kernel = kernel! {
    operator: "attention", name: "emulated-tiles", isa: "avx512-bf16", features: AVX512_BF16, supports: supported,
    scratch: |_| scratch_bytes::<AmxTiles<Emulated>>(),
    nmse: NMSE, because: REASON, run: tiled_emulated,
};
