//! `hourglass replay --sensitivity`: would a faster operator move the request? Whole requests with time added to one operator.
//! Not here: how the time is added and clocked (`probe`), and what a slope means (`record`).

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use model::Engine;
use ops::{CachePolicy, Group, Registry};
use probe::{Place, Probe, Probed};
use record::{Known, LogitsMode, Phase, Record, SensitivityRecord, Slope, Target};
use weights::ModelFiles;

use super::Args;
use super::cases::CaseName;
use crate::failure::{INTERRUPTED, Interrupted, usage};
use crate::figures::show;
use crate::load::DEFAULT_MODEL;
use crate::progress::Progress;
use crate::prose::paragraph;
use crate::request::Work;
use crate::{interrupt, load, output, request};

/// Part of a request that the smaller delay adds: more than the noise of some rounds, too little to change what limits it.
const ADDED_SHARE: f64 = 0.05;
/// Part of the processors that others may use before slopes are called unreliable: as much as a round's noise hides.
const BUSY: f64 = 0.05;
const EVERY: &str = "all";

#[derive(clap::Args)]
#[command(next_help_heading = "Sensitivity")]
pub(crate) struct SensitivityArgs {
    /// In place of replaying: add time to the calls of this group (its name or the beginning of it) or operator in whole
    /// requests, and see how much of it arrives; repeatable; `all` ranks every group
    #[arg(long, value_name = "GROUP|OPERATOR|all", conflicts_with_all = ["compare_records", "shapes"])]
    sensitivity: Vec<String>,
    /// With --sensitivity: tokens that each request generates after the case's prompt
    #[arg(long, value_name = "N", default_value_t = 33, requires = "sensitivity", conflicts_with_all = ["compare_records", "shapes"])]
    output_len: usize,
    /// With --sensitivity: rounds, each with one request as it is and two per group
    #[arg(long, value_name = "N", default_value_t = 6, requires = "sensitivity", conflicts_with_all = ["compare_records", "shapes"])]
    rounds: usize,
}

impl SensitivityArgs {
    pub(crate) fn is_asked(&self) -> bool {
        !self.sensitivity.is_empty()
    }

    fn places(&self, registry: &Registry) -> Result<Vec<Place>> {
        let operators: Vec<&str> = registry.operators().iter().map(|operator| operator.name()).collect();
        let mut places = Vec::new();
        for text in &self.sensitivity {
            let named = match text.as_str() {
                EVERY => Group::ALL.into_iter().map(Place::Group).collect(),
                text => vec![Place::parse(text, &operators).map_err(|why| usage(format!("--sensitivity: {why}")))?],
            };
            places.extend(named);
        }
        let mut once: Vec<Place> = Vec::new();
        for place in places {
            if !once.contains(&place) {
                once.push(place);
            }
        }
        Ok(once)
    }
}

