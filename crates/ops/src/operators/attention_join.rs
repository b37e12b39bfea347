//! Attention over parts of what each row sees, second of two calls: `y = Σ 2^(m[p] - m) sums[p] / Σ 2^(m[p] - m) total[p]` over the
//! parts p that have positions, with m the largest m[p]; in the order of the parts, whoever computes it. Not here: the first call
//! (`attention_parts`).
//!
//! Ladder: reference → heads.

#![allow(unsafe_code, reason = "exclusive parts of the output")]

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::step::SequenceShape;
use crate::testing::{Case, CaseBuffer, Draw, Fill, f32, out};
use crate::{DType, Invocation, f32_to_bf16, kernel};

use super::attention_parts::{check_state, part_of, seen_parts, state_bytes};
use super::isa::{AVX2, AVX512, for_isa};
use super::maths::{exp2, multiply_add};
use super::sequences::sequence_of;
use super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON, expect, flat_mut};

/// Inputs: the outputs of `attention_parts`, f32 `(rows * heads * parts, head_dim)` and `(rows * heads * parts, 2)`; output
/// `(rows, heads * head_dim)`. Attributes: `heads`, `head_dim`.
pub struct AttentionJoin;
pub static ATTENTION_JOIN: AttentionJoin = AttentionJoin;

impl Operator for AttentionJoin {
    fn name(&self) -> &'static str {
        "attention_join"
    }

    fn group(&self) -> Group {
        Group::Attention
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 2, 0, 1)?;
        let Attributes { heads, head_dim, .. } = shape.attributes;
        let y = &shape.outputs[0];
        if y.width == 0 || y.width != heads * head_dim {
            return Err(format!("the output is {} wide, expected {heads} heads of {head_dim}", y.width));
        }
        check_state(shape, y.rows, &shape.inputs)
    }

    /// For each part with positions: its state read once, three flops for its weight and total, two per element; one flop per
    /// element of the output, which is written once, and one for each head's factor.
    fn cost(&self, shape: &CallShape) -> Cost {
        let Attributes { heads, head_dim, .. } = shape.attributes;
        let y = &shape.outputs[0];
        let parts = seen_parts(&shape.sequences, shape.inputs[0].rows / (y.rows * heads));
        let per_head = parts * (2 * head_dim as u64 + 3) + (y.rows * (head_dim + 1)) as u64;
        Cost {
            bytes_read: state_bytes(shape, y.rows, &shape.inputs[0]),
            bytes_written: y.bytes(),
            flops: heads as u64 * per_head,
        }
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            case((16, 128), 8, &[(1, 2047)]),
            case((16, 128), 8, &[(1, 127)]),
            case((2, 64), 8, &[(1, 0)]),
            case((3, 5), 3, &[(2, 62), (1, 0), (3, 1000)]),
            case((7, 64), 2, &[(8, 60)]),
            case((4, 128), 1, &[(1, 300), (1, 5)]),
            case((5, 256), 9, &[(1, 511), (4, 512)]),
            case((2, 128), 5, &[(12, 190)]),
        ]
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let sequences: Vec<_> = draw.sequences(true).iter().map(|s| (s.rows, s.offset)).collect();
        case((draw.count(7), draw.head_dim()), draw.count(9), &sequences)
    }
}

fn case((heads, head_dim): (usize, usize), parts: usize, sequences: &[(usize, usize)]) -> Case {
    let rows: usize = sequences.iter().map(|(rows, _)| rows).sum();
    let state = rows * heads * parts;
    // Totals are positive, and largest scores far enough apart to matter.
    let peaks = CaseBuffer { rows: state, width: 2, dtype: DType::F32, fill: Fill::Uniform(0.5, 8.0) };
    let label = format!("{heads}x{head_dim} in {parts}, {sequences:?}");
    let outputs = vec![out(rows, heads * head_dim, DType::BF16)];
    let mut case = Case::new(label, vec![f32(state, head_dim), peaks], outputs);
    case.attributes = Attributes { heads, kv_heads: heads, head_dim, ..Attributes::default() };
    case.sequences = sequences.iter().map(|&(rows, offset)| SequenceShape { rows, offset }).collect();
    case
}

