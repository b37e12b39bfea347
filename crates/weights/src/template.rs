//! Chat templates: a model's Jinja program that turns a conversation into one text, run as transformers runs it.
//! Not here: turning that text into tokens (`tokenizer`), and keeping user text from posing as markup (`escape`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Map;

use crate::files::TextFiles;
use crate::python::{self, JsonStyle};
use crate::small_file::{TEXT_LIMIT, read_small};
use crate::{Error, Result, gguf};

/// One turn of a conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// Empty also for JSON's `null`, which an assistant's turn of nothing but `tool_calls` has here.
    #[serde(deserialize_with = "null_is_empty")]
    pub content: String,
    /// Whatever else the template reads: `tool_calls`, `reasoning_content`, `name`.
    #[serde(flatten)]
    pub extra: Map<String, serde_json::Value>,
}

fn null_is_empty<'de, D: Deserializer<'de>>(text: D) -> std::result::Result<String, D::Error> {
    Ok(Option::deserialize(text)?.unwrap_or_default())
}

/// What to render besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End with the opening of the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Templates that know thinking: on or off; None leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// An array of JSON schemas of functions the model may call.
    pub tools: Option<serde_json::Value>,
}

/// A compiled template. `Send + Sync`.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The file it came from, for messages.
    file: PathBuf,
    source: String,
    /// `bos_token`, `eos_token` and their like, by the name a template uses.
    special_tokens: BTreeMap<String, String>,
}

const NAME: &str = "chat";

/// Steps (instructions, or 64 bytes of text handled) that a rendering may take whatever the conversation, and more for
/// each message, tool and byte of it. Qwen3's template takes about 100 per message. Steps bound the time (a million take
/// well under a second) and the memory (64 bytes each).
const STEPS: u64 = 400_000;
const STEPS_PER_ITEM: u64 = 2_000;
const BYTES_PER_STEP: u64 = 2;
const MOST_STEPS: u64 = 4_000_000;

/// A template can nest lists almost as deep as it has steps, and dropping them recurses: room for the deepest. Only the
/// pages touched are taken.
const STACK_BYTES: usize = 512 << 20;

impl ChatTemplate {
    /// None: the model brings no template.
    pub(crate) fn open(text: &TextFiles) -> Result<Option<ChatTemplate>> {
        match text {
            TextFiles::None => Ok(None),
            TextFiles::Gguf(text) => {
                let Some((source, special_tokens)) = gguf::tokenizer::chat_template(text)? else { return Ok(None) };
                ChatTemplate::compile(text.file.path(), source, special_tokens).map(Some)
            }
            TextFiles::Directory { tokenizer_config, chat_template, .. } => {
                let config = tokenizer_config.as_deref().map(read_json).transpose()?;
                let special_tokens = config.as_ref().map(special_tokens).unwrap_or_default();
                let in_config = config.as_ref().and_then(|config| default_template(config.get("chat_template")?));
                let (file, source) = match (chat_template, tokenizer_config) {
                    (Some(file), _) => (file, read_template(file)?),
                    (None, Some(file)) => match in_config {
                        Some(source) => (file, source),
                        None => return Ok(None),
                    },
                    (None, None) => return Ok(None),
                };
                ChatTemplate::compile(file, source, special_tokens).map(Some)
            }
        }
    }

    /// Errors: a syntax error, by line.
    pub(crate) fn compile(
        file: &Path,
        source: String,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the default delimiters are valid"));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, _, value| {
            out.write_str(&python::to_text(value)?).map_err(|_| ErrorKind::WriteFailure.into())
        });
        environment.add_filter("tojson", to_json);
        environment.add_filter("string", |value: Value| python::to_text(&value));
        environment.add_function("raise_exception", |message: String| -> std::result::Result<Value, _> {
            let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception was called");
            Err(error.with_source(Refusal(message)))
        });
        environment.add_function("strftime_now", strftime_now);
        let template = ChatTemplate { environment, file: file.into(), source, special_tokens };
        template.with_program()
    }

    fn with_program(mut self) -> Result<ChatTemplate> {
        let program = without_generation_marks(&self.source);
        match self.environment.add_template_owned(NAME, program) {
            Ok(()) => Ok(self),
            Err(error) => Err(self.error(&error, 0)),
        }
    }

    /// Renders the conversation.
    ///
    /// Errors: the template refuses the conversation ([`Error::TemplateRefused`]), fails ([`Error::Template`], with its
    /// line) or does not end ([`Error::TemplateEndless`]).
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let tools = options.tools.as_ref();
        let items = messages.len() + tools.and_then(|tools| tools.as_array()).map_or(0, Vec::len);
        let bytes = messages.iter().map(size).sum::<usize>() + tools.map_or(0, json_size);
        let steps = STEPS + STEPS_PER_ITEM * items as u64 + bytes as u64 / BYTES_PER_STEP;
        let steps = steps.min(MOST_STEPS);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("chat template".into()).stack_size(STACK_BYTES);
            let running = thread.spawn_scoped(scope, || self.run(self.context(messages, options), steps));
            let running = running.map_err(|e| Error::io(&self.file, "start a thread for the chat template of", e))?;
            running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn context(&self, messages: &[Message], options: &RenderOptions) -> BTreeMap<&str, Value> {
        let mut context: BTreeMap<&str, Value> =
            self.special_tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str()))).collect();
        context.insert("messages", messages.iter().map(message_value).collect());
        context.insert("tools", options.tools.as_ref().map_or(Value::from(()), json_value));
        context.insert("documents", Value::from(()));
        context.insert("add_generation_prompt", Value::from(options.add_generation_prompt));
        if let Some(thinking) = options.enable_thinking {
            context.insert("enable_thinking", Value::from(thinking));
        }
        context
    }

    /// The template's own text, in which `escape` looks for the marks that it writes.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    fn run(&self, context: BTreeMap<&str, Value>, steps: u64) -> Result<String> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(steps));
        let result = environment.get_template(NAME).and_then(|template| template.render(Value::from_pairs(context)));
        result.map_err(|error| self.error(&error, steps))
    }

    fn error(&self, error: &minijinja::Error, steps: u64) -> Error {
        let file = self.file.clone();
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(inner) = cause {
            if let Some(Refusal(message)) = inner.downcast_ref() {
                return Error::TemplateRefused { file, message: message.clone() };
            }
            if inner.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return Error::TemplateEndless { file, steps };
            }
            cause = inner.source();
        }
        let detail = error.detail().map_or(String::new(), |detail| format!(": {detail}"));
        Error::Template { file, line: error.line(), reason: format!("{}{detail}", error.kind()) }
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatTemplate({})", self.file.display())
    }
}

