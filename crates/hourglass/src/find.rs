//! `hourglass find`: one warmed request, what it dispatched, which operators its time goes to, and what to try next.
//! Not here: how anything is measured (`probe`), how it is shown (`find/table`), what follows from it (`find/next`).

mod next;
mod table;

pub(crate) use table::head;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use model::{Engine, Keep};
use probe::{Case, Clocked, Request};
use record::{Coverage, FindRecord, Known, Phase, Protocol, Record, Replay, Workload};
use weights::ModelFiles;

use crate::failure::INTERRUPTED;
use crate::load::{DEFAULT_MODEL, EngineArgs, ModelArgs};
use crate::progress::Progress;
use crate::request::{PrefillLogits, Work, check_counts};
use crate::{interrupt, load, output, request};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt tokens
    #[arg(long, value_name = "N", default_value_t = 128)]
    input_len: usize,
    /// Tokens to generate: the first by the prefill, each other by a decode step
    #[arg(long, value_name = "N", default_value_t = 129)]
    output_len: usize,
    /// Complete requests before the clocked one, and replay rounds before the timed ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Timed rounds of each replay
    #[arg(long, value_name = "N", default_value_t = 12)]
    iterations: usize,
    /// Which prompt tokens get logits
    #[arg(long, value_enum, default_value = "last")]
    prefill_logits: PrefillLogits,
    /// Seed of the prompt's token ids
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    engine: EngineArgs,
    /// Write the record of everything measured
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    args.check()?;
    let options = args.engine.options()?;
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let files = args.model.open(Some(DEFAULT_MODEL))?;
    request::check_positions(args.input_len, args.output_len, &files)?;
    let (mut engine, load_seconds) = load::load(&files, options)?;
    if !args.json {
        output::print(
            table::head(&load::describe(&files, &engine), args.model.model.is_none(), load_seconds).as_bytes(),
        )?;
    }
    let record = measure(&args, &files, &mut engine)?;
    if let Some(file) = record_file {
        file.finish_with_json(&record)?;
    }
    if args.json {
        output::print_json(&record)?;
    } else {
        output::print(table::body(&record, &engine, &args.engine.machine.solution.registry()).as_bytes())?;
    }
    if interrupt::requested() {
        output::note(format_args!(
            "hourglass: interrupted: {}",
            record.coverage.reason().unwrap_or("everything had been measured")
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let complete = record.coverage.is_complete() && !record.void;
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Args {
    fn check(&self) -> Result<()> {
        let rounds = [
            ("--iterations", self.iterations, 1..=10_000, "a median needs a sample, and every sample is kept"),
            ("--warmup", self.warmup, 0..=1_000, "rounds that are not timed"),
        ];
        check_counts(request::lengths(self.input_len, self.output_len).into_iter().chain(rounds))
    }
}

/// The request clock, then both replays, as one closed record.
fn measure(args: &Args, files: &ModelFiles, engine: &mut Engine) -> Result<FindRecord> {
    let prompt = request::prompt(args.input_len, files, args.seed);
    let workload = |phase: Phase| -> Result<Workload> {
        let output_tokens = if phase == Phase::Request { args.output_len } else { 0 };
        let (capacity, logits) = (prompt.len() + output_tokens, args.prefill_logits.mode());
        request::workload(files, &Work { phase, prompt: &prompt, capacity, output_tokens, logits, seed: args.seed })
    };
    let progress = Progress::new("find");
    let show = |done: usize, total: usize, what: &str| progress.steps(done, total, what);
    let request = Request {
        prompt: &prompt,
        output_tokens: args.output_len,
        logits: args.prefill_logits.mode(),
        warmup: args.warmup,
    };
    let Clocked { clock, wiring, .. } = probe::clock(engine, &request, &show)?;
    let mut replays = Vec::new();
    for phase in [Phase::Prefill, Phase::Decode] {
        let case = Case {
            workload: workload(phase)?,
            tokens: &prompt,
            warmup: args.warmup,
            iterations: args.iterations,
            operators: false,
            ceilings: None,
        };
        replays.push(probe::replay(engine, &case, &show)?);
    }
    drop(progress);

    let registry = args.engine.machine.solution.registry();
    let features = engine.options().features;
    let mut next = next::step(&clock, &replays, engine, &registry);
    let shapes =
        [(Phase::Prefill, prompt.len(), keep(args)), (Phase::Decode, decode_rows(engine, prompt.len()), Keep::Last)];
    let mut kernels = Vec::new();
    for (phase, rows, keep) in shapes {
        let bound = engine.kernels(rows, keep, prompt.len())?;
        kernels.extend(probe::bound_kernels(phase, bound));
        if let Known::Is(step) = &mut next
            && step.larger_phase == phase.name()
        {
            step.other_kernels = next::others(step.largest_group(), bound, &registry, features);
        }
    }
    let mut record = FindRecord {
        schema: FindRecord::SCHEMA.to_owned(),
        created: probe::now(),
        workload: workload(Phase::Request)?,
        workload_id: String::new(),
        conditions: probe::conditions(engine, kernels),
        conditions_id: String::new(),
        subject: probe::subject(engine, args.engine.machine.solution.name(), &files.describe_encoding()),
        protocol: Protocol {
            warmup: args.warmup as u64,
            iterations: args.iterations as u64,
            process_id: std::process::id(),
        },
        coverage: coverage(&clock, &replays),
        next,
        request: clock,
        wiring,
        replays,
        checks: Vec::new(),
        void: false,
    };
    record.close();
    Ok(record)
}

fn keep(args: &Args) -> Keep {
    match args.prefill_logits {
        PrefillLogits::Last => Keep::Last,
        PrefillLogits::All => Keep::All,
    }
}

/// Rows of the program behind one decode step: without a cache it runs the whole prefix.
fn decode_rows(engine: &Engine, context: usize) -> usize {
    if engine.checkpoint().cache == ops::CachePolicy::None { context } else { 1 }
}

fn coverage(clock: &Known<record::RequestClock>, replays: &[Replay]) -> Coverage {
    let mut reasons = Vec::new();
    match clock {
        Known::Is(clock) => reasons.extend(clock.coverage.reason().map(|reason| format!("request: {reason}"))),
        Known::Unavailable(missing) => reasons.push(format!("request: {}", missing.unavailable)),
    }
    for replay in replays {
        let phase = replay.workload.phase.name();
        reasons.extend(replay.coverage.reason().map(|reason| format!("{phase} replay: {reason}")));
    }
    if reasons.is_empty() { Coverage::complete() } else { Coverage::incomplete(reasons.join("; ")) }
}
