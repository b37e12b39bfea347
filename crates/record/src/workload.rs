//! What was computed, without how: two measurements may be compared when their workloads are the same.
//! The checkpoint is deliberately not in it: it is what a comparison varies (see `subject.rs`).

use crate::identity::{hex, identity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Which part of a request's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// A whole request: one prompt, then one token at a time.
    Request,
    /// One pass over the prompt.
    Prefill,
    /// One pass over one new token.
    Decode,
}

impl Phase {
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Request => "request",
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// For which rows of a prompt logits are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogitsMode {
    Last,
    All,
}

impl LogitsMode {
    pub const fn name(self) -> &'static str {
        match self {
            LogitsMode::Last => "last",
            LogitsMode::All => "all",
        }
    }
}

/// The work, exactly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// How the model was named, e.g. `synthetic:qwen3-0.6b@0`.
    pub model: String,
    /// Fingerprint of the weights and configuration.
    pub weights_hash: String,
    pub phase: Phase,
    /// Prompt length of a request; cached length S after a replayed pass.
    pub context_tokens: u64,
    /// New tokens per pass: the prompt's for a request and a prefill, one for a decode pass.
    pub new_rows: u64,
    /// Positions C that the cache is made for.
    pub capacity: u64,
    /// Tokens generated; a replayed pass generates none.
    pub output_tokens: u64,
    pub logits: LogitsMode,
    /// How the next token is chosen, e.g. `greedy`.
    pub sampling: String,
    /// Seed of the prompt.
    pub seed: u64,
    /// How the prompt was made.
    pub prompt_rule: String,
    /// [`token_trace_hash`] of the prompt.
    pub token_trace_hash: String,
}

impl Workload {
    /// SHA-256 of the workload's canonical JSON.
    pub fn id(&self) -> String {
        identity(self)
    }

    /// Names of the fields in which two workloads differ.
    pub fn differences(&self, other: &Workload) -> Vec<String> {
        let fields = |workload: &Workload| match serde_json::to_value(workload) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let theirs = fields(other);
        fields(self).into_iter().filter(|(key, value)| theirs.get(key) != Some(value)).map(|(key, _)| key).collect()
    }
}

/// SHA-256 of token ids, each as four little-endian bytes.
pub fn token_trace_hash(tokens: &[u32]) -> String {
    let mut hash = Sha256::new();
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    hex(&hash.finalize())
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::Value;
    use std::collections::HashSet;

    pub(crate) fn example(phase: Phase) -> Workload {
        Workload {
            model: "synthetic:tiny@0".into(),
            weights_hash: "ab".repeat(32),
            phase,
            context_tokens: 16,
            new_rows: if phase == Phase::Decode { 1 } else { 16 },
            capacity: 24,
            output_tokens: if phase == Phase::Request { 8 } else { 0 },
            logits: LogitsMode::Last,
            sampling: "greedy".into(),
            seed: 0,
            prompt_rule: "uniform".into(),
            token_trace_hash: token_trace_hash(&[1, 2, 3]),
        }
    }

    /// Every field of the JSON form is changed in turn, so a new field is covered without being named here.
    #[test]
    fn the_id_changes_with_every_field_and_not_with_the_checkpoint() {
        let original = example(Phase::Request);
        let Value::Object(fields) = serde_json::to_value(&original).unwrap() else { panic!("an object") };
        let mut ids = HashSet::from([original.id()]);
        for (key, value) in &fields {
            let mut changed = fields.clone();
            let other = match (key.as_str(), value) {
                ("phase", _) => Value::from("decode"),
                ("logits", _) => Value::from("all"),
                (_, Value::String(text)) => Value::from(format!("{text}x")),
                (_, Value::Number(number)) => Value::from(number.as_u64().unwrap() + 1),
                _ => panic!("field {key} has a kind that this test does not know"),
            };
            changed.insert(key.clone(), other);
            let changed: Workload = serde_json::from_value(Value::Object(changed)).unwrap();
            assert!(ids.insert(changed.id()), "{key} does not change the id");
            assert_eq!(original.differences(&changed), std::slice::from_ref(key));
        }
        assert!(!fields.contains_key("checkpoint"), "the checkpoint is what comparisons vary");
        assert_eq!(original.id(), example(Phase::Request).id());
    }

    #[test]
    fn the_trace_hash_depends_on_order() {
        assert_ne!(token_trace_hash(&[1, 2]), token_trace_hash(&[2, 1]));
        // printf '\001\000\000\000' | sha256sum
        assert_eq!(token_trace_hash(&[1]), "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450");
    }
}
