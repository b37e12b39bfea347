//! Files and folders that somebody names, as a collection of records, and `PATH#NAME` as a side of it.
//! Not here: what is compared, and how folders are searched (`store`).

use std::path::{Path, PathBuf};

use anyhow::Result;
use record::EvidenceRef;
use record::compare::Collection;

use crate::failure::usage;
use crate::{output, store};

/// What stands for one side.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) path: PathBuf,
    /// Which of the things in it.
    pub(crate) name: Option<String>,
}

impl Given {
    /// `PATH` or `PATH#NAME`; a path that exists as it stands is one.
    pub(crate) fn parse(text: &str) -> Given {
        match text.rsplit_once('#') {
            Some((path, name)) if !Path::new(text).exists() && !name.is_empty() => {
                Given { path: path.into(), name: Some(name.to_owned()) }
            }
            _ => Given { path: text.into(), name: None },
        }
    }
}

/// Reads every record in `paths`; files inside `root` are called by their path from there.
///
/// # Errors
/// A file that is named and is no record; a record that was changed after it was written. What else lies in a folder is passed
/// over, and said so.
pub(crate) fn read_into(collection: &mut Collection, paths: &[PathBuf], root: Option<&Path>) -> Result<()> {
    for path in paths {
        if !path.exists() {
            return Err(usage(format!("{}: expected a record or a folder of records, found nothing", path.display())));
        }
        let folder = path.is_dir();
        for found in store::records_in(std::slice::from_ref(path)) {
            let (found, bytes) = store::found(found.path);
            let (schema, bytes) = match (found.schema, bytes) {
                (Ok(schema), Some(bytes)) => (schema, bytes),
                (Err(why), _) if folder => {
                    output::note(format_args!("hourglass: passed over: {why}"));
                    continue;
                }
                (Err(why), _) => return Err(usage(why.to_string())),
                (Ok(_), None) => continue,
            };
            let file = called(&found.path, root);
            collection.add(EvidenceRef::of(schema, file, &bytes), &bytes).map_err(|error| usage(error.to_string()))?;
        }
    }
    Ok(())
}

/// The reference to one record file.
///
/// # Errors
/// No record.
pub(crate) fn evidence(flag: &str, path: &Path, root: Option<&Path>) -> Result<EvidenceRef> {
    let (found, bytes) = store::found(path.to_path_buf());
    match (found.schema, bytes) {
        (Ok(schema), Some(bytes)) => Ok(EvidenceRef::of(schema, called(path, root), &bytes)),
        (Err(why), _) => Err(usage(format!("{flag} {why}"))),
        (Ok(_), None) => Err(usage(format!("{flag} {}: cannot be read", path.display()))),
    }
}

/// The path from `root` where the file lies in there, else as it was given.
fn called(path: &Path, root: Option<&Path>) -> String {
    let inside = || {
        let root = root?.canonicalize().ok()?;
        Some(path.canonicalize().ok()?.strip_prefix(root).ok()?.to_string_lossy().into_owned())
    };
    inside().unwrap_or_else(|| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_name_follows_the_last_sign_unless_the_path_is_there() {
        let given = Given::parse("runs/bench.json#fast");
        assert_eq!((given.path.to_str().unwrap(), given.name.as_deref()), ("runs/bench.json", Some("fast")));
        assert_eq!(Given::parse("runs/bench.json").name, None);
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a#b.json");
        std::fs::write(&odd, "{}").unwrap();
        assert_eq!(Given::parse(odd.to_str().unwrap()).name, None);
        assert_eq!(Given::parse(&format!("{}#fast", odd.display())).path, odd);
    }
}
