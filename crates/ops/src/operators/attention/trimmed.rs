//! `trimmed/avx512-bf16`: the tiled prefill without the work beyond the diagonal. Four query rows at a time, tiles of 64 keys are
//! cut to the 16 columns that somebody sees, and the running softmax is written for the vector unit.
//! Here: the walk, the softmax, the two products. Not here: how keys and values are packed (`bf16_tiles.rs`), and processors
//! without the instruction, whose kernels of this name are the tiled ones (`f32_tiles.rs`).
//!
//! The rows of a block of queries are (row, head of the group) pairs, as in `tiled.rs`, and so later rows see no less.

#![allow(unsafe_code, reason = "vector instructions; scratch as a typed struct, exclusive parts of the output")]

use crate::operator::Kernel;
use crate::program::Attributes;
use crate::step::Sequence;
use crate::{Feature, Invocation, kernel};
use std::arch::x86_64::*;
use std::ops::Range;

use super::super::shapes::flat_mut;
use super::bf16_tiles::{bits, pack_keys, pack_values};
use super::tiled::{HEAD_DIM, KEYS, supported};

/// Query rows of a block: each tile of keys and values is packed once for them.
const QUERIES: usize = 128;
/// Query rows that are multiplied together: with 64 columns, sixteen accumulators.
const ROWS: usize = 4;
/// Lanes of a vector of floats.
const LANES: usize = 16;
/// Vectors of scores in a row of a tile.
const LINES: usize = KEYS / LANES;
/// Vectors of a row of output.
const OUTPUTS: usize = HEAD_DIM / LANES;
const FEATURES: &[Feature] = super::super::isa::AVX512_BF16;

pub static VECTOR: Kernel = kernel! {
    operator: "attention", name: "trimmed", isa: "avx512-bf16", features: FEATURES, supports: supported,
    scratch: |_| size_of::<Scratch>(),
    nmse: 3e-5, because: "one bfloat16 rounding of each probability and one of the result, 2^-8 each at most",
    run: run,
};

/// A worker's scratch.
#[repr(C, align(64))]
struct Scratch {
    queries: [[u16; HEAD_DIM]; QUERIES],
    keys: [u16; HEAD_DIM * KEYS],
    values: [u16; KEYS * HEAD_DIM],
    scores: [[f32; KEYS]; QUERIES],
    probabilities: [[u16; KEYS]; QUERIES],
    output: [[f32; HEAD_DIM]; QUERIES],
    /// Per row, sixteen partial sums of probabilities.
    sums: [[f32; LANES]; QUERIES],
    largest: [f32; QUERIES],
}

fn run(i: &Invocation<'_>) {
    // SAFETY: `bind` checked the features.
    unsafe { blocks(i) }
}

/// Floor: `4 * head_dim` flops per visible pair and head at the peak of `vdpbf16ps`; what is computed beyond it is at most 16
/// columns and 4 rows at the diagonal, the softmax (some 52 vector operations beside 512 products per row and tile), and packing
/// each tile once per 128 query rows.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn blocks(i: &Invocation<'_>) {
    let Attributes { heads, kv_heads, .. } = *i.attributes();
    let rows = QUERIES / (heads / kv_heads);
    // SAFETY: the only slice of this worker's scratch.
    let scratch = unsafe { i.scratch() };
    let (scratch, length) = (scratch.as_mut_ptr().cast::<Scratch>(), scratch.len());
    assert!(scratch.is_aligned() && length >= size_of::<Scratch>(), "the scratch that the kernel asked for");
    // SAFETY: large and aligned enough (asserted); every bit pattern is a valid element.
    let scratch = unsafe { &mut *scratch };
    // Blocks are dealt out in turn, the later (longer) ones last: workers end within a block of each other.
    let mut turn = 0;
    for sequence in i.step.sequences {
        for first in (0..sequence.rows).step_by(rows) {
            let block = first..sequence.rows.min(first + rows);
            for kv_head in 0..kv_heads {
                if turn % i.workers == i.worker {
                    attend(i, sequence, block.clone(), kv_head, scratch);
                }
                turn += 1;
            }
        }
    }
}

