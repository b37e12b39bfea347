//! `hourglass ladder`: the rungs (parent, change, hypothesis, place in the source), and how a rung's programs differ from its
//! parent's. Not here: what a rung is worth; that is measured.

pub(crate) mod diff;

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use ops::{CachePolicy, Checkpoint, Registry, WeightPolicy, ladder};
use serde::Serialize;

use crate::device::{DeviceChoice, for_rung};
use crate::failure::usage;
use crate::load::{DEFAULT_MODEL, ModelArgs, Solution};
use crate::output;
use crate::prose::paragraph;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare the programs of this checkpoint with its parent's, call by call; `fast` is the newest rung
    #[arg(long, value_name = "CHECKPOINT")]
    diff: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    /// With --diff: columns per group when dense weights are quantized at load
    #[arg(long, value_name = "N", default_value_t = 128)]
    w4_group: usize,
    /// Whose ladder: the CPU's, or a GPU's, which has more rungs: cpu, cuda[:N], or auto
    #[arg(long, value_name = "cpu|cuda[:N]|auto", default_value_t = DeviceChoice::Cpu)]
    device: DeviceChoice,
    /// Whose checkpoints
    #[arg(long, value_enum, default_value = "hourglass")]
    solution: Solution,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One checkpoint, as listed.
#[derive(Serialize)]
struct Rung {
    name: &'static str,
    /// The oracle and the first rung have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<&'static str>,
    change: &'static str,
    hypothesis: &'static str,
    cache: &'static str,
    weights: &'static str,
    fusions: Vec<&'static str>,
    /// How workers walk.
    pace: String,
    /// `file:line`.
    source: String,
}

/// A name that stands for a checkpoint.
#[derive(Serialize)]
struct Alias {
    name: &'static str,
    checkpoint: &'static str,
}

#[derive(Serialize)]
struct Retired {
    name: &'static str,
    why: &'static str,
}

#[derive(Serialize)]
struct Listing {
    checkpoints: Vec<Rung>,
    aliases: Vec<Alias>,
    retired: Vec<Retired>,
    /// Names of the rungs that run on a GPU alone, where they are not among the checkpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    on_a_gpu_alone: Vec<&'static str>,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let registry = args.solution.registry();
    let registry = match (&args.diff, args.device) {
        // Which kernels a rung's calls get is the GPU's to say; its names are known without one.
        (Some(name), device) => match device.open().map_err(|error| for_rung(error, name))? {
            Some(gpu) => registry.on_device(gpu.kernels()),
            None => registry,
        },
        (None, device) if device.is_gpu()? => registry.on_device(&[]),
        (None, _) => registry,
    };
    match &args.diff {
        None if args.model.model.is_some() => {
            return Err(usage("--model is for --diff CHECKPOINT: the list of checkpoints is the same for every model"));
        }
        None => {
            let listing = listing(&registry);
            if args.json { output::print_json(&listing)? } else { output::print(list(&listing).as_bytes())? }
        }
        Some(name) => {
            let rung = registry.checkpoint(name).map_err(|why| usage(format!("--diff: {why}")))?;
            let parent = rung.parent.ok_or_else(|| {
                usage(format!("--diff {name}: it has no parent to compare with; choose another of `hourglass ladder`"))
            })?;
            // Only shapes are read.
            let files = args.model.open(Some(DEFAULT_MODEL))?;
            let difference = diff::compare(parent, rung, &files, args.w4_group, &registry, diff::ROWS)?;
            if args.json { output::print_json(&difference)? } else { output::print(difference.text().as_bytes())? }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn listing(registry: &Registry) -> Listing {
    let rung = |checkpoint: &'static Checkpoint| Rung {
        name: checkpoint.name,
        parent: checkpoint.parent.map(|parent| parent.name),
        change: checkpoint.change,
        hypothesis: checkpoint.hypothesis,
        cache: match checkpoint.cache {
            CachePolicy::None => "none",
            CachePolicy::Concatenate => "concatenated",
            CachePolicy::Bounded => "bounded",
        },
        weights: match checkpoint.weights {
            WeightPolicy::Float32 => "float32",
            WeightPolicy::Dense => "bfloat16",
            WeightPolicy::Packed => "packed",
        },
        fusions: checkpoint.rewrites.iter().map(|rewrite| rewrite.name).collect(),
        pace: checkpoint.pace.to_string(),
        source: format!("{}:{}", checkpoint.file, checkpoint.line),
    };
    Listing {
        checkpoints: registry.checkpoints().map(rung).collect(),
        aliases: vec![Alias { name: ladder::FAST, checkpoint: registry.newest().name }],
        on_a_gpu_alone: ladder::DEVICE
            .iter()
            .map(|rung| rung.name)
            .filter(|name| registry.checkpoint(name).is_err())
            .collect(),
        retired: ladder::RETIRED.iter().map(|(name, why)| Retired { name, why }).collect(),
    }
}

fn list(listing: &Listing) -> String {
    let mut text = String::new();
    for rung in &listing.checkpoints {
        let parent = rung.parent.map_or_else(String::new, |parent| format!(" (after {parent})"));
        let _ = writeln!(text, "{}{parent}   {}", rung.name, rung.source);
        let fusions = if rung.fusions.is_empty() { "none".to_owned() } else { rung.fusions.join(", ") };
        let policies = format!("cache {}, weights {}, fusions: {fusions}", rung.cache, rung.weights);
        text += &paragraph("  ", &policies, "    ");
        text += &paragraph("  pace:       ", &rung.pace, "              ");
        text += &paragraph("  change:     ", rung.change, "              ");
        text += &paragraph("  hypothesis: ", rung.hypothesis, "              ");
        text.push('\n');
    }
    for Alias { name, checkpoint } in &listing.aliases {
        let meaning = format!("{name}: stands for '{checkpoint}', the newest rung; what --checkpoint is unless given");
        text += &paragraph("", &meaning, "  ");
    }
    if !listing.on_a_gpu_alone.is_empty() {
        let names = listing.on_a_gpu_alone.join(", ");
        text += &paragraph("", &format!("On a GPU alone: {names}; `hourglass ladder --device cuda` lists them"), "  ");
    }
    for Retired { name, why } in &listing.retired {
        text += &paragraph("", &format!("{name}: retired: {why}"), "  ");
    }
    text
}
