//! `hourglass wiring`: which kernel every call of a checkpoint's passes gets, and which kernels none gets; or, with `--diff`,
//! what a change rerouted. Not here: the list itself (`probe`), the comparison (`ladder/diff`), the tables (`wiring/table`).

pub(crate) mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use model::{LoadOptions, WeightFormats, weight_formats};
use ops::{MechanismControls, Resolved};
use probe::{Binding, Pass};
use record::{LogitsMode, Phase, Record, WiringPlan, Workload};
use weights::ModelFiles;

use crate::failure::usage;
use crate::ladder::diff;
use crate::load::{DEFAULT_MODEL, MachineArgs, ModelArgs};
use crate::request::{PrefillLogits, Work};
use crate::{output, request};

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum PhaseArg {
    Prefill,
    Decode,
    Both,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The rung of the ladder; `hourglass ladder` lists them, and `fast` stands for the newest
    #[arg(value_name = "CHECKPOINT", default_value = ops::ladder::FAST)]
    checkpoint: String,
    #[command(flatten)]
    model: ModelArgs,
    /// Rows of the prefill; the decode step reaches a context of as many
    #[arg(long, value_name = "N", default_value_t = 128)]
    input_len: usize,
    /// Which passes
    #[arg(long, value_enum, default_value = "both")]
    phase: PhaseArg,
    /// Which prompt tokens get logits
    #[arg(long, value_enum, default_value = "last")]
    prefill_logits: PrefillLogits,
    /// Positions that the cache is made for [default: --input-len]
    #[arg(long, value_name = "N")]
    capacity: Option<usize>,
    #[command(flatten)]
    machine: MachineArgs,
    /// In place of the list: what differs from this checkpoint (without a name: from its parent)
    #[arg(long, value_name = "PARENT", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["json_output", "phase", "prefill_logits", "capacity", "all"])]
    diff: Option<String>,
    /// Every call on its own line; layers that are alike are shown once otherwise
    #[arg(long)]
    all: bool,
    /// Write the record
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if args.input_len == 0 {
        return Err(usage("--input-len 0: expected at least 1"));
    }
    let capacity = args.capacity.unwrap_or(args.input_len);
    if capacity < args.input_len {
        return Err(usage(format!(
            "--capacity {capacity}: expected at least --input-len, which is {}",
            args.input_len
        )));
    }
    let options = args.machine.options("CHECKPOINT", &args.checkpoint)?;
    let file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    if let Some(parent) = &args.diff {
        difference(&args, &options, parent)?;
        return Ok(ExitCode::SUCCESS);
    }
    let files = open(&args, capacity)?;
    let record = plan(&args, &options, &files, capacity)?;
    if let Some(file) = file {
        file.finish_with_json(&record)?;
    }
    if args.json {
        output::print_json(&record)?;
    } else {
        output::print(table::text(&record, args.all).as_bytes())?;
    }
    Ok(if crate::void::said(&record) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn open(args: &Args, capacity: usize) -> Result<ModelFiles> {
    let files = args.model.open(Some(DEFAULT_MODEL))?;
    let limit = files.config().max_positions;
    if capacity > limit {
        let flag = if args.capacity.is_some() { "--capacity" } else { "--input-len" };
        return Err(usage(format!("{flag} {capacity}: expected at most the {limit} positions of {}", files.label())));
    }
    Ok(files)
}

fn difference(args: &Args, options: &LoadOptions, parent: &str) -> Result<()> {
    let rung = options.checkpoint;
    let parent = match parent {
        "" => rung.parent.ok_or_else(|| {
            usage(format!("--diff: '{}' has no parent to compare with; name another checkpoint", rung.name))
        })?,
        name => options.registry.checkpoint(name).map_err(|why| usage(format!("--diff: {why}")))?,
    };
    let files = open(args, args.input_len)?;
    let found = diff::compare(parent, rung, &files, options.w4_group, &options.registry, args.input_len)?;
    if args.json { output::print_json(&found) } else { output::print(found.text().as_bytes()) }
}

fn plan(args: &Args, options: &LoadOptions, files: &ModelFiles, capacity: usize) -> Result<WiringPlan> {
    let inherit = MechanismControls::default();
    let checkpoint = options.checkpoint.resolve(inherit).map_err(usage)?;
    // No value is read, so none needs rounding.
    let options = LoadOptions { convert: true, ..options.clone() };
    let formats = weight_formats(files, &checkpoint, &options)?;
    let logits = args.prefill_logits.mode();
    let phases = match args.phase {
        PhaseArg::Prefill => &[Phase::Prefill][..],
        PhaseArg::Decode => &[Phase::Decode],
        PhaseArg::Both => &[Phase::Prefill, Phase::Decode],
    };
    let binding = Binding { config: files.config(), registry: &options.registry, features: options.features };
    let pass = |phase: Phase| Pass { phase, tokens: args.input_len, capacity, logits };
    let mut passes = Vec::new();
    for phase in phases {
        let workload = workload(files, pass(*phase))?;
        let planned = probe::planned_pass(&binding, &checkpoint, &formats, pass(*phase), workload);
        passes.push(planned.map_err(|error| usage(error.to_string()))?);
    }
    let conditions = probe::conditions_of(&options, probe::planned_kernels(&passes));
    let mut record = WiringPlan {
        schema: WiringPlan::SCHEMA.to_owned(),
        created: probe::now(),
        subject: probe::subject_of(
            &checkpoint,
            args.machine.solution.name(),
            &files.describe_encoding(),
            vec!["nothing was loaded: formats are those that loading would give".to_owned()],
        ),
        conditions,
        conditions_id: String::new(),
        passes,
        unreached: unreached(&binding, &options, files, args.input_len, capacity),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    Ok(record)
}

/// Over every checkpoint of the registry that this model's weights can be packed for, and both phases.
fn unreached(
    binding: &Binding<'_>,
    options: &LoadOptions,
    files: &ModelFiles,
    tokens: usize,
    capacity: usize,
) -> Vec<record::UnreachedKernel> {
    let mut checkpoints: Vec<(Resolved, WeightFormats)> = Vec::new();
    for checkpoint in options.registry.checkpoints() {
        let Ok(resolved) = checkpoint.resolve(MechanismControls::default()) else { continue };
        let options = LoadOptions { checkpoint, ..options.clone() };
        // A checkpoint that cannot hold this model runs none of its calls.
        if let Ok(formats) = weight_formats(files, &resolved, &options) {
            checkpoints.push((resolved, formats));
        }
    }
    let last = LogitsMode::Last;
    let passes = [Phase::Prefill, Phase::Decode].map(|phase| Pass { phase, tokens, capacity, logits: last });
    probe::unreached(binding, &checkpoints, &passes)
}

fn workload(files: &ModelFiles, pass: Pass) -> Result<Workload> {
    let tokens = request::prompt(pass.tokens, files, 0);
    let (phase, capacity, logits) = (pass.phase, pass.capacity, pass.logits);
    request::workload(files, &Work { phase, prompt: &tokens, capacity, output_tokens: 0, logits, seed: 0 })
}
