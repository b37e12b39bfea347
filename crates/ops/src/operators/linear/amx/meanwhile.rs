//! What vector instructions do between the products of tiles: the next panel of weights is expanded, or asked for, and the sums
//! of the pair before are rounded and stored. Not here: the products.

#![allow(unsafe_code, reason = "AVX-512 loads and stores through pointers into checked operands and private scratch")]

use super::super::super::tile_walk::{PAIR, SUMS_ROW, Sums};
use super::super::vector::{Outputs, code_lines, header, header_bytes, is_affine4};
use crate::weight::{LANES, LINE, WeightFormat};
use std::arch::x86_64::*;
use std::ffi::c_void;
use std::ops::Range;

/// Weights in the dense layout, which nothing is done to; beside the packed formats' constants.
pub(super) const DENSE: u8 = u8::MAX;
/// Bytes of the sums of a pair of tiles of x and a panel.
pub(super) const SUMS: usize = PAIR * SUMS_ROW;
/// Lines of dense weights that are asked for at a time.
const ASKED: usize = 4;

/// A panel in the making. Its row blocks follow each other, in W and in the panel, and so do their groups.
pub(super) struct Ahead {
    /// The group that is next, and the line of codes in it.
    group: *const u8,
    line: usize,
    format: WeightFormat,
    /// Where the group's weights go, in the dense layout.
    out: *mut u8,
    /// Columns of 16 rows.
    columns: usize,
    /// What the group's codes are multiplied with and what is added.
    terms: Terms,
}

/// Per place of a code ([`PLACES`]), what its number is multiplied with and what is added, of 16 rows; of eight bits, the first
/// line is the scales.
#[repr(C, align(64))]
struct Terms([[f32; LANES]; 2 * PLACES.len()]);

impl Ahead {
    /// `columns` of 16 rows, from `weights` to `out`.
    pub(super) fn new(weights: *const u8, format: WeightFormat, columns: usize, out: *mut u8) -> Ahead {
        let terms = Terms([[0.0; LANES]; 2 * PLACES.len()]);
        Ahead { group: weights, line: 0, format, out, columns, terms }
    }

    /// How often [`Ahead::advance`] has something to do.
    fn pieces<const FORMAT: u8>(&self) -> usize {
        if FORMAT == DENSE {
            return self.columns / (2 * ASKED);
        }
        self.columns / self.format.group() * code_lines(self.format)
    }

    /// # Safety
    /// - The columns exist and are of the format of `FORMAT`; there is room for them in the dense layout; no more calls than
    ///   [`Ahead::pieces`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn advance<const FORMAT: u8>(&mut self) {
        if FORMAT == DENSE {
            for line in 0..ASKED {
                _mm_prefetch::<_MM_HINT_T1>(self.group.wrapping_add(line * LINE).cast());
            }
            self.group = self.group.wrapping_add(ASKED * LINE);
            return;
        }
        // SAFETY: a group and a line of it, and its part of the panel.
        unsafe {
            if self.line == 0 {
                self.terms.prepare::<FORMAT>(self.group);
            }
            expand::<FORMAT>(self.group, self.line, self.format, &self.terms, self.out);
        }
        self.line += 1;
        if self.line == code_lines(self.format) {
            self.line = 0;
            self.group = self.group.wrapping_add(self.format.block_lines() * LINE);
            self.out = self.out.wrapping_add(self.format.group() / 2 * LINE);
        }
    }

    /// All of it.
    ///
    /// # Safety
    /// - As for [`Ahead::advance`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn finish<const FORMAT: u8>(&mut self) {
        for _ in 0..self.pieces::<FORMAT>() {
            // SAFETY: the caller's contract.
            unsafe { self.advance::<FORMAT>() };
        }
    }
}

/// Sums that wait to be stored as outputs.
struct Made {
    sums: *const u8,
    rows: Range<usize>,
    block: usize,
    both: bool,
    /// Where the next row goes if it can be stored as a whole line, else null.
    line: *mut u16,
}

