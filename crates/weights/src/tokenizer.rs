//! Text to token ids and back: plain text, text with special tokens, and whole conversations.
//! Not here: reading a vocabulary out of GGUF (`gguf`), rendering a template (`template`), token-wise output (`stream`).

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Deserialize;
use tokenizers::normalizer::Range as Slice;
use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, Token,
};

use crate::escape::{self, AddedText};
use crate::files::TextFiles;
use crate::small_file::{TOKENIZER_LIMIT, read_small};
use crate::stream::DecodeStream;
use crate::{ChatTemplate, Error, Message, RenderOptions, Result, gguf};

/// A model's tokenizer. `Send + Sync`.
///
/// An *added token* is one that stands in the file's list of added tokens: it is found in text as a whole, before
/// anything else. Some are marked special (`<|im_end|>`), others are not (`<think>`), and either kind steers a model; so
/// only the caller who means it gets them from text ([`Tokenizer::encode_with_special`]).
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    added: BTreeSet<u32>,
    vocab_size: usize,
}

impl Tokenizer {
    /// Errors: no tokenizer beside the weights, or one that cannot be used.
    pub(crate) fn open(text: &TextFiles, label: &str) -> Result<Tokenizer> {
        let none = |why: &str| Error::NoTokenizer { model: label.into(), why: why.into() };
        match text {
            TextFiles::None => Err(none("synthetic weights know no text")),
            TextFiles::Directory { tokenizer: None, .. } => Err(none("there is no tokenizer.json beside the weights")),
            TextFiles::Directory { tokenizer: Some(file), .. } => {
                let bytes = read_small(file, "tokenizer", TOKENIZER_LIMIT)?;
                let unusable = |e: tokenizers::Error| Error::Tokenizer { file: file.clone(), reason: e.to_string() };
                Tokenizer::from_json(&bytes).map_err(unusable)
            }
            TextFiles::Gguf(text) => {
                let (inner, vocab_size) = gguf::tokenizer::open(text)?;
                Ok(Tokenizer::new(inner, vocab_size))
            }
        }
    }

    /// From the content of a tokenizer.json.
    pub(crate) fn from_json(bytes: &[u8]) -> tokenizers::Result<Tokenizer> {
        check_json(bytes)?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes)?;
        // Some files carry the settings of a training run; a prompt is neither cut nor padded silently.
        inner.with_truncation(None)?;
        inner.with_padding(None);
        let most = inner.get_added_tokens_decoder().into_keys().max().map_or(0, |id| id as usize + 1);
        let vocab_size = inner.get_vocab_size(true).max(most);
        Ok(Tokenizer::new(inner, vocab_size))
    }

    pub(crate) fn new(inner: tokenizers::Tokenizer, vocab_size: usize) -> Tokenizer {
        let added = inner.get_added_tokens_decoder().into_keys().collect();
        Tokenizer { inner, added, vocab_size }
    }

    pub(crate) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Tokens of text that is only text: the result holds no added token, special or not, whatever the text spells.
    /// Errors: the text holds a character that the vocabulary knows only as an added token.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_pieces(text, &[])
    }

    /// Tokens of text in which added tokens count: what Python's `encode(text, add_special_tokens=False)` gives.
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(encode_error)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Tokens of a conversation. The added tokens that the template writes become tokens; text inside messages and tools
    /// never does, except that an assistant's `content` keeps the not-special ones that the template knows (`<think>`,
    /// `<tool_call>`), which the model wrote as tokens. For a conversation that spells no added token the result equals
    /// `encode_with_special(render(..))`.
    ///
    /// A template that looks for an added token in a message of another role does not find it: with Qwen3's, a user
    /// message in `<tool_response>` tags is a question and not a tool's answer (give that the role `tool`).
    /// Errors: those of [`ChatTemplate::render`] and [`Tokenizer::encode_plain`].
    pub fn encode_conversation(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<u32>> {
        let added: Vec<AddedText> = self
            .inner
            .get_added_tokens_decoder()
            .into_values()
            .map(|token| AddedText { special: token.special, text: token.content })
            .collect();
        let escaped = escape::conversation(&added, template.source(), messages, options)?;
        let rendered = template.render(&escaped.messages, &escaped.options)?;

        let mut text = String::with_capacity(rendered.len());
        let mut tokens = Vec::new();
        for (range, token) in self.find_added(&rendered) {
            let start = text.len();
            text.push_str(&escaped.undo(&rendered[range]));
            if let Some(id) = token {
                tokens.push((start..text.len(), id));
            }
        }
        self.encode_pieces(&text, &tokens)
    }

    /// Text of tokens; bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary nothing.
    /// `skip_special` leaves out the added tokens that are marked special.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.inner.decode(ids, skip_special).map_err(|e| Error::Decode { reason: e.to_string() })
    }

    /// Text of tokens as they come, special tokens left out.
    pub fn stream(&self) -> DecodeStream<'_> {
        DecodeStream::new(self)
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token as the vocabulary writes it (byte-level: `Ġ` for a space).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// One more than the largest id that has a place in the vocabulary; a model's logits may be wider.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The token of an id unless it is special, as `decode(.., true)` sees it.
    pub(crate) fn shown_token(&self, id: u32) -> Option<String> {
        let token = self.inner.id_to_token(id)?;
        (!self.inner.get_added_vocabulary().is_special_token(&token)).then_some(token)
    }

    /// The whole text as stretches, each an added token or (None) not. Added tokens of white space only do not count:
    /// user text has spaces too (see `escape`).
    fn find_added(&self, text: &str) -> Vec<(Range<usize>, Option<u32>)> {
        let found = self.inner.get_added_vocabulary().extract_and_normalize(None::<&NormalizerWrapper>, text);
        let splits = found.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(stretch, (start, end), tokens)| {
                let token = tokens.as_ref().and_then(|tokens| tokens.first());
                (start..end, token.filter(|_| !stretch.trim().is_empty()).map(|token| token.id))
            })
            .collect()
    }

    /// The tokenizer's own pipeline with another first step: `tokens` says which stretches of the text are added tokens,
    /// everything else is plain.
    fn encode_pieces(&self, text: &str, tokens: &[(Range<usize>, u32)]) -> Result<Vec<u32>> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, whole| Ok(cut(&whole, tokens))).map_err(encode_error)?;
        if let Some(normalizer) = self.inner.get_normalizer() {
            pieces.normalize(|piece| normalizer.normalize(piece)).map_err(encode_error)?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(encode_error)?;
        }
        pieces.tokenize(|piece| self.plain_tokens(piece.get())).map_err(encode_error)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(encode_error)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The model's tokens of one piece. A vocabulary may hold its added tokens as ordinary entries too; where the model
    /// finds one as a whole, the piece is cut inside it and tried again.
    fn plain_tokens(&self, piece: &str) -> tokenizers::Result<Vec<Token>> {
        let mut out = Vec::new();
        let mut rest = vec![piece];
        while let Some(piece) = rest.pop() {
            let tokens = self.inner.get_model().tokenize(piece)?;
            let Some(bad) = tokens.iter().find(|token| self.added.contains(&token.id)) else {
                out.extend(tokens);
                continue;
            };
            let first = piece[bad.offsets.0..].chars().next().map_or(0, char::len_utf8);
            let (left, right) = piece.split_at(bad.offsets.0 + first);
            if left.is_empty() || right.is_empty() {
                let reason = format!("the vocabulary knows {piece:?} only as the added token {:?}", bad.value);
                return Err(reason.into());
            }
            rest.push(right);
            rest.push(left);
        }
        Ok(out)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens, {} added)", self.vocab_size, self.added.len())
    }
}

