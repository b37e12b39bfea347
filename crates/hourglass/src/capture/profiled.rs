//! A pass on a GPU under NVIDIA's Nsight Compute (ncu): this same program, started by it, runs the pass; its pages are kept as they
//! are printed. Not here: reading the pages (`record::capture::ncu`).

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use anyhow::{Context, Result, anyhow};
use flate2::Compression;
use flate2::write::GzEncoder;
use model::LoadOptions;
use record::capture::load::RawTrace;
use record::capture::manifest::Manifest;
use record::capture::ncu;
use record::capture::raw::{
    CALLS, NCU_RAW, NCU_SASS, NCU_SOURCE, PROFILE, RawCall, RawLaunch, RawProfile, RawProfiler,
};
use record::capture::reduced::trace_checks;
use record::capture::{CAUTION, Ended, TracePackage, placed};
use record::timeline::{SamplingRung, SamplingUse};
use record::{CaptureMetadata, Conditions, Known, Record, Subject, Workload};
use serde::{Deserialize, Serialize};

use super::{Args, Outputs, Paths, callgrind};
use crate::failure::{Interrupted, usage};
use crate::{interrupt, load, output, request, trace_package, void};

/// What the process that ran the pass says of it.
#[derive(Serialize, Deserialize)]
struct Passed {
    head: String,
    workload: Workload,
    conditions: Conditions,
    subject: Subject,
    process_id: u32,
    calls: Vec<RawCall>,
    launches: Vec<RawLaunch>,
}

/// The hidden form that ncu starts: one pass that it looks at, and in `file` what ran.
pub(super) fn pass(args: &Args, options: LoadOptions, file: &Path) -> Result<ExitCode> {
    let files = args.open()?;
    let tokens = request::prompt(args.tokens, &files, args.seed);
    let workload = args.workload(&files, &tokens)?;
    let (mut engine, load_seconds) = load::load(&files, options)?;
    let pass = match probe::profiled_pass(&mut engine, &workload, &tokens) {
        Err(probe::Error::Model(error)) => return Err(error.into()),
        other => other?,
    };
    let passed = Passed {
        head: crate::find::head(&load::describe(&files, &engine), args.model.model.is_none(), load_seconds),
        workload,
        conditions: probe::conditions(&engine, pass.kernels),
        subject: probe::subject(&engine, args.engine.machine.solution.name(), &files.describe_encoding()),
        process_id: std::process::id(),
        calls: pass.calls,
        launches: pass.launches,
    };
    write_json(file, &passed)?;
    Ok(ExitCode::SUCCESS)
}

/// Profiles the pass, keeps the pages, and writes the metadata. Where it cannot be profiled, the trace holds what was launched and
/// the reason, and the exit code is 1.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    args.refuse_of_cpu()?;
    let Outputs { trace, metadata, manifest, paths } = args.outputs()?;
    let work = tempfile::tempdir().context("a folder for what ncu writes")?;
    let (passed, profiler) = profile(args, work.path())?;
    if !args.json {
        output::print(passed.head.as_bytes())?;
    }
    let folder = trace.partial();
    let profiler = match profiler {
        Known::Is(profiler) => {
            let kept = keep_pages(work.path(), folder);
            match kept {
                Ok(()) => Known::Is(profiler),
                Err(why) => Known::unavailable(format!("{why:#}"), "run ncu --import on a report by hand"),
            }
        }
        missing => missing,
    };
    write_json(&folder.join(CALLS), &passed.calls)?;
    write_json(&folder.join(PROFILE), &RawProfile { launches: passed.launches.clone(), ncu: profiler.clone() })?;
    probe::write_sources(folder)?;
    // Pages that cannot be read stay where they can be looked at; `reduce` will say the same of them.
    let (profiled, unread) = match RawTrace::read_profiled(|name| fs::read(folder.join(name)), trace_package::unpacked)
    {
        Ok(profiled) => (profiled, None),
        Err(error) => (Known::unavailable(error.to_string(), "capture again"), Some(error)),
    };
    let (listed, contents) = Manifest::of_directory(folder)?;
    let package = TracePackage {
        basename: paths.trace.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        files: contents.files,
        bytes: contents.bytes,
        manifest_sha256: listed.sha256(),
    };
    let raw = match &profiled {
        Known::Is((raw, _)) => Some(raw),
        Known::Unavailable(_) => None,
    };
    let record = close(passed, raw, &profiler, package);
    trace.finish()?;
    manifest.finish_with(listed.text().as_bytes())?;
    metadata.finish_with_json(&record)?;
    if args.json {
        output::print_json(&record)?;
    } else {
        output::print(body(&record, &profiler, &paths).as_bytes())?;
    }
    if let Known::Unavailable(missing) = &profiler {
        output::note(format_args!("hourglass: not profiled: {}; {}", missing.unavailable, missing.how_to_get));
    }
    // What `reduce` would find void.
    let lost = profiled
        .known()
        .and_then(|(raw, profiled)| void::failed(&trace_checks(raw, &placed(raw), Some(&profiled.tree))));
    if let Some(why) = &lost {
        output::note(format_args!("hourglass: the trace is void: {why}; capture again"));
    }
    if let Some(error) = unread {
        return Err(error.into());
    }
    let whole = profiler.known().is_some() && !void::said(&record) && lost.is_none();
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where toolkits put ncu when it is not on the path.
const PLACES: [&str; 2] = ["/usr/local/cuda/bin/ncu", "/opt/cuda/bin/ncu"];

