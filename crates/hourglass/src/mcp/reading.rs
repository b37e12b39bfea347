//! The tools that only read: records, the ranking of a find, comparisons, the ledger, the ladder, the wiring, the documents.
//! Not here: measuring (`running.rs`), and the analyses themselves; those are verbs, asked through a child process.

use std::time::Duration;

use anyhow::Result;
use record::EvidenceRef;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::child::{self, Ended};
use super::explain;
use super::page::{Page, outline};
use super::tool::{Answer, Job, Tool, Workplace};
use crate::failure::usage;
use crate::records::{self, Filter, Selected};

/// An analysis takes moments; a minute is for a machine that is busy.
const LIMIT: Duration = Duration::from_secs(60);
/// Sections of the documents in one answer.
const SECTIONS: usize = 3;

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            [
                "list_records",
                "List records",
                "Records of measurements, newest first: evidence id, time, kind, model, work, checkpoints, and whether each may \
                 be relied on (complete, incomplete, void, unknown_kind, unreadable, with the reason).",
            ],
            false,
            list_records,
        ),
        Tool::new(
            [
                "show_record",
                "Show a record",
                "One record: the table its command prints, its workload, conditions and checks, and its JSON. Large parts are \
                 named with a JSON pointer in place of being shown; ask again with that pointer. Lists come in pages.",
            ],
            false,
            show_record,
        ),
        Tool::new(
            [
                "find_result",
                "What to change next",
                "The ranking of a find record, the newest unless one is named: candidates by the time that a request could gain \
                 at most, each with its mechanism, the cheapest test that could falsify it, and a command to try.",
            ],
            false,
            find_result,
        ),
        Tool::new(
            [
                "compare",
                "Compare two sides",
                "What two sides of one workload say about a change, view by view, and which outcome it is: the target fell and \
                 the request got faster, and how much arrived; it fell and the request did not move; the request got slower, \
                 and which group grew. Refuses sides whose workloads differ, naming the fields.",
            ],
            false,
            compare,
        ),
        Tool::new(
            [
                "ledger_list",
                "Decisions",
                "Every decision in the repository's ledger and how it came out: kept, rejected, inconclusive, conditional, open.",
            ],
            false,
            ledger_list,
        ),
        Tool::new(
            [
                "ledger_show",
                "One decision",
                "One decision of the ledger: what dominated, the one change, its rules, every number that judged it, its notes.",
            ],
            false,
            ledger_show,
        ),
        Tool::new(
            [
                "ledger_verify",
                "Verify the ledger",
                "Checks the ledger's chain of hashes and the records that it rests on; says what was changed, moved or is missing.",
            ],
            false,
            ledger_verify,
        ),
        Tool::new(
            [
                "ladder",
                "Checkpoints",
                "The ladder of checkpoints: parent, the one change, the hypothesis that could fail, place in the source; or, \
                 with diff, how a checkpoint's programs differ from its parent's, call by call.",
            ],
            false,
            ladder,
        ),
        Tool::new(
            [
                "wiring",
                "Wiring",
                "Which kernel every call of a checkpoint's passes gets on this machine, and which kernels no call reaches, from \
                 shapes alone; nothing is loaded or run.",
            ],
            false,
            wiring,
        ),
        Tool::new(
            [
                "explain",
                "Explain",
                "What a metric, method, verdict or command means, how it is made and what it cannot show, from the documents; \
                 without a topic, the headings that there are.",
            ],
            false,
            explain,
        ),
    ]
}

