//! RMS normalisation: `y = x / sqrt(mean(x²) + epsilon) * w` per segment, in f32, rounded once.
//! Not here: the readable form in two calls (`rms_scale`, `mul_weight`).
//!
//! Ladder: reference → two-pass (reads a segment twice, any length) → register-cached (reads it once: up to 4,096 elements
//! stay, widened, in registers or the first-level cache between the two passes of arithmetic).

use crate::checkpoint::{REGISTER_CACHED, TWO_PASS};
use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, CaseBuffer, Draw, Fill, bf16, out, weight};
use crate::{DType, Invocation, WeightFormat, bf16_to_f32, f32_to_bf16, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::maths::{multiply_add, total};
use super::rms_scale::{inverse_rms, norm_cases};
use super::shapes::{
    ONE_ROUNDING, ONE_ROUNDING_REASON, all_bf16, elementwise_cost, expect, same_shape, segmented, segments,
    vector_weight,
};

/// Input x `(rows, segments * head_dim)`; weight w f32 `(1, head_dim)`; output y as x. Attributes: `epsilon`, `head_dim`.
pub struct RmsNorm;
pub static RMS_NORM: RmsNorm = RmsNorm;

impl Operator for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
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

    /// Four flops per element (square, sum, two products) and three per segment (mean, epsilon, inverse root).
    fn cost(&self, shape: &CallShape) -> Cost {
        let segments = shape.outputs[0].rows * shape.outputs[0].width / shape.attributes.head_dim;
        let mut cost = elementwise_cost(shape, 4);
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

fn case(rows: usize, segments: usize, dim: usize, fill: Fill) -> Case {
    let width = segments * dim;
    let input = CaseBuffer { fill, ..bf16(rows, width) };
    let label = format!("{rows}x{segments}x{dim} {fill:?}");
    let mut case = Case::new(label, vec![input], vec![out(rows, width, DType::BF16)]);
    case.attributes = Attributes { head_dim: dim, epsilon: 1e-6, ..Attributes::default() };
    case.weights = vec![weight(1, dim, WeightFormat::F32)];
    case
}

fn reference(i: &Invocation<'_>) {
    let (x, w, y) = (i.input(0), i.weight(0), i.output(0));
    let (dim, epsilon) = (i.attributes().head_dim, f64::from(i.attributes().epsilon));
    let segments = y.width / dim;
    for segment in i.share(y.rows * segments) {
        let (row, first) = (segment / segments, segment % segments * dim);
        let square: f64 = (first..first + dim).map(|col| f64::from(x.get(row, col)).powi(2)).sum();
        let scale = 1.0 / (square / dim as f64 + epsilon).sqrt();
        for col in 0..dim {
            let normalised = f64::from(x.get(row, first + col)) * scale;
            y.set(row, first + col, (normalised * f64::from(w.as_f32()[col])) as f32);
        }
    }
}

/// Longest segment that stays in the first-level cache as f32.
const CACHED: usize = 4096;

fn short_enough(shape: &CallShape) -> Result<(), String> {
    let dim = shape.attributes.head_dim;
    if dim > CACHED {
        return Err(format!("keeps segments of up to {CACHED} elements, this one has {dim}"));
    }
    all_bf16(shape)
}

#[inline(always)]
fn two_pass<const FMA: bool>(i: &Invocation<'_>) {
    let (w, epsilon) = (i.weight(0).as_f32(), i.attributes().epsilon);
    for (_, x, y) in segments(i) {
        let scale = inverse_rms::<FMA>(x, epsilon);
        for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
            *y = f32_to_bf16(bf16_to_f32(*x) * scale * w);
        }
    }
}

#[inline(always)]
fn register_cached<const FMA: bool>(i: &Invocation<'_>) {
    let (w, epsilon) = (i.weight(0).as_f32(), i.attributes().epsilon);
    match i.attributes().head_dim {
        // The head sizes of attention: so short that the whole segment stays in registers.
        64 => {
            for (_, x, y) in segments(i) {
                held::<FMA, 64>(x, w, epsilon, y)
            }
        }
        128 => {
            for (_, x, y) in segments(i) {
                held::<FMA, 128>(x, w, epsilon, y)
            }
        }
        _ => {
            let mut kept = [0.0f32; CACHED];
            for (_, x, y) in segments(i) {
                cached::<FMA>(x, w, epsilon, &mut kept[..x.len()], y);
            }
        }
    }
}

/// One segment whose length the compiler knows.
#[inline(always)]
fn held<const FMA: bool, const DIM: usize>(x: &[u16], w: &[f32], epsilon: f32, y: &mut [u16]) {
    let (x, w, y) = (x.first_chunk::<DIM>(), w.first_chunk::<DIM>(), y.first_chunk_mut::<DIM>());
    let (Some(x), Some(w), Some(y)) = (x, w, y) else { unreachable!("operands are DIM long: checked by the operator") };
    let mut kept = [0.0f32; DIM];
    for col in 0..DIM {
        kept[col] = bf16_to_f32(x[col]);
    }
    let mut sums = [0.0f32; 32];
    for block in kept.as_chunks::<32>().0 {
        for lane in 0..32 {
            sums[lane] = multiply_add::<FMA>(block[lane], block[lane], sums[lane]);
        }
    }
    let scale = 1.0 / (total(&sums) / DIM as f32 + epsilon).sqrt();
    for col in 0..DIM {
        y[col] = f32_to_bf16(kept[col] * scale * w[col]);
    }
}

/// One segment, kept widened between the passes.
#[inline(always)]
fn cached<const FMA: bool>(x: &[u16], w: &[f32], epsilon: f32, kept: &mut [f32], y: &mut [u16]) {
    let mut sums = [0.0f32; 32];
    let (blocks, rest) = x.as_chunks::<32>();
    let (kept_blocks, kept_rest) = kept.as_chunks_mut::<32>();
    for (kept, x) in kept_blocks.iter_mut().zip(blocks) {
        for lane in 0..32 {
            kept[lane] = bf16_to_f32(x[lane]);
            sums[lane] = multiply_add::<FMA>(kept[lane], kept[lane], sums[lane]);
        }
    }
    let mut square = total(&sums);
    for (kept, x) in kept_rest.iter_mut().zip(rest) {
        *kept = bf16_to_f32(*x);
        square += *kept * *kept;
    }
    let scale = 1.0 / (square / x.len() as f32 + epsilon).sqrt();
    for ((y, x), w) in y.iter_mut().zip(kept).zip(w) {
        *y = f32_to_bf16(*x * scale * w);
    }
}

for_isa!(avx2, two_pass_avx2, two_pass::<true>);
for_isa!(avx512, two_pass_avx512, two_pass::<true>);
for_isa!(avx2, register_cached_avx2, register_cached::<true>);
for_isa!(avx512, register_cached_avx512, register_cached::<true>);

pub static REFERENCE: Kernel = kernel! {
    operator: "rms_norm", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// f32 statistics in one pass over a segment, both products in a second that reads it again.
pub static TWO_PASS_PORTABLE: Kernel = kernel! {
    operator: "rms_norm", name: TWO_PASS, isa: "portable", features: &[], supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: two_pass::<false>,
};

pub static TWO_PASS_AVX2: Kernel = kernel! {
    operator: "rms_norm", name: TWO_PASS, isa: "avx2", features: AVX2, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: two_pass_avx2,
};

pub static TWO_PASS_VECTOR: Kernel = kernel! {
    operator: "rms_norm", name: TWO_PASS, isa: "avx512", features: AVX512, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: two_pass_avx512,
};

/// A segment is read once and kept as f32 until it is written.
pub static REGISTER_CACHED_PORTABLE: Kernel = kernel! {
    operator: "rms_norm", name: REGISTER_CACHED, isa: "portable", features: &[], supports: short_enough,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: register_cached::<false>,
};

pub static REGISTER_CACHED_AVX2: Kernel = kernel! {
    operator: "rms_norm", name: REGISTER_CACHED, isa: "avx2", features: AVX2, supports: short_enough,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: register_cached_avx2,
};

pub static REGISTER_CACHED_VECTOR: Kernel = kernel! {
    operator: "rms_norm", name: REGISTER_CACHED, isa: "avx512", features: AVX512, supports: short_enough,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: register_cached_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[
    &REFERENCE,
    &TWO_PASS_PORTABLE,
    &TWO_PASS_AVX2,
    &TWO_PASS_VECTOR,
    &REGISTER_CACHED_PORTABLE,
    &REGISTER_CACHED_AVX2,
    &REGISTER_CACHED_VECTOR,
];
