//! Your own kernels and checkpoints: the one file to edit. `--solution lab` uses what is listed at its end.
//! Not here: the kernels and rungs that come with the engine (crate `ops`); they stay available beside yours.
//!
//! # A kernel
//! One function and one `static`, and its name in `KERNELS`; `hourglass new kernel OPERATOR NAME` writes all three, beginning
//! with the operator's own reference. `crates/ops/src/operators/README.md` lists operators, operands and attributes. A kernel
//! is used where a checkpoint of yours names it, and nowhere else: our rungs stay what they are, so that yours can be compared
//! with them.
//!
//! # A checkpoint
//! One constant made by struct update from its parent, and its name in `CHECKPOINTS`; `hourglass new checkpoint NAME --from
//! PARENT` writes both. Made from the newest rung, it becomes what `--checkpoint fast` (the default) means.
//!
//! # What follows by itself
//! The tests at the end hold every kernel to its operator's reference and to what a walk relies on, and every checkpoint to its
//! parent. `hourglass ladder`, `wiring`, `find`, `bench`, `replay` and `timeline` with `--solution lab` show both. `docs/lab.md`
//! is the reference, the handbook's chapter "Adding your own change" goes through one to the decision.

#[allow(unused_imports, reason = "what kernels and checkpoints are written with")]
use ops::*;

// A worked example: RMSNorm with wider sums.
//
// What `y = x / sqrt(mean(x²) + epsilon) * w` costs: a row is read and written once (2 bytes an element each way) and its weights
// are read once (4 bytes), 8 kB for the 1,024 elements of Qwen3-0.6B. The row was just written; the weights come from memory.
// Floor: 4 kB at 20 GB/s, 0.2 µs a call.
//
// The kernel in use, `register-cached`, sums the squares in 32 lanes: two vectors of 512 bits. Each addition waits about four
// cycles for the one before it, and 1,024 elements are 32 such steps: some 130 cycles of waiting, where adding alone would be
// 32. In eight vectors there are eight steps. Each of the 57 norms of whole rows in a decode step would save some 90 cycles,
// 30 ns: at most 2 µs of a step that takes milliseconds. So a replay of these calls can show it, and the request cannot. It is
// here because it is short, and because of what came of it (see `WIDER_NORM`).

/// Lanes of the sum: eight vectors of 512 bits.
const WIDE: usize = 128;

/// Input x `(rows, segments * head_dim)` bf16, weight w f32 `(1, head_dim)`, output y as x. Each segment is one worker's.
#[inline(always)]
fn wide_sums(call: &Invocation<'_>) {
    let (x, weight, y) = (call.input(0), call.weight(0).as_f32(), call.output(0));
    let Attributes { head_dim, epsilon, .. } = *call.attributes();
    let segments = y.width / head_dim;
    for segment in call.share(y.rows * segments) {
        let (row, first) = (segment / segments, segment % segments * head_dim);
        let x = &x.bf16(row)[first..first + head_dim];
        let mut sums = [0.0f32; WIDE];
        let (blocks, rest) = x.as_chunks::<WIDE>();
        for block in blocks {
            for lane in 0..WIDE {
                let value = bf16_to_f32(block[lane]);
                sums[lane] = value.mul_add(value, sums[lane]);
            }
        }
        let mut square: f32 = rest.iter().map(|value| bf16_to_f32(*value).powi(2)).sum();
        let mut half = WIDE / 2;
        while half > 0 {
            for lane in 0..half {
                sums[lane] += sums[lane + half];
            }
            half /= 2;
        }
        square += sums[0];
        let scale = 1.0 / (square / head_dim as f32 + epsilon).sqrt();
        for (block, (x, w)) in x.chunks(WIDE).zip(weight.chunks(WIDE)).enumerate() {
            let mut normed = [0u16; WIDE];
            for ((normed, x), w) in normed.iter_mut().zip(x).zip(w) {
                *normed = f32_to_bf16(bf16_to_f32(*x) * scale * w);
            }
            y.set_bf16(row, first + block * WIDE, &normed[..x.len()]);
        }
    }
}

// The same body, compiled for AVX-512: the compiler makes the lanes into vectors.
for_isa!(avx512, wide_sums_avx512, wide_sums);

