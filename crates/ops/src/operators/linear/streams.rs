//! `matvec/avx512-vnni` and `matmul/avx512-vnni`: packed codes against split-plane activations, with exact integer sums.
//! Not here: how activations become planes (`planes.rs`).

#![allow(unsafe_code, reason = "AVX-512 loads through pointers into checked operands and private scratch")]

use super::ahead::ahead;
use super::gated::{GATED, GATED_REASON};
use super::matvec::few_rows;
use super::planes::{self, Planes};
use super::vector::{Outputs, code_lines, for_format, header, header_bytes, is_affine4, lockstep};
use super::{Operands, packed};
use crate::ladder::MATVEC_MAX_ROWS;
use crate::operator::CallShape;
use crate::operators::maths::silu;
use crate::weight::{LANES, LINE};
use crate::{DType, Feature, Invocation, Kernel, kernel};
use std::arch::x86_64::*;

const FEATURES: &[Feature] =
    &[Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl, Feature::Avx512dq, Feature::Avx512vnni];
pub(super) const REASON: &str =
    "one bfloat16 rounding of the output; activations are exact to 2^-16 of their group's largest";

pub(crate) static MATVEC_AVX512_VNNI: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "avx512-vnni", features: FEATURES, supports: few_rows, scratch: scratch,
    ahead: fetch_ahead,
    nmse: 6e-6, because: REASON, run: run_matvec,
}
.multiplying(2);

pub(crate) static GATED_AVX512_VNNI: Kernel = kernel! {
    operator: "gated_linear", name: "matvec", isa: "avx512-vnni", features: FEATURES, supports: few_rows, scratch: scratch,
    ahead: |i, piece| ahead(i, gated_pairs(i.input(0).rows), piece),
    nmse: GATED, because: GATED_REASON, run: run_gated,
}
.multiplying(2);

pub(crate) static MATMUL_AVX512_VNNI: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "avx512-vnni", features: FEATURES, supports: large_groups, scratch: scratch,
    nmse: 6e-6, because: REASON, run: run_matmul,
}
.multiplying(2);

/// Bytes that each stream is prefetched ahead. Measured: 256 and 512 are alike, 768 and more lose a tenth.
const AHEAD: usize = 512;
/// Rows of x that become planes at a time; bounds the scratch, and W is read once for as many rows.
const CHUNK: usize = 256;
/// Most rows of a tile: two integer sums and one f32 sum each fill 24 of the 32 registers.
const TILE: usize = MATVEC_MAX_ROWS;

/// Pieces that are asked for before x becomes planes: about as much as memory gives meanwhile.
pub(super) const FIRST_PIECES: usize = 8;

/// As `matvec` walks.
fn fetch_ahead(i: &Invocation<'_>, piece: usize) -> bool {
    let streams = match i.input(0).rows {
        1 | 2 => 4,
        3 | 4 => 2,
        _ => 1,
    };
    ahead(i, streams, piece)
}

fn scratch(shape: &CallShape) -> usize {
    let w = shape.weights[0];
    planes::scratch_bytes(shape.inputs[0].rows.min(CHUNK), w.cols, w.format.group())
}

/// Packed weights whose groups are long against what finishing a group costs, unless there are few rows.
fn large_groups(shape: &CallShape) -> Result<(), String> {
    packed(shape)?;
    let (rows, group) = (shape.inputs[0].rows, shape.weights[0].format.group());
    if group >= 64 || rows <= 32 {
        return Ok(());
    }
    Err(format!("is for groups of 64 or more, or at most 32 rows; found groups of {group} and {rows} rows"))
}

fn run_matvec(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: `bind` checked the processor's features, `supports` the element types and the format.
    unsafe { for_format!(operands.w.format, matvec::<_>(i, &operands)) }
}

fn run_gated(i: &Invocation<'_>) {
    let both = Operands::gated(i);
    // SAFETY: as above.
    unsafe { for_format!(both[0].w.format, gated::<_>(i, &both)) }
}

