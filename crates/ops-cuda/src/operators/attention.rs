//! attention_scores, softmax, attention_mix and attention on the device. Not here: their arithmetic (`kernels/attention_*.cu`).

use super::{ONE_ROUNDING, ONE_ROUNDING_REASON, bf16_data, blocks};
use crate::queue::Queue;
use ops::{Attributes, CallShape, DType, Invocation, Kernel, Keys, kernel};

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    step: u64,
    q: u64,
    k: u64,
    v: u64,
    y: u64,
    partial: u64,
    arrived: u64,
    rows: u32,
    heads: u32,
    kv_heads: u32,
    dim: u32,
    scale: f32,
    context: u32,
    layer: u32,
    splits: u32,
    table: u64,
    q_norm: u64,
    k_norm: u64,
    epsilon: f32,
    interleaved: u32,
}

/// Blocks that a decode step's positions are split into, at most: two per processor of a large GPU.
const BLOCKS: usize = 264;
/// Most rows of a step whose positions are split.
const SPLIT_ROWS: usize = 8;
/// Most query heads that share a key/value head, of which there is a kernel: columns of a tensor-core product.
const MOST_GROUP: usize = 8;

fn bf16_inputs(shape: &CallShape) -> Result<(), String> {
    if shape.inputs.iter().all(|view| view.dtype == DType::BF16) && shape.cache_dtype == DType::BF16 {
        return Ok(());
    }
    Err("needs bfloat16 buffers and cache; the oracle `reference` runs on the CPU".to_owned())
}

fn mixes(shape: &CallShape) -> Result<(), String> {
    bf16_data(shape, 1..shape.inputs.len())
}

fn short_heads(shape: &CallShape) -> Result<(), String> {
    bf16_data(shape, 0..shape.inputs.len())?;
    let dim = shape.attributes.head_dim;
    if dim <= 256 { Ok(()) } else { Err(format!("takes heads of up to 256 elements, these have {dim}")) }
}

fn tiled(shape: &CallShape) -> Result<(), String> {
    short_heads(shape)?;
    match shape.attributes.head_dim {
        64 | 128 => Ok(()),
        dim => Err(format!("takes heads of 64 or 128 elements, these have {dim}")),
    }
}

fn few_rows(shape: &CallShape) -> Result<(), String> {
    tiled(shape)?;
    let (rows, group) = (shape.outputs[0].rows, shape.attributes.heads / shape.attributes.kv_heads);
    if rows <= SPLIT_ROWS && group <= MOST_GROUP {
        return Ok(());
    }
    Err(format!(
        "takes up to {SPLIT_ROWS} rows and {MOST_GROUP} query heads per key/value head; these are {rows} and {group}"
    ))
}

fn splits(rows: usize, kv_heads: usize) -> usize {
    (BLOCKS / (rows * kv_heads).max(1)).clamp(1, 64)
}

/// Numbers of every (row, key/value head, split, query head), a largest score and a sum.
fn partial_bytes(shape: &CallShape) -> usize {
    let Attributes { heads, kv_heads, head_dim, .. } = shape.attributes;
    let rows = shape.outputs[0].rows;
    rows * heads * splits(rows, kv_heads) * (head_dim + 2) * 4
}

pub(crate) static SCORES: Kernel = kernel! {
    operator: "attention_scores", name: "rows", isa: "cuda", features: &[], supports: bf16_inputs,
    nmse: 1e-10, because: "float32 sums in another order", run: scores,
};

pub(crate) static SOFTMAX: Kernel = kernel! {
    operator: "softmax", name: "rows", isa: "cuda", features: &[],
    nmse: 1e-9, because: "float32 sums, and the hardware's exponential", run: softmax,
};

pub(crate) static MIX: Kernel = kernel! {
    operator: "attention_mix", name: "rows", isa: "cuda", features: &[], supports: mixes,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: mix,
};

/// Any head size: one warp per row and head.
pub(crate) static ROWS: Kernel = kernel! {
    operator: "attention", name: "rows", isa: "cuda", features: &[], supports: short_heads,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows,
};

