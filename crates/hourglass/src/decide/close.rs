//! `decide close`: the verdict that a decision's own rules give on records measured since.
//! Not here: the judging (`record::ledger::judge`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use record::compare::Collection;
use record::ledger::{Body, Ledger, judge};

use super::{Context, entry_named, names, show};
use crate::compare::gather;
use crate::failure::usage;
use crate::output;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Id of the decision, or its beginning
    id: String,
    /// Records of both sides, or folders of them, measured since the decision was opened
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// Words to go with the verdict; the verdict itself follows from the rules
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let ledger = context.ledger()?;
    let opened = open_decision(&ledger, &args.id)?;
    let mut collection = Collection::default();
    gather::read_into(&mut collection, &args.records, Some(&context.root()))?;
    let now = probe::now();
    let Some((entry, opening)) = ledger.opening(&opened) else {
        return Err(usage(format!("'{}' is no decision", args.id)));
    };
    let judged = judge(entry, opening, &collection, &names("a rule of the decision:"), &now);
    let (mut closing, _) = judged.map_err(|error| usage(format!("decide close {opened}: {error}")))?;
    closing.reason.clone_from(&args.reason);
    let written = context.append(|ledger| {
        // Somebody else may have closed it meanwhile.
        open_decision(ledger, &opened)?;
        Ok(Body::Close(Box::new(closing.clone())))
    })?;
    if context.json {
        output::print_json(&written)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    show::closing(&mut text, &closing);
    output::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The whole id of a decision that is open.
fn open_decision(ledger: &Ledger, id: &str) -> Result<String> {
    let entry = entry_named(ledger, id)?;
    if !matches!(entry.body, Body::Open(_)) {
        return Err(usage(format!(
            "'{id}': expected the id of an open decision, found an entry of kind '{}'",
            entry.body.name()
        )));
    }
    match ledger.closing(&entry.id) {
        Some((closed, closing)) => Err(usage(format!(
            "decision {} was closed at {} ({}); a verdict is not changed: open another decision, or add words with `decide note`",
            entry.id,
            closed.created,
            closing.verdict.name()
        ))),
        None => Ok(entry.id.clone()),
    }
}
