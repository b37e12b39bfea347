//! A streamed answer: server-sent events to chunks of text with the time of their arrival.
//! Not here: what was asked (`dialect`).
//!
//! A chunk is everything that one read of the connection completed: several events that arrived together are one chunk.
//! Nothing a server sends is trusted: lines, events, bytes and time have limits.

use std::io::Read;
use std::time::{Duration, Instant};

use record::Known;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::EndpointError;
use super::arrival::Client;

/// No event of one token is nearly as long.
const LINE_LIMIT: usize = 1 << 20;
/// Of a whole stream; an event with its token's probabilities takes a few hundred bytes.
const STREAM_LIMIT: usize = 64 << 20;
/// Of an error's text that is repeated.
const EXCERPT: usize = 200;

/// A complete answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) chunks: Vec<Chunk>,
    /// Of all the text.
    pub(super) text_hash: String,
    /// Of all tokens, if every event with text told its own.
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) completion_tokens: Option<u64>,
    /// Why it ended: `length` after as many tokens as were asked for.
    pub(super) finish: String,
    asked: usize,
}

/// What one read brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Since the request was sent.
    pub(super) at: Duration,
    /// Events with text.
    events: u64,
    /// By the ids told in its events.
    ids: Option<u64>,
    /// Tokens so far, by the server's running count.
    total: Option<u64>,
}

impl Answer {
    /// By the server's count, or because it says that it stopped at the number asked for.
    pub(super) fn tokens(&self) -> Option<u64> {
        self.completion_tokens.or_else(|| (self.finish == "length").then_some(self.asked as u64))
    }

    /// Tokens of each chunk: by their ids, by the server's running count, or, where the answer has as many events as
    /// tokens, by its events. Unavailable if the server tells none of these.
    pub(super) fn tokens_per_chunk(&self) -> Known<Vec<u64>> {
        if self.chunks.iter().all(|chunk| chunk.ids.is_some()) {
            return Known::Is(self.chunks.iter().filter_map(|chunk| chunk.ids).collect());
        }
        let totals: Vec<u64> = self.chunks.iter().filter_map(|chunk| chunk.total).collect();
        if totals.len() == self.chunks.len() && totals.is_sorted() && totals.last().copied() == self.tokens() {
            let before = std::iter::once(0).chain(totals.iter().copied());
            return Known::Is(totals.iter().zip(before).map(|(total, before)| total - before).collect());
        }
        let events: u64 = self.chunks.iter().map(|chunk| chunk.events).sum();
        if self.tokens() == Some(events) {
            return Known::Is(self.chunks.iter().map(|chunk| chunk.events).collect());
        }
        let why = match self.tokens() {
            Some(tokens) => {
                format!("{events} events held {tokens} tokens, and the server does not say which held how many")
            }
            None => "the server does not count its tokens".to_owned(),
        };
        Known::unavailable(why, "a server that sends each token as an event of its own, and 'usage'")
    }
}

/// Sends `body` and reads the answer's stream to its end. `sent` is the clock's zero.
///
/// # Errors
/// Everything that a server can do wrong, see [`EndpointError`].
pub(super) fn read(
    client: &Client,
    url: &str,
    body: &Value,
    sent: Instant,
    asked: usize,
) -> Result<Answer, EndpointError> {
    let url = || url.to_owned();
    let timed_out =
        |received, chunks| EndpointError::Time { url: url(), limit_s: client.limit.as_secs_f64(), received, chunks };
    let request =
        client.agent.post(url()).header("content-type", "application/json").header("accept", "text/event-stream");
    let mut answer = request.send(body.to_string()).map_err(|error| transport_error(client, &url(), &error))?;
    let status = answer.status();
    if !status.is_success() {
        let text = answer.body_mut().with_config().limit(64 << 10).read_to_string().unwrap_or_default();
        return Err(EndpointError::Status { url: url(), status: status.as_u16(), message: complaint(&text) });
    }
    let kind = answer.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or("none").to_owned();
    if !kind.starts_with("text/event-stream") {
        return Err(EndpointError::NotAStream { url: url(), found: kind.chars().take(EXCERPT).collect() });
    }
    let mut events = Events::new(url(), asked);
    let mut reader = answer.into_body().into_reader();
    let mut buffer = [0; 16 << 10];
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(count) => count,
            Err(_) if sent.elapsed() >= client.limit => return Err(timed_out(events.received, events.chunks.len())),
            Err(error) => {
                return Err(EndpointError::Broken { url: url(), received: events.received, why: error.to_string() });
            }
        };
        let newest = client.newest();
        if count == 0 {
            return events.finish();
        }
        events.take(&buffer[..count], newest.read, newest.at.saturating_duration_since(sent))?;
    }
}

/// An error of the connection before any answer came.
pub(super) fn transport_error(client: &Client, url: &str, error: &ureq::Error) -> EndpointError {
    let url = url.to_owned();
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed => EndpointError::Connect { url, why: error.to_string() },
        ureq::Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => {
            EndpointError::Connect { url, why: error.to_string() }
        }
        ureq::Error::Timeout(_) => {
            EndpointError::Time { url, limit_s: client.limit.as_secs_f64(), received: 0, chunks: 0 }
        }
        _ => EndpointError::Broken { url, received: 0, why: error.to_string() },
    }
}

