//! Two linear layers of one input and the gated activation of their results, in one call:
//! `y[t, o] = silu(Σ_k x[t, k] * G[o, k]) * Σ_k x[t, k] * U[o, k]`, rounded once. The first half of an MLP in decode.
//! Here: the operator, its reference, its list and cases. Not here: the kernels, which are `linear`'s (`linear/gated.rs`).
//!
//! Ladder: reference → matvec. It saves a barrier, a call and two buffers against `linear`, `linear` and `swiglu`.

use super::linear::gated;
use super::shapes::expect;
use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::testing::{Case, Draw, Fill, bf16, out, weight};
use crate::weight::{ElementType, LANES, WeightFormat};
use crate::{DType, Invocation, kernel};

/// Input x `(rows, in)`; weights gate and up `(out, in)`, alike; output y `(rows, out)`.
pub struct GatedLinear;
pub static GATED_LINEAR: GatedLinear = GatedLinear;

impl Operator for GatedLinear {
    fn name(&self) -> &'static str {
        "gated_linear"
    }

    fn group(&self) -> Group {
        Group::Projections
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1, 2, 1)?;
        let (x, y, gate, up) = (shape.inputs[0], shape.outputs[0], shape.weights[0], shape.weights[1]);
        if gate != up {
            return Err(format!("expected two weights of one shape and format, found {gate:?} and {up:?}"));
        }
        if x.width != gate.cols || y.width != gate.rows || x.rows != y.rows {
            let (x, w, y) = ((x.rows, x.width), (gate.rows, gate.cols), (y.rows, y.width));
            return Err(format!(
                "expected x (rows, in), weights (out, in) and y (rows, out), found {x:?}, {w:?} and {y:?}"
            ));
        }
        Ok(())
    }

    /// Both products, and four flops per output for the activation.
    fn cost(&self, shape: &CallShape) -> Cost {
        let (x, y, w) = (shape.inputs[0], shape.outputs[0], shape.weights[0]);
        Cost {
            bytes_read: x.bytes() + 2 * w.bytes(),
            bytes_written: y.bytes(),
            flops: (x.rows * w.rows) as u64 * (4 * w.cols as u64 + 4),
        }
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        use ElementType::{BF16, F16, F32};
        let w4 = |group, parameters| WeightFormat::Affine4 { group, parameters };
        let mut cases: Vec<Case> = (1..=8).map(|rows| case(rows, 60 + 19 * rows, 256, w4(128, BF16))).collect();
        for (rows, format) in [
            (1, w4(64, F16)),
            (2, w4(32, F32)),
            (5, WeightFormat::Int8 { group: 32 }),
            (1, WeightFormat::Int8 { group: 16 }),
        ] {
            cases.push(case(rows, 97, 576, format));
        }
        // A real model's width, one output, fewer outputs than workers.
        cases.extend([
            case(1, 3072, 1024, w4(128, BF16)),
            case(4, 1, 128, w4(128, BF16)),
            case(8, 5, 128, w4(128, BF16)),
        ]);
        // Gates from where the sigmoid is nearly 0 to where it is nearly 1.
        let mut wide = case(2, 130, 256, w4(128, BF16));
        wide.label.push_str(" wide");
        wide.inputs[0].fill = Fill::Normal(12.0);
        cases.push(wide);
        cases
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let (format, cols) = draw.format();
        case(draw.rows(), draw.count(3 * LANES) + draw.count(LANES), cols, format)
    }
}

fn case(rows: usize, width: usize, cols: usize, format: WeightFormat) -> Case {
    let label = format!("{rows}x{cols}->{width} {format:?}");
    let mut case = Case::new(label, vec![bf16(rows, cols)], vec![out(rows, width, DType::BF16)]);
    case.weights = vec![weight(width, cols, format); 2];
    case
}

fn reference(i: &Invocation<'_>) {
    let (x, y) = (i.input(0), i.output(0));
    let sum = |row, col, w: usize| -> f64 {
        let w = i.weight(w);
        (0..x.width).map(|k| f64::from(x.get(row, k)) * f64::from(w.value(col, k))).sum()
    };
    for col in i.share(y.width) {
        for row in 0..y.rows {
            let (gate, up) = (sum(row, col, 0), sum(row, col, 1));
            y.set(row, col, (gate / (1.0 + (-gate).exp()) * up) as f32);
        }
    }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "gated_linear", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// The list.
pub static CPU: &[&Kernel] = &[
    &REFERENCE,
    &gated::PORTABLE,
    #[cfg(target_arch = "x86_64")]
    &gated::AVX2,
    #[cfg(target_arch = "x86_64")]
    &gated::AVX2_MADDUBS,
    #[cfg(target_arch = "x86_64")]
    &gated::AVX512F,
    #[cfg(target_arch = "x86_64")]
    &gated::AVX512_VNNI,
];
