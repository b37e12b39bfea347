//! From the flags that name a model and an engine to [`ModelFiles`] and [`Engine`].
//! Not here: what a model is run on (`input`), and how its tokens are chosen (`sampling`).

use std::sync::OnceLock;
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;
use model::{Engine, Keep, LoadOptions};
use ops::{Features, MechanismControls};
use weights::{ModelFiles, ModelSource, OpenOptions};

use crate::device::{DeviceChoice, for_rung};
use crate::failure::usage;
use crate::interrupt;
use crate::progress::Progress;

/// What is measured where no model is named: no download, and speed does not depend on weight values.
pub(crate) const DEFAULT_MODEL: &str = "synthetic:qwen3-0.6b";

/// Prompt tokens that one pass takes on a GPU, whose tensor cores want many rows and whose memory holds their activations.
const DEVICE_CHUNK: usize = 2048;

/// Which model.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// A directory (Hugging Face or MLX layout), a .gguf file, a known name (qwen3-0.6b, -1.7b, -4b, -8b), a hub
    /// repository owner/name, or synthetic:NAME[@SEED]
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Never touch the network: the model must be in the local hub cache already
    #[arg(long)]
    pub(crate) offline: bool,
}

impl ModelArgs {
    /// Opens the model, or `default` if none is named; downloads with a progress line unless `--offline`.
    ///
    /// # Errors
    /// No model named and no default; whatever is wrong with its files.
    pub(crate) fn open(&self, default: Option<&str>) -> Result<ModelFiles> {
        let Some(text) = self.model.as_deref().or(default) else {
            return Err(usage(
                "--model is missing: expected a directory, a .gguf file, a name such as qwen3-0.6b, or \
                 synthetic:qwen3-0.6b (random weights, needs --ids instead of text)",
            ));
        };
        let progress = Progress::new("download");
        let show = |done: u64, total: Option<u64>, file: &str| progress.bytes(done, total, file);
        let cancelled = interrupt::flag();
        let options = OpenOptions { offline: self.offline, progress: Some(&show), cancelled: Some(&cancelled) };
        Ok(weights::open(&ModelSource::parse(text)?, &options)?)
    }
}

/// Makes the registry that `--solution lab` means.
static LAB: OnceLock<fn() -> ops::Registry> = OnceLock::new();

/// Says, once, what `--solution lab` means in this program; without it, this repository's own registry.
pub(crate) fn set_lab(lab: fn() -> ops::Registry) {
    LAB.get_or_init(|| lab);
}

/// Whose kernels and checkpoints.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Solution {
    /// This repository's
    Hourglass,
    /// Those plus yours: crates/lab, or your own project
    Lab,
}

impl Solution {
    /// What to add where a name is unknown: the lab is a file that is edited, and names in it are a built program's.
    pub(crate) fn unbuilt(self) -> &'static str {
        match self {
            Solution::Hourglass => "; those of your lab are known with --solution lab",
            Solution::Lab => {
                "; what was added to the lab since is known once the program is built again (`cargo build --release`)"
            }
        }
    }

    pub(crate) fn registry(self) -> ops::Registry {
        match self {
            Solution::Hourglass => ops::Registry::standard(),
            Solution::Lab => LAB.get().map_or_else(ops::Registry::standard, |lab| lab()),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Solution::Hourglass => "hourglass",
            Solution::Lab => "lab",
        }
    }
}

/// The value of a flag that is switched.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnOff {
    On,
    Off,
}

impl OnOff {
    pub(crate) fn is_on(self) -> bool {
        self == OnOff::On
    }
}

/// Under what a request of this prompt runs: machine, binary, threads, and the kernels that its passes are bound to.
///
/// # Errors
/// A pass that does not bind, which the request would have shown before.
pub(crate) fn conditions(engine: &mut Engine, prompt: usize, capacity: usize) -> Result<record::Conditions> {
    let mut kernels = Vec::new();
    for (phase, rows) in [(record::Phase::Prefill, prompt), (record::Phase::Decode, 1)] {
        let rows = rows.min(engine.options().prefill_chunk);
        kernels.extend(probe::bound_kernels(phase, engine.kernels(rows, Keep::Last, capacity)?));
    }
    Ok(probe::conditions(engine, kernels))
}

/// How an engine runs, at whatever checkpoint.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub(crate) struct MachineArgs {
    /// Whose kernels and checkpoints to use
    #[arg(long, value_enum, default_value = "hourglass")]
    pub(crate) solution: Solution,
    /// What runs the model: cpu, cuda (the first GPU), cuda:N, or auto (a GPU if one can be used)
    #[arg(long, value_name = "cpu|cuda[:N]|auto", default_value_t = DeviceChoice::Cpu)]
    pub(crate) device: DeviceChoice,
    /// Worker threads [default: every processor]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Pin each worker to a processor; each part of the weights then lies in the memory near the worker that reads it
    #[arg(long)]
    pub(crate) pin: bool,
    /// Allow F16 and F32 weights to be rounded to BF16 where the checkpoint holds BF16
    #[arg(long)]
    pub(crate) convert: bool,
    /// Columns per group when dense weights are quantized at load: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) w4_group: usize,
    /// Instruction-set features to do without, comma-separated; `hourglass doctor` lists this machine's
    #[arg(long, value_name = "LIST")]
    pub(crate) features_without: Option<String>,
}

