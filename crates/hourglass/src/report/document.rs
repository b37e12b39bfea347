//! What a report is made from: records that were read and checked, the source lines that they name, and our bias.
//! Not here: the page (`page.rs`); nothing here is drawn.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::Result;
use record::EVIDENCE_ID_DIGITS;
use record::ledger::{LEDGER_SCHEMA, Ledger};
use serde::Serialize;
use serde_json::Value;

use super::sources::{self, Located, SourceText};
use crate::failure::usage;
use crate::store;

/// The ledger's name in the folder of records.
const LEDGER: &str = "ledger.jsonl";

/// Everything that the page's script reads.
#[derive(Serialize)]
pub(super) struct Document {
    /// UTC, RFC 3339.
    created: String,
    version: &'static str,
    pub(super) records: Vec<Entry>,
    left_out: Vec<LeftOut>,
    /// Source files by their path from the repository's root.
    sources: BTreeMap<String, SourceText>,
    bias: &'static str,
    licences: &'static str,
}

/// One record.
#[derive(Serialize)]
pub(super) struct Entry {
    index: usize,
    /// As short as tells it apart from the others.
    name: String,
    schema: String,
    id: String,
    sha256: String,
    pub(super) record: Value,
}

/// A file of a given folder that is no record.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) name: String,
    pub(crate) why: String,
}

/// What went into a report.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) records: Vec<Used>,
    pub(crate) left_out: Vec<LeftOut>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Used {
    pub(crate) name: String,
    pub(crate) schema: String,
    pub(crate) sha256: String,
}

struct Checked {
    path: PathBuf,
    schema: String,
    sha256: String,
    record: Value,
}

impl Document {
    /// Reads and checks the records among `paths`; the same file twice counts once.
    ///
    /// # Errors
    /// A file that was named and is no record. What a folder has beside its records is left out, and said.
    pub(super) fn read(paths: &[PathBuf]) -> Result<Document> {
        let mut checked: Vec<Checked> = Vec::new();
        let mut left_out = Vec::new();
        for path in paths {
            let folder = path.is_dir();
            let found = store::records_in(std::slice::from_ref(path)).into_iter().map(|found| found.path);
            // The folder of records has its ledger beside its runs.
            let ledger = Some(path.join(LEDGER)).filter(|ledger| folder && ledger.is_file());
            for file in found.chain(ledger) {
                match check(&file) {
                    Ok(record) => checked.push(record),
                    // Printed by `decide`, and in the ledger.
                    Err(_) if folder && is_entry(&file) => {}
                    Err(why) if folder => left_out.push(LeftOut { name: file.display().to_string(), why }),
                    Err(why) => return Err(usage(why)),
                }
            }
        }
        let mut seen = HashSet::new();
        checked.retain(|record| seen.insert(record.sha256.clone()));
        let names = short_names(&checked.iter().map(|record| record.path.as_path()).collect::<Vec<_>>());
        let sources = sources::of(checked.iter().map(|checked| Located {
            record: &checked.record,
            folder: checked.path.parent().unwrap_or(Path::new("")),
        }));
        let entry = |(index, (record, name)): (usize, (Checked, String))| Entry {
            index,
            name,
            schema: record.schema,
            id: record.sha256[..EVIDENCE_ID_DIGITS].to_owned(),
            sha256: record.sha256,
            record: record.record,
        };
        Ok(Document {
            created: probe::now(),
            version: env!("CARGO_PKG_VERSION"),
            records: checked.into_iter().zip(names).enumerate().map(entry).collect(),
            left_out,
            sources,
            bias: include_str!("../../../../BIAS.md"),
            licences: include_str!("../../assets/vendor/plot.LICENSES.txt"),
        })
    }

    pub(super) fn summary(self) -> Summary {
        let used = |entry: Entry| Used { name: entry.name, schema: entry.schema, sha256: entry.sha256 };
        Summary { records: self.records.into_iter().map(used).collect(), left_out: self.left_out }
    }
}

/// Whether it is one entry of a ledger, alone.
fn is_entry(path: &Path) -> bool {
    store::found(path.to_path_buf()).0.schema.is_ok_and(|schema| schema == record::ledger::LEDGER_SCHEMA)
}

/// One file, if it is a whole record or ledger; else a message that names it.
fn check(path: &Path) -> Result<Checked, String> {
    if path.extension().is_some_and(|extension| extension == "jsonl") {
        return ledger(path);
    }
    let (found, bytes) = store::found(path.to_path_buf());
    let (schema, bytes) = match (found.schema, bytes) {
        (Ok(schema), Some(bytes)) => (schema, bytes),
        (Err(why), _) => return Err(why.to_string()),
        (Ok(_), None) => return Err(format!("{}: could not be read again", path.display())),
    };
    let name = path.display().to_string();
    record::verify(&name, &bytes).map_err(|error| error.to_string())?;
    let record = serde_json::from_slice(&bytes).map_err(|error| format!("{name}: not JSON: {error}"))?;
    Ok(Checked { path: path.to_path_buf(), schema, sha256: found.sha256, record })
}

/// A ledger whose chain holds, as `{"schema", "entries"}`.
fn ledger(path: &Path) -> Result<Checked, String> {
    let (found, bytes) = store::found(path.to_path_buf());
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = match (bytes, found.schema) {
        (Some(bytes), _) => bytes,
        (None, Err(why)) => return Err(why.to_string()),
        (None, Ok(_)) => return Err(said(&"could not be read again")),
    };
    let ledger = Ledger::read(&bytes).map_err(|error| said(&error))?;
    let record = serde_json::json!({ "schema": LEDGER_SCHEMA, "entries": ledger.entries() });
    Ok(Checked { path: path.to_path_buf(), schema: LEDGER_SCHEMA.to_owned(), sha256: found.sha256, record })
}

/// The last part of each path, and of those that share it as many parts more as tell them apart.
fn short_names(paths: &[&Path]) -> Vec<String> {
    let tail = |path: &Path, parts: usize| {
        let all: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        all[all.len().saturating_sub(parts)..].join("/")
    };
    let deepest = paths.iter().map(|path| path.components().count()).max().unwrap_or(1);
    let name = |path: &&Path| {
        let alone = |parts: &usize| {
            let own = tail(path, *parts);
            paths.iter().filter(|other| tail(other, *parts) == own).count() == 1
        };
        tail(path, (1..=deepest).find(alone).unwrap_or(deepest))
    };
    paths.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_short_as_tells_them_apart() {
        let paths =
            ["/a/before/bench.json", "/a/after/bench.json", "/a/after/replay.json", "replay.json"].map(Path::new);
        let names = short_names(&paths);
        assert_eq!(names, ["before/bench.json", "after/bench.json", "after/replay.json", "replay.json"]);
    }
}
