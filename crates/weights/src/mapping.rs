//! A file mapped read-only, and byte ranges of it that keep it alive.
//! Not here: what the bytes mean.

#![allow(unsafe_code, reason = "memory mapping and page release")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Mmap, UncheckedAdvice};

use crate::small_file::open_regular;
use crate::{Error, Result};

/// One mapped file. The file must not be truncated while it is mapped: the kernel then kills the reader (SIGBUS), as
/// with every program that maps files.
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps a regular file. Errors: not there, not readable, not a regular file.
    pub(crate) fn open(path: &Path) -> Result<Arc<MappedFile>> {
        let (file, _) = open_regular(path)?;
        // SAFETY: the map is read-only and private to this process's view; that nobody truncates the file meanwhile is
        // the documented condition of this type.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, "map", e))?;
        Ok(Arc::new(MappedFile { path: path.into(), map }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The range `start .. start + len`, or None if it does not lie inside the file.
    pub(crate) fn span(self: &Arc<Self>, start: u64, len: u64) -> Option<Span> {
        let end = start.checked_add(len)?;
        if end > self.map.len() as u64 {
            return None;
        }
        Some(Span { file: self.clone(), start: start as usize, len: len as usize })
    }
}

/// A byte range of a mapped file; cheap to clone, keeps the map alive.
#[derive(Clone)]
pub(crate) struct Span {
    file: Arc<MappedFile>,
    start: usize,
    len: usize,
}

impl Span {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.file.map[self.start..self.start + self.len]
    }

    /// Tells the kernel that these pages are not needed now. A later read brings them back from the file.
    pub(crate) fn release(&self) {
        if self.len == 0 {
            return;
        }
        // SAFETY: DONTNEED discards only clean pages here: the map is file-backed and read-only, so the bytes seen
        // through any live reference are the same before and after. The range lies inside the map (checked by `span`).
        let released = unsafe { self.file.map.unchecked_advise_range(UncheckedAdvice::DontNeed, self.start, self.len) };
        // Advice only: a kernel that refuses it keeps the pages, which costs memory and nothing else.
        drop(released);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_span_stays_inside_the_file_and_survives_release() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let content: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = MappedFile::open(&path).unwrap();
        assert!(file.span(0, 20_001).is_none());
        assert!(file.span(u64::MAX, 2).is_none());
        assert!(file.span(20_000, 0).is_some());
        let span = file.span(5_000, 10_000).unwrap();
        drop(file);
        assert_eq!(span.bytes(), &content[5_000..15_000]);
        span.release();
        assert_eq!(span.bytes(), &content[5_000..15_000]);
    }

    #[test]
    fn a_directory_is_not_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let error = MappedFile::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("regular file"), "{error}");
    }
}
