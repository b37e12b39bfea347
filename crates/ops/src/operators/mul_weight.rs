//! Readable RMS normalisation, second half: `y = x * w` per segment, rounded (the second rounding).
//! Not here: the division by the root mean square, which is `rms_scale`'s.
//!
//! Ladder: reference → rows; fused with `rms_scale` into `rms_norm` from that rung on.

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, Draw, bf16, out, weight};
use crate::{DType, Invocation, WeightFormat, bf16_to_f32, f32_to_bf16, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::shapes::{
    ONE_ROUNDING, ONE_ROUNDING_REASON, all_bf16, elementwise_cost, expect, same_shape, segmented, segments,
    vector_weight,
};

/// Input x `(rows, segments * head_dim)`; weight w f32 `(1, head_dim)`; output y as x. Attribute: `head_dim`.
pub struct MulWeight;
pub static MUL_WEIGHT: MulWeight = MulWeight;

impl Operator for MulWeight {
    fn name(&self) -> &'static str {
        "mul_weight"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1, 1, 1)?;
        same_shape(shape, &[0])?;
        segmented(shape)?;
        vector_weight(shape)
    }

    /// One flop per element.
    fn cost(&self, shape: &CallShape) -> Cost {
        elementwise_cost(shape, 1)
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        vec![case(100, 1, 111), case(1, 16, 64), case(5, 3, 128), case(1, 1, 1024), case(3, 1, 5000)]
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        case(draw.rows(), draw.count(4), draw.width())
    }
}

fn case(rows: usize, segments: usize, dim: usize) -> Case {
    let width = segments * dim;
    let label = format!("{rows}x{segments}x{dim}");
    let mut case = Case::new(label, vec![bf16(rows, width)], vec![out(rows, width, DType::BF16)]);
    case.attributes = Attributes { head_dim: dim, ..Attributes::default() };
    case.weights = vec![weight(1, dim, WeightFormat::F32)];
    case
}

fn reference(i: &Invocation<'_>) {
    let (x, w, y) = (i.input(0), i.weight(0), i.output(0));
    for row in i.share(y.rows) {
        for col in 0..y.width {
            let product = f64::from(x.get(row, col)) * f64::from(w.as_f32()[col % w.cols]);
            y.set(row, col, product as f32);
        }
    }
}

#[inline(always)]
fn rows(i: &Invocation<'_>) {
    let w = i.weight(0).as_f32();
    for (_, x, y) in segments(i) {
        for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
            *y = f32_to_bf16(bf16_to_f32(*x) * w);
        }
    }
}

for_isa!(avx2, rows_avx2, rows);
for_isa!(avx512, rows_avx512, rows);

pub static REFERENCE: Kernel = kernel! {
    operator: "mul_weight", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Segments shared among the workers, vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "mul_weight", name: "rows", isa: "portable", features: &[], supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows,
};

pub static NARROW: Kernel = kernel! {
    operator: "mul_weight", name: "rows", isa: "avx2", features: AVX2, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "mul_weight", name: "rows", isa: "avx512", features: AVX512, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
