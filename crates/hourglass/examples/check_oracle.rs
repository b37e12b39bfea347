//! Whole models on GPU 0 against transformers in float32: no rung may be further from it than transformers' own bfloat16 run, the
//! rule that the CPU's rungs are held to (`model/tests/oracle.rs`). `check_oracle FIXTURES`, a copy of `crates/model/tests/fixtures`;
//! exit 1 if a rung is further. Not here: single kernels (`check_kernels`), and the CPU beside the GPU (`check_device`).

#![allow(clippy::unwrap_used, reason = "a check: what goes wrong ends it")]

#[path = "../../model/tests/common/mod.rs"]
mod common;

use common::{MODELS, MOVED_TO, PROMPTS, all_logits, engine, fixture, kl, open, oracle, relative_l2};
use model::{Engine, LoadOptions};
use ops::{Device, Registry, WeightPolicy};
use std::process::ExitCode;
use std::sync::Arc;

/// Of one prompt and model the two errors are draws of the same noise; over all models the larger one is no accident.
const ONE_L2: f64 = 1.25;
const ONE_KL: f64 = 2.5;
/// A single token's divergence is one draw of each.
const ONE_TOKEN_KL: f64 = 4.0;
const ALL: f64 = 1.005;
const GROUP: usize = 64;

/// Errors over those of transformers in bfloat16.
struct Ratio {
    rung: &'static str,
    prompt: usize,
    l2: f64,
    kl: f64,
}

/// One model at every rung; and how many rungs do not run it.
fn check(device: &Arc<dyn Device>, (name, file): (&str, &str), ratios: &mut Vec<Ratio>) -> (usize, usize) {
    let files = open(&fixture(file));
    let dense = files.describe_encoding().starts_with("BF16");
    // What packed rungs hold of a dense file is its quantization: their truth is computed from that.
    let scratch = tempfile::tempdir().unwrap();
    let quantized = dense.then(|| {
        let folder = scratch.path().join(name);
        weights::quantize_checkpoint(&files, &folder, GROUP, false, &weights::OpenOptions::default()).unwrap();
        engine(&open(&folder), "reference")
    });
    let mut references = vec![engine(&files, "reference")];
    references.extend(quantized);
    let (mut refused, mut further) = (0, 0);
    let registry = Registry::standard().on_device(device.kernels());
    let rungs: Vec<&'static str> =
        registry.checkpoints().map(|rung| rung.name).filter(|name| *name != "reference").collect();
    for rung in rungs {
        let checkpoint = registry.checkpoint(rung).unwrap();
        let options = LoadOptions {
            convert: true,
            w4_group: GROUP,
            registry: registry.clone(),
            device: Some(Arc::clone(device)),
            ..LoadOptions::new(checkpoint)
        };
        let mut on_gpu = match Engine::load(&files, options) {
            Ok(engine) => engine,
            Err(error) => {
                println!("-    {name} {rung}: {error}");
                refused += 1;
                continue;
            }
        };
        let packed = on_gpu.checkpoint().weights == WeightPolicy::Packed;
        for prompt in PROMPTS {
            let truth = oracle(name, prompt);
            let want = all_logits(&mut references[usize::from(dense && packed)], &truth.ids);
            let got = all_logits(&mut on_gpu, &truth.ids);
            let (l2, kl) = (relative_l2(&got, &want) / truth.bf16_rel_l2, kl(&got, &want) / truth.bf16_kl);
            let most_kl = if truth.ids.len() == 1 { ONE_TOKEN_KL } else { ONE_KL };
            // NaN is in no range.
            if !((0.0..=ONE_L2).contains(&l2) && (f64::NEG_INFINITY..=most_kl).contains(&kl)) {
                println!(
                    "FAIL {name} {rung} {prompt} tokens: {l2:.3} x the L2 and {kl:.3} x the KL of transformers in bfloat16"
                );
                further += 1;
            }
            ratios.push(Ratio { rung, prompt, l2, kl });
        }
    }
    (refused, further)
}

fn main() -> ExitCode {
    let Some(fixtures) = std::env::args_os().nth(1) else {
        eprintln!("usage: check_oracle FIXTURES, a copy of crates/model/tests/fixtures");
        return ExitCode::from(2);
    };
    MOVED_TO.get_or_init(|| fixtures.into());
    let device: Arc<dyn Device> = match ops_cuda::open(0) {
        Ok(gpu) => Arc::new(gpu),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    println!("{}, driver {}", device.label(), device.driver());
    let (mut ratios, mut refused, mut further) = (Vec::new(), 0, 0);
    for model in MODELS {
        let (more_refused, more_further) = check(&device, model, &mut ratios);
        refused += more_refused;
        further += more_further;
    }
    let mut groups: Vec<(&str, usize)> = Vec::new();
    for ratio in &ratios {
        if !groups.contains(&(ratio.rung, ratio.prompt)) {
            groups.push((ratio.rung, ratio.prompt));
        }
    }
    for (rung, prompt) in groups {
        let own: Vec<&Ratio> = ratios.iter().filter(|ratio| (ratio.rung, ratio.prompt) == (rung, prompt)).collect();
        let mean = |value: fn(&Ratio) -> f64| {
            (own.iter().map(|ratio| value(ratio).ln()).sum::<f64>() / own.len() as f64).exp()
        };
        let (l2, kl) = (mean(|ratio| ratio.l2), mean(|ratio| ratio.kl));
        let holds = l2 <= ALL && kl <= ALL;
        let mark = if holds { "ok  " } else { "FAIL" };
        println!("{mark} {rung:<20} {prompt:>4} tokens, {} models: {l2:.3} x the L2, {kl:.3} x the KL", own.len());
        further += usize::from(!holds);
    }
    println!("{further} further than transformers in bfloat16, {refused} models that a rung does not run");
    if further == 0 && !ratios.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
