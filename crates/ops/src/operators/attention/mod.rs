//! Attention in one call: softmax(scale * q kᵀ) v over the positions that each row sees, without a matrix of scores.
//! Not here: any arithmetic but the reference's.
//!
//! Ladder: reference → tiled (prefill: nine rows and more) and decode (fewer) → trimmed (prefill without the work beyond the
//! diagonal). In two calls, with positions in parts: `attention_parts` (kernels in `split.rs`) and `attention_join`. Tiled is in
//! `tiled.rs` (the algorithm), `f32_tiles.rs`, `bf16_tiles.rs` and `amx_tiles.rs` (its arithmetic), decode in `decode.rs` and
//! `bf16_decode.rs`. The readable form is three other operators: `attention_scores`, `softmax`, `attention_mix`.

#[cfg(target_arch = "x86_64")]
mod amx_tiles;
#[cfg(target_arch = "x86_64")]
mod bf16_decode;
#[cfg(target_arch = "x86_64")]
mod bf16_tiles;
mod decode;
mod f32_tiles;
pub(super) mod split;
mod tiled;
#[cfg(target_arch = "x86_64")]
mod trimmed;

use crate::operator::{CacheUse, CallShape, Cost, Group, Kernel, Operator};
use crate::program::{Attributes, Keys};
use crate::testing::{Case, Draw, bf16, out};
use crate::{DType, Invocation, kernel};

use super::attention_scores::AttentionCase;
use super::sequences::{check_heads, check_step_keys, kv_bytes, kv_inputs, sequence_of, visible_pairs};
use super::shapes::expect;

/// Input q `(rows, heads * head_dim)` and, with [`Keys::Step`], k and v `(rows, kv_heads * head_dim)`; output as q.
/// Attributes: `heads`, `kv_heads`, `head_dim`, `scale`, `keys`.
pub struct Attention;
pub static ATTENTION: Attention = Attention;

impl Operator for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn group(&self) -> Group {
        Group::Attention
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1 + kv_inputs(shape, 2), 0, 1)?;
        check_heads(shape)?;
        let Attributes { heads, head_dim, .. } = shape.attributes;
        let (q, output) = (&shape.inputs[0], &shape.outputs[0]);
        if q.width != heads * head_dim || (output.rows, output.width) != (q.rows, q.width) {
            let found = ((q.rows, q.width), (output.rows, output.width));
            return Err(format!("queries and output are {found:?}, expected both {heads} heads of {head_dim} wide"));
        }
        check_step_keys(shape, 1, q.rows)
    }

    /// Four flops per element of a head (score and mix) and four (softmax) for each (row, visible position, head); queries
    /// once, each key and value position once per key/value head, the output once.
    fn cost(&self, shape: &CallShape) -> Cost {
        let pairs = visible_pairs(&shape.sequences) * shape.attributes.heads as u64;
        Cost {
            bytes_read: shape.inputs[0].bytes() + 2 * kv_bytes(shape),
            bytes_written: shape.outputs[0].bytes(),
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
        let tiled = |kv_heads, group, keys, sequences: &[(usize, usize)]| {
            let sequences = sequences.to_vec();
            case(AttentionCase { kv_heads, group, head_dim: tiled::HEAD_DIM, keys, sequences })
        };
        let mut cases = Vec::new();
        for (rows, context, group) in
            [(9, 9, 1), (15, 16, 2), (16, 31, 4), (31, 32, 1), (32, 33, 2), (33, 47, 4), (33, 47, 7)]
        {
            cases.push(tiled(1 + rows % 2, group, Keys::Cache, &[(rows, context - rows)]));
        }
        cases.push(tiled(2, 2, Keys::Cache, &[(130, 0)]));
        cases.push(tiled(1, 3, Keys::Cache, &[(65, 190)]));
        // A few rows after a long prompt: the running softmax passes 33 tiles of keys.
        cases.push(tiled(1, 2, Keys::Cache, &[(9, 2091)]));
        cases.push(tiled(1, 80, Keys::Cache, &[(9, 3)]));
        // As many query heads per key/value head as Qwen3-14B and 32B, and Qwen2.5-0.5B, have.
        cases.push(tiled(1, 5, Keys::Cache, &[(2, 130)]));
        cases.push(tiled(2, 8, Keys::Cache, &[(1, 700)]));
        cases.push(tiled(1, 7, Keys::Cache, &[(3, 40)]));
        cases.push(tiled(2, 2, Keys::Step, &[(70, 0)]));
        cases.push(tiled(1, 2, Keys::Step, &[(5, 0), (1, 0), (12, 0)]));
        cases.push(tiled(2, 2, Keys::Cache, &[(1, 40), (5, 0), (1, 200), (66, 17)]));
        cases.extend(super::attention_scores::attention_cases().into_iter().map(case));
        cases
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        case(AttentionCase::random(draw))
    }
}

fn case(shape: AttentionCase) -> Case {
    let Attributes { heads, head_dim, .. } = shape.attributes();
    let rows = shape.rows();
    let mut inputs = vec![bf16(rows, heads * head_dim)];
    inputs.extend(shape.kv_buffer());
    inputs.extend(shape.kv_buffer());
    let mut case = Case::new(format!("{shape:?}"), inputs, vec![out(rows, heads * head_dim, DType::BF16)]);
    (case.attributes, case.sequences, case.cache) = (shape.attributes(), shape.shapes(), shape.cache());
    case
}

