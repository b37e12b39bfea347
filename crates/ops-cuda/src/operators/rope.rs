//! rotate_half, rope_combine, rope and norm_rope_append on the device. Not here: their arithmetic (`kernels/rope.cu`).

use super::{ONE_ROUNDING, ONE_ROUNDING_REASON, bf16_data, blocks};
use crate::queue::Queue;
use ops::{Attributes, CallShape, Invocation, Kernel, kernel};

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    x: u64,
    rotated: u64,
    table: u64,
    y: u64,
    rows: u32,
    width: u32,
    dim: u32,
    interleaved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct NormRopeAppend {
    step: u64,
    q: u64,
    k: u64,
    v: u64,
    table: u64,
    q_norm: u64,
    k_norm: u64,
    y: u64,
    heads: u32,
    kv_heads: u32,
    dim: u32,
    interleaved: u32,
    epsilon: f32,
    layer: u32,
}

/// Longest head that the lanes of a warp keep.
const KEPT_HEAD: usize = 256;

fn first(shape: &CallShape) -> Result<(), String> {
    bf16_data(shape, 0..1)
}

fn first_two(shape: &CallShape) -> Result<(), String> {
    bf16_data(shape, 0..2)
}

fn short_heads(shape: &CallShape) -> Result<(), String> {
    bf16_data(shape, 0..3)?;
    let dim = shape.attributes.head_dim;
    if dim <= KEPT_HEAD { Ok(()) } else { Err(format!("keeps heads of up to {KEPT_HEAD} elements, these have {dim}")) }
}

pub(crate) static ROTATE_HALF: Kernel = kernel! {
    operator: "rotate_half", name: "rows", isa: "cuda", features: &[], supports: first,
    nmse: 0.0, because: "values are moved", run: rotate_half,
};

pub(crate) static ROPE_COMBINE: Kernel = kernel! {
    operator: "rope_combine", name: "rows", isa: "cuda", features: &[], supports: first_two,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rope_combine,
};

pub(crate) static ROPE: Kernel = kernel! {
    operator: "rope", name: "rows", isa: "cuda", features: &[], supports: first,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rope,
};

pub(crate) static NORM_ROPE_APPEND: Kernel = kernel! {
    operator: "norm_rope_append", name: "heads", isa: "cuda", features: &[], supports: short_heads,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: norm_rope_append,
};

fn launch(i: &Invocation<'_>, name: &'static str, (rotated, table): (u64, u64)) {
    let (queue, x): (&Queue, _) = (i.queue(), i.input(0));
    let Attributes { head_dim, interleaved, .. } = *i.attributes();
    let arguments = Arguments {
        x: x.as_ptr() as u64,
        rotated,
        table,
        y: i.output(0).as_ptr() as u64,
        rows: x.rows as u32,
        width: x.width as u32,
        dim: head_dim as u32,
        interleaved: u32::from(interleaved),
    };
    queue.launch("rope.cu", name, (blocks(x.rows * x.width / 2, 256), [256, 1, 1], 0), &arguments);
}

fn rotate_half(i: &Invocation<'_>) {
    launch(i, "rotate_half_pairs", (0, 0));
}

fn rope_combine(i: &Invocation<'_>) {
    launch(i, "rope_combine_pairs", (i.input(1).as_ptr() as u64, i.input(2).as_ptr() as u64));
}

fn rope(i: &Invocation<'_>) {
    launch(i, "rope_pairs", (0, i.input(1).as_ptr() as u64));
}

fn norm_rope_append(i: &Invocation<'_>) {
    let (queue, q): (&Queue, _) = (i.queue(), i.input(0));
    let Attributes { heads, kv_heads, head_dim, interleaved, epsilon, .. } = *i.attributes();
    let norm = |index: usize| if i.weights() == 0 { 0 } else { i.weight_at(index).0 as u64 };
    let arguments = NormRopeAppend {
        step: queue.step,
        q: q.as_ptr() as u64,
        k: i.input(1).as_ptr() as u64,
        v: i.input(2).as_ptr() as u64,
        table: i.input(3).as_ptr() as u64,
        q_norm: norm(0),
        k_norm: norm(1),
        y: i.output(0).as_ptr() as u64,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        dim: head_dim as u32,
        interleaved: u32::from(interleaved),
        epsilon,
        layer: i.layer().unwrap_or(0) as u32,
    };
    let grid = blocks(q.rows * (heads + 2 * kv_heads), 4);
    queue.launch("rope.cu", "norm_rope_append_heads", (grid, [128, 1, 1], 0), &arguments);
}
