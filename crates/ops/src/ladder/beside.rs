//! Checkpoints beside the ladder: named and tested like rungs, but `fast` never stands for one, however quick it is.
//! Not here: the main line, each rung of which keeps its parent's accuracy and was earned by a measurement (`ladder.rs`).

use super::{ADDED_NORM, ANY, MATVEC_MAX_ROWS, ROUNDING, SAME, choose};
use crate::checkpoint::{Checkpoint, Choice, REGISTER_CACHED, TWO_PASS, WeightPolicy};
use crate::rewrite::{
    ADD_RMS_NORM, DECODE_ATTENTION, GATED_LINEAR, NORM_ROPE_APPEND, RMS_NORM, ROPE, SPLIT_ATTENTION, SWIGLU,
    TILED_ATTENTION, TILED_MIN_ROWS,
};
use crate::{Pace, Tolerance};

pub const ALL: &[&Checkpoint] = &[
    &BF16_WEIGHTS,
    &EIGHT_BIT,
    &TRIMMED_PREFILL,
    &EARLY_WEIGHTS,
    &GUIDED_SHARES,
    &GATED_PROJECTIONS,
    &SPLIT_ATTENTION_CHECKPOINT,
];

/// Whether a checkpoint of this name stands beside the ladder.
pub fn has(name: &str) -> bool {
    ALL.iter().any(|checkpoint| checkpoint.name == name)
}

/// The newest rung's mechanisms over weights that nothing rounds: what BF16 engines are to be compared with. Floor: 1,192 MB per
/// step of Qwen3-0.6B where 4 bits take 317.
///
/// Outcome (two threads of an AMD EPYC, Zen 4, medians of alternated processes, made from `added-norm`): prefill of 128 rows at 377
/// tokens/s where packed weights have 406, as a bfloat16 product has the rate of two byte products; transformers in bfloat16 294.
pub const BF16_WEIGHTS: Checkpoint = Checkpoint {
    name: "bf16-weights",
    parent: Some(&ADDED_NORM),
    change: "weights are held as bfloat16, packed files dequantized at load",
    hypothesis: "decode takes as many times longer as the weights have more bytes, and prefill as long as with packed ones",
    weights: WeightPolicy::Dense,
    tolerance: Tolerance {
        nmse: 2e-2,
        reason: "every dequantized weight is rounded to bfloat16, and a bfloat16 file is not quantized",
    },
    file: file!(),
    line: line!(),
    ..ADDED_NORM
};

/// What llama.cpp and OpenVINO do. Floor: prefill's products are half as many as with two byte planes, at the same rate.
///
/// Outcome (two threads of an AMD EPYC, Zen 4; six alternated processes): prefill of 128 rows at 1.49 (95 %: 1.47 to 1.52) times its
/// parent's rate, 607 tokens/s where OpenVINO has 398. On 764 tokens SmolLM2-135M (Q4_1) has a perplexity of 48.34 with it, 48.54 with `selected`, 48.52 with `reference`: 0.4 % off where 0.1 % is
/// allowed; the mean divergence from `selected` is 6.0e-3 nats, and 34 of 765 likeliest tokens are others. So it stays here.
pub const EIGHT_BIT: Checkpoint = Checkpoint {
    name: "eight-bit",
    parent: Some(&ADDED_NORM),
    change: "projections of more than eight rows take activations of eight bits, a scale for every 32 columns",
    hypothesis: "prefill is limited by vpdpbusd, of which two planes take two per weight: one plane makes it about 1.7 times as fast",
    kernels: &[
        Choice { operator: "linear", rows: 0..=MATVEC_MAX_ROWS, packed: Some(true), kernel: "matvec" },
        Choice { operator: "linear", rows: ANY, packed: Some(true), kernel: "matmul-8bit" },
        Choice { operator: "linear", rows: ANY, packed: Some(true), kernel: "matmul" },
        choose("rms_norm", REGISTER_CACHED),
        choose("rms_norm", TWO_PASS),
    ],
    tolerance: Tolerance { nmse: 2e-2, reason: "activations of the projections are rounded to eight bits in prefill" },
    file: file!(),
    line: line!(),
    ..ADDED_NORM
};

/// Floor: the products of visible pairs at the peak of `vdpbf16ps`, 1.9 GFLOP in the 28 layers of Qwen3-0.6B at 128 rows, 485 at
/// 2,048.
///
/// Outcome (two threads of an AMD EPYC, Zen 4; alternated processes): prefill of 512 rows at 1.02 (95 %: 0.988 to 1.051) times its
/// parent's rate, of 2,048 at 1.03 (0.975 to 1.084). Not told from no difference, so it is no rung.
pub const TRIMMED_PREFILL: Checkpoint = Checkpoint {
    name: "trimmed-prefill",
    parent: Some(&ADDED_NORM),
    change: "prefill attention skips what nobody sees in its tiles, and its softmax is written for the vector unit",
    hypothesis: "half of prefill attention's time is softmax and products beyond the diagonal, neither of them in its floor",
    kernels: &[
        Choice { operator: "linear", rows: 0..=MATVEC_MAX_ROWS, packed: Some(true), kernel: "matvec" },
        Choice { operator: "linear", rows: ANY, packed: Some(true), kernel: "matmul" },
        choose("rms_norm", REGISTER_CACHED),
        choose("rms_norm", TWO_PASS),
        Choice { operator: "attention", rows: TILED_MIN_ROWS..=usize::MAX, packed: None, kernel: "trimmed" },
        choose("attention", "decode"),
    ],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..ADDED_NORM
};

