//! A record named by its evidence id, the first digits of one, or its file.
//! Not here: what is done with it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use record::EvidenceRef;

use super::entry::Entry;
use crate::failure::usage;
use crate::store::{self, Store, records_in};

/// Fewer digits than this are no name: one more record and they name two.
const FEWEST_DIGITS: usize = 4;

/// A record that was looked up, as it was at that moment.
pub(crate) struct Selected {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
    pub(crate) entry: Entry,
    /// What others call it.
    pub(crate) evidence: EvidenceRef,
}

/// The record that `name` means: a file if there is one of that name, else an evidence id of the store.
///
/// # Errors
/// Nothing of that name; an id that begins several records' ids; a file that is no record.
pub(crate) fn select(store: &Store, name: &str) -> Result<Selected> {
    let path = Path::new(name);
    if path.is_file() {
        return open(store, path.to_path_buf());
    }
    by_id(store, name)
}

/// The record of the store whose evidence id begins with `name`.
///
/// # Errors
/// As [`select`].
pub(crate) fn by_id(store: &Store, name: &str) -> Result<Selected> {
    let digits = !name.is_empty() && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !digits || name.len() > 64 {
        let shown: String = name.chars().take(80).collect();
        return Err(usage(format!(
            "'{shown}': expected an evidence id (hexadecimal digits, as `hourglass records list` shows them) or the path \
             of a record, and there is no such file"
        )));
    }
    if name.len() < FEWEST_DIGITS {
        return Err(usage(format!("'{name}': {} digits may be any record; give at least {FEWEST_DIGITS}", name.len())));
    }
    let found = records_in(&[store.root().to_path_buf()]);
    let mut fitting: Vec<_> = found.into_iter().filter(|found| found.sha256.starts_with(name)).collect();
    // The same bytes twice are one record.
    let first = fitting.first().map(|found| found.sha256.clone());
    if let Some(other) = fitting.iter().find(|found| Some(&found.sha256) != first.as_ref()) {
        return Err(usage(format!(
            "'{name}' begins the ids of {} and {}; give more digits",
            fitting[0].path.display(),
            other.path.display()
        )));
    }
    if fitting.is_empty() {
        return Err(usage(format!(
            "'{name}': no record in {} has an id that begins so; `hourglass records list` shows those that there are",
            store.root().display()
        )));
    }
    open(store, fitting.swap_remove(0).path)
}

/// The record in a file.
///
/// # Errors
/// A file that is no record.
pub(crate) fn open(store: &Store, path: PathBuf) -> Result<Selected> {
    let (found, bytes) = store::found(path.clone());
    let entry = Entry::of(&found, bytes.as_deref(), store.root());
    match (found.evidence(), bytes, found.schema) {
        (Some(evidence), Some(bytes), _) => Ok(Selected { path, bytes, entry, evidence }),
        (.., Err(why)) => Err(usage(why.to_string())),
        _ => Err(usage(format!("{}: cannot be read", path.display()))),
    }
}
