//! Day 4: the small operators, each in one pass: RMSNorm, rotary position, SwiGLU. Not here: the matrix products around them.
//!
//! Between the products a step makes many small calls, and in the readable form each writes to memory what the next one reads, and
//! rounds it on the way. One call reads its operands once, keeps float32 in between and rounds once.

use ops::*;

/// Input x `(rows, segments * head_dim)` bf16, weight w f32 `(1, head_dim)`, output as x: per segment of `head_dim` elements,
/// `x / sqrt(mean(x²) + epsilon) * w`. A segment is a row (the layer's norms) or a head of one (norms of queries and keys).
///
/// Must hold: the mean is of float32, and what is normalised is not rounded before it is multiplied.
fn rms_norm(_call: &Invocation<'_>) {
    unimplemented!("rms_norm is to be written in crates/lab/days/src/day4.rs");
}

/// Input x `(rows, heads * head_dim)` bf16, input table f32 `(rows, head_dim)`: cosines of the row's pairs, then sines; output as
/// x. A pair (a, b) of a head becomes (a cos - b sin, b cos + a sin); `operators::parts::columns` says which columns a pair has.
fn rope(_call: &Invocation<'_>) {
    unimplemented!("rope is to be written in crates/lab/days/src/day4.rs");
}

/// Inputs gate and up `(rows, width)` bf16, output the same: `gate * sigmoid(gate) * up`.
///
/// Must hold: a gate of -20 gives nearly zero and one of 20 itself, without overflow in between.
fn swiglu(_call: &Invocation<'_>) {
    unimplemented!("swiglu is to be written in crates/lab/days/src/day4.rs");
}

fn bfloat16(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs[0].dtype == DType::BF16 && shape.outputs[0].dtype == DType::BF16;
    if bf16 { Ok(()) } else { Err("needs bfloat16 buffers".to_owned()) }
}

const BECAUSE: &str = "float32 in between and one bfloat16 rounding";

pub const RMS_NORM: Kernel = kernel! {
    operator: "rms_norm", name: "day-4", isa: "portable", features: &[], supports: bfloat16,
    nmse: 1.6e-5, because: BECAUSE, run: rms_norm,
};

pub const ROPE: Kernel = kernel! {
    operator: "rope", name: "day-4", isa: "portable", features: &[], supports: bfloat16,
    nmse: 1.6e-5, because: BECAUSE, run: rope,
};

pub const SWIGLU: Kernel = kernel! {
    operator: "swiglu", name: "day-4", isa: "portable", features: &[], supports: bfloat16,
    nmse: 1.6e-5, because: BECAUSE, run: swiglu,
};

pub static KERNELS: &[&Kernel] = &[&RMS_NORM, &ROPE, &SWIGLU];

pub const CHECKPOINT: Checkpoint = Checkpoint {
    name: "day-4",
    parent: Some(&ladder::SIMD_MATMUL),
    change: "norms, rotary position and the gated activation are one call each",
    prefers: &[ladder::choose("rms_norm", "day-4"), ladder::choose("rope", "day-4"), ladder::choose("swiglu", "day-4")],
    file: file!(),
    line: line!(),
    ..ladder::SWIGLU_RUNG
};
