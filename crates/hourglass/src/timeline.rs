//! `hourglass timeline`: one request on one clock, workers and main thread, and what everyone did while nothing was computed.
//! Not here: how anything is traced (`probe`), what a trace comes to (`record::timeline`), what is printed (`timeline/table`).

pub(crate) mod table;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;
use model::Engine;
use ops::Plain;
use probe::{MainThread, Timeline, TimelineRequest};
use record::trace::{WriteError, write_chrome, write_firefox, write_folded, write_perfetto, write_speedscope};
use record::{Known, Phase, Record, TimelineRecord};
use weights::ModelFiles;

use crate::failure::{Interrupted, usage};
use crate::load::{DEFAULT_MODEL, EngineArgs, ModelArgs};
use crate::output::OutputFile;
use crate::progress::Progress;
use crate::request::{PrefillLogits, Work, check_counts};
use crate::{interrupt, load, output, request};

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// From text to the release of the cache
    Request,
    /// The passes over the prompt and the first token
    Prefill,
    /// The passes over one token each
    Decode,
}

impl Part {
    fn phase(self) -> Phase {
        match self {
            Part::Request => Phase::Request,
            Part::Prefill => Phase::Prefill,
            Part::Decode => Phase::Decode,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// For ui.perfetto.dev: everything
    Perfetto,
    /// JSON for Holistic Trace Analysis and chrome://tracing: a short request
    Chrome,
    /// JSON for profiler.firefox.com: the CPU samples
    Firefox,
    /// Stacks and microseconds, for flame graphs
    Folded,
    /// JSON for speedscope.app: the CPU samples
    Speedscope,
}

impl Format {
    fn needs_samples(self) -> bool {
        !matches!(self, Format::Perfetto | Format::Chrome)
    }
}

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
    /// Which part of the request is traced
    #[arg(long, value_enum, default_value = "request")]
    phase: Part,
    /// Complete requests before the traced one
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Which prompt tokens get logits
    #[arg(long, value_enum, default_value = "last")]
    prefill_logits: PrefillLogits,
    /// Seed of the prompt's token ids
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write the trace
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// What the trace is written as
    #[arg(long, value_enum, default_value = "perfetto", requires = "out")]
    format: Format,
    /// CPU samples per second and thread; 797 over the number of workers where nothing is given
    #[arg(long, value_name = "HZ")]
    frequency: Option<u64>,
    /// No CPU samples, context switches or page faults: spans alone
    #[arg(long, conflicts_with = "frequency")]
    no_samples: bool,
    /// More requests, in which steps with and without tracing alternate, to tell what it costs; 0: not at all
    #[arg(long, value_name = "N", default_value_t = 3)]
    overhead_rounds: usize,
    #[command(flatten)]
    engine: EngineArgs,
    /// Write the record
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    args.check()?;
    output::check_distinct(&[("--out", args.out.as_deref()), ("--json-output", args.json_output.as_deref())])?;
    let options = args.engine.options()?;
    if let (Some(_), Err(missing)) = (&options.device, ops_cuda::availability().profiler) {
        // Before the model is loaded, which takes longer than to find out that nothing can be recorded.
        let device = args.engine.machine.device;
        return Err(usage(format!("--device {device}: {}; {}", missing.why, missing.how_to_get)));
    }
    let trace_file = output::create_if_asked("--out", args.out.as_deref())?;
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let files = args.model.open(Some(DEFAULT_MODEL))?;
    request::check_positions(args.input_len, args.output_len, &files)?;
    let (mut engine, load_seconds) = load::load(&files, options)?;
    if !args.json {
        let head = crate::find::head(&load::describe(&files, &engine), args.model.model.is_none(), load_seconds);
        output::print(head.as_bytes())?;
    }
    let prompt = request::prompt(args.input_len, &files, args.seed);
    let timeline = measure(&args, &files, &mut engine, &prompt)?;
    let record = close(&args, &files, &mut engine, &prompt, &timeline)?;
    if let Some(file) = trace_file {
        write_trace(file, args.format, &timeline)?;
    }
    if let Some(file) = record_file {
        file.finish_with_json(&record)?;
    }
    if args.json {
        output::print_json(&record)?;
    } else {
        output::print(table::body(&record).as_bytes())?;
    }
    let complete = record.summary.coverage.is_complete() & !crate::void::said(&record);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Args {
    fn check(&self) -> Result<()> {
        let warmup = ("--warmup", self.warmup, 1..=1_000, "the first request tells how much room the tracer needs");
        check_counts(request::lengths(self.input_len, self.output_len).into_iter().chain([warmup]))?;
        if let Some(frequency) = self.frequency.filter(|hz| !(1..=20_000).contains(hz)) {
            return Err(usage(format!("--frequency {frequency}: expected 1 to 20000 samples per second")));
        }
        if self.overhead_rounds > 100 {
            return Err(usage(format!("--overhead-rounds {}: expected at most 100", self.overhead_rounds)));
        }
        if self.no_samples && self.format.needs_samples() {
            return Err(usage("--no-samples: this --format holds CPU samples alone; choose perfetto or chrome"));
        }
        Ok(())
    }
}

/// CPU samples per second of all workers together: one costs some 22 µs on a virtual machine, and at a barrier all pay for it.
const SHARED_HZ: u64 = 797;

fn measure(args: &Args, files: &ModelFiles, engine: &mut Engine, prompt: &[u32]) -> Result<Timeline> {
    let shared = || SHARED_HZ.div_ceil(engine.options().threads.max(1) as u64);
    let request = TimelineRequest {
        prompt,
        output_tokens: args.output_len,
        logits: args.prefill_logits.mode(),
        phase: args.phase.phase(),
        warmup: args.warmup,
        frequency_hz: (!args.no_samples).then(|| args.frequency.unwrap_or_else(shared)),
        overhead_rounds: args.overhead_rounds,
    };
    let text = text::Text::of(files, prompt);
    let (mut input, mut output) = (text.as_ref().map(text::Text::input), text.as_ref().map(text::Text::output));
    let mut main = MainThread {
        input: input.as_mut().map(|input| input as &mut dyn FnMut()),
        choose: &mut |logits, row| logits.argmax(row),
        output: output.as_mut().map(|output| output as &mut dyn FnMut(u32)),
    };
    let progress = Progress::new("timeline");
    let show = |done: usize, total: usize, what: &str| progress.steps(done, total, what);
    match probe::timeline(engine, &request, &mut main, &Plain, &show) {
        Err(probe::Error::Model(model::Error::Interrupted)) if interrupt::requested() => {
            Err(Interrupted("before the timeline was complete; nothing was written".to_owned()).into())
        }
        other => Ok(other?),
    }
}

fn close(
    args: &Args,
    files: &ModelFiles,
    engine: &mut Engine,
    prompt: &[u32],
    timeline: &Timeline,
) -> Result<TimelineRecord> {
    let work = Work {
        phase: args.phase.phase(),
        prompt,
        capacity: prompt.len() + args.output_len,
        output_tokens: timeline.tokens.len(),
        logits: args.prefill_logits.mode(),
        seed: args.seed,
    };
    let mut record = TimelineRecord {
        schema: TimelineRecord::SCHEMA.to_owned(),
        created: probe::now(),
        workload: request::workload(files, &work)?,
        workload_id: String::new(),
        conditions: load::conditions(engine, prompt.len(), prompt.len() + args.output_len)?,
        conditions_id: String::new(),
        subject: probe::subject(engine, args.engine.machine.solution.name(), &files.describe_encoding()),
        warmup: args.warmup as u64,
        process_id: std::process::id(),
        summary: timeline.summary.clone(),
        main_thread_cpu: timeline.main_thread_cpu.clone(),
        peak_allocation: timeline.peak_allocation.clone(),
        kv_allocation: timeline.kv_allocation.clone(),
        overhead: match &timeline.overhead {
            Known::Unavailable(_) if args.overhead_rounds == 0 => {
                Known::unavailable("--overhead-rounds 0 was given", "leave it out")
            }
            measured => measured.clone(),
        },
        sampling: timeline.sampling.clone(),
        device: timeline.device.clone(),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    Ok(record)
}

fn write_trace(mut file: OutputFile, format: Format, timeline: &Timeline) -> Result<()> {
    let trace = &timeline.trace;
    let written = match format {
        Format::Perfetto => write_perfetto(trace, &mut file),
        Format::Chrome => write_chrome(trace, &mut file),
        Format::Firefox => write_firefox(trace, &mut file),
        Format::Folded => write_folded(trace, &mut file),
        Format::Speedscope => write_speedscope(trace, &mut file),
    };
    match written {
        Ok(()) => file.finish(),
        Err(WriteError::Io(error)) => Err(file.error(&error)),
        Err(error) => Err(error).context("--out"),
    }
}