/// The library panics on parts that are not well-formed, and knows kinds that no supported model has and nobody here has
/// tried: both are refused beforehand.
fn check_json(bytes: &[u8]) -> tokenizers::Result<()> {
    #[derive(Deserialize)]
    struct Description {
        #[serde(default)]
        normalizer: serde_json::Value,
        #[serde(default, rename = "decoder")]
        _decoder: serde_json::Value,
        model: ModelDescription,
    }
    #[derive(Deserialize)]
    struct ModelDescription {
        #[serde(rename = "type")]
        kind: Option<String>,
    }
    let description: Description = serde_json::from_slice(bytes)?;
    if let Some(kind) = description.model.kind.filter(|kind| kind != "BPE") {
        return Err(format!("its model is of type {kind:?}, only BPE is supported").into());
    }
    if has_type(&description.normalizer, "Precompiled") {
        return Err("its normalizer is of type \"Precompiled\", which is not supported".into());
    }
    Ok(())
}

fn has_type(value: &serde_json::Value, name: &str) -> bool {
    match value {
        serde_json::Value::Object(map) => {
            map.get("type").and_then(|kind| kind.as_str()) == Some(name) || map.values().any(|v| has_type(v, name))
        }
        serde_json::Value::Array(items) => items.iter().any(|v| has_type(v, name)),
        _ => false,
    }
}

fn encode_error(error: tokenizers::Error) -> Error {
    Error::Encode { reason: error.to_string() }
}

/// Cuts the text at the tokens, which are in order and do not overlap.
fn cut(whole: &NormalizedString, tokens: &[(Range<usize>, u32)]) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
    let slice = |range: Range<usize>| whole.slice(Slice::Original(range)).expect("the ranges are character boundaries");
    let mut out = Vec::new();
    let mut at = 0;
    for (range, id) in tokens {
        if at < range.start {
            out.push((slice(at..range.start), None));
        }
        let token = slice(range.clone());
        let tokens = vec![Token::new(*id, token.get().to_string(), (0, token.len()))];
        out.push((token, Some(tokens)));
        at = range.end;
    }
    if at < whole.len_original() {
        out.push((slice(at..whole.len_original()), None));
    }
    out
}
