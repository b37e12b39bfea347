//! Day 1: keys and values are kept, and the storage grows. Not here: one allocation for the whole request, which needs no kernel.
//!
//! Without a cache every step runs the whole prefix again. With one, a step appends its keys and values to what is there. When the
//! storage is full a larger one takes its place, and what was in the old one is copied first.

use ops::*;

/// Inputs k, v `(rows, kv_heads * head_dim)`; no outputs. Row r of a sequence goes to position `offset + r` of its cache, for
/// every key/value head: `call.cache_mut(sequence, false)` are the keys, `true` the values.
///
/// Must hold: exactly the new positions are written, every sequence of the step has its own cache, and workers share the rows.
fn append(_call: &Invocation<'_>) {
    unimplemented!("append is to be written in crates/lab/days/src/day1.rs");
}

/// No inputs, no outputs. Where a sequence's storage was replaced (`call.previous(sequence, value)` is the old one), positions
/// `0..offset` of every head are copied to the new one. The capacities differ, so the heads begin elsewhere.
///
/// Must hold: a sequence whose storage stayed is left alone.
fn grow(_call: &Invocation<'_>) {
    unimplemented!("grow is to be written in crates/lab/days/src/day1.rs");
}

pub const APPEND: Kernel = kernel! {
    operator: "cache_append", name: "day-1", isa: "portable", features: &[],
    nmse: 0.0, because: "nothing is computed", run: append,
};

pub const GROW: Kernel = kernel! {
    operator: "cache_grow", name: "day-1", isa: "portable", features: &[],
    nmse: 0.0, because: "nothing is computed", run: grow,
};

pub static KERNELS: &[&Kernel] = &[&APPEND, &GROW];

pub const CHECKPOINT: Checkpoint = Checkpoint {
    name: "day-1",
    parent: Some(&ladder::WEEK1),
    prefers: &[ladder::choose("cache_append", "day-1"), ladder::choose("cache_grow", "day-1")],
    file: file!(),
    line: line!(),
    ..ladder::KV_CACHE
};
