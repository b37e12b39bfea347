//! Element-wise sum: `y[t, i] = a[t, i] + b[t, i]`. The residual additions.
//! Not here: biases, which `linear` adds itself.
//!
//! Ladder: reference → rows. Moves three elements per output for one flop: memory (or cache) speed is its limit.

use crate::bits::{bf16_to_f32, f32_to_bf16};
use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::testing::{Case, Draw, bf16, out};
use crate::{DType, Invocation, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON, all_bf16, elementwise_cost, expect, same_shape, two_to_one};

/// Inputs a, b `(rows, width)`; output y `(rows, width)`.
pub struct Add;
pub static ADD: Add = Add;

impl Operator for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 2, 0, 1)?;
        same_shape(shape, &[0, 1])
    }

    /// One flop per element.
    fn cost(&self, shape: &CallShape) -> Cost {
        elementwise_cost(shape, 1)
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        vec![case(50, 1), case(1, 1024), case(3, 33), case(17, 576)]
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
            y.set(row, col, (a + b) as f32);
        }
    }
}

#[inline(always)]
fn rows(i: &Invocation<'_>) {
    let (a, b, y) = two_to_one(i);
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        let (a, b) = (bf16_to_f32(*a), bf16_to_f32(*b));
        *y = f32_to_bf16(a + b);
    }
}

for_isa!(avx2, rows_avx2, rows);
for_isa!(avx512, rows_avx512, rows);

pub static REFERENCE: Kernel = kernel! {
    operator: "add", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Elements shared among the workers in whole cache lines, vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "add", name: "rows", isa: "portable", features: &[], supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows,
};

pub static NARROW: Kernel = kernel! {
    operator: "add", name: "rows", isa: "avx2", features: AVX2, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "add", name: "rows", isa: "avx512", features: AVX512, supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
