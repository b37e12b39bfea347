//! `decide import` and `decide export`: decisions in the short form that people and other tools write.
//! Not here: the forms themselves (`record::ledger`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use record::ledger::{Body, WrittenDecision, export_json, export_markdown, import as read_decisions};

use super::{Context, entry_named};
use crate::failure::usage;
use crate::output;
use crate::store;

#[derive(clap::Args)]
pub(super) struct ExportArgs {
    /// Id of one decision, or its beginning [default: all]
    id: Option<String>,
    #[arg(long, value_enum, default_value = "markdown")]
    format: Form,
    /// Write to a file in place of stdout
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Markdown,
}

pub(super) fn import(context: &Context, path: &Path) -> Result<ExitCode> {
    let (found, bytes) = store::found(path.to_path_buf());
    let bytes = match (bytes, found.schema) {
        (Some(bytes), _) => bytes,
        (None, Err(why)) => return Err(usage(why.to_string())),
        (None, Ok(_)) => return Err(usage(format!("{}: cannot be read", path.display()))),
    };
    let name = path.to_string_lossy();
    let decisions: Vec<WrittenDecision> = read_decisions(&name, &bytes).map_err(|error| usage(error.to_string()))?;
    let mut entries = Vec::new();
    for decision in decisions {
        entries.push(context.append(|ledger| {
            let body = Body::Import(Box::new(decision.clone()));
            let known = ledger.entries().iter().find(|entry| entry.body == body);
            match known {
                Some(entry) => Err(usage(format!("{name}: this decision was imported already, as {}", entry.id))),
                None => Ok(body),
            }
        })?);
    }
    if context.json {
        output::print_json(&entries)?;
    } else {
        let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        output::print(format!("imported {}: {}\n", entries.len(), ids.join(" ")).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn export(context: &Context, args: &ExportArgs) -> Result<ExitCode> {
    let file = output::create_if_asked("--output", args.output.as_deref())?;
    let ledger = context.ledger()?;
    let id = args.id.as_deref().map(|id| entry_named(&ledger, id).map(|entry| entry.id.clone())).transpose()?;
    let text = if context.json || args.format == Form::Json {
        serde_json::to_string_pretty(&export_json(&ledger, id.as_deref()))? + "\n"
    } else {
        export_markdown(&ledger, id.as_deref())
    };
    match file {
        Some(file) => file.finish_with(text.as_bytes())?,
        None => output::print(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}
