//! rms_scale, rms_norm and add_rms_norm on the device. Not here: their arithmetic (`kernels/norm.cu`).

use super::{ONE_ROUNDING, ONE_ROUNDING_REASON, all_bf16};
use crate::queue::Queue;
use ops::{CallShape, Invocation, Kernel, kernel};

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    x: u64,
    b: u64,
    sum: u64,
    y: u64,
    w: u64,
    segments: u32,
    dim: u32,
    epsilon: f32,
    unused: u32,
}

/// Longest segment that the threads of a block keep, eight elements each.
const KEPT_DIM: usize = 4096;

fn eights(shape: &CallShape) -> Result<(), String> {
    all_bf16(shape)?;
    let dim = shape.attributes.head_dim;
    if dim <= KEPT_DIM && dim.is_multiple_of(8) {
        return Ok(());
    }
    Err(format!("keeps segments of up to {KEPT_DIM} elements that eight divides, these have {dim}"))
}

pub(crate) static RMS_SCALE: Kernel = kernel! {
    operator: "rms_scale", name: "rows", isa: "cuda", features: &[], supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: two_pass,
};

/// Each segment is read twice.
pub(crate) static TWO_PASS: Kernel = kernel! {
    operator: "rms_norm", name: "two-pass", isa: "cuda", features: &[], supports: all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: two_pass,
};

/// Each segment is read once and kept in registers.
pub(crate) static KEPT: Kernel = kernel! {
    operator: "rms_norm", name: "register-cached", isa: "cuda", features: &[], supports: eights,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: kept,
};

const TWO_ROUNDINGS: f64 = 2.0 * ONE_ROUNDING;
const TWO_REASON: &str = "two bfloat16 roundings, of the sum and of what is normalised from it";

pub(crate) static ADD_SEGMENTS: Kernel = kernel! {
    operator: "add_rms_norm", name: "rows", isa: "cuda", features: &[], supports: all_bf16,
    nmse: TWO_ROUNDINGS, because: TWO_REASON, run: add_segments,
};

pub(crate) static ADD_KEPT: Kernel = kernel! {
    operator: "add_rms_norm", name: "register-cached", isa: "cuda", features: &[], supports: eights,
    nmse: TWO_ROUNDINGS, because: TWO_REASON, run: add_kept,
};

fn arguments(i: &Invocation<'_>) -> Arguments {
    let (added, x) = (i.inputs() > 1, i.input(0));
    let dim = i.attributes().head_dim;
    Arguments {
        x: x.as_ptr() as u64,
        b: if added { i.input(1).as_ptr() as u64 } else { 0 },
        sum: if added { i.output(0).as_ptr() as u64 } else { 0 },
        y: i.output(usize::from(added)).as_ptr() as u64,
        w: if i.weights() == 0 { 0 } else { i.weight_at(0).0 as u64 },
        segments: (x.rows * x.width / dim) as u32,
        dim: dim as u32,
        epsilon: i.attributes().epsilon,
        unused: 0,
    }
}

fn launch(i: &Invocation<'_>, name: &'static str, threads: u32) {
    let (queue, arguments): (&Queue, _) = (i.queue(), arguments(i));
    queue.launch("norm.cu", name, ([arguments.segments, 1, 1], [threads, 1, 1], 0), &arguments);
}

fn two_pass(i: &Invocation<'_>) {
    launch(i, "norm_segments", 256);
}

fn add_segments(i: &Invocation<'_>) {
    launch(i, "add_norm_segments", 256);
}

/// As many threads as the segment has eights, in whole warps.
fn kept(i: &Invocation<'_>) {
    launch(i, "norm_kept", i.attributes().head_dim.div_ceil(8).next_multiple_of(32) as u32);
}

fn add_kept(i: &Invocation<'_>) {
    kept(i);
}
