//! The rungs: the chapter's route, cumulative, and the oracle `reference` (not a rung).
//! An old rung is never edited once a record refers to it; a new one is one constant by struct update from its parent.
//! Not here: what the fields of a checkpoint mean, and its switches (`checkpoint.rs`).

use crate::checkpoint::{CachePolicy, Checkpoint, Choice, REGISTER_CACHED, TWO_PASS, WeightPolicy};
use crate::rewrite::{RMS_NORM, ROPE, SWIGLU, TILED_ATTENTION};
use crate::{DType, Tolerance};

/// Every checkpoint: the oracle first, then the rungs in order.
pub const ALL: &[&Checkpoint] = &[
    &REFERENCE,
    &WEEK1,
    &KV_CACHE,
    &CAPACITY_CACHE,
    &QUANTIZED_MATVEC,
    &SIMD_MATMUL,
    &RMSNORM,
    &ROPE_RUNG,
    &SWIGLU_RUNG,
    &TILED_PREFILL,
    &SELECTED,
];

/// The name that stands for the newest rung of whichever registry is asked: what engines use unless told otherwise. It is
/// resolved where it is given, so records hold the rung's own name and stay true when the ladder grows.
pub const FAST: &str = "fast";

/// Names that once were rungs, and why they are not.
pub const RETIRED: &[(&str, &str)] = &[
    (
        "decode-attention",
        "its kernel won by itself, but the request did not move; decode uses the readable attention until a later rung",
    ),
    (
        "split-k",
        "splitting the reduction helped prompts of 32 tokens and nothing longer; 'simd-matmul' stands in its place",
    ),
];

/// Most rows that the matrix-vector kernel takes; more rows go to the matrix kernel.
pub const MATVEC_MAX_ROWS: usize = 8;

const SAME: Tolerance = Tolerance { nmse: 1e-12, reason: "the same arithmetic in the same order" };
const ROUNDING: Tolerance = Tolerance {
    nmse: 4e-3,
    reason: "bfloat16 roundings fall elsewhere; about the distance of two bf16 evaluations of one model",
};
const ANY: std::ops::RangeInclusive<usize> = 0..=usize::MAX;

const fn choose(operator: &'static str, kernel: &'static str) -> Choice {
    Choice { operator, rows: ANY, packed: None, kernel }
}

/// The oracle inside the binary: the same program bound to the reference kernels over float32 buffers and weights.
pub const REFERENCE: Checkpoint = Checkpoint {
    name: "reference",
    parent: None,
    change: "reference kernels, float32 buffers: the oracle, not a rung",
    hypothesis: "agrees with any correct float32 implementation of the model to 1e-5",
    cache: CachePolicy::Bounded,
    weights: WeightPolicy::Float32,
    activations: DType::F32,
    rewrites: &[],
    kernels: &[
        choose("embed", "reference"),
        choose("rope_table", "reference"),
        choose("rms_scale", "reference"),
        choose("mul_weight", "reference"),
        choose("linear", "reference"),
        choose("rotate_half", "reference"),
        choose("rope_combine", "reference"),
        choose("cache_append", "reference"),
        choose("attention_scores", "reference"),
        choose("softmax", "reference"),
        choose("attention_mix", "reference"),
        choose("add", "reference"),
        choose("silu", "reference"),
        choose("mul", "reference"),
    ],
    tolerance: SAME,
    file: file!(),
    line: line!(),
};

pub const WEEK1: Checkpoint = Checkpoint {
    name: "week1",
    parent: None,
    change: "no cache: every step runs the whole prefix, with dense bfloat16 weights and readable operators",
    hypothesis: "the model's answer is right; nothing about speed",
    cache: CachePolicy::None,
    weights: WeightPolicy::Dense,
    activations: DType::BF16,
    rewrites: &[],
    kernels: &[],
    tolerance: SAME,
    file: file!(),
    line: line!(),
};

pub const KV_CACHE: Checkpoint = Checkpoint {
    name: "kv-cache",
    parent: Some(&WEEK1),
    change: "earlier keys and values are kept in a cache that grows by concatenation",
    hypothesis: "decode time grows with the prefix, because every step reruns all earlier tokens",
    cache: CachePolicy::Concatenate,
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..WEEK1
};

