//! `matmul/amx-bf16` and `dense/amx-bf16`: tiles of 16 by 16 sums in the tile unit, two by two of them at a time.
//! Here: packing x, the panel that the next walk of the tiles will read, rounding and storing. Not here: the walk itself, on
//! the hardware and emulated (`instructions.rs`), and how codes become bfloat16 (`tiles.rs`).

#![allow(unsafe_code, reason = "AVX-512 loads and stores through pointers into checked operands and private scratch")]

mod instructions;

use self::instructions::{Emulated, Hardware, Tiles, Walk};
use super::tiles::dequantize;
use super::vector::{Outputs, for_format};
use super::{Operands, packed};
use crate::amx::{ROWS, TILE_BYTES};
use crate::ladder::MATVEC_MAX_ROWS;
use crate::operator::CallShape;
use crate::weight::{LINE, WeightFormat};
use crate::{Feature, Invocation, Kernel, kernel};
use std::arch::x86_64::*;
use std::ffi::c_void;

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

/// Columns that a step of a walk takes: 32 bfloat16 are a row of a tile.
const STEP: usize = 32;
/// Rows of x that one pass over the weights serves: two tiles.
const PAIR: usize = 2 * ROWS;
/// Row blocks of a panel, one per tile of weights.
const PANEL: usize = 2;
/// Bytes of packed x that stay in the second-level cache beside the panels.
const X_BYTES: usize = 1 << 20;
/// Bytes of sums of a pair of tiles of x and a panel.
const SUMS: usize = 4 * TILE_BYTES;

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

/// Rows of x that are packed at a time: whole pairs of tiles, chunks of nearly equal size.
fn chunk(rows: usize, cols: usize) -> usize {
    let most = (X_BYTES / (2 * cols) / PAIR * PAIR).max(PAIR);
    rows.div_ceil(rows.div_ceil(most)).next_multiple_of(PAIR)
}

fn dense_scratch(shape: &CallShape) -> usize {
    let cols = shape.weights[0].cols;
    let rows = chunk(shape.inputs[0].rows, cols);
    rows * cols * 2 + rows / PAIR * SUMS
}

fn packed_scratch(shape: &CallShape) -> usize {
    dense_scratch(shape) + 2 * PANEL * WeightFormat::Bf16.row_block_bytes(shape.weights[0].cols)
}

fn run_packed<T: Tiles>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: `bind` checked the processor's features, `supports` the element types, the format and the columns.
    unsafe { for_format!(operands.w.format, sweep_packed::<_, T>(i, &operands)) }
}

fn run_dense<T: Tiles>(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: as above.
    unsafe { sweep_dense::<T>(i, &operands) }
}

/// What a call shares between its walks.
struct Call {
    outputs: Outputs,
    /// Packed x.
    x: *mut u8,
    /// Sums of a walk.
    sums: *mut u8,
    first: usize,
    rows: usize,
    steps: usize,
}

impl Call {
    /// Rows `first..first + rows` of x as tiles: per pair of tiles and step, 16 rows of 64 bytes, twice. Rows that do not
    /// exist are zeros.
    ///
    /// # Safety
    /// - x is bfloat16 and has the rows; `self.x` has room for whole pairs of tiles.
    #[target_feature(enable = "avx512f")]
    unsafe fn pack(&self, operands: &Operands<'_>) {
        for row in 0..self.rows.next_multiple_of(PAIR) {
            let (pair, half, line) = (row / PAIR, row % PAIR / ROWS, row % ROWS);
            let out = self.x.wrapping_add((pair * self.steps * 2 + half) * TILE_BYTES + line * LINE);
            let x = (row < self.rows).then(|| operands.x.bf16(self.first + row).as_ptr());
            for step in 0..self.steps {
                // SAFETY: 32 columns of the row; a row of a tile of this step.
                unsafe {
                    let columns =
                        x.map_or_else(|| _mm512_setzero_si512(), |x| _mm512_loadu_si512(x.add(step * STEP).cast()));
                    _mm512_storeu_si512(out.wrapping_add(step * 2 * TILE_BYTES).cast(), columns);
                }
            }
        }
    }

