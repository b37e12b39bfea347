//! Decode steps and plain reads of as many bytes, in turn: what part of the memory's bandwidth a step reaches.
//! `cargo run --release -p hourglass-model --example step_reads -- BYTES [DEPTH [THREADS [ROUNDS [CHECKPOINT [MODEL]]]]]`, where
//! `hourglass wiring` knows the bytes. A line per round: milliseconds of the step, and the mean of the reads before and after it.
//! Not here: whole requests, whose neighbours in time are seconds away.

use model::{Engine, Keep, LoadOptions};
use ops::ceilings::Buffers;
use ops::{Plain, Workers};
use std::time::Instant;
use weights::{ModelSource, OpenOptions};

/// Places that each worker reads from in turn.
const STREAMS: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default: usize| arguments.get(n).map_or(Ok(default), |text| text.parse());
    let bytes: usize = arguments.first().ok_or("expected the bytes that a step reads")?.parse()?;
    let (depth, threads, rounds) = (number(1, 128)?, number(2, 2)?, number(3, 30)?.max(1));
    let checkpoint = arguments.get(4).map_or(ops::ladder::FAST, String::as_str);
    let model = arguments.get(5).map_or("synthetic:qwen3-0.6b", String::as_str);
    let files = weights::open(&ModelSource::parse(model)?, &OpenOptions::default())?;
    let mut options = LoadOptions::new(ops::Registry::standard().checkpoint(checkpoint)?);
    options.threads = threads;
    let mut engine = Engine::load(&files, options)?;
    let mut cache = engine.new_cache(depth + 1);
    let prompt: Vec<u32> = (0..depth as u32).map(|n| 1 + n * 7919 % 100_000).collect();
    engine.forward(&mut cache, &prompt, Keep::Last)?;

    let workers = Workers::new(threads, false)?;
    // Whole cache lines.
    let bytes = bytes.next_multiple_of(64);
    let buffers = Buffers::new(bytes, 64, &workers)?;
    let read = || {
        let start = Instant::now();
        std::hint::black_box(buffers.read(&workers, bytes, STREAMS, 1));
        start.elapsed().as_secs_f64() * 1e3
    };
    let mut step = engine.prepare(&mut cache, &[5], Keep::Last)?;
    step.run(&Plain)?;
    read();
    let mut before = read();
    for _ in 0..rounds {
        let start = Instant::now();
        step.run(&Plain)?;
        let taken = start.elapsed().as_secs_f64() * 1e3;
        let after = read();
        println!("{taken:.4} {:.4}", (before + after) / 2.0);
        before = after;
    }
    Ok(())
}
