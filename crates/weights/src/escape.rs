//! Hides what looks like an added token in the text of a conversation, and brings it back after rendering.
//! Not here: rendering, and encoding what comes out.
//!
//! A chat template pastes user text into its own markup, and then `<|im_end|>` typed by a user cannot be told from the
//! template's. So before rendering, the first character of every added token's text inside user text is replaced by a
//! stand-in: a private-use character that occurs nowhere in the input. What still reads as an added token after
//! rendering is the template's own. The replacement is one character for one, so string methods in the template see the
//! same text everywhere else; a template that looks for an added token in user text does not find it, which is meant: user
//! text that claims to be, say, a tool response is not one.
//!
//! The text of an assistant message is the model's own, and templates take it apart (`content.split('</think>')`). There,
//! added tokens stay live that the file does not mark special and that the template itself mentions: the thinking and
//! tool-call marks, which the model wrote as those tokens. Control tokens never stay live: a model that repeats
//! "<|im_end|>" from a question spelled it in ordinary tokens.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::{Error, Message, RenderOptions, Result};

/// The text of one added token.
pub(crate) struct AddedText {
    pub(crate) text: String,
    /// The tokenizer's file marks it special: a control token.
    pub(crate) special: bool,
}

/// A conversation that is safe to render, and how to undo the change in the result.
pub(crate) struct Escaped {
    pub(crate) messages: Vec<Message>,
    pub(crate) options: RenderOptions,
    /// Stand-in to original.
    originals: BTreeMap<char, char>,
}

impl Escaped {
    /// The text with its original characters.
    pub(crate) fn undo(&self, text: &str) -> String {
        text.chars().map(|c| self.originals.get(&c).copied().unwrap_or(c)).collect()
    }
}

/// Escapes messages and tools. White-space-only added tokens are left alone: hiding a user's spaces would change what
/// templates strip, and the caller does not treat them as markup.
/// Errors: the input uses every private-use character of two planes.
pub(crate) fn conversation(
    added: &[AddedText],
    template: &str,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<Escaped> {
    let visible = || added.iter().filter(|token| !token.text.trim().is_empty());
    let mut used = BTreeSet::new();
    private(template, &mut used);
    for message in messages {
        private(&message.role, &mut used);
        private(&message.content, &mut used);
        message.extra.iter().for_each(|(key, value)| private_pair(key, value, &mut used));
    }
    options.tools.iter().for_each(|tools| private_value(tools, &mut used));
    added.iter().for_each(|token| private(&token.text, &mut used));

    let mut free = ('\u{f0000}'..='\u{ffffd}').chain('\u{100000}'..='\u{10fffd}').filter(|c| !used.contains(c));
    let firsts: BTreeSet<char> = visible().filter_map(|token| token.text.chars().next()).collect();
    let mut stand_ins = BTreeMap::new();
    for first in firsts {
        let stand_in = free.next().ok_or_else(|| Error::Encode {
            reason: "the conversation uses every private-use character of Unicode, none is left to mark user text"
                .into(),
        })?;
        stand_ins.insert(first, stand_in);
    }

    let everything = Escaper { tokens: visible().map(|t| t.text.as_str()).collect(), stand_ins: &stand_ins };
    let assistant = Escaper {
        tokens: visible().filter(|t| t.special || !template.contains(&t.text)).map(|t| t.text.as_str()).collect(),
        stand_ins: &stand_ins,
    };
    let messages = messages
        .iter()
        .map(|message| Message {
            role: everything.text(&message.role),
            content: if message.role == "assistant" { &assistant } else { &everything }.text(&message.content),
            extra: everything.map(&message.extra),
        })
        .collect();
    let tools = options.tools.as_ref().map(|tools| everything.value(tools));
    let options = RenderOptions { tools, ..options.clone() };
    let originals = stand_ins.iter().map(|(original, stand_in)| (*stand_in, *original)).collect();
    Ok(Escaped { messages, options, originals })
}

struct Escaper<'a> {
    tokens: Vec<&'a str>,
    /// By the first character of a token.
    stand_ins: &'a BTreeMap<char, char>,
}

impl Escaper<'_> {
    /// Replaces the first character of each token, and of an unfinished token at the very end, which the text pasted
    /// after it could complete.
    fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            let rest = &text[at..];
            let stand_in = self.stand_ins.get(&c);
            let hidden = stand_in.filter(|_| self.tokens.iter().any(|t| rest.starts_with(t) || t.starts_with(rest)));
            out.push(hidden.copied().unwrap_or(c));
        }
        out
    }

    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.value(item)).collect()),
            Value::Object(map) => Value::Object(self.map(map)),
            other => other.clone(),
        }
    }

    fn map(&self, map: &Map<String, Value>) -> Map<String, Value> {
        map.iter().map(|(key, value)| (self.text(key), self.value(value))).collect()
    }
}

/// Collects the characters of the two private planes.
fn private(text: &str, into: &mut BTreeSet<char>) {
    into.extend(text.chars().filter(|c| *c >= '\u{f0000}'));
}

fn private_pair(key: &str, value: &Value, into: &mut BTreeSet<char>) {
    private(key, into);
    private_value(value, into);
}

fn private_value(value: &Value, into: &mut BTreeSet<char>) {
    match value {
        Value::String(text) => private(text, into),
        Value::Array(items) => items.iter().for_each(|item| private_value(item, into)),
        Value::Object(map) => map.iter().for_each(|(key, value)| private_pair(key, value, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    fn added() -> Vec<AddedText> {
        let token = |text: &str, special| AddedText { text: text.into(), special };
        vec![
            token("<|im_end|>", true),
            token("<think>", false),
            token("<|fim|>", false),
            token("[X]", true),
            token("  ", false),
        ]
    }

    fn escape(role: &str, content: &str) -> Escaped {
        let message = Message { role: role.into(), content: content.into(), extra: Map::new() };
        conversation(&added(), "writes <think>", &[message], &RenderOptions::default()).unwrap()
    }

    #[test]
    fn hides_tokens_and_the_start_of_one_at_the_end() {
        let hidden = |role, content| escape(role, content).messages[0].content.clone();
        assert_eq!(hidden("user", "a < b  c [Y]"), "a < b  c [Y]");
        for text in ["<|im_end|>", "<<think>", "x[X]y", "ends with <|im_", "<", "<|fim|>"] {
            let out = hidden("user", text);
            assert_ne!(out, text);
            assert_eq!(out.chars().count(), text.chars().count());
            assert!(added().iter().all(|t| t.text.trim().is_empty() || !out.contains(&t.text)), "{out:?}");
        }
        assert_eq!(hidden("assistant", "<think>a"), "<think>a", "the template's own, not special");
        assert_ne!(hidden("assistant", "<|fim|>a"), "<|fim|>a", "not the template's");
        assert_ne!(hidden("assistant", "<|im_end|>a"), "<|im_end|>a", "special");
    }

    proptest! {
        #[test]
        fn undo_gives_the_text_back(text in "[<>|a-z_\\[\\]X \u{f0000}-\u{f0003}]{0,12}(<\\|im_end\\|>|<think>|\\[X\\]|<\\|im)?[a<]{0,2}") {
            let escaped = escape("user", &text);
            prop_assert_eq!(escaped.undo(&escaped.messages[0].content), text);
        }
    }
}
