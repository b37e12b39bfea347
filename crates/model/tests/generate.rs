//! A generation as the iterator hands it out: bounds, stopping, seeds, penalty, log-probabilities, interruption.
//! Not here: the sampler's filters (its own tests), and whether logits are right (`oracle.rs`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use model::{Cache, Engine, Error, GenerateOptions, Generated, Keep, SamplingOptions, generate};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PROMPT: [u32; 3] = [5, 6, 7];

/// A model of 512 positions.
fn small() -> Engine {
    engine(&open(&fixture("qwen3-mlx-g128")), "selected")
}

fn at_most(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, ..GenerateOptions::default() }
}

fn sampled(max_tokens: usize, sampling: SamplingOptions) -> GenerateOptions {
    GenerateOptions { sampling, ..at_most(max_tokens) }
}

/// All tokens of a fresh request.
fn all(engine: &mut Engine, options: GenerateOptions) -> Vec<Generated> {
    let mut cache = engine.new_cache(PROMPT.len() + options.max_tokens);
    generate(engine, &mut cache, &PROMPT, options).unwrap().map(Result::unwrap).collect()
}

fn ids(generated: &[Generated]) -> Vec<u32> {
    generated.iter().map(|one| one.token).collect()
}

fn refusal(engine: &mut Engine, cache: &mut Cache, prompt: &[u32], options: GenerateOptions) -> Error {
    generate(engine, cache, prompt, options).map(|_| ()).unwrap_err()
}

#[test]
fn the_last_token_is_never_fed_back() {
    let mut engine = small();
    let mut cache = engine.new_cache(4);
    let tokens: Vec<_> = generate(&mut engine, &mut cache, &PROMPT[..2], at_most(2)).unwrap().collect();
    assert!(tokens.len() == 2 && tokens.iter().all(Result::is_ok));
    assert_eq!(cache.offset(), 3);
    // After what the cache holds: 3 + 1 + 1 − 1 is just the capacity.
    assert_eq!(generate(&mut engine, &mut cache, &PROMPT[..1], at_most(1)).unwrap().count(), 1);
    assert_eq!(cache.offset(), 4);
    let refused = refusal(&mut engine, &mut cache, &PROMPT[..1], at_most(1));
    assert!(matches!(refused, Error::CapacityExceeded { capacity: 4, rows: 1, end: 5 }));
}

#[test]
fn no_tokens_run_nothing() {
    let mut engine = small();
    let mut cache = engine.new_cache(4);
    assert_eq!(generate(&mut engine, &mut cache, &PROMPT, at_most(0)).unwrap().count(), 0);
    assert_eq!((cache.offset(), cache.bytes(), engine.dispatches().len()), (0, 0, 0));
}

#[test]
fn what_cannot_end_is_refused_before_anything_runs() {
    let mut engine = small();
    let positions = engine.config().max_positions;
    assert_eq!(positions, 512);
    let mut cache = engine.new_cache(4);
    assert!(matches!(refusal(&mut engine, &mut cache, &[], at_most(2)), Error::EmptyPrompt));
    assert!(generate(&mut engine, &mut cache, &PROMPT, at_most(2)).is_ok(), "3 + 2 − 1 fit into 4");
    let refused = refusal(&mut engine, &mut cache, &PROMPT, at_most(3));
    assert!(matches!(refused, Error::CapacityExceeded { capacity: 4, rows: 3, end: 5 }));
    let refused = refusal(&mut engine, &mut cache, &PROMPT, at_most(usize::MAX));
    assert!(matches!(refused, Error::CapacityExceeded { capacity: 4, rows: 3, .. }));
    let hot = SamplingOptions { temperature: f32::NAN, ..SamplingOptions::default() };
    assert!(matches!(refusal(&mut engine, &mut cache, &PROMPT, sampled(2, hot)), Error::Option { .. }));

    let mut wide = engine.new_cache(usize::MAX);
    assert!(generate(&mut engine, &mut wide, &PROMPT, at_most(510)).is_ok(), "3 + 510 − 1 = 512");
    let refused = refusal(&mut engine, &mut wide, &PROMPT, at_most(511));
    assert!(matches!(refused, Error::ContextLimit { wanted: 513, limit: 512 }));
    for cache in [cache, wide] {
        assert_eq!((cache.offset(), cache.bytes()), (0, 0));
    }
    assert!(engine.dispatches().is_empty());
}

