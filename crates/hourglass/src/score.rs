//! `hourglass score`: how likely a text is under the model, token by token; its logits as a NumPy file.
//! Not here: generating anything.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use model::{Engine, Keep};
use record::{Known, Reading, Record, ScoreRecord, Unit};

use crate::failure::Interrupted;
use crate::load::{EngineArgs, ModelArgs};
use crate::output::OutputFile;
use crate::progress::Progress;
use crate::{input, interrupt, load, npy, output};

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Positions {
    /// One row per token
    All,
    /// Only the last token's row
    Last,
}

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["text", "text_file", "ids"])))]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
    /// A file that holds the text; - for stdin
    #[arg(long, value_name = "FILE")]
    text_file: Option<PathBuf>,
    /// Token ids instead of text: 1,2,3
    #[arg(long, value_name = "IDS", conflicts_with = "plain")]
    ids: Option<String>,
    /// Special-token text in the text is ordinary text
    #[arg(long)]
    plain: bool,
    /// Write the logits to a NumPy file, float32 (rows, vocabulary)
    #[arg(long, value_name = "FILE.npy")]
    logits_out: Option<PathBuf>,
    /// Which positions' logits to write
    #[arg(long, value_enum, default_value = "all", requires = "logits_out")]
    positions: Positions,
    #[command(flatten)]
    engine: EngineArgs,
    /// Write a JSON record
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the JSON record in place of the summary
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let engine_options = args.engine.options()?;
    output::check_distinct(&[
        ("--json-output", args.json_output.as_deref()),
        ("--logits-out", args.logits_out.as_deref()),
    ])?;
    let record = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let mut logits_file = output::create_if_asked("--logits-out", args.logits_out.as_deref())?;
    let text = match (&args.text, &args.text_file) {
        (Some(text), _) => Some(text.clone()),
        (None, Some(path)) => Some(input::read_text("--text-file", path)?),
        (None, None) => None,
    };
    let listed = args.ids.as_deref().map(|list| input::parse_ids("--ids", list)).transpose()?;

    let files = args.model.open(None)?;
    let ids = match (text, listed) {
        (Some(text), _) => {
            let ids = input::raw_ids(&files, &files.tokenizer()?, &text, args.plain)?;
            input::check_tokenized(&ids, &files)?;
            ids
        }
        (None, listed) => {
            let ids = listed.unwrap_or_default();
            input::check_ids("--ids", &ids, files.config())?;
            ids
        }
    };
    input::check_length(&ids, files.config())?;

    let (mut engine, _) = load::load(&files, engine_options)?;
    output::note(load::describe(&files, &engine));
    if let Some(file) = &mut logits_file {
        let rows = if args.positions == Positions::All { ids.len() } else { 1 };
        npy::write_header(file, rows, files.config().vocab_size).map_err(|error| file.error(&error))?;
    }
    let (losses, seconds) = losses(&mut engine, &ids, logits_file.as_mut(), args.positions)?;
    if let Some(file) = logits_file {
        file.finish()?;
    }

    let missing = || Known::unavailable("the first token is given and nothing follows it", "give two tokens or more");
    let (average, perplexity) = if losses.is_empty() {
        (missing(), missing())
    } else {
        let average = losses.iter().sum::<f64>() / losses.len() as f64;
        (Known::Is(average), Known::Is(average.exp()))
    };
    let summary = match (average.known(), perplexity.known()) {
        (Some(average), Some(perplexity)) => format!(
            "{} tokens given those before them: {average:.4} nats per token, perplexity {perplexity:.3}\n",
            losses.len()
        ),
        _ => "1 token: nothing to score; give two tokens or more\n".to_owned(),
    };
    let mut score = ScoreRecord {
        schema: ScoreRecord::SCHEMA.to_owned(),
        created: probe::now(),
        model: files.label().to_owned(),
        model_fingerprint: files.fingerprint()?,
        subject: probe::subject(&engine, args.engine.machine.solution.name(), &files.describe_encoding()),
        conditions: load::conditions(&mut engine, ids.len(), ids.len())?,
        conditions_id: String::new(),
        ids,
        negative_log_likelihood: losses,
        average,
        perplexity,
        seconds: Reading::measured(seconds, Unit::Seconds, 1),
        checks: Vec::new(),
        void: false,
    };
    score.close();
    if let Some(record) = record {
        record.finish_with_json(&score)?;
    }
    if args.json {
        output::print_json(&score)?;
    } else {
        output::print(summary.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The negative log-likelihood of every token after the first, and the seconds of the forward passes. The prompt goes
/// through in the engine's chunks, so that logits of one chunk only are held.
fn losses(
    engine: &mut Engine,
    ids: &[u32],
    mut logits_file: Option<&mut OutputFile>,
    positions: Positions,
) -> Result<(Vec<f64>, f64)> {
    let progress = Progress::new("score");
    let chunk = engine.options().prefill_chunk;
    let mut cache = engine.new_cache(ids.len());
    let mut losses = Vec::with_capacity(ids.len() - 1);
    let mut row = Vec::new();
    let mut seconds = 0.0;
    for (number, tokens) in ids.chunks(chunk).enumerate() {
        let done = number * chunk;
        progress.steps(done, ids.len(), "tokens");
        let start = std::time::Instant::now();
        let logits = engine.forward(&mut cache, tokens, Keep::All)?;
        seconds += start.elapsed().as_secs_f64();
        for index in 0..tokens.len() {
            let position = done + index;
            logits.row(index, &mut row)?;
            if let Some(next) = ids.get(position + 1) {
                let loss = negative_log_likelihood(&row, *next);
                if !loss.is_finite() {
                    return Err(not_finite(position, engine.checkpoint().name));
                }
                losses.push(loss);
            }
            if let Some(file) = &mut logits_file
                && (positions == Positions::All || position + 1 == ids.len())
            {
                npy::write_row(*file, &row).map_err(|error| file.error(&error))?;
            }
        }
        if interrupt::requested() {
            return Err(
                Interrupted(format!("after {} of {} tokens; nothing was written", losses.len(), ids.len())).into()
            );
        }
    }
    Ok((losses, seconds))
}

fn not_finite(position: usize, checkpoint: &str) -> anyhow::Error {
    let cause = if checkpoint == "reference" {
        "float32 throughout does not hold them, so the weights are damaged: get the model again"
    } else {
        "the weights are damaged, or too large for the checkpoint's arithmetic: try --checkpoint reference"
    };
    anyhow::anyhow!("the logits at position {position} are not finite numbers at checkpoint '{checkpoint}'; {cause}")
}

/// −ln softmax(row) at `token`, in f64.
fn negative_log_likelihood(row: &[f32], token: u32) -> f64 {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = row.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    largest + sum.ln() - f64::from(row[token as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_the_checkpoint_they_are_at() {
        assert!(not_finite(3, "week1").to_string().contains("try --checkpoint reference"));
        assert!(!not_finite(3, "reference").to_string().contains("--checkpoint"));
    }

    #[test]
    fn the_loss_of_equal_logits_is_the_log_of_their_number() {
        let loss = negative_log_likelihood(&[3.0; 50], 7);
        assert!((loss - 50f64.ln()).abs() < 1e-12, "{loss}");
        assert!(negative_log_likelihood(&[0.0, 1000.0], 1).abs() < 1e-12);
        assert!((negative_log_likelihood(&[0.0, 1000.0], 0) - 1000.0).abs() < 1e-9);
        assert!(!negative_log_likelihood(&[f32::NAN, 1.0], 0).is_finite());
    }
}
