//! `hourglass capture`: one steady stretch of one step, with samples, spans and counters, as a directory of raw files.
//! Not here: how it is taken (`probe`), what it comes to (`reduce`, `lines`), what is printed (`capture/table`).

mod callgrind;
mod profiled;
mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use probe::{Capture, CaptureCase, Extent};
use record::capture::manifest::Manifest;
use record::capture::{CAUTION, Simulation, TracePackage};
use record::{CaptureMetadata, Conditions, Known, Phase, Record, Subject, Workload};
use weights::ModelFiles;

use crate::failure::{INTERRUPTED, Interrupted, usage};
use crate::load::{DEFAULT_MODEL, EngineArgs, ModelArgs};
use crate::output::{OutputDirectory, OutputFile};
use crate::progress::Progress;
use crate::request::{PrefillLogits, Work, check_counts};
use crate::{interrupt, load, output, request};

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// One pass over the prompt
    Prefill,
    /// One pass over one new token
    Decode,
}

impl Step {
    fn phase(self) -> Phase {
        match self {
            Step::Prefill => Phase::Prefill,
            Step::Decode => Phase::Decode,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Counting {
    /// The processor's and the operating system's, as far as they can be read here
    Auto,
    None,
    /// Those, and one pass more on valgrind's simulated processor: exact, slow, and other kernels where it lacks a feature
    Callgrind,
}

const PRECISION: f64 = 2.0;
const WARMUP: usize = 3;
const OVERHEAD_ROUNDS: usize = 2;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Which step is captured
    #[arg(long, value_enum, default_value = "decode")]
    phase: Step,
    /// S: a prefill of so many rows, or a decode step that reaches this context
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: usize,
    /// Which prompt tokens get logits
    #[arg(long, value_enum, default_value = "all")]
    prefill_logits: PrefillLogits,
    /// Positions that the cache is made for [default: S]
    #[arg(long, value_name = "N")]
    capacity: Option<usize>,
    /// Seed of the prompt's token ids
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Capture so many passes
    #[arg(long, value_name = "N", conflicts_with_all = ["seconds", "precision"])]
    steps: Option<usize>,
    /// Capture for so long
    #[arg(long, value_name = "F", conflicts_with = "precision")]
    seconds: Option<f64>,
    /// Capture until the widest 95 % interval of a kernel's share is so many percentage points to each side, for 30 s at most
    #[arg(long, value_name = "POINTS", default_value_t = PRECISION)]
    precision: f64,
    /// CPU samples per second and thread
    #[arg(long, value_name = "HZ", default_value_t = probe::sampler::FREQUENCY_HZ)]
    frequency: u64,
    /// Which counters are read
    #[arg(long, value_enum, default_value = "auto")]
    counters: Counting,
    /// Passes before everything else
    #[arg(long, value_name = "N", default_value_t = WARMUP)]
    warmup: usize,
    /// How often four blocks of passes (plain, captured, captured, plain) tell what capturing costs; 0: not at all
    #[arg(long, value_name = "N", default_value_t = OVERHEAD_ROUNDS)]
    overhead_rounds: usize,
    /// Write the raw files into this new directory
    #[arg(long, value_name = "DIR", required_unless_present_any = ["simulated_pass", "profiled_pass"])]
    trace: Option<PathBuf>,
    /// Write the metadata [default: the directory's name with .capture.json]
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
    /// Write the SHA-256 of every raw file [default: the directory's name with .manifest.sha256]
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Run one pass for valgrind, which started this process, and print which kernels ran
    #[arg(long, hide = true)]
    simulated_pass: bool,
    /// Run one pass for a GPU's profiler, which started this process, and write what ran
    #[arg(long, hide = true, value_name = "FILE")]
    profiled_pass: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print the metadata in place of the summary
    #[arg(long)]
    json: bool,
}

/// Which Nsight Compute would profile a GPU.
///
/// # Errors
/// None: why.
pub(crate) fn ncu_version() -> std::result::Result<String, String> {
    profiled::ncu().map(|(_, version)| version)
}

/// Where a capture is written.
struct Outputs {
    trace: OutputDirectory,
    metadata: OutputFile,
    manifest: OutputFile,
    paths: Paths,
}

struct Paths {
    trace: PathBuf,
    metadata: PathBuf,
    manifest: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    args.check()?;
    if args.profiled_pass.is_none() && args.engine.machine.device.is_gpu()? {
        return profiled::run(&args);
    }
    let options = args.engine.options()?;
    if let Some(file) = &args.profiled_pass {
        return profiled::pass(&args, options, file);
    }
    if args.simulated_pass {
        return callgrind::pass(&args, options);
    }
    let Outputs { trace, metadata, manifest, paths } = args.outputs()?;
    let files = args.open()?;
    let tokens = request::prompt(args.tokens, &files, args.seed);
    let workload = args.workload(&files, &tokens)?;
    let (mut engine, load_seconds) = load::load(&files, options)?;
    if !args.json {
        let head = crate::find::head(&load::describe(&files, &engine), args.model.model.is_none(), load_seconds);
        output::print(head.as_bytes())?;
    }
    let progress = Progress::new("capture");
    let show = |done: usize, total: usize, what: &str| progress.steps(done, total, what);
    let mut capture = match probe::capture(&mut engine, &args.case(&workload, &tokens, &paths), &show) {
        Ok(capture) => capture,
        Err(probe::Error::Model(model::Error::Interrupted)) => {
            return Err(Interrupted("before a pass was captured; nothing was written".to_owned()).into());
        }
        Err(probe::Error::Model(error)) => return Err(error.into()),
        Err(error @ probe::Error::TooManySamples { .. }) => return Err(usage(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    drop(progress);
    let conditions = probe::conditions(&engine, capture.kernels.clone());
    let subject = probe::subject(&engine, args.engine.machine.solution.name(), &files.describe_encoding());
    // The simulated pass loads the model again.
    drop(engine);
    let simulation = match callgrind::simulate(&args, trace.partial()) {
        Known::Is((simulation, counters)) => {
            capture.counters.extend(counters);
            Known::Is(simulation)
        }
        Known::Unavailable(missing) => Known::Unavailable(missing),
    };
    capture.write(trace.partial())?;
    let (listed, contents) = Manifest::of_directory(trace.partial())?;
    let package = TracePackage {
        basename: paths.trace.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        files: contents.files,
        bytes: contents.bytes,
        manifest_sha256: listed.sha256(),
    };
    let record = close(&capture, workload, conditions, subject, simulation, package);
    // The metadata last: where they are, everything is.
    trace.finish()?;
    manifest.finish_with(listed.text().as_bytes())?;
    metadata.finish_with_json(&record)?;
    if args.json {
        output::print_json(&record)?;
    } else {
        output::print(table::body(&record, &capture.counters, &paths).as_bytes())?;
    }
    if interrupt::requested() {
        output::note(format_args!(
            "hourglass: interrupted: {} passes had been captured and were written",
            record.steps
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if crate::void::said(&record) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Args {
    fn check(&self) -> Result<()> {
        check_counts([
            ("--tokens", self.tokens, 1..=usize::MAX, "a pass has a token"),
            (
                "--capacity",
                self.capacity(),
                self.tokens..=usize::MAX,
                "the cache holds S tokens; leave it out for those",
            ),
            ("--steps", self.steps.unwrap_or(1), 1..=usize::MAX, "a capture has a pass"),
            ("--warmup", self.warmup, 1..=1_000, "the first pass meets every page for the first time"),
            ("--frequency", self.frequency as usize, 1..=20_000, "samples per second"),
            ("--overhead-rounds", self.overhead_rounds, 0..=100, "each takes about half a second or twelve passes"),
        ])?;
        if self.seconds.is_some_and(|seconds| !(seconds > 0.0 && seconds <= 86_400.0)) {
            return Err(usage("--seconds: expected a number above 0, and at most a day"));
        }
        if !(0.1..=50.0).contains(&self.precision) {
            return Err(usage(format!("--precision {}: expected 0.1 to 50 percentage points", self.precision)));
        }
        Ok(())
    }

    /// # Errors
    /// A flag that says how a pass of the CPU is captured, beside a GPU.
    fn refuse_of_cpu(&self) -> Result<()> {
        let given = [
            ("--steps", self.steps.is_some_and(|steps| steps != 1)),
            ("--seconds", self.seconds.is_some()),
            ("--precision", self.precision != PRECISION),
            ("--frequency", self.frequency != probe::sampler::FREQUENCY_HZ),
            ("--counters", self.counters != Counting::Auto),
            ("--warmup", self.warmup != WARMUP),
            ("--overhead-rounds", self.overhead_rounds != OVERHEAD_ROUNDS),
        ];
        match given.into_iter().find(|(_, is)| *is) {
            Some((flag, _)) => Err(usage(format!(
                "{flag} beside --device {}: a pass on a GPU is captured once, each of its kernels alone, by its own profiler; \
                 leave it out",
                self.engine.machine.device
            ))),
            None => Ok(()),
        }
    }

    fn capacity(&self) -> usize {
        self.capacity.unwrap_or(self.tokens)
    }

    /// The model, which has enough positions.
    fn open(&self) -> Result<ModelFiles> {
        let files = self.model.open(Some(DEFAULT_MODEL))?;
        let (longest, limit) = (self.tokens.max(self.capacity()), files.config().max_positions);
        if longest > limit {
            return Err(usage(format!(
                "--tokens {} with a capacity of {} exceeds the {limit} positions of {}; ask for fewer",
                self.tokens,
                self.capacity(),
                files.label()
            )));
        }
        Ok(files)
    }

    fn workload(&self, files: &ModelFiles, tokens: &[u32]) -> Result<Workload> {
        let work = Work {
            phase: self.phase.phase(),
            prompt: tokens,
            capacity: self.capacity(),
            output_tokens: 0,
            logits: self.prefill_logits.mode(),
            seed: self.seed,
        };
        request::workload(files, &work)
    }

    fn case<'a>(&self, workload: &'a Workload, tokens: &'a [u32], paths: &'a Paths) -> CaptureCase<'a> {
        let extent = match (self.steps, self.seconds) {
            (Some(steps), _) => Extent::Steps(steps),
            (None, Some(seconds)) => Extent::Seconds(seconds),
            (None, None) => Extent::HalfWidth(self.precision / 100.0),
        };
        CaptureCase {
            workload,
            tokens,
            warmup: self.warmup,
            extent,
            frequency_hz: self.frequency,
            counters: self.counters != Counting::None,
            overhead_rounds: self.overhead_rounds,
            directory: paths.trace.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        }
    }

    /// The same pass as flags again, for a process of this same program; without threads, device and instruction sets.
    fn same_pass(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut flag = |name: &str, value: String| words.extend([OsString::from(name), OsString::from(value)]);
        if let Some(model) = &self.model.model {
            flag("--model", model.clone());
        }
        let machine = &self.engine.machine;
        flag("--phase", self.phase.phase().name().to_owned());
        flag("--prefill-logits", self.prefill_logits.mode().name().to_owned());
        flag("--tokens", self.tokens.to_string());
        flag("--capacity", self.capacity().to_string());
        flag("--seed", self.seed.to_string());
        flag("--w4-group", machine.w4_group.to_string());
        flag("--solution", machine.solution.name().to_owned());
        for (name, value) in self.engine.chosen() {
            flag(name, value);
        }
        if self.model.offline {
            words.push("--offline".into());
        }
        if machine.convert {
            words.push("--convert".into());
        }
        words
    }

    /// Claims every output.
    fn outputs(&self) -> Result<Outputs> {
        let trace = self.trace.clone().expect("clap requires it where no pass is simulated");
        let beside = |suffix: &str| {
            let mut name = trace.file_name().unwrap_or_default().to_owned();
            name.push(suffix);
            trace.with_file_name(name)
        };
        let paths = Paths {
            metadata: self.metadata.clone().unwrap_or_else(|| beside(".capture.json")),
            manifest: self.manifest.clone().unwrap_or_else(|| beside(".manifest.sha256")),
            trace,
        };
        output::check_distinct(&[
            ("--trace", Some(&paths.trace)),
            ("--metadata", Some(&paths.metadata)),
            ("--manifest", Some(&paths.manifest)),
        ])?;
        Ok(Outputs {
            trace: OutputDirectory::create("--trace", &paths.trace)?,
            metadata: OutputFile::create("--metadata", &paths.metadata)?,
            manifest: OutputFile::create("--manifest", &paths.manifest)?,
            paths,
        })
    }
}

fn close(
    capture: &Capture,
    workload: Workload,
    conditions: Conditions,
    subject: Subject,
    simulation: Known<Simulation>,
    trace: TracePackage,
) -> CaptureMetadata {
    let mut record = CaptureMetadata {
        schema: CaptureMetadata::SCHEMA.to_owned(),
        created: probe::now(),
        workload,
        workload_id: String::new(),
        conditions,
        conditions_id: String::new(),
        subject,
        process_id: std::process::id(),
        warmup: capture.warmup,
        steps: capture.steps.len() as u64,
        ended: capture.ended,
        wall_ns: capture.wall_ns(),
        precision: capture.precision.clone(),
        sampling: capture.sampling.clone(),
        overhead: capture.overhead.clone(),
        simulation,
        caution: CAUTION.to_owned(),
        trace,
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}
