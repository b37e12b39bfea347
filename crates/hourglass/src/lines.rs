//! `hourglass lines`: what every source line of a captured trace costs, as files for other tools and as a view with the text.
//! Not here: resolving and adding up (`probe::lines`, `record::capture`). No file that is written holds source text.

mod annotate;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use probe::lines::{Given, lines_record};
use record::capture::lines::{LinesRecord, PlaceLines};
use record::capture::reduced::trace_checks;
use record::capture::{export, placed};
use record::trace::{write_folded, write_speedscope};
use record::{Known, Unavailable};

use crate::failure::usage;
use crate::output::OutputDirectory;
use crate::{output, trace_package, void};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory that `hourglass capture --trace` wrote
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Make this directory with lines.csv, lines.json, profile.pb.gz, callgrind.out, speedscope.json, folded.txt
    #[arg(long, value_name = "NEW_DIRECTORY")]
    out: PathBuf,
    /// What `hourglass capture --metadata` wrote [default: the file beside TRACE that fits it]
    #[arg(long, value_name = "FILE")]
    capture_metadata: Option<PathBuf>,
    /// The captured executable, if it is no longer where it ran
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// The checkout in which source files are verified and read [default: the repository around the working directory]
    #[arg(long, value_name = "DIR")]
    sources: Option<PathBuf>,
    /// Show these kernels alone: a part of the name is enough; the files hold all
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Show the source text around the dearest lines, from the checkout, of verified files
    #[arg(long)]
    annotate: bool,
    /// Print the record (lines/1) in place of the tables
    #[arg(long, conflicts_with_all = ["annotate", "kernel"])]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let out = OutputDirectory::create("--out", &args.out)?;
    let manifest = trace_package::manifest_of("TRACE", &args.trace)?;
    let described = match &args.capture_metadata {
        Some(path) => {
            let described = trace_package::metadata("--capture-metadata", path)?;
            let (found, expected) = (manifest.sha256(), &described.metadata.trace.manifest_sha256);
            if found != *expected {
                return Err(usage(format!(
                    "TRACE {}: its files have the manifest {found}, {} names {expected}: a file was changed, added or \
                     removed, or it is another capture's",
                    args.trace.display(),
                    path.display()
                )));
            }
            described
        }
        None => trace_package::metadata_beside("TRACE", &args.trace, &manifest)?.1,
    };
    let package = trace_package::open("TRACE", &args.trace, &manifest, &described)?;
    let sources = args.sources.clone().unwrap_or_else(trace_package::repository);
    let without = |missing: &Unavailable| {
        usage(format!(
            "TRACE {}: no lines can be had: {}; {}",
            args.trace.display(),
            missing.unavailable,
            missing.how_to_get
        ))
    };
    trace_package::expect_cpu(&package, &[("--binary", args.binary.is_some())])?;
    let resolved = match trace_package::resolved(&package, args.binary.as_deref(), &sources) {
        Known::Is(resolved) => resolved,
        Known::Unavailable(missing) => return Err(without(&missing)),
    };
    let raw = match &package.raw {
        Known::Is(raw) => raw,
        Known::Unavailable(missing) => return Err(without(missing)),
    };
    if let Some(missing) = resolved.program_without_lines() {
        return Err(without(missing));
    }
    let given = Given {
        metadata: &described.metadata,
        metadata_sha256: Known::Is(described.sha256.clone()),
        trace: Known::Is(package.package.clone()),
        tree_sha256: Known::Is(package.tree_sha256.clone()),
        profile_sha256: Known::unavailable("lines need none", "`hourglass reduce --profile-jsonl FILE`"),
    };
    let placed = placed(raw);
    let record = lines_record(&given, raw, &placed, &resolved);
    let profiled = package.profiled.as_ref().map(|profiled| &profiled.tree);
    // What voids the reduced capture voids its lines.
    if let Some(why) = void::failed(&trace_checks(raw, &placed, profiled)) {
        anyhow::bail!(
            "TRACE {}: the trace is void, so no line has a cost: {why}; nothing was written: capture again",
            args.trace.display()
        );
    }
    if record.samples == 0 {
        return Err(usage(format!(
            "TRACE {}: no sample of a worker is in a captured pass, so no line has a cost; capture longer",
            args.trace.display()
        )));
    }
    let shown = shown(&record, args.kernel.as_deref())?;
    write_files(&record, out.partial())?;
    out.finish()?;
    if args.json {
        output::print_json(&record)?;
    } else {
        let mut text = table::body(&record, &shown);
        if args.annotate {
            text += &annotate::body(&record, &shown, &sources);
        }
        output::print(text.as_bytes())?;
    }
    Ok(if void::said(&record) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The places that a part of their name picks; all of them without one.
///
/// # Errors
/// None has it.
fn shown<'a>(record: &'a LinesRecord, part: Option<&str>) -> Result<Vec<&'a PlaceLines>> {
    let Some(part) = part else { return Ok(record.places.iter().collect()) };
    let found: Vec<_> = record.places.iter().filter(|place| place.place.to_string().contains(part)).collect();
    if found.is_empty() {
        let names: Vec<String> = record.places.iter().map(|place| place.place.to_string()).collect();
        return Err(usage(format!(
            "--kernel {part}: expected a part of the name of what was captured, found none that has it; there are: {}",
            names.join(", ")
        )));
    }
    Ok(found)
}

fn write_files(record: &LinesRecord, folder: &Path) -> Result<()> {
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).with_context(|| format!("--out: cannot write {name}"))
    };
    let mut json = serde_json::to_vec_pretty(record).context("a result could not be written as JSON")?;
    json.push(b'\n');
    write("lines.json", &json)?;
    let mut csv = Vec::new();
    export::write_csv(record, &mut csv)?;
    write("lines.csv", &csv)?;
    let mut callgrind = Vec::new();
    export::write_callgrind(record, &mut callgrind)?;
    write("callgrind.out", &callgrind)?;
    let trace = export::as_trace(record);
    let (mut speedscope, mut folded) = (Vec::new(), Vec::new());
    write_speedscope(&trace, &mut speedscope).context("speedscope.json")?;
    write_folded(&trace, &mut folded).context("folded.txt")?;
    write("speedscope.json", &speedscope)?;
    write("folded.txt", &folded)?;
    let time_ns =
        record.created.parse::<jiff::Timestamp>().map_or(0, |at| i64::try_from(at.as_nanosecond()).unwrap_or(0));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&export::pprof(record, time_ns)).and_then(|()| gzip.try_finish()).context("profile.pb.gz")?;
    write("profile.pb.gz", &gzip.finish().context("profile.pb.gz")?)
}