/// Its program, and its name and version.
pub(super) fn ncu() -> std::result::Result<(PathBuf, String), String> {
    let named = std::iter::once("ncu").chain(PLACES).map(PathBuf::from);
    let mut first = None;
    for program in named {
        match Command::new(&program).arg("--version").stdin(Stdio::null()).output() {
            Ok(said) if said.status.success() => {
                let said = String::from_utf8_lossy(&said.stdout).into_owned();
                let version =
                    said.lines().find_map(|line| line.strip_prefix("Version ")).unwrap_or("of unknown version");
                return Ok((program, format!("ncu {}", version.split_whitespace().next().unwrap_or(version))));
            }
            Ok(said) => first.get_or_insert(format!("{} --version ended with {}", program.display(), said.status)),
            Err(error) => first.get_or_insert(format!("{} cannot be started: {error}", program.display())),
        };
    }
    Err(first.unwrap_or_default())
}

/// Runs the pass, under ncu if that can be.
fn profile(args: &Args, work: &Path) -> Result<(Passed, Known<RawProfiler>)> {
    let own = std::env::current_exe().context("this program's own file is not known")?;
    let file = work.join("pass.json");
    let mut words: Vec<OsString> = vec!["capture".into(), "--profiled-pass".into(), file.clone().into()];
    words.extend(["--device".into(), args.engine.machine.device.to_string().into()]);
    words.extend(args.same_pass());
    let profiler = match ncu() {
        Err(why) => Known::unavailable(why, "install NVIDIA's Nsight Compute (it is part of the CUDA toolkit)"),
        Ok((program, version)) => {
            output::note(format_args!(
                "hourglass: {version} runs every kernel of two layers and of what is in none several times; that takes a minute"
            ));
            let arguments = arguments();
            let said = Command::new(&program)
                .args(&arguments)
                .args(source_folders(work)?)
                .arg("--export")
                .arg(work.join(REPORT))
                .arg(&own)
                .args(&words)
                .stdin(Stdio::null())
                .output();
            stop_if_interrupted()?;
            match said {
                Ok(said) if said.status.success() && work.join(format!("{REPORT}.ncu-rep")).is_file() => {
                    Known::Is(RawProfiler { version, arguments })
                }
                Ok(said) => {
                    let (why, how) = ncu::explained(&everything(&said));
                    Known::unavailable(why, how)
                }
                Err(error) => Known::unavailable(format!("ncu cannot be started: {error}"), "look at the file"),
            }
        }
    };
    if profiler.known().is_none() {
        // What it left is not to be relied on; what is launched can be told without it.
        let _ = fs::remove_file(&file);
        let said = Command::new(&own).args(&words).stdin(Stdio::null()).output().context("the pass")?;
        stop_if_interrupted()?;
        if !said.status.success() {
            let words = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            let words = words.strip_prefix("hourglass: ").unwrap_or(&words).to_owned();
            return Err(if said.status.code() == Some(2) { usage(words) } else { anyhow!("{words}") });
        }
    }
    let bytes = fs::read(&file).context("the pass did not say what ran")?;
    let passed = serde_json::from_slice(&bytes).context("the pass did not say what ran")?;
    Ok((passed, profiler))
}

fn stop_if_interrupted() -> Result<()> {
    match interrupt::requested() {
        true => Err(Interrupted("while the pass was profiled; nothing was written".to_owned()).into()),
        false => Ok(()),
    }
}

fn everything(said: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr))
}

/// The report's name, to which ncu adds an ending.
const REPORT: &str = "pass";

/// Nothing of the GPU's state is changed. Every kernel finds the caches empty, as weights do in a model that no cache holds:
/// otherwise a kernel's own first run would bring its weights in.
fn arguments() -> Vec<String> {
    let fixed = [
        "--config-file=off",
        "--target-processes=application-only",
        "--profile-from-start=off",
        "--replay-mode=kernel",
        "--graph-profiling=node",
        "--clock-control=none",
        "--cache-control=all",
        "--section=SourceCounters",
        "--import-source=yes",
    ];
    let metrics = format!("--metrics={}", ncu::metrics().join(","));
    fixed.into_iter().map(str::to_owned).chain([metrics]).collect()
}

