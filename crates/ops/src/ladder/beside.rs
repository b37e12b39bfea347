//! Checkpoints beside the ladder: named and tested like rungs, but `fast` never stands for one, however quick it is.
//! Not here: the main line, each rung of which keeps its parent's accuracy and was earned by a measurement (`ladder.rs`).

use super::{ANY, GATED_PROJECTIONS, MATVEC_MAX_ROWS, ROUNDING, choose};
use crate::Tolerance;
use crate::checkpoint::{Checkpoint, Choice, REGISTER_CACHED, TWO_PASS, WeightPolicy};
use crate::rewrite::TILED_MIN_ROWS;

pub const ALL: &[&Checkpoint] = &[&BF16_WEIGHTS, &EIGHT_BIT, &TRIMMED_PREFILL];

/// Whether a checkpoint of this name stands beside the ladder.
pub fn has(name: &str) -> bool {
    ALL.iter().any(|checkpoint| checkpoint.name == name)
}

/// The newest rung's mechanisms over weights that nothing rounds: what BF16 engines are to be compared with. Floor: 1,192 MB per
/// step of Qwen3-0.6B where 4 bits take 317.
///
/// Outcome (two threads of an AMD EPYC, Zen 4, medians of four alternated processes, made from `added-norm`): prefill of 128 rows at
/// 405 tokens/s where packed weights gave 406, as a bfloat16 product has the rate of two byte products; transformers in bfloat16 308.
pub const BF16_WEIGHTS: Checkpoint = Checkpoint {
    name: "bf16-weights",
    parent: Some(&GATED_PROJECTIONS),
    change: "weights are held as bfloat16, packed files dequantized at load",
    hypothesis: "decode takes as many times longer as the weights have more bytes, and prefill as long as with packed ones",
    weights: WeightPolicy::Dense,
    tolerance: Tolerance {
        nmse: 2e-2,
        reason: "every dequantized weight is rounded to bfloat16, and a bfloat16 file is not quantized",
    },
    file: file!(),
    line: line!(),
    ..GATED_PROJECTIONS
};

/// What llama.cpp and OpenVINO do. Floor: prefill's products are half as many as with two byte planes, at the same rate.
///
/// Outcome (as above): prefill of 128 rows at 1.13 (95 %: 0.996 to 1.28) times its parent's rate, not 1.7; the kernel says more. Its
/// error is beyond `selected`'s, so it stays here.
pub const EIGHT_BIT: Checkpoint = Checkpoint {
    name: "eight-bit",
    parent: Some(&GATED_PROJECTIONS),
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
    ..GATED_PROJECTIONS
};

/// Floor: the products of visible pairs at the peak of `vdpbf16ps`, 1.9 GFLOP in the 28 layers of Qwen3-0.6B at 128 rows, 485 at
/// 2,048.
///
/// Its kernel agrees with the reference on every case; its request has not been clocked, so it is no rung yet.
pub const TRIMMED_PREFILL: Checkpoint = Checkpoint {
    name: "trimmed-prefill",
    parent: Some(&GATED_PROJECTIONS),
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
    ..GATED_PROJECTIONS
};
