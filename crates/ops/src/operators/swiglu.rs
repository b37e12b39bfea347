//! Gated activation: `y[t, i] = silu(gate[t, i]) * up[t, i]` with `silu(x) = x / (1 + exp(-x))`, rounded once.
//! Not here: the readable form in two calls (`silu`, `mul`).
//!
//! Ladder: reference → rows. One pass and one rounding where `silu` and `mul` make two.

use crate::bits::{bf16_to_f32, f32_to_bf16};
use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::testing::{Case, Draw, Fill, bf16, out};
use crate::{DType, Invocation, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::maths::silu;
use super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON, all_bf16, elementwise_cost, expect, same_shape, two_to_one};

/// Inputs gate, up `(rows, width)`; output y `(rows, width)`.
pub struct SwiGlu;
pub static SWIGLU: SwiGlu = SwiGlu;

impl Operator for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 2, 0, 1)?;
        same_shape(shape, &[0, 1])
    }

    /// Four flops per element: exponential, addition, division, product.
    fn cost(&self, shape: &CallShape) -> Cost {
        elementwise_cost(shape, 4)
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        // Gates from where the sigmoid is nearly 0 to where it is nearly 1.
        let wide = |low, high| {
            let mut case = case(3, 1025);
            case.label.push_str(&format!(" gates in {low}..{high}"));
            for input in &mut case.inputs {
                input.fill = Fill::Uniform(low, high);
            }
            case
        };
        let mut cases = vec![case(50, 1), case(1, 3072), case(3, 33), case(5, 1537), case(17, 577)];
        cases.extend([wide(-20.0, 20.0), wide(-20.0, -10.0)]);
        cases
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        case(draw.rows(), draw.width())
    }
}

fn case(rows: usize, width: usize) -> Case {
    Case::new(format!("{rows}x{width}"), vec![bf16(rows, width); 2], vec![out(rows, width, DType::BF16)])
}

fn reference(i: &Invocation<'_>) {
    let (a, b, y) = (i.input(0), i.input(1), i.output(0));
    for row in i.share(y.rows) {
        for col in 0..y.width {
            let (a, b) = (f64::from(a.get(row, col)), f64::from(b.get(row, col)));
            y.set(row, col, (a / (1.0 + (-a).exp()) * b) as f32);
        }
    }
}

#[inline(always)]
fn rows<const FMA: bool>(i: &Invocation<'_>) {
    let (a, b, y) = two_to_one(i);
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        let (a, b) = (bf16_to_f32(*a), bf16_to_f32(*b));
        *y = f32_to_bf16(silu::<FMA>(a) * b);
    }
}

for_isa!(avx2, rows_avx2, rows::<true>);
for_isa!(avx512, rows_avx512, rows::<true>);

pub static REFERENCE: Kernel = kernel! {
    operator: "swiglu", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Elements shared among the workers in whole cache lines, vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "swiglu", name: "rows", isa: "portable", features: &[], supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "swiglu", name: "rows", isa: "avx2", features: AVX2, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "swiglu", name: "rows", isa: "avx512", features: AVX512, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
