//! linear, linear_add, norm_linear and norm_swiglu on the device: which shapes the kernels take. How launches are cut is in
//! `matvec.rs`, `ahead.rs`, `matmul.rs` and `tiles.rs`. Not here: their arithmetic (`kernels/linear_*.cu`).

mod ahead;
pub(crate) mod matmul;
pub(crate) mod matvec;
mod readable;
pub(crate) mod tiles;

use self::matvec::Around;
use super::{ONE_ROUNDING, ONE_ROUNDING_REASON};
use crate::layout::{FRAGMENTS, PLAIN_BF16, layout};
use ops::{CallShape, DType, Invocation, Kernel, kernel};

/// Most rows that a matrix-vector kernel takes: the columns of one tensor-core instruction.
const MATVEC_ROWS: usize = 8;
/// Longest input that a block keeps the norm of: what shared memory holds beside the sums, without asking for more.
const NORM_COLS: usize = 4096;

const NMSE: f64 = 6e-6;
const REASON: &str = "one bfloat16 rounding of the output; sums in float32";

/// Any format and shape: one warp per output.
pub(crate) static VANILLA: Kernel = kernel! {
    operator: "linear", name: "vanilla", isa: "cuda", features: &[],
    nmse: NMSE, because: REASON, run: readable::linear,
};

/// Where the tensor cores cannot take the weight.
pub(crate) static READABLE_MATMUL: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "cuda", features: &[],
    nmse: NMSE, because: REASON, run: readable::linear,
};

pub(crate) static READABLE_MATVEC: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "cuda", features: &[], supports: few_rows,
    nmse: NMSE, because: REASON, run: readable::linear,
};

/// Blocks of outputs on the tensor cores; codes are first turned into bfloat16 weights in scratch.
pub(crate) static MATMUL: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "cuda-mma", features: &[], supports: matmul::takes, scratch: matmul::scratch,
    nmse: 1.2e-5, because: "weights of packed formats are rounded to bfloat16, and the output is", run: matmul::run,
};

/// The same on the tensor cores of Hopper's warpgroups.
pub(crate) static WARPGROUPS: Kernel = kernel! {
    operator: "linear", name: "matmul", isa: "cuda-wgmma", features: &[], supports: tiles::takes,
    scratch: matmul::scratch, nmse: 1.2e-5, because: "weights of packed formats are rounded to bfloat16, and the output is",
    run: tiles::run,
};

/// Each weight read once: codes through the tensor cores, bfloat16 through multiply-adds.
pub(crate) static MATVEC: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "cuda-mma", features: &[], supports: streams,
    nmse: NMSE, because: REASON, run: matvec::linear,
};

pub(crate) static ADD_READABLE: Kernel = kernel! {
    operator: "linear_add", name: "vanilla", isa: "cuda", features: &[], supports: super::all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: readable::linear_add,
};

pub(crate) static ADD_MATVEC: Kernel = kernel! {
    operator: "linear_add", name: "matvec", isa: "cuda-mma", features: &[], supports: streams,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: matvec::linear_add,
};

pub(crate) static NORM_READABLE: Kernel = kernel! {
    operator: "norm_linear", name: "vanilla", isa: "cuda", features: &[], supports: super::all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: readable::norm_linear,
};

const NORMED_NMSE: f64 = 2e-5;
const NORMED_REASON: &str =
    "one bfloat16 rounding of the input times its norm, for the tensor cores, and one of the output";

pub(crate) static NORM_MATVEC: Kernel = kernel! {
    operator: "norm_linear", name: "matvec", isa: "cuda-mma", features: &[], supports: normed_streams,
    nmse: NORMED_NMSE, because: NORMED_REASON, run: matvec::norm_linear,
};

/// What the activation does to the roundings of its two factors.
const GATED_NMSE: f64 = 4e-5;

pub(crate) static GATED_READABLE: Kernel = kernel! {
    operator: "norm_swiglu", name: "vanilla", isa: "cuda", features: &[], supports: super::all_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: readable::norm_swiglu,
};

