//! The records that the handbook's numbers come from: found by name, read once, refused if void.
//! Not here: what is shown of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use record::ledger::{Entry, LEDGER_SCHEMA, Ledger};
use serde::Deserialize;
use serde_json::{Value, json};

/// `book/records.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    /// From the repository's root.
    folder: PathBuf,
    records: BTreeMap<String, String>,
}

/// The folder of records, and what was read of it.
pub(crate) struct Records {
    root: PathBuf,
    folder: PathBuf,
    names: BTreeMap<String, String>,
    read: RefCell<BTreeMap<PathBuf, Rc<Value>>>,
}

impl Records {
    /// The names of `book/records.toml`; `folder` instead of the one that it names.
    ///
    /// # Errors
    /// The file is not there, or says something else.
    pub(crate) fn open(root: &Path, folder: Option<&Path>) -> Result<Records> {
        let path = root.join("book/records.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let names: Names = toml::from_str(&text).with_context(|| path.display().to_string())?;
        let folder = folder.map_or_else(|| root.join(&names.folder), Path::to_path_buf);
        Ok(Records { root: root.to_path_buf(), folder, names: names.records, read: RefCell::default() })
    }

    /// The file of a record.
    ///
    /// # Errors
    /// No file of that name, or several that a `*` fits.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf> {
        let pattern = self.names.get(name).map_or(name, String::as_str);
        let mut found = vec![self.folder.clone()];
        for part in pattern.split('/') {
            found = match part.split_once('*') {
                None => found.into_iter().map(|folder| folder.join(part)).filter(|path| path.exists()).collect(),
                Some((before, after)) => found.iter().flat_map(|folder| fitting(folder, before, after)).collect(),
            };
        }
        match &found[..] {
            [path] if path.is_file() => Ok(path.clone()),
            [] | [_] => bail!(
                "record '{name}': there is no file {pattern} in {}; `hourglass find` and `hourglass find --climb` write it \
                 (book/records.toml has the names)",
                self.folder.display()
            ),
            several => bail!(
                "record '{name}': {} files fit {pattern} in {}; say more of the one that is meant",
                several.len(),
                self.folder.display()
            ),
        }
    }

    /// How a table may call the file: its path in the repository, or in the folder.
    pub(crate) fn shown<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).or_else(|_| path.strip_prefix(&self.folder)).unwrap_or(path)
    }

    /// The record itself, checked.
    ///
    /// # Errors
    /// No record of that name; one that was changed, or is void.
    pub(crate) fn value(&self, name: &str) -> Result<Rc<Value>> {
        let path = self.path(name)?;
        if let Some(value) = self.read.borrow().get(&path) {
            return Ok(Rc::clone(value));
        }
        let bytes = std::fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let value = checked(name, &path, &bytes)?;
        if value.get("void") == Some(&Value::Bool(true)) {
            bail!("record '{name}' ({}) is void: nothing in it may be shown as a measurement", path.display());
        }
        let value = Rc::new(value);
        self.read.borrow_mut().insert(path, Rc::clone(&value));
        Ok(value)
    }

    /// Records that need no file.
    #[cfg(test)]
    pub(crate) fn of<const N: usize>(records: [(&str, Value); N]) -> Records {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let names = records.iter().map(|(name, _)| ((*name).to_owned(), (*name).to_owned())).collect();
        let mut read: BTreeMap<PathBuf, Rc<Value>> = BTreeMap::new();
        for (name, value) in records {
            std::fs::write(folder.join(name), value.to_string()).expect("a file");
            read.insert(folder.join(name), Rc::new(value));
        }
        Records { root: folder.clone(), folder, names, read: RefCell::new(read) }
    }
}

/// A record, a ledger (as `{"schema", "entries"}`), or one entry of one, whichever the file is.
fn checked(name: &str, path: &Path, bytes: &[u8]) -> Result<Value> {
    if path.extension().is_some_and(|extension| extension == "jsonl") {
        let ledger = Ledger::read(bytes).with_context(|| format!("record '{name}'"))?;
        return Ok(json!({ "schema": LEDGER_SCHEMA, "entries": ledger.entries() }));
    }
    if record::schema_in(name, bytes)? == LEDGER_SCHEMA {
        let entry: Entry = serde_json::from_slice(bytes).with_context(|| format!("record '{name}'"))?;
        return Ok(serde_json::to_value(entry)?);
    }
    record::verify(name, bytes)?;
    serde_json::from_slice(bytes).with_context(|| format!("{}: not JSON", path.display()))
}

/// The entries of a folder whose names begin and end so.
fn fitting(folder: &Path, before: &str, after: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let fits =
        |name: &str| name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after);
    let mut paths: Vec<PathBuf> =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(fits)).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn records() -> (tempfile::TempDir, Records) {
        let folder = tempfile::tempdir().unwrap();
        for file in ["01-a/find.json", "02-a-b/find.json", "02-a-b-to-c.json"] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{}").unwrap();
        }
        std::fs::create_dir(folder.path().join("book")).unwrap();
        let names = "folder = '.'\n[records]\nfirst = '*-a/find.json'\nlost = 'find.json'\n";
        std::fs::write(folder.path().join("book/records.toml"), names).unwrap();
        let records = Records::open(folder.path(), None).unwrap();
        (folder, records)
    }

    #[test]
    fn a_star_fits_one_file() {
        let (folder, records) = records();
        assert_eq!(records.path("first").unwrap(), folder.path().join("./01-a/find.json"));
        assert_eq!(records.path("*-to-c.json").unwrap(), folder.path().join("./02-a-b-to-c.json"));
        let fault = |name: &str| records.path(name).unwrap_err().to_string();
        assert!(fault("*/find.json").contains("2 files"), "{}", fault("*/find.json"));
        assert!(fault("lost").contains("'lost'") && fault("lost").contains("find.json"));
        assert!(fault("book").contains("no file"));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let (_folder, records) = records();
        assert!(records.value("first").is_err());
    }
}