fn run_matmul(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: as above.
    unsafe { for_format!(operands.w.format, matmul::<_>(i, &operands)) }
}

/// The worker's row blocks in several streams, in lockstep: each line of codes is loaded once, multiplied with both planes of
/// every row (`vpdpbusd`), and a group's integer sums are scaled once.
///
/// Moves the packed W once, `in / group * (block lines) * 64` bytes per 16 outputs, and `2 * rows * in * out` flops in
/// `rows * in * out / 32` products. Floor: the bytes of W at the read bandwidth, up to two rows; then the products, one per
/// cycle. On two cores of an AMD EPYC (Zen 4), all projections and the head of Qwen3-0.6B at W4 g128 (317 MB): 6.3 ms per
/// token at best, 0.85 to 0.96 of a plain read of the same bytes beside it; at 8 rows 0.87 of the products' peak.
/// Eight streams lost a third there, and win on processors that read ahead less: four are the compromise.
///
/// # Safety
/// - The processor has the kernel's features; operands are what `supports` admits, of the format of `FORMAT`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn matvec<const FORMAT: u8>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let rows = operands.x.rows;
    let sweep = Sweep::of(operands);
    if i.fetches_ahead() {
        // Memory works while the planes are made.
        (0..FIRST_PIECES).for_each(|piece| {
            fetch_ahead(i, piece);
        });
    }
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    // SAFETY: the caller's contract.
    let x = unsafe { planes_of::<FORMAT>(operands, 0, rows, scratch) };
    for blocks in i.portions(operands.w.rows.div_ceil(LANES), 4) {
        macro_rules! rows_in_streams {
            ($($rows:literal in $streams:literal then $fewer:literal),+) => {
                match rows {
                    $($rows => {
                        let (length, rest) = lockstep(&blocks, $streams);
                        for block in blocks.start..blocks.start + length {
                            // SAFETY: the worker's blocks; the planes are of all rows.
                            unsafe { sweep.blocks::<FORMAT, $rows, $streams>(block, length, x, 0) };
                        }
                        let (length, last) = lockstep(&rest, $fewer);
                        for block in rest.start..rest.start + length {
                            // SAFETY: as above.
                            unsafe { sweep.blocks::<FORMAT, $rows, $fewer>(block, length, x, 0) };
                        }
                        for block in last {
                            // SAFETY: as above.
                            unsafe { sweep.blocks::<FORMAT, $rows, 1>(block, 0, x, 0) };
                        }
                    })+
                    more => unreachable!("`supports` admits {MATVEC_MAX_ROWS} rows, not {more}"),
                }
            };
        }
        rows_in_streams!(
            1 in 4 then 2, 2 in 4 then 2, 3 in 2 then 1, 4 in 2 then 1, 5 in 1 then 1, 6 in 1 then 1, 7 in 1 then 1,
            8 in 1 then 1
        );
    }
}

/// Streams of each of the two matrices that [`gated`] walks in lockstep for so many rows.
const fn gated_pairs(rows: usize) -> usize {
    if rows <= 2 { 2 } else { 1 }
}

