//! `--shapes RECORD --compare KERNEL,KERNEL`: two kernels at every shape that a recorded workload used.
//! Not here: timing (`probe::shapes`), the record and its exports (`record::ShapeStudy`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result};
use ops::{Kernel, Registry};
use probe::Shapes;
use record::bench::BenchRecord;
use record::{
    Coverage, FLASHINFER_OPERATORS, FindRecord, KernelName, Known, Phase, Protocol, Reading, Record, ReplayRecord,
    ShapeStudy, Subject, Unit, Workload, flashinfer_files, schema_in, test_backend_ops,
};
use weights::ModelFiles;

use super::{Args, files, table};
use crate::failure::{INTERRUPTED, Interrupted, usage};
use crate::output::{self, OutputFile};
use crate::progress::Progress;
use crate::{interrupt, load, request};

/// `FORMAT=PATH`.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    format: Format,
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    TestBackendOps,
    FlashInfer,
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Export, String> {
        let expected = "expected test-backend-ops=FILE or flashinfer=DIRECTORY";
        let (format, path) = text.split_once('=').ok_or_else(|| format!("{expected}; found no '='"))?;
        let format = match format {
            "test-backend-ops" => Format::TestBackendOps,
            "flashinfer" => Format::FlashInfer,
            other => return Err(format!("{expected}; '{other}' is no format")),
        };
        if path.is_empty() {
            return Err(format!("{expected}; the path is empty"));
        }
        Ok(Export { format, path: path.into() })
    }
}

/// What the recorded workload was, and where it ran.
struct Recorded {
    source: String,
    workload: Workload,
    subject: Subject,
    /// Seconds.
    time: Reading,
}

