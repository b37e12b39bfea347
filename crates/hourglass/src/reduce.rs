//! `hourglass reduce`: a captured trace, verified, to the compact record of what it says: kernels, counters, lines, instructions.
//! Not here: taking the trace (`capture`), and every line (`lines`).

pub(crate) mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use probe::lines::{Counted, Given, capture_record};
use record::capture::reduced::CaptureRecord;
use record::capture::{callgrind, perf_stat};
use record::{Ceilings, Known};

use crate::failure::usage;
use crate::replay::files;
use crate::trace_package::Package;
use crate::{output, trace_package};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What `hourglass capture --metadata` wrote
    #[arg(long, value_name = "FILE")]
    capture_metadata: PathBuf,
    /// What `hourglass capture --manifest` wrote: every file of the trace is held against it first
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    /// The directory that `hourglass capture --trace` wrote
    #[arg(long, value_name = "DIR", required_unless_present = "profile_jsonl")]
    trace: Option<PathBuf>,
    /// Counters of the same step on a machine with a PMU, as `perf stat -j` writes them
    #[arg(long, value_name = "FILE")]
    profile_jsonl: Option<PathBuf>,
    /// A record of `hourglass ceilings` that rates are held against, or `none` [default: this machine's, if they are kept and
    /// the capture was made here]
    #[arg(long, value_name = "FILE|none")]
    ceilings: Option<PathBuf>,
    /// The captured executable, if it is no longer where it ran
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// The checkout in which source files are verified [default: the repository around the working directory]
    #[arg(long, value_name = "DIR")]
    sources: Option<PathBuf>,
    /// Write the record (capture/1)
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let out = output::OutputFile::create("--output", &args.output)?;
    let described = trace_package::metadata("--capture-metadata", &args.capture_metadata)?;
    let manifest = trace_package::manifest("--manifest", &args.manifest, &described)?;
    let package = match &args.trace {
        Some(directory) => Some(trace_package::open("--trace", directory, &manifest, &described)?),
        None => None,
    };
    if let Some(package) = &package {
        let given = [("--binary", args.binary.is_some()), ("--profile-jsonl", args.profile_jsonl.is_some())];
        trace_package::expect_cpu(package, &given)?;
    }
    let profile = args.profile_jsonl.as_deref().map(read_profile).transpose()?;
    let ceilings = ceilings(args, &described.metadata)?;
    let no_trace = || Known::unavailable("no trace was given", "--trace DIR");
    let simulated = match package.as_ref().map(|package| package.callgrind.as_deref()) {
        Some(Some(bytes)) => {
            Known::Is(callgrind::parse("--trace: callgrind.out", bytes).map_err(|error| usage(error.to_string()))?)
        }
        Some(None) => Known::unavailable(
            "the trace has no callgrind.out",
            "`hourglass capture --counters callgrind`, which needs valgrind",
        ),
        None => Known::unavailable("no trace was given", "--trace DIR"),
    };
    let given = Given {
        metadata: &described.metadata,
        metadata_sha256: Known::Is(described.sha256.clone()),
        trace: package.as_ref().map_or_else(
            || Known::unavailable("no trace was given", "--trace DIR"),
            |package| Known::Is(package.package.clone()),
        ),
        tree_sha256: package.as_ref().map_or_else(no_trace, |package| Known::Is(package.tree_sha256.clone())),
        profile_sha256: match &profile {
            Some((_, sha256)) => Known::Is(sha256.clone()),
            None => Known::unavailable("no counters of another tool were given", "--profile-jsonl FILE"),
        },
    };
    let profile = match profile {
        Some((parsed, _)) => Known::Is(parsed),
        None => Known::unavailable("no counters of another tool were given", "--profile-jsonl FILE"),
    };
    let sources = args.sources.clone().unwrap_or_else(trace_package::repository);
    let binary = args.binary.as_deref();
    let resolved = package.as_ref().map(|package| trace_package::resolved(package, binary, &sources));
    let trace = match (&package, &resolved) {
        (Some(package), Some(Known::Is(resolved))) => match &package.raw {
            Known::Is(raw) => Known::Is((raw, resolved)),
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        },
        (_, Some(Known::Unavailable(missing))) => Known::Unavailable(missing.clone()),
        _ => Known::unavailable(
            "no trace was given",
            "--trace DIR, the directory that `hourglass capture --trace` wrote",
        ),
    };
    let device = match &package {
        Some(Package { profiled: Some(profiled), .. }) => Known::Is(profiled.tree.clone()),
        Some(Package { raw: Known::Unavailable(missing), .. }) => Known::Unavailable(missing.clone()),
        _ => CaptureRecord::without_device(),
    };
    let record = capture_record(&given, trace, Counted { profile, simulated }, &ceilings, device);
    out.finish_with_json(&record)?;
    if args.json {
        output::print_json(&record)?;
    } else {
        output::print(table::body(&record).as_bytes())?;
    }
    Ok(if crate::void::said(&record) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

type Profile = (Vec<record::capture::reduced::counters::CounterRow>, record::capture::reduced::counters::ProfileUse);

/// # Errors
/// No file that can be read, or one without a counter.
fn read_profile(path: &Path) -> Result<(Profile, String)> {
    let bytes = files::bytes("--profile-jsonl", path)?;
    let parsed = perf_stat::parse(&format!("--profile-jsonl {}", path.display()), &bytes);
    Ok((parsed.map_err(|error| usage(error.to_string()))?, record::file_digest(&bytes)))
}

/// The ceilings asked for; else those that are kept for this machine, if it is the captured one. Nothing is measured here: the
/// machine may be another one, or in another state, by now.
fn ceilings(args: &Args, metadata: &record::CaptureMetadata) -> Result<Known<Ceilings>> {
    let how = "`hourglass ceilings --json-output FILE` on the captured machine, then `reduce --ceilings FILE`";
    match args.ceilings.as_deref() {
        Some(path) if path == Path::new("none") => {
            Ok(Known::unavailable("no ceilings were asked for", "leave out `--ceilings none`"))
        }
        Some(path) => {
            let given: Ceilings = files::read("--ceilings", path)?;
            let on_gpu = metadata.conditions.host.device != "cpu";
            if given.is_of_device() != on_gpu {
                let (expected, found) = if on_gpu { ("a GPU's", "the CPU's") } else { ("the CPU's", "a GPU's") };
                return Err(usage(format!(
                    "--ceilings {}: expected {expected} ceilings, as the pass ran there, found {found}: give a record of \
                     `hourglass ceilings --device {}`",
                    path.display(),
                    if on_gpu { "cuda" } else { "cpu" }
                )));
            }
            let (captured, measured) = (&metadata.conditions.host, &given.conditions.host);
            if captured.cpu_model != measured.cpu_model || captured.processors != measured.processors {
                return Err(usage(format!(
                    "--ceilings {}: expected ceilings of the captured machine, found another one's: give a record of \
                     `hourglass ceilings` from there",
                    path.display()
                )));
            }
            Ok(Known::Is(given))
        }
        None if metadata.conditions.host.device != "cpu" => Ok(Known::unavailable(
            "the ceilings that are kept are the CPU's, and the pass ran on a GPU",
            "see how busy its units were, which its profiler measured against their peaks",
        )),
        None if metadata.conditions.host != probe::host() => {
            Ok(Known::unavailable("the capture is of another machine, or of this one before it was changed", how))
        }
        None => Ok(match probe::ceilings::kept(metadata.conditions.threads) {
            Ok(Some(kept)) => Known::Is(kept),
            Ok(None) => Known::unavailable("none are kept for this machine", how),
            Err(why) => Known::unavailable(why, how),
        }),
    }
}