/// Two matrices of one shape in lockstep, as [`matvec`]: a block of each, then `silu(gate) * up`, so that neither is written or
/// read again, x becomes planes once, and no barrier stands between. Moves both matrices once.
///
/// # Safety
/// - As for [`matvec`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn gated<const FORMAT: u8>(i: &Invocation<'_>, [gate, up]: &[Operands<'_>; 2]) {
    let rows = gate.x.rows;
    let (gates, ups) = (Sweep::of(gate), Sweep::of(up));
    if i.fetches_ahead() {
        (0..FIRST_PIECES).for_each(|piece| {
            ahead(i, gated_pairs(rows), piece);
        });
    }
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    // SAFETY: the caller's contract.
    let x = unsafe { planes_of::<FORMAT>(gate, 0, rows, scratch) };
    for blocks in i.portions(gate.w.rows.div_ceil(LANES), 2) {
        macro_rules! rows_in_pairs {
            ($($rows:literal in $pairs:literal),+) => {
                match rows {
                    $($rows => {
                        let (length, rest) = lockstep(&blocks, $pairs);
                        for block in blocks.start..blocks.start + length {
                            // SAFETY: the worker's blocks of both; the planes are of all rows.
                            unsafe { gated_blocks::<FORMAT, $rows, $pairs, { 2 * $pairs }>(&gates, &ups, block, length, x) };
                        }
                        for block in rest {
                            // SAFETY: as above.
                            unsafe { gated_blocks::<FORMAT, $rows, 1, 2>(&gates, &ups, block, 0, x) };
                        }
                    })+
                    more => unreachable!("`supports` admits {MATVEC_MAX_ROWS} rows, not {more}"),
                }
            };
        }
        rows_in_pairs!(1 in 2, 2 in 2, 3 in 1, 4 in 1, 5 in 1, 6 in 1, 7 in 1, 8 in 1);
    }
}

/// Row blocks `first + n * step` for n below `PAIRS` of both matrices. `STREAMS` is twice `PAIRS`.
///
/// # Safety
/// - As for [`Sweep::blocks`], for both.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn gated_blocks<const FORMAT: u8, const ROWS: usize, const PAIRS: usize, const STREAMS: usize>(
    gates: &Sweep,
    ups: &Sweep,
    first: usize,
    step: usize,
    x: Planes,
) {
    let starts = std::array::from_fn(|stream| {
        let (matrix, n) = if stream < PAIRS { (gates, stream) } else { (ups, stream - PAIRS) };
        matrix.w.wrapping_add((first + n * step) * matrix.row_block_bytes)
    });
    // SAFETY: the caller's contract.
    let sums: [[__m512; ROWS]; STREAMS] = unsafe { gates.sums::<FORMAT, ROWS, STREAMS>(starts, x) };
    for n in 0..PAIRS {
        for row in 0..ROWS {
            let gated = silu_times(sums[n][row], sums[PAIRS + n][row]);
            // SAFETY: a row of the output and a block of this worker's.
            unsafe { gates.outputs.store(row, first + n * step, gated) };
        }
    }
}

/// `silu(gate) * up` of 16 sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn silu_times(gate: __m512, up: __m512) -> __m512 {
    // SAFETY: 64 bytes of numbers either way.
    let (mut gates, ups) =
        unsafe { (std::mem::transmute::<__m512, [f32; LANES]>(gate), std::mem::transmute::<__m512, [f32; LANES]>(up)) };
    for lane in 0..LANES {
        gates[lane] = silu::<true>(gates[lane]) * ups[lane];
    }
    // SAFETY: as above.
    unsafe { std::mem::transmute::<[f32; LANES], __m512>(gates) }
}

