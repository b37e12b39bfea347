//! Day 8: a residual addition and the norm after it, in one call. Not here: the first norm of a step, which follows no addition.
//!
//! The sum is needed twice: as the next residual, and normalised. Two calls write it, meet at a barrier, and read it back; the norm
//! of a single row is one worker's work anyway, so the worker that adds may as well go on.

use ops::*;

/// Inputs a, b `(rows, width)` bf16; weight w f32 `(1, width)`; outputs s = a + b and y = s / sqrt(mean(s²) + epsilon) * w, both
/// `(rows, width)` bf16.
///
/// Must hold: s is rounded before it is normalised, as two calls would do it; the mean is of float32; y is rounded once. Workers
/// share the rows, and no row is split: its mean needs all of it.
fn add_rms_norm(_call: &Invocation<'_>) {
    unimplemented!("add_rms_norm is to be written in crates/lab/days/src/day8.rs");
}

fn bfloat16(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs.iter().chain(&shape.outputs).all(|view| view.dtype == DType::BF16);
    if bf16 { Ok(()) } else { Err("needs bfloat16 buffers".to_owned()) }
}

pub const ADD_RMS_NORM: Kernel = kernel! {
    operator: "add_rms_norm", name: "day-8", isa: "portable", features: &[], supports: bfloat16,
    nmse: 3.2e-5, because: "two bfloat16 roundings, of the sum and of what is normalised from it", run: add_rms_norm,
};

pub static KERNELS: &[&Kernel] = &[&ADD_RMS_NORM];

pub const CHECKPOINT: Checkpoint = Checkpoint {
    name: "day-8",
    parent: Some(&ladder::PLACED_HEADS),
    prefers: &[ladder::choose("add_rms_norm", "day-8")],
    // Our rung sums in the order of its parent's norm and gives the same bits; the order of yours is up to you.
    tolerance: ladder::PLACED_HEADS.tolerance,
    file: file!(),
    line: line!(),
    ..ladder::ADDED_NORM
};
