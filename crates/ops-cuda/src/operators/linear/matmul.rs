//! Products of many rows on the tensor cores: how a launch is cut. Not here: their arithmetic (`kernels/linear_matmul.cu`).

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

/// Columns of a stage of the warpgroups' kernel.
const WIDE_DEPTH: usize = 64;

pub(super) fn warpgroups_take(shape: &CallShape) -> Result<(), String> {
    bf16_buffers(shape)?;
    fast_layouts(&shape.weights[..1], WIDE_DEPTH)
}

/// The weight as bfloat16, where it is not.
pub(super) fn scratch(shape: &CallShape) -> usize {
    let weight = &shape.weights[0];
    if layout(weight) == FRAGMENTS { weight.rows * weight.cols * 2 } else { 0 }
}

/// The launch's arguments, after a launch that turns codes into bfloat16.
fn decoded(i: &Invocation<'_>, queue: &Queue) -> Arguments {
    let (x, y) = (i.input(0), i.output(0));
    let (start, shape) = i.weight_at(0);
    let mut w = start as u64;
    if layout(&shape) == FRAGMENTS {
        let to = i.scratch_at().0 as u64;
        let decode = Decode { w: describe(w, &shape, false), to };
        let grid = blocks(shape.rows * shape.cols / 8, 256);
        queue.launch("linear_matmul.cu", "decode_fragments", (grid, [256, 1, 1], 0), &decode);
        w = to;
    }
    Arguments {
        x: x.as_ptr() as u64,
        w,
        bias: bias(i),
        y: y.as_ptr() as u64,
        rows: x.rows as u32,
        cols: x.width as u32,
        outputs: y.width as u32,
        unused: 0,
    }
}

pub(super) fn run(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let arguments = decoded(i, queue);
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

/// Blocks of the warpgroups' kernel: rows, outputs, and the share of its best rate that one reaches, the first's being 1.
const TILES: [(&str, u32, u32, f64); 3] =
    [("wgmma_256x128", 256, 128, 1.0), ("wgmma_128x128", 128, 128, 0.9), ("wgmma_128x64", 128, 64, 0.75)];

/// The tile of which the busiest processor has the least to do, weighed by its rate.
fn tile(rows: u32, outputs: u32, multiprocessors: u32) -> (&'static str, [u32; 3], u32) {
    let mut best = ("", [0; 3], 0, f64::INFINITY);
    for (name, down, across, rate) in TILES {
        let grid = [rows.div_ceil(down), outputs.div_ceil(across), 1];
        let busiest = (grid[0] * grid[1]).div_ceil(multiprocessors);
        let time = f64::from(busiest) * f64::from(down * across) / rate;
        if time < best.3 {
            // Four stages of both operands, and room to align them.
            best = (name, grid, 4 * (down + across) * WIDE_DEPTH as u32 * 2 + 1024, time);
        }
    }
    (best.0, best.1, best.2)
}

pub(super) fn run_warpgroups(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let arguments = decoded(i, queue);
    let (name, grid, shared) = tile(arguments.rows, arguments.outputs, queue.multiprocessors);
    queue.launch("linear_wgmma.cu", name, (grid, [256, 1, 1], shared), &arguments);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_everything_and_fit_a_processor() {
        for (rows, outputs) in [(9, 1), (128, 1024), (512, 9728), (2048, 1024), (2048, 3072), (100_000, 151_936)] {
            let (name, grid, shared) = tile(rows, outputs, 132);
            let (_, down, across, _) = TILES.into_iter().find(|tile| tile.0 == name).unwrap_or(TILES[0]);
            assert!(grid[0] * down >= rows && grid[1] * across >= outputs, "{name} {grid:?}");
            assert!(shared <= 227 << 10, "{name}: {shared}");
        }
        // A tall product of few outputs takes small tiles.
        assert_eq!(tile(128, 1024, 132).0, "wgmma_128x64");
    }
}
