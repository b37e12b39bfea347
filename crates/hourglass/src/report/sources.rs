//! The text of source lines that records give a cost to, read from the checkout around the working directory when a report is
//! made: records hold none. Not here: the costs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde::Serialize;
use serde_json::Value;

/// Lines shown before and after one that has a cost.
const AROUND: u64 = 3;
/// No source file of ours is near this size.
const MAX_BYTES: u64 = 4 << 20;
/// Lines of one file that a report has room for.
const MAX_LINES: usize = 4000;

/// A file's wanted lines, or why they are missing.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum SourceText {
    Text {
        lines: BTreeMap<u64, String>,
        /// Whether this is the text that was compiled.
        verified: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<&'static str>,
    },
    Missing {
        missing: String,
    },
}

/// A record, and the folder that its file is in.
pub(super) struct Located<'a> {
    pub(super) record: &'a Value,
    pub(super) folder: &'a Path,
}

/// What is asked of one file.
#[derive(Default)]
struct Wanted {
    lines: BTreeSet<u64>,
    /// What it was when the programs that were captured were compiled; None where that is not known.
    digests: BTreeSet<Option<String>>,
}

/// The wanted lines of every file that the records' rows name.
///
/// A text is verified if the list of sources that the captured program was compiled from, which lies in the trace's folder near
/// the record and has the digest that the record names, has the file's digest.
pub(super) fn of<'a>(records: impl Iterator<Item = Located<'a>>) -> BTreeMap<String, SourceText> {
    let mut wanted: BTreeMap<String, Wanted> = BTreeMap::new();
    for located in records {
        let mut list = None;
        for place in places(located.record) {
            for row in place["rows"].as_array().into_iter().flatten() {
                let (Some(file), Some(line)) = (row["file"].as_str(), row["line"].as_u64()) else { continue };
                if row["in_repository"] == true && line > 0 {
                    let list = list.get_or_insert_with(|| compiled_from(&located));
                    let wanted = wanted.entry(file.to_owned()).or_default();
                    wanted.lines.extend(line.saturating_sub(AROUND).max(1)..=line.saturating_add(AROUND));
                    wanted.digests.insert(list.get(file).cloned());
                }
            }
        }
    }
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let here = std::env::current_dir().ok();
    let root = here.as_deref().and_then(|here| here.ancestors().find(|folder| folder.join(".git").exists()));
    let text = |(file, wanted): (String, Wanted)| {
        let text = match root {
            Some(root) => read(root, &file, &wanted),
            None => Err("the report was not made in a checkout of the source".to_owned()),
        };
        (file, text.unwrap_or_else(|missing| SourceText::Missing { missing }))
    };
    wanted.into_iter().map(text).collect()
}

/// Places with rows of lines: of `lines/1`, and of the tree in `capture/1`.
fn places(record: &Value) -> &[Value] {
    let places = match record["schema"].as_str() {
        Some("lines/1") => &record["places"],
        Some("capture/1") => &record["lines"]["places"],
        _ => &Value::Null,
    };
    places.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Digests of the files that the captured program was compiled from, by path; empty if their list is not near the record: in a
/// folder beside it, or beside its own folder.
fn compiled_from(located: &Located<'_>) -> BTreeMap<String, String> {
    let Some(digest) = located.record["provenance"]["source"]["tree_sha256"].as_str() else { return BTreeMap::new() };
    let around = [located.folder.join("."), located.folder.join("..")];
    let entries = around.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let folders = entries.filter_map(Result::ok).map(|entry| entry.path());
    let mut texts = folders.filter_map(|folder| {
        let path = folder.join(record::capture::raw::SOURCES);
        let small = path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_BYTES);
        if small { std::fs::read_to_string(path).ok() } else { None }
    });
    let own = texts.find(|text| record::file_digest(text.as_bytes()) == digest).unwrap_or_default();
    own.lines().filter_map(|line| line.split_once("  ")).map(|(digest, file)| (file.into(), digest.into())).collect()
}

