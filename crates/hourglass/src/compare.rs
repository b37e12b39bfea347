//! `hourglass compare`: what two sides of one workload say about a change, and which outcome that is.
//! Not here: the comparison (`record::compare`), which files make a side (`compare/gather`), what is printed (`compare/table`).

pub(crate) mod gather;
pub(crate) mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use record::compare::{Asked, Collection, Outcome, compare};
use record::gate::{Answer, Namespace, Rule};

use crate::failure::usage;
use crate::output;
use gather::Given;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The side before the change: a record of bench, replay, timeline or ceilings, or a folder of such records (a run of find);
    /// PATH#NAME takes what is of one checkpoint, arm, or SOLUTION/CHECKPOINT
    #[arg(value_name = "BEFORE")]
    before: String,
    /// The side after it. Two arms of one bench record are the best evidence: bench.json#selected bench.json#fast
    #[arg(value_name = "AFTER")]
    after: String,
    /// The group that the change was aimed at [default: the largest of the larger phase before the change]
    #[arg(long, value_name = "GROUP")]
    target: Option<String>,
    /// The phase that the target is in
    #[arg(long, value_enum)]
    phase: Option<TargetPhase>,
    /// Exit with 1 unless this holds, e.g. 'decode.ratio > 97 %'; may be given several times (`hourglass decide metrics` lists
    /// the names)
    #[arg(long = "gate", value_name = "CONDITION")]
    gates: Vec<String>,
    /// Write the comparison as a record
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum TargetPhase {
    Prefill,
    Decode,
}

/// Names of the groups that replays have.
pub(crate) fn groups() -> Vec<&'static str> {
    ops::Group::ALL.map(ops::Group::name).to_vec()
}

/// The group that somebody calls so, in the replays' spelling: `cache update` is also `cache-update` and `cache_update`.
///
/// # Errors
/// No such group; the message lists them.
pub(crate) fn group_named(flag: &str, text: &str) -> Result<&'static str> {
    let plain = |name: &str| {
        let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_ascii_lowercase).collect::<Vec<_>>()
    };
    let all = groups().into_iter().chain(["sampling"]);
    all.clone().find(|group| plain(group) == plain(text)).ok_or_else(|| {
        let known: Vec<String> = all.map(|group| format!("'{group}'")).collect();
        usage(format!("{flag} '{text}': expected a group of operators, one of {}", known.join(", ")))
    })
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let names = Namespace::comparison("--gate", &groups());
    let parse = |text: &String| Rule::parse(text, &names).map_err(|error| usage(error.to_string()));
    let gates: Vec<Rule> = args.gates.iter().map(parse).collect::<Result<_>>()?;
    let target = args.target.as_deref().map(|text| group_named("--target", text)).transpose()?;
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let (before, after) = (Given::parse(&args.before), Given::parse(&args.after));
    let mut void = Vec::new();
    let mut read = |given: &Given| -> Result<Collection> {
        let mut collection = Collection::default();
        gather::read_into(&mut collection, std::slice::from_ref(&given.path), None)?;
        void.extend(collection.void().into_iter().map(|(file, check)| format!("{} is void: {check}", file.file)));
        Ok(collection)
    };
    let (of_before, of_after) = (read(&before)?, read(&after)?);
    void.dedup();
    let sides = (
        of_before.side(&args.before, before.name.as_deref()).map_err(|error| usage(error.to_string()))?,
        of_after.side(&args.after, after.name.as_deref()).map_err(|error| usage(error.to_string()))?,
    );
    let created = probe::now();
    let asked = Asked {
        created: &created,
        target,
        phase: args.phase.map(|phase| match phase {
            TargetPhase::Prefill => "prefill",
            TargetPhase::Decode => "decode",
        }),
        workload_id: None,
        void,
        gates: &gates,
    };
    let record = compare(&sides.0, &sides.1, &asked).map_err(|error| usage(error.to_string()))?;
    if let Some(file) = record_file {
        file.finish_with_json(&record)?;
    }
    if args.json {
        output::print_json(&record)?;
    } else {
        output::print(table::text(&record).as_bytes())?;
    }
    let mut passed = !crate::void::said(&record) && record.outcome.outcome != Outcome::Void;
    for gate in record.gates.iter().filter(|gate| gate.answer != Answer::Holds) {
        output::note(format_args!("hourglass: --gate {}", gate.sentence));
        passed = false;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
