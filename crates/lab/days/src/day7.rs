//! Day 7: what happens to queries, keys and values between their projections and attention, in one call. Not here: attention.
//!
//! Two norms, two rotations and an append are five calls of a few hundred nanoseconds, some with a barrier before them. A head that
//! is normalised, turned and stored while it is in registers needs none of the barriers and none of the memory in between.

use ops::*;

/// Inputs q `(rows, heads * head_dim)`, k and v `(rows, kv_heads * head_dim)` bf16, and the table f32 `(rows, head_dim)` of day 4;
/// weights: none, or the norms of queries and of keys, f32 `(1, head_dim)` each; output as q.
///
/// Queries are normalised per head (where there are weights: `call.weights()` says so), turned, and written to the output. Keys
/// the same, and written to the cache at position `offset + r` (`call.cache_mut(sequence, false)`); values are copied to theirs
/// (`true`).
///
/// Must hold: one rounding, after the turn; exactly the new positions of each sequence are written; models without these norms
/// are right too. Workers share (row, key/value head) pairs, each with the query heads that use it.
fn norm_rope_append(_call: &Invocation<'_>) {
    unimplemented!("norm_rope_append is to be written in crates/lab/days/src/day7.rs");
}

fn bfloat16(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs[..3].iter().chain(&shape.outputs).all(|view| view.dtype == DType::BF16);
    if bf16 && shape.cache_dtype == DType::BF16 { Ok(()) } else { Err("needs bfloat16 buffers and cache".to_owned()) }
}

pub const NORM_ROPE_APPEND: Kernel = kernel! {
    operator: "norm_rope_append", name: "day-7", isa: "portable", features: &[], supports: bfloat16,
    nmse: 1.6e-5, because: "float32 in between and one bfloat16 rounding", run: norm_rope_append,
};

pub static KERNELS: &[&Kernel] = &[&NORM_ROPE_APPEND];

pub const CHECKPOINT: Checkpoint = Checkpoint {
    name: "day-7",
    parent: Some(&ladder::ONE_CALL_ATTENTION),
    prefers: &[ladder::choose("norm_rope_append", "day-7")],
    file: file!(),
    line: line!(),
    ..ladder::PLACED_HEADS
};
