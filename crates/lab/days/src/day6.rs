//! Day 6, beyond the chapter's route: decode attention in one call. Not here: prompts (day 5), which keep the tiled kernel.
//!
//! Readable attention of one row is three calls with barriers between them, and a score for every head and position goes through
//! memory. One call can read each key and each value once, for all the heads that use it, and keep the scores to itself.

use ops::*;

/// Query heads that share one key/value head, at most.
pub const GROUP: usize = 8;
/// Elements of a head, at most: sums of a group's heads fit on the stack, `GROUP * DIM` of them.
pub const DIM: usize = 128;

/// Input q `(rows, heads * head_dim)` bf16, at most eight rows; keys and values by `call.kv(sequence, false)` and
/// `(sequence, true)`, elements (head, position, d); output as q. Query head h uses key/value head `h / (heads / kv_heads)`. Row r
/// of a sequence sees positions `0..=offset + r`. Scores are q·k times `scale`; softmax over them; the mixture of values.
///
/// Must hold: each key and value is read once per row, whatever the number of heads that use it; no buffer grows with the number
/// of positions; rows of several sequences are right (`operators::parts::sequence_of`). Workers share (row, key/value head) pairs.
fn attention(_call: &Invocation<'_>) {
    unimplemented!("attention is to be written in crates/lab/days/src/day6.rs");
}

fn few_rows_of_small_groups(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs[0].dtype == DType::BF16 && shape.outputs[0].dtype == DType::BF16;
    let Attributes { heads, kv_heads, head_dim, .. } = shape.attributes;
    let few = shape.inputs[0].rows <= ladder::MATVEC_MAX_ROWS;
    if bf16 && few && heads / kv_heads <= GROUP && head_dim <= DIM {
        return Ok(());
    }
    Err(format!("needs at most eight bfloat16 rows, {GROUP} heads to a key/value head, heads of at most {DIM}"))
}

pub const ATTENTION: Kernel = kernel! {
    operator: "attention", name: "day-6", isa: "portable", features: &[], supports: few_rows_of_small_groups,
    nmse: 1.6e-5, because: "float32 sums and one bfloat16 rounding", run: attention,
};

pub static KERNELS: &[&Kernel] = &[&ATTENTION];

pub const CHECKPOINT: Checkpoint = Checkpoint {
    name: "day-6",
    parent: Some(&ladder::SELECTED),
    prefers: &[ladder::choose("attention", "day-6")],
    file: file!(),
    line: line!(),
    ..ladder::ONE_CALL_ATTENTION
};
