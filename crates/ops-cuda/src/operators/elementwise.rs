//! add, mul, silu, swiglu and mul_weight on the device. Not here: their arithmetic (`kernels/elementwise.cu`).

use super::{ONE_ROUNDING, ONE_ROUNDING_REASON, all_bf16, blocks};
use crate::queue::Queue;
use ops::{Invocation, Kernel, kernel};

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    a: u64,
    b: u64,
    y: u64,
    w: u64,
    count: u64,
    dim: u32,
    unused: u32,
}

macro_rules! elementwise {
    ($name:ident, $operator:literal, $function:ident) => {
        pub(crate) static $name: Kernel = kernel! {
            operator: $operator, name: "rows", isa: "cuda", features: &[], supports: all_bf16,
            nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: $function,
        };
    };
}

elementwise!(ADD, "add", add);
elementwise!(MUL, "mul", mul);
elementwise!(SILU, "silu", silu);
elementwise!(SWIGLU, "swiglu", swiglu);
elementwise!(MUL_WEIGHT, "mul_weight", mul_weight);

fn arguments(i: &Invocation<'_>) -> Arguments {
    let y = i.output(0);
    let (w, dim) = if i.weights() == 0 { (0, 1) } else { (i.weight_at(0).0 as u64, i.weight_at(0).1.cols as u32) };
    Arguments {
        a: i.input(0).as_ptr() as u64,
        b: if i.inputs() > 1 { i.input(1).as_ptr() as u64 } else { 0 },
        y: y.as_ptr() as u64,
        w,
        count: (y.rows * y.width) as u64,
        dim,
        unused: 0,
    }
}

fn launch(i: &Invocation<'_>, name: &'static str) {
    let (queue, arguments): (&Queue, _) = (i.queue(), arguments(i));
    queue.launch("elementwise.cu", name, (blocks(arguments.count as usize, 256), [256, 1, 1], 0), &arguments);
}

fn add(i: &Invocation<'_>) {
    launch(i, "add_elements");
}

fn mul(i: &Invocation<'_>) {
    launch(i, "mul_elements");
}

fn silu(i: &Invocation<'_>) {
    launch(i, "silu_elements");
}

fn mul_weight(i: &Invocation<'_>) {
    launch(i, "mul_weight_elements");
}

fn swiglu(i: &Invocation<'_>) {
    let (queue, arguments): (&Queue, _) = (i.queue(), arguments(i));
    let starts = [arguments.a, arguments.b, arguments.y];
    if arguments.count % 8 != 0 || starts.iter().any(|start| start % 16 != 0) {
        return launch(i, "swiglu_elements");
    }
    let grid = blocks(arguments.count as usize / 8, 256);
    queue.launch("elementwise.cu", "swiglu_eights", (grid, [256, 1, 1], 0), &arguments);
}