pub const CAPACITY_CACHE: Checkpoint = Checkpoint {
    name: "capacity-cache",
    parent: Some(&KV_CACHE),
    change: "each layer's cache is allocated once from the request's bound; an append writes only its slice",
    hypothesis: "cache storage grows by concatenation on every step, copying everything cached so far",
    cache: CachePolicy::Bounded,
    tolerance: SAME,
    file: file!(),
    line: line!(),
    ..KV_CACHE
};

pub const QUANTIZED_MATVEC: Checkpoint = Checkpoint {
    name: "quantized-matvec",
    parent: Some(&CAPACITY_CACHE),
    change: "weights stay packed; up to eight rows use a packed matrix-vector kernel, more rows a readable fallback",
    hypothesis: "decode is dominated by projections, which read every weight once per token",
    weights: WeightPolicy::Packed,
    kernels: &[
        Choice { operator: "linear", rows: 0..=MATVEC_MAX_ROWS, packed: Some(true), kernel: "matvec" },
        Choice { operator: "linear", rows: ANY, packed: Some(true), kernel: "vanilla" },
    ],
    tolerance: Tolerance {
        nmse: 2e-2,
        reason: "the dense parent rounds every dequantized weight to bfloat16, and a bfloat16 file is quantized here",
    },
    file: file!(),
    line: line!(),
    ..CAPACITY_CACHE
};

pub const SIMD_MATMUL: Checkpoint = Checkpoint {
    name: "simd-matmul",
    parent: Some(&QUANTIZED_MATVEC),
    change: "more than eight rows use a blocked packed matrix kernel that dequantizes a panel once for many rows",
    hypothesis: "prefill projections use the readable fallback for prompts longer than eight rows",
    kernels: &[
        Choice { operator: "linear", rows: 0..=MATVEC_MAX_ROWS, packed: Some(true), kernel: "matvec" },
        Choice { operator: "linear", rows: ANY, packed: Some(true), kernel: "matmul" },
    ],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..QUANTIZED_MATVEC
};

pub const RMSNORM: Checkpoint = Checkpoint {
    name: "rmsnorm",
    parent: Some(&SIMD_MATMUL),
    change: "RMSNorm is one call with one rounding instead of two calls with two",
    hypothesis: "small operators around the projections each make their own dispatch and memory pass",
    rewrites: &[RMS_NORM],
    kernels: &[
        Choice { operator: "linear", rows: 0..=MATVEC_MAX_ROWS, packed: Some(true), kernel: "matvec" },
        Choice { operator: "linear", rows: ANY, packed: Some(true), kernel: "matmul" },
        choose("rms_norm", REGISTER_CACHED),
        // Segments beyond what the registers hold.
        choose("rms_norm", TWO_PASS),
    ],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..SIMD_MATMUL
};

pub const ROPE_RUNG: Checkpoint = Checkpoint {
    name: "rope",
    parent: Some(&RMSNORM),
    change: "rotary position is one call instead of a rotation and a combination",
    hypothesis: "small operators around the projections each make their own dispatch and memory pass",
    rewrites: &[RMS_NORM, ROPE],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..RMSNORM
};

pub const SWIGLU_RUNG: Checkpoint = Checkpoint {
    name: "swiglu",
    parent: Some(&ROPE_RUNG),
    change: "the gated activation is one call with one rounding instead of two",
    hypothesis: "small operators around the projections each make their own dispatch and memory pass",
    rewrites: &[RMS_NORM, ROPE, SWIGLU],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..ROPE_RUNG
};

pub const TILED_PREFILL: Checkpoint = Checkpoint {
    name: "tiled-prefill",
    parent: Some(&SWIGLU_RUNG),
    change: "prefill attention of nine or more rows (head size 128) runs in tiles with a running softmax",
    hypothesis: "prefill attention builds an L x S score matrix per head",
    rewrites: &[RMS_NORM, ROPE, SWIGLU, TILED_ATTENTION],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..SWIGLU_RUNG
};

pub const SELECTED: Checkpoint = Checkpoint {
    name: "selected",
    parent: Some(&TILED_PREFILL),
    change: "nothing: the name of the finished route",
    hypothesis: "whatever is left; profile it",
    tolerance: SAME,
    file: file!(),
    line: line!(),
    ..TILED_PREFILL
};
