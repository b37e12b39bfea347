//! A server that speaks OpenAI's API as an arm: one process that warms it up, sends one streamed request and prints the
//! lines of `bench-child/1`, with times as its client sees them.
//! Not here: which processes run when, the bytes of requests (`dialect`) and answers (`stream`).

mod arrival;
mod dialect;
mod overhead;
mod stream;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use record::Known;
use record::bench::{
    CHILD_PROTOCOL, ChildHeader, ChildLine, ChildRequest, EndpointTimes, Reason, Setting, UNAVAILABLE_EXIT,
};

use crate::failure::usage;
use arrival::Client;
use dialect::{Dialect, Place, Prompt};
use stream::Answer;

/// One measured request of a server, after `warmup` others.
pub(crate) struct EndpointRequest<'a> {
    /// What follows `endpoint:`. The base address, with or without `/v1`, or the whole address of `completions` or
    /// `chat/completions`.
    pub(crate) url: &'a str,
    /// Prompt ids: sent as they are where the server takes ids.
    pub(crate) ids: &'a [u32],
    /// What they say, for servers that take only text. None: as many plain words, which is another prompt.
    pub(crate) text: Option<&'a str>,
    pub(crate) output_len: usize,
    pub(crate) warmup: usize,
    /// Of each single request.
    pub(crate) limit: Duration,
}

/// Why a request gave no sample. Each says what was expected, what came and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error("{url}: no connection: {why}; is the server running, and is this its address?")]
    Connect { url: String, why: String },
    #[error("{url}: the server answered {status}: {message}")]
    Status { url: String, status: u16, message: String },
    #[error("{url}: expected an answer in server-sent events, found content type '{found}': it does not stream")]
    NotAStream { url: String, found: String },
    #[error("{url}: the request was not finished after {limit_s} s ({received} bytes and {chunks} chunks had come)")]
    Time { url: String, limit_s: f64, received: usize, chunks: usize },
    #[error("{url}: the stream broke after {received} bytes: {why}")]
    Broken { url: String, received: usize, why: String },
    #[error(
        "{url}: the stream ended before its answer was complete, after {chunks} chunks{half}; was the server stopped?"
    )]
    Early { url: String, chunks: usize, half: &'static str },
    #[error("{url}: a line of the stream is longer than {limit} bytes; this is not a stream of tokens")]
    LongLine { url: String, limit: usize },
    #[error("{url}: the stream does not end: {found}, for {asked} tokens asked for")]
    Endless { url: String, asked: usize, found: String },
    #[error("{url}: an event of the stream is not of OpenAI's form ({why}): '{start}'")]
    Event { url: String, why: String, start: String },
    #[error("{url}: the server gave up within the stream: {message}")]
    Server { url: String, message: String },
    #[error("{url}: the answer holds no text")]
    NoText { url: String },
    #[error(
        "{url}: {found} tokens came where {asked} were asked for: the server stops at the end of a text and takes no \
         'ignore_eos'; choose a shorter --output-len"
    )]
    Length { url: String, asked: usize, found: u64 },
    #[error(
        "{url}: the answer ended by itself ('{finish}', where 'length' was expected after {asked} tokens) and the server \
         does not count them; choose a shorter --output-len, or a server that sends 'usage'"
    )]
    Uncounted { url: String, asked: usize, finish: String },
}

impl EndpointError {
    /// There is no such server, rather than one that misbehaves.
    fn is_absence(&self) -> bool {
        matches!(self, EndpointError::Connect { .. })
    }
}

/// Runs it and writes the lines to `out`. A server that cannot be reached is an `unavailable` line and its exit code.
///
/// # Errors
/// A URL that is none; a server that answers no form of the request, or the measured one badly; `out` cannot be written.
pub(crate) fn child(request: &EndpointRequest, out: &mut dyn Write) -> Result<ExitCode> {
    let place = Place::parse(request.url).map_err(|why| usage(format!("endpoint:{}: {why}", request.url)))?;
    let client = Client::new(request.limit);
    let mut print = |line: &ChildLine| -> Result<()> {
        let mut text = serde_json::to_vec(line).context("a line could not be written as JSON")?;
        text.push(b'\n');
        out.write_all(&text).and_then(|()| out.flush()).context("cannot write to stdout")
    };
    let dialect = match dialect::negotiate(&client, &place, request.ids.len()) {
        Ok(dialect) => dialect,
        Err(error) if error.is_absence() => {
            let how_to_get = "start a server that speaks OpenAI's API at this address".to_owned();
            print(&ChildLine::Unavailable(Reason { why: error.to_string(), how_to_get }))?;
            return Ok(ExitCode::from(u8::try_from(UNAVAILABLE_EXIT).expect("an exit code")));
        }
        Err(error) => return Err(error.into()),
    };
    print(&ChildLine::Header(Box::new(header(request, &dialect))))?;
    for number in 0..request.warmup {
        let prompt = Prompt::other_than(request.ids, request.text, number);
        answer(&client, &dialect, &prompt, request.output_len)?;
    }
    let overhead = overhead::measure();
    let prompt = Prompt::new(request.ids, request.text);
    let (measured, answer) = answer(&client, &dialect, &prompt, request.output_len)?;
    print(&ChildLine::Request(Box::new(lines_request(measured, answer, request.output_len, overhead))))?;
    Ok(ExitCode::SUCCESS)
}

