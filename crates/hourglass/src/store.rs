//! `.hourglass/`, where records are kept: the folder, a new run's place in it, the ledger's, and which records are where.
//! Not here: what a record holds (`record`), and the verbs that list, show and remove them (`records`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use record::{EvidenceRef, MAX_RECORD_BYTES, ReadError, file_digest, schema_in};

use crate::failure::usage;

/// The folder's name, under the repository's root.
const FOLDER: &str = ".hourglass";
/// Measurements are large and belong to one machine; the ledger is what a repository keeps.
const IGNORED: &str = "runs/\n";
/// Folders within folders that are searched for records.
const DEEPEST: usize = 8;

/// The folder of records.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    root: PathBuf,
}

impl Store {
    /// The folder named by `--dir`, else `.hourglass` at the root of the repository around the working directory, else in
    /// the working directory; made, with its `.gitignore`, if it is not there.
    ///
    /// # Errors
    /// A file in its place; no permission to make it.
    pub(crate) fn open_or_create(dir: Option<&Path>) -> Result<Store> {
        let store = Store::at(dir)?;
        let runs = store.runs();
        fs::create_dir_all(&runs).map_err(|error| {
            usage(format!(
                "{}: the folder of records cannot be made ({error}); run it where you may write, or name a place with --out (find) \
                 or --dir (records, decide)",
                runs.display()
            ))
        })?;
        let ignore = store.root.join(".gitignore");
        // An empty one is what a full disk left of it.
        if fs::metadata(&ignore).map_or(true, |file| file.len() == 0) {
            fs::write(&ignore, IGNORED).with_context(|| cannot_write(&ignore))?;
        }
        Ok(store)
    }

    /// The same folder for reading: nothing is made, and it need not be there.
    ///
    /// # Errors
    /// The working directory is gone; `--dir` names something that is no folder.
    pub(crate) fn at(dir: Option<&Path>) -> Result<Store> {
        let root = match dir {
            Some(dir) => dir.to_path_buf(),
            None => {
                let here = working_directory()?;
                repository_around(&here).unwrap_or(here).join(FOLDER)
            }
        };
        if root.exists() && !root.is_dir() {
            return Err(usage(format!(
                "{}: expected the folder of records, found a file; move it away or name another folder with --dir",
                root.display()
            )));
        }
        Ok(Store { root })
    }

    /// The repository around the working directory.
    ///
    /// # Errors
    /// The working directory is gone.
    pub(crate) fn repository() -> Result<Option<PathBuf>> {
        Ok(repository_around(&working_directory()?))
    }

    /// The folder itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where runs are, each in a folder of its own.
    pub(crate) fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// The ledger's file, whether or not there is one yet.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.root.join("ledger.jsonl")
    }

    /// A new folder for the records of one run of `verb`: `runs/<UTC time>-<verb>`, numbered if that is taken.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn new_run(&self, verb: &str) -> Result<PathBuf> {
        let time = probe::now().replace(':', "-");
        for attempt in 1..=1000 {
            let number = if attempt == 1 { String::new() } else { format!("-{attempt}") };
            let path = self.runs().join(format!("{time}-{verb}{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| cannot_write(&path)),
            }
        }
        anyhow::bail!("{}: a thousand runs began in this second; wait for the next", self.runs().display())
    }
}

fn working_directory() -> Result<PathBuf> {
    std::env::current_dir().context("the working directory cannot be read; change to another")
}

fn cannot_write(path: &Path) -> String {
    format!("{}: cannot be written; name another folder with --dir", path.display())
}

/// The nearest folder from `from` upwards that git keeps: `.git` is a folder, or a file in a worktree.
fn repository_around(from: &Path) -> Option<PathBuf> {
    from.ancestors().find(|folder| folder.join(".git").exists()).map(Path::to_path_buf)
}

/// A file that is, or should be, a record.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// `name/version`, or why there is none. Nothing else of the record was checked.
    pub(crate) schema: Result<String, NotRead>,
    /// Of the file's bytes; empty if they could not be read.
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
}

/// Why a file's schema is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotRead {
    #[error("{name}: cannot be read: {why}")]
    File { name: String, why: io::Error },
    #[error(transparent)]
    Record(#[from] ReadError),
}

impl Found {
    /// What others call this record, if it is one.
    pub(crate) fn evidence(&self) -> Option<EvidenceRef> {
        let schema = self.schema.as_ref().ok()?;
        EvidenceRef::by_digest(schema, self.path.to_string_lossy(), &self.sha256).ok()
    }
}

