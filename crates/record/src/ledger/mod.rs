//! The ledger: decisions written down before their measurement and judged after it, one JSON object per line, hash-chained.
//! Here are an entry and its kinds. Not here: the chain (`chain.rs`), the file (`file.rs`), judging (`judge.rs`), and other
//! forms of a decision (`transfer.rs`).
//!
//! An entry's hash covers everything in it and the hash of the entry that it follows, so that no entry can be changed, moved or
//! taken out of the middle without the chain showing it. What a chain cannot show is that its end was cut off: whoever keeps
//! the last hash elsewhere (a commit does) can ask for it.

mod chain;
mod file;
mod judge;
mod transfer;

pub use chain::{ChainError, Ledger, Verified};
pub use file::{LedgerFile, LedgerFileError};
pub use judge::{JudgeError, Shape, judge, opening_workloads};
pub use transfer::{ImportError, WrittenDecision, export_json, export_markdown, import};

use crate::compare::Outcome;
use crate::evidence::EvidenceRef;
use crate::gate::RuleAnswer;
use crate::identity::identity;
use crate::known::Known;
use crate::quantity::Reading;
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The schema of every line.
pub const LEDGER_SCHEMA: &str = "ledger/1";
/// What the first entry follows.
pub const NO_ENTRY: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Digits of an entry's id.
pub const ENTRY_ID_DIGITS: usize = 10;

/// `ledger/1`: one line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub schema: String,
    /// The first digits of the SHA-256 of `created`, `previous` and `body`.
    pub id: String,
    /// UTC, RFC 3339.
    pub created: String,
    /// Hash of the entry that this one follows; zeros for the first.
    pub previous: String,
    pub body: Body,
    /// SHA-256 of the canonical JSON of everything above.
    pub hash: String,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Body {
    /// A decision before its measurement.
    Open(Box<Opening>),
    /// The same decision, judged.
    Close(Box<Closing>),
    /// Words about another entry, added by a person.
    Note(Note),
    /// A decision that was written down elsewhere.
    Import(Box<WrittenDecision>),
    /// Two or more branches of the ledger, each of which followed the same entry, are one again.
    Merge(Merge),
}

/// What is going to be decided, and by what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    /// What dominates, for this checkpoint and this request.
    pub dominates: String,
    /// The one change.
    pub change: String,
    /// The result on the same workload that would support it, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// Conditions that must all hold for the change to be kept.
    pub accept: Vec<String>,
    /// Conditions of which any one rejects it.
    pub reject: Vec<String>,
    /// The request shapes that it is about.
    pub workloads: Vec<OpenedWorkload>,
    /// Checkpoints (or arms) before and after the change; the same name for a change inside a checkpoint, which two builds
    /// tell apart.
    pub baseline: String,
    pub candidate: String,
    /// The group that the change is aimed at, as replays call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What the first sentence rests on.
    pub evidence: Vec<EvidenceRef>,
}

/// A workload and its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenedWorkload {
    pub workload: Workload,
    pub workload_id: String,
}

/// How a decision came out. The verdict follows from the rules alone; a person may add a reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Closing {
    /// Id of the entry that opened it.
    pub opened: String,
    pub verdict: Decided,
    /// In words.
    pub sentence: String,
    /// One per request shape that was measured.
    pub shapes: Vec<ShapeVerdict>,
    /// A person's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub evidence: Vec<EvidenceRef>,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decided {
    /// Every accept rule holds, no reject rule does.
    Keep,
    /// A reject rule holds.
    Reject,
    /// Something is missing, undecided, or neither side's rules hold.
    Inconclusive,
    /// Kept at some shapes and not at others.
    Conditional,
}

impl Decided {
    pub const fn name(self) -> &'static str {
        match self {
            Decided::Keep => "keep",
            Decided::Reject => "reject",
            Decided::Inconclusive => "inconclusive",
            Decided::Conditional => "conditional",
        }
    }
}

/// The verdict at one request shape, with everything that it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShapeVerdict {
    pub workload_id: String,
    /// `128 prompt tokens, 129 generated`.
    pub shape: String,
    pub verdict: Decided,
    pub accept: Vec<RuleAnswer>,
    pub reject: Vec<RuleAnswer>,
    /// What the comparison of both sides says by itself.
    pub outcome: Outcome,
    pub outcome_sentence: String,
    /// What the request saved per pass over what the replay saved.
    pub arrived: Reading,
    /// The request's peak allocation, after over before.
    pub memory: Reading,
    /// Whether both sides generated the same tokens.
    pub tokens_equal: Known<bool>,
}

/// Words about an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// Id of the entry.
    pub about: String,
    pub text: String,
}

/// Branches that come together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Merge {
    /// Hashes of the last entry of every branch but the one that this entry stands behind.
    pub heads: Vec<String>,
}

impl Body {
    pub const fn name(&self) -> &'static str {
        match self {
            Body::Open(_) => "open",
            Body::Close(_) => "close",
            Body::Note(_) => "note",
            Body::Import(_) => "import",
            Body::Merge(_) => "merge",
        }
    }
}

impl Entry {
    /// An entry that follows the one with hash `previous`.
    pub fn new(created: &str, previous: &str, body: Body) -> Entry {
        let mut entry = Entry {
            schema: LEDGER_SCHEMA.to_owned(),
            id: String::new(),
            created: created.to_owned(),
            previous: previous.to_owned(),
            body,
            hash: String::new(),
        };
        entry.id = entry.computed_id();
        entry.hash = entry.computed_hash();
        entry
    }

    /// The id that the contents have.
    pub fn computed_id(&self) -> String {
        let content =
            serde_json::json!({ "created": self.created, "previous": self.previous, "body": self.value_of_body() });
        identity(&content)[..ENTRY_ID_DIGITS].to_owned()
    }

    /// The hash that the contents have.
    pub fn computed_hash(&self) -> String {
        identity(&serde_json::json!({
            "schema": self.schema,
            "id": self.id,
            "created": self.created,
            "previous": self.previous,
            "body": self.value_of_body(),
        }))
    }

    /// The line in the file, without its end.
    pub fn line(&self) -> String {
        let value = serde_json::to_value(self).expect("entries hold only strings, finite numbers and string keys");
        crate::identity::canonical_json(&value)
    }

    fn value_of_body(&self) -> Value {
        serde_json::to_value(&self.body).expect("entries hold only strings, finite numbers and string keys")
    }
}

/// The JSON Schema of a line, as `cargo xtask schema` writes it.
pub fn ledger_schema() -> Value {
    let generator = schemars::generate::SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<Entry>().to_value()
}
