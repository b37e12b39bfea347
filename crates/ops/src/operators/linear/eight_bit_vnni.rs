//! `matmul-8bit/avx512-vnni`: packed codes times activations of eight bits, one product (`vpdpbusd`) per weight.
//! Here: the conversion of x, the tile of rows, the sweep. Not here: what eight bits cost in accuracy (`eight_bit.rs`).

#![allow(unsafe_code, reason = "AVX-512 loads through pointers into checked operands and private scratch")]

use super::Operands;
use super::eight_bit::{COLUMNS, NMSE, REASON, steps, whole_scales};
use super::vector::{Outputs, for_format, header, header_bytes, is_affine4};
use crate::operator::CallShape;
use crate::weight::{LANES, LINE, WeightFormat};
use crate::{DType, Feature, Invocation, Kernel, kernel};
use std::arch::x86_64::*;

const FEATURES: &[Feature] =
    &[Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl, Feature::Avx512dq, Feature::Avx512vnni];

pub(crate) static AVX512_VNNI: Kernel = kernel! {
    operator: "linear", name: "matmul-8bit", isa: "avx512-vnni", features: FEATURES, supports: whole_scales,
    scratch: scratch,
    nmse: NMSE, because: REASON, run: run,
};

/// Most rows of a tile: an integer and an f32 sum each fill 24 of the 32 registers, and a line of codes that is loaded and
/// unpacked serves twelve products.
const TILE: usize = 12;
/// Rows of x that are converted at a time; bounds the scratch, and W is read once for as many rows.
const CHUNK: usize = 252;

/// How a group's columns are passed over: pieces of lines of one half of the codes, in the order of the columns.
#[derive(Clone, Copy)]
struct Order {
    /// Lines of a piece.
    lines: usize,
    /// Pieces of each half of the codes (Int8 has one "half").
    pieces: usize,
    /// Whether both halves end in one scale.
    joined: bool,
    group: usize,
    /// Scales of a group.
    scales: usize,
}

impl Order {
    fn of(format: WeightFormat) -> Order {
        let group = format.group();
        let columns = COLUMNS.min(group);
        let scales = group / columns;
        match format {
            WeightFormat::Int8 { .. } => Order { lines: columns / 4, pieces: scales, joined: false, group, scales },
            _ if scales == 1 => Order { lines: group / 8, pieces: 1, joined: true, group, scales },
            _ => Order { lines: columns / 4, pieces: scales / 2, joined: false, group, scales },
        }
    }
}

/// Bytes of converted x of `rows` rows: the numbers, a step per scale, a total per scale (Int8) or per group (the others).
fn converted_bytes(rows: usize, cols: usize, format: WeightFormat) -> usize {
    let order = Order::of(format);
    rows * cols + rows * (cols / order.group) * order.scales * 8 + rows * (cols / order.group) * 4
}

fn scratch(shape: &CallShape) -> usize {
    let w = shape.weights[0];
    converted_bytes(shape.inputs[0].rows.min(CHUNK), w.cols, w.format)
}

fn run(i: &Invocation<'_>) {
    let operands = Operands::of(i);
    // SAFETY: `bind` checked the processor's features, `supports` the element types and the format.
    unsafe { for_format!(operands.w.format, sweep::<_>(i, &operands)) }
}

/// Converted rows of a tile. Words of four columns: per group, piece after piece, line after line, row after row.
#[derive(Clone, Copy)]
struct Converted {
    words: *const i32,
    /// Per scale, a step of every row.
    steps: *const f32,
    /// Per scale and row, `-128 * Σ t`, which undoes the 128 added to every code of Int8.
    undo: *const i32,
    /// Per group and row, Σ of t times its step: what biases are multiplied with.
    totals: *const f32,
}

