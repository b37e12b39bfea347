//! `dense/avx512-bf16` and `matmul/avx512-bf16`: tiles of outputs in registers, products of bfloat16 pairs (`vdpbf16ps`).
//! Here: the tile, the packing of x, the panel that packed weights are dequantized to, and the sweep over blocks and rows.
//! Not here: packed codes times integers (`streams.rs`), and machines without the instruction (`lanes.rs`).

#![allow(unsafe_code, reason = "AVX-512 loads and stores through pointers into checked operands and private scratch")]

use super::ahead::ahead;
use super::unrolled::unrolled;
use super::vector::{Outputs, code_lines, for_format, header, header_bytes, is_affine4, lockstep};
use super::{Operands, packed};
use crate::Portions;
use crate::ladder::MATVEC_MAX_ROWS;
use crate::operator::CallShape;
use crate::weight::{LANES, LINE, WeightFormat};
use crate::{Feature, Invocation, Kernel, kernel};
use std::arch::x86_64::*;

const FEATURES: &[Feature] =
    &[Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl, Feature::Avx512dq, Feature::Avx512bf16];

pub(crate) static DENSE_AVX512_BF16: Kernel = kernel! {
    operator: "linear", name: "dense", isa: "avx512-bf16", features: FEATURES, supports: super::dense,
    scratch: dense_scratch, ahead: |i, piece| ahead(i, streams(i.input(0).rows), piece),
    nmse: 6e-6, because: "one bfloat16 rounding of the output; exact products summed in f32", run: run_dense,
};

pub(crate) static MATMUL_AVX512_BF16: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "avx512-bf16", features: FEATURES, supports: packed,
    scratch: matmul_scratch,
    nmse: 4e-5,
    because: "weights and outputs are each rounded to bfloat16: 5e-6, and several times that where few outputs cancel",
    run: run_matmul,
};

/// Row blocks of a panel: each word of x that is loaded serves as many products.
const PANEL: usize = 2;
/// Most sums of a tile, of the 32 registers.
const SUMS: usize = 24;
/// Most rows of a tile of a panel.
const TILE: usize = SUMS / PANEL;
/// Rows of x that are packed at a time; bounds the scratch, and W is dequantized once for as many rows.
const CHUNK: usize = 252;
/// Bytes that weights are prefetched ahead.
const AHEAD: usize = 512;

/// Words of a packed row: pairs of columns, the last one padded with a zero.
const fn pairs(cols: usize) -> usize {
    cols.div_ceil(2)
}

fn dense_scratch(shape: &CallShape) -> usize {
    let (rows, cols) = (shape.inputs[0].rows, shape.weights[0].cols);
    (rows.min(CHUNK) * pairs(cols) * 4).next_multiple_of(LINE)
}

fn matmul_scratch(shape: &CallShape) -> usize {
    dense_scratch(shape) + PANEL * WeightFormat::Bf16.row_block_bytes(shape.weights[0].cols)
}

fn run_dense(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: `bind` checked the processor's features, `supports` the element types and the format.
    unsafe {
        match streams(operands.x.rows) {
            4 => sweep::<4>(i, &operands),
            _ => sweep::<PANEL>(i, &operands),
        }
    }
}

/// Row blocks of dense weights that are read in lockstep.
const fn streams(rows: usize) -> usize {
    if rows == 1 { 4 } else { PANEL }
}

fn run_matmul(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: as above.
    unsafe { for_format!(operands.w.format, sweep_dequantized::<_>(i, &operands)) }
}

/// The rows `first..first + count` of x, packed in tiles of nearly equal size.
struct PackedRows {
    first: usize,
    count: usize,
    tiles: usize,
    words: *const i32,
    pairs: usize,
}

impl PackedRows {
    /// Per tile and pair of columns, the pair of every row of the tile: what the tile broadcasts, in order.
    ///
    /// # Safety
    /// - x is bfloat16 and has the rows; `words` has room for `count * pairs(cols)` words that nothing else uses.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn pack(operands: &Operands<'_>, first: usize, count: usize, words: *mut i32) -> PackedRows {
        let cols = operands.x.width;
        let made = PackedRows { first, count, tiles: count.div_ceil(TILE), words, pairs: pairs(cols) };
        for tile in 0..made.tiles {
            let (start, rows) = made.tile(tile);
            // SAFETY: the tile's words follow those of the rows before it.
            let words = unsafe { words.add(start * made.pairs) };
            for row in 0..rows {
                let x = operands.x.bf16(first + start + row);
                let whole = x.chunks_exact(2);
                let last = whole.remainder().first().map(|last| i32::from(*last));
                let all = whole.map(|pair| (u32::from(pair[0]) | u32::from(pair[1]) << 16) as i32).chain(last);
                for (pair, word) in all.enumerate() {
                    // SAFETY: within the tile's `rows * pairs` words.
                    unsafe { *words.add(pair * rows + row) = word };
                }
            }
        }
        made
    }

    /// First row (of these) and number of rows of a tile.
    fn tile(&self, tile: usize) -> (usize, usize) {
        let start = |tile: usize| self.count * tile / self.tiles;
        (start(tile), start(tile + 1) - start(tile))
    }
}

