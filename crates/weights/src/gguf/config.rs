//! GGUF metadata to a [`Config`].
//! Not here: the tensors' agreement with it (`crate::config`), the tokenizer.
//!
//! Each key below the architecture's prefix is either understood here, or known to change nothing, or refused by name:
//! an unknown one may change the result. Keys under other prefixes describe the file (`general.`, `quantize.`) or the
//! text (`tokenizer.`).

use std::path::Path;

use super::container::{Container, Value};
use super::rope;
use crate::{Architecture, Config, Error, Result, RopeLayout, RopeScaling};

/// What a file means that leaves these out.
const DEFAULT_THETA: f64 = 10_000.0;
const DEFAULT_CONTEXT: usize = 2048;

/// Control tokens that end an answer whatever the file names as its end token: files name one, models use several
/// (Qwen3's configuration lists two, Llama 3's three).
const END_MARKS: [&str; 5] = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"];

/// The value of `tokenizer.ggml.token_type` for a control token.
const CONTROL: i64 = 3;

/// Reads the configuration. `rope_factors` is the content of `rope_freqs.weight` if the file has it.
///
/// Errors: a missing or ill-typed key, an architecture other than qwen3, llama and qwen2, a key whose effect this
/// program does not implement, frequency factors that are no llama3 scaling, a file that is a part or an adapter.
pub(crate) fn read(file: &Path, container: &Container, rope_factors: Option<&[f32]>) -> Result<Config> {
    let keys = Keys { file, container };
    refuse_parts(&keys)?;
    let name = keys.text("general.architecture")?.ok_or_else(|| keys.missing("general.architecture"))?;
    let architecture = Architecture::from_name(name).ok_or_else(|| {
        keys.unsupported("general.architecture", format!("{name:?}"), "qwen3, llama and qwen2 are supported")
    })?;
    refuse_unknown(&keys, name)?;

    let key = |suffix: &str| format!("{name}.{suffix}");
    let hidden_size = keys.size(&key("embedding_length"))?.ok_or_else(|| keys.missing(&key("embedding_length")))?;
    let heads_key = key("attention.head_count");
    let heads = keys.size(&heads_key)?.ok_or_else(|| keys.missing(&heads_key))?;
    let head_dim = match keys.size(&key("attention.key_length"))? {
        Some(dim) => dim,
        None if heads > 0 && hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let expected = format!("a divisor of {} = {hidden_size}", key("embedding_length"));
            return Err(keys.malformed(&heads_key, expected, heads.to_string()));
        }
    };
    for suffix in ["attention.value_length", "rope.dimension_count"] {
        if let Some(found) = keys.size(&key(suffix))?.filter(|found| *found != head_dim) {
            let supported = format!("only the head size, {head_dim}, is");
            return Err(keys.unsupported(&key(suffix), found.to_string(), &supported));
        }
    }
    let rope_theta = keys.float(&key("rope.freq_base"))?.unwrap_or(DEFAULT_THETA);
    let eps_key = key("attention.layer_norm_rms_epsilon");
    let tensor = |name: &str| container.tensors.iter().find(|t| t.name == name);
    let vocab_size = match keys.size(&key("vocab_size"))? {
        Some(size) => size,
        None => {
            let embedding = tensor("token_embd.weight")
                .ok_or_else(|| Error::MissingTensor { file: file.into(), tensor: "token_embd.weight".into() })?;
            let rows = embedding.dims.get(1).copied().unwrap_or(1);
            usize::try_from(rows).expect("the rows of a tensor that lies inside a mapped file fit usize")
        }
    };
    let config = Config {
        architecture,
        hidden_size,
        layers: keys.size(&key("block_count"))?.ok_or_else(|| keys.missing(&key("block_count")))?,
        mlp_width: keys.size(&key("feed_forward_length"))?.ok_or_else(|| keys.missing(&key("feed_forward_length")))?,
        heads,
        kv_heads: keys.size(&key("attention.head_count_kv"))?.unwrap_or(heads),
        head_dim,
        vocab_size,
        norm_eps: keys.float(&eps_key)?.ok_or_else(|| keys.missing(&eps_key))?,
        rope_theta,
        rope_scaling: rope_scaling(&keys, rope_factors, rope_theta, head_dim)?,
        rope_layout: match architecture {
            Architecture::Llama => RopeLayout::Interleaved,
            Architecture::Qwen3 | Architecture::Qwen2 => RopeLayout::HalfSplit,
        },
        max_positions: keys.size(&key("context_length"))?.unwrap_or(DEFAULT_CONTEXT),
        tied_embeddings: tensor("output.weight").is_none(),
        qk_norm: architecture == Architecture::Qwen3,
        // A llama file may have biases too; the tensors say so.
        qkv_bias: architecture == Architecture::Qwen2 || tensor("blk.0.attn_q.bias").is_some(),
        eos_tokens: eos_tokens(&keys)?,
        bos_token: keys.token("tokenizer.ggml.bos_token_id")?,
        add_bos: add_bos(&keys)?,
    };
    if let Some(id) = config.eos_tokens.iter().chain(&config.bos_token).find(|id| **id as usize >= vocab_size) {
        let expected = format!("begin and end tokens below the vocabulary size, {vocab_size}");
        return Err(keys.malformed("tokenizer.ggml.*_token_id", expected, id.to_string()));
    }
    Ok(config)
}

