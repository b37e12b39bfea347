//! Inserting lines at the marker lines of a user's file. Without exactly one of each marker nothing is changed.
//! Not here: what is inserted (`stub.rs`).

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::stub::Stub;
use crate::failure::usage;

/// Code goes above this line.
const CODE: &str = "// hourglass new: kernels and checkpoints go above this line";
/// Entries of `KERNELS` go above this line.
const KERNELS: &str = "// hourglass new: kernels' names go above this line";
/// Entries of `CHECKPOINTS` go above this line.
const CHECKPOINTS: &str = "// hourglass new: checkpoints' names go above this line";

/// Lines for one marker.
pub(super) struct Insertion<'a> {
    marker: &'static str,
    /// Without indentation, which is the marker's.
    text: std::borrow::Cow<'a, str>,
    /// Names that must not be in the file yet: `fn NAME`, `const NAME`, `static NAME`.
    new_names: &'a [String],
}

impl<'a> Insertion<'a> {
    pub(super) fn code(stub: &'a Stub) -> Insertion<'a> {
        Insertion { marker: CODE, text: format!("{}\n", stub.code).into(), new_names: &stub.names }
    }

    pub(super) fn kernel(stub: &'a Stub) -> Insertion<'a> {
        Insertion { marker: KERNELS, text: stub.entry.as_str().into(), new_names: &[] }
    }

    pub(super) fn checkpoint(stub: &'a Stub) -> Insertion<'a> {
        Insertion { marker: CHECKPOINTS, text: stub.entry.as_str().into(), new_names: &[] }
    }
}

/// Whether it is a file to insert into.
pub(super) fn has_a_marker(text: &str) -> bool {
    text.lines().any(|line| line.trim() == CODE)
}

/// Inserts all of them into `file`; the line, from 1, at which the first one begins.
///
/// # Errors
/// A marker is missing or there twice, a name is taken, or the file cannot be read or replaced; then it is as it was.
pub(super) fn insert(file: &Path, insertions: &[Insertion<'_>]) -> Result<usize> {
    let before = std::fs::read_to_string(file)
        .map_err(|error| usage(format!("{}: cannot be read as text ({error})", file.display())))?;
    let (after, line) = inserted(&before, insertions).map_err(|why| usage(format!("{}: {why}", file.display())))?;
    let real = file.canonicalize().with_context(|| format!("{}: cannot be resolved", file.display()))?;
    let directory = real.parent().unwrap_or(Path::new("/"));
    let cannot = || format!("{}: cannot be replaced; it is as it was", file.display());
    let mut new = tempfile::NamedTempFile::new_in(directory).with_context(cannot)?;
    new.write_all(after.as_bytes()).with_context(cannot)?;
    let permissions = std::fs::metadata(&real).with_context(cannot)?.permissions();
    new.as_file().set_permissions(permissions).with_context(cannot)?;
    if std::fs::read_to_string(&real).is_ok_and(|now| now != before) {
        return Err(usage(format!("{}: somebody changed it meanwhile; run the command again", file.display())));
    }
    new.persist(&real).with_context(cannot)?;
    Ok(line)
}

fn inserted(text: &str, insertions: &[Insertion<'_>]) -> Result<(String, usize), String> {
    for insertion in insertions {
        match text.lines().filter(|line| line.trim() == insertion.marker).count() {
            1 => {}
            0 => {
                return Err(format!(
                    "the line `{}` is missing, so nothing was written; put it back (crates/lab/src/lib.rs has it where it \
                     belongs), or add the kernel or checkpoint by hand",
                    insertion.marker
                ));
            }
            count => {
                return Err(format!(
                    "the line `{}` is there {count} times, so nothing was written; leave one",
                    insertion.marker
                ));
            }
        }
        for name in insertion.new_names {
            if defines(text, name) {
                return Err(format!("it has a `{name}` already, so nothing was written; choose another name"));
            }
        }
    }
    let (mut after, mut first) = (String::with_capacity(text.len() * 2), 0);
    let mut number = 0;
    for line in text.split_inclusive('\n') {
        for insertion in insertions.iter().filter(|insertion| insertion.marker == line.trim()) {
            if insertion.marker == insertions[0].marker {
                first = number + 1;
            }
            let indent = &line[..line.len() - line.trim_start().len()];
            for new in insertion.text.lines() {
                if !new.is_empty() {
                    after += indent;
                    after += new;
                }
                after.push('\n');
                number += 1;
            }
        }
        after += line;
        number += 1;
    }
    Ok((after, first))
}

/// Whether a function, constant or static of this name is defined.
fn defines(text: &str, name: &str) -> bool {
    let words = |line: &str| -> Vec<String> {
        line.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect()
    };
    text.lines().any(|line| {
        let words = words(line);
        words.windows(2).any(|pair| ["fn", "const", "static"].contains(&pair[0].as_str()) && pair[1] == name)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn stub() -> Stub {
        Stub { code: "fn mine() {\n\n}\n".into(), entry: "&MINE,".into(), names: vec!["mine".into(), "MINE".into()] }
    }

    fn file() -> String {
        format!("use ops::*;\n\n{CODE}\nstatic KERNELS: &[&Kernel] = &[\n    {KERNELS}\n];\n")
    }

    #[test]
    fn lines_go_above_their_markers_with_the_markers_indentation() {
        let stub = stub();
        let insertions = [Insertion::code(&stub), Insertion::kernel(&stub)];
        let (once, line) = inserted(&file(), &insertions).unwrap();
        let expected = format!(
            "use ops::*;\n\nfn mine() {{\n\n}}\n\n{CODE}\nstatic KERNELS: &[&Kernel] = &[\n    &MINE,\n    {KERNELS}\n];\n"
        );
        assert_eq!((once.as_str(), line), (expected.as_str(), 3));
        assert!(inserted(&once, &insertions).unwrap_err().contains("`mine` already"));
    }

    #[test]
    fn without_its_marker_a_file_is_not_touched() {
        let stub = stub();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lib.rs");
        for (text, expected) in [
            (file().replace(KERNELS, "// mine"), "is missing"),
            (format!("{}{CODE}\n", file()), "2 times"),
            (format!("static MINE: u8 = 0;\n{}", file()), "`MINE` already"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = insert(&path, &[Insertion::code(&stub), Insertion::kernel(&stub)]).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
