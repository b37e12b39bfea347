//! The first half of a gated layer in one call: a norm, its two projections, and their gated activation:
//! `y = silu(g) * u` with `g = norm(x) Gᵀ`, `u = norm(x) Uᵀ`, rounded once.
//! Not here: the calls one by one (`rms_norm`, `linear`, `swiglu`), and kernels of the CPU: a device's ladder alone has this.
//!
//! Ladder: reference → a device's.

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, Draw, bf16, out, weight};
use crate::{DType, Invocation, WeightFormat, kernel};

use super::norm_linear::{FORMATS, check_normed, normed, normed_cost, projected};
use super::shapes::expect;

/// Input x `(rows, in)`; weights: the norm f32 `(1, in)`, G and U `(out, in)`; output y `(rows, out)`. Attributes: `epsilon`, and
/// `head_dim`, which is `in`.
pub struct NormSwiGlu;
pub static NORM_SWIGLU: NormSwiGlu = NormSwiGlu;

impl Operator for NormSwiGlu {
    fn name(&self) -> &'static str {
        "norm_swiglu"
    }

    fn group(&self) -> Group {
        Group::Projections
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1, 3, 1)?;
        check_normed(shape)?;
        let (x, y, gate, up) = (&shape.inputs[0], &shape.outputs[0], &shape.weights[1], &shape.weights[2]);
        if gate != up || (y.rows, y.width) != (x.rows, gate.rows) {
            return Err(format!("gate is {gate:?}, up {up:?}, the output ({}, {})", y.rows, y.width));
        }
        Ok(())
    }

    /// As the norm and the projections, and four flops per output.
    fn cost(&self, shape: &CallShape) -> Cost {
        let (mut cost, y) = (normed_cost(shape), &shape.outputs[0]);
        cost.flops += (4 * y.rows * y.width) as u64;
        cost
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for format in FORMATS {
            cases.push(case(1, 1024, 3072, format));
            cases.push(case(2, 384, 97, format));
            cases.push(case(8, 256, 33, format));
        }
        cases.push(case(1, 2560, 200, FORMATS[0]));
        cases.push(case(1, 2560, 192, FORMATS[0]));
        cases.push(case(1, 1024, 3072, FORMATS[0]).after(2000));
        cases
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let (format, cols) = draw.format();
        case(draw.rows(), cols, draw.count(64), format)
    }
}

fn case(rows: usize, cols: usize, outs: usize, format: WeightFormat) -> Case {
    let label = format!("{rows}x{cols} to {outs} {format}");
    let mut case = Case::new(label, vec![bf16(rows, cols)], vec![out(rows, outs, DType::BF16)]);
    case.attributes = Attributes { head_dim: cols, epsilon: 1e-6, ..Attributes::default() };
    case.weights = vec![weight(1, cols, WeightFormat::F32), weight(outs, cols, format), weight(outs, cols, format)];
    case
}

fn reference(i: &Invocation<'_>) {
    let y = i.output(0);
    for row in i.share(y.rows) {
        let x = normed(i, row);
        for output in 0..y.width {
            let (gate, up) = (projected(i, 1, output, &x), projected(i, 2, output, &x));
            y.set(row, output, (gate / (1.0 + (-gate).exp()) * up) as f32);
        }
    }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "norm_swiglu", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE];