/// How the engine runs it.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// The rung of the ladder; `hourglass ladder` lists them, and `fast` stands for the newest
    #[arg(long, value_name = "NAME", default_value = ops::ladder::FAST)]
    pub(crate) checkpoint: String,
    /// Override the checkpoint: one bounded allocation per layer's cache (on) or growth by concatenation (off)
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    capacity_cache: Option<OnOff>,
    /// Override the checkpoint: fused RMSNorm keeps its row in registers (on) or reads it twice (off)
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    register_cached_rmsnorm: Option<OnOff>,
    /// Override the checkpoint: tiled prefill attention
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    tiled_prefill: Option<OnOff>,
}

impl EngineArgs {
    /// What [`Engine::load`] takes; call it before opening the model, so that a wrong flag costs nothing.
    ///
    /// # Errors
    /// An unknown or retired checkpoint, an unknown feature, a switch the checkpoint cannot have, a number out of range.
    pub(crate) fn options(&self) -> Result<LoadOptions> {
        let mut options = self.machine.options("--checkpoint", &self.checkpoint)?;
        options.controls = MechanismControls {
            capacity_cache: self.capacity_cache.map(OnOff::is_on),
            register_cached_rmsnorm: self.register_cached_rmsnorm.map(OnOff::is_on),
            tiled_prefill: self.tiled_prefill.map(OnOff::is_on),
        };
        options.checkpoint.resolve(options.controls).map_err(usage)?;
        Ok(options)
    }

    /// The checkpoint and its switches as flags again, for a process of this same program.
    pub(crate) fn chosen(&self) -> Vec<(&'static str, String)> {
        let switches = [
            ("--capacity-cache", self.capacity_cache),
            ("--register-cached-rmsnorm", self.register_cached_rmsnorm),
            ("--tiled-prefill", self.tiled_prefill),
        ];
        let on_off = |switch: OnOff| if switch.is_on() { "on" } else { "off" }.to_owned();
        let given = switches.into_iter().filter_map(|(name, switch)| Some((name, on_off(switch?))));
        std::iter::once(("--checkpoint", self.checkpoint.clone())).chain(given).collect()
    }
}

impl MachineArgs {
    /// The kernels and checkpoints that there are for the device.
    ///
    /// # Errors
    /// A GPU that was named and cannot be used.
    pub(crate) fn registry(&self) -> Result<ops::Registry> {
        let registry = self.solution.registry();
        Ok(match self.device.open()? {
            Some(device) => registry.on_device(device.kernels()),
            None => registry,
        })
    }

    /// The same for a checkpoint that `flag` named, without switches.
    ///
    /// # Errors
    /// An unknown or retired checkpoint, an unknown feature, a number out of range.
    pub(crate) fn options(&self, flag: &str, checkpoint: &str) -> Result<LoadOptions> {
        let device = self.device.open().map_err(|error| for_rung(error, checkpoint))?;
        let registry = self.registry()?;
        let checkpoint = registry
            .checkpoint(checkpoint)
            .map_err(|why| usage(format!("{flag}: {why}{}", self.solution.unbuilt())))?;
        let mut options = LoadOptions::new(checkpoint);
        options.cancelled = interrupt::flag();
        options.registry = registry;
        match self.threads {
            Some(0) => return Err(usage("--threads 0: expected at least 1; leave it out to use every processor")),
            Some(threads) if threads > 1024 => {
                return Err(usage(format!("--threads {threads}: expected at most 1024")));
            }
            Some(threads) => options.threads = threads,
            None => {}
        }
        if self.pin && options.threads > ops::processors() {
            return Err(usage(format!(
                "--pin with {} threads: expected at most the {} processors of this process, as two workers that are pinned to one \
                 wait for each other; give --threads {} or leave out --pin",
                options.threads,
                ops::processors(),
                ops::processors()
            )));
        }
        options.pin = self.pin;
        options.convert = self.convert;
        if ![32, 64, 128].contains(&self.w4_group) {
            return Err(usage(format!("--w4-group {}: expected 32, 64 or 128", self.w4_group)));
        }
        options.w4_group = self.w4_group;
        if let Some(list) = &self.features_without {
            let masked = Features::parse(list).map_err(|unknown| {
                let known: Vec<_> = ops::Feature::ALL.iter().map(|feature| feature.name()).collect();
                usage(format!("--features-without: unknown feature '{unknown}'; known ones are {}", known.join(", ")))
            })?;
            options.features = options.features.without(masked);
        }
        if device.is_some() {
            options.prefill_chunk = DEVICE_CHUNK;
        }
        options.device = device;
        Ok(options)
    }
}

/// A loaded engine and the seconds that loading took.
pub(crate) fn load(files: &ModelFiles, options: LoadOptions) -> Result<(Engine, f64)> {
    let start = Instant::now();
    let engine = Engine::load(files, options)?;
    Ok((engine, start.elapsed().as_secs_f64()))
}

/// The first line of every verb that runs a model: what runs, in which form, and what was converted for it.
pub(crate) fn describe(files: &ModelFiles, engine: &Engine) -> String {
    let options = engine.options();
    let on = match &options.device {
        Some(device) => device.label(),
        None => format!("{} thread{}", options.threads, if options.threads == 1 { "" } else { "s" }),
    };
    let pinned = if options.pin { ", pinned" } else { "" };
    let mut line = format!("{} at checkpoint '{}', {on}{pinned}", files.label(), engine.checkpoint().name);
    for note in engine.notes() {
        line.push_str("; ");
        line.push_str(note);
    }
    line
}
