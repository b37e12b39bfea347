//! A norm and the projections that read it, in one call: `y_i = norm(x) W_iᵀ` with `norm(x) = x / sqrt(mean(x²) + epsilon) * w`.
//! Not here: the calls one by one (`rms_norm`, `linear`), and kernels of the CPU: rungs of a device's ladder alone have this.
//!
//! Ladder: reference → a device's.

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, Draw, bf16, out, weight};
use crate::weight::{ElementType, WeightFormat};
use crate::{DType, Invocation, kernel};

use super::shapes::vector_weight;

/// Most projections of one call.
pub const MOST_PROJECTIONS: usize = 3;

/// Input x `(rows, in)`; weights: the norm f32 `(1, in)`, then one to three W `(out, in)`; as many outputs `(rows, out)`.
/// Attributes: `epsilon`, and `head_dim`, which is `in`.
pub struct NormLinear;
pub static NORM_LINEAR: NormLinear = NormLinear;

/// x is `(rows, head_dim)`, weight 0 a vector of as many, and the other weights have as many columns.
pub(super) fn check_normed(shape: &CallShape) -> Result<(), String> {
    vector_weight(shape)?;
    let (x, dim) = (&shape.inputs[0], shape.attributes.head_dim);
    if x.width != dim {
        return Err(format!("x is {} wide, the norm {dim}", x.width));
    }
    match shape.weights[1..].iter().find(|w| w.cols != dim) {
        Some(w) => Err(format!("a weight has {} columns, expected {dim}", w.cols)),
        None => Ok(()),
    }
}

/// Every operand once; four flops per element and three per row for the norm, a multiply-add per weight and row.
pub(super) fn normed_cost(shape: &CallShape) -> Cost {
    let x = &shape.inputs[0];
    let weights: usize = shape.weights[1..].iter().map(|w| w.rows * w.cols).sum();
    Cost {
        bytes_read: x.bytes() + shape.weights.iter().map(|w| w.bytes()).sum::<u64>(),
        bytes_written: shape.outputs.iter().map(|y| y.bytes()).sum(),
        flops: (x.rows * (4 * x.width + 3 + 2 * weights)) as u64,
    }
}

/// Row `row` of x, normalised.
pub fn normed(i: &Invocation<'_>, row: usize) -> Vec<f64> {
    let (x, w, epsilon) = (i.input(0), i.weight(0).as_f32(), f64::from(i.attributes().epsilon));
    let value = |col| f64::from(x.get(row, col));
    let square: f64 = (0..x.width).map(|col| value(col).powi(2)).sum();
    let scale = 1.0 / (square / x.width as f64 + epsilon).sqrt();
    (0..x.width).map(|col| value(col) * scale * f64::from(w[col])).collect()
}

/// Output `output` of a projection of a row.
pub fn projected(i: &Invocation<'_>, weight: usize, output: usize, x: &[f64]) -> f64 {
    let w = i.weight(weight);
    x.iter().enumerate().map(|(col, x)| x * f64::from(w.value(output, col))).sum()
}

/// Formats that cases of fused projections go through.
pub(super) const FORMATS: [WeightFormat; 4] = [
    WeightFormat::Affine4 { group: 128, parameters: ElementType::BF16 },
    WeightFormat::Affine4 { group: 64, parameters: ElementType::F16 },
    WeightFormat::Affine4 { group: 32, parameters: ElementType::BF16 },
    WeightFormat::Bf16,
];

impl Operator for NormLinear {
    fn name(&self) -> &'static str {
        "norm_linear"
    }

    fn group(&self) -> Group {
        Group::Projections
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        let (inputs, weights, outputs) = (shape.inputs.len(), shape.weights.len(), shape.outputs.len());
        if inputs != 1 || !(1..=MOST_PROJECTIONS).contains(&outputs) || weights != outputs + 1 {
            return Err(format!(
                "expected 1 input, 1 to 3 outputs and a weight more, found {inputs}, {outputs} and {weights}"
            ));
        }
        check_normed(shape)?;
        let rows = shape.inputs[0].rows;
        let fits = |(y, w): (&crate::ViewShape, &crate::WeightShape)| (y.rows, y.width) == (rows, w.rows);
        if shape.outputs.iter().zip(&shape.weights[1..]).all(fits) {
            Ok(())
        } else {
            Err("an output is not as wide as its weight has rows".to_owned())
        }
    }

    fn cost(&self, shape: &CallShape) -> Cost {
        normed_cost(shape)
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for format in FORMATS {
            cases.push(case(1, 1024, &[256, 65, 64], format));
            cases.push(case(3, 384, &[97, 16], format));
            cases.push(case(8, 256, &[33], format));
        }
        cases.push(case(1, 1024, &[256, 64, 64], FORMATS[0]));
        for format in [FORMATS[0], WeightFormat::Bf16] {
            cases.push(case(1, 2560, &[512, 128, 128], format));
        }
        cases.push(case(1, 1024, &[256, 65, 64], FORMATS[0]).after(2000));
        cases.push(case(2, 64, &[7, 9], WeightFormat::Int8 { group: 16 }));
        cases
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let (format, cols) = draw.format();
        let outs: Vec<usize> = (0..draw.count(MOST_PROJECTIONS)).map(|_| draw.count(64)).collect();
        case(draw.rows(), cols, &outs, format)
    }
}

fn case(rows: usize, cols: usize, outs: &[usize], format: WeightFormat) -> Case {
    let outputs = outs.iter().map(|outs| out(rows, *outs, DType::BF16)).collect();
    let mut case = Case::new(format!("{rows}x{cols} to {outs:?} {format}"), vec![bf16(rows, cols)], outputs);
    case.attributes = Attributes { head_dim: cols, epsilon: 1e-6, ..Attributes::default() };
    case.weights = vec![weight(1, cols, WeightFormat::F32)];
    case.weights.extend(outs.iter().map(|outs| weight(*outs, cols, format)));
    case
}

fn reference(i: &Invocation<'_>) {
    for row in i.share(i.input(0).rows) {
        let x = normed(i, row);
        for index in 1..i.weights() {
            let y = i.output(index - 1);
            for output in 0..y.width {
                y.set(row, output, projected(i, index, output, &x) as f32);
            }
        }
    }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "norm_linear", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE];
