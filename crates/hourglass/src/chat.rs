//! `hourglass chat`: turns read from stdin, answers streamed; the cache is kept, so each turn feeds only what is new.
//! Not here: one answer's generation (`speak`).

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::{Context, Result};
use model::{Cache, GenerateOptions};
use record::Finish;
use serde::Serialize;
use weights::{Message, RenderOptions};

use crate::failure::{Interrupted, usage};
use crate::load::OnOff;
use crate::load::{EngineArgs, ModelArgs};
use crate::sampling::SamplingArgs;
use crate::speak::{Timings, show_rate, speak};
use crate::{input, interrupt, load, output};

/// What there is for a model without a usable template.
const INSTEAD: &str = "use `hourglass run --raw`, which needs no template";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// A system message before the first turn
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Whether the model may think before it answers, where its template knows that [default: off]
    #[arg(long, value_enum)]
    thinking: Option<OnOff>,
    /// Most tokens in one answer
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_tokens: usize,
    /// Most tokens of the whole conversation; the cache is allocated for them once
    #[arg(long, value_name = "N", default_value_t = 4096)]
    context: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON object per answer, each on its own line, in place of the text
    #[arg(long)]
    json: bool,
}

/// One answer, as a line of JSON.
#[derive(Serialize)]
struct Turn {
    schema: &'static str,
    /// Tokens of the whole conversation up to the answer.
    prompt_tokens: usize,
    /// Of them, those that the cache already held.
    reused_tokens: usize,
    token_ids: Vec<u32>,
    text: String,
    finish: Finish,
    #[serde(flatten)]
    timings: Timings,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let engine_options = args.engine.options()?;
    let sampling = args.sampling.options()?;
    if args.max_tokens == 0 || args.context == 0 {
        return Err(usage("--max-tokens and --context: expected at least 1, found 0"));
    }
    let files = args.model.open(None)?;
    let tokenizer = input::tokenizer(&files)?;
    let opening: Vec<Message> = args.system.iter().map(|text| input::message("system", text.as_str())).collect();
    let render = RenderOptions {
        add_generation_prompt: true,
        enable_thinking: Some(args.thinking.is_some_and(OnOff::is_on)),
        tools: None,
    };
    // A missing template should not wait for the first turn.
    input::conversation_ids(&files, &tokenizer, &[input::message("user", "x")], &render, INSTEAD)?;
    let (mut engine, _) = load::load(&files, engine_options)?;
    let capacity = args.context.min(files.config().max_positions);
    let mut cache = engine.new_cache(capacity);
    let mut fed = Fed::default();
    let mut messages = opening.clone();
    output::note(load::describe(&files, &engine));
    output::note(format_args!(
        "/reset forgets the conversation, /exit (or end of input) ends it; {capacity} tokens in all"
    ));