/// Row block by row block: its codes stay in the nearest cache while tiles of up to eight rows of x pass over it. Nothing is
/// dequantized: the two planes cost as many products as bfloat16 pairs would, and no weight is rounded.
///
/// Moves W and y once and x once per worker; `2 * rows * in * out` flops in `rows * in * out / 32` products, whose peak rate
/// is the floor. On two cores of an AMD EPYC (Zen 4), the layers of Qwen3-0.6B at W4 g128: 128 rows in 271 ms (416 GFLOP/s,
/// 0.90 of that peak), 16 rows 0.87, 9 rows 0.80; g64 0.84 to 0.86. Groups of 32 finish too often (0.77 at 32 rows): more
/// rows of those go to `matmul/avx512-bf16`.
///
/// # Safety
/// - As for [`matvec`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn matmul<const FORMAT: u8>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let sweep = Sweep::of(operands);
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    let row_bytes = planes::scratch_bytes(1, operands.w.cols, operands.w.format.group());
    for first in (0..operands.x.rows).step_by(CHUNK) {
        let count = CHUNK.min(operands.x.rows - first);
        let tiles = count.div_ceil(TILE);
        let start = |tile: usize| count * tile / tiles;
        let mut x = [Planes::NONE; CHUNK / TILE];
        for tile in 0..tiles {
            let (start, end) = (start(tile), start(tile + 1));
            let scratch = &mut scratch[start * row_bytes..end * row_bytes];
            // SAFETY: the caller's contract; tiles have disjoint parts of the scratch.
            x[tile] = unsafe { planes_of::<FORMAT>(operands, first + start, end - start, scratch) };
        }
        for block in i.share(operands.w.rows.div_ceil(LANES)) {
            for (tile, x) in x.iter().enumerate().take(tiles) {
                let (start, end) = (start(tile), start(tile + 1));
                macro_rules! rows {
                    ($($rows:literal)+) => {
                        match end - start {
                            // SAFETY: the worker's block; the planes are of the tile's rows.
                            $($rows => unsafe { sweep.blocks::<FORMAT, $rows, 1>(block, 0, *x, first + start) },)+
                            more => unreachable!("tiles have at most {TILE} rows, not {more}"),
                        }
                    };
                }
                rows!(1 2 3 4 5 6 7 8);
            }
        }
    }
}

/// The planes of `count` rows of x.
///
/// # Safety
/// - As for [`matvec`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn planes_of<const FORMAT: u8>(
    operands: &Operands<'_>,
    first: usize,
    count: usize,
    scratch: &mut [u8],
) -> Planes {
    let x = &operands.x;
    assert!(x.dtype == DType::BF16 && first + count <= x.rows, "`supports` admits bfloat16 rows");
    let start = x.as_ptr().cast::<u16>().wrapping_add(first * x.width);
    // SAFETY: these rows are x's (asserted); the group divides the columns (`Operands::of`) and is a multiple of 32 or 16
    // (packing checks it); scratch is private, and `split` checks its length.
    unsafe { planes::split::<FORMAT>(start, count, x.width, operands.w.format.group(), scratch) }
}

/// What every block of a call shares.
pub(super) struct Sweep {
    /// W's first byte.
    pub(super) w: *const u8,
    pub(super) row_block_bytes: usize,
    pub(super) block_bytes: usize,
    pub(super) groups: usize,
    pub(super) lines: usize,
    pub(super) outputs: Outputs,
}

impl Sweep {
    pub(super) fn of(operands: &Operands<'_>) -> Sweep {
        let (w, format) = (&operands.w, operands.w.format);
        Sweep {
            w: w.bytes.as_ptr(),
            row_block_bytes: format.row_block_bytes(w.cols),
            block_bytes: format.block_lines() * LINE,
            groups: w.cols / format.group(),
            lines: code_lines(format),
            outputs: Outputs::of(operands),
        }
    }

