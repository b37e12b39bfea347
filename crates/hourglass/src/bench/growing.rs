//! A record that is saved while it grows: the whole state after each sample, in `PATH.partial`, and under its own name at the end.
//! Not here: what is in it. (`output.rs` has files that are written once.)

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::failure::usage;
use crate::output::{OutputFile, whole};

/// Both paths are free when it is made, and nothing is ever half in either of them.
pub(crate) struct GrowingFile {
    flag: &'static str,
    path: PathBuf,
    partial: PathBuf,
    saved: bool,
}

impl GrowingFile {
    /// Claims `path`, given by `flag`. Call it before any work.
    ///
    /// # Errors
    /// The path or the one of its partial state exists, or nothing can be written there.
    pub(crate) fn create(flag: &'static str, path: &Path) -> Result<GrowingFile> {
        // The checks of any other output; the claim itself is a file that vanishes again.
        drop(OutputFile::create(flag, path)?);
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        if partial.symlink_metadata().is_ok() {
            return Err(usage(format!(
                "{flag} {}: {} exists: what a run that did not end had measured; move or remove it",
                path.display(),
                partial.display()
            )));
        }
        Ok(GrowingFile { flag, path: path.to_path_buf(), partial, saved: false })
    }

    /// Makes `value` the whole state; the state before it stays until this one is complete.
    ///
    /// # Errors
    /// It cannot be written; says where the last whole state is.
    pub(crate) fn save(&mut self, value: &impl Serialize) -> Result<()> {
        let file = whole(&self.partial, value).map_err(|error| self.failed(&error))?;
        file.persist(&self.partial).map_err(|error| self.failed(&error.error))?;
        self.saved = true;
        Ok(())
    }

    /// The last state, under the file's own name.
    ///
    /// # Errors
    /// It cannot be written, or somebody made the path meanwhile; says where the last whole state is.
    pub(crate) fn finish(mut self, value: &impl Serialize) -> Result<()> {
        self.save(value)?;
        // A second file, so that the saved state stays until the name is taken for good.
        let file = whole(&self.partial, value).map_err(|error| self.failed(&error))?;
        file.persist_noclobber(&self.path).map_err(|error| self.failed(&error.error))?;
        fs::remove_file(&self.partial).with_context(|| format!("{} could not be removed", self.partial.display()))
    }

    fn failed(&self, error: &io::Error) -> anyhow::Error {
        let what = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "the disk is full; free some space".to_owned(),
            io::ErrorKind::AlreadyExists => "somebody made this path meanwhile; it was not overwritten".to_owned(),
            _ => format!("cannot write: {error}"),
        };
        let kept = if self.saved {
            format!("; the last whole state is kept in {}", self.partial.display())
        } else {
            String::new()
        };
        anyhow::anyhow!("{} {}: {what}{kept}", self.flag, self.path.display())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn every_state_is_whole_and_the_last_gets_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bench.json");
        let mut file = GrowingFile::create("--json-output", &path).unwrap();
        assert!(names(directory.path()).is_empty(), "nothing before the first state");
        file.save(&[1]).unwrap();
        file.save(&[1, 2]).unwrap();
        assert_eq!(names(directory.path()), ["bench.json.partial"]);
        let state: Vec<u32> = serde_json::from_slice(&fs::read(path.with_extension("json.partial")).unwrap()).unwrap();
        assert_eq!(state, [1, 2]);
        file.finish(&[1, 2, 3]).unwrap();
        assert_eq!(names(directory.path()), ["bench.json"]);
    }

    #[test]
    fn what_an_earlier_run_left_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bench.json");
        fs::write(path.with_extension("json.partial"), "theirs").unwrap();
        let message = GrowingFile::create("--json-output", &path).err().unwrap().to_string();
        assert!(message.contains("bench.json.partial") && message.contains("did not end"), "{message}");
        assert_eq!(names(directory.path()), ["bench.json.partial"]);
    }

    #[test]
    fn a_path_made_meanwhile_is_kept_and_so_is_the_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bench.json");
        let file = GrowingFile::create("--json-output", &path).unwrap();
        fs::write(&path, "theirs").unwrap();
        let message = file.finish(&[7]).unwrap_err().to_string();
        assert!(message.contains("meanwhile") && message.contains("bench.json.partial"), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        assert!(directory.path().join("bench.json.partial").exists());
    }

    /// The directory vanishes: as good as a full disk, and can be made without one.
    #[test]
    fn a_state_that_cannot_be_written_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("gone");
        fs::create_dir(&folder).unwrap();
        let mut file = GrowingFile::create("--json-output", &folder.join("bench.json")).unwrap();
        fs::remove_dir(&folder).unwrap();
        let message = file.save(&[7]).unwrap_err().to_string();
        assert!(message.contains("--json-output") && message.contains("cannot write"), "{message}");
    }
}
