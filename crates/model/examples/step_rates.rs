//! Decode steps of several checkpoints on one model, in turn, step by step, so that a slow moment falls on all of them:
//! `cargo run --release -p hourglass-model --example step_rates -- [DEPTH [THREADS [ROUNDS [CHECKPOINT ..]]]]`.
//! Ratios are of the same round's steps. Not here: whole requests, for which `hourglass find` is.

use model::{Engine, Keep, LoadOptions};
use ops::{Group, Only, Plain};
use std::time::Instant;
use weights::{ModelSource, OpenOptions};

const GROUPS: [Option<Group>; 5] =
    [None, Some(Group::Projections), Some(Group::Attention), Some(Group::Pointwise), Some(Group::CacheUpdate)];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default: usize| arguments.get(n).map_or(Ok(default), |text| text.parse());
    let (depth, threads, rounds) = (number(0, 128)?, number(1, 2)?, number(2, 200)?.max(1));
    let names: Vec<&str> = match arguments.get(3..) {
        Some(names) if !names.is_empty() => names.iter().map(String::as_str).collect(),
        _ => vec!["selected", ops::ladder::FAST],
    };
    let files = weights::open(&ModelSource::parse("synthetic:qwen3-0.6b")?, &OpenOptions::default())?;
    let mut arms = Vec::new();
    for name in &names {
        let mut options = LoadOptions::new(ops::Registry::standard().checkpoint(name)?);
        options.threads = threads;
        let mut engine = Engine::load(&files, options)?;
        let mut cache = engine.new_cache(depth + 1);
        let prompt: Vec<u32> = (0..depth as u32).map(|n| 1 + n * 7919 % 100_000).collect();
        engine.forward(&mut cache, &prompt, Keep::Last)?;
        arms.push((engine, cache));
    }
    // One row per arm: the whole step, then each group alone.
    let mut times = vec![vec![Vec::with_capacity(rounds); 1 + GROUPS.len()]; names.len()];
    for round in 0..rounds {
        for turn in 0..names.len() {
            let at = if round % 2 == 0 { turn } else { names.len() - 1 - turn };
            let (engine, cache) = &mut arms[at];
            let mut step = engine.prepare(cache, &[5], Keep::Last)?;
            step.run(&Plain)?;
            for (kind, times) in times[at].iter_mut().enumerate() {
                let start = Instant::now();
                match kind {
                    0 => step.run(&Plain)?,
                    kind => step.run(&Only(GROUPS[kind - 1]))?,
                }
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    println!(
        "one decode step after {depth} tokens, {threads} threads, {rounds} rounds: us at the 10th percentile and the median;"
    );
    println!("ratio: median over rounds of this step to {}'s", names[0]);
    println!("{:<22} {:<12} {:>9} {:>9} {:>7}", "checkpoint", "calls", "p10", "median", "ratio");
    let quantile = |values: &[f64], q: f64| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * q) as usize]
    };
    for (name, kinds) in names.iter().zip(&times) {
        for (kind, samples) in kinds.iter().enumerate() {
            let calls = match kind {
                0 => "all",
                kind => {
                    GROUPS[kind - 1].map_or("none", |group| group.name().split([' ', ',']).next().unwrap_or_default())
                }
            };
            let ratios: Vec<f64> = samples.iter().zip(&times[0][kind]).map(|(ours, first)| ours / first).collect();
            let (p10, median, ratio) = (quantile(samples, 0.1), quantile(samples, 0.5), quantile(&ratios, 0.5));
            println!("{name:<22} {calls:<12} {p10:>9.1} {median:>9.1} {ratio:>7.3}");
        }
    }
    Ok(())
}