/// Many rows: tiles on the tensor cores.
pub(crate) static TILES: Kernel = kernel! {
    operator: "attention", name: "tiled", isa: "cuda-mma", features: &[], supports: tiled,
    nmse: 2e-5, because: "probabilities are rounded to bfloat16 for the tensor cores, and the result once more", run: tiles,
};

/// Few rows: the positions split among blocks.
pub(crate) static SPLIT: Kernel = kernel! {
    operator: "attention", name: "decode", isa: "cuda", features: &[], supports: few_rows, scratch: partial_bytes,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: split,
};

/// A single row from its raw projections.
pub(crate) static PLACED: Kernel = kernel! {
    operator: "placed_attention", name: "decode", isa: "cuda", features: &[], supports: placed_row, scratch: partial_bytes,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: placed,
};

/// The same among the blocks of a cluster, which merge through each other's shared memory.
pub(crate) static CLUSTERS: Kernel = kernel! {
    operator: "placed_attention", name: "decode", isa: "cuda-hopper", features: &[], supports: placed_row,
    nmse: ONE_ROUNDING, because: "two bfloat16 roundings, of the weights for the tensor cores and of the result", run: clusters,
};

/// How a single row's positions are shared: blocks of a cluster, warps of a block, and tiles of 16 positions that each warp has on their
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    blocks: u32,
    warps: u32,
    stages: u32,
}

/// Positions from which on a single row's are shared in another way, and its products are cut in another.
const DEEP: usize = 768;

/// Which of the ranges of positions, in which launches have other shapes, a step is in.
pub(crate) fn range_of(step: &ops::Step<'_>) -> u32 {
    u32::from(is_deep(step))
}

pub(crate) fn is_deep(step: &ops::Step<'_>) -> bool {
    step.sequences.first().is_some_and(|sequence| sequence.offset >= DEEP)
}

/// Measured in whole steps of Qwen3-0.6B and 4B on an H200, at 192, 600 and 2,030 to 3,000 positions.
fn share(deep: bool, group: usize) -> Share {
    match (deep, group) {
        (false, ..=2) => Share { blocks: 4, warps: 5, stages: 2 },
        (false, _) => Share { blocks: 4, warps: 10, stages: 1 },
        (true, _) => Share { blocks: 8, warps: 6, stages: 3 },
    }
}

/// The kernel of a way to share, for heads of so many elements and at most so many query heads per key/value head; and its shared
/// memory: every warp's tiles of keys and values, and what warps and blocks tell each other (`Shared` of `attention_cluster.cu`).
fn cluster_kernel(share: Share, head_dim: usize, group: usize) -> (&'static str, u32) {
    macro_rules! of {
        ($share:literal) => {
            match (head_dim, group) {
                (128, ..=2) => (concat!("placed_cluster_", $share, "_d128_g2"), 2),
                (128, 3..=4) => (concat!("placed_cluster_", $share, "_d128_g4"), 4),
                (128, _) => (concat!("placed_cluster_", $share, "_d128_g8"), 8),
                (_, ..=2) => (concat!("placed_cluster_", $share, "_d64_g2"), 2),
                (_, 3..=4) => (concat!("placed_cluster_", $share, "_d64_g4"), 4),
                _ => (concat!("placed_cluster_", $share, "_d64_g8"), 8),
            }
        };
    }
    let (name, wide) = match (share.blocks, share.warps) {
        (4, 5) => of!("b4w5s2"),
        (4, _) => of!("b4w10s1"),
        _ => of!("b8w6s3"),
    };
    let Share { blocks, warps, stages } = share;
    let dim = head_dim as u32;
    let tiles = warps * stages * 2 * 16 * dim * 2;
    let told = wide / 2 * blocks * 16 + dim * wide * 4 + wide / 2 * warps * 8 + wide / 2 * 8;
    (name, tiles + told.next_multiple_of(16))
}