fn reference(i: &Invocation<'_>) {
    let (sums, peaks, y) = (i.input(0), i.input(1), i.output(0));
    let Attributes { heads, head_dim, .. } = *i.attributes();
    let parts = sums.rows / (y.rows * heads);
    for at in i.share(y.rows * heads) {
        let (row, head) = (at / heads, at % heads);
        let (_, visible) = sequence_of(i.step, row);
        let seen = |part: &usize| !part_of(visible, *part, parts).is_empty();
        let seen: Vec<usize> = (0..parts).filter(seen).map(|part| at * parts + part).collect();
        let largest = seen.iter().map(|part| f64::from(peaks.get(*part, 0))).fold(f64::NEG_INFINITY, f64::max);
        let weight = |part: usize| (f64::from(peaks.get(part, 0)) - largest).exp2();
        let total: f64 = seen.iter().map(|part| weight(*part) * f64::from(peaks.get(*part, 1))).sum();
        for d in 0..head_dim {
            let sum: f64 = seen.iter().map(|part| weight(*part) * f64::from(sums.get(*part, d))).sum();
            y.set(row, head * head_dim + d, (sum / total) as f32);
        }
    }
}

/// Elements of the longest head that is summed.
const LONGEST: usize = 256;

fn supported(shape: &CallShape) -> Result<(), String> {
    if shape.outputs[0].dtype != DType::BF16 {
        return Err("needs a bfloat16 output".to_owned());
    }
    match shape.attributes.head_dim {
        0..=LONGEST => Ok(()),
        dim => Err(format!("takes heads of at most {LONGEST}, these have {dim}")),
    }
}

/// Whole heads are shared out. Floor: the state from the second- or third-level cache, where the call before left it. What it costs is
/// in the record of `split-attention` (`ladder/beside.rs`).
#[inline(always)]
fn join<const FMA: bool>(i: &Invocation<'_>) {
    let (sums, peaks, y) = (i.input(0), i.input(1), i.output(0));
    let Attributes { heads, head_dim, .. } = *i.attributes();
    let parts = sums.rows / (y.rows * heads);
    for at in i.share(y.rows * heads) {
        let (_, visible) = sequence_of(i.step, at / heads);
        let mut largest = f32::NEG_INFINITY;
        for part in 0..parts {
            if !part_of(visible, part, parts).is_empty() {
                largest = largest.max(peaks.f32(at * parts + part)[0]);
            }
        }
        let mut joined = [0.0f32; LONGEST];
        let joined = &mut joined[..head_dim];
        let mut total = 0.0;
        for part in 0..parts {
            if part_of(visible, part, parts).is_empty() {
                continue;
            }
            let (sums, peak) = (sums.f32(at * parts + part), peaks.f32(at * parts + part));
            let weight = exp2::<FMA>(peak[0] - largest);
            total = multiply_add::<FMA>(weight, peak[1], total);
            for (joined, sum) in joined.iter_mut().zip(sums) {
                *joined = multiply_add::<FMA>(weight, *sum, *joined);
            }
        }
        // Some part has the largest score, whose exponential is 1, so the total is at least that.
        let factor = 1.0 / total;
        // SAFETY: (row, head) pairs are shared out among the workers.
        let y = unsafe { flat_mut(&y, at * head_dim..(at + 1) * head_dim) };
        for (y, joined) in y.iter_mut().zip(joined) {
            *y = f32_to_bf16(*joined * factor);
        }
    }
}

for_isa!(avx2, join_avx2, join::<true>);
for_isa!(avx512, join_avx512, join::<true>);

pub static REFERENCE: Kernel = kernel! {
    operator: "attention_join", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

pub static PORTABLE: Kernel = kernel! {
    operator: "attention_join", name: "heads", isa: "portable", features: &[], supports: supported,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: join::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "attention_join", name: "heads", isa: "avx2", features: AVX2, supports: supported,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: join_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "attention_join", name: "heads", isa: "avx512", features: AVX512, supports: supported,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: join_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
