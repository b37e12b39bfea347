//! The engine against transformers: `reference` in float32 on every architecture and file type, and every rung no further
//! from it than transformers' own bfloat16 run is from its float32.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use model::Engine;

#[test]
fn reference_agrees_with_transformers_at_every_position() {
    let mut faults = Vec::new();
    for (name, file) in MODELS {
        let mut engine = engine(&open(&fixture(file)), "reference");
        for prompt in PROMPTS {
            let oracle = oracle(name, prompt);
            let got = all_logits(&mut engine, &oracle.ids);
            let worst = (0..prompt)
                .map(|row| relative_l2(&got[row..=row], &oracle.logits[row..=row]))
                .fold(0.0f64, f64::max);
            println!("{name:<22} {prompt:>4} tokens: largest relative L2 over positions {worst:.2e}");
            if worst.is_nan() || worst > 1e-5 {
                faults.push(format!("{name} at {prompt} tokens: {worst:.2e}"));
            }
        }
    }
    assert!(faults.is_empty(), "further than 1e-5 from float32 transformers:\n{}", faults.join("\n"));
}

#[test]
fn every_rung_is_as_close_to_reference_as_bfloat16_transformers() {
    let mut faults = Vec::new();
    let scratch = tempfile::tempdir().unwrap();
    for (name, file) in MODELS {
        let path = fixture(file);
        let files = open(&path);
        // What the packed rungs hold of a dense file is its quantization, so that is what their truth is computed from.
        let dense_file = files.describe_encoding().starts_with("BF16");
        let quantized = scratch.path().join(name);
        let group = 64;
        if dense_file {
            weights::quantize_checkpoint(&files, &quantized, group, &weights::OpenOptions::default()).unwrap();
        }
        let mut references = vec![engine(&files, "reference")];
        if dense_file {
            references.push(engine(&open(&quantized), "reference"));
        }
        for rung in rungs() {
            let mut options = options(rung);
            options.w4_group = group;
            // The mixed files hold float16 and float32 numbers that bfloat16 rungs must round.
            options.convert = true;
            let mut engine = Engine::load(&files, options).unwrap();
            let packed = engine.checkpoint().weights == ops::WeightPolicy::Packed;
            for prompt in PROMPTS {
                let oracle = oracle(name, prompt);
                let want = all_logits(&mut references[usize::from(dense_file && packed)], &oracle.ids);
                let got = all_logits(&mut engine, &oracle.ids);
                let (l2, divergence) = (relative_l2(&got, &want), kl(&got, &want));
                let line = format!(
                    "{name:<22} {rung:<17} {prompt:>4} tokens: relative L2 {l2:.2e} (bf16 transformers {:.2e}), KL {divergence:.2e} ({:.2e})",
                    oracle.bf16_rel_l2, oracle.bf16_kl
                );
                println!("{line}");
                if !(l2 <= oracle.bf16_rel_l2 && divergence <= oracle.bf16_kl) {
                    faults.push(line);
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} further from reference than bfloat16 transformers:\n{}", faults.len(), faults.join("\n"));
}
