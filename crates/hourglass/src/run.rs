//! `hourglass run`: one prompt, one answer, streamed.
//! Not here: turns (`chat`), measuring (`find`); the rates printed here are of one unwarmed request.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use model::GenerateOptions;
use record::{Finish, Reading, Record, RunRecord, Unit};
use weights::{ModelFiles, RenderOptions, Tokenizer};

use crate::failure::{Interrupted, usage};
use crate::load::{EngineArgs, ModelArgs, OnOff};
use crate::sampling::SamplingArgs;
use crate::speak::{Spoken, Timings, show_rate, speak};
use crate::{input, load, output};

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["prompt", "prompt_file", "ids"])))]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt; becomes the user's message in the model's chat template
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A file that holds the prompt; - for stdin
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Token ids instead of text, fed as they are: 1,2,3
    #[arg(long, value_name = "IDS", conflicts_with_all = ["raw", "system", "thinking"])]
    ids: Option<String>,
    /// No chat template: the model continues the text, in which special-token text counts as special tokens
    #[arg(long, conflicts_with_all = ["system", "thinking"])]
    raw: bool,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Whether the model may think before it answers, where its template knows that [default: off]
    #[arg(long, value_enum)]
    thinking: Option<OnOff>,
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Write a JSON record: ids, text, log-probabilities, timings; on a GPU steps then go one by one, as all logits are read,
    /// and their rate is lower than without
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the JSON record in place of the text; see --json-output for its timings on a GPU
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let engine_options = args.engine.options()?;
    let sampling = args.sampling.options()?;
    let record = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let given = match (&args.prompt, &args.prompt_file, &args.ids) {
        (Some(text), _, _) => Given::Text(text.clone()),
        (None, Some(path), _) => Given::Text(input::read_text("--prompt-file", path)?),
        (None, None, ids) => Given::Ids(input::parse_ids("--ids", ids.as_deref().unwrap_or_default())?),
    };
    if matches!(&given, Given::Text(text) if text.is_empty()) {
        return Err(usage("the prompt is empty: expected some text; give --prompt, --prompt-file or --ids"));
    }

    let files = args.model.open(None)?;
    let tokenizer = match (files.tokenizer(), &given) {
        (Ok(tokenizer), _) => Some(tokenizer),
        // Ids in, ids out: a model without a tokenizer can still run.
        (Err(weights::Error::NoTokenizer { .. }), Given::Ids(_)) => None,
        (Err(error), _) => return Err(error.into()),
    };
    let prompt = prompt_ids(&args, given, &files, tokenizer.as_ref())?;
    input::check_length(&prompt, files.config())?;
    // The last token is never fed back, so it needs no place.
    let context = files.config().max_positions;
    let max_tokens = args.max_tokens.min(context - prompt.len() + 1);
    let capacity = context.min(prompt.len().saturating_add(max_tokens));

    let (mut engine, load_seconds) = load::load(&files, engine_options)?;
    output::note(load::describe(&files, &engine));

    ops::memory::reset_peak();
    let mut cache = engine.new_cache(capacity);
    let quiet = args.json;
    let options = GenerateOptions {
        max_tokens,
        sampling,
        stop_tokens: files.config().eos_tokens.clone(),
        log_probabilities: quiet || record.is_some(),
    };
    let mut spoken = speak(&mut engine, &mut cache, &prompt, options, tokenizer.as_ref(), |piece| {
        if quiet { Ok(()) } else { output::print(piece.as_bytes()) }
    })?;
    let peak_bytes = ops::memory::peak_bytes();
    if spoken.finish == Finish::Length && spoken.ids.len() < args.max_tokens {
        spoken.finish = Finish::Context;
    }
    if !quiet {
        output::print(b"\n")?;
    }

    let timings = Timings::new(prompt.len(), &spoken.steps);
    let resident = probe::peak_resident_bytes();
    output::note(closing_line(prompt.len(), &spoken, &timings, peak_bytes, &resident));
    let generated = spoken.ids.len();
    let finish = spoken.finish;
    if quiet || record.is_some() {
        let mut answer = RunRecord {
            schema: RunRecord::SCHEMA.to_owned(),
            created: probe::now(),
            model: files.label().to_owned(),
            model_fingerprint: files.fingerprint()?,
            subject: probe::subject(&engine, args.engine.machine.solution.name(), &files.describe_encoding()),
            conditions: load::conditions(&mut engine, prompt.len(), capacity)?,
            conditions_id: String::new(),
            sampling: args.sampling.recorded(),
            prompt_ids: prompt,
            token_ids: spoken.ids,
            text: match spoken.text {
                Some(text) => record::Known::Is(text),
                None => record::Known::unavailable(
                    "the model brings no tokenizer",
                    "use a model with tokenizer.json, or a .gguf file",
                ),
            },
            finish,
            log_probabilities: spoken.log_probabilities,
            load: Reading::measured(load_seconds, Unit::Seconds, 1),
            prefill: timings.prefill,
            prefill_rate: timings.prefill_rate,
            decode_rate: timings.decode_rate,
            step_seconds: timings.step_seconds,
            peak_allocated: Reading::measured(peak_bytes as f64, Unit::Bytes, 1),
            peak_resident: resident,
            checks: Vec::new(),
            void: false,
        };
        answer.close();
        if let Some(record) = record {
            record.finish_with_json(&answer)?;
        }
        if quiet {
            output::print_json(&answer)?;
        }
    }
    if finish == Finish::Interrupted {
        return Err(Interrupted(format!("after {generated} tokens; what was generated is kept")).into());
    }
    Ok(ExitCode::SUCCESS)
}

enum Given {
    Text(String),
    Ids(Vec<u32>),
}

fn prompt_ids(args: &Args, given: Given, files: &ModelFiles, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>> {
    let text = match given {
        Given::Ids(ids) => {
            input::check_ids("--ids", &ids, files.config())?;
            return Ok(ids);
        }
        Given::Text(text) => text,
    };
    let tokenizer = tokenizer.expect("run returned the tokenizer's error where text was given");
    let ids = if args.raw {
        input::raw_ids(files, tokenizer, &text, false)?
    } else {
        let system = args.system.iter().map(|text| input::message("system", text.as_str()));
        let messages: Vec<_> = system.chain([input::message("user", text)]).collect();
        let thinking = args.thinking.is_some_and(OnOff::is_on);
        let options = RenderOptions { add_generation_prompt: true, enable_thinking: Some(thinking), tools: None };
        input::conversation_ids(files, tokenizer, &messages, &options, "use --raw to give the text without a template")?
    };
    input::check_tokenized(&ids, files)?;
    Ok(ids)
}

fn closing_line(prompt: usize, spoken: &Spoken, timings: &Timings, peak_bytes: usize, resident: &Reading) -> String {
    let mib = |bytes: f64| format!("{:.0} MiB", bytes / (1 << 20) as f64);
    format!(
        "{prompt} tokens in at {}, {} out at {}; peak memory {} allocated, {} resident",
        show_rate(&timings.prefill_rate),
        spoken.ids.len(),
        show_rate(&timings.decode_rate),
        mib(peak_bytes as f64),
        resident.value().map_or_else(|| "unavailable".to_owned(), mib),
    )
}
