//! Which source files are the repository's, and whether those of a checkout are the ones that were compiled.
//! Not here: reading source text.

use super::executable::hexadecimal;
use record::capture::lines::{SourceFile, Verification};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// The captured program's source files and a checkout beside them.
pub(super) struct Sources {
    /// Path from the repository's root to SHA-256, as the trace has them.
    compiled: BTreeMap<String, String>,
    checkout: PathBuf,
    known: HashMap<String, Shown>,
    files: BTreeMap<String, Verification>,
}

/// How a path of the debugging information is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) file: String,
    pub(super) in_repository: bool,
}

impl Sources {
    pub(super) fn new(compiled: &[(String, String)], checkout: &Path) -> Sources {
        Sources {
            compiled: compiled.iter().cloned().collect(),
            checkout: checkout.canonicalize().unwrap_or_else(|_| checkout.to_path_buf()),
            known: HashMap::new(),
            files: BTreeMap::new(),
        }
    }

    /// How `path` is shown: from the repository's root if it is one of its files; library code without the machine's folders.
    pub(super) fn shown(&mut self, path: &str) -> Shown {
        if let Some(shown) = self.known.get(path) {
            return shown.clone();
        }
        let shown = self.look_up(path);
        self.known.insert(path.to_owned(), shown.clone());
        shown
    }

    /// Every file of the repository that was asked for.
    pub(super) fn files(self) -> Vec<SourceFile> {
        self.files.into_iter().map(|(file, verification)| SourceFile { file, verification }).collect()
    }

    fn look_up(&mut self, path: &str) -> Shown {
        if let Some(library) = library(path) {
            return Shown { file: library, in_repository: false };
        }
        // The longest end of the path that is in the list.
        let starts = std::iter::once(0).chain(path.match_indices('/').map(|(at, _)| at + 1));
        let listed = starts.map(|at| &path[at..]).find(|end| self.compiled.contains_key(*end));
        if let Some(file) = listed {
            let verification = self.verify(file);
            self.files.insert(file.to_owned(), verification);
            return Shown { file: file.to_owned(), in_repository: true };
        }
        if let Ok(inside) = Path::new(path).strip_prefix(&self.checkout) {
            let file = inside.to_string_lossy().into_owned();
            let why = "it is not in the list of the files that the captured program was compiled from".to_owned();
            self.files.insert(file.clone(), Verification::Unverified { why });
            return Shown { file, in_repository: true };
        }
        let name =
            Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned());
        Shown { file: format!("…/{name}"), in_repository: false }
    }

    fn verify(&self, file: &str) -> Verification {
        let unverified = |why: String| Verification::Unverified { why };
        let bytes = match std::fs::read(self.checkout.join(file)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return unverified(
                    "it is not in the checkout: moved, removed, or another --sources is meant".to_owned(),
                );
            }
            Err(error) => return unverified(format!("the checkout's file cannot be read: {error}")),
        };
        if self.compiled.get(file).is_some_and(|expected| *expected == hexadecimal(&Sha256::digest(&bytes))) {
            Verification::Verified
        } else {
            unverified("the checkout's file was changed after the captured program was compiled".to_owned())
        }
    }
}

/// Paths of the compiler's own and of downloaded crates, without what differs from machine to machine.
fn library(path: &str) -> Option<String> {
    if let Some((_, rest)) = path.split_once("/rustc/") {
        let inside = rest.split_once('/').map_or(rest, |(_, inside)| inside);
        return Some(format!("rust/{}", without_detours(inside)));
    }
    if let Some((_, rest)) = path.split_once("/lib/rustlib/src/rust/") {
        return Some(format!("rust/{}", without_detours(rest)));
    }
    let (_, rest) = path.split_once("/registry/src/")?;
    Some(rest.split_once('/').map_or(rest, |(_, inside)| inside).to_owned())
}

/// `a/../b` is `b`.
fn without_detours(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        if name == ".." && names.last().is_some_and(|last| *last != "..") {
            names.pop();
        } else {
            names.push(name);
        }
    }
    names.join("/")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn files_are_verified_by_their_hash_and_everything_else_says_why_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            (name.to_owned(), hexadecimal(&Sha256::digest(text)))
        };
        let same = write("crates/a/src/same.rs", "fn a() {}");
        let changed = write("crates/a/src/changed.rs", "fn a() {}");
        std::fs::write(folder.path().join("crates/a/src/changed.rs"), "fn b() {}").unwrap();
        let gone = ("crates/a/src/gone.rs".to_owned(), "0".repeat(64));
        write("crates/a/tests/new.rs", "");
        let mut sources = Sources::new(&[same, changed, gone], folder.path());
        let mut shown = |path: &str| {
            let shown = sources.shown(path);
            (shown.file, shown.in_repository)
        };
        // Built somewhere else.
        assert_eq!(shown("/build/x/crates/a/src/same.rs"), ("crates/a/src/same.rs".into(), true));
        assert_eq!(shown("crates/a/src/changed.rs"), ("crates/a/src/changed.rs".into(), true));
        assert_eq!(shown("/build/x/crates/a/src/gone.rs"), ("crates/a/src/gone.rs".into(), true));
        let inside = folder.path().canonicalize().unwrap().join("crates/a/tests/new.rs");
        assert_eq!(shown(inside.to_str().unwrap()), ("crates/a/tests/new.rs".into(), true));
        assert!(!shown("/rustc/abc/library/core/src/crates/a/src/same.rs").1);
        assert_eq!(
            shown("/home/me/.cargo/registry/src/index.crates.io-1/half-2.4.1/src/lib.rs"),
            ("half-2.4.1/src/lib.rs".into(), false)
        );
        assert_eq!(
            shown("/rustc/abc/library/core/src/../../stdarch/x86/sse.rs"),
            ("rust/library/stdarch/x86/sse.rs".into(), false)
        );
        assert_eq!(shown("/usr/src/glibc/string/memcpy.S"), ("…/memcpy.S".into(), false));
        let files = sources.files();
        let why = |name: &str| match &files.iter().find(|file| file.file.ends_with(name)).unwrap().verification {
            Verification::Verified => "verified".to_owned(),
            Verification::Unverified { why } => why.clone(),
        };
        assert_eq!(why("same.rs"), "verified");
        assert!(why("changed.rs").contains("changed") && why("gone.rs").contains("moved"));
        assert!(why("new.rs").contains("not in the list"));
    }
}