fn placed_row(shape: &CallShape) -> Result<(), String> {
    bf16_data(shape, 0..3)?;
    let group = shape.attributes.heads / shape.attributes.kv_heads;
    match (shape.attributes.head_dim, group) {
        (64 | 128, ..=MOST_GROUP) => Ok(()),
        (dim, group) => Err(format!(
            "takes heads of 64 or 128 elements, up to {MOST_GROUP} query heads per key/value head; these have {dim}, and are {group}"
        )),
    }
}

/// Keys and values are the inputs from `first` on if there is no cache.
fn arguments(i: &Invocation<'_>, queue: &Queue, (first_key, first_value): (Option<usize>, Option<usize>)) -> Arguments {
    let Attributes { heads, kv_heads, head_dim, scale, keys, .. } = *i.attributes();
    let step_keys = |index: Option<usize>| match (keys, index) {
        (Keys::Step, Some(index)) => i.input(index).as_ptr() as u64,
        _ => 0,
    };
    Arguments {
        step: queue.step,
        q: if i.inputs() > 0 { i.input(0).as_ptr() as u64 } else { 0 },
        k: step_keys(first_key),
        v: step_keys(first_value),
        y: i.output(0).as_ptr() as u64,
        partial: i.scratch_at().0 as u64,
        arrived: queue.arrivals,
        rows: i.step.tokens.len() as u32,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        dim: head_dim as u32,
        scale,
        context: 0,
        layer: i.layer().unwrap_or(0) as u32,
        splits: 1,
        table: 0,
        q_norm: 0,
        k_norm: 0,
        epsilon: 0.0,
        interleaved: 0,
    }
}

fn scores(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let (q, scores) = (i.input(0), i.output(0));
    let mut arguments = arguments(i, queue, (Some(1), None));
    (arguments.rows, arguments.context) = (q.rows as u32, scores.width as u32);
    let across = scores.width.div_ceil(8).min(256) as u32;
    // A grid is 65,535 high at most; rows beyond are another launch's, which none of the ladder's chunks needs.
    let launch = ([across, scores.rows.min(65_535) as u32, 1], [256, 1, 1], 0);
    queue.launch("attention_readable.cu", "attention_scores_rows", launch, &arguments);
}

fn softmax(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let scores = i.output(0);
    let mut arguments = arguments(i, queue, (None, None));
    arguments.context = scores.width as u32;
    let launch = ([scores.rows as u32, 1, 1], [256, 1, 1], 0);
    queue.launch("attention_readable.cu", "softmax_rows", launch, &arguments);
}

fn mix(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let probabilities = i.input(0);
    let mut arguments = arguments(i, queue, (None, Some(1)));
    arguments.context = probabilities.width as u32;
    let launch = ([probabilities.rows as u32, 1, 1], [256, 1, 1], 0);
    queue.launch("attention_readable.cu", "attention_mix_rows", launch, &arguments);
}

fn rows(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let arguments = arguments(i, queue, (Some(1), Some(2)));
    let launch = (blocks(i.output(0).rows * i.attributes().heads, 4), [128, 1, 1], 0);
    queue.launch("attention_readable.cu", "attention_rows", launch, &arguments);
}

fn tiles(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let arguments = arguments(i, queue, (Some(1), Some(2)));
    let Attributes { heads, head_dim, .. } = *i.attributes();
    let sequences = i.step.sequences;
    let longest = sequences.iter().map(|sequence| sequence.rows).max().unwrap_or(0);
    let name = if head_dim == 128 { "attention_tiles_d128" } else { "attention_tiles_d64" };
    // Queries, and two stages of keys and values: five tiles of 64 rows.
    let shared = 5 * 64 * head_dim as u32 * 2;
    let grid = [longest.div_ceil(64) as u32, heads as u32, sequences.len() as u32];
    queue.launch("attention_tiled.cu", name, (grid, [128, 1, 1], shared), &arguments);
}

/// The file of the kernels for so many query heads per key/value head.
fn split_file(attributes: &Attributes) -> &'static str {
    if attributes.heads / attributes.kv_heads <= 4 { "attention_decode.cu" } else { "attention_decode_wide.cu" }
}

