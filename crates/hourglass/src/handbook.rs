//! What the handbook takes from the program, so that it shows what a user sees: the tables that verbs print, the report's
//! sections, the command line. Not here: the handbook (`book/`, crate `hourglass-book`).

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::CommandFactory;
use record::ledger::LEDGER_SCHEMA;

use crate::{CommandLine, records, report, store};

/// A section of the report, and the kinds of records of which it draws at least one.
const SECTIONS: &[(&str, &[&str])] = &[
    ("next", &["find"]),
    ("clock", &["bench"]),
    ("climb", &["climb"]),
    ("phases", &["bench"]),
    ("operators", &["replay", "sensitivity", "find"]),
    ("roofline", &["ceilings"]),
    ("timeline", &["timeline"]),
    ("kernels", &["capture", "lines"]),
    ("wiring", &["wiring", "find", "bench"]),
    ("memory", &["bench", "timeline", "find"]),
    ("comparisons", &["comparison", "replay-comparison"]),
    ("decisions", &["ledger", "decision"]),
];

/// The table that the verb of a record prints, of at most 100 columns. `name` is the record's path as it may be shown.
///
/// # Errors
/// Bytes that are no record of a kind that has a table.
pub fn table(name: &str, bytes: &[u8]) -> Result<String> {
    let schema = record::schema_in(name, bytes)?;
    match records::table(&schema, name, bytes) {
        Some(text) => Ok(text),
        None => bail!("{name}: a {schema} record has no table of its own"),
    }
}

/// What a figure of a section of the report is drawn from, as a JavaScript value ([`figure_script`] draws it).
///
/// # Errors
/// A file that is no record; a section that does not exist, or draws none of these records.
pub fn figure(section: &str, files: &[PathBuf]) -> Result<String> {
    let Some((_, kinds)) = SECTIONS.iter().find(|(name, _)| *name == section) else {
        let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
        bail!("the report has no section '{section}'; there are {}", names.join(", "));
    };
    let kind = |file: &PathBuf| {
        if file.extension().is_some_and(|extension| extension == "jsonl") {
            return Some(LEDGER_SCHEMA.to_owned());
        }
        store::found(file.clone()).0.schema.ok()
    };
    let given: Vec<String> = files.iter().filter_map(kind).collect();
    if !given.iter().any(|given| kinds.contains(&given.split('/').next().unwrap_or_default())) {
        bail!("the section '{section}' draws records of {}, and these are {}", kinds.join(" or "), given.join(", "));
    }
    report::figure_data(files)
}

/// The script that draws, in any page, every element `<div class="hourglass-figure" data-figure=NAME data-section=SECTION>` from
/// `window.hourglassFigures[NAME]`; with `data-only=TITLE` only the chart whose title begins so. It needs no network.
pub fn figure_script() -> String {
    report::figure_script()
}

/// What is wrong with a command line whose first word is `hourglass`; None if nothing is. Whether its files are there is not asked.
pub fn fault(words: &[String]) -> Option<String> {
    match CommandLine::command().try_get_matches_from(words) {
        Ok(_) => None,
        Err(error) if !error.use_stderr() => None,
        Err(error) => Some(error.to_string()),
    }
}
