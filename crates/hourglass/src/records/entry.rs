//! One line of a list of records: when, what, of which checkpoint, and whether it may be relied on. Read from any kind.
//! Not here: lists and their text.

use std::path::{Path, PathBuf};

use record::{Known, ReadError, Verified, verify};
use serde::Serialize;
use serde_json::Value;

use crate::store::{self, Found};

/// What may be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Complete,
    /// Whole and true, but it does not cover what it set out to.
    Incomplete,
    /// A check of it failed: nothing in it may be relied on.
    Void,
    /// A record of a kind or version that this build does not know.
    UnknownKind,
    /// No record, or one that was cut off or changed after it was written.
    Unreadable,
}

impl State {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            State::Complete => "complete",
            State::Incomplete => "incomplete",
            State::Void => "VOID",
            State::UnknownKind => "unknown kind",
            State::Unreadable => "CANNOT BE READ",
        }
    }
}

/// A file of the store, as listed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    /// First twelve digits of `sha256`.
    pub(crate) id: Known<String>,
    pub(crate) sha256: Known<String>,
    /// Relative to the folder of records where it lies in there.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// `name/version`.
    pub(crate) schema: Known<String>,
    /// UTC, RFC 3339.
    pub(crate) created: Known<String>,
    pub(crate) model: Known<String>,
    /// The work in short, e.g. `request 128+129`.
    pub(crate) work: Known<String>,
    pub(crate) workload_id: Known<String>,
    /// Of every subject in it, in order, each once.
    pub(crate) checkpoints: Vec<String>,
    pub(crate) state: State,
    /// Why it is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl Entry {
    /// Reads and judges one file; `root` is the folder of records.
    pub(crate) fn read(path: PathBuf, root: &Path) -> Entry {
        let (found, bytes) = store::found(path);
        Entry::of(&found, bytes.as_deref(), root)
    }

    /// A file that was read already.
    pub(crate) fn of(found: &Found, bytes: Option<&[u8]>, root: &Path) -> Entry {
        let name = found.path.display().to_string();
        let value: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(bytes).ok());
        let judged = match (&found.schema, bytes) {
            (Err(why), _) => Err(why.to_string()),
            (Ok(_), None) => Err("its bytes are gone".to_owned()),
            (Ok(_), Some(bytes)) => match verify(&name, bytes) {
                Err(why @ ReadError::UnknownSchema { .. }) => Ok((State::UnknownKind, Some(why.to_string()))),
                Err(why) => Err(why.to_string()),
                Ok(verified) => Ok(judge(&verified, value.as_ref())),
            },
        };
        let (state, reason) = judged.unwrap_or_else(|why| (State::Unreadable, Some(why)));
        let not_there =
            |what: &str| Known::unavailable(format!("{what} is not in it"), "`hourglass records show` has the rest");
        let no_digest = || Known::unavailable("the file could not be read", "see the reason beside it");
        let text = |pointer: &str, what: &str| match value.as_ref().and_then(|value| value.pointer(pointer)?.as_str()) {
            Some(text) => Known::Is(text.to_owned()),
            None => not_there(what),
        };
        let workload = value.as_ref().and_then(|value| first(value, "workload", "model"));
        let of_workload = |key: &str| workload.and_then(|workload| workload.get(key)?.as_str());
        Entry {
            id: found.evidence_id().map_or_else(no_digest, |id| Known::Is(id.to_owned())),
            sha256: if found.sha256.is_empty() { no_digest() } else { Known::Is(found.sha256.clone()) },
            path: found.path.strip_prefix(root).unwrap_or(&found.path).to_path_buf(),
            bytes: found.bytes,
            schema: match &found.schema {
                Ok(schema) => Known::Is(schema.clone()),
                Err(_) => not_there("a schema"),
            },
            created: text("/created", "a time"),
            model: of_workload("model").map_or_else(|| not_there("a model"), |model| Known::Is(model.to_owned())),
            work: workload.and_then(work).map_or_else(|| not_there("a workload"), Known::Is),
            workload_id: text("/workload_id", "one workload"),
            checkpoints: value.as_ref().map(checkpoints).unwrap_or_default(),
            state,
            reason,
        }
    }

    /// `find` of `find/2`, or what stands in its place.
    pub(crate) fn kind(&self) -> &str {
        self.schema.known().map_or("?", |schema| schema.split('/').next().unwrap_or(schema))
    }

    /// The evidence id, or a dash.
    pub(crate) fn id(&self) -> &str {
        self.id.known().map_or("-", String::as_str)
    }
}

fn judge(verified: &Verified, value: Option<&Value>) -> (State, Option<String>) {
    if verified.void {
        let failed: Vec<_> =
            verified.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str()).collect();
        return (State::Void, Some(format!("failed: {}", failed.join("; "))));
    }
    let incomplete = ["/coverage", "/summary/coverage"].iter().find_map(|pointer| {
        let coverage = value?.pointer(pointer)?;
        (coverage.get("complete") == Some(&Value::Bool(false)))
            .then(|| coverage.get("reason").and_then(Value::as_str).unwrap_or("no reason is given").to_owned())
    });
    match incomplete {
        Some(reason) => (State::Incomplete, Some(reason)),
        None => (State::Complete, None),
    }
}

/// The first object named `key` that has the field `with`, wherever it is.
fn first<'a>(value: &'a Value, key: &str, with: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => {
            let here = fields.get(key).filter(|found| found.get(with).is_some());
            here.or_else(|| fields.values().find_map(|field| first(field, key, with)))
        }
        Value::Array(items) => items.iter().find_map(|item| first(item, key, with)),
        _ => None,
    }
}

/// `request 128+129`, `prefill 128`, `decode 512`.
fn work(workload: &Value) -> Option<String> {
    let phase = workload.get("phase")?.as_str()?;
    let context = workload.get("context_tokens")?.as_u64()?;
    Some(match workload.get("output_tokens").and_then(Value::as_u64) {
        Some(output) if output > 0 => format!("{phase} {context}+{output}"),
        _ => format!("{phase} {context}"),
    })
}

fn checkpoints(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(value, &mut found);
    found
}

fn collect(value: &Value, found: &mut Vec<String>) {
    let mut take = |value: &Value| {
        if let Some(name) = value.as_str()
            && !found.iter().any(|known| known == name)
        {
            found.push(name.to_owned());
        }
    };
    match value {
        Value::Object(fields) => {
            for key in ["baseline_checkpoint", "candidate_checkpoint"] {
                fields.get(key).map(&mut take);
            }
            if let Some(name) = fields.get("subject").and_then(|subject| subject.get("checkpoint")) {
                take(name);
            }
            fields.values().for_each(|field| collect(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        _ => {}
    }
}

impl Found {
    /// The first digits of the digest, if the file could be read.
    fn evidence_id(&self) -> Option<&str> {
        self.sha256.get(..record::EVIDENCE_ID_DIGITS)
    }
}
