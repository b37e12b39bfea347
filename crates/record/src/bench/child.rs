//! `bench-child/1`: the lines by which one process, of ours or of another engine, tells what its measured request took.
//! Not here: starting such a process, and what becomes of the numbers (`record.rs`).

use crate::conditions::Conditions;
use crate::known::{Known, Unavailable};
use crate::quantity::{Reading, Unit};
use crate::request::{DeviceUse, RequestClock, RequestTimes};
use crate::subject::Subject;
use crate::wiring::Wiring;
use crate::workload::token_trace_hash;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The protocol's name, in every header.
pub const CHILD_PROTOCOL: &str = "bench-child/1";
/// Exit code beside an `unavailable` line.
pub const UNAVAILABLE_EXIT: i32 = 3;
/// The longest line that is read; a request of a hundred thousand tokens needs less.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// One line of a child's stdout. A run is a header and then a request, or one `unavailable`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ChildLine {
    Header(Box<ChildHeader>),
    Request(Box<ChildRequest>),
    Unavailable(Reason),
}

/// Who is going to run the request, and how it is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChildHeader {
    /// [`CHILD_PROTOCOL`].
    pub protocol: String,
    pub engine: String,
    pub version: String,
    /// Every setting that may move the result.
    pub settings: BTreeMap<String, Setting>,
    /// What the weights are held as, e.g. `Q4_0`.
    pub weights_form: String,
    /// What was converted, and how; empty if nothing was.
    pub conversions: Vec<String>,
    /// Ours only: solution, checkpoint, mechanisms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
}

/// A setting's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Setting {
    Switch(bool),
    Whole(i64),
    Number(f64),
    Text(String),
}

/// The measured request. Seconds on one monotonic clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChildRequest {
    /// From when input and cache exist to the choice of token 1.
    pub prefill_s: Known<f64>,
    /// Of each generated token: the prefill's, then each step's.
    pub token_s: Known<Vec<f64>>,
    /// From the start of the request, set-up included, to token 1.
    pub to_first_token_s: f64,
    /// The whole request, set-up and release included.
    pub request_s: f64,
    /// Generated ids.
    pub tokens: Known<Vec<u32>>,
    /// The most bytes allocated at once during the request, resident weights included.
    pub peak_allocation_bytes: Known<u64>,
    /// The most physical memory of the process.
    pub peak_rss_bytes: Known<u64>,
    /// How often a thread of the process lost its processor to another during the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub involuntary_switches: Option<u64>,
    /// Ours only; read off after the clock, because finding out what is bound takes memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    /// Ours only: what was dispatched, prefill then decode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wiring: Vec<Wiring>,
    /// Ours only: part of the request that its workers spent on a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_share: Option<Reading>,
    /// Ours only, and on a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceUse>,
    /// Ours only: how far the chosen token's logit was above the next best, for each generated token; computed after the
    /// clock, by a request like the measured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margins: Option<Vec<f64>>,
    /// Servers only: what the client saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointTimes>,
}

/// A streamed answer as its client saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointTimes {
    /// When each chunk that held text arrived, in seconds since the request was sent.
    pub chunk_s: Vec<f64>,
    /// Tokens in each chunk.
    pub chunk_tokens: Known<Vec<u64>>,
    /// SHA-256 of the answer's text.
    pub text_hash: String,
    /// Tokens of the prompt, by the server's count.
    pub prompt_tokens: Known<u64>,
    /// Tokens generated, by the server's count.
    pub completion_tokens: Known<u64>,
    /// What the client itself adds to a time to first token, measured against a local server that answers at once.
    pub client_overhead_s: Known<f64>,
}

/// Why this engine cannot run here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    pub why: String,
    pub how_to_get: String,
}

