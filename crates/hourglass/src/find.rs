//! `hourglass find`: every view of one request in one go, and the ranking that follows: what to change next, and why.
//! Not here: the commands (`find/plan`), running them (`find/walk`), reading their records (`find/folder`), flags beside one
//! (`find/given`), the ranking (`record::find`), what is printed (`find/table`).

pub(crate) mod climb;
mod folder;
mod given;
mod plan;
mod shape;
pub(crate) mod table;
mod walk;

pub(crate) use table::head;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use record::find::FindProtocol;
use record::{FindRecord, Phase};

use crate::failure::{INTERRUPTED, usage};
use crate::load::{DEFAULT_MODEL, MachineArgs, ModelArgs};
use crate::replay::files as record_files;
use crate::request::{PrefillLogits, Work};
use crate::store::Store;
use crate::{interrupt, output, request};
use folder::Folder;
use given::Given;
use shape::Shape;

/// Seconds that a walk is planned for.
const BUDGET_S: f64 = 300.0;
const QUICK_BUDGET_S: f64 = 60.0;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// First, as it is to be read first.
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    model: ModelArgs,
    /// The rung of the ladder; `hourglass ladder` lists them, and `fast` stands for the newest
    #[arg(long, value_name = "NAME", default_value = ops::ladder::FAST)]
    checkpoint: String,
    /// The request's shape: {"input_len", "output_len", "seed", "logits", "model"}, each optional, or any record, whose
    /// workload is taken; flags that are given too win
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Prompt tokens [default: 128]
    #[arg(long, value_name = "N")]
    input_len: Option<usize>,
    /// Tokens to generate: the first by the prefill, each other by a decode step [default: 129]
    #[arg(long, value_name = "N")]
    output_len: Option<usize>,
    /// Which prompt tokens get logits [default: last]
    #[arg(long, value_enum)]
    prefill_logits: Option<PrefillLogits>,
    /// Seed of the prompt's token ids [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    machine: MachineArgs,
    /// At most a minute in place of five: fewer repeats, no capture
    #[arg(long)]
    quick: bool,
    /// A record of `hourglass ceilings` that the floors are at, or `none` for no floors [default: this machine's]
    #[arg(long, value_name = "FILE|none")]
    ceilings: Option<PathBuf>,
    /// The folder to make for the records and report.html [default: .hourglass/runs/TIME-find]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Rank the records in this folder again, without measuring; with --climb: the first rung [default: kv-cache]
    #[arg(long, value_name = "DIR|RUNG")]
    from: Option<String>,
    /// Walk the ladder: at each rung find, predict, clock it against the next, decide
    #[arg(long, conflicts_with_all = ["quick", "checkpoint"])]
    climb: bool,
    /// With --climb: the last rung [default: fast]
    #[arg(long, value_name = "RUNG")]
    to: Option<String>,
    /// With --climb: go on with the climb in this folder; steps whose records are whole are not measured again
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    resume: Option<PathBuf>,
    /// Leave out report.html; `hourglass report` makes it from the folder later
    #[arg(long, conflicts_with = "climb")]
    no_report: bool,
    /// Write the ranking to this file too
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    // Said here, because the parser asks nothing more of a flag beside one that --climb excludes, such as --quick.
    for (flag, given) in [("--resume", args.resume.is_some()), ("--to", args.to.is_some())] {
        if given && !args.climb {
            return Err(usage(format!("{flag}: needs --climb, which excludes --quick and --checkpoint")));
        }
    }
    if let Some(from) = args.from.as_ref().filter(|_| !args.climb) {
        args.refuse_beside_from()?;
        return again(&args, Path::new(from));
    }
    let shape = Shape::of(&args)?;
    // Before any work: a wrong flag costs nothing.
    let options = args.machine.options("--checkpoint", &args.checkpoint)?;
    let (checkpoint, registry) = (options.checkpoint.name.to_owned(), options.registry);
    let ceilings = args.ceilings.as_deref().filter(|path| *path != Path::new("none"));
    if let Some(path) = ceilings {
        record::read::<record::Ceilings>(
            &format!("--ceilings {}", path.display()),
            &record_files::bytes("--ceilings", path)?,
        )
        .map_err(|error| usage(error.to_string()))?;
    }
    let model = ModelArgs { model: shape.model.clone(), offline: args.model.offline };
    let files = model.open(Some(DEFAULT_MODEL))?;
    request::check_positions(shape.input_len, shape.output_len, &files)?;
    let prompt = request::prompt(shape.input_len, &files, shape.seed);
    let work = Work {
        phase: Phase::Request,
        prompt: &prompt,
        capacity: prompt.len() + shape.output_len,
        output_tokens: shape.output_len,
        logits: shape.logits.mode(),
        seed: shape.seed,
    };
    let workload = request::workload(&files, &work)?;
    if args.climb {
        let flags = plan::flags(&model, &args.machine)?;
        return climb::run(climb::Asked { args: &args, shape: &shape, flags, workload });
    }
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let protocol = FindProtocol {
        checkpoint: checkpoint.clone(),
        quick: args.quick,
        budget_s: if args.quick { QUICK_BUDGET_S } else { BUDGET_S },
        flags: plan::flags(&model, &args.machine)?,
    };
    let directory = directory(args.out.as_deref())?;
    if !args.json {
        let line = format!("{} at checkpoint '{checkpoint}', into {}", files.label(), directory.display());
        output::print(table::opening(&line, model.model.is_none()).as_bytes())?;
    }
    let plan = plan::Plan {
        protocol: &protocol,
        shape: &shape,
        directory: &directory,
        ceilings: args.ceilings.as_deref(),
        rungs: folder::following(&registry, &checkpoint),
        parts: (workload.context_tokens, workload.output_tokens),
    };
    let steps = walk::walk(&plan)?;
    let folder = Folder::read(&directory, &checkpoint, protocol.flags.clone(), &registry);
    let record = folder.record(workload, protocol, steps)?;
    output::OutputFile::create("--out", &directory.join("find.json"))?.finish_with_json(&record)?;
    if !args.no_report {
        walk::report(&directory, std::slice::from_ref(&directory));
    }
    finish(&args, &record, record_file, &directory)
}

