//! The rungs: the chapter's route, cumulative, and the oracle `reference` (not a rung).
//! An old rung is never edited once a record refers to it; a new one is one constant by struct update from its parent.
//! Not here: what the fields of a checkpoint mean, and its switches (`checkpoint.rs`).

pub mod beside;

use crate::checkpoint::{CachePolicy, Checkpoint, Choice, REGISTER_CACHED, TWO_PASS, WeightPolicy};
use crate::fusions::{LINEAR_ADD, NORM_LINEAR, NORM_SWIGLU, PLACED_ATTENTION};
use crate::rewrite::{ADD_RMS_NORM, DECODE_ATTENTION, NORM_ROPE_APPEND, RMS_NORM, ROPE, SWIGLU, TILED_ATTENTION};
use crate::{DType, Pace, Tolerance};

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
    &ONE_CALL_ATTENTION,
    &PLACED_HEADS,
    &ADDED_NORM,
];

/// What follows on a device, where a call costs more than the arithmetic of a single row: rungs that the CPU has no kernels for.
pub const DEVICE: &[&Checkpoint] = &[&ADDED_RESIDUALS, &NORMED_PROJECTIONS, &UNPACKED, &PLACED_ATTENTION_RUNG];

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

/// Calls of this operator are bound to this kernel, whatever their rows and weights.
pub const fn choose(operator: &'static str, kernel: &'static str) -> Choice {
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
    prefers: &[],
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
    pace: Pace::PLAIN,
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
    prefers: &[],
    kernels: &[],
    pace: Pace::PLAIN,
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

/// The first rung beyond the chapter's route. Floor: the step's keys and values at the read bandwidth, 14.7 MB of the 331 that a
/// step of Qwen3-0.6B moves after 128 tokens, and half of what it moves after 2,048.
///
/// Outcome (two threads of an AMD EPYC, Zen 4, other work beside it; ratios of alternated steps, medians): the attention calls
/// take 0.50 of `selected`'s time after 128 tokens and 0.65 after 2,048; the step 0.93 and 0.88. Kept.
pub const ONE_CALL_ATTENTION: Checkpoint = Checkpoint {
    name: "one-call-attention",
    parent: Some(&SELECTED),
    change: "attention of up to eight rows (head size 64 or 128) is one call that reads each key and value once",
    hypothesis: "decode attention reads the cache far below the read bandwidth, in three calls with barriers between them",
    rewrites: &[RMS_NORM, ROPE, SWIGLU, TILED_ATTENTION, DECODE_ATTENTION],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..SELECTED
};

/// Floor: queries, keys and values read once and written once, 0.5 MB in the 28 layers of Qwen3-0.6B; what it saves is two
/// barriers and four calls a layer.
///
/// Outcome (as above, both processors wanted by others): the step takes 0.84 to 0.87 of its parent's time, as a barrier then
/// waits for a worker that is not running. On one thread, without barriers: no difference seen in the step; these calls and the
/// append together 1.05. Kept.
pub const PLACED_HEADS: Checkpoint = Checkpoint {
    name: "placed-heads",
    parent: Some(&ONE_CALL_ATTENTION),
    change: "norms and rotary position of queries and keys and the append to the cache are one call instead of five",
    hypothesis: "calls of a few hundred nanoseconds each wait at a barrier and make their own pass",
    rewrites: &[RMS_NORM, ROPE, SWIGLU, TILED_ATTENTION, DECODE_ATTENTION, NORM_ROPE_APPEND],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..ONE_CALL_ATTENTION
};

/// Floor: three rows read and two written; what it saves is one barrier and one call, twice a layer.
///
/// Outcome (as above): the step takes 0.83 to 0.91 of its parent's time; on one thread the pointwise calls take 0.90 of theirs,
/// and no difference is seen in the step. Kept.
pub const ADDED_NORM: Checkpoint = Checkpoint {
    name: "added-norm",
    parent: Some(&PLACED_HEADS),
    change: "a residual addition and the norm after it are one call",
    hypothesis: "the norm of a single row is one worker's work, and waits at a barrier for an addition that is as short",
    rewrites: &[RMS_NORM, ROPE, SWIGLU, TILED_ATTENTION, DECODE_ATTENTION, NORM_ROPE_APPEND, ADD_RMS_NORM],
    tolerance: SAME,
    file: file!(),
    line: line!(),
    ..PLACED_HEADS
};

/// Floor: the residual read once more, where the sum was written and read; what it saves is one launch, twice a layer, and what a
/// launch that depends on the one before costs on an H200 is 1.1 to 1.5 µs.
pub const ADDED_RESIDUALS: Checkpoint = Checkpoint {
    name: "added-residuals",
    parent: Some(&ADDED_NORM),
    change: "on a device, for up to eight rows, a projection adds the residual itself; the norm is a call of its own again",
    hypothesis: "a decode step waits for launches, not for bytes: twelve dependent phases a layer",
    rewrites: &[RMS_NORM, ROPE, SWIGLU, TILED_ATTENTION, DECODE_ATTENTION, NORM_ROPE_APPEND, LINEAR_ADD, ADD_RMS_NORM],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..ADDED_NORM
};

/// Floor: every block reads the row and its norm again, 6 KB from the second-level cache; what it saves is two launches a layer, and
/// one for the activation.
pub const NORMED_PROJECTIONS: Checkpoint = Checkpoint {
    name: "normed-projections",
    parent: Some(&ADDED_RESIDUALS),
    change: "on a device, for up to eight rows, projections normalise their input themselves, and gate and up end in their activation",
    hypothesis: "the norm of a single row is one block's work, while every other processor waits",
    rewrites: &[
        RMS_NORM,
        ROPE,
        SWIGLU,
        TILED_ATTENTION,
        DECODE_ATTENTION,
        NORM_ROPE_APPEND,
        LINEAR_ADD,
        NORM_SWIGLU,
        NORM_LINEAR,
        ADD_RMS_NORM,
    ],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..ADDED_RESIDUALS
};

/// Floor: every split of a head places its queries again, 1 KB; what it saves is one launch a layer.
pub const PLACED_ATTENTION_RUNG: Checkpoint = Checkpoint {
    name: "placed-attention",
    parent: Some(&NORMED_PROJECTIONS),
    change: "on a device, for a single row, attention places queries and the new key itself: five launches a layer are left",
    hypothesis: "norm, rotary position and append of one row are a launch for less than a microsecond's work",
    rewrites: &[
        RMS_NORM,
        ROPE,
        SWIGLU,
        TILED_ATTENTION,
        DECODE_ATTENTION,
        NORM_ROPE_APPEND,
        LINEAR_ADD,
        NORM_SWIGLU,
        NORM_LINEAR,
        ADD_RMS_NORM,
        PLACED_ATTENTION,
    ],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..NORMED_PROJECTIONS
};

/// Beside the ladder, not on it: the last rung's program over dense weights, for comparison with engines that hold them so.
pub const UNPACKED: Checkpoint = Checkpoint {
    name: "unpacked",
    parent: Some(&PLACED_ATTENTION_RUNG),
    change: "on a device, weights stay bfloat16; the program is the last rung's",
    hypothesis: "with four times the bytes, a step of a large model waits for memory and one of a small model for launches still",
    weights: WeightPolicy::Dense,
    tolerance: Tolerance {
        nmse: 2e-2,
        reason: "the parent quantizes a bfloat16 file, and this rung rounds a packed file's weights to bfloat16",
    },
    file: file!(),
    line: line!(),
    ..PLACED_ATTENTION_RUNG
};
