//! `decide list` and `decide show`: the ledger for people, at most 100 columns.
//! Not here: the short form for other tools (`transfer.rs`).

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use record::gate::RuleAnswer;
use record::ledger::{Body, Closing, Entry, Ledger, Opening};
use serde_json::json;

use super::{Context, entry_named};
use crate::compare::table::sentence_case;
use crate::figures::{percent, show};
use crate::output;
use crate::prose::paragraph;

/// The first characters of a text that may come from elsewhere.
fn first(text: &str, count: usize) -> String {
    text.chars().take(count).collect()
}

pub(super) fn list(context: &Context) -> Result<ExitCode> {
    let ledger = context.ledger()?;
    let rows: Vec<(&Entry, String, &str)> = ledger.entries().iter().filter_map(|entry| row(&ledger, entry)).collect();
    if context.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(entry, verdict, change)| {
                json!({ "id": entry.id, "created": entry.created, "verdict": verdict, "change": change })
            })
            .collect();
        output::print_json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    if rows.is_empty() {
        text += "No decision yet: `hourglass decide open` begins one.\n";
    }
    for (entry, verdict, change) in rows {
        let lead = format!("{:<11} {:<11} {:<13} ", entry.id, first(&entry.created, 10), verdict);
        text += &paragraph(&lead, change, &" ".repeat(38));
    }
    output::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn row<'l>(ledger: &Ledger, entry: &'l Entry) -> Option<(&'l Entry, String, &'l str)> {
    match &entry.body {
        Body::Open(opening) => {
            let verdict = ledger.closing(&entry.id).map_or("open", |(_, closing)| closing.verdict.name());
            Some((entry, verdict.to_owned(), opening.change.as_str()))
        }
        Body::Import(written) => Some((entry, format!("{} *", written.kept), written.change.as_str())),
        _ => None,
    }
}

pub(super) fn one(context: &Context, id: &str) -> Result<ExitCode> {
    let ledger = context.ledger()?;
    let entry = entry_named(&ledger, id)?;
    let closed = ledger.closing(&entry.id);
    if context.json {
        let notes: Vec<_> = ledger.notes(&entry.id).map(|(entry, _)| entry).collect();
        let closed = closed.map(|(entry, _)| entry);
        let mut shown = json!({ "entry": entry, "notes": notes });
        if let Some(closed) = closed {
            shown["closed"] = serde_json::to_value(closed)?;
        }
        output::print_json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = match (&entry.body, &closed) {
        (Body::Open(_), Some(_)) => "opened, and closed since",
        (body, _) => body.name(),
    };
    let mut text = format!("{} ({state}, {})\n", entry.id, entry.created);
    match &entry.body {
        Body::Open(opening) => opened(&mut text, opening),
        Body::Close(own) => closing(&mut text, own),
        Body::Note(note) => text += &paragraph(&format!("About {}: ", note.about), &note.text, "  "),
        Body::Import(written) => {
            text += &paragraph("Dominated before: ", &written.dominated_before, "  ");
            text += &paragraph("Change: ", &written.change, "  ");
            for part in &written.evidence {
                text += &paragraph("Evidence: ", part, "  ");
            }
            text += &paragraph(
                "",
                &format!("{} (written down elsewhere; no rules were made beforehand)", written.kept),
                "  ",
            );
        }
        Body::Merge(merge) => {
            for head in &merge.heads {
                let _ = writeln!(text, "Merges the branch that ends with {}", first(head, 16));
            }
        }
    }
    match closed {
        Some((entry, own)) => {
            let _ = writeln!(text, "\nClosed {}:", entry.created);
            closing(&mut text, own);
        }
        None if matches!(entry.body, Body::Open(_)) => {
            text += &paragraph(
                "",
                &format!("Still open: `hourglass decide close {} RECORD...` judges it.", entry.id),
                "  ",
            );
        }
        None => {}
    }
    for (entry, words) in ledger.notes(&entry.id) {
        text += &paragraph(&format!("Note, {}: ", entry.created), words, "  ");
    }
    output::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn opened(text: &mut String, opening: &Opening) {
    *text += &paragraph("Dominates: ", &opening.dominates, "  ");
    let of = format!("{} ({} to {})", opening.change, opening.baseline, opening.candidate);
    *text += &paragraph("Change: ", &of, "  ");
    if let Some(expect) = &opening.expect {
        *text += &paragraph("Expected: ", expect, "  ");
    }
    if let Some(target) = &opening.target {
        *text += &paragraph("Target: ", target, "  ");
    }
    for rule in &opening.accept {
        *text += &paragraph("Keep only if: ", rule, "  ");
    }
    for rule in &opening.reject {
        *text += &paragraph("Reject if: ", rule, "  ");
    }
    for opened in &opening.workloads {
        let workload = &opened.workload;
        let words = format!(
            "{}, {} prompt tokens, {} generated ({})",
            workload.model,
            workload.context_tokens,
            workload.output_tokens,
            first(&opened.workload_id, 12)
        );
        *text += &paragraph("Workload: ", &words, "  ");
    }
    for evidence in &opening.evidence {
        *text += &paragraph("Evidence: ", &format!("{} {} ({})", evidence.schema, evidence.id(), evidence.file), "  ");
    }
}

/// A verdict with everything that it rests on.
pub(super) fn closing(text: &mut String, closing: &Closing) {
    *text += &paragraph("", &sentence_case(&closing.sentence), "  ");
    for shape in &closing.shapes {
        let _ = writeln!(text, "At {}: {}", shape.shape, shape.verdict.name());
        let answers = |text: &mut String, lead: &str, answers: &[RuleAnswer]| {
            for answer in answers {
                *text += &paragraph(lead, &answer.sentence, "    ");
            }
        };
        answers(text, "  keep only if ", &shape.accept);
        answers(text, "  reject if ", &shape.reject);
        *text += &paragraph("  outcome: ", &shape.outcome_sentence, "    ");
        let words = match shape.arrived.missing() {
            None => format!("{} of what the replay saved arrived in the request", show(&shape.arrived, percent)),
            Some(missing) => format!("how much of the replay's saving arrived is not known: {}", missing.unavailable),
        };
        *text += &paragraph("  arrived: ", &words, "    ");
        *text += &paragraph(
            "  memory: ",
            &format!("peak allocation {} of the baseline's", show(&shape.memory, percent)),
            "    ",
        );
    }
    if let Some(reason) = &closing.reason {
        *text += &paragraph("Reason: ", reason, "  ");
    }
    for evidence in &closing.evidence {
        *text += &paragraph("Evidence: ", &format!("{} {} ({})", evidence.schema, evidence.id(), evidence.file), "  ");
    }
}
