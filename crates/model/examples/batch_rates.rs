//! Decoding several sequences in one pass over the weights, against decoding one, step by step in turn:
//! `cargo run --release -p hourglass-model --example batch_rates -- [DEPTH [THREADS [ROUNDS [CHECKPOINT [SEQUENCES ..]]]]]`.
//! Ratios are of tokens per second, to the single sequence's step of the same round. Not here: requests that come and go.

use model::{Cache, Engine, Keep, LoadOptions};
use ops::Plain;
use std::time::Instant;
use weights::{ModelSource, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default: usize| arguments.get(n).map_or(Ok(default), |text| text.parse());
    let (depth, threads, rounds) = (number(0, 128)?, number(1, 2)?, number(2, 30)?.max(1));
    let name = arguments.get(3).map_or(ops::ladder::FAST, String::as_str);
    let batches: Vec<usize> = match arguments.get(4..) {
        Some(given) if !given.is_empty() => given.iter().map(|text| text.parse()).collect::<Result<_, _>>()?,
        _ => vec![2, 4, 8],
    };
    let files = weights::open(&ModelSource::parse("synthetic:qwen3-0.6b")?, &OpenOptions::default())?;
    let mut options = LoadOptions::new(ops::Registry::standard().checkpoint(name)?);
    options.threads = threads;
    let mut engine = Engine::load(&files, options)?;
    let most = batches.iter().copied().max().unwrap_or(1);
    let mut caches: Vec<Cache> = Vec::new();
    for sequence in 0..most as u32 {
        let mut cache = engine.new_cache(depth + 1);
        let prompt: Vec<u32> = (0..depth as u32).map(|n| 1 + (n * 7919 + sequence * 31) % 100_000).collect();
        engine.forward(&mut cache, &prompt, Keep::Last)?;
        caches.push(cache);
    }
    let mut single = Vec::with_capacity(rounds);
    let mut together = vec![Vec::with_capacity(rounds); batches.len()];
    for _ in 0..=rounds {
        {
            let mut step = engine.prepare(&mut caches[0], &[5], Keep::Last)?;
            step.run(&Plain)?;
            let start = Instant::now();
            step.run(&Plain)?;
            single.push(start.elapsed().as_secs_f64());
        }
        for (batch, times) in batches.iter().zip(&mut together) {
            let tokens = vec![5; *batch];
            let mut parts: Vec<&mut Cache> = caches.iter_mut().take(*batch).collect();
            let start = Instant::now();
            engine.decode_batch(&mut parts, &tokens)?;
            times.push(start.elapsed().as_secs_f64());
            for cache in parts {
                cache.rewind(1)?;
            }
        }
    }
    let median = |values: &[f64]| {
        // The first round binds the programs.
        let mut sorted = values[1..].to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    println!("one decode step of {name} after {depth} tokens, {threads} threads, {rounds} rounds, medians");
    println!("{:>9} {:>9} {:>10} {:>7}", "sequences", "ms", "tokens/s", "ratio");
    println!("{:>9} {:>9.2} {:>10.1} {:>7.2}", 1, median(&single) * 1e3, 1.0 / median(&single), 1.0);
    for (batch, times) in batches.iter().zip(&together) {
        let ratios: Vec<f64> = single.iter().zip(times).map(|(one, all)| one * *batch as f64 / all).collect();
        let seconds = median(times);
        println!("{batch:>9} {:>9.2} {:>10.1} {:>7.2}", seconds * 1e3, *batch as f64 / seconds, median(&ratios));
    }
    Ok(())
}