/// The kernel of a head size and of query heads per key/value head.
macro_rules! by_head {
    ($name:literal, $attributes:expr) => {
        match ($attributes.head_dim, $attributes.heads / $attributes.kv_heads) {
            (128, 1) => concat!($name, "_d128_g1"),
            (128, 2) => concat!($name, "_d128_g2"),
            (128, 3) => concat!($name, "_d128_g3"),
            (128, 4) => concat!($name, "_d128_g4"),
            (128, 5) => concat!($name, "_d128_g5"),
            (128, 6) => concat!($name, "_d128_g6"),
            (128, 7) => concat!($name, "_d128_g7"),
            (128, _) => concat!($name, "_d128_g8"),
            (_, 1) => concat!($name, "_d64_g1"),
            (_, 2) => concat!($name, "_d64_g2"),
            (_, 3) => concat!($name, "_d64_g3"),
            (_, 4) => concat!($name, "_d64_g4"),
            (_, 5) => concat!($name, "_d64_g5"),
            (_, 6) => concat!($name, "_d64_g6"),
            (_, 7) => concat!($name, "_d64_g7"),
            _ => concat!($name, "_d64_g8"),
        }
    };
}

fn split(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let mut arguments = arguments(i, queue, (Some(1), Some(2)));
    let (rows, attributes) = (i.output(0).rows, i.attributes());
    arguments.splits = splits(rows, attributes.kv_heads) as u32;
    let launch = ([attributes.kv_heads as u32, arguments.splits, rows as u32], [256, 1, 1], 0);
    queue.launch(split_file(attributes), by_head!("attention_split", attributes), launch, &arguments);
}

fn placed_arguments(i: &Invocation<'_>, queue: &Queue) -> Arguments {
    let attributes = i.attributes();
    let norm = |index: usize| if i.weights() == 0 { 0 } else { i.weight_at(index).0 as u64 };
    Arguments {
        k: i.input(1).as_ptr() as u64,
        v: i.input(2).as_ptr() as u64,
        table: i.input(3).as_ptr() as u64,
        q_norm: norm(0),
        k_norm: norm(1),
        epsilon: attributes.epsilon,
        interleaved: u32::from(attributes.interleaved),
        splits: splits(1, attributes.kv_heads) as u32,
        ..arguments(i, queue, (None, None))
    }
}

fn clusters(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let attributes = i.attributes();
    let group = attributes.heads / attributes.kv_heads;
    let share = share(is_deep(i.step), group);
    let (name, shared_bytes) = cluster_kernel(share, attributes.head_dim, group);
    let launch = ([share.blocks, attributes.kv_heads as u32, 1], [share.warps * 32, 1, 1], shared_bytes);
    queue.flush();
    queue.put_clusters("attention_cluster.cu", name, launch, [share.blocks, 1, 1], &placed_arguments(i, queue));
}

fn placed(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let (attributes, arguments) = (i.attributes(), placed_arguments(i, queue));
    let launch = ([attributes.kv_heads as u32, arguments.splits, 1], [256, 1, 1], 0);
    queue.launch(split_file(attributes), by_head!("placed_attention", attributes), launch, &arguments);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_share_has_a_kernel_that_fits_a_processor() {
        let source = crate::sources::ALL.iter().find(|source| source.name == "attention_cluster.cu");
        let text = source.map(crate::sources::Source::text).unwrap_or_default();
        for deep in [false, true] {
            for group in 1..=MOST_GROUP {
                let Share { blocks, warps, stages } = share(deep, group);
                assert!(blocks.is_power_of_two() && (2..=8).contains(&blocks), "{blocks}");
                let kernels = format!("CLUSTER_KERNELS({blocks}, {warps}, {stages}, ");
                assert!(text.contains(&kernels), "no {kernels}");
                for dim in [64, 128] {
                    let (name, bytes) = cluster_kernel(Share { blocks, warps, stages }, dim, group);
                    let own = format!("_b{blocks}w{warps}s{stages}_d{dim}_g");
                    assert!(bytes <= 222 << 10 && name.contains(&own), "{name}: {bytes}");
                }
            }
        }
    }
}
