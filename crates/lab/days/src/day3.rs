//! Day 3: a product of many rows with a packed weight. Not here: eight rows and fewer (day 2).
//!
//! A prompt has many rows, and each of them needs every weight. The readable fallback unpacks a weight again for every row. A tile
//! unpacked once serves many rows.

use ops::*;

/// Input x `(rows, in)` bf16, more than eight rows; weight 0 `(out, in)` packed, weight 1 (if there) a bias f32 `(1, out)`; output
/// `(rows, out)` bf16, as on day 2.
///
/// Must hold: each weight is unpacked once per block of rows; rows and outputs that fill no tile are right; workers share the
/// outputs. What a tile needs may live on the stack.
fn matmul(_call: &Invocation<'_>) {
    unimplemented!("matmul is to be written in crates/lab/days/src/day3.rs");
}

fn many_rows_packed(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs[0].dtype == DType::BF16 && shape.outputs[0].dtype == DType::BF16;
    let many = shape.inputs[0].rows > ladder::MATVEC_MAX_ROWS;
    if bf16 && many && shape.weights[0].format.is_packed() {
        return Ok(());
    }
    Err("needs more than eight bfloat16 rows and a packed weight".to_owned())
}

pub const MATMUL: Kernel = kernel! {
    operator: "linear", name: "day-3", isa: "portable", features: &[], supports: many_rows_packed,
    nmse: 1.6e-5, because: "float32 sums and one bfloat16 rounding", run: matmul,
};

pub static KERNELS: &[&Kernel] = &[&MATMUL];

pub const CHECKPOINT: Checkpoint = Checkpoint {
    name: "day-3",
    parent: Some(&ladder::QUANTIZED_MATVEC),
    prefers: &[ladder::choose("linear", "day-3")],
    file: file!(),
    line: line!(),
    ..ladder::SIMD_MATMUL
};
