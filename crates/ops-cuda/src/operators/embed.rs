//! embed on the device. A single row's joins what else begins a step. Not here: its arithmetic (`kernels/embed.cu`).

use super::next_step::NextStep;
use super::{ONE_ROUNDING, ONE_ROUNDING_REASON, is_f32};
use crate::layout::{DeviceWeight, describe};
use crate::queue::Queue;
use ops::{Invocation, Kernel, kernel};

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    step: u64,
    table: DeviceWeight,
    y: u64,
    f32: u32,
    unused: u32,
}

pub(crate) static ROWS: Kernel = kernel! {
    operator: "embed", name: "rows", isa: "cuda", features: &[],
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows,
};

fn rows(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let ((start, shape), y) = (i.weight_at(0), i.output(0));
    let table = describe(start as u64, &shape, false);
    if y.rows == 1 {
        return queue.begin(NextStep::embedding(queue.step, table, y.as_ptr() as u64, is_f32(y.dtype)));
    }
    let arguments = Arguments { step: queue.step, table, y: y.as_ptr() as u64, f32: is_f32(y.dtype), unused: 0 };
    queue.launch("embed.cu", "embed_rows", ([y.rows as u32, 1, 1], [256, 1, 1], 0), &arguments);
}
