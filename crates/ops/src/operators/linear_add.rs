//! A projection and the residual addition after it, in one call: `y = x Wᵀ + r`, rounded once.
//! Not here: the two calls (`linear`, `add`), and kernels of the CPU: rungs of a device's ladder alone have this operator.
//!
//! Ladder: reference → a device's.

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::testing::{Case, Draw, bf16, out, weight};
use crate::weight::{ElementType, WeightFormat};
use crate::{DType, Invocation, kernel};

use super::shapes::expect;

/// Inputs x `(rows, in)` and r `(rows, out)`; weight W `(out, in)`; output y `(rows, out)`.
pub struct LinearAdd;
pub static LINEAR_ADD: LinearAdd = LinearAdd;

impl Operator for LinearAdd {
    fn name(&self) -> &'static str {
        "linear_add"
    }

    fn group(&self) -> Group {
        Group::Projections
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 2, 1, 1)?;
        let (x, r, w, y) = (&shape.inputs[0], &shape.inputs[1], &shape.weights[0], &shape.outputs[0]);
        if (x.width, w.rows, x.rows) != (w.cols, y.width, y.rows) || (r.rows, r.width) != (y.rows, y.width) {
            return Err(format!(
                "x is ({}, {}), W ({}, {}), the residual ({}, {}), the output ({}, {})",
                x.rows, x.width, w.rows, w.cols, r.rows, r.width, y.rows, y.width
            ));
        }
        Ok(())
    }

    /// Every operand once; a multiply-add per weight and row, an addition per output.
    fn cost(&self, shape: &CallShape) -> Cost {
        let (w, y) = (&shape.weights[0], &shape.outputs[0]);
        Cost {
            bytes_read: shape.inputs.iter().map(|view| view.bytes()).sum::<u64>() + w.bytes(),
            bytes_written: y.bytes(),
            flops: (2 * w.rows * w.cols * y.rows + y.rows * y.width) as u64,
        }
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let g128 = WeightFormat::Affine4 { group: 128, parameters: ElementType::BF16 };
        let g64 = WeightFormat::Affine4 { group: 64, parameters: ElementType::F16 };
        let shapes = [(1, 1024, 2048), (1, 65, 128), (2, 97, 384), (5, 33, 256), (8, 200, 1152)];
        let formats = [g128, g64, WeightFormat::Bf16, WeightFormat::Int8 { group: 32 }];
        let every =
            formats.into_iter().flat_map(|format| shapes.map(|(rows, outs, cols)| case(rows, outs, cols, format)));
        every
            .chain([
                case(1, 2560, 9728, g128),
                // Lengths that have kernels of their own.
                case(1, 64, 3072, g128),
                case(1, 64, 4096, g128),
                case(1, 96, 9728, WeightFormat::Bf16),
                case(1, 1024, 2048, g128).after(2000),
                case(1, 1024, 3072, g64).after(2000),
                case(1, 1024, 3072, WeightFormat::Bf16),
                case(3, 7, 33, WeightFormat::Bf16),
            ])
            .collect()
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let (format, cols) = draw.format();
        case(draw.rows(), draw.count(64), cols, format)
    }
}

fn case(rows: usize, outs: usize, cols: usize, format: WeightFormat) -> Case {
    let label = format!("{rows}x{cols} to {outs} {format}");
    let mut case = Case::new(label, vec![bf16(rows, cols), bf16(rows, outs)], vec![out(rows, outs, DType::BF16)]);
    case.weights = vec![weight(outs, cols, format)];
    case
}

fn reference(i: &Invocation<'_>) {
    let (x, residual, w, y) = (i.input(0), i.input(1), i.weight(0), i.output(0));
    for output in i.share(w.rows) {
        for row in 0..x.rows {
            let product = |col| f64::from(x.get(row, col)) * f64::from(w.value(output, col));
            let sum: f64 = (0..w.cols).map(product).sum();
            y.set(row, output, (sum + f64::from(residual.get(row, output))) as f32);
        }
    }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "linear_add", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE];
