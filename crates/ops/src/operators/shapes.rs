//! Checks and loops that several operators share.

#![allow(unsafe_code, reason = "exclusive row slices of outputs")]

use crate::operator::{CallShape, Cost};
use crate::{DType, Invocation};

/// The call has exactly so many operands.
pub(crate) fn expect(shape: &CallShape, inputs: usize, weights: usize, outputs: usize) -> Result<(), String> {
    let found = (shape.inputs.len(), shape.weights.len(), shape.outputs.len());
    if found == (inputs, weights, outputs) {
        return Ok(());
    }
    Err(format!("expected {inputs} inputs, {weights} weights and {outputs} outputs, found {found:?}"))
}

/// These inputs have output 0's rows and width.
pub(crate) fn same_shape(shape: &CallShape, inputs: &[usize]) -> Result<(), String> {
    let want = (shape.outputs[0].rows, shape.outputs[0].width);
    for index in inputs {
        let found = (shape.inputs[*index].rows, shape.inputs[*index].width);
        if found != want {
            return Err(format!("input {index} is {found:?}, the output {want:?}"));
        }
    }
    Ok(())
}

/// Each input and weight read once, each output written once, so many flops per element of output 0.
pub(crate) fn elementwise_cost(shape: &CallShape, flops_per_element: u64) -> Cost {
    let weights: u64 = shape.weights.iter().map(|weight| weight.bytes()).sum();
    Cost {
        bytes_read: shape.inputs.iter().map(|view| view.bytes()).sum::<u64>() + weights,
        bytes_written: shape.outputs.iter().map(|view| view.bytes()).sum(),
        flops: (shape.outputs[0].rows * shape.outputs[0].width) as u64 * flops_per_element,
    }
}

/// All buffers are bfloat16 (a kernel's `supports`).
pub(crate) fn all_bf16(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs.iter().chain(&shape.outputs).all(|view| view.dtype == DType::BF16);
    if bf16 { Ok(()) } else { Err("needs bfloat16 buffers".to_owned()) }
}

/// Calls `body(a, b, y)` with this worker's parts of the rows of inputs 0 and 1 and output 0, all bfloat16. A single row is
/// shared by columns.
pub(crate) fn each_row_bf16(i: &Invocation<'_>, body: impl Fn(&[u16], &[u16], &mut [u16])) {
    let (a, b, y) = (i.input(0), i.input(1), i.output(0));
    let cols = if y.rows == 1 { i.share(y.width) } else { 0..y.width };
    let rows = if y.rows == 1 { 0..1 } else { i.share(y.rows) };
    for row in rows {
        // SAFETY: rows (or columns of the one row) are shared out, so no other worker has this part; operators that use this
        // do not work in place, so the inputs do not overlap it.
        let y = unsafe { std::slice::from_raw_parts_mut(y.bf16_mut(row).as_mut_ptr().add(cols.start), cols.len()) };
        body(&a.bf16(row)[cols.clone()], &b.bf16(row)[cols.clone()], y);
    }
}