    /// Multiplies all rows with the weights of row blocks `block` and, if `both`, `block + 1`, and stores the outputs.
    ///
    /// # Safety
    /// - `b` is the first block in the dense layout, the second lies `next` bytes behind (or is the first again: 0); the
    ///   blocks exist in the outputs and are this worker's; `between` may be called with `state`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn walk<T: Tiles>(
        &self,
        (b, next): (*const u8, usize),
        block: usize,
        both: bool,
        between: unsafe extern "C" fn(*mut c_void),
        state: *mut c_void,
    ) {
        let pairs = self.rows.div_ceil(PAIR);
        let mut walk = Walk::new(self.x, (b, next), self.steps, pairs, self.sums, between, state);
        // SAFETY: the caller's contract; x and sums have room for whole pairs of tiles.
        unsafe { T::multiply(&mut walk) };
        for row in 0..self.rows {
            let at = self.sums.wrapping_add(row / PAIR * SUMS + row % PAIR / ROWS * 2 * TILE_BYTES + row % ROWS * LINE);
            // SAFETY: a row of two tiles of sums; the blocks are the caller's.
            unsafe {
                self.outputs.store(self.first + row, block, _mm512_loadu_ps(at.cast()));
                if both {
                    let sums = _mm512_loadu_ps(at.wrapping_add(TILE_BYTES).cast());
                    self.outputs.store(self.first + row, block + 1, sums);
                }
            }
        }
    }
}

/// Nothing is prepared while tiles multiply.
unsafe extern "C" fn nothing(_: *mut c_void) {}

/// Dense: W itself has the layout of a tile of weights, 16 pairs of columns by 16 outputs in 1024 bytes.
///
/// Moves W once per chunk of x (1 MiB of packed x: 512 rows of 1024 columns), x twice per worker; `2 * rows * in * out` flops.
/// Floor: those flops at the peak of `tdpbf16ps` fed by loads. Not measured yet: written on a machine without tiles.
///
/// # Safety
/// - The processor has the kernel's features; operands are what `supports` admits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn sweep_dense<T: Tiles>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let (rows, cols) = (operands.x.rows, operands.w.cols);
    let (chunk, block_bytes) = (chunk(rows, cols), operands.w.format.row_block_bytes(cols));
    let blocks = i.share(operands.w.rows.div_ceil(ROWS));
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    assert!(scratch.len() >= chunk * cols * 2 + chunk / PAIR * SUMS, "scratch as asked for");
    let x = scratch.as_mut_ptr();
    let sums = x.wrapping_add(chunk * cols * 2);
    for first in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - first);
        let call = Call { outputs: Outputs::of(operands), x, sums, first, rows: count, steps: cols / STEP };
        // SAFETY: the rows exist and the scratch is large enough (asserted); blocks are this worker's and whole.
        unsafe {
            call.pack(operands);
            for block in blocks.clone().step_by(PANEL) {
                let both = block + 1 < blocks.end;
                let b = operands.w.bytes.as_ptr().wrapping_add(block * block_bytes);
                let next = if both { block_bytes } else { 0 };
                call.walk::<T>((b, next), block, both, nothing, std::ptr::null_mut());
            }
        }
    }
}

/// A panel in the making: so many groups of 16 rows are dequantized each time that [`prepare`] is called.
struct Ahead {
    /// The first of its row blocks, packed.
    codes: *const u8,
    format: WeightFormat,
    cols: usize,
    panel: *mut u8,
    /// Groups done, of how many, and how many at a time.
    done: usize,
    groups: usize,
    at_a_time: usize,
}