/// Runs the probe on the one case given (or `fast:decode:128`): its tokens are the prompt, its phase says in which passes time
/// is added.
pub(crate) fn run(args: &Args, given: &SensitivityArgs, cases: &[CaseName]) -> Result<ExitCode> {
    let case = match cases {
        [] => CaseName { checkpoint: ops::ladder::FAST.to_owned(), phase: Phase::Decode, tokens: 128 },
        [case] => case.clone(),
        several => {
            return Err(usage(format!(
                "--sensitivity probes one case at a time; {} were given with --case",
                several.len()
            )));
        }
    };
    for (flag, found, least) in [("--output-len", given.output_len, 2), ("--rounds", given.rounds, 2)] {
        if !(least..=100_000).contains(&found) {
            return Err(usage(format!("{flag} {found}: expected {least} to 100000")));
        }
    }
    let options = args.machine.options("--case", &case.checkpoint)?;
    let mut places = given.places(&options.registry)?;
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let files = args.model.open(Some(DEFAULT_MODEL))?;
    let limit = files.config().max_positions;
    if case.tokens.saturating_add(given.output_len) > limit {
        return Err(usage(format!(
            "--case {case} with --output-len {} exceeds the {limit} positions of {}; ask for fewer tokens",
            given.output_len,
            files.label()
        )));
    }
    let (mut engine, _) = load::load(&files, options)?;
    if engine.checkpoint().cache == CachePolicy::None {
        places.retain(|place| *place != Place::Group(Group::CacheUpdate));
    }
    let record = measure(args, given, &case, &files, &mut engine, &places)?;
    if let Some(file) = record_file {
        file.finish_with_json(&record)?;
    }
    if args.json {
        output::print_json(&record)?;
    } else {
        output::print(text(&record, &load::describe(&files, &engine)).as_bytes())?;
    }
    if interrupt::requested() {
        output::note(format_args!(
            "hourglass: interrupted: {}",
            record.coverage.reason().unwrap_or("everything had been measured")
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if crate::void::said(&record) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(
    args: &Args,
    given: &SensitivityArgs,
    case: &CaseName,
    files: &ModelFiles,
    engine: &mut Engine,
    places: &[Place],
) -> Result<SensitivityRecord> {
    let prompt = request::prompt(case.tokens, files, args.seed);
    let logits: LogitsMode = args.prefill_logits.mode();
    let progress = Progress::new("sensitivity");
    let step = |done: usize, total: usize, what: &str| progress.steps(done, total, what);
    let probe = Probe {
        prompt: &prompt,
        output_tokens: given.output_len,
        logits,
        phase: case.phase,
        places,
        rounds: given.rounds,
        added_share: ADDED_SHARE,
    };
    let probed = probe::sensitivity(engine, &probe, &step).map_err(|error| match error {
        probe::Error::Model(model::Error::Interrupted) => {
            Interrupted("before the first request was clocked; nothing was written".to_owned()).into()
        }
        error => anyhow::Error::from(error),
    });
    let Probed { targets, samples, coverage, surroundings } = probed?;
    drop(progress);
    let capacity = prompt.len() + given.output_len;
    let work = Work {
        phase: Phase::Request,
        prompt: &prompt,
        capacity,
        output_tokens: given.output_len,
        logits,
        seed: args.seed,
    };
    let mut record = SensitivityRecord {
        schema: SensitivityRecord::SCHEMA.to_owned(),
        created: probe::now(),
        workload: request::workload(files, &work)?,
        workload_id: String::new(),
        conditions: load::conditions(engine, prompt.len(), capacity)?,
        conditions_id: String::new(),
        subject: probe::subject(engine, args.machine.solution.name(), &files.describe_encoding()),
        process_id: std::process::id(),
        phase: case.phase,
        added_share: ADDED_SHARE,
        coverage,
        surroundings,
        targets,
        samples,
        checks: Vec::new(),
        void: false,
    };
    record.close();
    Ok(record)
}

fn text(record: &SensitivityRecord, description: &str) -> String {
    let mut text = paragraph("", description, "  ");
    let workload = &record.workload;
    let where_added = match record.phase {
        Phase::Request => "in every pass".to_owned(),
        phase => format!("in {} passes", phase.name()),
    };
    let rounds = record.samples.iter().map(|sample| sample.round + 1).max().unwrap_or(0);
    text += &paragraph(
        "",
        &format!(
            "Requests of {} prompt tokens and {} generated, {rounds} rounds in one warm process; 0, {:.0} and {:.0} % of a \
             request's time added {where_added}, in turn",
            workload.context_tokens,
            workload.output_tokens,
            100.0 * record.added_share,
            200.0 * record.added_share
        ),
        "  ",
    );
    let _ = writeln!(
        text,
        "\n{:<23}{:>6}{:>10}{:>10}{:>27}  verdict",
        "time added to", "calls", "own ms", "at stake", "slope (95 %)"
    );
    for target in &record.targets {
        line(&mut text, target);
    }
    text.push('\n');
    text += &paragraph(
        "",
        "Slope: how much of the added time arrived in the request, with its interval. At stake: slope times the operator's own \
         time, in ms per request: more than that no faster version can win. Inconclusive: ask for more --rounds.",
        "",
    );
    if let Some(others) = record.surroundings.others.value().filter(|others| *others > BUSY) {
        let words = format!(
            "other processes used {:.0} % of the processors: workers waited for them too, so slopes are too high; run it again \
             on a quiet machine",
            100.0 * others
        );
        text += &paragraph("Not to be relied on: ", &words, "  ");
    }
    if let Some(reason) = record.coverage.reason() {
        text += &paragraph("Incomplete: ", reason, "  ");
    }
    if record.void {
        text += "VOID: a check of the record failed; see its \"checks\".\n";
    }
    text
}

/// Two decimals; one for numbers that are so wide of 0 and 1 that they say no more.
fn short(slope: &f64) -> String {
    if slope.abs() < 10.0 { format!("{slope:.2}") } else { format!("{slope:.1}") }
}

fn line(text: &mut String, target: &Target) {
    let slope = match &target.slope {
        Known::Is(Slope { value, low, high, .. }) => format!("{} ({}, {})", short(value), short(low), short(high)),
        Known::Unavailable(_) => "n/a".to_owned(),
    };
    let ms = |seconds: f64| format!("{:.2}", seconds * 1e3);
    let mut name = target.target.clone();
    if name.len() > 22 {
        name = format!("{}...", name.chars().take(19).collect::<String>());
    }
    let verdict = match (target.calls, target.verdict) {
        (0, _) => "no such call",
        (_, verdict) => verdict.words(),
    };
    let _ = writeln!(
        text,
        "{name:<23}{:>6}{:>10}{:>10}{slope:>27}  {verdict}",
        target.calls,
        show(&target.own, ms),
        show(&target.at_stake, ms)
    );
}