/// Dense: W itself has the layout that tiles read; each line is loaded once per tile of up to twelve rows, each pair of x
/// broadcast once per two row blocks.
///
/// Moves W (2 bytes per weight) once per 252 rows, `2 * rows * in * out` flops. Floor: those bytes at the read bandwidth for
/// few rows, the peak of `vdpbf16ps` for many. On two cores of an AMD EPYC (Zen 4), Qwen3-0.6B (1.19 GB): 22 to 27 ms for one
/// row (0.8 to 0.9 of a plain read beside it); the layers at 128 rows 0.8 to 0.9 of the peak.
///
/// # Safety
/// - The processor has the kernel's features; operands are what `supports` admits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn sweep<const STREAMS: usize>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let outputs = Outputs::of(operands);
    let block_bytes = operands.w.format.row_block_bytes(operands.w.cols);
    let w = operands.w.bytes.as_ptr();
    let blocks = operands.w.rows.div_ceil(LANES);
    // Many rows are limited by arithmetic, and pass over W more than once.
    let few = operands.x.rows <= MATVEC_MAX_ROWS;
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    for first in (0..operands.x.rows).step_by(CHUNK) {
        let count = CHUNK.min(operands.x.rows - first);
        assert!(scratch.len() >= count * pairs(operands.x.width) * 4, "scratch as asked for");
        let parts = if few { i.portions(blocks, STREAMS) } else { Portions::fixed(i.share(blocks)) };
        // SAFETY: the rows exist and the scratch is large enough (asserted); blocks are this worker's.
        unsafe {
            let x = PackedRows::pack(operands, first, count, scratch.as_mut_ptr().cast());
            for blocks in parts {
                let (length, rest) = lockstep(&blocks, STREAMS);
                for block in blocks.start..blocks.start + length {
                    let w = w.wrapping_add(block * block_bytes);
                    all_tiles::<STREAMS>(w, length * block_bytes, &x, &outputs, block, length);
                }
                for block in rest {
                    all_tiles::<1>(w.wrapping_add(block * block_bytes), 0, &x, &outputs, block, 0);
                }
            }
        }
    }
}

/// Packed: panel by panel, W is dequantized to the dense layout in scratch, once per 252 rows, and then as dense.
///
/// Moves W once, x once per worker; `2 * rows * in * out` flops, and about five operations per 16 weights to dequantize,
/// which is what it loses at few rows. Floor: the peak of `vdpbf16ps`. On two cores of an AMD EPYC (Zen 4), the layers of
/// Qwen3-0.6B: 128 rows 0.83 to 0.87 of that peak in W4 of any group, 0.7 to 0.8 in Int8; 512 rows 0.84; 16 rows 0.61.
///
/// # Safety
/// - As for [`sweep`], with W of the format of `FORMAT`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn sweep_dequantized<const FORMAT: u8>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let w = &operands.w;
    let outputs = Outputs::of(operands);
    let (block_bytes, panel_bytes) = (w.format.row_block_bytes(w.cols), WeightFormat::Bf16.row_block_bytes(w.cols));
    let blocks = i.share(w.rows.div_ceil(LANES));
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    assert!(scratch.len() >= PANEL * panel_bytes, "scratch as asked for");
    let (panel, scratch) = scratch.split_at_mut(PANEL * panel_bytes);
    let panel = panel.as_mut_ptr();
    for first in (0..operands.x.rows).step_by(CHUNK) {
        let count = CHUNK.min(operands.x.rows - first);
        assert!(scratch.len() >= count * pairs(w.cols) * 4, "scratch as asked for");
        // SAFETY: the rows exist and the scratch is large enough (asserted); blocks are this worker's.
        unsafe {
            let x = PackedRows::pack(operands, first, count, scratch.as_mut_ptr().cast());
            for block in blocks.clone().step_by(PANEL) {
                let present = PANEL.min(blocks.end - block);
                for n in 0..present {
                    let codes = w.bytes[(block + n) * block_bytes..][..block_bytes].as_ptr();
                    dequantize::<FORMAT>(codes, w.format, w.cols, panel.add(n * panel_bytes));
                }
                if present == PANEL {
                    all_tiles::<PANEL>(panel, panel_bytes, &x, &outputs, block, 1);
                } else {
                    all_tiles::<1>(panel, 0, &x, &outputs, block, 0);
                }
            }
        }
    }
}

/// All rows of x against row blocks `block + n * step`, whose weights start `stride` bytes apart.
///
/// # Safety
/// - The weights are whole row blocks in the dense layout; the blocks exist in the outputs and are this worker's.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn all_tiles<const BLOCKS: usize>(
    w: *const u8,
    stride: usize,
    x: &PackedRows,
    outputs: &Outputs,
    block: usize,
    step: usize,
) {
    macro_rules! tile_of {
        ($rows:expr, $words:expr, $row:expr, $($count:literal)+) => {
            match $rows {
                // SAFETY: the caller's contract; the words are the tile's.
                $($count if BLOCKS * $count <= SUMS => unsafe {
                    tile::<BLOCKS, $count>(w, stride, $words, x.pairs, outputs, $row, block, step)
                },)+
                more => unreachable!("tiles of {BLOCKS} row blocks have at most {SUMS} sums, not {more} rows"),
            }
        };
    }
    for index in 0..x.tiles {
        let (start, rows) = x.tile(index);
        let words = x.words.wrapping_add(start * x.pairs);
        tile_of!(rows, words, x.first + start, 1 2 3 4 5 6 7 8 9 10 11 12);
    }
}

