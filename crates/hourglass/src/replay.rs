//! `hourglass replay`: which group of operators costs the most at a shape, operator by operator, against measured ceilings.
//! Not here: how anything is timed (`probe`), what is printed (`replay/table`), what is concluded (`replay/decision`).

mod cases;
mod comparing;
mod decision;
pub(crate) mod files;
mod sensitivity;
mod shapes;
pub(crate) mod table;
pub(crate) mod turns;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use probe::ceilings::CeilingsError;
use record::{Ceilings, CeilingsUsed, Coverage, Known, Phase, Protocol, Record, ReplayCase, ReplayRecord};
use weights::ModelFiles;

use crate::failure::{INTERRUPTED, Interrupted, usage};
use crate::load::{DEFAULT_MODEL, MachineArgs, ModelArgs};
use crate::progress::Progress;
use crate::request::{self, PrefillLogits, check_counts};
use crate::{interrupt, output};
use cases::CaseName;
use turns::Beside;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to replay, e.g. selected:decode:128: a decode step that reaches a context of 128, or a prefill of 128 rows;
    /// repeatable [default: the ladder's decode rungs at decode:128 and its prefill rungs at prefill:128]
    #[arg(long = "case", value_name = "CHECKPOINT:PHASE:TOKENS")]
    cases: Vec<CaseName>,
    #[command(flatten)]
    model: ModelArgs,
    /// Rounds before the timed ones
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with_all = ["compare_records", "sensitivity"])]
    warmup: usize,
    /// Timed turns of each case, the order moved on by one; in a round of a turn every group runs once, then every operator
    #[arg(long, value_name = "N", default_value_t = 12, conflicts_with_all = ["compare_records", "sensitivity"])]
    iterations: usize,
    /// Rounds in each turn of a decode case, whose passes are short
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["compare_records", "sensitivity", "shapes"])]
    decode_rounds: usize,
    /// Clock a whole request with so many generated tokens in each turn too, of the prompt of each checkpoint's prefill case:
    /// how fast the machine was meanwhile
    #[arg(long, value_name = "N", conflicts_with_all = ["compare_records", "sensitivity", "shapes"])]
    request_output_len: Option<usize>,
    /// Positions that the cache is made for [default: the case's tokens]
    #[arg(long, value_name = "N", conflicts_with_all = ["compare_records", "sensitivity", "shapes"])]
    capacity: Option<usize>,
    /// Which prompt tokens get logits
    #[arg(long, value_enum, default_value = "last", conflicts_with_all = ["compare_records", "shapes"])]
    prefill_logits: PrefillLogits,
    /// Seed of the prompt's token ids
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["compare_records", "shapes"])]
    seed: u64,
    #[command(flatten)]
    machine: MachineArgs,
    /// A record of `hourglass ceilings` that the floors are at, or `none` for no floors [default: this machine's, which are
    /// measured (about 20 s) unless today's are kept]
    #[arg(long, value_name = "FILE|none", conflicts_with_all = ["compare_records", "sensitivity", "shapes"])]
    ceilings: Option<PathBuf>,
    /// Compare two replay records of the same workload, group by group, in place of replaying
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, conflicts_with_all = ["cases", "ModelArgs", "MachineArgs"])]
    compare_records: Vec<PathBuf>,
    /// Records with one clocked request each (find or bench) of the same two checkpoints: how much of the gain arrived
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, requires = "compare_records")]
    bench: Vec<PathBuf>,
    /// Compare two kernels at every shape that a recorded workload (find, bench or replay record) used, in place of replaying
    #[arg(long, value_name = "RECORD", requires = "compare", conflicts_with = "compare_records")]
    shapes: Option<PathBuf>,
    /// The two kernels, of one operator: [OPERATOR:]NAME/INSTRUCTIONS,[OPERATOR:]NAME/INSTRUCTIONS
    #[arg(long, value_name = "KERNEL,KERNEL", requires = "shapes")]
    compare: Option<String>,
    /// Write the shape study for other tools: test-backend-ops=FILE, flashinfer=DIRECTORY; repeatable
    #[arg(long, value_name = "FORMAT=PATH", requires = "shapes")]
    export: Vec<shapes::Export>,
    #[command(flatten)]
    sensitivity: sensitivity::SensitivityArgs,
    #[command(flatten)]
    decision: decision::DecisionArgs,
    /// Write the record of everything measured
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    args.check()?;
    let other = [
        ("--compare-records", !args.compare_records.is_empty()),
        ("--shapes", args.shapes.is_some()),
        ("--sensitivity", args.sensitivity.is_asked()),
    ];
    if let Some((flag, _)) = other.into_iter().find(|(_, asked)| *asked) {
        args.decision.refuse_beside(flag)?;
    }
    output::check_distinct(&[
        ("--json-output", args.json_output.as_deref()),
        ("--decision-output", args.decision.output()),
    ])?;
    if !args.compare_records.is_empty() {
        return comparing::run(args);
    }
    if args.sensitivity.is_asked() {
        args.machine.device.expect_cpu(
            "replay --sensitivity",
            "time is added between calls by the workers that walk them, and a GPU runs a whole pass as one graph, in which that \
             takes a kernel that waits",
            "replay without it",
        )?;
    }
    if let Some(record) = &args.shapes {
        return shapes::run(args, record);
    }
    if args.sensitivity.is_asked() {
        return sensitivity::run(args, &args.sensitivity, &args.cases);
    }
    let mut cases = args.cases();
    for case in &mut cases {
        // An alias stands for the rung that it means here and now.
        args.machine.options("--case", &case.checkpoint)?.checkpoint.name.clone_into(&mut case.checkpoint);
    }
    if let Some((index, case)) = cases.iter().enumerate().find(|(index, case)| cases[..*index].contains(case)) {
        return Err(usage(format!(
            "--case {case} is given twice (the second time as number {}); one is enough",
            index + 1
        )));
    }
    let plan = args.decision.plan(&cases, &args.machine)?;
    let given = match args.ceilings.as_deref() {
        Some(path) if path != Path::new("none") => Some(given(args, path)?),
        _ => None,
    };
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let decision_file = output::create_if_asked("--decision-output", args.decision.output())?;
    // Before the ceilings, which take longer than to find out that there is no such model.
    let files = if cases.is_empty() { None } else { Some(open(args, &cases)?) };
    let ceilings = match given {
        Some(given) => Known::Is(given),
        None if cases.is_empty() || args.ceilings.is_some() => {
            Known::unavailable("no ceilings were asked for", "leave out `--ceilings none`")
        }
        None if args.machine.device.is_gpu()? => this_device(args, &cases[0])?,
        None => this_machine(args)?,
    };
    let record = measure(args, &cases, files.as_ref(), &ceilings)?;
    if let Some(file) = record_file {
        file.finish_with_json(&record)?;
    }
    if args.json {
        output::print_json(&record)?;
    } else if !record.cases.is_empty() {
        output::print(table::foot(&record).as_bytes())?;
    }
    if interrupt::requested() {
        output::note(format_args!(
            "hourglass: interrupted: {}",
            record.coverage.reason().unwrap_or("everything had been measured")
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if let (Some(plan), Some(file)) = (plan, decision_file) {
        plan.write(&record, file, args.json)?;
    }
    let complete = record.coverage.is_complete() & !crate::void::said(&record);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Args {
    fn check(&self) -> Result<()> {
        // clap waives a requirement that conflicts with another flag that was given, such as --model.
        if !self.bench.is_empty() && self.compare_records.is_empty() {
            return Err(usage(
                "--bench: needs --compare-records BEFORE AFTER, whose saving it looks for in the requests",
            ));
        }
        if !(1..=10_000).contains(&self.iterations) {
            let why = "a median needs a sample, and every sample is kept";
            return Err(usage(format!("--iterations {}: expected 1 to 10000 ({why})", self.iterations)));
        }
        if self.warmup > 1_000 {
            return Err(usage(format!("--warmup {}: expected at most 1000", self.warmup)));
        }
        if !(1..=1_000).contains(&self.decode_rounds) {
            return Err(usage(format!("--decode-rounds {}: expected 1 to 1000", self.decode_rounds)));
        }
        if let Some(length) = self.request_output_len {
            check_counts([request::lengths(1, length)[1].clone()])?;
            if !self.cases().iter().any(|case| case.phase == Phase::Prefill) {
                return Err(usage(
                    "--request-output-len: needs a prefill case, whose prompt the requests have; add --case NAME:prefill:N",
                ));
            }
        }
        if self.capacity == Some(0) {
            return Err(usage("--capacity 0: expected at least 1; leave it out for the case's tokens"));
        }
        Ok(())
    }

    /// The cases asked for, or the default list; none where a decision is about records alone.
    fn cases(&self) -> Vec<CaseName> {
        match (self.cases.is_empty(), self.decision.has_records()) {
            (false, _) => self.cases.clone(),
            (true, false) => cases::default_list(),
            (true, true) => Vec::new(),
        }
    }
}

/// Ceilings from a file, of what the cases run on.
///
/// # Errors
/// No such record; a GPU's for the CPU, or the other way around.
fn given(args: &Args, path: &Path) -> Result<Ceilings> {
    let given = files::read::<Ceilings>("--ceilings", path)?;
    if given.is_of_device() != args.machine.device.is_gpu()? {
        return Err(usage(format!(
            "--ceilings {}: are of {}, and the cases run on --device {}; give those of what runs, as `hourglass ceilings --device` \
             writes them, or leave them out",
            path.display(),
            given.conditions.host.device,
            args.machine.device
        )));
    }
    Ok(given)
}

/// The ceilings of the GPU, measured now.
fn this_device(args: &Args, case: &CaseName) -> Result<Known<Ceilings>> {
    let options = args.machine.options("--case", &case.checkpoint)?;
    Ok(match probe::ceilings::of_device(&options, probe::ceilings::ROUNDS) {
        Ok(ceilings) => Known::Is(ceilings),
        Err(error) => Known::unavailable(error.to_string(), "`hourglass ceilings --device cuda`"),
    })
}

/// The ceilings of this machine, kept or measured now; why there are none, if they cannot be had.
fn this_machine(args: &Args) -> Result<Known<Ceilings>> {
    let processors = ops::processors();
    let threads = args.machine.threads.unwrap_or(processors) as u64;
    let progress = Progress::new("ceilings");
    let show = |done: usize, total: usize, what: &str| progress.steps(done, total, what);
    match probe::ceilings::current(threads, &interrupt::flag(), &show) {
        Ok(current) => {
            drop(progress);
            for note in &current.notes {
                output::note(format_args!("hourglass: {note}"));
            }
            Ok(Known::Is(current.ceilings))
        }
        Err(CeilingsError::Interrupted) => {
            Err(Interrupted("while the ceilings were measured; nothing was written".to_owned()).into())
        }
        Err(error) => Ok(Known::unavailable(error.to_string(), "`hourglass ceilings`")),
    }
}

/// The model that the cases are replayed on.
///
/// # Errors
/// Files that cannot be read; a case with more positions than the model has.
fn open(args: &Args, cases: &[CaseName]) -> Result<ModelFiles> {
    let files = args.model.open(Some(DEFAULT_MODEL))?;
    let limit = files.config().max_positions;
    for case in cases {
        let generated = args.request_output_len.filter(|_| case.phase == Phase::Prefill).unwrap_or(0);
        let longest = case.tokens.saturating_add(generated).max(args.capacity.unwrap_or(0));
        if longest > limit {
            return Err(usage(format!(
                "--case {case} with a capacity of {longest} exceeds the {limit} positions of {}; ask for fewer",
                files.label()
            )));
        }
    }
    Ok(files)
}

/// Replays every case and closes the record. Prints each case's table when all have had their turns, unless `--json`.
fn measure(
    args: &Args,
    cases: &[CaseName],
    files: Option<&ModelFiles>,
    ceilings: &Known<Ceilings>,
) -> Result<ReplayRecord> {
    let mut measured: Vec<ReplayCase> = Vec::with_capacity(cases.len());
    let mut beside = Beside::default();
    if let Some(files) = files {
        if !args.json && args.model.model.is_none() {
            output::print(table::default_model().as_bytes())?;
        }
        if !args.json && cases.len() > 1 {
            output::print(table::in_turn(cases.len()).as_bytes())?;
        }
        beside = turns::replay_all(args, cases, files, ceilings.known(), |done| {
            if !args.json {
                output::print(table::case(done).as_bytes())?;
            }
            measured.push(done.case.clone());
            Ok(())
        })?;
    }
    let mut record = ReplayRecord {
        schema: ReplayRecord::SCHEMA.to_owned(),
        created: probe::now(),
        protocol: Protocol {
            warmup: args.warmup as u64,
            iterations: args.iterations as u64,
            process_id: std::process::id(),
        },
        ceilings: match ceilings {
            Known::Is(ceilings) => Known::Is(CeilingsUsed::of(ceilings)),
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        },
        cases: measured,
        requests: beside.requests,
        turns: beside.turns,
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    if let Some(cut) = beside.cut.filter(|_| record.coverage.is_complete()) {
        record.coverage = Coverage::incomplete(format!("interrupted {cut}; every case has the turns that it had"));
    }
    Ok(record)
}