#[test]
fn a_stop_token_is_handed_out_marked_and_ends_it() {
    let mut engine = small();
    let free = ids(&all(&mut engine, at_most(12)));
    let place = (1..free.len()).rev().find(|place| !free[..*place].contains(&free[*place])).unwrap();
    let mut cache = engine.new_cache(20);
    let options = GenerateOptions { stop_tokens: vec![266, free[place]], ..at_most(12) };
    let mut generation = generate(&mut engine, &mut cache, &PROMPT, options).unwrap();
    let stopped: Vec<Generated> = generation.by_ref().map(Result::unwrap).collect();
    assert!(generation.next().is_none(), "it stays ended");
    assert_eq!(ids(&stopped), free[..=place]);
    let marks: Vec<bool> = stopped.iter().map(|one| one.stop).collect();
    assert!(marks[place] && !marks[..place].contains(&true));
    assert_eq!(cache.offset(), PROMPT.len() + place);
}

#[test]
fn a_seed_gives_its_tokens_again() {
    let mut engine = small();
    let seeded = |seed| sampled(24, SamplingOptions { temperature: 1.0, seed, ..SamplingOptions::default() });
    let first = ids(&all(&mut engine, seeded(1)));
    assert_eq!(ids(&all(&mut engine, seeded(1))), first);
    assert_ne!(ids(&all(&mut engine, seeded(2))), first);
}

#[test]
fn the_penalty_reaches_prompt_and_new_tokens() {
    let mut engine = small();
    let penalty = 1.5f32;
    let penalized = SamplingOptions { repetition_penalty: penalty, ..SamplingOptions::default() };
    let got = ids(&all(&mut engine, sampled(24, penalized)));
    assert_ne!(got, ids(&all(&mut engine, at_most(24))), "a penalty that changes nothing tests nothing");
    // The rule by hand, token by token.
    let mut cache = engine.new_cache(PROMPT.len() + got.len());
    let (mut history, mut fed, mut logits) = (PROMPT.to_vec(), 0, Vec::new());
    for (step, token) in got.iter().enumerate() {
        engine.forward(&mut cache, &history[fed..], Keep::Last).unwrap().row(0, &mut logits).unwrap();
        fed = history.len();
        for (id, logit) in logits.iter_mut().enumerate() {
            if history.contains(&(id as u32)) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let want = logits.iter().position(|logit| *logit == best).unwrap();
        assert_eq!(*token as usize, want, "token {step}");
        history.push(*token);
    }
}

#[test]
fn tokens_are_the_same_whether_their_logits_are_looked_at_or_not() {
    let mut engine = small();
    let looked_at = all(&mut engine, GenerateOptions { log_probabilities: true, ..at_most(12) });
    let alone = all(&mut engine, at_most(12));
    assert_eq!(ids(&looked_at), ids(&alone));
    assert!(looked_at.iter().all(|one| one.log_probability.is_some()));
    assert!(alone.iter().all(|one| one.log_probability.is_none()));
}

/// Writes a model of one layer that adds nothing, in which token n is followed by n + 1, until 9: its only channel is one that the
/// last norm takes beyond 32 bits, and that no token's logit takes up, so that its logits are 0 · ∞.
fn counts_to_nine(folder: &std::path::Path) {
    const ONE: u16 = 0x3f80;
    const WIDTH: usize = 64;
    const VOCABULARY: usize = 16;
    const LOST: usize = 40;
    let zeros = |rows: usize, cols: usize| (vec![rows, cols], vec![0_u16; rows * cols]);
    let ones = || (vec![WIDTH], vec![ONE; WIDTH]);
    let (mut embedding, mut head, mut norm) = (zeros(VOCABULARY, WIDTH), zeros(VOCABULARY, WIDTH), ones());
    for token in 0..VOCABULARY {
        embedding.1[token * WIDTH + if token == 9 { LOST } else { token }] = ONE;
        head.1[(token + 1) % VOCABULARY * WIDTH + token] = ONE;
    }
    // A single channel is √64 = 8 after the norm's division: 6.4e38, and the largest 32-bit number is 3.4e38.
    norm.1[LOST] = (8e37_f32.to_bits() >> 16) as u16;
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), embedding),
        ("lm_head.weight".to_owned(), head),
        ("model.norm.weight".to_owned(), norm),
        (layer("input_layernorm"), ones()),
        (layer("post_attention_layernorm"), ones()),
        (layer("self_attn.q_norm"), ones()),
        (layer("self_attn.k_norm"), ones()),
        (layer("self_attn.q_proj"), zeros(WIDTH, WIDTH)),
        (layer("self_attn.k_proj"), zeros(WIDTH, WIDTH)),
        (layer("self_attn.v_proj"), zeros(WIDTH, WIDTH)),
        (layer("self_attn.o_proj"), zeros(WIDTH, WIDTH)),
        (layer("mlp.gate_proj"), zeros(WIDTH, WIDTH)),
        (layer("mlp.up_proj"), zeros(WIDTH, WIDTH)),
        (layer("mlp.down_proj"), zeros(WIDTH, WIDTH)),
    ];
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, values)) in tensors {
        let start = data.len();
        data.extend(values.into_iter().flat_map(u16::to_le_bytes));
        let entry = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name, entry);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": WIDTH, "num_hidden_layers": 1,
        "intermediate_size": WIDTH, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": WIDTH,
        "vocab_size": VOCABULARY, "tie_word_embeddings": false, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "max_position_embeddings": 64, "hidden_act": "silu", "torch_dtype": "bfloat16", "eos_token_id": 0,
        "attention_bias": false,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn logits_that_stop_being_numbers_after_the_prompt_are_an_error_whoever_looks() {
    let folder = tempfile::tempdir().unwrap();
    counts_to_nine(folder.path());
    for rung in ["reference", "capacity-cache"] {
        let mut engine = engine(&open(folder.path()), rung);
        for log_probabilities in [false, true] {
            let mut cache = engine.new_cache(20);
            let options = GenerateOptions { log_probabilities, ..at_most(8) };
            let steps: Vec<_> = generate(&mut engine, &mut cache, &PROMPT, options).unwrap().collect();
            let [Ok(first), Ok(second), Err(Error::Logits)] = &steps[..] else { panic!("{rung}: {steps:?}") };
            assert_eq!((first.token, second.token), (8, 9), "{rung}");
        }
    }
}

