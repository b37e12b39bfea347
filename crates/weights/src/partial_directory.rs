//! A directory that appears under its name only when it is whole.
//! Not here: what is written into it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A directory that is removed unless it is renamed to its final name.
pub(crate) struct PartialDirectory {
    path: PathBuf,
    finished: bool,
}

impl PartialDirectory {
    /// Makes the hidden directory beside `out` that will become it.
    /// Errors: no directory to put it in; a full disk; no permission.
    pub(crate) fn create(out: &Path) -> Result<PartialDirectory> {
        let Some(name) = out.file_name() else {
            return Err(Error::Exists { path: out.into() });
        };
        let path = out.with_file_name(format!("{}{}", prefix(&name.to_string_lossy()), std::process::id()));
        fs::create_dir(&path).map_err(|e| match (e.kind(), out.parent()) {
            (ErrorKind::NotFound, Some(parent)) => Error::NoParent { path: out.into(), parent: parent.into() },
            // A run that was killed and had this very process id: only here is the hidden name what helps.
            (ErrorKind::AlreadyExists, _) => Error::Exists { path: path.clone() },
            _ => Error::io(out, "make the directory", e),
        })?;
        Ok(PartialDirectory { path, finished: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name. Errors: the name was taken meanwhile.
    pub(crate) fn finish(mut self, out: &Path) -> Result<()> {
        // Renaming would replace an empty directory that appeared meanwhile.
        if fs::symlink_metadata(out).is_ok() {
            return Err(Error::Exists { path: out.into() });
        }
        fs::rename(&self.path, out).map_err(|e| Error::io(out, "rename the finished directory to", e))?;
        self.finished = true;
        Ok(())
    }

    /// Removes what killed runs left of `out`. Only for somebody who holds the lock under which all of them ran.
    pub(crate) fn remove_leftovers(out: &Path) -> Result<()> {
        let (Some(parent), Some(name)) = (out.parent(), out.file_name()) else { return Ok(()) };
        let prefix = prefix(&name.to_string_lossy());
        let failed = |e| Error::io(parent, "list the directory", e);
        for entry in fs::read_dir(parent).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                fs::remove_dir_all(entry.path()).map_err(|e| Error::io(entry.path(), "remove", e))?;
            }
        }
        Ok(())
    }
}

fn prefix(name: &str) -> String {
    format!(".{name}.partial-")
}

impl Drop for PartialDirectory {
    fn drop(&mut self) {
        if !self.finished {
            // Already failing: that error is what the user must see.
            drop(fs::remove_dir_all(&self.path));
        }
    }
}
