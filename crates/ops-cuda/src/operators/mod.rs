//! The device's twins of the operators' kernels: which shapes each takes, and its launch. One file per CUDA C++ file.
//! Not here: arithmetic (`kernels/`), and references and cases (`ops`).

pub(crate) mod attention;
mod cache;
mod elementwise;
mod embed;
pub(crate) mod linear;
pub(crate) mod next_step;
mod norm;
mod rope;
mod rope_table;

use ops::{CallShape, DType, Kernel};

/// The bound of the CPU kernels of the same operators, for the same reason.
const ONE_ROUNDING: f64 = 1.6e-5;
const ONE_ROUNDING_REASON: &str = "float32 arithmetic and one bfloat16 rounding, which is at most 2^-8 of each element";

/// Every kernel, slowest first; those of Hopper stand after the matrix products of every GPU, and at the end.
macro_rules! kernels {
    ([$($products:expr),*], [$($ahead:expr),*]) => {
        &[
            &embed::ROWS,
            &rope_table::ROWS,
            &norm::RMS_SCALE,
            &elementwise::MUL_WEIGHT,
            &norm::TWO_PASS,
            &norm::KEPT,
            &rope::ROTATE_HALF,
            &rope::ROPE_COMBINE,
            &rope::ROPE,
            &rope::NORM_ROPE_APPEND,
            &cache::GROW,
            &cache::APPEND,
            &attention::SCORES,
            &attention::SOFTMAX,
            &attention::MIX,
            &attention::ROWS,
            &attention::TILES,
            &attention::SPLIT,
            &attention::PLACED,
            &elementwise::ADD,
            &norm::ADD_SEGMENTS,
            &norm::ADD_KEPT,
            &linear::VANILLA,
            &linear::READABLE_MATMUL,
            &linear::READABLE_MATVEC,
            &linear::MATMUL,
            $($products,)*
            &linear::MATVEC,
            &linear::ADD_READABLE,
            &linear::ADD_MATVEC,
            &linear::NORM_READABLE,
            &linear::NORM_MATVEC,
            &linear::GATED_READABLE,
            &linear::GATED_MATVEC,
            &elementwise::MUL,
            &elementwise::SILU,
            &elementwise::SWIGLU,
            $($ahead,)*
        ]
    };
}

/// What any GPU runs.
pub(crate) static ALL: &[&Kernel] = kernels!([], []);

/// With those of a Hopper GPU, which has instructions that no other has.
pub(crate) static HOPPER: &[&Kernel] = kernels!(
    [&linear::WARPGROUPS],
    [&attention::CLUSTERS, &linear::AHEAD, &linear::ADD_AHEAD, &linear::NORM_AHEAD, &linear::GATED_AHEAD]
);

/// Buffers and cache are bfloat16, tables and scores aside.
fn bf16_data(shape: &CallShape, inputs: std::ops::Range<usize>) -> Result<(), String> {
    let inputs = shape.inputs.get(inputs).unwrap_or_default();
    if inputs.iter().chain(&shape.outputs).all(|view| view.dtype == DType::BF16) && shape.cache_dtype == DType::BF16 {
        Ok(())
    } else {
        Err("needs bfloat16 buffers and cache; the oracle `reference` runs on the CPU".to_owned())
    }
}

fn all_bf16(shape: &CallShape) -> Result<(), String> {
    bf16_data(shape, 0..shape.inputs.len())
}

/// Blocks of `threads` for `items`.
fn blocks(items: usize, threads: usize) -> [u32; 3] {
    [items.div_ceil(threads) as u32, 1, 1]
}

fn is_f32(dtype: DType) -> u32 {
    u32::from(dtype == DType::F32)
}