/// A worker's walks over panels, and what is left to do for them.
pub(super) struct Meanwhile {
    outputs: Outputs,
    /// Sums of two pairs, one being written while the other is stored.
    sums: *mut u8,
    turn: usize,
    /// Steps of a pair, what they come to until the next row is stored, and how many rows are to come.
    steps: usize,
    due_rows: usize,
    rows_left: usize,
    /// Rows of the walks, and the first of the pair that is multiplied.
    rows: Range<usize>,
    row: usize,
    /// The panel that is multiplied.
    block: usize,
    both: bool,
    made: Made,
    /// The panel after it: `pieces` of work that are spread over all steps of this one's walks; `due` counts up to the next.
    ahead: Ahead,
    pieces: usize,
    all_steps: usize,
    due: usize,
}

impl Meanwhile {
    /// For walks over `rows` of the outputs with so many `steps` a pair; `sums` has room for those of two pairs.
    pub(super) fn new(outputs: Outputs, sums: *mut u8, steps: usize, rows: Range<usize>) -> Meanwhile {
        Meanwhile {
            outputs,
            sums,
            turn: 0,
            steps,
            due_rows: 0,
            rows_left: PAIR,
            row: rows.start,
            all_steps: rows.len().div_ceil(PAIR) * steps,
            rows,
            block: 0,
            both: false,
            made: Made { sums, rows: 0..0, block: 0, both: false, line: std::ptr::null_mut() },
            ahead: Ahead::new(std::ptr::null(), WeightFormat::Bf16, 0, std::ptr::null_mut()),
            pieces: 0,
            due: 0,
        }
    }

    /// The walks that follow multiply row blocks `block` and, if `both`, the one after it.
    pub(super) fn begin<const FORMAT: u8>(&mut self, block: usize, both: bool, ahead: Ahead) {
        (self.row, self.pieces, self.due) = (self.rows.start, ahead.pieces::<FORMAT>(), 0);
        (self.block, self.both, self.ahead) = (block, both, ahead);
    }

    /// Where the next walk's sums go.
    pub(super) fn sums(&self) -> Sums {
        let there = SUMS as isize;
        let turns = if self.turn == 0 { [there, -there] } else { [-there, there] };
        Sums { start: self.sums.wrapping_add(self.turn * SUMS), stride: SUMS_ROW, turns, add: false }
    }

    /// Stores the next row of the pair before, if there is one.
    ///
    /// # Safety
    /// - It exists in the outputs, and its row blocks are this worker's.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn store(&mut self) {
        let Made { sums, rows, block, both, line } = &mut self.made;
        if rows.start == rows.end {
            return;
        }
        // SAFETY: a row of sums; the caller's contract.
        unsafe {
            let pair = [_mm512_loadu_ps(sums.cast()), _mm512_loadu_ps(sums.wrapping_add(LINE).cast())];
            if line.is_null() {
                self.outputs.store_some(rows.start, *block, *both, pair);
            } else {
                let line_of = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(pair[1], pair[0]));
                _mm512_storeu_si512(line.cast(), line_of);
                *line = line.wrapping_add(self.outputs.width());
            }
        }
        *sums = sums.wrapping_add(SUMS_ROW);
        rows.start += 1;
    }

    /// Stores what is left.
    ///
    /// # Safety
    /// - As for [`Meanwhile::store`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn finish(&mut self) {
        while !self.made.rows.is_empty() {
            // SAFETY: the caller's contract.
            unsafe { self.store() };
        }
    }

    /// The pair's last product was issued, and all rows of the one before are stored: this one's are next.
    #[inline(never)]
    fn turn(&mut self) {
        let rows = self.row..self.rows.end.min(self.row + PAIR);
        let line = if self.both { self.outputs.line(self.row, self.block) } else { std::ptr::null_mut() };
        let sums = self.sums.wrapping_add(self.turn * SUMS);
        self.made = Made { sums, rows, block: self.block, both: self.both, line };
        self.turn = 1 - self.turn;
        self.row += PAIR;
        self.rows_left = PAIR;
    }
}

/// What a walk calls after each step: a few lines of weights, and a row of outputs.
///
/// # Safety
/// - `state` is a [`Meanwhile`] that nobody else uses meanwhile, whose panel and outputs are as [`Ahead::advance`] and
///   [`Meanwhile::store`] want them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe extern "C" fn meanwhile<const FORMAT: u8>(state: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe {
        let work = &mut *state.cast::<Meanwhile>();
        work.due += work.pieces;
        while work.due >= work.all_steps {
            work.due -= work.all_steps;
            work.ahead.advance::<FORMAT>();
        }
        work.due_rows += PAIR;
        while work.due_rows >= work.steps {
            work.due_rows -= work.steps;
            work.store();
            work.rows_left -= 1;
            if work.rows_left == 0 {
                work.turn();
            }
        }
    }
}

