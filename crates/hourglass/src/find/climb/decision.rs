//! The decision of a step, by the verb `decide`: opened before the clock of both runs, closed on what it saw.
//! Not here: rules, verdicts and the ledger, which are that verb's.

use std::path::Path;

use record::find::{RungText, Seen};
use record::{ClimbRow, FindRecord, Known};
use serde_json::Value;

use crate::child;

/// A rung is kept if the clock of both sees that the request got faster, and rejected if slower.
const ACCEPT: &str = "request.verdict == faster";
const REJECT: &str = "request.verdict == slower";

fn opened_file(stem: &str) -> String {
    format!("{stem}-decision-opened.json")
}

fn closed_file(stem: &str) -> String {
    format!("{stem}-decision-closed.json")
}

/// Before a step is clocked again: a decision that was closed on another clock stays in the ledger, and this one gets its own.
pub(super) fn forget_closed(directory: &Path, stem: &str) {
    let closed = directory.join(closed_file(stem));
    if closed.exists() {
        let _ = std::fs::remove_file(closed);
        let _ = std::fs::remove_file(directory.join(opened_file(stem)));
    }
}

/// The id of an opened decision, or why there is none.
pub(super) type Opened = Result<String, String>;

/// Writes the three sentences down. A step that was opened by an earlier run of the climb stays opened.
pub(super) fn open(directory: &Path, stem: &str, parent: &str, rung: &RungText, find: &Seen<FindRecord>) -> Opened {
    let dominates = find.record.ranking.known().map_or("not known", |ranking| ranking.verdict.as_str());
    let ranking = directory.join(&find.evidence.file);
    // The request's own record: a ranking is no measurement of it.
    let clock = ranking.with_file_name("clock.json").to_string_lossy().into_owned();
    let ranking = ranking.to_string_lossy().into_owned();
    let words = [
        "decide",
        "open",
        "--dominates",
        dominates,
        "--change",
        &rung.change,
        "--expect",
        &rung.hypothesis,
        "--accept",
        ACCEPT,
        "--reject",
        REJECT,
        "--baseline",
        parent,
        "--candidate",
        &rung.name,
        "--workload-of",
        &clock,
        "--evidence",
        &ranking,
        "--json",
    ];
    let entry = ask(directory, &opened_file(stem), find.evidence.sha256(), &words)?;
    id_of(&entry).ok_or_else(|| "`decide open` printed no id".to_owned())
}

/// Lets the rules judge the step's clock and fills in what they say.
pub(super) fn close(directory: &Path, stem: &str, opened: Opened, row: &mut ClimbRow) {
    let closed = opened.and_then(|id| {
        let bench = directory.join(&row.bench.file).to_string_lossy().into_owned();
        let words = ["decide", "close", &id, &bench, "--json"];
        let entry = ask(directory, &closed_file(stem), row.bench.sha256(), &words)?;
        let verdict = entry.pointer("/body/verdict").and_then(Value::as_str);
        let verdict = verdict.ok_or("`decide close` printed no verdict")?.to_owned();
        Ok((id, verdict))
    });
    match closed {
        Ok((id, verdict)) => (row.decision_id, row.decision) = (Known::Is(id), Known::Is(verdict)),
        Err(why) => {
            row.decision = Known::unavailable(why.as_str(), "`hourglass decide open`, then `hourglass decide close`");
            row.decision_id = Known::unavailable(why, "`hourglass decide open`");
        }
    }
}

fn id_of(entry: &Value) -> Option<String> {
    Some(entry.get("id")?.as_str()?.to_owned())
}

/// Runs the command, its answer kept in `file`; an answer that is there already, and rests on `evidence`, is taken.
fn ask(directory: &Path, file: &str, evidence: &str, words: &[&str]) -> Result<Value, String> {
    let path = directory.join(file);
    let kept = || -> Option<Value> {
        let entry: Value = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
        let rests = entry.pointer("/body/evidence")?.as_array()?.iter().any(|one| one["sha256"] == evidence);
        rests.then_some(entry)
    };
    if let Some(entry) = kept() {
        return Ok(entry);
    }
    // Damaged, or about a measurement that was made again.
    let _ = std::fs::remove_file(&path);
    if !crate::has_verb(words[0]) {
        return Err(format!("this build has no verb '{}'", words[0]));
    }
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let ended = child::run(&words, Some(&path), &mut || {}).map_err(|error| error.to_string())?;
    let answer = kept();
    if answer.is_none() {
        // Not kept: the next run of the climb asks again.
        let _ = std::fs::remove_file(&path);
    }
    answer.ok_or(ended.last_words)
}
