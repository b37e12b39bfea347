//! `matmul/amx-bf16` and `dense/amx-bf16`: tiles of 16 by 16 sums in the tile unit, two by two of them at a time.
//! Here: which calls they take, and the sweep over panels of W and pairs of tiles of x. Not here: the walk of the tiles
//! (`tile_walk.rs`), and what is done between its products (`meanwhile.rs`).

#![allow(unsafe_code, reason = "pointers into checked operands and private scratch")]

mod meanwhile;

use self::meanwhile::{Ahead, Meanwhile, SUMS, meanwhile};
use super::super::tile_walk::{Between, Emulated, Hardware, Left, PAIR, Right, STEP, Tiles, Walk};
use super::vector::{Outputs, for_format};
use super::{Operands, packed};
use crate::amx::{ROW_BYTES, ROWS, TILE_BYTES};
use crate::ladder::MATVEC_MAX_ROWS;
use crate::operator::CallShape;
use crate::weight::WeightFormat;
use crate::{Feature, Invocation, Kernel, kernel};

const AVX512: &[Feature] =
    &[Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl, Feature::Avx512dq, Feature::Avx512bf16];
const TILES: &[Feature] = &[
    Feature::Avx512f,
    Feature::Avx512bw,
    Feature::Avx512vl,
    Feature::Avx512dq,
    Feature::Avx512bf16,
    Feature::AmxTile,
    Feature::AmxBf16,
];
const ROUNDED: &str =
    "weights and outputs are each rounded to bfloat16: 5e-6, and several times that where few outputs cancel";
const EXACT: &str = "one bfloat16 rounding of the output; exact products summed in f32";

pub(crate) static MATMUL: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "amx-bf16", features: TILES, supports: many_packed, scratch: packed_scratch,
    nmse: 4e-5, because: ROUNDED, run: run_packed::<Hardware>,
};

pub(crate) static DENSE: Kernel = kernel! {
    operator: "linear", name: "dense", isa: "amx-bf16", features: TILES, supports: many_dense, scratch: dense_scratch,
    nmse: 6e-6, because: EXACT, run: run_dense::<Hardware>,
};

/// The same kernels on tiles that are plain memory: for the tests of machines without the unit, never for speed.
pub(crate) static MATMUL_EMULATED: Kernel = kernel! {
    operator: "linear", name: "emulated-tiles", isa: "avx512-bf16", features: AVX512, supports: many_packed,
    scratch: packed_scratch,
    nmse: 4e-5, because: ROUNDED, run: run_packed::<Emulated>,
};

pub(crate) static DENSE_EMULATED: Kernel = kernel! {
    operator: "linear", name: "emulated-tiles-dense", isa: "avx512-bf16", features: AVX512, supports: many_dense,
    scratch: dense_scratch,
    nmse: 6e-6, because: EXACT, run: run_dense::<Emulated>,
};

/// Row blocks of a panel, one per tile of weights.
const PANEL: usize = 2;
/// Bytes of x that stay in the second-level cache beside the panels.
const X_BYTES: usize = 1 << 20;

fn many(shape: &CallShape) -> Result<(), String> {
    let (rows, cols) = (shape.inputs[0].rows, shape.weights[0].cols);
    if rows <= MATVEC_MAX_ROWS {
        return Err(format!("is for more than {MATVEC_MAX_ROWS} rows, found {rows}"));
    }
    if cols.is_multiple_of(STEP) { Ok(()) } else { Err(format!("needs columns in multiples of {STEP}, found {cols}")) }
}

fn many_packed(shape: &CallShape) -> Result<(), String> {
    packed(shape)?;
    many(shape)
}

fn many_dense(shape: &CallShape) -> Result<(), String> {
    super::dense(shape)?;
    many(shape)
}

/// Rows of x that a pass over W serves: whole pairs of tiles, chunks of nearly equal size.
fn chunk(rows: usize, cols: usize) -> usize {
    let most = (X_BYTES / (2 * cols) / PAIR * PAIR).max(PAIR);
    rows.div_ceil(rows.div_ceil(most)).next_multiple_of(PAIR)
}

/// Sums of two pairs, and the last rows of x where they are no whole pair.
fn dense_scratch(shape: &CallShape) -> usize {
    2 * SUMS + PAIR * shape.weights[0].cols * 2
}

/// And two panels.
fn packed_scratch(shape: &CallShape) -> usize {
    dense_scratch(shape) + 2 * PANEL * WeightFormat::Bf16.row_block_bytes(shape.weights[0].cols)
}