/// The stream so far.
struct Events {
    url: String,
    asked: usize,
    received: usize,
    line: Vec<u8>,
    chunks: Vec<Chunk>,
    /// Which read brought the newest chunk.
    newest_read: Option<u64>,
    seen: usize,
    hash: Sha256,
    ids: Vec<u32>,
    /// An event with text told no ids.
    ids_missing: bool,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    /// `[DONE]` came.
    done: bool,
    finish: Option<String>,
}

impl Events {
    fn new(url: String, asked: usize) -> Events {
        Events {
            url,
            asked,
            received: 0,
            line: Vec::new(),
            chunks: Vec::new(),
            newest_read: None,
            seen: 0,
            hash: Sha256::new(),
            ids: Vec::new(),
            ids_missing: false,
            prompt_tokens: None,
            completion_tokens: None,
            done: false,
            finish: None,
        }
    }

    fn take(&mut self, bytes: &[u8], read: u64, at: Duration) -> Result<(), EndpointError> {
        self.received += bytes.len();
        if self.received > STREAM_LIMIT {
            return Err(self.endless(format!("{} bytes came", self.received)));
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + part.len() > LINE_LIMIT {
                return Err(EndpointError::LongLine { url: self.url.clone(), limit: LINE_LIMIT });
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.take_line(line.trim_ascii(), read, at)?;
            }
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], read: u64, at: Duration) -> Result<(), EndpointError> {
        if line.is_empty() || line.starts_with(b":") {
            return Ok(());
        }
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
            let other: [&[u8]; 3] = [b"event:", b"id:", b"retry:"];
            if other.iter().any(|field| line.starts_with(field)) {
                return Ok(());
            }
            return Err(self.bad_event("it has no 'data:'", line));
        };
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        // Servers split text into as many events as tokens, seldom more; no honest one sends so many.
        self.seen += 1;
        if self.seen > 16 * self.asked + 1024 {
            return Err(self.endless(format!("{} events came", self.seen)));
        }
        let event: Value = match serde_json::from_slice(data) {
            Ok(event) => event,
            Err(error) => return Err(self.bad_event(&error.to_string(), data)),
        };
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            return Err(EndpointError::Server { url: self.url.clone(), message: complaint(&error.to_string()) });
        }
        if !event.get("choices").is_some_and(Value::is_array) && event.get("usage").is_none() {
            return Err(self.bad_event("it has neither 'choices' nor 'usage'", data));
        }
        self.take_event(&event, read, at);
        Ok(())
    }

    fn take_event(&mut self, event: &Value, read: u64, at: Duration) {
        let usage = &event["usage"];
        let total = usage["completion_tokens"].as_u64();
        self.prompt_tokens = usage["prompt_tokens"].as_u64().or(self.prompt_tokens);
        self.completion_tokens = total.or(self.completion_tokens);
        let choice = &event["choices"][0];
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.chars().take(EXCERPT).collect());
        }
        let delta = &choice["delta"];
        // What a reasoning model thinks was generated too.
        let texts = [&choice["text"], &delta["content"], &delta["reasoning_content"], &delta["reasoning"]];
        let text: String = texts.iter().filter_map(|text| text.as_str()).collect();
        let ids: Option<Vec<u32>> = choice["token_ids"]
            .as_array()
            .and_then(|ids| ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect());
        let ids = ids.filter(|ids| !ids.is_empty());
        if text.is_empty() && ids.is_none() {
            return;
        }
        self.hash.update(text.as_bytes());
        let told = ids.as_ref().map(|ids| ids.len() as u64);
        match ids {
            Some(ids) => self.ids.extend(ids),
            None => self.ids_missing = true,
        }
        match self.chunks.last_mut() {
            Some(chunk) if self.newest_read == Some(read) => {
                chunk.events += 1;
                chunk.ids = chunk.ids.zip(told).map(|(before, told)| before + told);
                chunk.total = total;
            }
            _ => self.chunks.push(Chunk { at, events: 1, ids: told, total }),
        }
        self.newest_read = Some(read);
    }

    fn finish(self) -> Result<Answer, EndpointError> {
        if !(self.done || self.finish.is_some()) || !self.line.trim_ascii().is_empty() {
            let half = if self.line.trim_ascii().is_empty() { "" } else { ", in the middle of a line" };
            return Err(EndpointError::Early { url: self.url, chunks: self.chunks.len(), half });
        }
        if self.chunks.is_empty() {
            return Err(EndpointError::NoText { url: self.url });
        }
        let text_hash = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Answer {
            chunks: self.chunks,
            text_hash,
            token_ids: (!self.ids_missing).then_some(self.ids),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            finish: self.finish.unwrap_or_else(|| "no reason told".into()),
            asked: self.asked,
        })
    }

    fn endless(&self, found: String) -> EndpointError {
        EndpointError::Endless { url: self.url.clone(), asked: self.asked, found }
    }

    fn bad_event(&self, why: &str, data: &[u8]) -> EndpointError {
        let start = String::from_utf8_lossy(data).chars().take(EXCERPT).collect();
        EndpointError::Event { url: self.url.clone(), why: why.to_owned(), start }
    }
}

/// The message inside an error's JSON, or the start of whatever came instead, in one line.
fn complaint(text: &str) -> String {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let inner = [&value["error"]["message"], &value["message"], &value["detail"], &value["error"]];
    let message = inner.iter().find_map(|value| value.as_str()).unwrap_or(text);
    let message: String = message.chars().map(|c| if record::is_obeyed(c) { ' ' } else { c }).take(EXCERPT).collect();
    if message.trim().is_empty() { "it gave no reason".to_owned() } else { message }
}