/// `BLOCKS` row blocks by `ROWS` rows: all sums stay in registers over the whole of k.
///
/// # Safety
/// - As for [`all_tiles`]; `words` holds `pairs * ROWS` words.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn tile<const BLOCKS: usize, const ROWS: usize>(
    w: *const u8,
    stride: usize,
    words: *const i32,
    pairs: usize,
    outputs: &Outputs,
    row: usize,
    block: usize,
    step: usize,
) {
    let mut sums = [[_mm512_setzero_ps(); ROWS]; BLOCKS];
    let (mut line, mut x) = (w, words);
    for _ in 0..pairs {
        let mut weights = [_mm512_setzero_si512(); BLOCKS];
        for n in 0..BLOCKS {
            let at = line.wrapping_add(n * stride);
            // SAFETY: a line of the block; the prefetch beyond it reads nothing and never faults.
            weights[n] = unsafe {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                _mm512_loadu_si512(at.cast())
            };
        }
        for n in 0..ROWS {
            // SAFETY: a word of the tile.
            let word = unsafe { _mm512_set1_epi32(*x.add(n)) };
            for (sums, weights) in sums.iter_mut().zip(weights) {
                sums[n] = multiply_pairs(sums[n], weights, word);
            }
        }
        line = line.wrapping_add(LINE);
        x = x.wrapping_add(ROWS);
    }
    unrolled!(ROW in 0..ROWS => {
        for (n, sums) in sums.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { outputs.store(row + ROW, block + n * step, sums[ROW]) };
        }
    });
}

/// `sums + a0 * b0 + a1 * b1` in every lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_pairs(sums: __m512, a: __m512i, b: __m512i) -> __m512 {
    // SAFETY: both are 512 bits of plain data.
    let (a, b) = unsafe { (std::mem::transmute::<__m512i, __m512bh>(a), std::mem::transmute::<__m512i, __m512bh>(b)) };
    _mm512_dpbf16_ps(sums, a, b)
}

/// Row block `codes` as bfloat16 in the dense layout.
///
/// # Safety
/// - `codes` is a whole row block of the format over `cols` columns; `out` has room for a dense one.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn dequantize<const FORMAT: u8>(codes: *const u8, format: WeightFormat, cols: usize, out: *mut u8) {
    let group = format.group();
    let numbers = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
    let mut interleave = [0u16; 32];
    for (n, index) in interleave.iter_mut().enumerate() {
        *index = (n / 2 + n % 2 * 16) as u16;
    }
    // SAFETY: 64 bytes of an array of 64.
    let interleave = unsafe { _mm512_loadu_si512(interleave.as_ptr().cast()) };
    for index in 0..cols / group {
        let block = codes.wrapping_add(index * format.block_lines() * LINE);
        let out = out.wrapping_add(index * group / 2 * LINE);
        // SAFETY: the group's block lies in the row block.
        let (scales, biases) = unsafe { header::<FORMAT>(block) };
        let pair = |column: usize, a: __m512, b: __m512| {
            // SAFETY: both are 512 bits of plain data; the line of an even column lies in the group's part of the panel.
            unsafe {
                let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(b, a));
                let line = _mm512_permutexvar_epi16(interleave, both);
                _mm512_storeu_si512(out.wrapping_add(column / 2 * LINE).cast(), line);
            }
        };
        for line in 0..code_lines(format) {
            // SAFETY: a line of codes of the block.
            let codes = unsafe { _mm512_loadu_si512(block.wrapping_add(header_bytes(FORMAT) + line * LINE).cast()) };
            let column = line * 4;
            if is_affine4(FORMAT) {
                // The table look-up reads the lowest four bits of each lane and nothing else.
                let weight = |codes: __m512i| _mm512_fmadd_ps(_mm512_permutexvar_ps(codes, numbers), scales, biases);
                let high = group / 2 + column;
                pair(column, weight(codes), weight(_mm512_srli_epi32::<8>(codes)));
                pair(column + 2, weight(_mm512_srli_epi32::<16>(codes)), weight(_mm512_srli_epi32::<24>(codes)));
                pair(high, weight(_mm512_srli_epi32::<4>(codes)), weight(_mm512_srli_epi32::<12>(codes)));
                pair(high + 2, weight(_mm512_srli_epi32::<20>(codes)), weight(_mm512_srli_epi32::<28>(codes)));
            } else {
                let weight = |top: __m512i| _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top)), scales);
                pair(column, weight(_mm512_slli_epi32::<24>(codes)), weight(_mm512_slli_epi32::<16>(codes)));
                pair(column + 2, weight(_mm512_slli_epi32::<8>(codes)), weight(codes));
            }
        }
    }
}