/// Bits of a code within a number between one and two, and how many steps of a code there are between them.
const PLACES: [(u32, f32); 3] = [(8, 32768.0), (12, 2048.0), (16, 128.0)];

impl Terms {
    /// A code of four bits is put into the significand of 1.0 where it stands, at bit 8, 12 or 16, and scale and bias make up for the
    /// one and for the place: `(1 + q / n) * (n * scale) + (bias - n * scale)`. What rounding `bias - n * scale` costs is below
    /// 2^-9 of a step between codes.
    ///
    /// # Safety
    /// - `group` is a whole group of 16 rows of the format.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn prepare<const FORMAT: u8>(&mut self, group: *const u8) {
        // SAFETY: the group is whole; lines of 16 floats.
        unsafe {
            let (scales, biases) = header::<FORMAT>(group);
            if !is_affine4(FORMAT) {
                _mm512_storeu_ps(self.0[0].as_mut_ptr(), scales);
                return;
            }
            for (terms, (_, unit)) in self.0.as_chunks_mut::<2>().0.iter_mut().zip(PLACES) {
                let factor = _mm512_mul_ps(scales, _mm512_set1_ps(unit));
                _mm512_storeu_ps(terms[0].as_mut_ptr(), factor);
                _mm512_storeu_ps(terms[1].as_mut_ptr(), _mm512_sub_ps(biases, factor));
            }
        }
    }
}

/// A line of a group's codes as bfloat16 in the dense layout, into the group's part `out` of a panel. Two shifts bring all eight
/// codes of a word to one of the [`PLACES`].
///
/// # Safety
/// - `group` is a whole group of 16 rows of the format, whose `terms` these are; `out` has room for it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn expand<const FORMAT: u8>(
    group: *const u8,
    line: usize,
    format: WeightFormat,
    Terms(terms): &Terms,
    out: *mut u8,
) {
    let store = |line: usize, even: __m512, odd: __m512| {
        // SAFETY: a line of the group's part of the panel.
        unsafe { _mm512_storeu_si512(out.wrapping_add(line * LINE).cast(), pair(even, odd)) };
    };
    // SAFETY: lines of 16 floats, and a line of codes of the group.
    let term = |n: usize| unsafe { _mm512_loadu_ps(terms[n].as_ptr()) };
    // SAFETY: as above.
    let codes = unsafe { _mm512_loadu_si512(group.wrapping_add(header_bytes(FORMAT) + line * LINE).cast()) };
    if is_affine4(FORMAT) {
        let weight = |codes: __m512i, place: usize| {
            let mask = _mm512_set1_epi32(15 << PLACES[place].0);
            let one = _mm512_castps_si512(_mm512_set1_ps(1.0));
            // (codes & mask) | one
            let number = _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xea>(codes, mask, one));
            _mm512_fmadd_ps(number, term(2 * place), term(2 * place + 1))
        };
        let half = format.group() / 4;
        let (below, above) = (_mm512_slli_epi32::<8>(codes), _mm512_srli_epi32::<12>(codes));
        store(2 * line, weight(below, 0), weight(codes, 0));
        store(2 * line + 1, weight(codes, 2), weight(above, 1));
        store(half + 2 * line, weight(below, 1), weight(codes, 1));
        store(half + 2 * line + 1, weight(above, 0), weight(above, 2));
    } else {
        // The code's byte brought to the top, and down again with its sign.
        let weight = |top: __m512i| _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top)), term(0));
        store(2 * line, weight(_mm512_slli_epi32::<24>(codes)), weight(_mm512_slli_epi32::<16>(codes)));
        store(2 * line + 1, weight(_mm512_slli_epi32::<8>(codes)), weight(codes));
    }
}

/// Columns of 16 rows as pairs of bfloat16, rounded to the nearest, and half way up.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn pair(even: __m512, odd: __m512) -> __m512i {
    let nearest = |value: __m512| _mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(0x8000));
    // Bytes 2 and 3 of each word of `even` become the lower two of `odd`'s.
    let upper = _mm512_set4_epi32(0x0f0e_0f0e, 0x0b0a_0b0a, 0x0706_0706, 0x0302_0302);
    _mm512_mask_shuffle_epi8(nearest(odd), 0x3333_3333_3333_3333, nearest(even), upper)
}
