//! Text out of tokens that arrive one at a time: only whole characters leave.
//! Not here: decoding a finished list ([`Tokenizer::decode`]).

use tokenizers::DecoderWrapper;

use crate::{Result, Tokenizer};

/// Made by [`Tokenizer::stream`]. What it gives, put together, is `decode(ids, true)` of all ids: special tokens are
/// left out, and bytes that are no UTF-8 become U+FFFD.
pub struct DecodeStream<'a> {
    tokenizer: &'a Tokenizer,
    state: State,
}

enum State {
    /// Byte-level tokenizers: every token is bytes. Holds the start of an unfinished character.
    Bytes(Vec<u8>),
    /// Others decode tokens in context. `ids[..shown]` were shown already and give the context for the rest.
    Window { ids: Vec<u32>, shown: usize },
}

impl<'a> DecodeStream<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Self {
        let state = match tokenizer.inner().get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => State::Bytes(Vec::new()),
            _ => State::Window { ids: Vec::new(), shown: 0 },
        };
        DecodeStream { tokenizer, state }
    }

    /// Takes the next token; the text that is complete now, if any.
    /// Errors: the tokenizer cannot decode the token.
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        match &mut self.state {
            State::Bytes(held) => {
                if let Some(token) = self.tokenizer.shown_token(id) {
                    held.extend(token_bytes(&token));
                }
                Ok(take_complete(held))
            }
            State::Window { ids, shown } => {
                ids.push(id);
                let before = self.tokenizer.decode(&ids[..*shown], true)?;
                let now = self.tokenizer.decode(ids, true)?;
                match now.strip_prefix(&before) {
                    Some(new) if !new.is_empty() && !new.ends_with('\u{fffd}') => {
                        ids.drain(..*shown);
                        *shown = ids.len();
                        Ok(Some(new.to_string()))
                    }
                    _ => Ok(None),
                }
            }
        }
    }

    /// Ends the text: what was held back, unfinished characters as U+FFFD.
    pub fn finish(&mut self) -> Result<Option<String>> {
        let rest = match &mut self.state {
            State::Bytes(held) => String::from_utf8_lossy(&std::mem::take(held)).into_owned(),
            State::Window { ids, shown } => {
                let before = self.tokenizer.decode(&ids[..*shown], true)?;
                let now = self.tokenizer.decode(ids, true)?;
                *shown = ids.len();
                now.strip_prefix(&before).unwrap_or_default().to_string()
            }
        };
        Ok((!rest.is_empty()).then_some(rest))
    }
}

/// The bytes that a token of the byte-level alphabet stands for; a token with any other character (an added one) stands
/// for its own text.
fn token_bytes(token: &str) -> Vec<u8> {
    token.chars().map(byte_of).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Byte-level BPE writes bytes as printable characters: the printable Latin-1 ones as themselves, the other 68 in order
/// as the characters from U+0100 on.
fn byte_of(c: char) -> Option<u8> {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(c) {
        code @ 0..=0xff => u8::try_from(code).ok().filter(|byte| is_itself(*byte)),
        code => (0..=255).filter(|byte| !is_itself(*byte)).nth(code.checked_sub(0x100)? as usize),
    }
}

/// Takes everything up to the last whole character; invalid bytes before it become U+FFFD as in `from_utf8_lossy`.
fn take_complete(held: &mut Vec<u8>) -> Option<String> {
    let mut complete = 0;
    for chunk in held.utf8_chunks() {
        complete += chunk.valid().len();
        let invalid = chunk.invalid().len();
        let at_end = complete + invalid == held.len();
        // At the end, an invalid stretch may be the start of a character.
        let unfinished = at_end && std::str::from_utf8(&held[complete..]).is_err_and(|e| e.error_len().is_none());
        if invalid > 0 && unfinished {
            break;
        }
        complete += invalid;
    }
    let rest = held.split_off(complete);
    let text = String::from_utf8_lossy(&std::mem::replace(held, rest)).into_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        let all: Vec<u8> = (0..0x200).filter_map(|c| byte_of(char::from_u32(c).unwrap())).collect();
        assert_eq!(all.len(), 256);
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 256);
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('a')), (Some(b' '), Some(b'\n'), Some(b'a')));
    }

    proptest! {
        #[test]
        fn pieces_of_any_bytes_join_to_the_lossy_text(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xf0), Just(0x9f), Just(0x98), Just(0x80)], 0..40), cuts in proptest::collection::vec(0usize..4, 40)) {
            let (mut held, mut out, mut at) = (Vec::new(), String::new(), 0);
            for cut in cuts {
                let end = bytes.len().min(at + cut);
                held.extend_from_slice(&bytes[at..end]);
                at = end;
                out.extend(take_complete(&mut held));
                prop_assert!(held.len() < 4);
            }
            held.extend_from_slice(&bytes[at..]);
            out.extend(take_complete(&mut held));
            out.push_str(&String::from_utf8_lossy(&held));
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
        }
    }
}