fn run_packed<T: Tiles>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: `bind` checked the processor's features, `supports` the element types, the format and the columns.
    unsafe { for_format!(operands.w.format, sweep::<_, T>(i, &operands)) }
}

fn run_dense<T: Tiles>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: as above.
    unsafe { sweep::<{ meanwhile::DENSE }, T>(i, &operands) }
}

/// Panel by panel of 32 outputs, all rows of x. Dense weights have the layout of a tile of weights already; packed ones are
/// expanded to it, the next panel a few lines at a time between the products of this one, where outputs are rounded too.
/// x is read where it lies, 16 rows to a tile; only its last rows are copied, where they do not fill a pair of tiles.
///
/// Moves W once per chunk of x (1 MiB: 512 rows of 1024 columns); `2 * rows * in * out` flops. Floor: those flops at the rate
/// of `tdpbf16ps` fed by loads. Qwen3-0.6B's layers in W4 on an Intel Xeon (Emerald Rapids): 0.34 of that rate at 128 rows and 0.41
/// at 512 where a thread has its core alone, 0.6 of a quarter of the rate where it has not; bfloat16 weights likewise.
///
/// # Safety
/// - The processor has the kernel's features; operands are what `supports` admits, with W of the format of `FORMAT`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn sweep<const FORMAT: u8, T: Tiles>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let w = &operands.w;
    let (rows, cols) = (operands.x.rows, w.cols);
    let (chunk, steps) = (chunk(rows, cols), cols / STEP);
    let (block_bytes, dense_bytes) = (w.format.row_block_bytes(cols), WeightFormat::Bf16.row_block_bytes(cols));
    let blocks = i.share(w.rows.div_ceil(ROWS));
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    let last_bytes = PAIR * cols * 2;
    let panel_bytes = if FORMAT == meanwhile::DENSE { 0 } else { PANEL * dense_bytes };
    assert!(scratch.len() >= 2 * SUMS + last_bytes + 2 * panel_bytes, "scratch as asked for");
    let sums = scratch.as_mut_ptr();
    let last = sums.wrapping_add(2 * SUMS);
    let panels = last.wrapping_add(last_bytes);
    let stride = cols * 2;
    for first in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - first);
        let (pairs, rest) = (count / PAIR, count % PAIR);
        if rest > 0 {
            // Tiles are whole: rows that do not exist are zeros.
            for row in 0..PAIR {
                // SAFETY: a row of the 32 that there is room for.
                let to = unsafe { std::slice::from_raw_parts_mut(last.add(row * stride).cast::<u16>(), cols) };
                if row < rest { to.copy_from_slice(operands.x.bf16(first + pairs * PAIR + row)) } else { to.fill(0) }
            }
        }
        let parts = [
            (Left { start: operands.x.bf16(first).as_ptr().cast(), stride }, pairs),
            (Left { start: last, stride }, usize::from(rest > 0)),
        ];
        let ahead = |block: usize, index: usize| {
            let present = PANEL.min(blocks.end.saturating_sub(block));
            let codes = w.bytes.as_ptr().wrapping_add(block * block_bytes);
            Ahead::new(codes, w.format, present * cols, panels.wrapping_add(index % 2 * panel_bytes))
        };
        let mut work = Meanwhile::new(Outputs::of(operands), sums, steps, first..first + count);
        // SAFETY: the rows exist and the scratch is large enough (asserted); blocks are this worker's and whole; the two
        // panels are disjoint, one read while the other is written.
        unsafe {
            let mut panel = ahead(blocks.start, 0);
            panel.finish::<FORMAT>();
            for (index, block) in blocks.clone().step_by(PANEL).enumerate() {
                let both = block + 1 < blocks.end;
                let start = if FORMAT == meanwhile::DENSE {
                    w.bytes.as_ptr().wrapping_add(block * block_bytes)
                } else {
                    panels.wrapping_add(index % 2 * panel_bytes).cast_const()
                };
                let second = if both { dense_bytes } else { 0 };
                let right = Right { start, stride: ROW_BYTES, second, step: TILE_BYTES };
                work.begin::<FORMAT>(block, both, ahead(block + PANEL, index + 1));
                for (left, pairs) in parts.iter().filter(|(_, pairs)| *pairs > 0) {
                    let sums = work.sums();
                    let between = Between { call: meanwhile::<FORMAT>, state: std::ptr::from_mut(&mut work).cast() };
                    T::multiply(&mut Walk::new(*left, right, sums, steps, *pairs, between));
                }
            }
            work.finish();
        }
    }
}