/// Why a line or a request is not of the protocol: one lost sample.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("a line of its output is {bytes} bytes; at most {MAX_LINE_BYTES} are read")]
    LineTooLong { bytes: usize },
    #[error("a line of its output is not of {CHILD_PROTOCOL}: {why}: '{start}'")]
    NotALine { why: serde_json::Error, start: String },
    #[error("it speaks '{found}'; {CHILD_PROTOCOL} was expected")]
    Protocol { found: String },
    #[error("its request has {found} {what}; {expected} were expected")]
    Count { what: &'static str, expected: u64, found: u64 },
    #[error("its request's {what} is {value} s, which no clock gives")]
    Time { what: &'static str, value: f64 },
    #[error("its request's {what} is 0 bytes, which no process that ran holds")]
    NoBytes { what: &'static str },
    #[error("its request says {part} took {part_s} s and {whole}, of which it is a part, {whole_s} s")]
    Order { part: &'static str, part_s: f64, whole: &'static str, whole_s: f64 },
}

/// Times are printed in decimal by some children: so much may be lost.
const ROUNDING_S: f64 = 1e-6;

impl ChildLine {
    /// # Errors
    /// Not a line of the protocol, or a header of another one.
    pub fn parse(line: &str) -> Result<ChildLine, ChildError> {
        if line.len() > MAX_LINE_BYTES {
            return Err(ChildError::LineTooLong { bytes: line.len() });
        }
        let start = || line.chars().take(120).collect();
        let line: ChildLine = serde_json::from_str(line).map_err(|why| ChildError::NotALine { why, start: start() })?;
        match &line {
            ChildLine::Header(header) if header.protocol != CHILD_PROTOCOL => {
                Err(ChildError::Protocol { found: header.protocol.chars().take(80).collect() })
            }
            _ => Ok(line),
        }
    }
}

impl ChildRequest {
    /// Whether the request is one that a clock can have given: as many tokens as asked for, times of passes that took some
    /// time and add up, memory that is not nothing, chunks that hold no more tokens than there are.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, output_tokens: u64) -> Result<(), ChildError> {
        let count = |what, found: usize| {
            let found = found as u64;
            if found == output_tokens {
                Ok(())
            } else {
                Err(ChildError::Count { what, expected: output_tokens, found })
            }
        };
        // A pass through a model takes some time: a 0 is a clock that was not read, or steps that came together.
        let time = |what, value: f64| {
            if value.is_finite() && value > 0.0 { Ok(()) } else { Err(ChildError::Time { what, value }) }
        };
        let bytes = |what, known: &Known<u64>| match known {
            Known::Is(0) => Err(ChildError::NoBytes { what }),
            _ => Ok(()),
        };
        let within = |part, part_s: f64, whole, whole_s: f64| {
            if part_s <= whole_s + ROUNDING_S * output_tokens as f64 {
                Ok(())
            } else {
                Err(ChildError::Order { part, part_s, whole, whole_s })
            }
        };
        time("to_first_token_s", self.to_first_token_s)?;
        time("request_s", self.request_s)?;
        bytes("peak_allocation_bytes", &self.peak_allocation_bytes)?;
        bytes("peak_rss_bytes", &self.peak_rss_bytes)?;
        within("to_first_token_s", self.to_first_token_s, "request_s", self.request_s)?;
        if let Known::Is(tokens) = &self.tokens {
            count("tokens", tokens.len())?;
        }
        if let Known::Is(prefill) = self.prefill_s {
            time("prefill_s", prefill)?;
            within("prefill_s", prefill, "to_first_token_s", self.to_first_token_s)?;
        }
        if let Known::Is(times) = &self.token_s {
            count("token times", times.len())?;
            times.iter().try_for_each(|value| time("token_s", *value))?;
            within("token_s, together,", times.iter().sum(), "request_s", self.request_s)?;
            if let (Known::Is(prefill), Some(first)) = (self.prefill_s.clone(), times.first())
                && (prefill - first).abs() > ROUNDING_S
            {
                return Err(ChildError::Order {
                    part: "prefill_s",
                    part_s: prefill,
                    whole: "the first of token_s",
                    whole_s: *first,
                });
            }
        }
        if let Some(margins) = &self.margins {
            count("margins", margins.len())?;
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint.check(output_tokens)?;
            endpoint.chunk_s.iter().try_for_each(|value| time("chunk_s", *value))?;
            if let Some(pair) = endpoint.chunk_s.windows(2).find(|pair| pair[1] < pair[0]) {
                return Err(ChildError::Order {
                    part: "a chunk",
                    part_s: pair[0],
                    whole: "the next",
                    whole_s: pair[1],
                });
            }
        }
        Ok(())
    }

    /// The readings of a request that [`ChildRequest::check`] found good. What only per-token times give is missing
    /// where a server's answer came in chunks of several tokens.
    pub fn clock(&self, prompt_tokens: u64, output_tokens: u64) -> RequestClock {
        let bytes = |known: &Known<u64>| match known {
            Known::Is(bytes) => Reading::measured(*bytes as f64, Unit::Bytes, 1),
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        };
        let output_hash = match (&self.tokens, &self.endpoint) {
            (Known::Is(tokens), _) => token_trace_hash(tokens),
            (_, Some(endpoint)) => endpoint.text_hash.clone(),
            _ => String::from("none: the child gave no tokens"),
        };
        let share = self.processor_share.clone().unwrap_or_else(|| {
            Reading::unavailable("the engine does not say", "only hourglass's own children measure it")
        });
        let mut clock = RequestClock::from_times(RequestTimes {
            prompt_tokens,
            asked_tokens: output_tokens,
            token_seconds: self.token_s.known().cloned().unwrap_or_else(|| vec![0.0; output_tokens.max(1) as usize]),
            to_first_token: self.to_first_token_s,
            whole: self.request_s,
            peak_allocation: bytes(&self.peak_allocation_bytes),
            peak_rss: bytes(&self.peak_rss_bytes),
            processor_share: share,
            output_hash,
            device: self.device.clone().map_or_else(DeviceUse::none, Known::Is),
        });
        if let Known::Unavailable(missing) = &self.token_s {
            self.without_token_times(&mut clock, missing);
        }
        (clock.prefill, clock.prefill_rate) = match &self.prefill_s {
            Known::Is(prefill) => (
                Reading::measured(*prefill, Unit::Seconds, 1),
                Reading::ratio(prompt_tokens as f64, *prefill, Unit::TokensPerSecond, 1),
            ),
            Known::Unavailable(missing) => (Known::Unavailable(missing.clone()), Known::Unavailable(missing.clone())),
        };
        clock
    }

    fn without_token_times(&self, clock: &mut RequestClock, missing: &Unavailable) {
        let missing = || Known::Unavailable(missing.clone());
        clock.token_seconds.clear();
        for reading in [
            &mut clock.decode,
            &mut clock.decode_rate,
            &mut clock.time_per_output_token,
            &mut clock.inter_token_median,
            &mut clock.inter_token_p95,
            &mut clock.inter_token_p99,
        ] {
            *reading = missing();
        }
        // Chunks tell how long the tokens behind the first chunk took together, and no more than that.
        let Some(endpoint) = &self.endpoint else { return };
        let (Some(first), Some(last)) = (endpoint.chunk_s.first(), endpoint.chunk_s.last()) else { return };
        let Known::Is(counts) = &endpoint.chunk_tokens else { return };
        let behind: u64 = counts.iter().skip(1).sum();
        if behind == 0 || last <= first {
            return;
        }
        let seconds = last - first;
        clock.decode = Reading::measured(seconds, Unit::Seconds, behind);
        clock.decode_rate = Reading::ratio(behind as f64, seconds, Unit::TokensPerSecond, behind);
        clock.time_per_output_token = Reading::measured(seconds / behind as f64 * 1e6, Unit::Microseconds, behind);
    }
}

impl EndpointTimes {
    /// Chunks and their tokens agree with each other, and with the tokens asked for.
    fn check(&self, output_tokens: u64) -> Result<(), ChildError> {
        let Known::Is(counts) = &self.chunk_tokens else { return Ok(()) };
        let (chunks, counted) = (self.chunk_s.len() as u64, counts.len() as u64);
        if chunks != counted {
            return Err(ChildError::Count { what: "token counts of chunks", expected: chunks, found: counted });
        }
        let tokens = counts.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
        if tokens > output_tokens {
            return Err(ChildError::Count { what: "tokens in its chunks", expected: output_tokens, found: tokens });
        }
        Ok(())
    }
}

/// The JSON Schema of a line, as `cargo xtask schema` writes it.
pub fn child_schema() -> serde_json::Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<ChildLine>().to_value()
}
