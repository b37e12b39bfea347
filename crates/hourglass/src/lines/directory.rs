//! A directory that a verb makes: it must not exist, and appears whole or not at all.
//! Not here: single files (`output`).

use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

use crate::failure::usage;

/// A directory that is being filled beside its final path and renamed to it when finished; removed if dropped before.
pub(super) struct OutputDirectory {
    flag: &'static str,
    path: PathBuf,
    partial: TempDir,
}

impl OutputDirectory {
    /// Claims `path`, given by `flag`. Call it before any work.
    ///
    /// # Errors
    /// The path exists, or its parent does not, or cannot be written.
    pub(super) fn create(flag: &'static str, path: &Path) -> Result<OutputDirectory> {
        let named = |why: String| usage(format!("{flag} {}: {why}", path.display()));
        if path.symlink_metadata().is_ok() {
            return Err(named("already exists and is never overwritten; choose another path or remove it".to_owned()));
        }
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let Some(name) = path.file_name() else {
            return Err(named("expected the path of a directory to make, found no name".to_owned()));
        };
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        let partial = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".partial")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .tempdir_in(parent)
            .map_err(|error| named(format!("cannot make a directory there: {error}")))?;
        Ok(OutputDirectory { flag, path: path.to_path_buf(), partial })
    }

    /// Writes one file into it.
    ///
    /// # Errors
    /// The disk is full, for example.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        std::fs::write(self.partial.path().join(name), bytes)
            .map_err(|error| anyhow::anyhow!("{} {}: cannot write {name}: {error}", self.flag, self.path.display()))
    }

    /// Everything is written: the directory gets its name.
    ///
    /// # Errors
    /// Somebody made the path meanwhile.
    pub(super) fn finish(self) -> Result<()> {
        renameat_with(CWD, self.partial.path(), CWD, &self.path, RenameFlags::NOREPLACE).map_err(|error| {
            anyhow::anyhow!(
                "{} {}: cannot give the directory its name: {error}; nothing was kept",
                self.flag,
                self.path.display()
            )
        })?;
        // Nothing is left under its first name.
        let _ = self.partial.keep();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_directory_appears_whole_or_not_at_all_and_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let dropped = OutputDirectory::create("--out", &path).unwrap();
        dropped.write("a", b"x").unwrap();
        drop(dropped);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let made = OutputDirectory::create("--out", &path).unwrap();
        made.write("a", b"x").unwrap();
        let late = OutputDirectory::create("--out", &path).unwrap();
        made.finish().unwrap();
        assert_eq!(std::fs::read(path.join("a")).unwrap(), b"x");
        assert!(late.finish().is_err());
        assert_eq!(std::fs::read(path.join("a")).unwrap(), b"x");
        assert!(OutputDirectory::create("--out", &path).err().unwrap().to_string().contains("never overwritten"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }
}
