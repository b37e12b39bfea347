//! Cases: their names, and the default list.
//! Not here: replaying them (`turns.rs`).

use std::fmt;
use std::str::FromStr;

use record::Phase;

/// `CHECKPOINT:PHASE:TOKENS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CaseName {
    pub(crate) checkpoint: String,
    /// Prefill or decode.
    pub(crate) phase: Phase,
    pub(crate) tokens: usize,
}

impl FromStr for CaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<CaseName, String> {
        let expected = "expected CHECKPOINT:PHASE:TOKENS, e.g. selected:decode:128";
        let parts: Vec<&str> = text.split(':').collect();
        let [checkpoint, phase, tokens] = parts[..] else {
            return Err(format!("{expected}; found {} parts between colons", parts.len()));
        };
        let phase = match phase {
            "decode" => Phase::Decode,
            "prefill" => Phase::Prefill,
            other => return Err(format!("{expected}; the phase is decode or prefill, not '{other}'")),
        };
        match tokens.parse() {
            Ok(tokens) if tokens > 0 && !checkpoint.is_empty() => {
                Ok(CaseName { checkpoint: checkpoint.to_owned(), phase, tokens })
            }
            _ => Err(format!("{expected}; there is a checkpoint, and tokens are a whole number from 1 on")),
        }
    }
}

impl fmt::Display for CaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.checkpoint, self.phase.name(), self.tokens)
    }
}

/// Each rung at the shape that its hypothesis is about.
pub(crate) fn default_list() -> Vec<CaseName> {
    let decode = ["kv-cache", "capacity-cache", "quantized-matvec", "rmsnorm", "rope", "swiglu"];
    let prefill = ["simd-matmul", "tiled-prefill", "selected"];
    let at = |phase| move |name: &str| CaseName { checkpoint: name.to_owned(), phase, tokens: 128 };
    decode.into_iter().map(at(Phase::Decode)).chain(prefill.into_iter().map(at(Phase::Prefill))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        let name: CaseName = "capacity-cache:decode:128".parse().unwrap();
        assert_eq!((name.checkpoint.as_str(), name.phase, name.tokens), ("capacity-cache", Phase::Decode, 128));
        assert_eq!(name.to_string(), "capacity-cache:decode:128");
        for text in ["", "a:decode", "a:decode:1:2", ":decode:1", "a:both:1", "a:decode:0", "a:decode:-1", "a:decode:x"]
        {
            let message = text.parse::<CaseName>().unwrap_err();
            assert!(message.contains("CHECKPOINT:PHASE:TOKENS"), "{text}: {message}");
        }
    }

    #[test]
    fn the_default_list_is_of_rungs() {
        let registry = ops::Registry::standard();
        let list = default_list();
        assert_eq!(list.len(), 9);
        assert!(list.iter().all(|case| registry.checkpoint(&case.checkpoint).is_ok()));
    }
}
