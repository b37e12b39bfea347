//! Day 5: prefill attention in tiles. Not here: decode and heads of another size than 128, which stay readable.
//!
//! Readable attention writes a score for every pair of positions, reads all of them for the softmax and again for the mixture. A
//! running softmax needs none of it in memory: over tiles of keys it keeps the largest score so far, the sum of exponentials, and
//! the mixture, and scales the last two when a larger score comes.

use ops::*;

/// Input q `(rows, heads * head_dim)` bf16; keys and values by `call.kv(sequence, false)` and `(sequence, true)`, elements
/// (head, position, d); output as q. Query head h uses key/value head `h / (heads / kv_heads)`. Row r of a sequence sees positions
/// `0..=offset + r`. Scores are q·k times `scale`.
///
/// Must hold: no buffer grows with the number of positions; the first row, which sees one position, is right; a sequence of a step
/// sees no other one's keys (`operators::parts::sequence_of` says which one a row is of). Workers share rows and heads.
fn attention(_call: &Invocation<'_>) {
    unimplemented!("attention is to be written in crates/lab/days/src/day5.rs");
}

fn bfloat16(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs[0].dtype == DType::BF16 && shape.outputs[0].dtype == DType::BF16;
    if bf16 { Ok(()) } else { Err("needs bfloat16 buffers".to_owned()) }
}

pub const ATTENTION: Kernel = kernel! {
    operator: "attention", name: "day-5", isa: "portable", features: &[], supports: bfloat16,
    nmse: 4e-5, because: "float32 sums, one bfloat16 rounding; probabilities may be rounded to bfloat16 too", run: attention,
};

pub static KERNELS: &[&Kernel] = &[&ATTENTION];

pub const CHECKPOINT: Checkpoint = Checkpoint {
    name: "day-5",
    parent: Some(&ladder::SWIGLU_RUNG),
    prefers: &[ladder::choose("attention", "day-5")],
    file: file!(),
    line: line!(),
    ..ladder::TILED_PREFILL
};
