//! Where a client's names may lead: into the folder of records and the repository, and nowhere else.
//! Not here: what is read there.

use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use crate::failure::usage;
use crate::records::{self, Selected};
use crate::store::Store;

/// The folders that a session may read.
pub(super) struct Place {
    pub(super) store: Store,
    given: Option<PathBuf>,
    repository: Option<PathBuf>,
}

impl Place {
    /// # Errors
    /// `--dir` names something that is no folder.
    pub(super) fn new(dir: Option<&Path>) -> Result<Place> {
        let store = Store::at(dir)?;
        let repository = Store::repository()?.and_then(|repository| repository.canonicalize().ok());
        Ok(Place { store, given: dir.map(Path::to_path_buf), repository })
    }

    /// The folder of records, made if it is not there: for what writes.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn writable(&self) -> Result<Store> {
        Store::open_or_create(self.given.as_deref())
    }

    /// The folders, without links. The folder of records may come into being during a session.
    fn roots(&self) -> impl Iterator<Item = PathBuf> {
        self.store.root().canonicalize().ok().into_iter().chain(self.repository.clone())
    }

    /// The place that `name` leads to: absolute, or relative to the folder of records or the repository. Every link is
    /// followed before it is judged.
    ///
    /// # Errors
    /// Nothing there, or outside.
    pub(super) fn inside(&self, name: &str) -> Result<PathBuf> {
        let shown: String = name.chars().take(120).collect();
        if name.contains('\0') || Path::new(name).components().any(|part| part == Component::ParentDir) {
            return Err(usage(format!(
                "'{shown}': a path without '..' was expected, below the folder of records or the repository"
            )));
        }
        let mut found = None;
        for root in self.roots() {
            // An absolute name replaces the root.
            if let Ok(path) = root.join(name).canonicalize() {
                found = Some(path);
                break;
            }
        }
        match found {
            None => {
                Err(usage(format!("'{shown}': nothing of that name below the folder of records or the repository")))
            }
            Some(path) if self.roots().any(|root| path.starts_with(root)) => Ok(path),
            Some(_) => Err(usage(format!(
                "'{shown}': leads outside the folder of records and the repository, which is all that this server reads"
            ))),
        }
    }

    /// The record that `name` means: an evidence id of the store, or a file inside.
    ///
    /// # Errors
    /// Nothing, or too much, of that name; a path that leads outside.
    pub(super) fn record(&self, name: &str) -> Result<Selected> {
        if name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return records::by_id(&self.store, name);
        }
        let path = self.inside(name)?;
        if !path.is_file() {
            return Err(usage(format!("'{}': expected a record's file", path.display())));
        }
        records::open(&self.store, path)
    }

    /// A model as `--model` takes it. A path must be inside; a name is looked up in the local hub cache.
    ///
    /// # Errors
    /// A path that leads outside.
    pub(super) fn model(&self, name: &str) -> Result<String> {
        let is_path =
            !name.starts_with("synthetic:") && (name.contains('/') || name.starts_with('.') || name.ends_with(".gguf"));
        if is_path { Ok(self.inside(name)?.display().to_string()) } else { Ok(name.to_owned()) }
    }
}
