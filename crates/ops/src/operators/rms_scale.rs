//! Readable RMS normalisation, first half: `y = x / sqrt(mean(x²) + epsilon)` per segment, rounded to the buffer's type.
//! Not here: the weight, which is `mul_weight`'s.
//!
//! Ladder: reference → rows; fused with `mul_weight` into `rms_norm` from that rung on.

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, CaseBuffer, Draw, Fill, bf16, out};
use crate::{DType, Invocation, bf16_to_f32, f32_to_bf16, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::maths::{multiply_add, total};
use super::shapes::{
    ONE_ROUNDING, ONE_ROUNDING_REASON, all_bf16, elementwise_cost, expect, same_shape, segmented, segments,
};

/// Input x `(rows, segments * head_dim)`; output y of the same shape. Attributes: `epsilon`, `head_dim`.
pub struct RmsScale;
pub static RMS_SCALE: RmsScale = RmsScale;

impl Operator for RmsScale {
    fn name(&self) -> &'static str {
        "rms_scale"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1, 0, 1)?;
        same_shape(shape, &[0])?;
        segmented(shape)
    }

    /// Three flops per element (square, sum, product) and three per segment (mean, epsilon, inverse root).
    fn cost(&self, shape: &CallShape) -> Cost {
        let segments = shape.outputs[0].rows * shape.outputs[0].width / shape.attributes.head_dim;
        let mut cost = elementwise_cost(shape, 3);
        cost.flops += 3 * segments as u64;
        cost
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        norm_cases().into_iter().map(|(rows, segments, dim, fill)| case(rows, segments, dim, fill)).collect()
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let (rows, segments, dim) = (draw.rows(), draw.count(4), draw.width());
        case(rows, segments, dim, draw.fill())
    }
}

/// (rows, segments, segment length, values) on which normalisations are tested.
pub(crate) fn norm_cases() -> Vec<(usize, usize, usize, Fill)> {
    let normal = Fill::Normal(1.0);
    vec![
        (100, 1, 111, normal),
        (1, 16, 64, normal),
        (5, 3, 128, normal),
        (3, 1, 576, normal),
        (1, 1, 1024, normal),
        (2, 1, 2560, Fill::Outliers),
        (2, 1, 4096, Fill::Uniform(-1000.0, 1000.0)),
        (3, 1, 5000, normal),
        (2, 3, 16, Fill::Normal(1e-3)),
    ]
}

fn case(rows: usize, segments: usize, dim: usize, fill: Fill) -> Case {
    let width = segments * dim;
    let input = CaseBuffer { fill, ..bf16(rows, width) };
    let attributes = Attributes { head_dim: dim, epsilon: 1e-6, ..Attributes::default() };
    let label = format!("{rows}x{segments}x{dim} {fill:?}");
    Case { attributes, ..Case::new(label, vec![input], vec![out(rows, width, DType::BF16)]) }
}

fn reference(i: &Invocation<'_>) {
    let (x, y) = (i.input(0), i.output(0));
    let (dim, epsilon) = (i.attributes().head_dim, f64::from(i.attributes().epsilon));
    let segments = y.width / dim;
    for segment in i.share(y.rows * segments) {
        let (row, first) = (segment / segments, segment % segments * dim);
        let square: f64 = (first..first + dim).map(|col| f64::from(x.get(row, col)).powi(2)).sum();
        let scale = 1.0 / (square / dim as f64 + epsilon).sqrt();
        for col in first..first + dim {
            y.set(row, col, (f64::from(x.get(row, col)) * scale) as f32);
        }
    }
}

/// 1 / sqrt(mean(x²) + epsilon), summed in 32 parts.
#[inline(always)]
pub(crate) fn inverse_rms<const FMA: bool>(x: &[u16], epsilon: f32) -> f32 {
    let mut sums = [0.0f32; 32];
    let (blocks, rest) = x.as_chunks::<32>();
    for block in blocks {
        for lane in 0..32 {
            let x = bf16_to_f32(block[lane]);
            sums[lane] = multiply_add::<FMA>(x, x, sums[lane]);
        }
    }
    let rest: f32 = rest.iter().map(|x| bf16_to_f32(*x) * bf16_to_f32(*x)).sum();
    1.0 / ((total(&sums) + rest) / x.len() as f32 + epsilon).sqrt()
}

#[inline(always)]
fn rows<const FMA: bool>(i: &Invocation<'_>) {
    let epsilon = i.attributes().epsilon;
    for (_, x, y) in segments(i) {
        let scale = inverse_rms::<FMA>(x, epsilon);
        for (y, x) in y.iter_mut().zip(x) {
            *y = f32_to_bf16(bf16_to_f32(*x) * scale);
        }
    }
}

for_isa!(avx2, rows_avx2, rows::<true>);
for_isa!(avx512, rows_avx512, rows::<true>);

pub static REFERENCE: Kernel = kernel! {
    operator: "rms_scale", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// f32 statistics in one pass over a segment, the product in a second.
pub static PORTABLE: Kernel = kernel! {
    operator: "rms_scale", name: "rows", isa: "portable", features: &[], supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "rms_scale", name: "rows", isa: "avx2", features: AVX2, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "rms_scale", name: "rows", isa: "avx512", features: AVX512, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