/// Row block by row block: its codes stay in the nearest cache while tiles of up to twelve rows pass over it.
///
/// Moves W and y once and x once per worker; `2 * rows * in * out` flops in `rows * in * out / 64` products, whose peak rate is
/// the floor: half as many as two planes take. Every 32 columns an integer sum is scaled in two more operations of the same
/// unit, so at most 0.80 of that peak can be reached.
///
/// Outcome: on two cores of an AMD EPYC (Zen 4), a prefill of 128 rows of Qwen3-0.6B at W4 g128 in four alternated processes:
/// 468 tokens/s where two planes gave 406 (paired 1.13, 95 %: 0.996 to 1.28), not the 1.7 times that half the products promise.
/// That was with another conversion of x, which summed every 32 columns across a register by itself; as it is here
/// the kernel took 181 ms where two planes took 297 (all layers, 128 rows, medians of five alternated rounds). Longer scales, which would
/// finish sums less often, have not been tried.
///
/// # Safety
/// - The processor has the kernel's features; operands are what `supports` admits, of the format of `FORMAT`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn sweep<const FORMAT: u8>(i: &Invocation<'_>, operands: &Operands<'_>) {
    let (format, cols) = (operands.w.format, operands.w.cols);
    let outputs = Outputs::of(operands);
    let row_bytes = converted_bytes(1, cols, format);
    // SAFETY: the call's only slice of the scratch.
    let scratch = unsafe { i.scratch() };
    for first in (0..operands.x.rows).step_by(CHUNK) {
        let count = CHUNK.min(operands.x.rows - first);
        let tiles = count.div_ceil(TILE);
        let start = |tile: usize| count * tile / tiles;
        let none = std::ptr::null();
        let mut x = [Converted { words: none, steps: none.cast(), undo: none, totals: none.cast() }; CHUNK / TILE];
        for tile in 0..tiles {
            let (start, end) = (start(tile), start(tile + 1));
            let scratch = &mut scratch[start * row_bytes..end * row_bytes];
            // SAFETY: the caller's contract; tiles have disjoint parts of the scratch.
            x[tile] = unsafe { convert::<FORMAT>(operands, first + start, end - start, scratch) };
        }
        for block in i.share(operands.w.rows.div_ceil(LANES)) {
            let w = operands.w.bytes.as_ptr().wrapping_add(block * format.row_block_bytes(cols));
            for (tile, x) in x.iter().enumerate().take(tiles) {
                let (start, end) = (start(tile), start(tile + 1));
                macro_rules! rows {
                    ($($rows:literal)+) => {
                        match end - start {
                            $($rows => {
                                // SAFETY: a whole row block of W, this worker's; x is of the tile's rows.
                                let sums = unsafe { multiply::<FORMAT, $rows>(w, format, cols, *x) };
                                for (n, sums) in sums.into_iter().enumerate() {
                                    // SAFETY: a row of the output and a block of this worker's.
                                    unsafe { outputs.store(first + start + n, block, sums) };
                                }
                            })+
                            more => unreachable!("tiles have at most {TILE} rows, not {more}"),
                        }
                    };
                }
                rows!(1 2 3 4 5 6 7 8 9 10 11 12);
            }
        }
    }
}

/// Sixteen outputs of `ROWS` rows.
///
/// # Safety
/// - `w` is a whole row block of the format over `cols` columns; x is of `ROWS` rows and as many columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn multiply<const FORMAT: u8, const ROWS: usize>(
    w: *const u8,
    format: WeightFormat,
    cols: usize,
    x: Converted,
) -> [__m512; ROWS] {
    let order = Order::of(format);
    let (nibbles, flip) = (_mm512_set1_epi8(15), _mm512_set1_epi8(-128));
    let halves = if is_affine4(FORMAT) { 2 } else { 1 };
    let Converted { mut words, mut steps, mut undo, mut totals } = x;
    let mut sums = [_mm512_setzero_ps(); ROWS];
    let mut block = w;
    for _ in 0..cols / order.group {
        let mut whole = [_mm512_setzero_si512(); ROWS];
        for half in 0..halves {
            for piece in 0..order.pieces {
                if !is_affine4(FORMAT) {
                    for (row, whole) in whole.iter_mut().enumerate() {
                        // SAFETY: `convert` wrote one for every scale and row.
                        *whole = _mm512_set1_epi32(unsafe { *undo.add(row) });
                    }
                    undo = undo.wrapping_add(ROWS);
                }
                for line in piece * order.lines..(piece + 1) * order.lines {
                    let at = block.wrapping_add(header_bytes(FORMAT) + line * LINE);
                    // SAFETY: a line of codes of the group; the prefetch beyond it reads nothing and never faults.
                    let codes = unsafe {
                        if half == 0 {
                            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(8 * LINE).cast());
                        }
                        _mm512_loadu_si512(at.cast())
                    };
                    let codes = if !is_affine4(FORMAT) {
                        // Signed codes plus 128 are unsigned ones.
                        _mm512_xor_si512(codes, flip)
                    } else if half == 0 {
                        _mm512_and_si512(codes, nibbles)
                    } else {
                        _mm512_and_si512(_mm512_srli_epi16::<4>(codes), nibbles)
                    };
                    for (row, whole) in whole.iter_mut().enumerate() {
                        // SAFETY: the words of this line, which `convert` wrote.
                        *whole = _mm512_dpbusd_epi32(*whole, codes, _mm512_set1_epi32(unsafe { *words.add(row) }));
                    }
                    words = words.wrapping_add(ROWS);
                }
                if order.joined && half == 0 {
                    continue;
                }
                // SAFETY: the group's block lies in the row block.
                let (scales, _) = unsafe { header::<FORMAT>(block) };
                for (row, (sum, whole)) in sums.iter_mut().zip(&mut whole).enumerate() {
                    // SAFETY: `convert` wrote one for every scale and row.
                    let scales = _mm512_mul_ps(scales, _mm512_set1_ps(unsafe { *steps.add(row) }));
                    *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(*whole), scales, *sum);
                    *whole = _mm512_setzero_si512();
                }
                steps = steps.wrapping_add(ROWS);
            }
        }
        if is_affine4(FORMAT) {
            // SAFETY: as above.
            let (_, biases) = unsafe { header::<FORMAT>(block) };
            for (row, sum) in sums.iter_mut().enumerate() {
                // SAFETY: `convert` wrote one for every group and row.
                *sum = _mm512_fmadd_ps(biases, _mm512_set1_ps(unsafe { *totals.add(row) }), *sum);
            }
            totals = totals.wrapping_add(ROWS);
        }
        block = block.wrapping_add(format.block_lines() * LINE);
    }
    sums
}

