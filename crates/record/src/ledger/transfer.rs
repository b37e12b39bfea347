//! Decisions in the short form that people write: the change, what dominated before, the evidence, kept or not.
//! Not here: our own entries (`mod.rs`), and reading files.

use super::{Body, Closing, Ledger, Opening};
use crate::decision::{DecisionRecord, Outcome as Written};
use crate::evidence::EvidenceRef;
use crate::read::{ReadError, Record, read};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write;

/// A decision as somebody wrote it down, without rules that were made beforehand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrittenDecision {
    pub change: String,
    /// What dominated before the change.
    pub dominated_before: String,
    /// What speaks for the decision, one thought each.
    pub evidence: Vec<String>,
    /// `kept`, `rejected`, `inconclusive`, `conditional` or `open`.
    pub kept: String,
    /// The file that it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<EvidenceRef>,
}

/// Why a file holds no decisions.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{name}: not JSON: {why}; expected a decision/1 record, or {FORM}")]
    NotJson { name: String, why: serde_json::Error },
    #[error("{name}: found no decisions; expected a decision/1 record, or {FORM}")]
    None { name: String },
    #[error("{name}: decision {number}: {what}; expected {FORM}")]
    Decision { name: String, number: usize, what: String },
}

const FORM: &str = "{\"decisions\": [{\"change\": \"...\", \"dominated_before\": \"...\", \"evidence\": \"...\" or [...], \
                    \"kept\": true, false, \"kept\", \"rejected\", \"inconclusive\", \"conditional\" or \"open\"}]}";

/// Reads decisions from a `decision/1` record, from `{"decisions": [...]}`, a list of them, or one alone.
///
/// # Errors
/// Anything else; the message shows the form.
pub fn import(name: &str, bytes: &[u8]) -> Result<Vec<WrittenDecision>, ImportError> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|why| ImportError::NotJson { name: name.to_owned(), why })?;
    let schema = value.get("schema").and_then(Value::as_str).unwrap_or("").to_owned();
    let source = EvidenceRef::of(schema.as_str(), name, bytes);
    if schema == DecisionRecord::SCHEMA {
        let record: DecisionRecord = read(name, bytes)?;
        return Ok(vec![of_record(&record, source)]);
    }
    let list = match &value {
        Value::Array(list) => list.clone(),
        Value::Object(fields) => match fields.get("decisions") {
            Some(Value::Array(list)) => list.clone(),
            Some(_) => return Err(ImportError::None { name: name.to_owned() }),
            None => vec![value.clone()],
        },
        _ => return Err(ImportError::None { name: name.to_owned() }),
    };
    if list.is_empty() {
        return Err(ImportError::None { name: name.to_owned() });
    }
    let one = |(index, value): (usize, &Value)| {
        written(value, &source).map_err(|what| ImportError::Decision { name: name.to_owned(), number: index + 1, what })
    };
    list.iter().enumerate().map(one).collect()
}

fn of_record(record: &DecisionRecord, source: EvidenceRef) -> WrittenDecision {
    let kept = match record.decision {
        Written::Keep => "kept",
        Written::Reject => "rejected",
        Written::Inconclusive => "inconclusive",
    };
    let category = &record.evidence.category;
    let mut evidence = vec![record.observed_effect.clone()];
    if let (Some(before), Some(after)) = (category.before.value(), category.after.value()) {
        evidence.push(format!("{}: {before:.1} us before, {after:.1} us after, in the replay", category.name));
    }
    evidence.push(format!("next: {}", record.next_experiment));
    WrittenDecision {
        change: format!("{} to {}: {}", record.baseline_checkpoint, record.candidate_checkpoint, record.hypothesis),
        dominated_before: record.dominant_category.clone(),
        evidence,
        kept: kept.to_owned(),
        source: Some(source),
    }
}