/// The kernels' sources, which this program carries, where ncu looks for them: by their names, and by their paths.
fn source_folders(work: &Path) -> Result<Vec<OsString>> {
    let root = work.join("sources");
    let folder = root.join(ops_cuda::sources::FOLDER);
    fs::create_dir_all(&folder)?;
    for (name, text) in ops_cuda::sources::files() {
        fs::write(folder.join(name), text)?;
    }
    let mut folders = root.into_os_string();
    folders.push(",");
    folders.push(&folder);
    Ok(vec!["--source-folders".into(), folders])
}

/// Prints the report's pages, packed, into the trace.
fn keep_pages(work: &Path, folder: &Path) -> Result<()> {
    let (program, _) = ncu().map_err(|why| anyhow!(why))?;
    let pages: [(&str, &[&str]); 3] = [
        (NCU_RAW, &["--page", "raw", "--print-units", "base"]),
        (NCU_SASS, &["--page", "source", "--print-source", "sass"]),
        (NCU_SOURCE, &["--page", "source", "--print-source", "cuda,sass"]),
    ];
    for (name, arguments) in pages {
        // In a locale of its own: numbers are printed in the user's.
        let mut printing = Command::new(&program)
            .env("LC_ALL", "C")
            .args(["--config-file", "off", "--csv", "--import"])
            .arg(work.join(format!("{REPORT}.ncu-rep")))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut packed = GzEncoder::new(File::create_new(folder.join(name))?, Compression::default());
        if let Some(mut said) = printing.stdout.take() {
            io::copy(&mut said, &mut packed)?;
        }
        packed.finish()?.flush()?;
        let ended = printing.wait()?;
        if !ended.success() {
            return Err(anyhow!("ncu could not print its page for {name}: it ended with {ended}"));
        }
    }
    Ok(())
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut bytes = serde_json::to_vec_pretty(value).context("a result could not be written as JSON")?;
    bytes.push(b'\n');
    fs::write(path, bytes).with_context(|| format!("{} cannot be written", path.display()))
}

fn close(
    passed: Passed,
    raw: Option<&RawTrace>,
    profiler: &Known<RawProfiler>,
    trace: TracePackage,
) -> CaptureMetadata {
    let why = match profiler {
        Known::Is(profiler) => format!("{} looked where warps were", profiler.version),
        Known::Unavailable(missing) => missing.unavailable.clone(),
    };
    let no_clock = "kernels are profiled one by one and run several times each: no time of them is a request's";
    let mut record = CaptureMetadata {
        schema: CaptureMetadata::SCHEMA.to_owned(),
        created: probe::now(),
        workload: passed.workload,
        workload_id: String::new(),
        conditions: passed.conditions,
        conditions_id: String::new(),
        subject: passed.subject,
        process_id: passed.process_id,
        warmup: 0,
        steps: 1,
        ended: Ended::AsAsked,
        wall_ns: raw.and_then(|raw| raw.steps.first()).map_or(0, |step| step.end_ns - step.start_ns),
        precision: Known::unavailable(
            "one pass was profiled, and nothing was asked of its samples",
            "nothing is missing",
        ),
        sampling: SamplingUse {
            rung: SamplingRung::None,
            why,
            frequency_hz: Known::unavailable(
                "the profiler chooses how often it looks, kernel by kernel",
                "nothing is missing",
            ),
            samples: raw.map_or(0, |raw| raw.samples.len() as u64),
            lost: Known::unavailable("the profiler does not say", "nothing is missing"),
        },
        overhead: Known::unavailable(no_clock, "`hourglass bench` and `hourglass timeline` clock requests"),
        simulation: Known::unavailable(callgrind::NOT_ASKED, "`hourglass capture --counters callgrind`, on the CPU"),
        caution: CAUTION.to_owned(),
        trace,
        checks: Vec::new(),
        void: false,
    };
    record.close();
    record
}

fn body(record: &CaptureMetadata, profiler: &Known<RawProfiler>, paths: &Paths) -> String {
    let what = match profiler {
        Known::Is(profiler) => format!(
            "One pass under {}, of whose layers the first and one that stands for all others were profiled: {} samples of warps, \
             {:.1} µs of kernels that ran one by one with empty caches.",
            profiler.version,
            record.sampling.samples,
            record.wall_ns as f64 / 1e3
        ),
        Known::Unavailable(missing) => format!("The pass was not profiled: {}.", missing.unavailable),
    };
    format!(
        "{}\n{}: {} files, {:.1} MB\n{}\n{}\n\nKernels, counters and lines: hourglass reduce --capture-metadata {} \\\n    \
         --manifest {} --trace {} --output NEW.json\n",
        crate::prose::paragraph("", &what, ""),
        paths.trace.display(),
        record.trace.files,
        record.trace.bytes as f64 / 1e6,
        paths.manifest.display(),
        paths.metadata.display(),
        paths.metadata.display(),
        paths.manifest.display(),
        paths.trace.display()
    )
}