/// Rows `first..first + rows` of x.
///
/// # Safety
/// - The processor has the features; the rows are x's; nothing else uses `scratch`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn convert<const FORMAT: u8>(
    operands: &Operands<'_>,
    first: usize,
    rows: usize,
    scratch: &mut [u8],
) -> Converted {
    let (format, cols) = (operands.w.format, operands.w.cols);
    let order = Order::of(format);
    let scales = cols / order.group * order.scales;
    assert!(operands.x.dtype == DType::BF16, "`supports` admits bfloat16 rows");
    assert!(scratch.len() >= converted_bytes(rows, cols, format), "scratch as asked for");
    let words = scratch.as_mut_ptr().cast::<i32>();
    let steps_of = words.wrapping_add(rows * cols / 4).cast::<f32>();
    let undo = steps_of.wrapping_add(rows * scales).cast::<i32>();
    let totals = undo.wrapping_add(rows * scales).cast::<f32>();
    let columns = COLUMNS.min(order.group);
    for row in 0..rows {
        let x = operands.x.bf16(first + row);
        for (group, x) in x.chunks_exact(order.group).enumerate() {
            let mut total = _mm_setzero_ps();
            for (index, x) in x.chunks_exact(columns).enumerate() {
                // The chunks of a group come in the order of their columns, which is that of the pieces.
                let scale = group * order.scales + index;
                let word = (group * order.group + index * columns) / 4;
                // SAFETY: a chunk of a multiple of 16 columns; its words, step and undo lie in the scratch (asserted).
                unsafe {
                    let (step, sums) = convert_chunk(x, words.add(word * rows + row), rows);
                    steps_of.add(scale * rows + row).write(step);
                    if is_affine4(FORMAT) {
                        total = _mm_fmadd_ps(_mm_cvtepi32_ps(sums), _mm_set1_ps(step), total);
                    } else {
                        undo.add(scale * rows + row).write(sum_of(sums).wrapping_mul(-128));
                    }
                }
            }
            if is_affine4(FORMAT) {
                let pairs = _mm_add_ps(total, _mm_movehl_ps(total, total));
                let one = _mm_add_ss(pairs, _mm_shuffle_ps::<1>(pairs, pairs));
                // SAFETY: as above.
                unsafe { totals.add(group * rows + row).write(_mm_cvtss_f32(one)) };
            }
        }
    }
    Converted { words, steps: steps_of, undo, totals }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn sum_of(lanes: __m128i) -> i32 {
    let pairs = _mm_add_epi32(lanes, _mm_unpackhi_epi64(lanes, lanes));
    _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32::<1>(pairs)))
}

/// One chunk of one row: every `rows`-th of `words` gets the next four numbers. Its step and Σ t in four parts.
///
/// # Safety
/// - `x` has a multiple of 16 numbers, and `words` room for a word per four of them, `rows` apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn convert_chunk(x: &[u16], words: *mut i32, rows: usize) -> (f32, __m128i) {
    let mut largest = _mm256_setzero_si256();
    // SAFETY: sixteen numbers of the chunk.
    let load = |part: &[u16]| unsafe { _mm256_loadu_si256(part.as_ptr().cast()) };
    for part in x.chunks_exact(16) {
        largest = _mm256_max_epu16(largest, _mm256_and_si256(load(part), _mm256_set1_epi16(0x7fff)));
    }
    // The least of the complements of eight, in one instruction.
    let eight = _mm_max_epu16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
    let least = _mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1))));
    let largest = !(least as u32) & 0xffff;
    let largest = if largest < 0x7f80 { f32::from_bits(largest << 16) } else { f32::NAN };
    let (step, inverse) = steps(largest);
    let mut sums = _mm_setzero_si128();
    for (index, part) in x.chunks_exact(16).enumerate() {
        let values = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load(part))));
        let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(values, _mm512_set1_ps(inverse))));
        sums = _mm_dpbusd_epi32(sums, _mm_set1_epi8(1), bytes);
        let four = [
            _mm_cvtsi128_si32(bytes),
            _mm_extract_epi32::<1>(bytes),
            _mm_extract_epi32::<2>(bytes),
            _mm_extract_epi32::<3>(bytes),
        ];
        for (n, word) in four.into_iter().enumerate() {
            // SAFETY: a word of the chunk.
            unsafe { words.add((index * 4 + n) * rows).write(word) };
        }
    }
    (step, sums)
}
