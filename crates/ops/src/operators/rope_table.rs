//! Cosines and sines of rotary position: row t holds `cos(p * f[i])` for every pair i, then `sin(p * f[i])`, p its position.
//! Not here: how the frequencies come about (the model gives them), and rotating. Unsafe code is in `rows` alone.
//!
//! Ladder: reference → rows. Once per step, for all layers; the angle is an f32 product, as transformers computes it (which
//! matters at large positions: another rounding of the angle is another angle).

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::step::SequenceShape;
use crate::testing::{Case, CaseWeight, Draw, WeightFill, out};
use crate::{DType, Invocation, WeightFormat, kernel};

use super::sequences::sequence_of;
use super::shapes::{elementwise_cost, expect, rotary};

/// Weight: inverse frequencies f32 `(1, head_dim / 2)`; output f32 `(rows, head_dim)`. Attribute: `head_dim`.
pub struct RopeTable;
pub static ROPE_TABLE: RopeTable = RopeTable;

impl Operator for RopeTable {
    fn name(&self) -> &'static str {
        "rope_table"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 0, 1, 1)?;
        rotary(shape, None)?;
        let (weight, output, dim) = (&shape.weights[0], &shape.outputs[0], shape.attributes.head_dim);
        if (weight.rows, weight.cols) != (1, dim / 2) || weight.format != WeightFormat::F32 {
            let (rows, cols) = (weight.rows, weight.cols);
            return Err(format!(
                "inverse frequencies are {} ({rows}, {cols}), expected f32 (1, {})",
                weight.format,
                dim / 2
            ));
        }
        if (output.width, output.dtype) != (dim, DType::F32) {
            return Err(format!(
                "the table is {:?} of width {}, expected F32 of width {dim}",
                output.dtype, output.width
            ));
        }
        Ok(())
    }

    /// Three flops per pair: the angle, its cosine and its sine (each counted as one).
    fn cost(&self, shape: &CallShape) -> Cost {
        let mut cost = elementwise_cost(shape, 0);
        cost.flops = 3 * (shape.outputs[0].rows * shape.attributes.head_dim / 2) as u64;
        cost
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        // Frequencies of the real models at positions that few prompts reach: angles of thousands of turns.
        let rotary = WeightFill::Frequencies { theta: 1e6 };
        vec![
            case(128, WeightFill::Random, &[(1, 0)]),
            case(64, WeightFill::Random, &[(10, 7)]),
            case(4, WeightFill::Random, &[(3, 40_000)]),
            case(128, WeightFill::Random, &[(1, 9), (4, 0), (1, 300)]),
            case(128, rotary, &[(5, 32_766), (1, 40_959), (3, 131_069)]),
        ]
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let sequences: Vec<_> = draw.sequences(true).iter().map(|s| (s.rows, s.offset)).collect();
        case(draw.head_dim(), WeightFill::Random, &sequences)
    }
}

/// Position of a row, as f32.
pub fn position(i: &Invocation<'_>, row: usize) -> f32 {
    let (_, visible) = sequence_of(i.step, row);
    (visible - 1) as f32
}

fn case(dim: usize, fill: WeightFill, sequences: &[(usize, usize)]) -> Case {
    let rows = sequences.iter().map(|(rows, _)| rows).sum();
    let mut case = Case::new(format!("{dim} {fill:?} {sequences:?}"), vec![], vec![out(rows, dim, DType::F32)]);
    case.attributes = Attributes { head_dim: dim, ..Attributes::default() };
    case.weights = vec![CaseWeight { rows: 1, cols: dim / 2, format: WeightFormat::F32, fill }];
    case.sequences = sequences.iter().map(|(rows, offset)| SequenceShape { rows: *rows, offset: *offset }).collect();
    case
}

fn reference(i: &Invocation<'_>) {
    let (frequencies, table) = (i.weight(0), i.output(0));
    for row in i.share(table.rows) {
        for pair in 0..frequencies.cols {
            let angle = f64::from(position(i, row) * frequencies.as_f32()[pair]);
            table.set(row, pair, angle.cos() as f32);
            table.set(row, frequencies.cols + pair, angle.sin() as f32);
        }
    }
}

fn rows(i: &Invocation<'_>) {
    #![allow(unsafe_code, reason = "an exclusive row of the output")]
    let (frequencies, table) = (i.weight(0).as_f32(), i.output(0));
    for row in i.share(table.rows) {
        let position = position(i, row);
        // SAFETY: rows are shared out, so no other worker has this one.
        let (cos, sin) = unsafe { table.f32_mut(row) }.split_at_mut(frequencies.len());
        for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(frequencies) {
            let (s, c) = f64::from(position * frequency).sin_cos();
            (*cos, *sin) = (c as f32, s as f32);
        }
    }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "rope_table", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Rows shared among the workers; f64 trigonometry of the f32 angle.
pub static PORTABLE: Kernel = kernel! {
    operator: "rope_table", name: "rows", isa: "portable", features: &[],
    nmse: 1e-14, because: "the same angle; sine and cosine are rounded once to f32", run: rows,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE];
