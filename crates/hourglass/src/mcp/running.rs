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
                "run_capture",
                "Capture one step",
                "Samples one steady step after warm-up and reduces the samples to kernels, counters and source lines; answers \
                 with the tables and the evidence ids of the records. Nothing in a capture is a latency.",
            ],
            true,
            run_capture,
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
    Run { work, verb: "bench", flags, time_limit_s: arguments.time_limit_s }.measure(job)
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Step {
    Prefill,
    Decode,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunCapture {
    /// A checkpoint of the ladder; the newest unless given.
    checkpoint: Option<String>,
    /// synthetic:NAME, a name in the local hub cache, or a path below the repository; synthetic:qwen3-0.6b unless given.
    model: Option<String>,
    /// Which step; decode unless given.
    phase: Option<Step>,
    /// A prefill of so many rows, or a decode step that reaches this context.
    tokens: Option<u32>,
    /// Seconds after which it is ended; no more than the server allows.
    time_limit_s: Option<u32>,
}

fn run_capture(work: &Workplace, arguments: RunCapture, job: &Job) -> Result<Answer> {
    let mut flags = shared(work, &arguments.model, None, None)?;
    flags.extend(text("checkpoint", &arguments.checkpoint));
    flags.extend(number("tokens", arguments.tokens));
    flags.extend(arguments.phase.map(|phase| match phase {
        Step::Prefill => "--phase=prefill".to_owned(),
        Step::Decode => "--phase=decode".to_owned(),
    }));
    let place = |flag: &str, folder: &Path, file: &str| format!("--{flag}={}", folder.join(file).display());
    let outputs = |folder: &Path| {
        vec![
            place("trace", folder, "capture.trace"),
            place("metadata", folder, "capture-metadata.json"),
            place("manifest", folder, "capture.manifest.sha256"),
        ]
    };
    let reduce = |folder: &Path| {
        Some(vec![
            "reduce".to_owned(),
            place("trace", folder, "capture.trace"),
            place("capture-metadata", folder, "capture-metadata.json"),
            place("manifest", folder, "capture.manifest.sha256"),
            place("output", folder, "capture.json"),
        ])
    };
    Run { work, verb: "capture", flags, time_limit_s: arguments.time_limit_s }.measure_into(job, outputs, reduce)
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
    /// At most a minute in place of five: fewer repeats, no capture.
    quick: Option<bool>,
    /// Seconds after which it is ended; no more than the server allows.
    time_limit_s: Option<u32>,
}

fn run_find(work: &Workplace, arguments: RunFind, job: &Job) -> Result<Answer> {
    let mut flags = shared(work, &arguments.model, arguments.input_len, arguments.output_len)?;
    flags.extend(text("checkpoint", &arguments.checkpoint));
    if arguments.quick.unwrap_or(false) {
        flags.push("--quick".to_owned());
    }
    let outputs = |folder: &Path| {
        // It makes the folder itself, and refuses one that is there.
        let _ = std::fs::remove_dir(folder);
        vec![format!("--out={}", folder.display())]
    };
    Run { work, verb: "find", flags, time_limit_s: arguments.time_limit_s }.measure_into(job, outputs, |_| None)
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
    Run { work, verb: "replay", flags, time_limit_s: arguments.time_limit_s }.measure(job)
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
    Run { work, verb: "timeline", flags, time_limit_s: arguments.time_limit_s }.measure(job)
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

/// What a run of a verb needs beside its own flags.
struct Run<'a> {
    work: &'a Workplace,
    verb: &'static str,
    flags: Vec<String>,
    /// Seconds that the caller allows.
    time_limit_s: Option<u32>,
}

impl Run<'_> {
    /// Runs the verb, whose record goes into a new folder by `--json-output`.
    fn measure(self, job: &Job) -> Result<Answer> {
        let file = format!("{}.json", self.verb);
        self.measure_into(job, |folder| vec![format!("--json-output={}", folder.join(&file).display())], |_| None)
    }

    /// Runs the verb with the flags that `outputs` makes of the new folder, then the command that `after` makes of it; answers
    /// with what they printed and what they left.
    fn measure_into(
        self,
        job: &Job,
        outputs: impl FnOnce(&Path) -> Vec<String>,
        after: impl FnOnce(&Path) -> Option<Vec<String>>,
    ) -> Result<Answer> {
        let Run { work, verb, flags, time_limit_s } = self;
        let limit = match time_limit_s {
            Some(0) => return Err(usage("time_limit_s 0: expected at least 1")),
            Some(seconds) => Duration::from_secs(seconds.into()).min(work.limit),
            None => work.limit,
        };
        let _measuring = work.measure(verb)?;
        let folder = work.place.writable()?.new_run(verb)?;
        let command: Vec<String> = [verb.to_owned()].into_iter().chain(flags).chain(outputs(&folder)).collect();
        let mut finished = child::run(&command, verb, limit, job);
        if let Ok(first) = &mut finished
            && (first.ended, first.code) == (Ended::ByItself, Some(0))
            && let Some(next) = after(&folder)
        {
            let Finished { code, stdout, stderr, ended } = child::run(&next, &next[0], limit, job)?;
            (first.code, first.ended) = (code, ended);
            first.stdout += &stdout;
            first.stderr += &stderr;
        }
        let files = left(work, &folder);
        if files.is_empty() {
            // Nothing came of it: no trace of it stays. A file that is no record keeps the folder.
            let _ = std::fs::remove_dir(&folder);
        }
        answer(&command, &folder, &finished?, files, limit)
    }
}

/// A record that a run left.
struct Left {
    entry: Entry,
    evidence: Option<Value>,
}

fn left(work: &Workplace, folder: &Path) -> Vec<Left> {
    // A verb that makes the folder itself may not have come so far.
    let folder = folder.is_dir().then(|| PathBuf::from(folder));
    let found = records_in(folder.as_slice());
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
