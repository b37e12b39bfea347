//! `hourglass bench`: several variants clocked in one alternated run, each sample in a fresh process.
//! Not here: clocking one request (`bench/child.rs`), the order's walk (`runner.rs`), what follows from samples (`record::bench`).

mod child;
mod commands;
mod endpoint;
mod growing;
mod process;
mod runner;
pub(crate) mod table;
mod variants;
mod view;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use ops::Registry;
use record::bench::{Arm, BenchProtocol, BenchRecord, EXCLUSION_RULE, Slot, Tolerance};
use record::export::Format;
use record::gate::{Failure, Gate};
use record::statistics::{CONFIDENCE, order};
use record::{Coverage, Known, Phase, Record, Workload};
use weights::ModelFiles;

use crate::failure::{INTERRUPTED, usage};
use crate::load::{DEFAULT_MODEL, MachineArgs, ModelArgs};
use crate::output::OutputFile;
use crate::request::{PrefillLogits, Work, check_counts};
use crate::{interrupt, output, request};
use growing::GrowingFile;
use runner::Processes;
use variants::{Suite, Variant, What};
use view::View;

/// Logits this near to each other may be decided otherwise by another kernel on the same weights: BF16 logits near 16 are
/// spaced by 0.125, and a sum in another order moves one by a few of those.
const KERNEL_TIE: f64 = 0.5;
/// The same for weights that another engine rounded to 4 bits in its own way, which moves a logit by about 1.
const WEIGHTS_TIE: f64 = 3.0;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    child: Option<Verb>,
    #[command(flatten)]
    model: ModelArgs,
    /// What to compare, once for each; the first is the control. A checkpoint (also as week2-NAME), fast, mlx, llama.cpp,
    /// llama.cpp-avx2, openvino, transformers, transformers-bf16, endpoint:URL (a server that speaks OpenAI's API), or A/A
    /// (the control again, which shows the machine's noise) [default: selected and fast]
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,
    /// What to compare where no --variant is given
    #[arg(long, value_enum, conflicts_with = "variants")]
    suite: Option<Suite>,
    /// Fresh processes per variant; even where variants are compared, so that each order has its mirror image. On a quiet
    /// machine 4 find a difference of 10 %; for 3 % take 12 or more
    #[arg(long, value_name = "N", default_value_t = 4)]
    repeats: usize,
    /// Prompt tokens
    #[arg(long, value_name = "N", default_value_t = 128)]
    input_len: usize,
    /// Tokens to generate: the first by the prefill, each other by a decode step
    #[arg(long, value_name = "N", default_value_t = 129)]
    output_len: usize,
    /// Complete requests in each process before the measured one
    #[arg(long, value_name = "N", default_value_t = 2)]
    warmup: usize,
    /// Which prompt tokens get logits. The default is what generating needs, and what find and replay use
    #[arg(long, value_enum, default_value = "last")]
    prefill_logits: PrefillLogits,
    /// Seed of the prompt's token ids, and of the statistics' resampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Pause between processes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, allow_negative_numbers = true)]
    cooldown_seconds: f64,
    /// A process that takes longer, load and warm-up included, is ended and its sample lost
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0, allow_negative_numbers = true)]
    time_limit_seconds: f64,
    /// Share of the processors that others may take before a sample is marked, and left out where enough remain
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, allow_negative_numbers = true)]
    load_limit: f64,
    /// The smallest difference that matters
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, allow_negative_numbers = true)]
    smallest_percent: f64,
    /// Exit with 1 if this holds for an arm, e.g. 'decode < 0.97 * baseline'; may be given several times
    #[arg(long = "fail-if", value_name = "CONDITION")]
    fail_if: Vec<String>,
    #[command(flatten)]
    machine: MachineArgs,
    /// The folder with the adapters of other engines [default: peers/, found upwards]
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
    /// Write the record of everything measured; while the run goes on it grows in FILE.partial
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Write the record in a form that another tool reads, once for each: llama-bench, llama-bench-arms, google-benchmark,
    /// bmf, csv, markdown
    #[arg(long = "export", value_name = "FORMAT=FILE")]
    exports: Vec<String>,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// One process of a bench run: one measured request, as JSON lines (bench-child/1)
    Child(Box<child::Args>),
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if let Some(Verb::Child(child)) = &args.child {
        return child::run(child);
    }
    args.check()?;
    let gates = args.gates()?;
    let registry = args.machine.registry()?;
    let variants = variants::resolve(&args.variants, args.suite, &registry)?;
    // Before anything runs: the repeats fit the number of variants, and every rung's flags are good.
    order::schedule(variants.len(), args.repeats).map_err(|error| usage(format!("--repeats: {error}")))?;
    for variant in &variants {
        if let What::Checkpoint(name) = &variant.what {
            args.machine.options("--variant", name)?;
        }
    }
    let record_file = args.json_output.as_deref().map(|path| GrowingFile::create("--json-output", path)).transpose()?;
    let exports = args.exports()?;
    let files = args.model.open(Some(DEFAULT_MODEL))?;
    request::check_positions(args.input_len, args.output_len, &files)?;
    let prompt = request::prompt(args.input_len, &files, args.seed);
    let scratch = tempfile::tempdir().context("a folder for the prompt's ids could not be made")?;
    let ids = scratch.path().join("ids.json");
    std::fs::write(&ids, serde_json::to_vec(&prompt)?).context("the prompt's ids could not be written")?;
    let commands = commands::all(&args, &variants, &files, &ids)?;
    let mut record = args.plan(&variants, &commands, &files, &prompt)?;
    if let Some(warning) = table::warning(&record, &registry) {
        output::note(warning);
    }
    let mut executor = Processes {
        commands: commands.into_iter().map(Result::ok).collect(),
        limit: Duration::from_secs_f64(args.time_limit_seconds),
        output_tokens: args.output_len as u64,
    };
    let mut view = View::new(record_file);
    let ran = runner::run(&mut record, &mut executor, &mut view);
    // What was measured is shown even where it could not be saved.
    let mut saved = ran.and_then(|()| view.finish(&record));
    for (format, file) in exports {
        match format.render(&record) {
            Ok(text) => saved = together(saved, file.finish_with(text.as_bytes())),
            // An interrupted run may have nothing to export; what it has is in the record.
            Err(error) => output::note(format_args!("hourglass: {error}")),
        }
    }
    let code = report(&args, &record, &gates)?;
    saved.map(|()| code)
}