/// `{"id", "schema", "sha256", "file"}` of what an answer rests on.
pub(super) fn evidence(reference: &EvidenceRef) -> Value {
    json!({"id": reference.id(), "schema": reference.schema, "sha256": reference.sha256(), "file": reference.file})
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListRecords {
    /// A kind, e.g. bench or find/2.
    kind: Option<String>,
    /// Records about this checkpoint.
    checkpoint: Option<String>,
    /// Not older: 12h, 7d, or a date such as 2026-11-29.
    since: Option<String>,
    #[serde(default)]
    page: Page,
}

fn list_records(work: &Workplace, arguments: ListRecords, _: &Job) -> Result<Answer> {
    let ListRecords { kind, checkpoint, since, page } = arguments;
    let filter = Filter::new(kind.as_deref(), checkpoint.as_deref(), since.as_deref(), "since")?;
    let entries = records::entries(&work.place.store, &filter);
    let rows: Vec<Value> = entries.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    let ids: String = entries.iter().map(|entry| entry.id().to_owned() + &entry.path.to_string_lossy()).collect();
    let page = page.of(&rows, &format!("records {ids}"))?;
    let shown = page.range();
    let mut text = records::list_text(&entries[shown], work.place.store.root());
    text += &page.words();
    let mut answer = Map::from_iter([("folder".to_owned(), json!(work.place.store.root()))]);
    page.put("records", &mut answer);
    Ok(Answer::new(text, Value::Object(answer)))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShowRecord {
    /// An evidence id (at least four of its digits), or a path below the folder of records or the repository.
    record: String,
    /// A JSON pointer to the part that is wanted, e.g. /samples or /ranking/candidates/0.
    pointer: Option<String>,
    #[serde(default)]
    page: Page,
}

fn show_record(work: &Workplace, arguments: ShowRecord, _: &Job) -> Result<Answer> {
    let selected = work.place.record(&arguments.record)?;
    let value: Value = serde_json::from_slice(&selected.bytes)?;
    let mut answer = Map::from_iter([
        ("evidence".to_owned(), json!([evidence(&selected.evidence)])),
        ("entry".to_owned(), serde_json::to_value(&selected.entry)?),
    ]);
    let text = match &arguments.pointer {
        None => {
            answer.insert("record".to_owned(), outline(&value, "", arguments.page.bytes()?));
            records::show_text(&selected)?
        }
        Some(pointer) => {
            let title = format!("{} record {}, {pointer}\n", selected.evidence.schema, selected.evidence.id());
            title + &part(&value, pointer, selected.evidence.sha256(), &arguments.page, &mut answer)?
        }
    };
    Ok(Answer::new(text, Value::Object(answer)))
}

/// Puts the part of `value` at `pointer` into the answer, a list as a page; gives it as text too.
fn part(value: &Value, pointer: &str, of: &str, page: &Page, answer: &mut Map<String, Value>) -> Result<String> {
    let found = value.pointer(pointer).ok_or_else(|| missing(value, pointer))?;
    answer.insert("pointer".to_owned(), pointer.into());
    if let Value::Array(items) = found {
        let rows = page.of(items, &format!("{of}{pointer}"))?;
        let text = format!("{}\n{}", Value::Array(rows.rows.clone()), rows.words());
        rows.put("items", answer);
        return Ok(text);
    }
    let shown = outline(found, pointer, page.bytes()?);
    let text = format!("{shown}\n");
    answer.insert("value".to_owned(), shown);
    Ok(text)
}

fn missing(value: &Value, pointer: &str) -> anyhow::Error {
    let shown: String = pointer.chars().take(120).collect();
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return usage(format!("pointer '{shown}': a JSON pointer begins with '/', e.g. /samples/0"));
    }
    // The longest beginning that leads somewhere.
    let mut known = pointer;
    while let Some(at) = known.rfind('/') {
        known = &known[..at];
        if let Some(found) = value.pointer(known) {
            let there = match found {
                Value::Object(fields) => fields.keys().take(40).cloned().collect::<Vec<_>>().join(", "),
                Value::Array(items) => format!("{} items, from 0", items.len()),
                _ => "a single value".to_owned(),
            };
            let place = if known.is_empty() { "the record" } else { known };
            return usage(format!("pointer '{shown}': nothing is there; {place} has {there}"));
        }
    }
    usage(format!("pointer '{shown}': nothing is there"))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FindResult {
    /// A find record: an evidence id or a path. The newest one unless given.
    record: Option<String>,
    #[serde(default)]
    page: Page,
}

fn find_result(work: &Workplace, arguments: FindResult, _: &Job) -> Result<Answer> {
    let selected = match &arguments.record {
        Some(name) => work.place.record(name)?,
        None => newest_find(work)?,
    };
    if selected.entry.kind() != "find" {
        return Err(usage(format!(
            "{} is a {} record; name a find record, or leave `record` out for the newest",
            selected.evidence.id(),
            selected.evidence.schema
        )));
    }
    let value: Value = serde_json::from_slice(&selected.bytes)?;
    let budget = arguments.page.bytes()? / 2;
    let mut answer = Map::from_iter([
        ("evidence".to_owned(), json!([evidence(&selected.evidence)])),
        ("state".to_owned(), serde_json::to_value(selected.entry.state)?),
    ]);
    answer.extend(selected.entry.reason.clone().map(|reason| ("reason".to_owned(), reason.into())));
    if let Some(Value::Object(ranking)) = value.get("ranking") {
        let mut rest = ranking.clone();
        let candidates = rest.remove("candidates").unwrap_or_else(|| json!([]));
        answer.insert("ranking".to_owned(), outline(&Value::Object(rest), "/ranking", budget));
        if let Value::Array(items) = &candidates {
            arguments.page.of(items, selected.evidence.sha256())?.put("candidates", &mut answer);
        }
    } else {
        // An older find, or one that could not rank.
        answer.insert("record".to_owned(), outline(&value, "", budget));
    }
    Ok(Answer::new(records::show_text(&selected)?, Value::Object(answer)))
}

fn newest_find(work: &Workplace) -> Result<Selected> {
    let filter = Filter::new(Some("find"), None, None, "since")?;
    let entries = records::entries(&work.place.store, &filter);
    let newest = entries.iter().find(|entry| entry.kind() == "find");
    match newest.and_then(|entry| entry.sha256.known()) {
        Some(digest) => work.place.record(digest),
        None => Err(usage(format!(
            "there is no find record in {}; `hourglass find`, or run_find where it is allowed, makes one",
            work.place.store.root().display()
        ))),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Compare {
    /// The side before the change: an evidence id, or a path of a record or a folder of records. With #NAME after it only
    /// what is of that checkpoint or arm: two arms of one bench record are the best evidence.
    before: String,
    /// The side after it, in the same form.
    after: String,
    /// The group of operators that the change was aimed at; the largest unless given.
    target: Option<String>,
    /// Conditions that are asked of the comparison, e.g. 'decode.ratio > 97 %'; exit_code is 1 unless all hold.
    gates: Option<Vec<String>>,
    /// A JSON pointer into the record.
    pointer: Option<String>,
    #[serde(default)]
    page: Page,
}

fn compare(work: &Workplace, arguments: Compare, job: &Job) -> Result<Answer> {
    let mut command = vec!["compare".to_owned()];
    command.extend(arguments.target.map(|target| format!("--target={target}")));
    command.extend(arguments.gates.iter().flatten().map(|gate| format!("--gate={gate}")));
    command.extend(["--".to_owned(), side(work, &arguments.before)?, side(work, &arguments.after)?]);
    ask(command, arguments.pointer.as_deref(), &arguments.page, job)
}

/// A side as the verb takes it: `PATH` or `PATH#NAME`.
fn side(work: &Workplace, given: &str) -> Result<String> {
    let (name, of) = match given.split_once('#') {
        Some((name, of)) => (name, format!("#{of}")),
        None => (given, String::new()),
    };
    let folder = work.place.inside(name).ok().filter(|path| path.is_dir());
    let path = match folder {
        Some(folder) => folder,
        // Absolute, so that it is no flag and does not depend on the working directory.
        None => work.place.record(name)?.path.canonicalize()?,
    };
    Ok(format!("{}{of}", path.display()))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LedgerAll {
    #[serde(default)]
    page: Page,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LedgerOne {
    /// The id of the decision, or its beginning.
    id: String,
    #[serde(default)]
    page: Page,
}

fn ledger_list(work: &Workplace, arguments: LedgerAll, job: &Job) -> Result<Answer> {
    ask(decide(work, &["list"]), None, &arguments.page, job)
}

fn ledger_show(work: &Workplace, arguments: LedgerOne, job: &Job) -> Result<Answer> {
    ask(decide(work, &["show", "--", &arguments.id]), None, &arguments.page, job)
}

fn ledger_verify(work: &Workplace, arguments: LedgerAll, job: &Job) -> Result<Answer> {
    ask(decide(work, &["verify"]), None, &arguments.page, job)
}

fn decide(work: &Workplace, words: &[&str]) -> Vec<String> {
    let folder = format!("--dir={}", work.place.store.root().display());
    ["decide", &folder].into_iter().chain(words.iter().copied()).map(str::to_owned).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Ladder {
    /// Compare this checkpoint's programs with its parent's; `fast` is the newest.
    diff: Option<String>,
    #[serde(default)]
    page: Page,
}

fn ladder(_: &Workplace, arguments: Ladder, job: &Job) -> Result<Answer> {
    let mut command = vec!["ladder".to_owned()];
    command.extend(arguments.diff.map(|diff| format!("--diff={diff}")));
    ask(command, None, &arguments.page, job)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WiringArguments {
    /// A checkpoint of the ladder; the newest unless given.
    checkpoint: Option<String>,
    /// synthetic:NAME, a name in the local hub cache, or a path below the repository.
    model: Option<String>,
    /// Rows of the prefill, and the context that the decode step reaches; 128 unless given.
    input_len: Option<u32>,
    /// A JSON pointer into the record, e.g. /unreached or /passes/0/calls.
    pointer: Option<String>,
    #[serde(default)]
    page: Page,
}

fn wiring(work: &Workplace, arguments: WiringArguments, job: &Job) -> Result<Answer> {
    let mut command = vec!["wiring".to_owned(), "--offline".to_owned()];
    if let Some(model) = &arguments.model {
        command.push(format!("--model={}", work.place.model(model)?));
    }
    command.extend(arguments.input_len.map(|tokens| format!("--input-len={tokens}")));
    if let Some(checkpoint) = arguments.checkpoint {
        command.extend(["--".to_owned(), checkpoint]);
    }
    ask(command, arguments.pointer.as_deref(), &arguments.page, job)
}

/// Asks a verb, in words and as JSON. Exit code 1 with an answer is an answer: a check in it failed.
fn ask(mut command: Vec<String>, pointer: Option<&str>, page: &Page, job: &Job) -> Result<Answer> {
    let text = answered(&command, job)?;
    command.insert(1, "--json".to_owned());
    let json = answered(&command, job)?;
    let value: Value = serde_json::from_str(&json.stdout).map_err(|why| {
        anyhow::anyhow!("{} printed no JSON ({why}); this is a defect of hourglass", command.join(" "))
    })?;
    let mut answer = Map::from_iter([
        ("command".to_owned(), json!(format!("hourglass {}", command.join(" ")))),
        ("exit_code".to_owned(), json!(json.code)),
        ("evidence".to_owned(), evidence_of(&value, &json.stdout)),
    ]);
    let text = match pointer {
        None => {
            answer.insert("answer".to_owned(), outline(&value, "", page.bytes()?));
            text.stdout + &text.stderr
        }
        Some(pointer) => part(&value, pointer, &record::file_digest(json.stdout.as_bytes()), page, &mut answer)?,
    };
    Ok(Answer::new(text, Value::Object(answer)))
}

/// What an answer that is not kept rests on: the records that it refers to.
fn evidence_of(value: &Value, text: &str) -> Value {
    let digests = records::references(value);
    if digests.is_empty() {
        let id = &record::file_digest(text.as_bytes())[..record::EVIDENCE_ID_DIGITS];
        return json!({"unavailable": "it was computed now from the program itself and is not kept in a file",
            "how_to_get": "run the command with --json-output FILE where it has that flag", "answer_digest": id});
    }
    let ids = digests.into_iter().map(|digest| json!({"id": &digest[..record::EVIDENCE_ID_DIGITS], "sha256": digest}));
    ids.collect()
}

fn answered(command: &[String], job: &Job) -> Result<child::Finished> {
    let finished = child::run(command, &command[0], LIMIT, job)?;
    match (finished.ended, finished.code) {
        (Ended::Unwanted, _) => Err(anyhow::anyhow!("cancelled")),
        (Ended::TimeLimit, _) => {
            Err(anyhow::anyhow!("{} took longer than {} s; ask for less", command.join(" "), LIMIT.as_secs()))
        }
        (Ended::ByItself, Some(0)) => Ok(finished),
        (Ended::ByItself, Some(1)) if !finished.stdout.trim().is_empty() => Ok(finished),
        (Ended::ByItself, _) => Err(anyhow::anyhow!("{}", finished.complaint())),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Explain {
    /// Words to look for, e.g. `paired ratio interval` or `coverage`.
    topic: Option<String>,
    #[serde(default)]
    page: Page,
}

fn explain(_: &Workplace, arguments: Explain, _: &Job) -> Result<Answer> {
    let headings = || explain::sections().into_iter().map(|section| section.title).collect::<Vec<_>>();
    let sections = match &arguments.topic {
        None => explain::sections(),
        Some(topic) => explain::about(topic),
    };
    if sections.is_empty() {
        let shown: String = arguments.topic.unwrap_or_default().chars().take(80).collect();
        return Err(usage(format!(
            "topic '{shown}': no word of it is in the documents; their headings: {}",
            headings().join("; ")
        )));
    }
    let found = sections.iter().map(|section| json!(section.title)).collect::<Vec<_>>();
    let mut answer = Map::new();
    let mut text = String::new();
    if arguments.topic.is_some() {
        let bodies =
            sections.iter().take(SECTIONS).map(|section| json!({"title": section.title, "text": section.body}));
        let bodies: Vec<Value> = bodies.collect();
        answer.insert("sections".to_owned(), outline(&Value::Array(bodies), "", arguments.page.bytes()?));
        for section in sections.iter().take(SECTIONS) {
            text += &format!("[{}]\n{}\n", section.title, section.body.trim_end());
        }
    }
    let rows = arguments.page.of(&found, arguments.topic.as_deref().unwrap_or(""))?;
    if arguments.topic.is_none() {
        text += &rows.rows.iter().filter_map(Value::as_str).fold(String::new(), |text, title| text + title + "\n");
        text += &rows.words();
    }
    rows.put("titles", &mut answer);
    let unavailable =
        json!({"unavailable": "documents are no measurement", "how_to_get": "list_records has measurements"});
    answer.insert("evidence".to_owned(), unavailable);
    Ok(Answer::new(text, Value::Object(answer)))
}