#[test]
fn of_a_step_that_another_may_overwrite_only_the_largest_can_be_asked() {
    let mut engine = small();
    let (mut cache, mut row) = (engine.new_cache(20), Vec::new());
    engine.forward(&mut cache, &PROMPT, Keep::Last).unwrap().row(0, &mut row).unwrap();
    let before = row.clone();
    cache.reset();
    let logits = engine.forward(&mut cache, &PROMPT, Keep::Next).unwrap();
    let best = before.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let first = before.iter().position(|logit| *logit == best).unwrap() as u32;
    assert_eq!((logits.rows(), logits.argmax(0).unwrap()), (1, first));
    assert!(matches!(logits.row(0, &mut row), Err(Error::LargestOnly)));
    assert_eq!(row, before, "nothing was handed out");
}

#[test]
fn log_probabilities_are_the_log_softmax_of_the_logits() {
    let mut engine = small();
    let plain = SamplingOptions::default();
    let warped = SamplingOptions { temperature: 1.7, top_k: 40, repetition_penalty: 1.3, seed: 9, ..plain };
    for sampling in [plain, warped] {
        let generated = all(&mut engine, GenerateOptions { log_probabilities: true, ..sampled(10, sampling) });
        let fed = [&PROMPT[..], &ids(&generated)].concat();
        let mut cache = engine.new_cache(fed.len());
        let mut logits = Vec::new();
        for (step, one) in generated.iter().enumerate() {
            // The same steps as the generation's: the prompt, then a token each.
            let end = PROMPT.len() + step;
            let start = if step == 0 { 0 } else { end - 1 };
            engine.forward(&mut cache, &fed[start..end], Keep::Last).unwrap().row(0, &mut logits).unwrap();
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = logits.iter().map(|logit| f64::from(logit - best).exp()).sum();
            let want = f64::from(logits[one.token as usize] - best) - sum.ln();
            let got = one.log_probability.unwrap();
            assert!((f64::from(got) - want).abs() < 1e-5, "token {step}: {got} for {want}");
        }
    }
}

#[test]
fn interruption_ends_it_and_keeps_what_was_committed() {
    let cancelled = Arc::new(AtomicBool::new(false));
    let mut options = options("selected");
    options.cancelled = Arc::clone(&cancelled);
    let mut engine = Engine::load(&open(&fixture("qwen3-mlx-g128")), options).unwrap();
    let free = ids(&all(&mut engine, at_most(4)));
    let mut cache = engine.new_cache(20);
    let mut generation = generate(&mut engine, &mut cache, &PROMPT, at_most(10)).unwrap();
    for want in &free[..2] {
        assert_eq!(generation.next().unwrap().unwrap().token, *want);
    }
    cancelled.store(true, Relaxed);
    assert!(matches!(generation.next(), Some(Err(Error::Interrupted))));
    assert!(generation.next().is_none());
    // The prompt and the first token; the second was not fed yet.
    assert_eq!(cache.offset(), 4);
    cancelled.store(false, Relaxed);
    let rest = generate(&mut engine, &mut cache, &free[1..2], at_most(2)).unwrap();
    assert_eq!(ids(&rest.map(Result::unwrap).collect::<Vec<_>>()), free[2..], "the cache serves on");
}