/// Attention of `block` (rows of the sequence) for the heads of one key/value head.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn attend(i: &Invocation<'_>, sequence: &Sequence<'_>, block: Range<usize>, kv_head: usize, scratch: &mut Scratch) {
    let Attributes { heads, kv_heads, scale, .. } = *i.attributes();
    let group = heads / kv_heads;
    let (q, y) = (i.input(0), i.output(0));
    let (keys, values) = (i.kv(sequence, false), i.kv(sequence, true));
    let queries = block.len() * group;
    let column = |query: usize| (kv_head * group + query % group) * HEAD_DIM;
    let row = |query: usize| sequence.first_row + block.start + query / group;
    let visible = |query: usize| sequence.offset + block.start + query / group + 1;
    for query in 0..queries {
        scratch.queries[query].copy_from_slice(&q.bf16(row(query))[column(query)..][..HEAD_DIM]);
        scratch.output[query] = [0.0; HEAD_DIM];
        scratch.sums[query] = [0.0; LANES];
        scratch.largest[query] = LOWEST;
    }
    let factor = scale * std::f32::consts::LOG2_E;
    for start in (0..visible(queries - 1)).step_by(KEYS) {
        let positions = start..keys.positions.min(start + KEYS);
        pack_keys(&keys, kv_head, positions.clone(), &mut scratch.keys);
        pack_values(&values, kv_head, positions, &mut scratch.values);
        let seen = |query: usize| visible(query).saturating_sub(start).min(KEYS);
        // The last row of four sees most; where it sees nothing of this tile, neither do the rows before it.
        let four = |first: usize| seen((first + ROWS - 1).min(queries - 1));
        let groups = || (0..queries).step_by(ROWS).filter(|first| four(*first) > 0);
        for first in groups() {
            match four(first).div_ceil(LANES) {
                1 => score::<1>(first, scratch),
                2 => score::<2>(first, scratch),
                3 => score::<3>(first, scratch),
                _ => score::<LINES>(first, scratch),
            }
        }
        for first in groups() {
            for query in first..queries.min(first + ROWS) {
                soften(query, seen(query), factor, scratch);
            }
        }
        for first in groups() {
            mix(first, four(first).div_ceil(2), scratch);
        }
    }
    for query in 0..queries {
        let from = row(query) * y.width + column(query);
        // SAFETY: (block, key/value head) pairs are one worker's each; this is one head of one row of it.
        let out = unsafe { flat_mut(&y, from..from + HEAD_DIM) };
        // SAFETY: vectors of 16 floats in; 16 halves of them out, `OUTPUTS` times.
        unsafe {
            // A row sees at least itself, so its sum is at least 1 for the largest score.
            let inverse = 1.0 / _mm512_reduce_add_ps(_mm512_loadu_ps(scratch.sums[query].as_ptr()));
            for n in 0..OUTPUTS {
                let sum = _mm512_loadu_ps(scratch.output[query].as_ptr().add(n * LANES));
                let rounded = _mm512_cvtneps_pbh(_mm512_mul_ps(sum, _mm512_set1_ps(inverse)));
                let rounded = std::mem::transmute::<__m256bh, __m256i>(rounded);
                _mm256_storeu_si256(out.as_mut_ptr().add(n * LANES).cast(), rounded);
            }
        }
    }
}

/// Below every score in base 2, and far enough from the end of the range that differences stay finite.
const LOWEST: f32 = -1e30;

/// The first `COUNT` vectors of scores of four rows.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn score<const COUNT: usize>(first: usize, scratch: &mut Scratch) {
    let mut sums = [[_mm512_setzero_ps(); COUNT]; ROWS];
    let a = scratch.queries[first..first + ROWS].as_ptr().cast::<i32>();
    let b = scratch.keys.as_ptr();
    for pair in 0..HEAD_DIM / 2 {
        let mut lines = [_mm512_setzero_si512(); COUNT];
        for (n, line) in lines.iter_mut().enumerate() {
            // SAFETY: a pair of rows of the tile is 64 columns of two elements.
            *line = unsafe { _mm512_loadu_si512(b.add((pair * KEYS + n * LANES) * 2).cast()) };
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: two elements of a row of queries.
            let both = bits(_mm512_set1_epi32(unsafe { *a.add(r * HEAD_DIM / 2 + pair) }));
            for (sum, line) in sums.iter_mut().zip(lines) {
                *sum = _mm512_dpbf16_ps(*sum, both, bits(line));
            }
        }
    }
    for (scores, sums) in scratch.scores[first..first + ROWS].iter_mut().zip(&sums) {
        for (n, sum) in sums.iter().enumerate() {
            // SAFETY: a vector of the row.
            unsafe { _mm512_storeu_ps(scores.as_mut_ptr().add(n * LANES), *sum) };
        }
    }
}

