//! Element-wise sum: `y[t, i] = a[t, i] + b[t, i]`. The residual additions.
//!
//! Ladder: reference → portable (rows shared among workers, vectorised by the compiler). Moves 3 elements per output, 1 flop.

use crate::bits::{bf16_to_f32, f32_to_bf16};
use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::testing::{Case, bf16, out};
use crate::{DType, Invocation, kernel};

use super::shapes::{elementwise_cost, expect, same_shape};

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

    fn cost(&self, shape: &CallShape) -> Cost {
        elementwise_cost(shape, 1)
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let case = |rows, width| {
            Case::new(format!("{rows}x{width}"), vec![bf16(rows, width), bf16(rows, width)], vec![out(rows, width, DType::BF16)])
        };
        vec![case(1, 1), case(1, 1024), case(3, 33), case(17, 576)]
    }
}

fn reference(i: &Invocation<'_>) {
    let (a, b, y) = (i.input(0), i.input(1), i.output(0));
    for row in i.share(y.rows) {
        for col in 0..y.width {
            let sum = f64::from(a.get(row, col)) + f64::from(b.get(row, col));
            y.set(row, col, sum as f32);
        }
    }
}

/// Two bf16 rows to one; one row is one worker's unless there is a single row, which is split by columns.
fn portable(i: &Invocation<'_>) {
    super::shapes::each_row_bf16(i, |a, b, y| {
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
            *y = f32_to_bf16(bf16_to_f32(*a) + bf16_to_f32(*b));
        }
    });
}

pub static REFERENCE: Kernel = kernel! {
    operator: "add", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

pub static PORTABLE: Kernel = kernel! {
    operator: "add", name: "rows", isa: "portable", features: &[], supports: super::shapes::all_bf16,
    nmse: 4e-6, because: "one bfloat16 rounding", run: portable,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE];