pub(crate) fn run(args: &Args, record: &Path) -> Result<ExitCode> {
    let Some(names) = &args.compare else {
        return Err(usage("--shapes without --compare: expected the two kernels as --compare KERNEL,KERNEL"));
    };
    let registry = args.machine.registry()?;
    let kernels = kernels(names, &registry)?;
    check_exports(args, kernels[0].operator)?;
    let recorded = recorded(args, record)?;
    let checkpoint = recorded.subject.checkpoint.clone();
    let options = args.machine.options("--shapes: its checkpoint", &checkpoint)?;
    let mut outputs: Vec<(&str, Option<&Path>)> = vec![("--json-output", args.json_output.as_deref())];
    outputs.extend(args.export.iter().map(|export| ("--export", Some(export.path.as_path()))));
    output::check_distinct(&outputs)?;
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let exports: Vec<Claimed> = args.export.iter().map(Claimed::new).collect::<Result<_>>()?;

    let files = args.model.open(Some(&recorded.workload.model))?;
    if files.fingerprint()? != recorded.workload.weights_hash {
        return Err(usage(format!(
            "--shapes {}: {} holds other weights than the recorded {}; give the recorded model by --model",
            record.display(),
            files.label(),
            recorded.workload.model
        )));
    }
    check_positions(record, &recorded.workload, &files)?;
    let (mut engine, _) = load::load(&files, options)?;
    let tokens = (recorded.workload.context_tokens + recorded.workload.output_tokens) as usize;
    let tokens = request::prompt(tokens, &files, recorded.workload.seed);
    let progress = Progress::new("shapes");
    let show = |done: usize, total: usize, what: &str| progress.steps(done, total, what);
    let study = Shapes {
        workload: &recorded.workload,
        tokens: &tokens,
        kernels,
        warmup: args.warmup,
        iterations: args.iterations,
    };
    let rows = probe::shapes(&mut engine, &study, &show).map_err(|error| match error {
        probe::Error::Model(model::Error::Interrupted) => {
            Interrupted("before every shape was timed; nothing was written".to_owned()).into()
        }
        error => anyhow::Error::from(error),
    })?;
    drop(progress);
    let name =
        |kernel: &Kernel| KernelName { label: kernel.label(), source: format!("{}:{}", kernel.file, kernel.line) };
    let missing = || Known::unavailable("not computed", "close the record");
    let mut study = ShapeStudy {
        schema: ShapeStudy::SCHEMA.to_owned(),
        created: probe::now(),
        workload: recorded.workload,
        workload_id: String::new(),
        conditions: probe::conditions(&engine, Vec::new()),
        conditions_id: String::new(),
        subject: probe::subject(&engine, args.machine.solution.name(), &files.describe_encoding()),
        protocol: Protocol {
            warmup: args.warmup as u64,
            iterations: args.iterations as u64,
            process_id: std::process::id(),
        },
        source: recorded.source,
        operator: kernels[0].operator.to_owned(),
        kernels: kernels.map(name),
        rows,
        totals: [missing(), missing()],
        saved: missing(),
        recorded: recorded.time,
        estimated_share: missing(),
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    study.close();
    if let Some(file) = record_file {
        file.finish_with_json(&study)?;
    }
    for export in exports {
        export.write(&study)?;
    }
    if args.json {
        output::print_json(&study)?;
    } else {
        output::print(table::study(&study).as_bytes())?;
    }
    if interrupt::requested() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let complete = study.coverage.is_complete() & !crate::void::said(&study);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// # Errors
/// A format that cannot express the operator.
fn check_exports(args: &Args, operator: &str) -> Result<()> {
    let flashinfer = args.export.iter().any(|export| export.format == Format::FlashInfer);
    if flashinfer && !FLASHINFER_OPERATORS.contains(&operator) {
        return Err(usage(format!(
            "--export flashinfer: operator '{operator}' has no definition there; those of {} have; export test-backend-ops \
             instead",
            FLASHINFER_OPERATORS.join(" and ")
        )));
    }
    Ok(())
}

/// # Errors
/// A recorded workload that the model has no positions for, or that is none: its sizes are somebody's numbers.
fn check_positions(path: &Path, workload: &Workload, files: &ModelFiles) -> Result<()> {
    let Workload { context_tokens, output_tokens, capacity, .. } = *workload;
    let limit = files.config().max_positions as u64;
    let needed = context_tokens.saturating_add(output_tokens);
    if context_tokens == 0 || needed > limit || !(context_tokens..=limit).contains(&capacity) {
        return Err(usage(format!(
            "--shapes {}: its workload of {context_tokens} tokens, {output_tokens} generated and a capacity of {capacity} does \
             not fit {}, which has {limit} positions; give the record of a workload that ran on it",
            path.display(),
            files.label()
        )));
    }
    Ok(())
}

/// The two kernels that `[OPERATOR:]NAME/ISA,[OPERATOR:]NAME/ISA` names, of one operator.
fn kernels(names: &str, registry: &Registry) -> Result<[&'static Kernel; 2]> {
    let expected = "expected two kernels of one operator, e.g. linear:matvec/avx2,linear:matvec/portable";
    let [first, second] = names.split(',').collect::<Vec<_>>()[..] else {
        return Err(usage(format!("--compare {names}: {expected}")));
    };
    let find = |name: &str| -> Vec<&'static Kernel> {
        let (operator, label) = name.split_once(':').map_or((None, name), |(operator, label)| (Some(operator), label));
        let operators = registry.operators().iter().filter(|known| operator.is_none_or(|own| own == known.name()));
        operators.flat_map(|own| registry.kernels(*own).filter(|kernel| kernel.label() == label)).collect()
    };
    let (firsts, seconds) = (find(first), find(second));
    for (name, found) in [(first, &firsts), (second, &seconds)] {
        if found.is_empty() {
            let operator = name.split_once(':').map_or("linear", |(operator, _)| operator);
            let own = registry.operators().iter().find(|known| known.name() == operator);
            let known: Vec<String> = own.map_or_else(
                || registry.operators().iter().map(|known| known.name().to_owned()).collect(),
                |own| registry.kernels(*own).map(Kernel::label).collect(),
            );
            return Err(usage(format!("--compare: no kernel '{name}'; for {operator} there are {}", known.join(", "))));
        }
    }
    let pairs: Vec<[&'static Kernel; 2]> = firsts
        .iter()
        .flat_map(|a| seconds.iter().filter(|b| a.operator == b.operator).map(move |b| [*a, *b]))
        .collect();
    match pairs[..] {
        [[a, b]] if std::ptr::eq(a, b) => {
            Err(usage(format!("--compare {names}: both are the same kernel; {expected}")))
        }
        [pair] => Ok(pair),
        [] => Err(usage(format!("--compare {names}: they are of different operators; {expected}"))),
        _ => {
            let operators: Vec<&str> = pairs.iter().map(|pair| pair[0].operator).collect();
            Err(usage(format!("--compare {names}: several operators have both ({}); {expected}", operators.join(", "))))
        }
    }
}

/// Reads what the record's workload was; of a replay record with several cases, the one that --case names.
fn recorded(args: &Args, path: &Path) -> Result<Recorded> {
    let name = format!("--shapes {}", path.display());
    let kind = schema_in(&name, &files::bytes("--shapes", path)?).map_err(|error| usage(error.to_string()))?;
    let refused = |why: &str| usage(format!("{name}: {why}"));
    let seconds = |reading: &Reading, factor: f64| match reading {
        Known::Is(value) => Reading::measured(value.value() * factor, Unit::Seconds, value.n()),
        Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
    };
    let named = match &args.cases[..] {
        [] => None,
        [case] => {
            let name = args.machine.options("--case", &case.checkpoint)?.checkpoint.name.to_owned();
            Some(super::cases::CaseName { checkpoint: name, ..case.clone() }.to_string())
        }
        several => return Err(usage(format!("--shapes studies one case at a time; {} were given", several.len()))),
    };
    if named.is_some() && kind != ReplayRecord::SCHEMA {
        return Err(refused(&format!(
            "--case names a case of a replay record, and this is a {kind} record; leave it out"
        )));
    }
    if kind == FindRecord::SCHEMA {
        let record: FindRecord = files::read("--shapes", path)?;
        let time = record.request.known().map_or_else(
            || Known::unavailable("the record has no clocked request", "find it again"),
            |clock| clock.whole_request.clone(),
        );
        let source = format!("{kind} of {}", record.created);
        let subject = record.subject.known().cloned().ok_or_else(|| refused("its request was not clocked"))?;
        return Ok(Recorded { source, workload: record.workload, subject, time });
    }
    if kind == BenchRecord::SCHEMA {
        let record: BenchRecord = files::read("--shapes", path)?;
        let own = record.arms.iter().find_map(|arm| Some((arm, arm.subject.known()?)));
        let (arm, subject) = own.ok_or_else(|| refused("none of its arms is a checkpoint of this engine"))?;
        let time = arm.median(record::bench::Metric::Request);
        let source = format!("{kind} of {}, arm {}", record.created, arm.name);
        return Ok(Recorded { source, subject: subject.clone(), time, workload: record.workload });
    }
    let record: ReplayRecord = files::read("--shapes", path)?;
    let fitting: Vec<_> =
        record.cases.iter().filter(|case| named.as_ref().is_none_or(|named| case.case == *named)).collect();
    let [case] = fitting[..] else {
        let known: Vec<&str> = record.cases.iter().map(|case| case.case.as_str()).collect();
        return Err(refused(&format!("name one of its cases by --case: {}", known.join(", "))));
    };
    let subject = case.subject.known().ok_or_else(|| refused("its case was not measured"))?;
    let whole = case.replay.whole_pass.known().map(|timing| &timing.median);
    let time = whole.map_or_else(
        || Known::unavailable("the case has no whole pass", "replay it again"),
        |median| seconds(median, 1e-6),
    );
    if case.replay.workload.phase == Phase::Request {
        return Err(refused("a replayed case is a prefill or a decode step"));
    }
    let source = format!("{kind} of {}, case {}", record.created, case.case);
    Ok(Recorded { source, workload: case.replay.workload.clone(), subject: subject.clone(), time })
}

/// A place for an export, claimed before any work.
enum Claimed {
    File(OutputFile),
    /// Made beside its final path, and renamed to it when finished.
    Directory(tempfile::TempDir, PathBuf),
}

impl Claimed {
    fn new(export: &Export) -> Result<Claimed> {
        if export.format == Format::TestBackendOps {
            return Ok(Claimed::File(OutputFile::create("--export", &export.path)?));
        }
        let path = &export.path;
        let failed = |why: &str| usage(format!("--export {}: {why}", path.display()));
        if path.symlink_metadata().is_ok() {
            return Err(failed("already exists and is never overwritten; choose another path or remove it"));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = tempfile::Builder::new()
            .prefix(".flashinfer")
            .suffix(".partial")
            .tempdir_in(parent)
            .map_err(|error| failed(&format!("cannot make a directory there: {error}")))?;
        Ok(Claimed::Directory(directory, path.clone()))
    }

    fn write(self, study: &ShapeStudy) -> Result<()> {
        match self {
            Claimed::File(file) => file.finish_with_json(&test_backend_ops(study)),
            Claimed::Directory(directory, path) => {
                let files = flashinfer_files(study).map_err(|why| anyhow::anyhow!("--export flashinfer: {why}"))?;
                for file in files {
                    let place = directory.path().join(&file.path);
                    let folder = place.parent().expect("a file below the folder");
                    std::fs::create_dir_all(folder)
                        .and_then(|()| std::fs::write(&place, &file.content))
                        .with_context(|| format!("--export {}: cannot write {}", path.display(), file.path))?;
                }
                std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
                    .with_context(|| format!("--export {}: cannot be made readable", path.display()))?;
                anyhow::ensure!(
                    path.symlink_metadata().is_err(),
                    "--export {}: somebody made this path meanwhile; it was not overwritten",
                    path.display()
                );
                std::fs::rename(directory.path(), &path)
                    .with_context(|| format!("--export {}: cannot be given its name", path.display()))
            }
        }
    }
}
