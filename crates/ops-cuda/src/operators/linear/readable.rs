//! The readable products: any format, any shape, a launch per projection. Not here: their arithmetic
//! (`kernels/linear_readable.cu`).

use super::super::is_f32;
use super::bias;
use crate::layout::{DeviceWeight, describe};
use crate::queue::Queue;
use ops::Invocation;

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    x: u64,
    w: DeviceWeight,
    up: DeviceWeight,
    bias: u64,
    norm: u64,
    residual: u64,
    y: u64,
    rows: u32,
    x_f32: u32,
    y_f32: u32,
    gated: u32,
    epsilon: f32,
    unused: u32,
}

fn weight(i: &Invocation<'_>, index: usize) -> DeviceWeight {
    let (start, shape) = i.weight_at(index);
    describe(start as u64, &shape, false)
}

/// Output `output` from weight `index`.
fn arguments(i: &Invocation<'_>, index: usize, output: usize) -> Arguments {
    let (x, y) = (i.input(0), i.output(output));
    Arguments {
        x: x.as_ptr() as u64,
        w: weight(i, index),
        up: weight(i, index),
        bias: 0,
        norm: 0,
        residual: 0,
        y: y.as_ptr() as u64,
        rows: x.rows as u32,
        x_f32: is_f32(x.dtype),
        y_f32: is_f32(y.dtype),
        gated: 0,
        epsilon: i.attributes().epsilon,
        unused: 0,
    }
}

fn launch(i: &Invocation<'_>, arguments: &Arguments) {
    let queue: &Queue = i.queue();
    let grid = [arguments.w.rows.div_ceil(8), arguments.rows.min(1024), 1];
    queue.launch("linear_readable.cu", "linear_outputs", (grid, [256, 1, 1], 0), arguments);
}

pub(super) fn linear(i: &Invocation<'_>) {
    launch(i, &Arguments { bias: bias(i), ..arguments(i, 0, 0) });
}

pub(super) fn linear_add(i: &Invocation<'_>) {
    launch(i, &Arguments { residual: i.input(1).as_ptr() as u64, ..arguments(i, 0, 0) });
}

pub(super) fn norm_linear(i: &Invocation<'_>) {
    for index in 1..i.weights() {
        launch(i, &Arguments { norm: i.weight_at(0).0 as u64, ..arguments(i, index, index - 1) });
    }
}

pub(super) fn norm_swiglu(i: &Invocation<'_>) {
    let gate = arguments(i, 1, 0);
    launch(i, &Arguments { norm: i.weight_at(0).0 as u64, up: weight(i, 2), gated: 1, ..gate });
}
