//! The tokenizer and the chat template of a GGUF file's metadata.
//! Not here: tokenizing (`crate::tokenizer`), rendering (`crate::template`).
//!
//! GGUF keeps the vocabulary, the kind of each token and the merges; how text is cut before merging hides behind the
//! name `tokenizer.ggml.pre`. Each name known here is built from the same parts as the Hugging Face tokenizer that the
//! file was converted from, so both give the same ids.

use std::collections::BTreeMap;
use std::path::Path;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::GgufText;
use super::config::Keys;
use super::container::{self, Array, Container, Value};
use crate::{Error, Result};

/// The values of `tokenizer.ggml.token_type` that matter.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNUSED: u64 = 5;

/// How Qwen2 and Llama 3 cut text; they differ in how many digits stay together.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Builds the tokenizer of an opened file; also the number of ids. See [`from_container`].
pub(crate) fn open(text: &GgufText) -> Result<(Tokenizer, usize)> {
    let file = text.file.path();
    from_container(file, &container::parse(file, text.file.bytes())?)
}

/// Errors: no vocabulary, a vocabulary model other than byte-level BPE (`gpt2`), an unknown pre-tokenizer, lists of
/// different lengths, a token listed twice, a merge of unknown tokens.
pub(crate) fn from_container(file: &Path, container: &Container) -> Result<(Tokenizer, usize)> {
    let keys = Keys { file, container };
    let model = keys.text("tokenizer.ggml.model")?.ok_or_else(|| Error::NoTokenizer {
        model: file.display().to_string(),
        why: "its metadata has no tokenizer.ggml.model".into(),
    })?;
    if model != "gpt2" {
        let supported = "gpt2 (byte-level BPE) is supported";
        return Err(keys.unsupported("tokenizer.ggml.model", format!("{model:?}"), supported));
    }
    let pre = keys.text("tokenizer.ggml.pre")?.ok_or_else(|| keys.missing("tokenizer.ggml.pre"))?;
    let tokens = strings(&keys, "tokenizer.ggml.tokens")?;
    let kinds = kinds(&keys, tokens.len())?;
    let merges = merges(&keys)?;

    // Unused entries only pad the table: no text becomes them and they decode to nothing.
    let mut ids: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| kinds[*id] != UNUSED) {
        if let Some(first) = ids.insert(token, id) {
            let found = format!("{token:?} at {first} and at {id}");
            return Err(keys.malformed("tokenizer.ggml.tokens", "each token once".into(), found));
        }
    }
    let id = |id: usize| u32::try_from(id).map_err(|_| too_many(&keys, tokens.len()));
    let vocab: Vocab = ids.iter().map(|(token, at)| Ok((token.to_string(), id(*at)?))).collect::<Result<_>>()?;

    let unusable = |e: tokenizers::Error| Error::Tokenizer { file: file.into(), reason: e.to_string() };
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(pre == "llama-bpe");
    let mut tokenizer = Tokenizer::new(bpe.build().map_err(unusable)?);
    let byte_level = |use_regex| ByteLevel::new(false, true, use_regex);
    let cut = |pattern: &str| -> Result<Vec<PreTokenizerWrapper>> {
        let split = Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false);
        Ok(vec![split.map_err(unusable)?.into(), byte_level(false).into()])
    };
    let parts = match pre {
        "qwen2" => {
            tokenizer.with_normalizer(Some(NFC)).map_err(unusable)?;
            cut(QWEN2)?
        }
        "llama-bpe" => cut(LLAMA3)?,
        "smollm" => vec![Digits::new(true).into(), byte_level(true).into()],
        other => {
            let supported = "qwen2, smollm and llama-bpe are supported";
            return Err(keys.unsupported("tokenizer.ggml.pre", format!("{other:?}"), supported));
        }
    };
    tokenizer.with_pre_tokenizer(Some(Sequence::new(parts)));
    tokenizer.with_decoder(Some(byte_level(true)));
    let added = tokens.iter().zip(&kinds).filter(|(_, kind)| matches!(**kind, CONTROL | USER_DEFINED));
    let added = added.map(|(token, kind)| AddedToken::from(*token, *kind == CONTROL).normalized(false));
    tokenizer.add_tokens(added.collect::<Vec<_>>()).map_err(unusable)?;
    Ok((tokenizer, tokens.len()))
}

/// The chat template, and the special tokens by the names that templates use. None: the file brings no template.
pub(crate) fn chat_template(text: &GgufText) -> Result<Option<(String, BTreeMap<String, String>)>> {
    let file = text.file.path();
    let container = container::parse(file, text.file.bytes())?;
    let keys = Keys { file, container: &container };
    let Some(template) = keys.text("tokenizer.chat_template")? else { return Ok(None) };
    let mut special = BTreeMap::new();
    if let Some(Value::Array(tokens)) = container.metadata.get("tokenizer.ggml.tokens") {
        for (key, name) in [("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")] {
            let id = keys.token(&format!("tokenizer.ggml.{key}_token_id"))?;
            if let Some(Value::String(token)) = id.and_then(|id| tokens.iter().nth(id as usize)) {
                special.insert(format!("{name}_token"), token.to_string());
            }
        }
    }
    Ok(Some((template.to_string(), special)))
}

fn array<'a>(keys: &Keys<'_, 'a>, key: &str) -> Result<Option<Array<'a>>> {
    match keys.container.metadata.get(key) {
        None => Ok(None),
        Some(Value::Array(array)) => Ok(Some(*array)),
        Some(other) => Err(keys.malformed(key, "an array".into(), other.describe())),
    }
}

fn strings<'a>(keys: &Keys<'_, 'a>, key: &str) -> Result<Vec<&'a str>> {
    let array = array(keys, key)?.ok_or_else(|| keys.missing(key))?;
    let text = |value| match value {
        Value::String(text) => Ok(text),
        other => Err(keys.malformed(key, "an array of text".into(), format!("{} in it", other.describe()))),
    };
    array.iter().map(text).collect()
}

/// One kind per token; plain when the file does not say.
fn kinds(keys: &Keys, count: usize) -> Result<Vec<u64>> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let Some(array) = array(keys, KEY)? else { return Ok(vec![1; count]) };
    let kind = |value| match value {
        Value::Signed(kind) if kind >= 0 => Ok(kind.unsigned_abs()),
        Value::Unsigned(kind) => Ok(kind),
        other => Err(keys.malformed(KEY, "small numbers".into(), other.describe())),
    };
    let kinds: Vec<u64> = array.iter().map(kind).collect::<Result<_>>()?;
    if kinds.len() != count {
        return Err(keys.malformed(KEY, format!("one per token, {count}"), kinds.len().to_string()));
    }
    Ok(kinds)
}

fn merges(keys: &Keys) -> Result<Vec<(String, String)>> {
    const KEY: &str = "tokenizer.ggml.merges";
    let pair = |text: &str| {
        // Byte-level tokens hold no space, so the first one separates.
        let (left, right) = text.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())?;
        Some((left.to_string(), right.to_string()))
    };
    strings(keys, KEY)?
        .into_iter()
        .map(|text| {
            pair(text).ok_or_else(|| keys.malformed(KEY, "two tokens with a space between".into(), format!("{text:?}")))
        })
        .collect()
}

fn too_many(keys: &Keys, count: usize) -> Error {
    keys.malformed("tokenizer.ggml.tokens", "fewer than 2^32 tokens".into(), count.to_string())
}
