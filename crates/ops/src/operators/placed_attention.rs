//! Attention of a single new row from its raw projections, in one call: queries and keys are normalised (in models that do) and turned
//! by their position, key and value appended to the cache, and the queries attend to all of it. Queries and the new key are rounded
//! to bfloat16 as in two calls. Not here: the two calls (`norm_rope_append`, `attention`), and kernels of the CPU: a device's ladder
//! alone has this.
//!
//! Ladder: reference → a device's.

use crate::operator::{CacheUse, CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::step::SequenceShape;
use crate::testing::{Case, CaseCache, Draw, bf16, f32, out, weight};
use crate::{DType, Invocation, WeightFormat, bf16_to_f32, f32_to_bf16, kernel};

use super::norm_rope_append::NORM_ROPE_APPEND;
use super::rotate_half::columns;
use super::sequences::{kv_bytes, sequence_of, visible_pairs};

/// Operands and attributes of `norm_rope_append`, and `scale`; the output is the attention's, `(1, heads * head_dim)`.
pub struct PlacedAttention;
pub static PLACED_ATTENTION: PlacedAttention = PlacedAttention;

impl Operator for PlacedAttention {
    fn name(&self) -> &'static str {
        "placed_attention"
    }

    fn group(&self) -> Group {
        Group::Attention
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        NORM_ROPE_APPEND.check(shape)?;
        match shape.outputs[0].rows {
            1 => Ok(()),
            rows => Err(format!("expected a single row, found {rows}: later rows would need earlier ones' keys")),
        }
    }

    /// Those of its two parts, but for the queries between them.
    fn cost(&self, shape: &CallShape) -> Cost {
        let Attributes { heads, head_dim, .. } = shape.attributes;
        let mut cost = NORM_ROPE_APPEND.cost(shape);
        let pairs = visible_pairs(&shape.sequences) * heads as u64;
        cost.bytes_read += 2 * kv_bytes(shape);
        cost.flops += pairs * (4 * head_dim as u64 + 3);
        cost
    }

    fn touches_cache(&self, _: &Attributes) -> CacheUse {
        CacheUse::Write
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (heads, offset) in [
            ((8, 2, 128), 191),
            ((8, 4, 128), 63),
            ((2, 1, 64), 0),
            ((3, 3, 64), 700),
            ((8, 2, 128), 2047),
            ((2, 4, 128), 2650),
        ] {
            for normed in [true, false] {
                cases.push(case(heads, normed, false, offset));
            }
        }
        cases.push(case((2, 2, 64), true, true, 65));
        // Every number of query heads that kernels are made for has its own arithmetic beyond four.
        cases.push(case((2, 8, 128), true, false, 300));
        cases.push(case((1, 7, 64), true, false, 900));
        cases.push(case((2, 5, 128), true, false, 40));
        cases
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let head_dim = draw.pick(&[64, 128]);
        let offset = draw.sequences(true)[0].offset;
        case((draw.count(3), draw.count(4), head_dim), draw.flip(), draw.flip(), offset)
    }
}

fn case((kv_heads, group, head_dim): (usize, usize, usize), normed: bool, interleaved: bool, offset: usize) -> Case {
    let (heads, kv) = (kv_heads * group, bf16(1, kv_heads * head_dim));
    let label = format!("{kv_heads}x{group}x{head_dim} normed {normed} interleaved {interleaved} after {offset}");
    let inputs = vec![bf16(1, heads * head_dim), kv, kv, f32(1, head_dim)];
    let mut case = Case::new(label, inputs, vec![out(1, heads * head_dim, DType::BF16)]);
    let scale = 1.0 / (head_dim as f32).sqrt();
    case.attributes =
        Attributes { heads, kv_heads, head_dim, epsilon: 1e-6, interleaved, scale, ..Attributes::default() };
    if normed {
        case.weights = vec![weight(1, head_dim, WeightFormat::F32); 2];
    }
    case.sequences = vec![SequenceShape { rows: 1, offset }];
    case.cache = Some(CaseCache { kv_heads, head_dim, dtype: DType::BF16, spare: 3, grows: false });
    case
}

/// Head `head` of an input, normalised and turned, rounded as the cache is.
pub fn placed(i: &Invocation<'_>, input: usize, head: usize) -> Vec<f32> {
    let Attributes { head_dim, epsilon, interleaved, .. } = *i.attributes();
    let (x, table) = (i.input(input), i.input(3));
    let value = |d: usize| f64::from(x.get(0, head * head_dim + d));
    let square = (0..head_dim).map(|d| value(d).powi(2)).sum::<f64>() / head_dim as f64;
    let scale = 1.0 / (square + f64::from(epsilon)).sqrt();
    let normed =
        |d: usize| if i.weights() == 0 { value(d) } else { value(d) * scale * f64::from(i.weight(input).as_f32()[d]) };
    let round = |value: f64| match i.cache_dtype() {
        DType::F32 => value as f32,
        DType::BF16 => bf16_to_f32(f32_to_bf16(value as f32)),
    };
    let mut turned = vec![0.0; head_dim];
    for pair in 0..head_dim / 2 {
        let (a, b) = columns(pair, head_dim, interleaved);
        let (cos, sin) = (f64::from(table.get(0, pair)), f64::from(table.get(0, head_dim / 2 + pair)));
        turned[a] = round(normed(a) * cos - normed(b) * sin);
        turned[b] = round(normed(b) * cos + normed(a) * sin);
    }
    turned
}

fn reference(i: &Invocation<'_>) {
    let Attributes { heads, kv_heads, head_dim, scale, .. } = *i.attributes();
    let (sequence, visible) = sequence_of(i.step, 0);
    let y = i.output(0);
    for kv_head in i.share(kv_heads) {
        for (d, key) in placed(i, 1, kv_head).into_iter().enumerate() {
            i.cache_mut(sequence, false).set(kv_head, visible - 1, d, key);
            i.cache_mut(sequence, true).set(kv_head, visible - 1, d, i.input(2).get(0, kv_head * head_dim + d));
        }
        let (keys, values) = (i.kv(sequence, false), i.kv(sequence, true));
        for head in kv_head * (heads / kv_heads)..(kv_head + 1) * (heads / kv_heads) {
            let query = placed(i, 0, head);
            let score = |position| {
                let dot = |d: usize| f64::from(query[d]) * f64::from(keys.get(kv_head, position, d));
                (0..head_dim).map(dot).sum::<f64>() * f64::from(scale)
            };
            let scores: Vec<f64> = (0..visible).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            for d in 0..head_dim {
                let part = |position: usize| {
                    (scores[position] - largest).exp() / sum * f64::from(values.get(kv_head, position, d))
                };
                y.set(0, head * head_dim + d, (0..visible).map(part).sum::<f64>() as f32);
            }
        }
    }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "placed_attention", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE];
