//! Attention over parts of what each row sees, first of two calls: per part the running softmax's state. With scores in base 2,
//! `s[p] = log2(e) * scale * q · k[p]`, a part's state is its largest score m, the total Σ 2^(s[p] - m) and the sums
//! Σ 2^(s[p] - m) v[p]. Here: the operator, its reference, its list and cases, and how positions are parted. Not here: the kernels
//! (`attention/split.rs`), and the second call (`attention_join`).
//!
//! Ladder: reference → decode. Against `attention` it gives work to more workers than there are heads, for a second call and a
//! barrier before it.

use crate::operator::{CacheUse, CallShape, Cost, Group, Kernel, Operator, ViewShape};
use crate::program::{Attributes, Keys};
use crate::step::SequenceShape;
use crate::testing::{Case, Draw, bf16, out};
use crate::{DType, Invocation, kernel};
use std::ops::Range;

use super::attention::split;
use super::attention_scores::{AttentionCase, attention_cases};
use super::sequences::{check_heads, check_step_keys, kv_bytes, kv_inputs, sequence_of, visible_pairs};
use super::shapes::expect;

/// Input q `(rows, heads * head_dim)` and, with [`Keys::Step`], k and v `(rows, kv_heads * head_dim)`; outputs f32 sums
/// `(rows * heads * parts, head_dim)` and f32 `(rows * heads * parts, 2)`, the largest score and the total. The state of a part
/// without positions is left as it is. Attributes: `heads`, `kv_heads`, `head_dim`, `scale`, `keys`.
pub struct AttentionParts;
pub static ATTENTION_PARTS: AttentionParts = AttentionParts;

impl Operator for AttentionParts {
    fn name(&self) -> &'static str {
        "attention_parts"
    }

    fn group(&self) -> Group {
        Group::Attention
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1 + kv_inputs(shape, 2), 0, 2)?;
        check_heads(shape)?;
        let Attributes { heads, head_dim, .. } = shape.attributes;
        let q = &shape.inputs[0];
        if q.width != heads * head_dim {
            return Err(format!("queries are {} wide, expected {heads} heads of {head_dim}", q.width));
        }
        check_state(shape, q.rows, &shape.outputs)?;
        check_step_keys(shape, 1, q.rows)
    }

    /// Flops as `attention`; queries once, each key and value position once per key/value head, and the state of each part that
    /// has positions once.
    fn cost(&self, shape: &CallShape) -> Cost {
        let pairs = visible_pairs(&shape.sequences) * shape.attributes.heads as u64;
        Cost {
            bytes_read: shape.inputs[0].bytes() + 2 * kv_bytes(shape),
            bytes_written: state_bytes(shape, shape.inputs[0].rows, &shape.outputs[0]),
            flops: pairs * (4 * shape.attributes.head_dim as u64 + 4),
        }
    }

    fn touches_cache(&self, attributes: &Attributes) -> CacheUse {
        if attributes.keys == Keys::Cache { CacheUse::Read } else { CacheUse::None }
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let cached = |kv_heads, group, sequences: &[(usize, usize)]| {
            let sequences = sequences.to_vec();
            AttentionCase { kv_heads, group, head_dim: 128, keys: Keys::Cache, sequences }
        };
        let mut cases: Vec<Case> = attention_cases().into_iter().map(|shape| case(shape, 8)).collect();
        // One position; as many tiles as parts, one position fewer and one more; parts that the tiles do not divide.
        for (offset, parts) in [(0, 8), (511, 8), (510, 8), (512, 8), (2047, 8), (130, 1), (700, 3), (191, 5)] {
            cases.push(case(cached(2, 2, &[(1, offset)]), parts));
        }
        cases.push(case(cached(1, 5, &[(2, 62), (1, 0), (3, 1000)]), 8));
        cases.push(case(cached(2, 8, &[(1, 700)]), 8));
        cases.push(case(cached(1, 7, &[(4, 125), (1, 64)]), 2));
        cases
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        case(AttentionCase::random(draw), draw.count(9))
    }
}

fn case(shape: AttentionCase, parts: usize) -> Case {
    let Attributes { heads, head_dim, .. } = shape.attributes();
    let rows = shape.rows();
    let mut inputs = vec![bf16(rows, heads * head_dim)];
    inputs.extend(shape.kv_buffer());
    inputs.extend(shape.kv_buffer());
    let state = rows * heads * parts;
    let outputs = vec![out(state, head_dim, DType::F32), out(state, 2, DType::F32)];
    let mut case = Case::new(format!("{shape:?} in {parts}"), inputs, outputs);
    (case.attributes, case.sequences, case.cache) = (shape.attributes(), shape.shapes(), shape.cache());
    case
}

/// Positions that parts begin at multiples of.
pub(super) const TILE: usize = 64;

