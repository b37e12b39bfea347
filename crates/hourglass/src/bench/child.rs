//! `hourglass bench child`: one process that loads, warms up, clocks one request and prints the lines of `bench-child/1`.
//! Not here: which processes run when (`runner.rs`), and the client of servers (`endpoint.rs`).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use model::Engine;
use probe::Request;
use record::Known;
use record::bench::{CHILD_PROTOCOL, ChildHeader, ChildLine, ChildRequest, Setting};

use super::endpoint::{self, EndpointRequest};
use crate::failure::{INTERRUPTED, usage};
use crate::load::{EngineArgs, ModelArgs};
use crate::request::PrefillLogits;
use crate::{load, output};

/// Ids of a prompt longer than any context are no prompt.
const MAX_IDS_BYTES: u64 = 64 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt: a file with a JSON array of token ids
    #[arg(long, value_name = "FILE")]
    ids_file: PathBuf,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 129)]
    output_len: usize,
    /// Complete requests before the measured one
    #[arg(long, value_name = "N", default_value_t = 2)]
    warmup: usize,
    /// Which prompt tokens get logits
    #[arg(long, value_enum, default_value = "last")]
    prefill_logits: PrefillLogits,
    /// After the clock, run the request again and say how near to a tie each choice was
    #[arg(long)]
    margins: bool,
    /// Clock a server that speaks OpenAI's API at this address, in place of our engine; --model says what it serves
    #[arg(long, value_name = "URL", conflicts_with = "margins")]
    endpoint: Option<String>,
    /// The longest that one request of a server may take
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0)]
    time_limit_seconds: f64,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // A parent that is killed takes its child with it. Where the system has no such thing, the child ends by itself.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    if args.output_len < 2 {
        return Err(usage(format!("--output-len {}: expected at least 2", args.output_len)));
    }
    let ids = read_ids(&args.ids_file)?;
    if let Some(url) = &args.endpoint {
        return serve(args, url, &ids);
    }
    let options = args.engine.options()?;
    let files = args.model.open(Some(load::DEFAULT_MODEL))?;
    let (vocabulary, positions) = (files.config().vocab_size, files.config().max_positions);
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
        let file = args.ids_file.display();
        return Err(usage(format!(
            "--ids-file {file}: token id {id}: expected ids below the vocabulary's {vocabulary}"
        )));
    }
    if ids.len().checked_add(args.output_len).is_none_or(|tokens| tokens > positions) {
        return Err(usage(format!(
            "--output-len {}: with the prompt's {} tokens that is more than the model's {positions} positions",
            args.output_len,
            ids.len()
        )));
    }
    let (mut engine, _) = load::load(&files, options)?;
    let form = files.describe_encoding();
    print(&ChildLine::Header(Box::new(header(args, &engine, &form))))?;
    let request = Request {
        prompt: &ids,
        output_tokens: args.output_len,
        logits: args.prefill_logits.mode(),
        warmup: args.warmup,
    };
    let clocked = probe::clock(&mut engine, &request, &|_, _, _| {})?;
    let Some(clock) = clocked.clock.known().filter(|clock| clock.coverage.is_complete()) else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let margins = if args.margins { probe::margins(&mut engine, &request)? } else { None };
    let whole = |reading: &record::Reading| match reading {
        Known::Is(quantity) => Known::Is(quantity.value() as u64),
        Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
    };
    let seconds = |reading: &record::Reading| reading.value().context("a complete request has all of its times");
    let line = ChildRequest {
        prefill_s: Known::Is(seconds(&clock.prefill)?),
        token_s: Known::Is(clock.token_seconds.clone()),
        to_first_token_s: seconds(&clock.time_to_first_token)?,
        request_s: seconds(&clock.whole_request)?,
        tokens: Known::Is(clocked.tokens.clone()),
        peak_allocation_bytes: whole(&clock.peak_allocation),
        peak_rss_bytes: whole(&clock.peak_rss),
        involuntary_switches: clocked.involuntary_switches.known().copied(),
        conditions: Some(load::conditions(&mut engine, ids.len(), ids.len() + args.output_len)?),
        wiring: clocked.wiring.clone(),
        processor_share: Some(clock.processor_share.clone()),
        device: clock.device.known().cloned(),
        margins,
        endpoint: None,
    };
    print(&ChildLine::Request(Box::new(line)))?;
    Ok(ExitCode::SUCCESS)
}