/// A file below `root`, and nothing else, whatever the record calls it.
fn read(root: &Path, file: &str, wanted: &Wanted) -> Result<SourceText, String> {
    let path = Path::new(file);
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !inside || path.extension().is_none_or(|extension| extension != "rs") {
        return Err("it is not named like a Rust file inside the repository".to_owned());
    }
    let refused = |why: &str| Err(format!("{why} in this checkout"));
    let Ok(place) = root.join(path).canonicalize() else { return refused("there is no such file") };
    let root = root.canonicalize().map_err(|error| error.to_string())?;
    if !place.starts_with(&root) {
        return refused("it is a link to somewhere else");
    }
    if place.metadata().map_or(true, |metadata| !metadata.is_file() || metadata.len() > MAX_BYTES) {
        return refused("it is no source file");
    }
    let Ok(text) = std::fs::read_to_string(&place) else { return refused("it cannot be read") };
    let own = record::file_digest(text.as_bytes());
    let why = match wanted.digests.iter().find(|digest| digest.as_ref() != Some(&own)) {
        Some(Some(_)) => Some("the file was changed after the captured program was compiled"),
        Some(None) => Some("the list of sources that the captured program was compiled from is not near its record"),
        None => None,
    };
    let lines: Vec<&str> = text.lines().collect();
    let line = |at: &u64| Some((*at, lines.get(usize::try_from(*at).ok()?.checked_sub(1)?)?.to_string()));
    let lines = wanted.lines.iter().filter_map(line).take(MAX_LINES).collect();
    Ok(SourceText::Text { lines, verified: why.is_none(), why })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::fs;

    fn wanted(lines: &[u64], digest: Option<String>) -> Wanted {
        Wanted { lines: lines.iter().copied().collect(), digests: BTreeSet::from([digest]) }
    }

    #[test]
    fn only_rust_files_inside_the_checkout_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("checkout");
        fs::create_dir_all(root.join("src")).unwrap();
        for name in ["secret.rs", "checkout/.env", "checkout/src/a.rs"] {
            fs::write(dir.path().join(name), "one\ntwo\nthree\n").unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("secret.rs"), root.join("src/link.rs")).unwrap();
        let outside = dir.path().join("secret.rs");
        for file in
            ["../secret.rs", outside.to_str().unwrap(), ".env", "src/link.rs", "src/none.rs", "src", "./../x.rs"]
        {
            assert!(read(&root, file, &wanted(&[1], None)).is_err(), "{file}");
        }
        let digest = record::file_digest(b"one\ntwo\nthree\n");
        let lines = BTreeMap::from([(2, "two".to_owned())]);
        let found = read(&root, "src/a.rs", &wanted(&[2, 9, u64::MAX], Some(digest))).unwrap();
        assert_eq!(found, SourceText::Text { lines, verified: true, why: None });
        for digest in [None, Some("0".repeat(64))] {
            let SourceText::Text { verified, why, .. } = read(&root, "src/a.rs", &wanted(&[2], digest)).unwrap() else {
                panic!("a text")
            };
            assert!(!verified && why.is_some());
        }
    }

    #[test]
    fn the_list_of_sources_is_taken_only_with_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        let list = format!("{}  crates/a.rs\n", "ab".repeat(32));
        fs::create_dir(dir.path().join("trace")).unwrap();
        fs::write(dir.path().join("trace").join(record::capture::raw::SOURCES), &list).unwrap();
        let of = |digest: String| {
            let record = serde_json::json!({"provenance": {"source": {"tree_sha256": digest}}});
            let near = compiled_from(&Located { record: &record, folder: dir.path() }).len();
            let beside = compiled_from(&Located { record: &record, folder: &dir.path().join("lines") }).len();
            (near, beside)
        };
        fs::create_dir(dir.path().join("lines")).unwrap();
        assert_eq!((of(record::file_digest(list.as_bytes())), of("0".repeat(64))), ((1, 1), (0, 0)));
    }
}
