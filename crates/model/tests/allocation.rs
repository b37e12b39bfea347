//! Nothing is allocated in a decode step of the bounded rungs, nor between two tokens of a generation.
//! Not here: how much memory a request needs; one test only, because the counter counts the whole process.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use model::{Engine, GenerateOptions, Keep, SamplingOptions, generate};

#[global_allocator]
static COUNTING: ops::memory::CountingAllocator = ops::memory::CountingAllocator;

/// Allocations of 20 decode steps after the prompt and one step.
fn in_forward(engine: &mut Engine) -> u64 {
    let mut cache = engine.new_cache(64);
    let mut token = engine.forward(&mut cache, &[1, 2, 3], Keep::Last).unwrap().argmax(0).unwrap();
    token = engine.forward(&mut cache, &[token], Keep::Last).unwrap().argmax(0).unwrap();
    let before = ops::memory::allocations();
    for _ in 0..20 {
        token = engine.forward(&mut cache, &[token], Keep::Next).unwrap().argmax(0).unwrap();
    }
    ops::memory::allocations() - before
}

/// Allocations of 20 tokens after the first two.
fn in_generate(engine: &mut Engine, sampling: SamplingOptions) -> u64 {
    let mut cache = engine.new_cache(64);
    let options = GenerateOptions { max_tokens: 22, sampling, ..GenerateOptions::default() };
    let mut tokens = generate(engine, &mut cache, &[1, 2, 3], options).unwrap();
    for _ in 0..2 {
        tokens.next().unwrap().unwrap();
    }
    let before = ops::memory::allocations();
    for _ in 0..20 {
        tokens.next().unwrap().unwrap();
    }
    let allocations = ops::memory::allocations() - before;
    assert!(tokens.next().is_none());
    allocations
}

#[test]
fn decode_of_a_bounded_rung_allocates_nothing() {
    assert!(ops::memory::heap_is_counted());
    let penalized = SamplingOptions { repetition_penalty: 1.2, ..SamplingOptions::default() };
    let drawn = SamplingOptions { temperature: 1.5, top_k: 50, top_p: 0.95, min_p: 0.01, seed: 1, ..penalized };
    // Heads of 64 and of 128, which take different kernels.
    for (name, files) in [("tiny", synthetic("tiny")), ("qwen3-mlx-g128", open(&fixture("qwen3-mlx-g128")))] {
        for rung in rungs() {
            let mut engine = engine(&files, rung);
            let bounded = engine.checkpoint().cache == ops::CachePolicy::Bounded;
            let runs = [
                ("forward", in_forward(&mut engine)),
                ("generate, greedy", in_generate(&mut engine, SamplingOptions::default())),
                ("generate, greedy with a penalty", in_generate(&mut engine, penalized)),
                ("generate, drawn with a penalty", in_generate(&mut engine, drawn)),
            ];
            for (run, allocations) in runs {
                assert!(
                    !bounded || allocations == 0,
                    "{name}, {rung}, {run}: {allocations} allocations in 20 decode steps"
                );
                assert!(bounded || allocations > 0, "{name}, {rung}, {run} grows: the counter must see it");
            }
        }
    }
}