fn written(value: &Value, source: &EvidenceRef) -> Result<WrittenDecision, String> {
    let fields = value.as_object().ok_or("it is no object")?;
    let text = |names: &[&str]| -> Result<String, String> {
        let found = names.iter().find_map(|name| fields.get(*name));
        let found = found.and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
        found.map(str::to_owned).ok_or_else(|| format!("it has no text \"{}\"", names[0]))
    };
    let evidence = match fields.get("evidence") {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(parts)) => {
            parts.iter().map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned)).collect()
        }
        Some(other @ Value::Object(_)) => vec![other.to_string()],
        _ => return Err("it has no \"evidence\"".to_owned()),
    };
    let kept = match fields.get("kept").or_else(|| fields.get("decision")) {
        Some(Value::Bool(true)) => "kept",
        Some(Value::Bool(false)) => "rejected",
        Some(Value::String(word)) => match word.to_lowercase().as_str() {
            "kept" | "keep" | "yes" => "kept",
            "rejected" | "reject" | "not kept" | "no" | "reverted" => "rejected",
            "inconclusive" => "inconclusive",
            "conditional" => "conditional",
            "open" => "open",
            other => return Err(format!("\"kept\" is \"{}\"", other.escape_debug())),
        },
        _ => return Err("it does not say whether the change was \"kept\"".to_owned()),
    };
    Ok(WrittenDecision {
        change: text(&["change"])?,
        dominated_before: text(&["dominated_before", "dominated", "what_dominated_before", "dominates"])?,
        evidence,
        kept: kept.to_owned(),
        source: Some(source.clone()),
    })
}

/// Every decision of a ledger in the short form; of one id alone if it is given.
fn short_form(ledger: &Ledger, id: Option<&str>) -> Vec<(String, String, WrittenDecision)> {
    let entries = ledger.entries().iter().filter(|entry| id.is_none_or(|id| entry.id == id));
    let decisions = entries.filter_map(|entry| {
        let decision = match &entry.body {
            Body::Open(opening) => of_opening(opening, ledger.closing(&entry.id).map(|(_, closing)| closing)),
            Body::Import(written) => written.as_ref().clone(),
            _ => return None,
        };
        Some((entry.id.clone(), entry.created.clone(), decision))
    });
    decisions.collect()
}

fn of_opening(opening: &Opening, closing: Option<&Closing>) -> WrittenDecision {
    let mut evidence = Vec::new();
    if let Some(closing) = closing {
        evidence.push(closing.sentence.clone());
        for shape in &closing.shapes {
            evidence.push(format!("{}: {}", shape.shape, shape.outcome_sentence));
            evidence.extend(shape.accept.iter().map(|answer| format!("accept if {}", answer.sentence)));
            evidence.extend(shape.reject.iter().map(|answer| format!("reject if {}", answer.sentence)));
        }
        evidence.extend(closing.reason.iter().cloned());
        evidence.extend(
            closing.evidence.iter().map(|record| format!("{} {} ({})", record.schema, record.id(), record.file)),
        );
    } else {
        evidence.extend(opening.accept.iter().map(|rule| format!("will be accepted if {rule}")));
        evidence.extend(opening.reject.iter().map(|rule| format!("will be rejected if {rule}")));
    }
    let kept = match closing.map(|closing| closing.verdict.name()) {
        Some("keep") => "kept",
        Some("reject") => "rejected",
        Some(other) => other,
        None => "open",
    };
    WrittenDecision {
        change: opening.change.clone(),
        dominated_before: opening.dominates.clone(),
        evidence,
        kept: kept.to_owned(),
        source: None,
    }
}

/// Decisions as `{"decisions": [...]}`, which [`import`] reads.
pub fn export_json(ledger: &Ledger, id: Option<&str>) -> Value {
    let decisions: Vec<Value> = short_form(ledger, id)
        .into_iter()
        .map(|(id, created, decision)| {
            serde_json::json!({
                "id": id, "created": created, "change": decision.change, "dominated_before": decision.dominated_before,
                "evidence": decision.evidence, "kept": decision.kept,
            })
        })
        .collect();
    serde_json::json!({ "decisions": decisions })
}

/// Decisions for people, as Markdown.
pub fn export_markdown(ledger: &Ledger, id: Option<&str>) -> String {
    let mut text = String::from("# Decisions\n");
    for (id, created, decision) in short_form(ledger, id) {
        // A line of its own for each, so that nothing in a sentence becomes a heading.
        let line = |words: &str| words.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = write!(
            text,
            "\n## {id} ({created}): {}\n\n- Change: {}\n- Dominated before: {}\n- Evidence:\n",
            decision.kept,
            line(&decision.change),
            line(&decision.dominated_before)
        );
        for part in &decision.evidence {
            let _ = writeln!(text, "  - {}", line(part));
        }
    }
    text
}
