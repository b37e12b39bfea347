//! A residual addition and the norm that follows it, in one call: `s = a + b`, `y = s / sqrt(mean(s²) + epsilon) * w`, over
//! whole rows. The sum is rounded before it is normalised, as two calls would do it, so both results are theirs bit for bit.
//! Not here: the two calls (`add`, `rms_norm`).
//!
//! Ladder: reference → rows. The sum is kept widened in scratch, which the first-level cache holds, until it is normalised.

#![allow(unsafe_code, reason = "exclusive rows of both outputs, scratch as floats")]

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, Draw, bf16, out, weight};
use crate::{DType, Invocation, WeightFormat, bf16_to_f32, f32_to_bf16, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::maths::{multiply_add, total};
use super::shapes::{ONE_ROUNDING, all_bf16, elementwise_cost, expect, same_shape, vector_weight};

/// Inputs a, b `(rows, width)`; weight w f32 `(1, width)`; outputs s and y `(rows, width)`. Attributes: `epsilon`, and
/// `head_dim`, which is the width.
pub struct AddRmsNorm;
pub static ADD_RMS_NORM: AddRmsNorm = AddRmsNorm;

impl Operator for AddRmsNorm {
    fn name(&self) -> &'static str {
        "add_rms_norm"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 2, 1, 2)?;
        same_shape(shape, &[0, 1])?;
        vector_weight(shape)?;
        let [sum, normed] = [0, 1].map(|index| (shape.outputs[index].rows, shape.outputs[index].width));
        if sum != normed || sum.1 != shape.attributes.head_dim {
            let dim = shape.attributes.head_dim;
            return Err(format!("outputs are {sum:?} and {normed:?}, expected the same rows of {dim}"));
        }
        Ok(())
    }

    /// Five flops per element (sum; square, sum of squares, two products) and three per row.
    fn cost(&self, shape: &CallShape) -> Cost {
        let mut cost = elementwise_cost(shape, 5);
        cost.flops += 3 * shape.outputs[0].rows as u64;
        cost
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        [(1, 1024), (3, 33), (7, 576), (130, 64), (2, 1), (5, 4097)]
            .into_iter()
            .map(|(rows, width)| case(rows, width))
            .collect()
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        case(draw.rows(), draw.width())
    }
}

fn case(rows: usize, width: usize) -> Case {
    let outputs = vec![out(rows, width, DType::BF16); 2];
    let mut case = Case::new(format!("{rows}x{width}"), vec![bf16(rows, width); 2], outputs);
    case.attributes = Attributes { head_dim: width, epsilon: 1e-6, ..Attributes::default() };
    case.weights = vec![weight(1, width, WeightFormat::F32)];
    case
}

fn reference(i: &Invocation<'_>) {
    let (a, b, w, sum, y) = (i.input(0), i.input(1), i.weight(0), i.output(0), i.output(1));
    let epsilon = f64::from(i.attributes().epsilon);
    for row in i.share(sum.rows) {
        let value = |col| f64::from(a.get(row, col)) + f64::from(b.get(row, col));
        let square: f64 = (0..sum.width).map(|col| value(col).powi(2)).sum();
        let scale = 1.0 / (square / sum.width as f64 + epsilon).sqrt();
        for col in 0..sum.width {
            sum.set(row, col, value(col) as f32);
            y.set(row, col, (value(col) * scale * f64::from(w.as_f32()[col])) as f32);
        }
    }
}

/// Whole rows per worker.
#[inline(always)]
fn rows<const FMA: bool>(i: &Invocation<'_>) {
    let (a, b, w, sum, y) = (i.input(0), i.input(1), i.weight(0).as_f32(), i.output(0), i.output(1));
    let epsilon = i.attributes().epsilon;
    // SAFETY: the only slice of this worker's scratch.
    let (head_bytes, kept, _) = unsafe { i.scratch().align_to_mut::<f32>() };
    assert!(head_bytes.is_empty(), "scratch is aligned");
    let kept = &mut kept[..sum.width];
    for row in i.share(sum.rows) {
        // SAFETY: rows are shared out, and the outputs are two buffers.
        let (sum, y) = unsafe { (sum.bf16_mut(row), y.bf16_mut(row)) };
        added::<FMA>(a.bf16(row), b.bf16(row), w, epsilon, kept, sum, y);
    }
}

/// One row; all as long as each other.
#[inline(always)]
fn added<const FMA: bool>(
    a: &[u16],
    b: &[u16],
    w: &[f32],
    epsilon: f32,
    kept: &mut [f32],
    sum: &mut [u16],
    y: &mut [u16],
) {
    for (((kept, sum), a), b) in kept.iter_mut().zip(sum).zip(a).zip(b) {
        *sum = f32_to_bf16(bf16_to_f32(*a) + bf16_to_f32(*b));
        *kept = bf16_to_f32(*sum);
    }
    let mut sums = [0.0f32; 32];
    let (blocks, rest) = kept.as_chunks::<32>();
    for block in blocks {
        for lane in 0..32 {
            sums[lane] = multiply_add::<FMA>(block[lane], block[lane], sums[lane]);
        }
    }
    let square = rest.iter().fold(total(&sums), |square, x| square + x * x);
    let scale = 1.0 / (square / kept.len() as f32 + epsilon).sqrt();
    for ((y, x), w) in y.iter_mut().zip(kept.iter()).zip(w) {
        *y = f32_to_bf16(x * scale * w);
    }
}

for_isa!(avx2, rows_avx2, rows::<true>);
for_isa!(avx512, rows_avx512, rows::<true>);

/// A row as f32.
fn scratch(shape: &CallShape) -> usize {
    shape.outputs[0].width * DType::F32.bytes()
}

const NMSE: f64 = 2.0 * ONE_ROUNDING;
const REASON: &str = "two bfloat16 roundings, of the sum and of what is normalised from it";

pub static REFERENCE: Kernel = kernel! {
    operator: "add_rms_norm", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Rows shared among the workers, vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "add_rms_norm", name: "rows", isa: "portable", features: &[], supports: all_bf16, scratch: scratch,
    nmse: NMSE, because: REASON, run: rows::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "add_rms_norm", name: "rows", isa: "avx2", features: AVX2, supports: all_bf16, scratch: scratch,
    nmse: NMSE, because: REASON, run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "add_rms_norm", name: "rows", isa: "avx512", features: AVX512, supports: all_bf16, scratch: scratch,
    nmse: NMSE, because: REASON, run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