    /// All columns of row blocks `first + n * step` for n below `STREAMS`, rows `row..row + ROWS` of x, whose planes are `x`.
    ///
    /// # Safety
    /// - The blocks exist and are this worker's; the planes are of `ROWS` rows, of W's columns and format.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn blocks<const FORMAT: u8, const ROWS: usize, const STREAMS: usize>(
        &self,
        first: usize,
        step: usize,
        x: Planes,
        row: usize,
    ) {
        let start = |stream: usize| self.w.wrapping_add((first + stream * step) * self.row_block_bytes);
        // SAFETY: the caller's contract.
        let sums = unsafe { self.sums::<FORMAT, ROWS, STREAMS>(std::array::from_fn(start), x) };
        for stream in 0..STREAMS {
            for n in 0..ROWS {
                // SAFETY: a row of the output and a block of this worker's.
                unsafe { self.outputs.store(row + n, first + stream * step, sums[stream][n]) };
            }
        }
    }

    /// The 16 sums of the row blocks that begin at `starts`, for `ROWS` rows of x.
    ///
    /// # Safety
    /// - Whole row blocks of W's columns and format begin there; the planes are of `ROWS` rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn sums<const FORMAT: u8, const ROWS: usize, const STREAMS: usize>(
        &self,
        starts: [*const u8; STREAMS],
        x: Planes,
    ) -> [[__m512; ROWS]; STREAMS] {
        let nibbles = _mm512_set1_epi8(15);
        let flip = _mm512_set1_epi8(-128);
        let words_per_row = if is_affine4(FORMAT) { 4 } else { 2 };
        let mut sums = [[_mm512_setzero_ps(); ROWS]; STREAMS];
        let Planes { words: mut x, mut factors } = x;
        let mut offset = 0;
        for _ in 0..self.groups {
            let mut high = [[_mm512_setzero_si512(); ROWS]; STREAMS];
            let mut low = high;
            if !is_affine4(FORMAT) {
                for row in 0..ROWS {
                    // SAFETY: `split` wrote factors for every group and row.
                    let undo = unsafe { (*factors.add(row)).total } as i32;
                    for stream in 0..STREAMS {
                        low[stream][row] = _mm512_set1_epi32(undo);
                    }
                }
            }
            let mut line = offset + header_bytes(FORMAT);
            for stream in 0..STREAMS {
                prefetch(starts[stream].wrapping_add(offset));
            }
            for _ in 0..self.lines {
                for stream in 0..STREAMS {
                    let at = starts[stream].wrapping_add(line);
                    prefetch(at);
                    // SAFETY: a line of the stream's row block.
                    let codes = unsafe { _mm512_loadu_si512(at.cast()) };
                    // SAFETY: the words of this line and row, which `split` wrote.
                    let word = |row: usize, n: usize| unsafe { _mm512_set1_epi32(*x.add(row * words_per_row + n)) };
                    if is_affine4(FORMAT) {
                        let lower = _mm512_and_si512(codes, nibbles);
                        let upper = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibbles);
                        for row in 0..ROWS {
                            let (h, l) = (&mut high[stream][row], &mut low[stream][row]);
                            *h = _mm512_dpbusd_epi32(*h, lower, word(row, 0));
                            *l = _mm512_dpbusd_epi32(*l, lower, word(row, 1));
                            *h = _mm512_dpbusd_epi32(*h, upper, word(row, 2));
                            *l = _mm512_dpbusd_epi32(*l, upper, word(row, 3));
                        }
                    } else {
                        // Signed codes plus 128 are unsigned ones.
                        let codes = _mm512_xor_si512(codes, flip);
                        for row in 0..ROWS {
                            let (h, l) = (&mut high[stream][row], &mut low[stream][row]);
                            *h = _mm512_dpbusd_epi32(*h, codes, word(row, 0));
                            *l = _mm512_dpbusd_epi32(*l, codes, word(row, 1));
                        }
                    }
                }
                x = x.wrapping_add(ROWS * words_per_row);
                line += LINE;
            }
            for stream in 0..STREAMS {
                // SAFETY: the group's block of the stream's row block.
                let (scales, biases) = unsafe { header::<FORMAT>(starts[stream].wrapping_add(offset)) };
                for row in 0..ROWS {
                    // SAFETY: as above.
                    let factors = unsafe { *factors.add(row) };
                    let exact = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[stream][row]), low[stream][row]);
                    let scales = _mm512_mul_ps(scales, _mm512_set1_ps(factors.step));
                    let sum = &mut sums[stream][row];
                    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scales, *sum);
                    if is_affine4(FORMAT) {
                        *sum = _mm512_fmadd_ps(biases, _mm512_set1_ps(f32::from_bits(factors.total)), *sum);
                    }
                }
            }
            factors = factors.wrapping_add(ROWS);
            offset += self.block_bytes;
        }
        sums
    }
}

/// Asks for the line some way ahead of `at`; beyond the end it is a line of no use, which costs nothing else.
#[inline]
fn prefetch(at: *const u8) {
    // SAFETY: a prefetch reads nothing that the program could see and never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast()) };
}
