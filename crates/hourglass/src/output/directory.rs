//! A directory that a verb writes: filled under another name beside its final path, and renamed when it is complete.
//! Not here: its files.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{CWD, RenameFlags, rename, renameat_with};
use rustix::io::Errno;
use tempfile::TempDir;

use super::{cannot_create, claim, readable};

/// A directory that is being filled; removed with everything in it if dropped before it is finished.
pub(crate) struct OutputDirectory {
    flag: &'static str,
    path: PathBuf,
    partial: TempDir,
}

impl OutputDirectory {
    /// Claims `path`, given by `flag`. Call it before any work.
    ///
    /// # Errors
    /// The path exists, or the directory that it is in does not, or cannot be written.
    pub(crate) fn create(flag: &'static str, path: &Path) -> Result<OutputDirectory> {
        let (directory, prefix) = claim(flag, path)?;
        let partial = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".partial")
            .permissions(readable(0o777))
            .tempdir_in(directory)
            .map_err(|error| cannot_create(flag, path, &error))?;
        Ok(OutputDirectory { flag, path: path.to_path_buf(), partial })
    }

    /// Where to write its files.
    pub(crate) fn partial(&self) -> &Path {
        self.partial.path()
    }

    /// Everything is written: the directory gets its name.
    ///
    /// # Errors
    /// Somebody made the path meanwhile; what the operating system says.
    pub(crate) fn finish(self) -> Result<()> {
        let OutputDirectory { flag, path, partial } = self;
        // A plain rename would take the place of an empty directory. Some file systems know no other.
        let renamed = match renameat_with(CWD, partial.path(), CWD, &path, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) if path.symlink_metadata().is_err() => rename(partial.path(), &path),
            other => other,
        };
        match renamed {
            Ok(()) => {
                // Under its new name it stays.
                let _ = partial.keep();
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(anyhow::anyhow!(
                "{flag} {}: somebody made this path meanwhile; it was not overwritten",
                path.display()
            )),
            Err(error) => Err(anyhow::anyhow!("{flag} {}: cannot rename to it: {error}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::fs;

    fn names(directory: &Path) -> Vec<String> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_directory_appears_whole_or_not_at_all() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("trace");
        let dropped = OutputDirectory::create("--trace", &path).unwrap();
        fs::write(dropped.partial().join("half"), "x").unwrap();
        assert!(names(here.path())[0].starts_with(".trace"), "hidden until it is complete");
        drop(dropped);
        assert!(names(here.path()).is_empty());
        let whole = OutputDirectory::create("--trace", &path).unwrap();
        fs::write(whole.partial().join("all"), "x").unwrap();
        whole.finish().unwrap();
        assert_eq!((names(here.path()), names(&path)), (vec!["trace".to_owned()], vec!["all".to_owned()]));
        let message = OutputDirectory::create("--trace", &path).err().unwrap().to_string();
        assert!(message.contains("--trace") && message.contains("never overwritten"), "{message}");
    }

    #[test]
    fn a_path_made_meanwhile_is_not_overwritten() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("trace");
        let output = OutputDirectory::create("--trace", &path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(output.finish().unwrap_err().to_string().contains("meanwhile"));
        assert_eq!(names(here.path()), ["trace"]);
        assert!(OutputDirectory::create("--trace", &here.path().join("no/trace")).is_err());
    }
}
