//! Loads a model and streams its answer: `cargo run --release -p hourglass-model --example stream -- MODEL PROMPT`.

use std::io::Write;

use model::{Engine, GenerateOptions, LoadOptions, generate};
use weights::{ModelSource, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [name, prompt] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else { return Err("MODEL PROMPT".into()) };
    let files = weights::open(&ModelSource::parse(name)?, &OpenOptions::default())?;
    let tokenizer = files.tokenizer()?;
    let mut engine = Engine::load(&files, LoadOptions::new(&ops::ladder::SELECTED))?;
    let prompt = tokenizer.encode_with_special(prompt)?;
    let options =
        GenerateOptions { max_tokens: 32, stop_tokens: files.config().eos_tokens.clone(), ..Default::default() };
    let mut cache = engine.new_cache(prompt.len() + options.max_tokens);
    let mut text = tokenizer.stream();
    for token in generate(&mut engine, &mut cache, &prompt, options)? {
        print!("{}", text.push(token?.token)?.unwrap_or_default());
        std::io::stdout().flush()?;
    }
    println!("{}", text.finish()?.unwrap_or_default());
    Ok(())
}
