//! cache_append and cache_grow on the device. Not here: the copying (`kernels/cache.cu`).

use super::{all_bf16, blocks};
use crate::queue::Queue;
use ops::{Attributes, Invocation, Kernel, kernel};

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    step: u64,
    k: u64,
    v: u64,
    kv_heads: u32,
    dim: u32,
    layer: u32,
    unused: u32,
}

pub(crate) static APPEND: Kernel = kernel! {
    operator: "cache_append", name: "rows", isa: "cuda", features: &[], supports: all_bf16,
    nmse: 0.0, because: "values are moved", run: append,
};

pub(crate) static GROW: Kernel = kernel! {
    operator: "cache_grow", name: "runs", isa: "cuda", features: &[], supports: all_bf16,
    nmse: 0.0, because: "values are moved", run: grow,
};

fn arguments(i: &Invocation<'_>, queue: &Queue) -> Arguments {
    let Attributes { kv_heads, head_dim, .. } = *i.attributes();
    let input = |index: usize| if i.inputs() > index { i.input(index).as_ptr() as u64 } else { 0 };
    Arguments {
        step: queue.step,
        k: input(0),
        v: input(1),
        kv_heads: kv_heads as u32,
        dim: head_dim as u32,
        layer: i.layer().unwrap_or(0) as u32,
        unused: 0,
    }
}

fn append(i: &Invocation<'_>) {
    let (queue, k): (&Queue, _) = (i.queue(), i.input(0));
    let launch = (blocks(k.rows * k.width, 256), [256, 1, 1], 0);
    queue.launch("cache.cu", "cache_append_elements", launch, &arguments(i, queue));
}

fn grow(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let launch = ([64, i.step.sequences.len() as u32, 1], [256, 1, 1], 0);
    queue.launch("cache.cu", "cache_grow_elements", launch, &arguments(i, queue));
}