    let mut turns = Turns::new()?;
    while let Some(line) = turns.next()? {
        let text = line.trim();
        match text {
            "" => continue,
            "/exit" => break,
            "/reset" => {
                messages.clone_from(&opening);
                cache.reset();
                fed = Fed::default();
                output::note("forgotten");
                continue;
            }
            _ => messages.push(input::message("user", text)),
        }
        let ids = input::conversation_ids(&files, &tokenizer, &messages, &render, INSTEAD)?;
        input::check_tokenized(&ids, &files)?;
        if ids.len() > capacity {
            messages.pop();
            output::note(format_args!(
                "this turn would make the conversation {} tokens long, and {capacity} fit: shorten it, /reset, or start \
                 with a larger --context (at most {})",
                ids.len(),
                files.config().max_positions
            ));
            continue;
        }
        let reused = fed.keep_common(&ids, &mut cache)?;
        let max_tokens = args.max_tokens.min(capacity - ids.len() + 1);
        let options = GenerateOptions {
            max_tokens,
            sampling,
            stop_tokens: files.config().eos_tokens.clone(),
            log_probabilities: false,
        };
        let mut spoken = speak(&mut engine, &mut cache, &ids[reused..], options, Some(&tokenizer), |piece| {
            if args.json { Ok(()) } else { output::print(piece.as_bytes()) }
        })?;
        if spoken.finish == Finish::Length && max_tokens < args.max_tokens {
            spoken.finish = Finish::Context;
        }
        let timings = Timings::new(ids.len() - reused, &spoken.steps);
        let text = spoken.text.unwrap_or_default();
        fed.ids.extend(ids[reused..].iter().chain(&spoken.ids));
        // The last token was never fed; an interrupted answer leaves off wherever the cache does.
        fed.ids.truncate(cache.offset());
        if !args.json {
            output::print(b"\n")?;
            output::note(format_args!(
                "[{} new tokens in at {}, {} reused; {} out at {}]",
                ids.len() - reused,
                show_rate(&timings.prefill_rate),
                reused,
                spoken.ids.len(),
                show_rate(&timings.decode_rate)
            ));
        }
        let generated = spoken.ids.len();
        if args.json {
            let turn = Turn {
                schema: "chat/1",
                prompt_tokens: ids.len(),
                reused_tokens: reused,
                token_ids: spoken.ids,
                text: text.clone(),
                finish: spoken.finish,
                timings,
            };
            let mut line = serde_json::to_vec(&turn).context("an answer could not be written as JSON")?;
            line.push(b'\n');
            output::print(&line)?;
        }
        if spoken.finish == Finish::Interrupted {
            return Err(Interrupted(format!("after {generated} tokens of this answer")).into());
        }
        messages.push(input::message("assistant", text));
    }
    if interrupt::requested() {
        return Err(Interrupted("while waiting for input".to_owned()).into());
    }
    Ok(ExitCode::SUCCESS)
}

/// The ids whose keys and values the cache holds.
#[derive(Default)]
struct Fed {
    ids: Vec<u32>,
}

impl Fed {
    /// Rewinds the cache to the longest common start of what it holds and `ids`, less than all of `ids` so that there is
    /// something left to feed. A template may rewrite earlier turns (Qwen3's drops their thinking), so that what was fed
    /// need not be a prefix of the conversation. Returns how many of `ids` are kept.
    fn keep_common(&mut self, ids: &[u32], cache: &mut Cache) -> Result<usize> {
        let kept = common_prefix(&self.ids, ids).min(ids.len().saturating_sub(1));
        cache.rewind(self.ids.len() - kept)?;
        self.ids.truncate(kept);
        Ok(kept)
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Lines of stdin, read so that Ctrl-C ends the wait for one.
struct Turns {
    reader: BufReader<File>,
    terminal: bool,
}

impl Turns {
    fn new() -> Result<Turns> {
        let stdin = std::io::stdin();
        // Not through std's Stdin: its buffer cannot be asked whether it holds anything.
        let file = stdin.as_fd().try_clone_to_owned().context("cannot open stdin")?;
        Ok(Turns { reader: BufReader::new(File::from(file)), terminal: stdin.is_terminal() })
    }

    /// The next line, or None at the end of input or when interrupted.
    fn next(&mut self) -> Result<Option<String>> {
        if self.terminal {
            let _ = write!(std::io::stderr(), "> ");
        }
        let mut line = Vec::new();
        loop {
            if self.reader.buffer().is_empty() && !interrupt::wait_for_stdin() {
                return Ok(None);
            }
            let part = self.reader.fill_buf().context("cannot read stdin")?;
            let (taken, ended) = match part.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (part.len(), part.is_empty()),
            };
            line.extend_from_slice(&part[..taken]);
            self.reader.consume(taken);
            if ended {
                break;
            }
        }
        if line.is_empty() {
            return Ok(None);
        }
        let text = String::from_utf8(line).map_err(|_| usage("stdin: expected UTF-8 text, found another encoding"))?;
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_prefix_ends_at_the_first_difference() {
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 4, 5]), 2);
        assert_eq!(common_prefix(&[1, 2], &[1, 2, 3]), 2);
        assert_eq!(common_prefix(&[], &[1]), 0);
    }
}
