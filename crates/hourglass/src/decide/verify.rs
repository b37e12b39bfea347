//! `decide verify`: every line of the ledger is as it was written, and the evidence too where it is still there.
//! Not here: the chain's rules (`record::ledger`).

use std::process::ExitCode;

use anyhow::Result;
use record::EvidenceRef;
use record::ledger::{Body, Ledger};
use serde_json::json;

use super::Context;
use crate::failure::usage;
use crate::output;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Also check the record files that entries refer to, where they are still there
    #[arg(long)]
    evidence: bool,
    /// A hash that verify printed earlier, or its first digits: fails if the ledger's end was cut off since
    #[arg(long, value_name = "HASH")]
    head: Option<String>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let ledger = match context.ledger() {
        Ok(ledger) => ledger,
        Err(error) => {
            if context.json {
                output::print_json(&json!({ "error": format!("{error:#}") }))?;
            }
            return Err(error);
        }
    };
    let verified = ledger.verified();
    if let Some(head) = &args.head {
        if head.len() < 8 || !head.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(usage(format!("--head {head}: expected at least 8 hexadecimal digits, as verify prints them")));
        }
        if !ledger.has_hash(&head.to_lowercase()) {
            anyhow::bail!(
                "{}: no entry has the hash {head}: the ledger's end was cut off, or it is another ledger; restore it from the \
                 repository's history",
                context.store.ledger().display()
            );
        }
    }
    let (mut same, mut changed, mut gone) = (0, Vec::new(), Vec::new());
    if args.evidence {
        for evidence in referred(&ledger) {
            let path = context.root().join(&evidence.file);
            match std::fs::read(&path) {
                Ok(bytes) if evidence.is_of(&bytes) => same += 1,
                Ok(_) => changed.push(evidence.file.clone()),
                Err(_) => gone.push(evidence.file.clone()),
            }
        }
    }
    if context.json {
        let mut shown = json!({ "entries": verified.entries, "head": verified.head });
        if args.evidence {
            shown["evidence"] = json!({ "as_written": same, "changed": changed, "not_there": gone });
        }
        output::print_json(&shown)?;
    } else {
        let mut text = format!("{} entries, every line as it was written; head {}\n", verified.entries, verified.head);
        if args.evidence {
            text += &format!("{same} files of evidence as they were; {} are no longer there\n", gone.len());
        }
        output::print(text.as_bytes())?;
    }
    for file in &changed {
        output::note(format_args!("hourglass: {file}: was changed after an entry referred to it"));
    }
    Ok(if changed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every file that an entry refers to, each once.
fn referred(ledger: &Ledger) -> Vec<EvidenceRef> {
    let mut found: Vec<EvidenceRef> = Vec::new();
    for entry in ledger.entries() {
        let own: Vec<&EvidenceRef> = match &entry.body {
            Body::Open(opening) => opening.evidence.iter().collect(),
            Body::Close(closing) => closing.evidence.iter().collect(),
            Body::Import(written) => written.source.iter().collect(),
            Body::Note(_) | Body::Merge(_) => Vec::new(),
        };
        for evidence in own {
            if !found.contains(evidence) {
                found.push(evidence.clone());
            }
        }
    }
    found
}