static WIDE_SUMS: Kernel = kernel! {
    operator: "rms_norm", name: "wide-sums", isa: "portable", features: &[], supports: bfloat16_only,
    nmse: 1.6e-5, because: "one bfloat16 rounding: at most 1/256 of an element", run: wide_sums,
};

/// Preferred where the machine has the instructions: of one name, the last listed that runs.
static WIDE_SUMS_AVX512: Kernel = kernel! {
    operator: "rms_norm", name: "wide-sums", isa: "avx512", features: operators::isa::AVX512, supports: bfloat16_only,
    nmse: 1.6e-5, because: "one bfloat16 rounding: at most 1/256 of an element", run: wide_sums_avx512,
};

/// Outcome (one thread of an AMD EPYC, Zen 4, other work beside it; medians of 60 alternated decode steps): slower, the hypothesis
/// was false. The norms of whole rows take as long as before, 59 µs instead of 60 (`input_norm`) and 39 instead of 36 (`post_norm`)
/// in 28 calls each. That is more than a microsecond a call: they wait for memory, not for additions. The norms of heads take
/// twice as long, 77 µs instead of 40 and 34 instead of 18: a head of 128 is a single block, and 128 lanes take longer to add up
/// than 32. A request would take 0.1 % longer. No rung of ours has it.
///
/// ```sh
/// hourglass find --checkpoint selected --threads 1 --input-len 16 --output-len 8 --json-output request.json
/// hourglass replay --solution lab --shapes request.json --threads 1 --warmup 5 --iterations 60 \
///   --compare rms_norm:register-cached/avx512,rms_norm:wide-sums/avx512
/// ```
const WIDER_NORM: Checkpoint = Checkpoint {
    name: "wider-norm",
    parent: Some(&ladder::SELECTED),
    change: "the sum of squares of an RMSNorm has eight vectors of lanes instead of two",
    hypothesis: "the norm of a row waits for its own additions, so its calls take less time; the request does not show it",
    prefers: &[ladder::choose("rms_norm", "wide-sums")],
    tolerance: Tolerance { nmse: 4e-3, reason: "the order of additions changes which results round up" },
    file: file!(),
    line: line!(),
    ..ladder::SELECTED
};

fn bfloat16_only(shape: &CallShape) -> Result<(), String> {
    match shape.inputs.iter().chain(&shape.outputs).find(|view| view.dtype != DType::BF16) {
        None => Ok(()),
        Some(view) => Err(format!("it takes bfloat16 buffers, not {:?}", view.dtype)),
    }
}

// hourglass new: kernels and checkpoints go above this line

/// Your kernels. Of one operator and name, the last that the machine can run is used.
static KERNELS: &[&Kernel] = &[
    &WIDE_SUMS,
    &WIDE_SUMS_AVX512,
    // hourglass new: kernels' names go above this line
];

/// Your checkpoints. The last that is made from the newest rung is what `--checkpoint fast` means with `--solution lab`.
static CHECKPOINTS: &[&Checkpoint] = &[
    &WIDER_NORM,
    // hourglass new: checkpoints' names go above this line
];

/// The engine's kernels and checkpoints, and those above; a kernel above is used only where a checkpoint above names it.
pub fn registry() -> Registry {
    Registry::offering(KERNELS, CHECKPOINTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The operator's reference on all its cases, then fences, races, every number of workers from 1 to 8, odd shapes.
    #[test]
    fn every_kernel_holds() {
        testing::every_kernel_holds(KERNELS);
    }

    /// Within its tolerance, in prefill and decode, on a small model.
    #[test]
    fn every_checkpoint_agrees_with_its_parent() {
        for checkpoint in CHECKPOINTS {
            model::testing::agrees_with_its_parent(&registry(), checkpoint.name);
        }
    }

    #[test]
    fn checkpoints_have_names_of_their_own() {
        for checkpoint in CHECKPOINTS {
            assert_eq!(registry().checkpoints().filter(|other| other.name == checkpoint.name).count(), 1);
            assert_ne!(checkpoint.name, ladder::FAST, "an alias: it stands for the newest rung");
        }
    }
}