/// Turns the scores of a row into probabilities relative to its largest score so far; what was summed before is scaled down where
/// that grew. Columns from `seen` on get zeros.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn soften(query: usize, seen: usize, factor: f32, scratch: &mut Scratch) {
    let mask = |line: usize| ((1u32 << seen.saturating_sub(line * LANES).min(LANES)) - 1) as __mmask16;
    let lowest = _mm512_set1_ps(LOWEST);
    let mut scores = [lowest; LINES];
    let mut most = lowest;
    for (line, scores) in scores.iter_mut().enumerate() {
        // SAFETY: a vector of the row; what nobody computed is masked.
        let found =
            unsafe { _mm512_mask_loadu_ps(lowest, mask(line), scratch.scores[query].as_ptr().add(line * LANES)) };
        *scores = _mm512_mask_mul_ps(lowest, mask(line), found, _mm512_set1_ps(factor));
        most = _mm512_max_ps(most, *scores);
    }
    let old = scratch.largest[query];
    let new = old.max(_mm512_reduce_max_ps(most));
    // SAFETY: the row's sixteen sums.
    let mut sums = unsafe { _mm512_loadu_ps(scratch.sums[query].as_ptr()) };
    if new > old {
        let shrink = exp2(_mm512_set1_ps(old - new));
        sums = _mm512_mul_ps(sums, shrink);
        for n in 0..OUTPUTS {
            // SAFETY: a vector of the row.
            unsafe {
                let at = scratch.output[query].as_mut_ptr().add(n * LANES);
                _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), shrink));
            }
        }
        scratch.largest[query] = new;
    }
    let mut probabilities = [_mm512_setzero_ps(); LINES];
    for (line, (probability, scores)) in probabilities.iter_mut().zip(scores).enumerate() {
        let power = exp2(_mm512_sub_ps(scores, _mm512_set1_ps(new)));
        *probability = _mm512_maskz_mov_ps(mask(line), power);
        sums = _mm512_add_ps(sums, *probability);
    }
    // SAFETY: sixteen sums and 64 elements of the row.
    unsafe {
        _mm512_storeu_ps(scratch.sums[query].as_mut_ptr(), sums);
        for (n, two) in probabilities.chunks_exact(2).enumerate() {
            let rounded = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(two[1], two[0]));
            _mm512_storeu_si512(scratch.probabilities[query].as_mut_ptr().add(n * 2 * LANES).cast(), rounded);
        }
    }
}

/// 2^x for x of 0 and less, to 3 in 10^6: a thousandth of what rounding a probability costs. Far below the range it is 0.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn exp2(x: __m512) -> __m512 {
    /// Of the polynomial of degree 4 with the least relative error on 0..1.
    const COEFFICIENTS: [f32; 5] = [1.000_002_6, 0.693_003_83, 0.241_442_75, 0.052_011_466, 0.013_534_166];
    // What is above the whole number below.
    let rest = _mm512_reduce_ps::<0x01>(x);
    let mut sum = _mm512_set1_ps(COEFFICIENTS[4]);
    for coefficient in COEFFICIENTS[..4].iter().rev() {
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(*coefficient));
    }
    // Times two to the whole number.
    _mm512_scalef_ps(sum, x)
}

/// Adds the first `pairs` pairs of values, weighed by the probabilities, to four rows of output.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn mix(first: usize, pairs: usize, scratch: &mut Scratch) {
    let a = scratch.probabilities[first..first + ROWS].as_ptr().cast::<i32>();
    assert!(pairs <= KEYS / 2, "the tile's keys");
    for half in 0..HEAD_DIM / KEYS {
        let b = scratch.values[half * KEYS * KEYS..].as_ptr();
        let c = scratch.output[first..first + ROWS].as_mut_ptr().cast::<f32>().wrapping_add(half * KEYS);
        let mut sums = [[_mm512_setzero_ps(); LINES]; ROWS];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a vector of the half row.
                *sum = unsafe { _mm512_loadu_ps(c.add(r * HEAD_DIM + n * LANES)) };
            }
        }
        for pair in 0..pairs {
            let mut lines = [_mm512_setzero_si512(); LINES];
            for (n, line) in lines.iter_mut().enumerate() {
                // SAFETY: a pair of rows of half the values is 64 columns of two elements.
                *line = unsafe { _mm512_loadu_si512(b.add((pair * KEYS + n * LANES) * 2).cast()) };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: two elements of a row of probabilities.
                let both = bits(_mm512_set1_epi32(unsafe { *a.add(r * KEYS / 2 + pair) }));
                for (sum, line) in sums.iter_mut().zip(lines) {
                    *sum = _mm512_dpbf16_ps(*sum, both, bits(line));
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                // SAFETY: a vector of the half row.
                unsafe { _mm512_storeu_ps(c.add(r * HEAD_DIM + n * LANES), *sum) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Features;

    #[test]
    fn powers_of_two_are_accurate_and_vanish_far_below() {
        let missing = Features::of(FEATURES).missing_from(Features::detect());
        if !missing.is_empty() {
            println!("skipped: this processor has no {missing}");
            return;
        }
        let power = |x: f32| {
            // SAFETY: the features were checked.
            unsafe { _mm512_cvtss_f32(exp2(_mm512_set1_ps(x))) }
        };
        for step in 0..120_000 {
            let x = -(step as f32) / 1000.0;
            let want = f64::from(x).exp2();
            assert!((f64::from(power(x)) / want - 1.0).abs() < 3e-6, "2^{x}");
        }
        assert_eq!((power(LOWEST), power(-200.0)), (0.0, 0.0));
    }
}
