//! `hourglass replay`: which group of operators costs the most at a shape, operator by operator, against measured ceilings.
//! Not here: how anything is timed (`probe`), what is printed (`replay/table`), what is concluded (`replay/decision`).

mod cases;
mod comparing;
mod decision;
mod files;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use record::{Ceilings, CeilingsUsed, Coverage, Known, LogitsMode, Protocol, Record, ReplayCase, ReplayRecord};

use crate::failure::{INTERRUPTED, usage};
use crate::load::{DEFAULT_MODEL, MachineArgs, ModelArgs};
use crate::{interrupt, output};
use cases::CaseName;

#[derive(ValueEnum, Clone, Copy, Debug)]
enum PrefillLogits {
    /// Of the prompt's last token, which is what generating needs
    Last,
    /// Of every prompt token
    All,
}

impl PrefillLogits {
    fn mode(self) -> LogitsMode {
        match self {
            PrefillLogits::Last => LogitsMode::Last,
            PrefillLogits::All => LogitsMode::All,
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to replay, e.g. selected:decode:128: a decode step that reaches a context of 128, or a prefill of 128 rows;
    /// repeatable [default: the ladder's decode rungs at decode:128 and its prefill rungs at prefill:128]
    #[arg(long = "case", value_name = "CHECKPOINT:PHASE:TOKENS")]
    cases: Vec<CaseName>,
    #[command(flatten)]
    model: ModelArgs,
    /// Rounds before the timed ones
    #[arg(long, value_name = "N", default_value_t = 4)]
    warmup: usize,
    /// Timed rounds; each runs every group once, the order moved on by one
    #[arg(long, value_name = "N", default_value_t = 12)]
    iterations: usize,
    /// Positions that the cache is made for [default: the case's tokens]
    #[arg(long, value_name = "N")]
    capacity: Option<usize>,
    /// Which prompt tokens get logits
    #[arg(long, value_enum, default_value = "last")]
    prefill_logits: PrefillLogits,
    /// Seed of the prompt's token ids
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    machine: MachineArgs,
    /// A record of `hourglass ceilings` that the floors are at
    #[arg(long, value_name = "FILE")]
    ceilings: Option<PathBuf>,
    /// Compare two replay records of the same workload, group by group, in place of replaying
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, conflicts_with = "cases")]
    compare_records: Vec<PathBuf>,
    /// Records with one clocked request each (find or bench) of the same two checkpoints: how much of the gain arrived
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, requires = "compare_records")]
    bench: Vec<PathBuf>,
    #[command(flatten)]
    decision: decision::DecisionArgs,
    /// Write the record of everything measured
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    args.check()?;
    output::check_distinct(&[
        ("--json-output", args.json_output.as_deref()),
        ("--decision-output", args.decision.output()),
    ])?;
    if !args.compare_records.is_empty() {
        return comparing::run(&args);
    }
    let cases = args.cases()?;
    for case in &cases {
        args.machine.options("--case", &case.checkpoint)?;
    }
    let plan = args.decision.plan(&cases)?;
    let ceilings = args.ceilings.as_deref().map(|path| files::read::<Ceilings>("--ceilings", path)).transpose()?;
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let decision_file = output::create_if_asked("--decision-output", args.decision.output())?;
    let record = measure(&args, &cases, ceilings.as_ref())?;
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
    let complete = record.coverage.is_complete() && !record.void;
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Args {
    fn check(&self) -> Result<()> {
        if !(1..=10_000).contains(&self.iterations) {
            let why = "a median needs a sample, and every sample is kept";
            return Err(usage(format!("--iterations {}: expected 1 to 10000 ({why})", self.iterations)));
        }
        if self.warmup > 1_000 {
            return Err(usage(format!("--warmup {}: expected at most 1000", self.warmup)));
        }
        if self.capacity == Some(0) {
            return Err(usage("--capacity 0: expected at least 1; leave it out for the case's tokens"));
        }
        Ok(())
    }

    /// The cases asked for, or the default list; none where a decision is about records alone.
    fn cases(&self) -> Result<Vec<CaseName>> {
        if self.cases.is_empty() {
            return Ok(if self.decision.has_records() { Vec::new() } else { cases::default_list() });
        }
        for (index, case) in self.cases.iter().enumerate() {
            if self.cases[..index].contains(case) {
                return Err(usage(format!("--case {case} is given twice; one is enough")));
            }
        }
        Ok(self.cases.clone())
    }
}

/// Replays every case and closes the record. Prints each case's table as soon as it is there, unless `--json`.
fn measure(args: &Args, cases: &[CaseName], ceilings: Option<&Ceilings>) -> Result<ReplayRecord> {
    let mut measured: Vec<ReplayCase> = Vec::with_capacity(cases.len());
    if !cases.is_empty() {
        let files = args.model.open(Some(DEFAULT_MODEL))?;
        let limit = files.config().max_positions;
        for case in cases {
            let longest = case.tokens.max(args.capacity.unwrap_or(0));
            if longest > limit {
                return Err(usage(format!(
                    "--case {case} with a capacity of {longest} exceeds the {limit} positions of {}; ask for fewer",
                    files.label()
                )));
            }
        }
        if !args.json && args.model.model.is_none() {
            output::print(table::default_model().as_bytes())?;
        }
        cases::replay_all(args, cases, &files, ceilings, |done| {
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
        ceilings: ceilings.map_or_else(
            || Known::unavailable("no ceilings were given", "`hourglass ceilings`, then --ceilings FILE"),
            |ceilings| Known::Is(CeilingsUsed::of(ceilings)),
        ),
        cases: measured,
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    Ok(record)
}
