//! Day 2: a product of few rows with a packed weight. Not here: many rows (day 3), which stay with the readable fallback.
//!
//! A decode step reads every weight once, so its time follows the bytes of the weights. Four bits an element instead of sixteen
//! are a quarter of them, if nobody unpacks them into memory first.

use ops::*;

/// Input x `(rows, in)` bf16, at most eight rows; weight 0 `(out, in)` packed, weight 1 (if there) a bias f32 `(1, out)`; output
/// `(rows, out)` bf16: x Wᵀ + bias, summed in float32, rounded once.
///
/// `call.weight(0).value(row, col)` is an element, unpacked: right, and slow. The layouts are in the first lines of
/// crates/ops/src/weight.rs: sixteen outputs side by side, a line of scales and biases for each group of columns.
///
/// Must hold: each byte of the weight is read once, whatever the number of rows; workers share the outputs.
fn matvec(_call: &Invocation<'_>) {
    unimplemented!("matvec is to be written in crates/lab/days/src/day2.rs");
}

fn few_rows_packed(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs[0].dtype == DType::BF16 && shape.outputs[0].dtype == DType::BF16;
    let few = shape.inputs[0].rows <= ladder::MATVEC_MAX_ROWS;
    if bf16 && few && shape.weights[0].format.is_packed() {
        return Ok(());
    }
    Err("needs at most eight bfloat16 rows and a packed weight".to_owned())
}

pub const MATVEC: Kernel = kernel! {
    operator: "linear", name: "day-2", isa: "portable", features: &[], supports: few_rows_packed,
    nmse: 1.6e-5, because: "float32 sums and one bfloat16 rounding", run: matvec,
};

pub static KERNELS: &[&Kernel] = &[&MATVEC];

pub const CHECKPOINT: Checkpoint = Checkpoint {
    name: "day-2",
    parent: Some(&ladder::CAPACITY_CACHE),
    prefers: &[ladder::choose("linear", "day-2")],
    file: file!(),
    line: line!(),
    ..ladder::QUANTIZED_MATVEC
};