/// Sends one request and reads its stream to the end; with how long that took.
fn answer(
    client: &Client,
    dialect: &Dialect,
    prompt: &Prompt,
    output_len: usize,
) -> Result<(Duration, Answer), EndpointError> {
    let body = dialect.body(prompt, output_len);
    let sent = Instant::now();
    let answer = stream::read(client, &dialect.url, &body, sent, output_len)?;
    let whole = sent.elapsed();
    let url = dialect.url.clone();
    match answer.tokens() {
        Some(found) if found == output_len as u64 => Ok((whole, answer)),
        Some(found) => Err(EndpointError::Length { url, asked: output_len, found }),
        None => Err(EndpointError::Uncounted { url, asked: output_len, finish: answer.finish }),
    }
}

fn header(request: &EndpointRequest, dialect: &Dialect) -> ChildHeader {
    let text = |value: &str| Setting::Text(value.to_owned());
    let prefix_cache = if dialect.extras {
        "asked to be off (cache_prompt, cache_salt); warm-up prompts begin otherwise"
    } else {
        "warm-up prompts begin otherwise; what the server kept of earlier processes is not known"
    };
    let prompt = match (dialect.takes_ids, request.text) {
        (true, _) => "token ids",
        (false, Some(_)) => "the text of the token ids",
        (false, None) => "as many plain words as token ids: another prompt, see prompt_tokens",
    };
    let settings = BTreeMap::from([
        ("url".to_owned(), text(&dialect.url)),
        ("model".to_owned(), text(dialect.model.as_deref().unwrap_or("the server's default"))),
        ("prompt".to_owned(), text(prompt)),
        ("sampling".to_owned(), text("temperature 0")),
        ("ignore_eos".to_owned(), text(if dialect.extras { "asked for" } else { "the server takes no such field" })),
        ("prefix_cache".to_owned(), text(prefix_cache)),
        ("prefill_logits".to_owned(), text("the server decides")),
        ("threads".to_owned(), text("the server decides")),
        ("warmup".to_owned(), Setting::Whole(i64::try_from(request.warmup).unwrap_or(i64::MAX))),
        ("clock".to_owned(), text("the client's: from before sending to the arrival of each read that held text")),
    ]);
    ChildHeader {
        protocol: CHILD_PROTOCOL.to_owned(),
        engine: "endpoint".to_owned(),
        version: dialect.server.clone().unwrap_or_else(|| "not told by the server".to_owned()),
        settings,
        weights_form: "not told by the server".to_owned(),
        conversions: Vec::new(),
        subject: None,
    }
}

/// The request's line. Times between tokens are told only where every arrival held exactly one token.
fn lines_request(whole: Duration, answer: Answer, output_len: usize, overhead: Known<f64>) -> ChildRequest {
    let chunk_s: Vec<f64> = answer.chunks.iter().map(|chunk| chunk.at.as_secs_f64()).collect();
    let chunk_tokens = answer.tokens_per_chunk();
    let one_each = chunk_tokens.known().is_some_and(|counts| counts.iter().all(|count| *count == 1));
    let token_s = match &chunk_tokens {
        Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        Known::Is(_) if one_each && chunk_s.len() == output_len => {
            let before = std::iter::once(0.0).chain(chunk_s.iter().copied());
            Known::Is(chunk_s.iter().zip(before).map(|(at, before)| at - before).collect())
        }
        Known::Is(_) => Known::unavailable(
            "several tokens arrived together: the times between them are not known",
            "a server that sends each token as an event of its own, as soon as it is made",
        ),
    };
    let tokens = match answer.token_ids {
        Some(ids) if ids.len() == output_len => Known::Is(ids),
        _ => Known::unavailable(
            "the server does not tell the ids of its tokens",
            "a server that knows 'return_token_ids', such as vLLM; text_hash compares answers of one server",
        ),
    };
    let counted = |count: Option<u64>| {
        count.map_or_else(|| Known::unavailable("the server sends no 'usage'", "a server that does"), Known::Is)
    };
    let remote = || Known::unavailable("the engine runs in the server's process", "measure it on the server's machine");
    ChildRequest {
        prefill_s: Known::unavailable(
            "a client sees the first token, not what the server spent on its prompt",
            "to_first_token_s, which also holds the network and the server's queue",
        ),
        token_s,
        to_first_token_s: chunk_s.first().copied().unwrap_or_default(),
        request_s: whole.as_secs_f64(),
        tokens,
        peak_allocation_bytes: remote(),
        peak_rss_bytes: remote(),
        involuntary_switches: None,
        conditions: None,
        wiring: Vec::new(),
        processor_share: None,
        device: None,
        margins: None,
        endpoint: Some(EndpointTimes {
            chunk_s,
            chunk_tokens,
            text_hash: answer.text_hash,
            prompt_tokens: counted(answer.prompt_tokens),
            completion_tokens: counted(answer.completion_tokens),
            client_overhead_s: overhead,
        }),
    }
}
