//! `records export --out`: records, with the records that they rest on, as a folder or one tar file with a manifest.
//! Not here: other tools' forms (`export.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use record::file_digest;
use serde::Serialize;
use serde_json::Value;

use super::references;
use super::select::{Selected, by_id};
use crate::failure::usage;
use crate::output::OutputFile;
use crate::store::Store;

/// Lines of `sha256`, two spaces, file: what `sha256sum --check` reads.
const MANIFEST: &str = "manifest.sha256";

/// What a bundle holds.
#[derive(Debug, Serialize)]
pub(crate) struct Bundle {
    pub(crate) out: PathBuf,
    pub(crate) files: Vec<Bundled>,
    /// Digests that the records refer to and the store does not have.
    pub(crate) missing: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Bundled {
    pub(crate) file: String,
    pub(crate) schema: String,
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
    /// It was not asked for: another record rests on it.
    pub(crate) evidence: bool,
}

/// Where a bundle goes; claimed before the records are looked up.
pub(crate) enum Place {
    /// A folder under another name until it is whole.
    Folder {
        at: PathBuf,
        parts: tempfile::TempDir,
    },
    Tar {
        at: PathBuf,
        file: OutputFile,
    },
}

impl Place {
    /// # Errors
    /// The path exists, or cannot be made.
    pub(crate) fn claim(out: &Path) -> Result<Place> {
        if out.extension().is_some_and(|extension| extension == "tar") {
            return Ok(Place::Tar { at: out.to_path_buf(), file: OutputFile::create("--out", out)? });
        }
        if out.symlink_metadata().is_ok() {
            return Err(usage(format!(
                "--out {}: already exists and is never overwritten; choose another path",
                out.display()
            )));
        }
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parts = tempfile::Builder::new()
            .prefix(".bundle")
            .suffix(".partial")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .tempdir_in(parent)
            .map_err(|error| {
                usage(format!("--out {}: cannot be made ({error}); choose another place", out.display()))
            })?;
        Ok(Place::Folder { at: out.to_path_buf(), parts })
    }

    fn path(&self) -> &Path {
        match self {
            Place::Folder { at, .. } | Place::Tar { at, .. } => at,
        }
    }
}

/// Writes the bundle.
///
/// # Errors
/// The place cannot be written.
pub(crate) fn write(store: &Store, asked: Vec<Selected>, place: Place) -> Result<Bundle> {
    let (parts, missing) = closure(store, asked);
    let mut bundle = Bundle { out: place.path().to_path_buf(), files: Vec::new(), missing };
    let mut contents: Vec<(String, Vec<u8>)> = Vec::new();
    let mut taken = BTreeSet::new();
    for Part { selected, evidence } in parts {
        let file = free_name(&selected, &mut taken);
        bundle.files.push(Bundled {
            file: file.clone(),
            schema: selected.evidence.schema.clone(),
            sha256: selected.evidence.sha256().to_owned(),
            bytes: selected.bytes.len() as u64,
            evidence,
        });
        contents.push((file, selected.bytes));
    }
    contents.sort();
    let manifest: String = contents.iter().map(|(file, bytes)| format!("{}  {file}\n", file_digest(bytes))).collect();
    contents.push((MANIFEST.to_owned(), manifest.into_bytes()));
    match place {
        Place::Folder { at, parts } => {
            for (file, bytes) in &contents {
                std::fs::write(parts.path().join(file), bytes)
                    .with_context(|| format!("--out {}: cannot write {file}", at.display()))?;
            }
            let parts = parts.keep();
            // An empty folder made meanwhile would be replaced; anything else makes this fail.
            std::fs::rename(&parts, &at).with_context(|| {
                format!("--out {}: cannot be made; the parts are in {}", at.display(), parts.display())
            })?;
        }
        Place::Tar { at, file } => {
            let failed = |error| anyhow::Error::new(error).context(format!("--out {}: cannot write", at.display()));
            let mut tar = tar::Builder::new(file);
            for (name, bytes) in &contents {
                let mut header = tar::Header::new_ustar();
                header.set_size(bytes.len() as u64);
                header.set_mode(0o644);
                tar.append_data(&mut header, name, bytes.as_slice()).map_err(failed)?;
            }
            tar.into_inner().map_err(failed)?.finish()?;
        }
    }
    Ok(bundle)
}

struct Part {
    selected: Selected,
    evidence: bool,
}

/// The records asked for and everything that they rest on, each once; and the digests that the store does not have.
fn closure(store: &Store, asked: Vec<Selected>) -> (Vec<Part>, Vec<String>) {
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    let mut missing = BTreeSet::new();
    let mut waiting: Vec<Part> = asked.into_iter().map(|selected| Part { selected, evidence: false }).collect();
    while let Some(part) = waiting.pop() {
        let digest = part.selected.evidence.sha256().to_owned();
        if parts.contains_key(&digest) {
            continue;
        }
        let value: Value = serde_json::from_slice(&part.selected.bytes).unwrap_or(Value::Null);
        for other in references::of(&value) {
            if parts.contains_key(&other) || other == digest {
                continue;
            }
            match by_id(store, &other) {
                Ok(selected) => waiting.push(Part { selected, evidence: true }),
                Err(_) => {
                    missing.insert(other);
                }
            }
        }
        parts.insert(digest, part);
    }
    // One that was given as a file outside the store is there all the same.
    missing.retain(|digest| !parts.contains_key(digest));
    (parts.into_values().collect(), missing.into_iter().collect())
}

/// The record's own file name; with its id before it if another has that name.
fn free_name(selected: &Selected, taken: &mut BTreeSet<String>) -> String {
    let name =
        selected.path.file_name().map_or_else(|| "record.json".to_owned(), |name| name.to_string_lossy().into_owned());
    let id = selected.evidence.id();
    // Names that a ustar header holds without a prefix.
    let name = if name.len() > 80 || name == MANIFEST { format!("{id}.json") } else { name };
    let name = if taken.contains(&name) { format!("{id}-{name}") } else { name };
    taken.insert(name.clone());
    name
}
