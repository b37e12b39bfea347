//! `y[t, i] = silu(x[t, i]) = x / (1 + exp(-x))`, computed in f32 and rounded. First half of the readable activation.
//! Not here: the product with the other half, which is `mul`'s.
//!
//! Ladder: reference → rows; fused with `mul` into `swiglu` from that rung on.

use crate::bits::{bf16_to_f32, f32_to_bf16};
use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::testing::{Case, CaseBuffer, Draw, Fill, bf16, out};
use crate::{DType, Invocation, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::maths::silu;
use super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON, all_bf16, elementwise_cost, expect, one_to_one, same_shape};

/// Input x `(rows, width)`; output y `(rows, width)`.
pub struct Silu;
pub static SILU: Silu = Silu;

impl Operator for Silu {
    fn name(&self) -> &'static str {
        "silu"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1, 0, 1)?;
        same_shape(shape, &[0])
    }

    /// Three flops per element: exponential, addition, division.
    fn cost(&self, shape: &CallShape) -> Cost {
        elementwise_cost(shape, 3)
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let wide = |rows, width| {
            let input = CaseBuffer { fill: Fill::Uniform(-20.0, 20.0), ..bf16(rows, width) };
            Case::new("-20..20", vec![input], vec![out(rows, width, DType::BF16)])
        };
        vec![case(50, 1), case(1, 3072), case(3, 33), case(17, 577), wide(40, 100)]
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        case(draw.rows(), draw.width())
    }
}

fn case(rows: usize, width: usize) -> Case {
    Case::new(format!("{rows}x{width}"), vec![bf16(rows, width)], vec![out(rows, width, DType::BF16)])
}

fn reference(i: &Invocation<'_>) {
    let (x, y) = (i.input(0), i.output(0));
    for row in i.share(y.rows) {
        for col in 0..y.width {
            let x = f64::from(x.get(row, col));
            y.set(row, col, (x / (1.0 + (-x).exp())) as f32);
        }
    }
}

#[inline(always)]
fn rows<const FMA: bool>(i: &Invocation<'_>) {
    let (x, y) = one_to_one(i);
    for (y, x) in y.iter_mut().zip(x) {
        *y = f32_to_bf16(silu::<FMA>(bf16_to_f32(*x)));
    }
}

for_isa!(avx2, rows_avx2, rows::<true>);
for_isa!(avx512, rows_avx512, rows::<true>);

pub static REFERENCE: Kernel = kernel! {
    operator: "silu", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Elements shared among the workers in whole cache lines, vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "silu", name: "rows", isa: "portable", features: &[], supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "silu", name: "rows", isa: "avx2", features: AVX2, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "silu", name: "rows", isa: "avx512", features: AVX512, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
