//! Writes a model as a dense Hugging Face checkpoint where the peers' adapters can read it, and prints where:
//!     cargo run --release -p hourglass-weights --example dense_checkpoint -- synthetic:qwen3-0.6b
//! Not here: running an adapter on it.

use std::error::Error;

use weights::{ModelSource, OpenOptions, dense_in_cache, open, peers_cache};

fn main() -> Result<(), Box<dyn Error>> {
    let [model] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err("expected one argument, a model as --model takes it".into());
    };
    let options = OpenOptions::default();
    let files = open(&ModelSource::parse(model)?, &options)?;
    let made = dense_in_cache(&files, &peers_cache()?, &options)?;
    println!("--model {} --cache {}", made.model.display(), made.conversions.display());
    Ok(())
}
