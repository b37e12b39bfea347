//! `records gc`: which raw traces and runs nothing rests on any more, and removing them when told to.
//! Not here: files outside `runs/`; those are their owner's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::entry::{Entry, State};
use super::list::kibibytes;
use super::references;
use crate::prose::paragraph;
use crate::store::{self, Store, records_in};

/// Folders within folders that are looked through.
const DEEPEST: usize = 8;

/// What would be removed, and was if asked.
#[derive(Debug, Serialize)]
pub(crate) struct Sweep {
    /// Raw traces first, then runs.
    pub(crate) removable: Vec<Removable>,
    /// Runs that stay, and why.
    pub(crate) kept: Vec<Kept>,
    pub(crate) bytes: u64,
    pub(crate) removed: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Removable {
    /// Relative to the folder of records.
    pub(crate) path: PathBuf,
    pub(crate) what: &'static str,
    pub(crate) bytes: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Kept {
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

/// One folder under `runs/`.
struct Run {
    path: PathBuf,
    newest: Option<SystemTime>,
    bytes: u64,
    traces: Vec<PathBuf>,
    /// Digests of its records.
    own: BTreeSet<String>,
    /// Digests that its records refer to.
    refers: BTreeSet<String>,
    /// A file that this build does not understand.
    strange: Option<PathBuf>,
}

/// Finds what nothing rests on and what is older than `age`.
///
/// # Errors
/// The ledger or the folder cannot be read: then nothing is known to be free.
pub(crate) fn plan(store: &Store, age: Duration) -> Result<Sweep> {
    let ledger = references::of_ledger(&store.ledger())?;
    let runs = runs(store)?;
    let now = SystemTime::now();
    // A file from the future is young.
    let old = |run: &Run| run.newest.is_none_or(|newest| now.duration_since(newest).is_ok_and(|passed| passed > age));
    let mut why: BTreeMap<usize, String> = BTreeMap::new();
    for (index, run) in runs.iter().enumerate() {
        if let Some(strange) = &run.strange {
            why.insert(index, format!("{} is not understood by this build", strange.display()));
        } else if !old(run) {
            why.insert(index, "it is younger than --older-than".to_owned());
        }
    }
    // What the ledger rests on, and what that rests on: its raw traces stay too.
    let mut rests = BTreeSet::new();
    spread(&runs, ledger, |index, _| {
        rests.insert(index);
        why.insert(index, "a decision in the ledger rests on it".to_owned());
    });
    let kept: Vec<usize> = why.keys().copied().collect();
    let referred = kept.iter().flat_map(|index| runs[*index].refers.iter().cloned()).collect();
    spread(&runs, referred, |index, _| {
        why.entry(index).or_insert_with(|| "a run that stays rests on it".to_owned());
    });
    let mut sweep = Sweep { removable: Vec::new(), kept: Vec::new(), bytes: 0, removed: false };
    for (index, run) in runs.iter().enumerate() {
        if let Some(why) = why.get(&index) {
            if old(run) && !rests.contains(&index) {
                let traces = run.traces.iter().map(|trace| Removable {
                    path: relative(store, trace),
                    what: "raw trace; what was reduced from it stays",
                    bytes: size(trace, DEEPEST).bytes,
                });
                sweep.removable.extend(traces);
            }
            sweep.kept.push(Kept { path: relative(store, &run.path), why: why.clone() });
        }
    }
    for (index, run) in runs.iter().enumerate() {
        if !why.contains_key(&index) {
            sweep.removable.push(Removable { path: relative(store, &run.path), what: "run", bytes: run.bytes });
        }
    }
    sweep.bytes = sweep.removable.iter().map(|item| item.bytes).sum();
    Ok(sweep)
}

/// Removes what [`plan`] found.
///
/// # Errors
/// The first thing that cannot be removed; what came before it is gone.
pub(crate) fn remove(store: &Store, sweep: &mut Sweep) -> Result<()> {
    for item in &sweep.removable {
        let path = store.root().join(&item.path);
        fs::remove_dir_all(&path).with_context(|| format!("{}: cannot be removed", path.display()))?;
    }
    sweep.removed = true;
    Ok(())
}

/// Calls `reach` for every run with one of `digests`, and for every run that such a run refers to, and so on.
fn spread(runs: &[Run], digests: BTreeSet<String>, mut reach: impl FnMut(usize, &Run)) {
    let mut waiting = vec![digests];
    let mut reached = BTreeSet::new();
    while let Some(digests) = waiting.pop() {
        for (index, run) in runs.iter().enumerate() {
            if !run.own.is_disjoint(&digests) && reached.insert(index) {
                reach(index, run);
                waiting.push(run.refers.clone());
            }
        }
    }
}

fn runs(store: &Store) -> Result<Vec<Run>> {
    let folder = store.runs();
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("{}: cannot be read", folder.display())),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("{}: cannot be read", folder.display()))?;
        // A link to elsewhere is not ours to follow or to remove.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths.into_iter().map(|path| run(store, path)).collect())
}

fn run(store: &Store, path: PathBuf) -> Run {
    let Size { bytes, newest, traces } = size(&path, DEEPEST);
    let mut run = Run { path, newest, bytes, traces, own: BTreeSet::new(), refers: BTreeSet::new(), strange: None };
    for found in records_in(std::slice::from_ref(&run.path)) {
        let (found, bytes) = store::found(found.path);
        let entry = Entry::of(&found, bytes.as_deref(), store.root());
        if matches!(entry.state, State::Unreadable | State::UnknownKind) {
            run.strange = Some(entry.path.clone());
        }
        run.own.extend(entry.sha256.known().cloned());
        if let Some(value) = bytes.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok()) {
            run.refers.extend(references::of(&value));
        }
    }
    run
}

