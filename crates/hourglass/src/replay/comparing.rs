//! `--compare-records BEFORE AFTER`: two replay records of one workload, and with `--bench` how much arrived in the request.
//! Not here: the comparison itself (`record::compare_replays`).

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use record::bench::BenchRecord;
use record::{ClockedRequest, Record, ReplayCase, ReplayRecord, compare_replays, schema_in};

use super::{Args, files, table};
use crate::failure::usage;
use crate::output;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let flag = "--compare-records";
    let [before_path, after_path] = &args.compare_records[..] else {
        return Err(usage(format!("{flag}: expected two files")));
    };
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let before: ReplayRecord = files::read(flag, before_path)?;
    let after: ReplayRecord = files::read(flag, after_path)?;
    let (before_case, after_case) = pair(before_path, &before, after_path, &after)?;
    let mut comparison = compare_replays(before_case, after_case).map_err(|error| usage(format!("{flag}: {error}")))?;
    if let [before, after] = &args.bench[..] {
        let times = |path: &Path, case: &ReplayCase| request(path, &case.replay.checkpoint);
        comparison
            .add_requests(&times(before, before_case)?, &times(after, after_case)?)
            .map_err(|error| usage(format!("--bench: {error}")))?;
    }
    if let Some(file) = record_file {
        file.finish_with_json(&comparison)?;
    }
    if args.json {
        output::print_json(&comparison)?;
    } else {
        output::print(table::comparison(&comparison).as_bytes())?;
    }
    Ok(if crate::void::said(&comparison) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The only cases of one workload that both records have; or, where each has one case, these two, so that the refusal names
/// what differs.
fn pair<'r>(
    before_path: &Path,
    before: &'r ReplayRecord,
    after_path: &Path,
    after: &'r ReplayRecord,
) -> Result<(&'r ReplayCase, &'r ReplayCase)> {
    if let ([one], [other]) = (&before.cases[..], &after.cases[..]) {
        return Ok((one, other));
    }
    let same = |a: &ReplayCase, b: &ReplayCase| a.replay.workload_id == b.replay.workload_id;
    let pairs: Vec<_> =
        before.cases.iter().flat_map(|a| after.cases.iter().filter(move |b| same(a, b)).map(move |b| (a, b))).collect();
    let names = |record: &ReplayRecord| -> String {
        record.cases.iter().map(|case| case.case.as_str()).collect::<Vec<_>>().join(", ")
    };
    match pairs[..] {
        [pair] => Ok(pair),
        _ => Err(usage(format!(
            "--compare-records: {} has {}, {} has {}; {} of their pairs are of one workload, and exactly one is expected: \
             replay one case per record",
            before_path.display(),
            names(before),
            after_path.display(),
            names(after),
            pairs.len()
        ))),
    }
}

/// The times of the requests that a find or bench record clocked at `checkpoint`.
fn request(path: &Path, checkpoint: &str) -> Result<ClockedRequest> {
    let name = format!("--bench {}", path.display());
    let kind = schema_in(&name, &files::bytes("--bench", path)?).map_err(|error| usage(error.to_string()))?;
    let times = if kind == BenchRecord::SCHEMA {
        ClockedRequest::of_bench(&name, &files::read("--bench", path)?, checkpoint)
    } else {
        ClockedRequest::of_find(&name, &files::read("--bench", path)?, checkpoint)
    };
    times.map_err(|why| usage(format!("{name}: {why}; give the records in the order of --compare-records")))
}
