//! The rungs of a device's ladder, without a device: their programs are sound and as short as they say, and, run with the references
//! in float64, they compute what the oracle computes. Not here: a device's kernels (`ops-cuda`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{options, synthetic};
use model::{Engine, Keep, LoadOptions, lower, weight_formats};
use ops::ladder::{self, REFERENCE};
use ops::{Checkpoint, Choice, MechanismControls};

const fn reference(operator: &'static str) -> Choice {
    ladder::choose(operator, "reference")
}

/// The oracle with the fusions of a device's last rung.
static FUSED: Checkpoint = Checkpoint {
    name: "fused-reference",
    rewrites: ladder::PLACED_ATTENTION_RUNG.rewrites,
    prefers: &[
        reference("rms_norm"),
        reference("add_rms_norm"),
        reference("rope"),
        reference("norm_rope_append"),
        reference("attention"),
        reference("swiglu"),
        reference("linear_add"),
        reference("norm_linear"),
        reference("norm_swiglu"),
        reference("placed_attention"),
    ],
    ..REFERENCE
};

/// Logits of a prompt of `first` tokens and of the tokens after it, one at a time.
fn logits(checkpoint: &'static Checkpoint, name: &str, first: usize) -> Vec<f32> {
    let files = synthetic(name);
    let mut engine = Engine::load(&files, LoadOptions { threads: 2, ..LoadOptions::new(checkpoint) }).unwrap();
    let ids: Vec<u32> = (0..first as u32 + 4).map(|id| (id * 37 + 5) % engine.config().vocab_size as u32).collect();
    let mut cache = engine.new_cache(ids.len());
    let (mut all, mut row) = (Vec::new(), Vec::new());
    for part in std::iter::once(&ids[..first]).chain(ids[first..].chunks(1)) {
        engine.forward(&mut cache, part, Keep::Last).unwrap().row(0, &mut row).unwrap();
        all.extend_from_slice(&row);
    }
    all
}

#[test]
fn fused_programs_compute_what_the_oracle_computes() {
    for first in [1, 5, 12] {
        let (want, got) = (logits(&REFERENCE, "tiny", first), logits(&FUSED, "tiny", first));
        let error: f64 = got.iter().zip(&want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let power: f64 = want.iter().map(|x| f64::from(*x).powi(2)).sum();
        // The fused calls round to float32 less often.
        assert!(error / power < 1e-11, "after {first} tokens: {:.1e}", error / power);
    }
}

/// Operators of the calls of layer 1.
fn layer(rung: &'static Checkpoint, rows: usize) -> Vec<&'static str> {
    let files = synthetic("qwen3-0.6b");
    let resolved = rung.resolve(MechanismControls::default()).unwrap();
    let formats = weight_formats(&files, &resolved, &LoadOptions { convert: true, ..options("added-norm") }).unwrap();
    let program = lower(files.config(), &resolved, &formats, rows, 1, 64);
    program.verify().unwrap();
    program.calls.iter().filter(|call| call.layer == Some(1)).map(|call| call.operator.name()).collect()
}

#[test]
fn each_rung_leaves_fewer_calls_of_a_single_row_and_prompts_as_they_were() {
    let one: Vec<usize> = ladder::DEVICE.iter().map(|rung| layer(rung, 1).len()).collect();
    assert_eq!((layer(&ladder::ADDED_NORM, 1).len(), one), (12, vec![12, 6, 5, 5]));
    let last = ["norm_linear", "placed_attention", "linear_add", "norm_swiglu", "linear_add"];
    assert_eq!(layer(&ladder::PLACED_ATTENTION_RUNG, 1), last);
    // Several rows of one request need each other's keys.
    assert!(layer(&ladder::PLACED_ATTENTION_RUNG, 5).contains(&"norm_rope_append"));
    for rung in ladder::DEVICE {
        assert_eq!(layer(rung, 64), layer(&ladder::ADDED_NORM, 64), "{}", rung.name);
    }
}