/// One of two results that is an error, the earlier; a second error is told at once.
fn together(earlier: Result<()>, later: Result<()>) -> Result<()> {
    if let (Err(_), Err(error)) = (&earlier, &later) {
        output::note(format_args!("hourglass: {error:#}"));
    }
    earlier.and(later)
}

/// Everything printed, and the exit code.
fn report(args: &Args, record: &BenchRecord, gates: &[(String, Gate)]) -> Result<ExitCode> {
    if args.json {
        output::print_json(record)?;
    } else {
        let (default_model, kept) = (args.model.model.is_none(), args.json_output.is_some());
        output::print(table::text(record, default_model, kept).as_bytes())?;
    }
    if interrupt::requested() {
        let why = record.coverage.reason().unwrap_or("everything had been measured");
        output::note(format_args!("hourglass: interrupted: {why}"));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    // An arm whose output or wiring failed is a check that failed, whether or not a gate asks.
    let void = crate::void::said(record);
    let mut passed = record.coverage.is_complete() && !void && record.arms.iter().all(|arm| arm.counts);
    for (text, gate) in gates {
        match gate.failures(record) {
            Ok(failures) => {
                for Failure { arm, sentence } in &failures {
                    output::note(format_args!("hourglass: --fail-if '{text}' holds for {arm}: {sentence}"));
                }
                passed &= failures.is_empty();
            }
            Err(missing) => {
                output::note(format_args!("hourglass: {missing}"));
                passed = false;
            }
        }
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Args {
    fn model_name(&self) -> &str {
        self.model.model.as_deref().unwrap_or(DEFAULT_MODEL)
    }

    fn check(&self) -> Result<()> {
        let warmup = ("--warmup", self.warmup, 0..=1_000, "requests that are not timed");
        check_counts(request::lengths(self.input_len, self.output_len).into_iter().chain([warmup]))?;
        let numbers = [
            ("--cooldown-seconds", self.cooldown_seconds, 0.0, 86_400.0, "a pause between processes"),
            ("--time-limit-seconds", self.time_limit_seconds, 0.001, 8_640_000.0, "the longest a process may take"),
            ("--load-limit", self.load_limit, 0.0, 1.0, "a share of all processors, such as 0.1"),
            ("--smallest-percent", self.smallest_percent, 0.0, 99.0, "a difference in percent, such as 2"),
        ];
        for (flag, found, least, most, what) in numbers {
            if !(least..=most).contains(&found) {
                return Err(usage(format!("{flag} {found}: expected {least} to {most} ({what})")));
            }
        }
        Ok(())
    }

    fn gates(&self) -> Result<Vec<(String, Gate)>> {
        let parse = |text: &String| match Gate::parse(text) {
            Ok(gate) => Ok((text.clone(), gate)),
            Err(error) => Err(usage(error.to_string())),
        };
        self.fail_if.iter().map(parse).collect()
    }

    /// The files of --export, claimed.
    fn exports(&self) -> Result<Vec<(Format, OutputFile)>> {
        let mut places = vec![("--json-output", self.json_output.as_deref())];
        let mut formats = Vec::with_capacity(self.exports.len());
        for text in &self.exports {
            let Some((format, path)) = text.split_once('=').filter(|(_, path)| !path.is_empty()) else {
                return Err(usage(format!("--export {text}: expected FORMAT=FILE, e.g. csv=bench.csv")));
            };
            formats.push((Format::parse(format).map_err(|error| usage(error.to_string()))?, Path::new(path)));
            places.push(("--export", Some(Path::new(path))));
        }
        output::check_distinct(&places)?;
        formats.into_iter().map(|(format, path)| Ok((format, OutputFile::create("--export", path)?))).collect()
    }

    /// The record before anything has run. Arms that cannot run have no slots, and say why.
    fn plan(
        &self,
        variants: &[Variant],
        commands: &[commands::Startable],
        files: &ModelFiles,
        prompt: &[u32],
    ) -> Result<BenchRecord> {
        let synthetic = files.label().starts_with("synthetic:");
        let registry = self.machine.registry()?;
        let mut arms: Vec<Arm> = Vec::with_capacity(variants.len());
        for (variant, command) in variants.iter().zip(commands) {
            let tolerance = tolerance(variant, &variants[0], synthetic, &registry);
            let mut arm = Arm::planned(&variant.name, &variant.given, variant.what.kind(), tolerance);
            if let Err(missing) = command {
                arm.engine = Known::Unavailable(missing.clone());
            }
            arms.push(arm);
        }
        let running: Vec<usize> = (0..commands.len()).filter(|arm| commands[*arm].is_ok()).collect();
        let (mut schedule, mut design) = (Vec::new(), "nothing can run".to_owned());
        if !running.is_empty() {
            let order =
                order::schedule(running.len(), self.repeats).map_err(|error| usage(format!("--repeats: {error}")))?;
            design = order.words();
            schedule = order.slots().map(|(row, arm)| Slot { arm: running[arm] as u64, block: row as u64 }).collect();
        }
        let mut record = BenchRecord {
            schema: BenchRecord::SCHEMA.to_owned(),
            created: probe::now(),
            workload: self.workload(files, prompt)?,
            workload_id: String::new(),
            protocol: BenchProtocol {
                design,
                repeats: self.repeats as u64,
                warmup: self.warmup as u64,
                cooldown_s: self.cooldown_seconds,
                time_limit_s: self.time_limit_seconds,
                seed: self.seed,
                confidence: CONFIDENCE,
                practical_percent: self.smallest_percent,
                load_limit: self.load_limit,
                exclusion_rule: EXCLUSION_RULE.to_owned(),
            },
            binary: probe::binary(),
            host: probe::host(),
            schedule,
            arms,
            samples: Vec::new(),
            comparisons: Vec::new(),
            noise: Known::unavailable("nothing has run", "let the run go on"),
            coverage: Coverage::incomplete("nothing has run"),
            checks: Vec::new(),
            void: false,
        };
        record.conclude()?;
        Ok(record)
    }

    fn workload(&self, files: &ModelFiles, prompt: &[u32]) -> Result<Workload> {
        let (capacity, output_tokens) = (prompt.len() + self.output_len, self.output_len);
        let logits = self.prefill_logits.mode();
        request::workload(
            files,
            &Work { phase: Phase::Request, prompt, capacity, output_tokens, logits, seed: self.seed },
        )
    }
}

/// Synthetic weights are made so that every correct engine chooses the same tokens; on others, near ties may fall either
/// way, and weights that were rounded in another way are other weights.
fn tolerance(variant: &Variant, control: &Variant, synthetic: bool, registry: &Registry) -> Tolerance {
    let weights = |variant: &Variant| match variant.what {
        What::Checkpoint(name) => registry.checkpoint(name).ok().map(|checkpoint| checkpoint.weights),
        _ => None,
    };
    match (&variant.what, weights(variant), weights(control)) {
        _ if synthetic => Tolerance::Equal,
        (What::SameAgain, ..) => Tolerance::Equal,
        (_, Some(own), Some(controls)) if own == controls => Tolerance::NearTie { margin: KERNEL_TIE },
        _ => Tolerance::NearTie { margin: WEIGHTS_TIE },
    }
}
