//! What a server understands: which address, whether it takes token ids, and fields beyond OpenAI's.
//! Not here: the answer (`stream`).

use std::time::Instant;

use serde_json::{Value, json};

use super::EndpointError;
use super::arrival::Client;
use super::stream;

/// A server's address, and what of its path was given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Up to and with `/v1`, or whatever stood before `/completions`.
    base: String,
    /// The address named one of the two.
    only: Option<Api>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Completions,
    Chat,
}

impl Place {
    pub(super) fn parse(url: &str) -> Result<Place, String> {
        let expected = "expected http://HOST:PORT or https://HOST, with or without /v1";
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(format!("{expected}, found no '://'"));
        };
        if !matches!(scheme, "http" | "https") {
            return Err(format!("{expected}, found the scheme '{scheme}'"));
        }
        if rest.contains(['?', '#', '@', ' ']) || rest.is_empty() || rest.starts_with('/') {
            return Err(format!("{expected}, found no plain host and path behind it"));
        }
        let url = url.trim_end_matches('/');
        if let Some(base) = url.strip_suffix("/chat/completions") {
            return Ok(Place { base: base.to_owned(), only: Some(Api::Chat) });
        }
        if let Some(base) = url.strip_suffix("/completions") {
            return Ok(Place { base: base.to_owned(), only: Some(Api::Completions) });
        }
        let base = if url.ends_with("/v1") { url.to_owned() } else { format!("{url}/v1") };
        Ok(Place { base, only: None })
    }

    fn url(&self, api: Api) -> String {
        match api {
            Api::Completions => format!("{}/completions", self.base),
            Api::Chat => format!("{}/chat/completions", self.base),
        }
    }
}

/// A way of asking that this server answers.
#[derive(Clone, Debug)]
pub(super) struct Dialect {
    pub(super) url: String,
    pub(super) api: Api,
    pub(super) takes_ids: bool,
    /// It accepts `ignore_eos`, `cache_prompt` and the like: known to vLLM, SGLang and llama.cpp, not to OpenAI.
    pub(super) extras: bool,
    pub(super) model: Option<String>,
    /// The `Server` header.
    pub(super) server: Option<String>,
}

/// A prompt in every form that a server may want.
pub(super) struct Prompt {
    ids: Vec<u32>,
    text: String,
}

/// Plain words, each one token in most vocabularies.
const WORDS: [&str; 32] = [
    "time", "sand", "glass", "water", "stone", "house", "light", "river", "night", "table", "green", "small", "paper",
    "voice", "round", "field", "white", "heart", "road", "tree", "book", "ship", "hand", "world", "north", "king",
    "fire", "gold", "bird", "cloud", "music", "door",
];

impl Prompt {
    pub(super) fn new(ids: &[u32], text: Option<&str>) -> Prompt {
        Prompt { ids: ids.to_vec(), text: text.map_or_else(|| words(ids), str::to_owned) }
    }

    /// As long, but beginning otherwise: what a server kept of it does not help the measured request. Only a prompt of
    /// equal ids cannot be told apart so.
    pub(super) fn other_than(ids: &[u32], text: Option<&str>, number: usize) -> Prompt {
        let mut other = ids.to_vec();
        let turns = (1..ids.len()).filter(|turn| ids[*turn] != ids[0]);
        // Not the same turn for each warm-up request either.
        let turns: Vec<usize> = turns.collect();
        if let Some(turn) = turns.get(number % turns.len().max(1)) {
            other.rotate_left(*turn);
        }
        let begin = WORDS[(ids.first().copied().unwrap_or(0) as usize + 1 + number) % WORDS.len()];
        let text = text.map_or_else(|| words(&other), |text| format!("{begin} {number}: {text}"));
        Prompt { ids: other, text }
    }
}

fn words(ids: &[u32]) -> String {
    ids.iter().map(|id| WORDS[*id as usize % WORDS.len()]).collect::<Vec<_>>().join(" ")
}

impl Dialect {
    /// The request's JSON.
    pub(super) fn body(&self, prompt: &Prompt, output_len: usize) -> Value {
        let mut body = json!({
            "max_tokens": output_len, "temperature": 0, "stream": true, "stream_options": {"include_usage": true},
        });
        if let Some(model) = &self.model {
            body["model"] = json!(model);
        }
        match (self.api, self.takes_ids) {
            (Api::Chat, _) => body["messages"] = json!([{"role": "user", "content": prompt.text}]),
            (Api::Completions, true) => body["prompt"] = json!(prompt.ids),
            (Api::Completions, false) => body["prompt"] = json!(prompt.text),
        }
        if self.extras {
            for (field, value) in [
                ("ignore_eos", json!(true)),
                ("min_tokens", json!(output_len)),
                ("cache_prompt", json!(false)),
                ("return_token_ids", json!(true)),
            ] {
                body[field] = value;
            }
            body["stream_options"]["continuous_usage_stats"] = json!(true);
        }
        body
    }
}

/// Asks for one token in one form after the other until the server answers one, richest form first.
///
/// # Errors
/// No connection; no form is answered: what the server said to the simplest one.
pub(super) fn negotiate(client: &Client, place: &Place, prompt_len: usize) -> Result<Dialect, EndpointError> {
    let (model, server) = first_model(client, place)?;
    // Short: some servers would take long for a prompt that is thrown away. Longer than a begin-of-text token.
    let probe = Prompt::new(&[11, 12, 13, 14, 15, 16][..prompt_len.clamp(2, 6)], None);
    let mut last = None;
    let completions = [(true, true), (true, false), (false, true), (false, false)];
    let forms = completions
        .map(|(ids, extras)| (Api::Completions, ids, extras))
        .into_iter()
        .chain([(Api::Chat, false, true), (Api::Chat, false, false)])
        .filter(|(api, _, _)| place.only.is_none_or(|only| only == *api));
    for (api, takes_ids, extras) in forms {
        let dialect =
            Dialect { url: place.url(api), api, takes_ids, extras, model: model.clone(), server: server.clone() };
        let body = dialect.body(&probe, 1);
        match stream::read(client, &dialect.url, &body, Instant::now(), 1) {
            // Ids that were read as text would be many more tokens.
            Ok(answer) if takes_ids && answer.prompt_tokens.is_some_and(|n| n > probe.ids.len() as u64 + 1) => {}
            // The token may be one that is no text; the form is understood.
            Ok(_) | Err(EndpointError::NoText { .. }) => return Ok(dialect),
            // Some servers fail inside where they should say that they do not know a form.
            Err(error @ EndpointError::Status { status: 400 | 404 | 405 | 415 | 422 | 500..=599, .. }) => {
                last = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| EndpointError::Event {
        url: place.url(Api::Completions),
        why: "ids of a prompt were read as text, and text was not taken".into(),
        start: String::new(),
    }))
}

/// The first model that the server lists, and what it calls itself.
fn first_model(client: &Client, place: &Place) -> Result<(Option<String>, Option<String>), EndpointError> {
    let url = format!("{}/models", place.base);
    let answer = client.agent.get(&url).call();
    let mut answer = answer.map_err(|error| stream::transport_error(client, &url, &error))?;
    let server = answer.headers().get("server").and_then(|value| value.to_str().ok()).map(str::to_owned);
    if !answer.status().is_success() {
        return Ok((None, server));
    }
    // Servers that list nothing, or not as JSON, still answer requests without a model.
    let text = answer.body_mut().with_config().limit(1 << 20).read_to_string().unwrap_or_default();
    let list: Value = serde_json::from_str(&text).unwrap_or_default();
    Ok((list["data"][0]["id"].as_str().map(str::to_owned), server))
}