/// Whether text starts with the beginning mark. When the file does not say, Llama 3's pre-tokenizer implies it.
pub(super) fn add_bos(keys: &Keys) -> Result<bool> {
    match keys.container.metadata.get("tokenizer.ggml.add_bos_token") {
        None => Ok(keys.text("tokenizer.ggml.pre")? == Some("llama-bpe")),
        Some(Value::Bool(add)) => Ok(*add),
        Some(other) => Err(keys.malformed("tokenizer.ggml.add_bos_token", "a boolean".into(), other.describe())),
    }
}

fn refuse_parts(keys: &Keys) -> Result<()> {
    if let Some(kind) = keys.text("general.type")?.filter(|kind| *kind != "model") {
        return Err(keys.unsupported("general.type", format!("{kind:?}"), "only whole models are"));
    }
    match keys.size("split.count")? {
        Some(count) if count > 1 => {
            let supported = "the parts must be merged into one file first (llama.cpp's llama-gguf-split --merge)";
            Err(keys.unsupported("split.count", count.to_string(), supported))
        }
        _ => Ok(()),
    }
}

fn refuse_unknown(keys: &Keys, architecture: &str) -> Result<()> {
    /// Read by `read`.
    const READ: [&str; 12] = [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
    ];
    /// True of every model here whatever they say: how a file came about, and a length that matters only with a scaling.
    const HARMLESS: [&str; 3] =
        ["tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned"];
    /// These have a value that says "not used".
    const NEUTRAL: [(&str, f64); 8] = [
        ("expert_count", 0.0),
        ("expert_used_count", 0.0),
        ("attention.sliding_window", 0.0),
        ("attention.max_alibi_bias", 0.0),
        ("attention.clamp_kqv", 0.0),
        ("pooling_type", 0.0),
        ("rope.scaling.factor", 1.0),
        ("rope.scale_linear", 1.0),
    ];
    let prefix = format!("{architecture}.");
    for (key, value) in &keys.container.metadata {
        let Some(suffix) = key.strip_prefix(&prefix) else { continue };
        if READ.contains(&suffix) || HARMLESS.contains(&suffix) {
            continue;
        }
        let number = match value {
            Value::Unsigned(v) => Some(*v as f64),
            Value::Signed(v) => Some(*v as f64),
            Value::F32(v) => Some(f64::from(*v)),
            Value::F64(v) => Some(*v),
            _ => None,
        };
        if NEUTRAL.iter().any(|(name, neutral)| *name == suffix && number == Some(*neutral)) {
            continue;
        }
        let neutral = matches!(
            (suffix, value),
            ("attention.causal", Value::Bool(true)) | ("rope.scaling.type", Value::String("none"))
        );
        if !neutral {
            return Err(keys.unsupported(key, value.describe(), "it may change the result and is not implemented"));
        }
    }
    Ok(())
}