impl Args {
    /// # Errors
    /// A flag that measures, beside a folder that has been measured.
    fn refuse_beside_from(&self) -> Result<()> {
        let given = [
            ("--out", self.out.is_some()),
            ("--quick", self.quick),
            ("--no-report", self.no_report),
            ("--workload", self.workload.is_some()),
            ("--input-len", self.input_len.is_some()),
            ("--output-len", self.output_len.is_some()),
            ("--prefill-logits", self.prefill_logits.is_some()),
            ("--seed", self.seed.is_some()),
            ("--ceilings", self.ceilings.is_some()),
            ("--model", self.model.model.is_some()),
        ];
        match given.into_iter().find(|(_, is)| *is) {
            Some((flag, _)) => Err(usage(format!(
                "{flag} beside --from, which measures nothing and ranks the folder's own request; leave one of them out"
            ))),
            None => Ok(()),
        }
    }
}

/// Ranks what a folder holds.
fn again(args: &Args, from: &Path) -> Result<ExitCode> {
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let (workload, protocol, steps) = folder::said(from)?;
    args.given.refuse_other_than(&args.checkpoint, &args.machine, &protocol)?;
    let registry = folder::registry_of(&protocol.flags);
    let record = Folder::look(from, &protocol.checkpoint, protocol.flags.clone(), &registry)
        .record(workload, protocol, steps)?;
    finish(args, &record, record_file, from)
}

fn finish(args: &Args, record: &FindRecord, file: Option<output::OutputFile>, directory: &Path) -> Result<ExitCode> {
    if let Some(file) = file {
        file.finish_with_json(record)?;
    }
    if args.json {
        output::print_json(record)?;
    } else {
        output::print(table::text(record, directory).as_bytes())?;
    }
    if interrupt::requested() {
        let why = record.coverage.reason().unwrap_or("everything had been measured");
        output::note(format_args!("hourglass: interrupted: {why}; what was written is in {}", directory.display()));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let void = crate::void::said(record);
    let complete = record.coverage.is_complete() && !void && record.ranking.known().is_some();
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The new folder of a run.
///
/// # Errors
/// It exists, or cannot be made.
fn directory(out: Option<&Path>) -> Result<PathBuf> {
    let Some(out) = out else { return Store::open_or_create(None)?.new_run("find") };
    if out.symlink_metadata().is_ok() {
        return Err(usage(format!(
            "--out {}: already exists and is never overwritten; choose another path, or rank it again with --from",
            out.display()
        )));
    }
    std::fs::create_dir(out).map_err(|error| usage(format!("--out {}: cannot be made: {error}", out.display())))?;
    Ok(out.to_path_buf())
}