/// Positions of part `part` of `parts` of the `visible` ones: whole tiles, as evenly as they go; none where there are more parts
/// than tiles.
#[inline(always)]
pub fn part_of(visible: usize, part: usize, parts: usize) -> Range<usize> {
    let tiles = visible.div_ceil(TILE);
    tiles * part / parts * TILE..visible.min(tiles * (part + 1) / parts * TILE)
}

/// Parts with positions, of all rows.
pub(super) fn seen_parts(sequences: &[SequenceShape], parts: usize) -> u64 {
    let visible = sequences.iter().flat_map(|sequence| sequence.offset + 1..=sequence.offset + sequence.rows);
    visible.map(|visible| visible.div_ceil(TILE).min(parts) as u64).sum()
}

/// Bytes of the state of all parts that have positions, for a call of so many rows whose sums are `sums`.
pub(super) fn state_bytes(shape: &CallShape, rows: usize, sums: &ViewShape) -> u64 {
    let Attributes { heads, head_dim, .. } = shape.attributes;
    let parts = sums.rows / (rows * heads);
    seen_parts(&shape.sequences, parts) * (heads * (head_dim + 2) * DType::F32.bytes()) as u64
}

/// `state` is the sums and the peaks of `rows` rows in parts.
pub(super) fn check_state(shape: &CallShape, rows: usize, state: &[ViewShape]) -> Result<(), String> {
    let Attributes { heads, head_dim, .. } = shape.attributes;
    let (sums, peaks) = (state[0], state[1]);
    let (each, f32) = (rows * heads, DType::F32);
    let whole = sums.rows > 0 && sums.rows.is_multiple_of(each);
    if !whole || (sums.width, sums.dtype) != (head_dim, f32) || peaks != (ViewShape { width: 2, ..sums }) {
        return Err(format!(
            "sums are {sums:?} and peaks {peaks:?}, expected F32 ({each} x parts, {head_dim}) and ({each} x parts, 2)"
        ));
    }
    Ok(())
}

fn reference(i: &Invocation<'_>) {
    let (q, sums, peaks) = (i.input(0), i.output(0), i.output(1));
    let Attributes { heads, kv_heads, head_dim, scale, .. } = *i.attributes();
    let parts = sums.rows / (q.rows * heads);
    for at in i.share(sums.rows) {
        let (row, head, part) = (at / parts / heads, at / parts % heads, at % parts);
        let (sequence, visible) = sequence_of(i.step, row);
        let (keys, values) = (i.kv(sequence, false), i.kv(sequence, true));
        let kv_head = head / (heads / kv_heads);
        let positions = part_of(visible, part, parts);
        let score = |position: usize| {
            let dot = |d| f64::from(q.get(row, head * head_dim + d)) * f64::from(keys.get(kv_head, position, d));
            (0..head_dim).map(dot).sum::<f64>() * f64::from(scale) * std::f64::consts::LOG2_E
        };
        let scores: Vec<f64> = positions.clone().map(score).collect();
        let Some(largest) = scores.iter().copied().reduce(f64::max) else { continue };
        peaks.set(at, 0, largest as f32);
        peaks.set(at, 1, scores.iter().map(|score| (score - largest).exp2()).sum::<f64>() as f32);
        for d in 0..head_dim {
            let value = |position| f64::from(values.get(kv_head, position, d));
            let seen = positions.clone().zip(&scores);
            let sum: f64 = seen.map(|(position, score)| (score - largest).exp2() * value(position)).sum();
            sums.set(at, d, sum as f32);
        }
    }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "attention_parts", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// The list.
pub static CPU: &[&Kernel] = &[
    &REFERENCE,
    &split::PORTABLE,
    &split::NARROW,
    &split::WIDE,
    #[cfg(target_arch = "x86_64")]
    &split::VECTOR,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_are_even_to_a_tile() {
        for visible in [1, 63, 64, 65, 128, 511, 512, 513, 1000, 2049, 8192] {
            for parts in [1, 2, 3, 8, 9] {
                let all: Vec<_> = (0..parts).map(|part| part_of(visible, part, parts)).collect();
                let seen: Vec<usize> = all.iter().cloned().flatten().collect();
                assert_eq!(seen, (0..visible).collect::<Vec<_>>(), "{visible} in {parts}");
                let tiles = all.iter().map(|part| part.len().div_ceil(TILE));
                let (most, least) = (tiles.clone().max(), tiles.clone().min());
                assert!(most <= least.map(|least| least + 1), "{visible} in {parts}: {most:?} and {least:?} tiles");
                let filled = all.iter().filter(|part| !part.is_empty()).count() as u64;
                assert_eq!(seen_parts(&[SequenceShape { rows: 1, offset: visible - 1 }], parts), filled);
            }
        }
    }
}
