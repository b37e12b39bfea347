//! Real weights: SmolLM2-135M-Instruct (Llama, Q4_1 with a Q8_0 embedding) against transformers in float32 on the
//! dequantized weights: likelihood of a fixed text, and greedy text of ten prompts. Not here: speed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use model::{Engine, Keep};
use serde_json::Value;
use weights::{ChatTemplate, Message, RenderOptions};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(fixture("smollm2.json")).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

fn tokens(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

/// Average negative log-likelihood of `ids[1..]`, teacher forced.
fn average_nll(engine: &mut Engine, ids: &[u32]) -> f64 {
    let mut cache = engine.new_cache(ids.len());
    let (mut sum, mut row) = (0.0f64, Vec::new());
    let mut fed = 0;
    // A rung without a cache runs the whole text once.
    let part = if engine.checkpoint().cache == ops::CachePolicy::None { ids.len() } else { 500 };
    while fed < ids.len() {
        let end = (fed + part).min(ids.len());
        let logits = engine.forward(&mut cache, &ids[fed..end], Keep::All).unwrap();
        for position in fed..end.min(ids.len() - 1) {
            logits.row(position - fed, &mut row).unwrap();
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f64 = row.iter().map(|logit| f64::from(logit - best).exp()).sum();
            sum += total.ln() - f64::from(row[ids[position + 1] as usize] - best);
        }
        fed = end;
    }
    sum / (ids.len() - 1) as f64
}

#[test]
fn text_is_as_likely_as_transformers_says() {
    let Some(path) = download(FILE) else { return };
    let files = open(&path);
    let expected = expected();
    let ids = tokens(&expected["text"]["ids"]);
    let text = std::fs::read_to_string(fixture("smollm2_text.txt")).unwrap();
    let encoded = files.tokenizer().unwrap().encode_plain(&text).unwrap();
    assert_eq!(encoded[..ids.len()], ids[..], "the text's tokens");
    let want = expected["text"]["average_nll"].as_f64().unwrap();
    let mut faults = Vec::new();
    // These compute many rows as their parent does.
    let alike = ["early-weights", "guided-shares", "gated-projections", "split-attention"];
    for checkpoint in std::iter::once("reference").chain(rungs().into_iter().filter(|rung| !alike.contains(rung))) {
        let mut options = options(checkpoint);
        options.prefill_chunk = 500;
        let got = average_nll(&mut Engine::load(&files, options).unwrap(), &ids);
        let allowed = if checkpoint == "reference" { 1e-4 } else { 0.005 };
        println!("{checkpoint:<17} average negative log-likelihood {got:.5} (transformers {want:.5})");
        let distance = (got - want).abs();
        if distance.is_nan() || distance > allowed {
            faults.push(format!("{checkpoint}: {got:.5}, transformers {want:.5}, allowed {allowed}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn greedy_text_parts_from_float32_only_where_it_hesitates() {
    let Some(path) = download(FILE) else { return };
    let files = open(&path);
    let tokenizer = files.tokenizer().unwrap();
    let template: ChatTemplate = files.chat_template().unwrap().unwrap();
    // One rung of each kind of arithmetic in decode; the oracle's plain loops would take minutes a prompt.
    for checkpoint in ["kv-cache", "quantized-matvec", "selected", ops::ladder::FAST] {
        let mut engine = engine(&files, checkpoint);
        for generation in expected()["generations"].as_array().unwrap() {
            let prompt = generation["prompt"].as_str().unwrap();
            let ids = if generation["kind"] == "chat" {
                let message: Message =
                    serde_json::from_value(serde_json::json!({"role": "user", "content": prompt})).unwrap();
                let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
                tokenizer.encode_conversation(&template, &[message], &options).unwrap()
            } else {
                tokenizer.encode_plain(prompt).unwrap()
            };
            assert_eq!(ids, tokens(&generation["prompt_ids"]), "tokens of {prompt:?}");
            let (want, margins) = (tokens(&generation["ids"]), numbers(&generation["margins"]));
            let mut cache = engine.new_cache(ids.len() + want.len());
            let mut token = engine.forward(&mut cache, &ids, Keep::Last).unwrap().argmax(0).unwrap();
            for (step, wanted) in want.iter().enumerate() {
                if token != *wanted {
                    let margin = margins[step];
                    println!("{checkpoint} {prompt:?}: parts at step {step}, margin {margin:.3}");
                    assert!(margin < 0.4, "{checkpoint} {prompt:?}: step {step}, float32 margin {margin:.3}");
                    break;
                }
                if step + 1 < want.len() {
                    token = engine.forward(&mut cache, &[token], Keep::Last).unwrap().argmax(0).unwrap();
                }
            }
        }
    }
}