/// A server's request, clocked by its client.
fn serve(args: &Args, url: &str, ids: &[u32]) -> Result<ExitCode> {
    let limit = Duration::try_from_secs_f64(args.time_limit_seconds).map_err(|_| {
        usage(format!("--time-limit-seconds {}: expected a number of seconds", args.time_limit_seconds))
    })?;
    // The ids in words, for servers that take only text; synthetic models have none.
    let files = args.model.open(Some(load::DEFAULT_MODEL))?;
    let text = files.tokenizer().ok().and_then(|tokenizer| tokenizer.decode(ids, false).ok());
    let request =
        EndpointRequest { url, ids, text: text.as_deref(), output_len: args.output_len, warmup: args.warmup, limit };
    endpoint::child(&request, &mut std::io::stdout().lock())
}

fn header(args: &Args, engine: &Engine, weights_form: &str) -> ChildHeader {
    let options = engine.options();
    let subject = probe::subject(engine, args.engine.machine.solution.name(), weights_form);
    let features: Vec<_> = options.features.iter().map(|feature| feature.name()).collect();
    let covers = if probe::reset_peak_resident() { "request" } else { "process" };
    let whole = |number: usize| Setting::Whole(i64::try_from(number).unwrap_or(i64::MAX));
    let settings = BTreeMap::from([
        ("device".to_owned(), Setting::Text(options.device.as_ref().map_or("cpu".to_owned(), |device| device.label()))),
        ("threads".to_owned(), whole(options.threads)),
        ("pinned".to_owned(), Setting::Switch(options.pin)),
        ("prefill_chunk".to_owned(), whole(options.prefill_chunk)),
        ("prefill_logits".to_owned(), Setting::Text(args.prefill_logits.mode().name().to_owned())),
        ("w4_group".to_owned(), whole(options.w4_group)),
        ("features".to_owned(), Setting::Text(features.join(","))),
        ("warmup".to_owned(), whole(args.warmup)),
        ("peak_rss_covers".to_owned(), Setting::Text(covers.to_owned())),
    ]);
    ChildHeader {
        protocol: CHILD_PROTOCOL.to_owned(),
        engine: subject.engine.clone(),
        version: subject.version.clone(),
        settings,
        weights_form: subject.weights_form.clone(),
        conversions: subject.conversions.clone(),
        subject: Some(subject),
    }
}

/// # Errors
/// No such file, too large, or not a JSON array of ids.
pub(crate) fn read_ids(path: &Path) -> Result<Vec<u32>> {
    let wrong = |why: String| {
        usage(format!("--ids-file {}: expected one JSON array of token ids, not empty: {why}", path.display()))
    };
    let metadata = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    // A pipe may never come to its end, and a device has none.
    if !metadata.is_file() {
        return Err(wrong("it is no regular file".to_owned()));
    }
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    file.take(MAX_IDS_BYTES + 1).read_to_end(&mut text).map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > MAX_IDS_BYTES {
        return Err(wrong(format!("the file has more than {MAX_IDS_BYTES} bytes")));
    }
    let ids: Vec<u32> = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    if ids.is_empty() { Err(wrong("it is empty".to_owned())) } else { Ok(ids) }
}

fn print(line: &ChildLine) -> Result<()> {
    let mut text = serde_json::to_vec(line).context("a line could not be written as JSON")?;
    text.push(b'\n');
    output::print(&text)
}
