//! Readable attention, second of three calls: each row of scores becomes probabilities, in place, over the positions that it
//! sees. Other positions are neither read nor written. Not here: making scores, or using probabilities.
//!
//! Ladder: reference → rows. Three passes over each row: maximum; exponentials and their sum; division.

#![allow(unsafe_code, reason = "exclusive rows of scores")]

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, CaseBuffer, CaseOutput, Draw, Fill, f32};
use crate::{DType, Invocation, kernel};

use super::attention_scores::{AttentionCase, attention_cases};
use super::isa::{AVX2, AVX512, for_isa};
use super::maths::{exp, total};
use super::sequences::{Unit, sequence_of, units, visible_pairs};
use super::shapes::{expect, same_shape};

/// Input and output: the same scores, f32 `(rows * heads, context)`. Attribute: `heads`.
pub struct Softmax;
pub static SOFTMAX: Softmax = Softmax;

impl Operator for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn group(&self) -> Group {
        Group::Attention
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1, 0, 1)?;
        same_shape(shape, &[0])?;
        let (scores, heads) = (&shape.outputs[0], shape.attributes.heads);
        if scores.dtype != DType::F32 || shape.inputs[0].dtype != DType::F32 {
            return Err(format!("scores are {:?}, expected F32", scores.dtype));
        }
        if heads == 0 || !scores.rows.is_multiple_of(heads) {
            return Err(format!("{} rows of scores do not divide among {heads} heads", scores.rows));
        }
        Ok(())
    }

    fn in_place(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    /// Four flops per visible score (comparison, exponential, sum, division), each read once and written once.
    fn cost(&self, shape: &CallShape) -> Cost {
        let pairs = visible_pairs(&shape.sequences) * shape.attributes.heads as u64;
        let bytes = pairs * DType::F32.bytes() as u64;
        Cost { bytes_read: bytes, bytes_written: bytes, flops: 4 * pairs }
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let fill = |index| if index % 4 == 3 { Fill::Uniform(-300.0, 300.0) } else { Fill::Normal(3.0) };
        attention_cases().into_iter().enumerate().map(|(index, shape)| case(shape, fill(index))).collect()
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        case(AttentionCase::random(draw), Fill::Normal(3.0))
    }
}

fn case(shape: AttentionCase, fill: Fill) -> Case {
    let heads = shape.attributes().heads;
    let input = CaseBuffer { fill, ..f32(shape.rows() * heads, shape.context()) };
    let mut case = Case::new(format!("{shape:?}"), vec![input], vec![CaseOutput::InPlace(0)]);
    case.attributes = Attributes { heads, ..Attributes::default() };
    case.sequences = shape.shapes();
    case
}

fn reference(i: &Invocation<'_>) {
    let (scores, heads) = (i.output(0), i.attributes().heads);
    for row in i.share(scores.rows) {
        let (_, visible) = sequence_of(i.step, row / heads);
        let largest = (0..visible).fold(f32::NEG_INFINITY, |m, p| m.max(scores.get(row, p)));
        let exponential = |p: usize| (f64::from(scores.get(row, p)) - f64::from(largest)).exp();
        let sum: f64 = (0..visible).map(exponential).sum();
        for position in 0..visible {
            scores.set(row, position, (exponential(position) / sum) as f32);
        }
    }
}

#[inline(always)]
fn rows<const FMA: bool>(i: &Invocation<'_>) {
    let (scores, heads) = (i.output(0), i.attributes().heads);
    for Unit { row, head, visible, .. } in units(i, scores.rows / heads, heads, 1) {
        // SAFETY: (row, head) pairs are shared out, so no other worker has this row of scores.
        let scores = unsafe { scores.f32_mut(row * heads + head) };
        softmax::<FMA>(&mut scores[..visible]);
    }
}

#[inline(always)]
fn softmax<const FMA: bool>(scores: &mut [f32]) {
    let mut lanes = [f32::NEG_INFINITY; 32];
    let (blocks, rest) = scores.as_chunks::<32>();
    for block in blocks {
        for lane in 0..32 {
            lanes[lane] = if block[lane] > lanes[lane] { block[lane] } else { lanes[lane] };
        }
    }
    let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |m, score| if *score > m { *score } else { m });
    let mut sums = [0.0f32; 32];
    let (blocks, rest) = scores.as_chunks_mut::<32>();
    for block in blocks {
        for lane in 0..32 {
            block[lane] = exp::<FMA>(block[lane] - largest);
            sums[lane] += block[lane];
        }
    }
    let mut sum = total(&sums);
    for score in rest {
        *score = exp::<FMA>(*score - largest);
        sum += *score;
    }
    let inverse = 1.0 / sum;
    for score in scores {
        *score *= inverse;
    }
}

for_isa!(avx2, rows_avx2, rows::<true>);
for_isa!(avx512, rows_avx512, rows::<true>);

pub static REFERENCE: Kernel = kernel! {
    operator: "softmax", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// (row, head) pairs shared by how much each sees, vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "softmax", name: "rows", isa: "portable", features: &[],
    nmse: 1e-11, because: "exponentials to 3e-7, f32 sums", run: rows::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "softmax", name: "rows", isa: "avx2", features: AVX2,
    nmse: 1e-11, because: "exponentials to 3e-7, f32 sums", run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "softmax", name: "rows", isa: "avx512", features: AVX512,
    nmse: 1e-11, because: "exponentials to 3e-7, f32 sums", run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