fn reference(i: &Invocation<'_>) {
    let (q, y) = (i.input(0), i.output(0));
    let Attributes { heads, kv_heads, head_dim, scale, .. } = *i.attributes();
    for part in i.share(q.rows * heads) {
        let (row, head) = (part / heads, part % heads);
        let (sequence, visible) = sequence_of(i.step, row);
        let (keys, values) = (i.kv(sequence, false), i.kv(sequence, true));
        let kv_head = head / (heads / kv_heads);
        let score = |position: usize| {
            let dot = |d| f64::from(q.get(row, head * head_dim + d)) * f64::from(keys.get(kv_head, position, d));
            (0..head_dim).map(dot).sum::<f64>() * f64::from(scale)
        };
        // Two passes of scores instead of a buffer for them.
        let largest = (0..visible).map(score).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..visible).map(|position| (score(position) - largest).exp()).sum();
        // Output elements in blocks that fit plain local sums.
        for first in (0..head_dim).step_by(256) {
            let mut mixed = [0.0f64; 256];
            let block = &mut mixed[..256.min(head_dim - first)];
            for position in 0..visible {
                let probability = (score(position) - largest).exp() / sum;
                for (d, mixed) in block.iter_mut().enumerate() {
                    *mixed += probability * f64::from(values.get(kv_head, position, first + d));
                }
            }
            for (d, mixed) in block.iter().enumerate() {
                y.set(row, head * head_dim + first + d, *mixed as f32);
            }
        }
    }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "attention", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// The list.
pub static CPU: &[&Kernel] = &[
    &REFERENCE,
    #[cfg(target_arch = "x86_64")]
    &amx_tiles::EMULATED,
    // Before `tiled`, so that rungs that name no kernel keep theirs.
    &f32_tiles::TRIMMED_PORTABLE,
    &f32_tiles::TRIMMED_NARROW,
    &f32_tiles::TRIMMED_WIDE,
    #[cfg(target_arch = "x86_64")]
    &trimmed::VECTOR,
    &decode::PORTABLE,
    &decode::NARROW,
    &decode::WIDE,
    #[cfg(target_arch = "x86_64")]
    &bf16_decode::VECTOR,
    &f32_tiles::PORTABLE,
    &f32_tiles::NARROW,
    &f32_tiles::WIDE,
    #[cfg(target_arch = "x86_64")]
    &bf16_tiles::VECTOR,
    #[cfg(target_arch = "x86_64")]
    &amx_tiles::TILES,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::ViewShape;
    use crate::step::SequenceShape;

    fn shape(rows: usize, head_dim: usize, input: DType, output: DType) -> CallShape {
        let view = |dtype| ViewShape { rows, width: 2 * head_dim, dtype };
        let attributes = Attributes { heads: 2, kv_heads: 1, head_dim, scale: 0.1, ..Attributes::default() };
        CallShape {
            inputs: vec![view(input)],
            outputs: vec![view(output)],
            weights: Vec::new(),
            attributes,
            cache_dtype: DType::BF16,
            sequences: vec![SequenceShape { rows, offset: 0 }],
        }
    }

    #[test]
    fn tiled_versions_refuse_few_rows_f32_and_other_head_sizes() {
        for kernel in CPU.iter().filter(|kernel| ["tiled", "trimmed"].contains(&kernel.name)) {
            let takes = |shape: CallShape| (kernel.supports)(&shape);
            let label = kernel.label();
            assert_eq!(takes(shape(9, 128, DType::BF16, DType::BF16)), Ok(()), "{label}");
            let few = takes(shape(8, 128, DType::BF16, DType::BF16));
            assert_eq!(few, Err("needs at least 9 rows, there are 8".to_owned()), "{label}");
            let narrow = takes(shape(9, 64, DType::BF16, DType::BF16));
            assert_eq!(narrow, Err("needs heads of 128, these have 64".to_owned()), "{label}");
            assert!(takes(shape(9, 128, DType::F32, DType::BF16)).is_err(), "{label}: f32 queries");
            assert!(takes(shape(9, 128, DType::BF16, DType::F32)).is_err(), "{label}: f32 output");
            let cached = CallShape { cache_dtype: DType::F32, ..shape(9, 128, DType::BF16, DType::BF16) };
            assert!(takes(cached).is_err(), "{label}: f32 cache");
        }
    }

    #[test]
    fn decode_versions_refuse_many_rows_f32_and_other_head_sizes() {
        for kernel in CPU.iter().filter(|kernel| kernel.name == "decode") {
            let takes = |shape: CallShape| (kernel.supports)(&shape);
            let label = kernel.label();
            for head_dim in [64, 128] {
                assert_eq!(takes(shape(8, head_dim, DType::BF16, DType::BF16)), Ok(()), "{label}");
            }
            let many = takes(shape(9, 128, DType::BF16, DType::BF16));
            assert_eq!(many, Err("takes at most 8 rows, there are 9".to_owned()), "{label}");
            let odd = takes(shape(1, 96, DType::BF16, DType::BF16));
            assert_eq!(odd, Err("needs heads of 64 or 128, these have 96".to_owned()), "{label}");
            assert!(takes(shape(1, 128, DType::F32, DType::BF16)).is_err(), "{label}: f32 queries");
            assert!(takes(shape(1, 128, DType::BF16, DType::F32)).is_err(), "{label}: f32 output");
            let cached = CallShape { cache_dtype: DType::F32, ..shape(1, 128, DType::BF16, DType::BF16) };
            assert!(takes(cached).is_err(), "{label}: f32 cache");
        }
    }
}