pub(crate) static GATED_MATVEC: Kernel = kernel! {
    operator: "norm_swiglu", name: "matvec", isa: "cuda-mma", features: &[], supports: normed_streams,
    nmse: GATED_NMSE, because: NORMED_REASON, run: matvec::norm_swiglu,
};

/// A single row, on Hopper: a block's weights are in its shared memory before it waits for its input.
pub(crate) static AHEAD: Kernel = kernel! {
    operator: "linear", name: "matvec", isa: "cuda-hopper", features: &[], supports: ahead_streams,
    nmse: NMSE, because: REASON, run: ahead::linear,
};

pub(crate) static ADD_AHEAD: Kernel = kernel! {
    operator: "linear_add", name: "matvec", isa: "cuda-hopper", features: &[], supports: ahead_streams,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: ahead::linear_add,
};

pub(crate) static NORM_AHEAD: Kernel = kernel! {
    operator: "norm_linear", name: "matvec", isa: "cuda-hopper", features: &[], supports: ahead_normed,
    nmse: NORMED_NMSE, because: NORMED_REASON, run: ahead::norm_linear,
};

pub(crate) static GATED_AHEAD: Kernel = kernel! {
    operator: "norm_swiglu", name: "matvec", isa: "cuda-hopper", features: &[], supports: ahead_gated,
    nmse: GATED_NMSE, because: NORMED_REASON, run: ahead::norm_swiglu,
};

fn ahead_streams(shape: &CallShape) -> Result<(), String> {
    streams(shape)?;
    ahead::take(shape, &shape.weights[..1], Around::Nothing)
}

fn ahead_normed(shape: &CallShape) -> Result<(), String> {
    normed_streams(shape)?;
    ahead::take(shape, &shape.weights[1..], Around::Norm)
}

fn ahead_gated(shape: &CallShape) -> Result<(), String> {
    normed_streams(shape)?;
    ahead::take(shape, &shape.weights[1..], Around::Gated)
}

fn few_rows(shape: &CallShape) -> Result<(), String> {
    let rows = shape.inputs[0].rows;
    if rows <= MATVEC_ROWS { Ok(()) } else { Err(format!("takes up to {MATVEC_ROWS} rows, these are {rows}")) }
}

fn bf16_buffers(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs.iter().chain(&shape.outputs).all(|view| view.dtype == DType::BF16);
    if bf16 { Ok(()) } else { Err("needs bfloat16 buffers".to_owned()) }
}

/// These weights lie in fragments, or in plain rows whose columns `columns` divides.
fn fast_layouts(matrices: &[ops::WeightShape], columns: usize) -> Result<(), String> {
    let fits = |weight: &&ops::WeightShape| match layout(weight) {
        FRAGMENTS => true,
        PLAIN_BF16 => weight.cols.is_multiple_of(columns),
        _ => false,
    };
    match matrices.iter().find(|weight| !fits(weight)) {
        None => Ok(()),
        Some(weight) => Err(format!(
            "needs 4-bit codes with 16-bit scales and columns in 128s, or bfloat16 and columns in {columns}s; this is {} with {} \
             columns",
            weight.format, weight.cols
        )),
    }
}

fn streams(shape: &CallShape) -> Result<(), String> {
    few_rows(shape)?;
    bf16_buffers(shape)?;
    fast_layouts(&shape.weights[..1], 8)
}

fn normed_streams(shape: &CallShape) -> Result<(), String> {
    few_rows(shape)?;
    bf16_buffers(shape)?;
    let cols = shape.inputs[0].width;
    if cols > NORM_COLS {
        return Err(format!("keeps norms of up to {NORM_COLS} elements, this one has {cols}"));
    }
    fast_layouts(&shape.weights[1..], 8)
}

fn bias(i: &Invocation<'_>) -> u64 {
    if i.weights() > 1 { i.weight_at(1).0 as u64 } else { 0 }
}