/// The records among `paths`: a file is taken whatever it is called; of a folder every `*.json` in it and in its folders,
/// by name. Links inside folders are not followed, and a capture's raw trace is one thing, not searched for records.
/// What cannot be read is in the list, with the reason.
pub(crate) fn records_in(paths: &[PathBuf]) -> Vec<Found> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            collect(path, DEEPEST, &mut files);
        } else {
            files.push(path.clone());
        }
    }
    files.into_iter().map(|path| found(path).0).collect()
}

/// One file, with its bytes where they could be read.
pub(crate) fn found(path: PathBuf) -> (Found, Option<Vec<u8>>) {
    let name = path.display().to_string();
    match read_bounded(&path) {
        Ok(bytes) => {
            let schema = schema_in(&name, &bytes).map_err(NotRead::Record);
            (Found { schema, sha256: file_digest(&bytes), bytes: bytes.len() as u64, path }, Some(bytes))
        }
        Err(why) => {
            let bytes = path.symlink_metadata().map_or(0, |metadata| metadata.len());
            (Found { schema: Err(why), sha256: String::new(), bytes, path }, None)
        }
    }
}

/// A file's bytes, if it is a file and no larger than a record can be.
fn read_bounded(path: &Path) -> Result<Vec<u8>, NotRead> {
    let name = path.display().to_string();
    let failed = |why| NotRead::File { name: name.clone(), why };
    let metadata = path.metadata().map_err(failed)?;
    // A pipe or a device would be waited for.
    if !metadata.is_file() {
        return Err(failed(io::Error::other("expected a file")));
    }
    if metadata.len() > MAX_RECORD_BYTES as u64 {
        return Err(ReadError::TooLarge { name, bytes: metadata.len() as usize }.into());
    }
    fs::read(path).map_err(failed)
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        // The list shows it as what cannot be read.
        files.push(folder.to_path_buf());
        return;
    };
    let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if kind.is_dir() && depth > 0 && !is_trace(&path) {
            collect(&path, depth - 1, files);
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
}

/// Whether a folder is the raw trace of a capture.
pub(crate) fn is_trace(folder: &Path) -> bool {
    use record::capture::raw;
    folder.join(raw::SAMPLES).is_file() && folder.join(raw::CALLS).is_file()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_folder_is_made_once_and_its_ignore_file_kept() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let store = Store::open_or_create(Some(&root)).unwrap();
        assert_eq!(fs::read_to_string(root.join(".gitignore")).unwrap(), "runs/\n");
        fs::write(root.join(".gitignore"), "mine\n").unwrap();
        Store::open_or_create(Some(&root)).unwrap();
        assert_eq!(fs::read_to_string(root.join(".gitignore")).unwrap(), "mine\n");
        let runs = [store.new_run("find").unwrap(), store.new_run("find").unwrap()];
        assert!(runs[0] != runs[1] && runs.iter().all(|run| run.is_dir() && run.starts_with(store.runs())));
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(Store::at(Some(&dir.path().join("file"))).unwrap_err().to_string().contains("found a file"));
    }

    #[test]
    fn a_repository_is_found_from_below() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        // As in a worktree.
        fs::write(dir.path().join(".git"), "gitdir: elsewhere").unwrap();
        assert_eq!(repository_around(&below).unwrap(), dir.path());
    }

    #[test]
    fn records_are_found_and_what_is_none_is_not_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("b/one.json", r#"{"schema": "find/1"}"#);
        write("a.json", r#"{"schema": "find/1", "half"#);
        write("c.json", "[1, 2]");
        write("notes.txt", "not looked at");
        write("trace/samples.jsonl", "");
        write("trace/calls.json", "[]");
        std::os::unix::fs::symlink(dir.path(), dir.path().join("b/loop")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("a.json"), dir.path().join("link.json")).unwrap();
        let found = records_in(&[dir.path().to_path_buf()]);
        let names: Vec<_> = found.iter().map(|found| found.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.json", "one.json", "c.json"]);
        assert_eq!(found[1].schema.as_ref().unwrap(), "find/1");
        assert!(found[0].schema.as_ref().unwrap_err().to_string().contains("not JSON"));
        assert!(found[2].schema.as_ref().unwrap_err().to_string().contains("no record"));
        assert_eq!(found[1].evidence().unwrap().sha256(), file_digest(br#"{"schema": "find/1"}"#));
        let missing = records_in(&[dir.path().join("missing.json")]);
        assert!(missing[0].schema.is_err() && missing[0].evidence().is_none());
    }
}
