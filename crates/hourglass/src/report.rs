//! `hourglass report`: one HTML file from any set of records, for people who would rather look than read. It needs no network
//! and no server. Not here: which records there are (`store`), and how they are drawn (`assets/report/`).

mod document;
mod page;
mod sources;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

use crate::failure::usage;
use crate::output::{self, OutputFile};
use document::Document;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files written by --json-output or by decide, and folders of them; several of a kind stand side by side
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// Write the report
    #[arg(long, value_name = "FILE.html")]
    out: PathBuf,
    /// Print what the report was made from
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let summary = write(&args.records, &args.out)?;
    for left in &summary.left_out {
        output::note(format_args!("hourglass: left out: {}", left.why));
    }
    if args.json {
        output::print_json(&summary)?;
    } else {
        let count = summary.records.len();
        let records = if count == 1 { "1 record" } else { &format!("{count} records") };
        output::print(format!("{}: {records}; open it in a browser\n", args.out.display()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the report of `records` (files, and folders of them) to `out`, whole or not at all.
///
/// # Errors
/// `out` exists; a file that is no record, or was changed after it was written; no record at all.
pub(crate) fn write(records: &[PathBuf], out: &Path) -> Result<document::Summary> {
    let file = OutputFile::create("--out", out)?;
    let document = Document::read(records)?;
    if document.records.is_empty() {
        let given: Vec<String> = records.iter().map(|path| path.display().to_string()).collect();
        return Err(usage(format!(
            "{}: no record found; give files written by --json-output, or a folder that has some",
            given.join(", ")
        )));
    }
    let page = page::page(&serde_json::to_string(&document)?);
    file.finish_with(page.as_bytes())?;
    Ok(document.summary())
}

/// The script that draws sections of the report in another page ([`page::figures`]).
pub(crate) fn figure_script() -> String {
    page::figures()
}

/// What such a figure is drawn from, as a script's value: it ends no script element.
///
/// # Errors
/// As [`write`].
pub(crate) fn figure_data(records: &[PathBuf]) -> Result<String> {
    Ok(page::inert(&serde_json::to_string(&Document::read(records)?)?))
}
