//! `decide open`: the three sentences, with rules that are checked before anything is stored.
//! Not here: asking for what is missing (`draft.rs`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use record::compare::Collection;
use record::gate::Rule;
use record::ledger::{Body, Opening, opening_workloads};

use super::draft::Draft;
use super::{Context, names};
use crate::compare::{gather, group_named};
use crate::failure::usage;
use crate::output;
use crate::prose::paragraph;

#[derive(clap::Args)]
pub(super) struct Args {
    /// What dominates, for this checkpoint and this request shape
    #[arg(long, value_name = "TEXT")]
    dominates: Option<String>,
    /// The one change that will be made
    #[arg(long, value_name = "TEXT")]
    change: Option<String>,
    /// The result on the same workload that would support it, in words
    #[arg(long, value_name = "TEXT")]
    expect: Option<String>,
    /// Keep it only if this holds, e.g. 'decode.ratio > 1.05'; repeatable: all must hold (`decide metrics` lists the names)
    #[arg(long, value_name = "RULE")]
    accept: Vec<String>,
    /// Reject it if this holds, e.g. 'request.verdict == slower'; repeatable: one is enough
    #[arg(long, value_name = "RULE")]
    reject: Vec<String>,
    /// A record of the request that it is about; repeatable, for several request shapes
    #[arg(long, value_name = "RECORD")]
    workload_of: Vec<PathBuf>,
    /// The checkpoint or arm before the change
    #[arg(long, value_name = "NAME")]
    baseline: Option<String>,
    /// The checkpoint or arm after it; the same name where two builds of one checkpoint are meant
    #[arg(long, value_name = "NAME")]
    candidate: Option<String>,
    /// The group of operators that the change is aimed at
    #[arg(long, value_name = "GROUP")]
    target: Option<String>,
    /// What the first sentence rests on: a record; repeatable
    #[arg(long, value_name = "RECORD")]
    evidence: Vec<PathBuf>,
    /// All of it from a file (TOML, or JSON), its fields called like these flags with _ for -
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "dominates", "change", "expect", "accept", "reject", "workload_of", "baseline", "candidate", "target", "evidence",
    ])]
    file: Option<PathBuf>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let draft = match &args.file {
        Some(path) => Draft::read(path)?,
        None => Draft {
            dominates: args.dominates.clone(),
            change: args.change.clone(),
            expect: args.expect.clone(),
            accept: args.accept.clone(),
            reject: args.reject.clone(),
            workload_of: args.workload_of.clone(),
            baseline: args.baseline.clone(),
            candidate: args.candidate.clone(),
            target: args.target.clone(),
            evidence: args.evidence.clone(),
        },
    };
    check_rules(&draft)?;
    let opening = opening(context, draft.complete()?)?;
    let entry = context.append(|_| Ok(Body::Open(Box::new(opening.clone()))))?;
    if context.json {
        output::print_json(&entry)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("{}: opened, in {}\n", entry.id, context.store.ledger().display());
    text += &paragraph("1. ", &opening.dominates, "   ");
    text += &paragraph(
        "2. ",
        &format!(
            "{} Kept only if {}.",
            crate::compare::table::sentence_case(&opening.change),
            opening.accept.join(", and ")
        ),
        "   ",
    );
    text += &paragraph("3. ", &format!("Rejected if {}.", opening.reject.join(", or ")), "   ");
    let next = if opening.baseline == opening.candidate {
        format!("Next: make the change, measure again, and `hourglass decide close {} RECORD...`", entry.id)
    } else {
        format!(
            "Next: hourglass bench --variant {} --variant {}{} --json-output after.json, then hourglass decide close {} after.json",
            opening.baseline,
            opening.candidate,
            as_flags(&opening),
            entry.id
        )
    };
    text += &paragraph("", &next, "  ");
    output::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Every rule is one, before anybody is asked for more.
fn check_rules(draft: &Draft) -> Result<()> {
    for (flag, rules) in [("--accept", &draft.accept), ("--reject", &draft.reject)] {
        for rule in rules {
            Rule::parse(rule, &names(flag)).map_err(|error| usage(error.to_string()))?;
        }
    }
    Ok(())
}

fn opening(context: &Context, draft: Draft) -> Result<Opening> {
    let root = context.root();
    let mut collection = Collection::default();
    gather::read_into(&mut collection, &draft.workload_of, Some(&root))?;
    let workloads = opening_workloads(&collection);
    if workloads.is_empty() {
        return Err(usage("--workload-of: expected a record of bench, replay or timeline, found none of these"));
    }
    let target = draft.target.map(|text| group_named("--target", &text).map(str::to_owned)).transpose()?;
    let mut evidence = Vec::new();
    for path in draft.evidence.iter().chain(&draft.workload_of).filter(|path| path.is_file()) {
        let reference = gather::evidence("--evidence", path, Some(&root))?;
        if !evidence.contains(&reference) {
            evidence.push(reference);
        }
    }
    if let Some(path) = draft.evidence.iter().find(|path| !path.is_file()) {
        return Err(usage(format!("--evidence {}: expected a record file", path.display())));
    }
    Ok(Opening {
        dominates: draft.dominates.unwrap_or_default(),
        change: draft.change.unwrap_or_default(),
        expect: draft.expect,
        accept: draft.accept,
        reject: draft.reject,
        workloads,
        baseline: draft.baseline.unwrap_or_default(),
        candidate: draft.candidate.unwrap_or_default(),
        target,
        evidence,
    })
}

/// What makes a `bench` of the decision's sides clock its request: the request's shape, and the lab where ours has no such rung.
fn as_flags(opening: &Opening) -> String {
    let request = opening.workloads.iter().find(|opened| opened.workload.phase == record::Phase::Request);
    let shape = request.map_or_else(String::new, |opened| {
        let workload = &opened.workload;
        format!(
            " --model {} --input-len {} --output-len {} --prefill-logits {} --seed {}",
            workload.model,
            workload.context_tokens,
            workload.output_tokens,
            workload.logits.name(),
            workload.seed
        )
    });
    let ours = ops::Registry::standard();
    let known = [&opening.baseline, &opening.candidate].iter().all(|name| ours.checkpoint(name).is_ok());
    let lab = !known && crate::load::Solution::Lab.registry().checkpoint(&opening.candidate).is_ok();
    let on_gpu_alone = |name: &&String| ops::ladder::DEVICE.iter().any(|rung| rung.name == **name);
    let device = if [&opening.baseline, &opening.candidate].iter().any(on_gpu_alone) { " --device cuda" } else { "" };
    format!("{}{device}{shape}", if lab { " --solution lab" } else { "" })
}