/// Floor: the step's weights at the read bandwidth; what it saves is the time in which memory has nothing to do, because the
/// workers wait for each other or compute what needs no memory.
///
/// Outcome (two threads of an AMD EPYC, Zen 4; alternated steps, medians, ratios to `added-norm` in two runs an hour apart): 1.003 and
/// 0.984 after 128 tokens, 0.967 and 0.985 after 2,048; 1.009 beside two busy loops. Projections read at the bandwidth already.
/// No difference that a request would show, so it is no rung.
pub const EARLY_WEIGHTS: Checkpoint = Checkpoint {
    name: "early-weights",
    parent: Some(&ADDED_NORM),
    change: "a worker that waits asks for the first weights of its share of the next projection, and a projection for its own",
    hypothesis: "a tenth of decode is waiting at barriers, and memory, its limit, is idle meanwhile",
    pace: Pace { fetch_ahead: true, guided: false },
    tolerance: SAME,
    file: file!(),
    line: line!(),
    ..ADDED_NORM
};

/// Floor: as above.
///
/// Outcome (as above): 0.982 and 0.979 of `added-norm`, 1.055 beside two busy loops, where it should have won: no difference from its
/// parent. A form that left a quarter open in every call, and not only before barriers, was slower (1.016). One thread alone reads nine
/// tenths of what two read, so who waits leaves its bandwidth to the other.
pub const GUIDED_SHARES: Checkpoint = Checkpoint {
    name: "guided-shares",
    parent: Some(&EARLY_WEIGHTS),
    change: "a quarter of a projection's outputs belongs to no worker beforehand: who is done first takes more of it",
    hypothesis: "the halves of a projection do not take equally long, so the slower processor sets the pace",
    pace: Pace { fetch_ahead: true, guided: true },
    tolerance: SAME,
    file: file!(),
    line: line!(),
    ..EARLY_WEIGHTS
};

/// Floor: the two matrices once; what it saves is one barrier, one call, and x as planes once instead of twice, in every layer: by
/// prediction 1 % of a quiet step. Outcome (as above): 0.984, 1.007, and 0.994 beside two busy loops; no difference from its parent.
pub const GATED_PROJECTIONS: Checkpoint = Checkpoint {
    name: "gated-projections",
    parent: Some(&GUIDED_SHARES),
    change: "for up to eight rows, gate, up and the gated activation are one call",
    hypothesis: "a barrier and an activation of a microsecond stand between two projections, and memory is idle meanwhile",
    rewrites: &[
        RMS_NORM,
        ROPE,
        SWIGLU,
        TILED_ATTENTION,
        DECODE_ATTENTION,
        NORM_ROPE_APPEND,
        ADD_RMS_NORM,
        GATED_LINEAR,
    ],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..GUIDED_SHARES
};

/// Floor: keys and values once at the read bandwidth; what it saves is the time in which some workers have no head left while others
/// do, and costs one barrier, one call and 67 KB of state a layer.
///
/// Outcome (two processors of an AMD EPYC, Zen 4; alternated steps after 2,048 tokens, medians of the ratio to `added-norm`). Three
/// workers, two runs: the step 0.874 and 0.892, its attention calls 0.703 and 0.722; three share two processors there, and a step
/// takes twice as long as with two. Two workers: the step 1.006, the attention calls 1.053, by their medians 6 µs a layer and not below
/// one as predicted; where others want the processors, and every barrier may wait for one, the step 1.065 and 1.106. After 128 tokens,
/// two workers, the calls' 10th percentile is 2 µs a layer longer. So it stays beside the ladder: it wins where heads are no even
/// shares, and loses where they are. With more than three workers it has not been measured.
pub const SPLIT_ATTENTION_CHECKPOINT: Checkpoint = Checkpoint {
    name: "split-attention",
    parent: Some(&ADDED_NORM),
    change: "for up to eight rows, what a row sees is attended to in eight parts, which a second call joins",
    hypothesis: "eight key/value heads are no even shares for 3, 6 or 12 workers, and none at all for the ninth and later ones; \
                 two workers, which divide them, gain nothing and pay less than a microsecond a layer for the barrier",
    rewrites: &[
        RMS_NORM,
        ROPE,
        SWIGLU,
        TILED_ATTENTION,
        DECODE_ATTENTION,
        NORM_ROPE_APPEND,
        ADD_RMS_NORM,
        SPLIT_ATTENTION,
    ],
    tolerance: ROUNDING,
    file: file!(),
    line: line!(),
    ..ADDED_NORM
};
