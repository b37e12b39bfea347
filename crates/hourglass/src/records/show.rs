//! `records show`: one record for a person: what it is, on what it rests, and the table that its verb prints.
//! Not here: those tables, which belong to the verbs.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use record::bench::BenchRecord;
use record::{
    CaptureRecord, Check, ClimbRecord, ComparisonRecord, FindRecord, Record, ReplayComparison, ReplayRecord,
    ShapeStudy, TimelineRecord, Verified, WiringPlan, read, verify,
};
use serde_json::Value;

use super::entry::State;
use super::facts::facts;
use super::list::cut;
use super::select::Selected;
use crate::failure::usage;
use crate::prose::paragraph;
use crate::{bench, compare, find, reduce, replay, timeline, wiring};

/// Characters of a value that are shown.
const VALUE: usize = 300;
/// Facts of a record without a table that are shown; the record has all.
const FACTS: usize = 60;

/// Everything about one record, as text of at most 100 columns.
///
/// # Errors
/// A file that is no whole record of a known kind.
pub(crate) fn text(selected: &Selected) -> Result<String> {
    let name = selected.path.display().to_string();
    let value: Value = serde_json::from_slice(&selected.bytes).map_err(|why| usage(format!("{name}: {why}")))?;
    let mut text = head(selected, &value);
    match verify(&name, &selected.bytes) {
        Ok(Verified { checks, .. }) => text += &checked(&checks),
        // It can still be looked at, with the warning above.
        Err(why) => text += &paragraph("  NOT VERIFIED: ", &why.to_string(), "    "),
    }
    text.push('\n');
    text += &table(selected.evidence.schema.as_str(), &name, &selected.bytes).unwrap_or_else(|| listed(&value));
    Ok(text)
}

/// The table of the record's own verb, where the record alone is enough for it.
pub(crate) fn table(schema: &str, name: &str, bytes: &[u8]) -> Option<String> {
    fn of<R: Record>(name: &str, bytes: &[u8], show: impl Fn(&R) -> String) -> Option<String> {
        read::<R>(name, bytes).ok().map(|record| show(&record))
    }
    match schema {
        BenchRecord::SCHEMA => of(name, bytes, |record| bench::table::text(record, false, true)),
        CaptureRecord::SCHEMA => of(name, bytes, reduce::table::body),
        ClimbRecord::SCHEMA => of(name, bytes, |record| find::climb::table::text(record, folder(name))),
        ComparisonRecord::SCHEMA => of(name, bytes, compare::table::text),
        FindRecord::SCHEMA => of(name, bytes, |record| find::table::text(record, folder(name))),
        ReplayRecord::SCHEMA => of(name, bytes, replay::table::record),
        ReplayComparison::SCHEMA => of(name, bytes, replay::table::comparison),
        ShapeStudy::SCHEMA => of(name, bytes, replay::table::study),
        TimelineRecord::SCHEMA => of(name, bytes, timeline::table::body),
        WiringPlan::SCHEMA => of(name, bytes, |record| wiring::table::text(record, false)),
        _ => None,
    }
}

/// Where the records beside it are.
fn folder(name: &str) -> &Path {
    Path::new(name).parent().unwrap_or(Path::new("."))
}

fn head(selected: &Selected, value: &Value) -> String {
    let entry = &selected.entry;
    let mut text = format!("{} record {}: {}\n", selected.evidence.schema, selected.evidence.id(), entry.state.words());
    if let (State::Incomplete | State::Void | State::UnknownKind, Some(reason)) = (entry.state, &entry.reason) {
        text += &paragraph("  because:    ", reason, "              ");
    }
    let mut row = |name: &str, words: String| {
        if !words.is_empty() {
            text += &paragraph(&format!("  {name:<12}"), &words, "              ");
        }
    };
    row("file:", selected.path.display().to_string());
    row("sha256:", selected.evidence.sha256().to_owned());
    row("created:", entry.created.known().cloned().unwrap_or_default());
    if !entry.checkpoints.is_empty() {
        row("checkpoint:", entry.checkpoints.join(", "));
    }
    for (name, key) in [("workload:", "workload"), ("conditions:", "conditions")] {
        let id = value.get(format!("{key}_id")).and_then(Value::as_str);
        if let Some(fields) = value.get(key) {
            let id = id.map_or_else(String::new, |id| format!("id {}; ", id.get(..12).unwrap_or(id)));
            row(name, id + &inline(fields));
        }
    }
    text
}

fn checked(checks: &[Check]) -> String {
    let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
    let mut text = String::new();
    let _ = writeln!(text, "  {:<12}{} of {} passed", "checks:", checks.len() - failed.len(), checks.len());
    for check in failed {
        let line = format!("{}: expected {}, found {}", check.name, check.expected, check.found);
        text += &paragraph("    FAILED: ", &line, "      ");
    }
    text
}

/// The scalar fields of an object in one line; lists by their length.
fn inline(fields: &Value) -> String {
    let Value::Object(fields) = fields else { return String::new() };
    let mut words = Vec::new();
    for (key, value) in fields {
        match value {
            Value::String(text) if text.len() == 64 => words.push(format!("{key} {}", text.get(..12).unwrap_or(text))),
            Value::String(text) => words.push(format!("{key} {text}")),
            Value::Array(items) => words.push(format!("{key}: {} items", items.len())),
            Value::Object(fields) if fields.contains_key("unavailable") => words.push(format!("{key} unavailable")),
            Value::Object(_) => words.push(format!("{key} ({})", inline(value))),
            other => words.push(format!("{key} {other}")),
        }
    }
    words.join(", ")
}

fn listed(value: &Value) -> String {
    let facts = facts(value);
    let mut text = String::new();
    for fact in facts.iter().take(FACTS) {
        let words = format!("{} {}", cut(&fact.value, VALUE), fact.unit);
        text += &paragraph(&format!("{}: ", fact.name), &words, "    ");
    }
    if facts.len() > FACTS {
        let _ = writeln!(text, "... and {} more; --json has all.", facts.len() - FACTS);
    }
    text
}