fn rope_scaling(keys: &Keys, factors: Option<&[f32]>, theta: f64, head_dim: usize) -> Result<RopeScaling> {
    let Some(factors) = factors else { return Ok(RopeScaling::None) };
    rope::from_factors(factors, theta, head_dim).ok_or_else(|| {
        let found = format!("{} factors that follow no llama3 rule for base {theta}", factors.len());
        keys.unsupported("tensor \"rope_freqs.weight\"", found, "only llama3's frequency scaling is")
    })
}

/// The end tokens the file names, then its other control tokens that are end marks.
fn eos_tokens(keys: &Keys) -> Result<Vec<u32>> {
    let mut out = Vec::new();
    for name in ["eos", "eot", "eom"] {
        out.extend(keys.token(&format!("tokenizer.ggml.{name}_token_id"))?);
    }
    if let (Some(Value::Array(tokens)), Some(Value::Array(types))) =
        (keys.container.metadata.get("tokenizer.ggml.tokens"), keys.container.metadata.get("tokenizer.ggml.token_type"))
    {
        for (id, (token, kind)) in tokens.iter().zip(types.iter()).enumerate() {
            let is_mark = matches!(token, Value::String(text) if END_MARKS.contains(&text));
            if is_mark && kind == Value::Signed(CONTROL) {
                out.extend(u32::try_from(id));
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    out.retain(|id| seen.insert(*id));
    Ok(out)
}

/// Typed access to the metadata, with errors that name key and file.
pub(super) struct Keys<'a, 'b> {
    pub(super) file: &'a Path,
    pub(super) container: &'a Container<'b>,
}

impl Keys<'_, '_> {
    pub(super) fn malformed(&self, key: &str, expected: String, found: String) -> Error {
        Error::Malformed { file: self.file.into(), part: format!("metadata {key}"), expected, found }
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        self.malformed(key, "a value".into(), "no such key".into())
    }

    pub(super) fn unsupported(&self, field: &str, found: String, supported: &str) -> Error {
        Error::Unsupported { file: self.file.into(), field: field.into(), found, supported: supported.into() }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.container.metadata.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.malformed(key, "text".into(), other.describe())),
        }
    }

    /// A count that fits usize. One value per layer (an array) is accepted when all are equal.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.container.metadata.get(key) else { return Ok(None) };
        let size = |value: &Value| match *value {
            Value::Unsigned(v) => usize::try_from(v).ok(),
            Value::Signed(v) => usize::try_from(v).ok(),
            _ => None,
        };
        let found = match value {
            Value::Array(array) => {
                let mut values = array.iter().map(|v| size(&v));
                let first = values.next().flatten();
                first.filter(|first| values.all(|v| v == Some(*first)))
            }
            single => size(single),
        };
        match found {
            Some(size) => Ok(Some(size)),
            None => Err(self.malformed(key, "one count, the same for every layer".into(), value.describe())),
        }
    }

    /// A number. Stored as f32 it stands for the shortest decimal that rounds to it: the writer had 1e-5, not
    /// 9.9999997e-6, and the same model's config.json says so.
    pub(super) fn float(&self, key: &str) -> Result<Option<f64>> {
        let malformed = |found: String| self.malformed(key, "a finite number".into(), found);
        match self.container.metadata.get(key) {
            None => Ok(None),
            Some(Value::F32(v)) if v.is_finite() => {
                Ok(Some(v.to_string().parse().expect("a printed finite f32 is a number")))
            }
            Some(Value::F64(v)) if v.is_finite() => Ok(Some(*v)),
            Some(other) => Err(malformed(other.describe())),
        }
    }

    /// A token id.
    pub(super) fn token(&self, key: &str) -> Result<Option<u32>> {
        match self.size(key)? {
            None => Ok(None),
            // All ones is how writers say "none".
            Some(id) if id == u32::MAX as usize => Ok(None),
            Some(id) => match u32::try_from(id) {
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(self.malformed(key, "a token id below 2^32".into(), id.to_string())),
            },
        }
    }
}
