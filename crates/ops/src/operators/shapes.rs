//! Checks and loops that several operators share.
//! Not here: rules of one operator alone, and what depends on sequences (`sequences.rs`).

#![allow(unsafe_code, reason = "exclusive slices of outputs")]

use crate::operator::{CallShape, Cost};
use crate::{DType, Invocation, Matrix, MatrixMut};
use std::ops::Range;

/// The call has exactly so many operands.
pub(crate) fn expect(shape: &CallShape, inputs: usize, weights: usize, outputs: usize) -> Result<(), String> {
    let found = (shape.inputs.len(), shape.weights.len(), shape.outputs.len());
    if found == (inputs, weights, outputs) {
        return Ok(());
    }
    let (i, w, o) = found;
    Err(format!(
        "expected {inputs} inputs, {weights} weights and {outputs} outputs, found {i} inputs, {w} weights and {o} outputs"
    ))
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

/// Rows of output 0 divide into segments of `head_dim`.
pub(crate) fn segmented(shape: &CallShape) -> Result<(), String> {
    let (width, dim) = (shape.outputs[0].width, shape.attributes.head_dim);
    if dim == 0 || !width.is_multiple_of(dim) {
        return Err(format!("width {width} does not divide into segments of {dim}"));
    }
    Ok(())
}

/// Weight 0 is an f32 vector of `head_dim` elements.
pub(crate) fn vector_weight(shape: &CallShape) -> Result<(), String> {
    let weight = &shape.weights[0];
    let dim = shape.attributes.head_dim;
    if (weight.rows, weight.cols) == (1, dim) && weight.format == crate::WeightFormat::F32 {
        return Ok(());
    }
    Err(format!("the weight is {} ({}, {}), expected f32 (1, {dim})", weight.format, weight.rows, weight.cols))
}

/// Segments of an even size (rotary pairs), and input `table` is the f32 cosine and sine table `(rows, head_dim)`.
pub(crate) fn rotary(shape: &CallShape, table: Option<usize>) -> Result<(), String> {
    segmented(shape)?;
    let dim = shape.attributes.head_dim;
    if !dim.is_multiple_of(2) {
        return Err(format!("head size {dim} is odd: rotary position works on pairs"));
    }
    let Some(index) = table else { return Ok(()) };
    let (table, rows) = (&shape.inputs[index], shape.outputs[0].rows);
    if (table.rows, table.width, table.dtype) == (rows, dim, DType::F32) {
        return Ok(());
    }
    Err(format!(
        "the table (input {index}) is {:?} ({}, {}), expected F32 ({rows}, {dim})",
        table.dtype, table.rows, table.width
    ))
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

/// Input 0 and output 0 are bfloat16 (a kernel's `supports`, where other operands are f32 in any case).
pub(crate) fn data_bf16(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs[0].dtype == DType::BF16 && shape.outputs[0].dtype == DType::BF16;
    if bf16 { Ok(()) } else { Err("needs bfloat16 input and output".to_owned()) }
}

/// Tolerance of kernels that compute in f32 and round their output to bfloat16.
pub(crate) const ONE_ROUNDING: f64 = 1.6e-5;
pub(crate) const ONE_ROUNDING_REASON: &str =
    "one bfloat16 rounding, which is at most 2^-8 of each element (and 1e-6 to 5e-6 in the mean)";

/// Elements of a cache line of bfloat16: parts of this size never share a line between workers.
const LINE: usize = 32;

/// This worker's part of `count` elements, in whole lines.
#[inline(always)]
pub(crate) fn elements(i: &Invocation<'_>, count: usize) -> Range<usize> {
    let lines = i.share(count.div_ceil(LINE));
    lines.start * LINE..(lines.end * LINE).min(count)
}

/// A part of a bfloat16 operand seen as one row (rows follow each other without gaps).
#[inline(always)]
pub(crate) fn flat<'a>(matrix: &Matrix<'a>, part: Range<usize>) -> &'a [u16] {
    assert!(matrix.dtype == DType::BF16 && part.start <= part.end && part.end <= matrix.rows * matrix.width);
    // SAFETY: inside the operand (asserted); no worker writes it while this call reads it (barriers).
    unsafe { std::slice::from_raw_parts(matrix.as_ptr().cast::<u16>().add(part.start), part.len()) }
}

/// A part of a bfloat16 output seen as one row, writable.
///
/// # Safety
/// - No other worker, and no other slice, touches the part while this one lives.
#[inline(always)]
pub(crate) unsafe fn flat_mut<'a>(matrix: &MatrixMut<'a>, part: Range<usize>) -> &'a mut [u16] {
    assert!(matrix.dtype == DType::BF16 && part.start <= part.end && part.end <= matrix.rows * matrix.width);
    // SAFETY: inside the operand (asserted); exclusivity is the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(matrix.as_mut_ptr().cast::<u16>().add(part.start), part.len()) }
}

/// This worker's part of the elements of inputs 0 and 1 and of output 0, all bfloat16.
#[inline(always)]
pub(crate) fn two_to_one<'a>(i: &Invocation<'a>) -> (&'a [u16], &'a [u16], &'a mut [u16]) {
    let (a, b, y) = (i.input(0), i.input(1), i.output(0));
    let part = elements(i, y.rows * y.width);
    // SAFETY: elements are shared out, so no other worker has this part; operators that use this do not work in place, so
    // the inputs do not overlap it.
    let out = unsafe { flat_mut(&y, part.clone()) };
    (flat(&a, part.clone()), flat(&b, part), out)
}

/// This worker's part of the elements of input 0 and of output 0, both bfloat16.
#[inline(always)]
pub(crate) fn one_to_one<'a>(i: &Invocation<'a>) -> (&'a [u16], &'a mut [u16]) {
    let (x, y) = (i.input(0), i.output(0));
    let part = elements(i, y.rows * y.width);
    // SAFETY: as in `two_to_one`.
    let out = unsafe { flat_mut(&y, part.clone()) };
    (flat(&x, part), out)
}

/// This worker's segments of `head_dim` elements of input 0 and output 0, both bfloat16: row, input, output.
///
/// An iterator, not a callback: a body compiled for more instructions than this function must not be called from here.
#[inline(always)]
pub(crate) fn segments<'a>(i: &Invocation<'a>) -> impl Iterator<Item = (usize, &'a [u16], &'a mut [u16])> + use<'a> {
    let (x, y) = (i.input(0), i.output(0));
    let dim = i.attributes().head_dim;
    let per_row = y.width / dim;
    i.share(y.rows * per_row).map(move |segment| {
        let part = segment * dim..(segment + 1) * dim;
        // SAFETY: segments are shared out, so no other worker has this one; the input does not overlap the output.
        let out = unsafe { flat_mut(&y, part.clone()) };
        (segment / per_row, flat(&x, part), out)
    })
}
