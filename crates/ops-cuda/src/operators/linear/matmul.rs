//! Products of many rows on the tensor cores of any GPU: how a launch is cut, and turning codes into bfloat16. Not here: their arithmetic
//! (`kernels/linear_matmul.cu`), and Hopper's (`tiles.rs`).

use super::super::blocks;
use super::{bf16_buffers, bias, fast_layouts};
use crate::layout::{DeviceWeight, FRAGMENTS, describe, layout};
use crate::queue::Queue;
use ops::{CallShape, Invocation};

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    x: u64,
    w: u64,
    bias: u64,
    y: u64,
    rows: u32,
    cols: u32,
    outputs: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Decode {
    w: DeviceWeight,
    to: u64,
}

/// Columns of a stage.
const DEPTH: usize = 32;

pub(super) fn takes(shape: &CallShape) -> Result<(), String> {
    bf16_buffers(shape)?;
    fast_layouts(&shape.weights[..1], DEPTH)
}

/// The weight as bfloat16, where it is not.
pub(super) fn scratch(shape: &CallShape) -> usize {
    let weight = &shape.weights[0];
    if layout(weight) == FRAGMENTS { weight.rows * weight.cols * 2 } else { 0 }
}

/// The address of the weight as bfloat16, after a launch that turns codes into it.
pub(super) fn plain_weight(i: &Invocation<'_>, queue: &Queue) -> u64 {
    let (start, shape) = i.weight_at(0);
    let w = start as u64;
    if layout(&shape) != FRAGMENTS {
        return w;
    }
    let to = i.scratch_at().0 as u64;
    let decode = Decode { w: describe(w, &shape, false), to };
    let grid = blocks(shape.rows * shape.cols / 8, 256);
    queue.launch("linear_matmul.cu", "decode_fragments", (grid, [256, 1, 1], 0), &decode);
    to
}

pub(super) fn run(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let (x, y) = (i.input(0), i.output(0));
    let arguments = Arguments {
        x: x.as_ptr() as u64,
        w: plain_weight(i, queue),
        bias: bias(i),
        y: y.as_ptr() as u64,
        rows: x.rows as u32,
        cols: x.width as u32,
        outputs: y.width as u32,
        unused: 0,
    };
    let grid = |block: u32| [arguments.rows.div_ceil(block), arguments.outputs.div_ceil(block), 1];
    let large = grid(128);
    // Four stages of both operands.
    let shared = |block: u32| 4 * 2 * block * DEPTH as u32 * 2;
    if large[0] * large[1] >= queue.multiprocessors {
        queue.launch("linear_matmul.cu", "matmul_128x128", (large, [256, 1, 1], shared(128)), &arguments);
    } else {
        queue.launch("linear_matmul.cu", "matmul_64x64", (grid(64), [128, 1, 1], shared(64)), &arguments);
    }
}
