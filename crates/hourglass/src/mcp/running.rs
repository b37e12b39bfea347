//! The tools that measure: each is one run of a verb as a child process, with a time limit, whose records are kept.
//! Not here: measuring itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::child::{self, Ended, Finished};
use super::reading::evidence;
use super::tool::{Answer, Job, Tool, Workplace};
use crate::failure::usage;
use crate::records::Entry;
use crate::store::records_in;

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            [
                "run_bench",
                "Clock requests",
                "Clocks several variants (checkpoints of the ladder) in one alternated run, each sample in a fresh process, with \
                 this machine's noise; answers with the table and the evidence id of the record. Takes minutes.",
            ],
            true,
            run_bench,
        ),
        Tool::new(
            [
                "run_find",
                "Find the next bottleneck",
                "Measures one request in every view and ranks what could be gained; answers with the ranking and the evidence \
                 ids of all records. Takes up to five minutes, about one with quick.",
            ],
            true,
            run_find,
        ),
        Tool::new(
            [
                "run_replay",
                "Replay operators",
                "Replays the operators of a pass, group by group, on real weights; answers with each group's time beside the \
                 least that this machine's ceilings allow, and the evidence id of the record.",
            ],
            true,
            run_replay,
        ),
        Tool::new(
            [
                "run_timeline",
                "Record a timeline",
                "Runs one request and records what every worker did, waited for and when, on one clock; answers with the summary \
                 and the evidence id of the record.",
            ],
            true,
            run_timeline,
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunBench {
    /// Checkpoints of the ladder, the first is the control; also A/A, the control again. selected and fast unless given.
    variants: Option<Vec<String>>,
    /// synthetic:NAME, a name in the local hub cache, or a path below the repository; synthetic:qwen3-0.6b unless given.
    model: Option<String>,
    /// Prompt tokens.
    input_len: Option<u32>,
    /// Tokens to generate.
    output_len: Option<u32>,
    /// Fresh processes per variant, an even number.
    repeats: Option<u32>,
    /// Requests in each process before the measured one.
    warmup: Option<u32>,
    /// Seconds after which it is ended; no more than the server allows.
    time_limit_s: Option<u32>,
}

fn run_bench(work: &Workplace, arguments: RunBench, job: &Job) -> Result<Answer> {
    let mut flags = shared(work, &arguments.model, arguments.input_len, arguments.output_len)?;
    for variant in arguments.variants.iter().flatten() {
        if variant.starts_with("endpoint:") {
            return Err(usage(format!(
                "variants {variant}: this tool reaches no network; run `hourglass bench` yourself"
            )));
        }
        flags.push(format!("--variant={variant}"));
    }
    flags.extend(number("repeats", arguments.repeats));
    flags.extend(number("warmup", arguments.warmup));
    measure(work, "bench", flags, arguments.time_limit_s, job)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunFind {
    /// A checkpoint of the ladder; the newest unless given.
    checkpoint: Option<String>,
    /// synthetic:NAME, a name in the local hub cache, or a path below the repository; synthetic:qwen3-0.6b unless given.
    model: Option<String>,
    /// Prompt tokens.
    input_len: Option<u32>,
    /// Tokens to generate.
    output_len: Option<u32>,
    /// Seconds after which it is ended; no more than the server allows.
    time_limit_s: Option<u32>,
}

fn run_find(work: &Workplace, arguments: RunFind, job: &Job) -> Result<Answer> {
    let mut flags = shared(work, &arguments.model, arguments.input_len, arguments.output_len)?;
    flags.extend(text("checkpoint", &arguments.checkpoint));
    measure(work, "find", flags, arguments.time_limit_s, job)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunReplay {
    /// CHECKPOINT:PHASE:TOKENS, e.g. fast:decode:512.
    cases: Option<Vec<String>>,
    /// synthetic:NAME, a name in the local hub cache, or a path below the repository; synthetic:qwen3-0.6b unless given.
    model: Option<String>,
    /// Timed rounds.
    iterations: Option<u32>,
    /// Seconds after which it is ended; no more than the server allows.
    time_limit_s: Option<u32>,
}

fn run_replay(work: &Workplace, arguments: RunReplay, job: &Job) -> Result<Answer> {
    let mut flags = shared(work, &arguments.model, None, None)?;
    flags.extend(arguments.cases.iter().flatten().map(|case| format!("--case={case}")));
    flags.extend(number("iterations", arguments.iterations));
    measure(work, "replay", flags, arguments.time_limit_s, job)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunTimeline {
    /// A checkpoint of the ladder; the newest unless given.
    checkpoint: Option<String>,
    /// synthetic:NAME, a name in the local hub cache, or a path below the repository; synthetic:qwen3-0.6b unless given.
    model: Option<String>,
    /// Prompt tokens.
    input_len: Option<u32>,
    /// Tokens to generate.
    output_len: Option<u32>,
    /// Seconds after which it is ended; no more than the server allows.
    time_limit_s: Option<u32>,
}

fn run_timeline(work: &Workplace, arguments: RunTimeline, job: &Job) -> Result<Answer> {
    let mut flags = shared(work, &arguments.model, arguments.input_len, arguments.output_len)?;
    flags.extend(text("checkpoint", &arguments.checkpoint));
    measure(work, "timeline", flags, arguments.time_limit_s, job)
}

/// `--flag=value`, so that no value can be taken for another flag. Nothing is downloaded.
fn shared(work: &Workplace, model: &Option<String>, input: Option<u32>, output: Option<u32>) -> Result<Vec<String>> {
    let mut flags = vec!["--offline".to_owned()];
    if let Some(model) = model {
        flags.push(format!("--model={}", work.place.model(model)?));
    }
    flags.extend(number("input-len", input));
    flags.extend(number("output-len", output));
    Ok(flags)
}

fn number(flag: &str, value: Option<u32>) -> Option<String> {
    value.map(|value| format!("--{flag}={value}"))
}

fn text(flag: &str, value: &Option<String>) -> Option<String> {
    value.as_ref().map(|value| format!("--{flag}={value}"))
}

/// Runs `verb` with a new folder for its record, and answers with what it printed and what it left.
fn measure(work: &Workplace, verb: &str, flags: Vec<String>, asked_s: Option<u32>, job: &Job) -> Result<Answer> {
    let limit = match asked_s {
        Some(0) => return Err(usage("time_limit_s 0: expected at least 1")),
        Some(seconds) => Duration::from_secs(seconds.into()).min(work.limit),
        None => work.limit,
    };
    let _measuring = work.measure(verb)?;
    let folder = work.place.writable()?.new_run(verb)?;
    let mut command = vec![verb.to_owned()];
    command.extend(flags);
    command.push(format!("--json-output={}", folder.join(format!("{verb}.json")).display()));
    let finished = child::run(&command, verb, limit, job);
    let files = left(work, &folder);
    if files.is_empty() {
        // Nothing came of it: no trace of it stays. A file that is no record keeps the folder.
        let _ = std::fs::remove_dir(&folder);
    }
    answer(&command, &folder, &finished?, files, limit)
}

/// A record that a run left.
struct Left {
    entry: Entry,
    evidence: Option<Value>,
}

fn left(work: &Workplace, folder: &Path) -> Vec<Left> {
    let found = records_in(&[PathBuf::from(folder)]);
    let read = found.into_iter().map(|found| Left {
        evidence: found.evidence().as_ref().map(evidence),
        entry: Entry::read(found.path, work.place.store.root()),
    });
    read.collect()
}

fn answer(command: &[String], folder: &Path, finished: &Finished, files: Vec<Left>, limit: Duration) -> Result<Answer> {
    let kept = || match files.is_empty() {
        true => "nothing was kept".to_owned(),
        false => format!("what it had measured is in {}", folder.display()),
    };
    match (finished.ended, finished.code) {
        (Ended::Unwanted, _) => return Err(anyhow::anyhow!("cancelled; {}", kept())),
        (Ended::TimeLimit, _) => {
            return Err(anyhow::anyhow!(
                "ended after {} s; {}; ask for less work, or for more time if the server was started with a larger \
                 --time-limit-seconds",
                limit.as_secs(),
                kept()
            ));
        }
        // 1 with a record: it measured, and a check or a gate failed.
        (Ended::ByItself, Some(0 | 1)) if !files.is_empty() => {}
        (Ended::ByItself, _) => return Err(anyhow::anyhow!("{}", finished.complaint())),
    }
    let entries: Vec<&Entry> = files.iter().map(|file| &file.entry).collect();
    let mut text = finished.stdout.clone();
    for entry in &entries {
        text += &format!("evidence {} ({}): {}\n", entry.id(), entry.kind(), entry.path.display());
    }
    text += &finished.stderr;
    let structured = json!({
        "command": format!("hourglass {}", command.join(" ")),
        "exit_code": finished.code,
        "folder": folder,
        "records": entries,
        "evidence": files.iter().filter_map(|file| file.evidence.clone()).collect::<Vec<_>>(),
    });
    Ok(Answer::new(text, structured))
}