/// What `raise_exception` carries out of the engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// transformers hands reasoning over under each name that templates have used for it.
fn message_value(message: &Message) -> Value {
    let reasoning = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|name| message.extra.get(*name).filter(|value| !value.is_null()))
        .map(json_value);
    let mut fields: Vec<(String, Value)> = Vec::new();
    fields.extend(reasoning.clone().map(|value| ("thinking".to_string(), value)));
    fields.push(("role".into(), Value::from(message.role.as_str())));
    fields.push(("content".into(), Value::from(message.content.as_str())));
    fields.extend(message.extra.iter().map(|(key, value)| (key.clone(), json_value(value))));
    fields.extend(reasoning.map(|value| ("reasoning_content".to_string(), value)));
    Value::from_pairs(fields)
}

fn json_value(value: &serde_json::Value) -> Value {
    Value::from(Serde(value))
}

fn size(message: &Message) -> usize {
    let extra: usize = message.extra.iter().map(|(key, value)| key.len() + json_size(value)).sum();
    message.role.len() + message.content.len() + extra
}

fn json_size(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(items) => items.iter().map(json_size).sum::<usize>() + items.len(),
        serde_json::Value::Object(map) => map.iter().map(|(key, value)| key.len() + json_size(value)).sum(),
        _ => 8,
    }
}

fn to_json(value: &Value, options: Kwargs) -> std::result::Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let style = JsonStyle {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        separators: match separators.as_deref() {
            Some([item, key]) => (item.clone(), key.clone()),
            Some(_) => {
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "separators must be a pair"));
            }
            // What json.dumps does when nothing is said.
            None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
        },
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    // A huge indent would make a huge text out of nothing.
    if style.indent.is_some_and(|width| width > 16) {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "indent must be at most 16"));
    }
    python::to_json(value, &style).map(Value::from)
}

/// The local time, in the format of C's strftime.
fn strftime_now(format: &str) -> std::result::Result<String, minijinja::Error> {
    jiff::fmt::strtime::format(format, &jiff::ZonedDateTime::now())
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// `{% generation %}` and `{% endgeneration %}` mark the assistant's text for training and print nothing; an
/// unconditional `if` prints the same and keeps the tags' white-space control.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        let Some(end) = tag[2..].find("%}") else { break };
        let inside = &tag[2..2 + end];
        let word = inside.trim_matches(['-', '+']).trim();
        let replaced = match word {
            "generation" => inside.replace("generation", "if true"),
            "endgeneration" => inside.replace("endgeneration", "endif"),
            _ => inside.to_string(),
        };
        out.push_str(before);
        out.push_str("{%");
        out.push_str(&replaced);
        rest = &tag[2 + end..];
    }
    out.push_str(rest);
    out
}

fn read_template(file: &Path) -> Result<String> {
    let bytes = read_small(file, "chat template", TEXT_LIMIT)?;
    String::from_utf8(bytes).map_err(|e| Error::Malformed {
        file: file.into(),
        part: "chat template".into(),
        expected: "UTF-8 text".into(),
        found: format!("other bytes from byte {}", e.utf8_error().valid_up_to()),
    })
}

fn read_json(file: &Path) -> Result<serde_json::Value> {
    let bytes = read_small(file, "tokenizer configuration", TEXT_LIMIT)?;
    serde_json::from_slice(&bytes).map_err(|source| Error::Json { file: file.into(), source })
}

/// The tokens that `tokenizer_config.json` names; each is a string or an object with a `content`.
fn special_tokens(config: &serde_json::Value) -> BTreeMap<String, String> {
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
        .into_iter()
        .filter_map(|name| {
            let value = config.get(name)?;
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((name.to_string(), text.to_string()))
        })
        .collect()
}

/// One template, or a list of named ones of which "default" counts.
fn default_template(value: &serde_json::Value) -> Option<String> {
    let text = match value {
        serde_json::Value::Array(list) => {
            list.iter().find(|entry| entry.get("name").and_then(|n| n.as_str()) == Some("default"))?.get("template")?
        }
        single => single,
    };
    text.as_str().map(str::to_string)
}