impl Ahead {
    /// # Safety
    /// - The row blocks exist and are of the format of `FORMAT`; the panel has room for them in the dense layout.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn advance<const FORMAT: u8>(&mut self, groups: usize) {
        let (group, per_block) = (self.format.group(), self.cols / self.format.group());
        for _ in 0..groups.min(self.groups - self.done) {
            let (block, index) = (self.done / per_block, self.done % per_block);
            let offset = block * self.format.row_block_bytes(self.cols) + index * self.format.block_lines() * LINE;
            let out = block * WeightFormat::Bf16.row_block_bytes(self.cols) + index * group / 2 * LINE;
            // SAFETY: one group of a row block, and its part of the panel.
            unsafe {
                dequantize::<FORMAT>(self.codes.wrapping_add(offset), self.format, group, self.panel.wrapping_add(out));
            }
            self.done += 1;
        }
    }
}

/// What a walk calls every few steps.
///
/// # Safety
/// - `state` is an [`Ahead`] as [`Ahead::advance`] wants it, which nobody else uses meanwhile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe extern "C" fn prepare<const FORMAT: u8>(state: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe {
        let ahead = &mut *state.cast::<Ahead>();
        ahead.advance::<FORMAT>(ahead.at_a_time);
    }
}

/// Packed: panel by panel W is dequantized to the dense layout, the next panel a few groups at a time between the products of
/// this one, whose latency hides it. In a prototype on a Xeon of the fourth generation a panel that was dequantized by itself
/// took 24 to 38 % of the time at 128 rows.
///
/// Moves W once per chunk of x, x twice per worker; `2 * rows * in * out` flops. Floor: as for `dense`. Not measured yet: written
/// on a machine without tiles.
///
/// # Safety
/// - As for [`sweep_dense`], with W of the format of `FORMAT`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn sweep_packed<const FORMAT: u8, T: Tiles>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let w = &operands.w;
    let (rows, cols) = (operands.x.rows, w.cols);
    let (chunk, steps) = (chunk(rows, cols), cols / STEP);
    let (block_bytes, panel_bytes) = (w.format.row_block_bytes(cols), WeightFormat::Bf16.row_block_bytes(cols));
    let blocks = i.share(w.rows.div_ceil(ROWS));
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    let needed = chunk * cols * 2 + chunk / PAIR * SUMS + 2 * PANEL * panel_bytes;
    assert!(scratch.len() >= needed, "scratch as asked for");
    let x = scratch.as_mut_ptr();
    let sums = x.wrapping_add(chunk * cols * 2);
    let panels = sums.wrapping_add(chunk / PAIR * SUMS);
    for first in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - first);
        let call = Call { outputs: Outputs::of(operands), x, sums, first, rows: count, steps };
        let calls = (count.div_ceil(PAIR) * steps.div_ceil(Walk::STEPS_BETWEEN)).max(1);
        let ahead = |block: usize, index: usize| {
            let present = PANEL.min(blocks.end.saturating_sub(block));
            let groups = present * (cols / w.format.group());
            Ahead {
                codes: w.bytes.as_ptr().wrapping_add(block * block_bytes),
                format: w.format,
                cols,
                panel: panels.wrapping_add(index % 2 * PANEL * panel_bytes),
                done: 0,
                groups,
                at_a_time: groups.div_ceil(calls),
            }
        };
        // SAFETY: the rows exist and the scratch is large enough (asserted); blocks are this worker's and whole; the two
        // panels are disjoint, one read while the other is written.
        unsafe {
            call.pack(operands);
            let mut current = ahead(blocks.start, 0);
            current.advance::<FORMAT>(current.groups);
            for (index, block) in blocks.clone().step_by(PANEL).enumerate() {
                let both = block + 1 < blocks.end;
                let panel = (current.panel.cast_const(), if both { panel_bytes } else { 0 });
                let mut next = ahead(block + PANEL, index + 1);
                let state = std::ptr::from_mut(&mut next).cast();
                call.walk::<T>(panel, block, both, prepare::<FORMAT>, state);
                next.advance::<FORMAT>(next.groups);
                current = next;
            }
        }
    }
}