#[derive(Default)]
struct Size {
    bytes: u64,
    newest: Option<SystemTime>,
    traces: Vec<PathBuf>,
}

/// Of everything in a folder; links are not followed.
fn size(folder: &Path, depth: usize) -> Size {
    let mut total = Size::default();
    let Ok(entries) = fs::read_dir(folder) else { return total };
    for entry in entries.filter_map(Result::ok) {
        let Ok(metadata) = entry.path().symlink_metadata() else { continue };
        if metadata.is_dir() && depth > 0 {
            let below = size(&entry.path(), depth - 1);
            total.bytes += below.bytes;
            total.newest = total.newest.max(below.newest);
            total.traces.extend(below.traces);
            if store::is_trace(&entry.path()) {
                total.traces.push(entry.path());
            }
        } else {
            total.bytes += metadata.len();
            total.newest = total.newest.max(metadata.modified().ok());
        }
    }
    total
}

fn relative(store: &Store, path: &Path) -> PathBuf {
    path.strip_prefix(store.root()).unwrap_or(path).to_path_buf()
}

/// The plan, or what was done, for a person.
pub(crate) fn text(sweep: &Sweep) -> String {
    let mut text = String::new();
    for Kept { path, why } in &sweep.kept {
        text += &paragraph("keep    ", &format!("{}: {why}", path.display()), "          ");
    }
    for Removable { path, what, bytes } in &sweep.removable {
        let verb = if sweep.removed { "removed " } else { "remove  " };
        text += &paragraph(verb, &format!("{}: {what}, {} KiB", path.display(), kibibytes(*bytes)), "          ");
    }
    let amount = kibibytes(sweep.bytes);
    let words = match (sweep.removable.is_empty(), sweep.removed) {
        (true, _) => "Nothing to remove.".to_owned(),
        (false, true) => format!("{amount} KiB freed."),
        (false, false) => format!("{amount} KiB would be freed. Nothing was removed; the same with --yes removes it."),
    };
    let _ = writeln!(text, "{words}");
    text
}
