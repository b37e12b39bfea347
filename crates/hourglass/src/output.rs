//! Files that a verb writes, and stdout. A path that exists is refused before any work; a file appears whole or not at all.
//! Not here: what is written.

mod directory;

pub(crate) use directory::OutputDirectory;

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use crate::failure::usage;

/// A file that is being written beside its final path and renamed to it when finished; removed if dropped before.
pub(crate) struct OutputFile {
    flag: &'static str,
    path: PathBuf,
    writer: BufWriter<NamedTempFile>,
}

impl OutputFile {
    /// Claims `path`, given by `flag`. Call it before any work.
    ///
    /// # Errors
    /// The path exists, or its directory does not, or cannot be written.
    pub(crate) fn create(flag: &'static str, path: &Path) -> Result<OutputFile> {
        if path == Path::new("-") {
            let stdout = if flag == "--json-output" { "--json prints to stdout" } else { "stdout is not for it" };
            return Err(usage(format!("{flag} -: expected a file; {stdout}")));
        }
        let (directory, prefix) = claim(flag, path)?;
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".partial")
            .permissions(readable(0o666))
            .tempfile_in(directory)
            .map_err(|error| cannot_create(flag, path, &error))?;
        Ok(OutputFile { flag, path: path.to_path_buf(), writer: BufWriter::with_capacity(1 << 16, file) })
    }

    /// Everything is written: the file gets its name.
    ///
    /// # Errors
    /// The disk is full, or somebody made the path meanwhile.
    pub(crate) fn finish(self) -> Result<()> {
        let (flag, path) = (self.flag, self.path);
        let file = self.writer.into_inner().map_err(|error| error.into_error());
        let file = file.map_err(|error| Self::failed(flag, &path, &error))?;
        file.persist_noclobber(&path).map_err(|error| Self::failed(flag, &path, &error.error))?;
        Ok(())
    }

    /// Writes one JSON value, readable, with a final line end, and finishes.
    pub(crate) fn finish_with_json(self, value: &impl serde::Serialize) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(value).context("a result could not be written as JSON")?;
        text.push(b'\n');
        self.finish_with(&text)
    }

    /// Writes all of it and finishes.
    pub(crate) fn finish_with(mut self, text: &[u8]) -> Result<()> {
        let written = self.writer.write_all(text);
        written.map_err(|error| Self::failed(self.flag, &self.path, &error))?;
        self.finish()
    }

    /// An error of writing to this file, as a message.
    pub(crate) fn error(&self, error: &io::Error) -> anyhow::Error {
        Self::failed(self.flag, &self.path, error)
    }

    fn failed(flag: &str, path: &Path, error: &io::Error) -> anyhow::Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => anyhow::anyhow!(
                "{flag} {}: the disk is full, the partial file was removed; free some space and run again",
                path.display()
            ),
            io::ErrorKind::AlreadyExists => {
                anyhow::anyhow!("{flag} {}: somebody made this path meanwhile; it was not overwritten", path.display())
            }
            _ => anyhow::anyhow!("{flag} {}: cannot write: {error}", path.display()),
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// A file beside `path` with all of `value` in it as JSON: to be given its name, over an older state of it too.
///
/// # Errors
/// The disk is full, or the directory cannot be written.
pub(crate) fn whole(path: &Path, value: &impl serde::Serialize) -> io::Result<NamedTempFile> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".hourglass").permissions(readable(0o666)).tempfile_in(directory)?;
    file.write_all(&text)?;
    // On some systems a full disk is only noticed here.
    file.as_file().sync_all()?;
    Ok(file)
}

/// Where a path will be written, and how what is not finished is called there.
///
/// # Errors
/// The path exists, or has no name.
fn claim<'p>(flag: &str, path: &'p Path) -> Result<(&'p Path, std::ffi::OsString)> {
    // A dangling link exists too: writing through it would make a file somewhere else.
    if path.symlink_metadata().is_ok() {
        return Err(usage(format!(
            "{flag} {}: already exists and is never overwritten; choose another path or remove it",
            path.display()
        )));
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path
        .file_name()
        .ok_or_else(|| usage(format!("{flag} {}: expected a path to write, found no name in it", path.display())))?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    Ok((directory, prefix))
}

fn cannot_create(flag: &str, path: &Path, error: &io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "the directory does not exist; make it first",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "no permission to write in its directory; choose another place"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "the disk is full; free some space",
        _ => "cannot create it there",
    };
    usage(format!("{flag} {}: {advice} ({error})", path.display()))
}

/// As anything new, less what the umask takes; what is temporary would be its owner's alone.
fn readable(mode: u32) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}

/// Claims the output of an optional flag.
pub(crate) fn create_if_asked(flag: &'static str, path: Option<&Path>) -> Result<Option<OutputFile>> {
    path.map(|path| OutputFile::create(flag, path)).transpose()
}

/// Several outputs of one command go to different places.
///
/// # Errors
/// Two flags that name the same file, also through a link to its directory.
pub(crate) fn check_distinct(outputs: &[(&str, Option<&Path>)]) -> Result<()> {
    let place = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = parent.canonicalize().unwrap_or_else(|_| parent.to_path_buf());
        parent.join(path.file_name().unwrap_or_default())
    };
    let given: Vec<_> = outputs.iter().filter_map(|(flag, path)| path.map(|path| (flag, place(path)))).collect();
    for (index, (flag, path)) in given.iter().enumerate() {
        if let Some((other, _)) = given[..index].iter().find(|(_, known)| known == path) {
            return Err(usage(format!("{other} and {flag} both name {}; give each its own file", path.display())));
        }
    }
    Ok(())
}

/// Writes one JSON value to stdout, readable, with a final line end.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).context("a result could not be written as JSON")?;
    text.push(b'\n');
    print(&text)
}

/// Writes to stdout and flushes. An error keeps its kind: `failure` takes a closed pipe for success. A terminal gets no letters
/// that it would obey ([`record::is_obeyed`]) but line ends and tabs: what other people wrote into a record is text, and no command to it.
pub(crate) fn print(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = if out.is_terminal() { out.write_all(&without_controls(bytes)) } else { out.write_all(bytes) };
    written.and_then(|()| out.flush()).context("cannot write to stdout")
}

/// A line as a terminal gets it.
pub(crate) fn plain(text: &str) -> String {
    String::from_utf8_lossy(&without_controls(text.as_bytes())).into_owned()
}

fn without_controls(bytes: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match (byte, behind.first()) {
            // U+0080 to U+009F, which some terminals obey as they do ESC.
            (0xc2, Some(0x80..=0x9f)) => {
                shown.push(b'?');
                rest = &behind[1..];
            }
            // The others that `record::is_obeyed` names: U+2028 to U+202E, U+2066 to U+2069.
            (0xe2, _) if matches!(behind, [0x80, 0xa8..=0xae, ..] | [0x81, 0xa6..=0xa9, ..]) => {
                shown.push(b'?');
                rest = &behind[2..];
            }
            (b'\n' | b'\t', _) => shown.push(byte),
            _ => shown.push(if byte.is_ascii_control() { b'?' } else { byte }),
        }
    }
    shown
}

/// Tells the person something on stderr, as [`print()`] does. Nobody there to read it is no reason to fail, as `eprintln!` would.
pub(crate) fn note(text: impl std::fmt::Display) {
    let mut out = io::stderr().lock();
    let line = format!("{text}\n").into_bytes();
    let _ = if out.is_terminal() { out.write_all(&without_controls(&line)) } else { out.write_all(&line) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_terminal_gets_no_commands_from_a_record() {
        assert_eq!(
            without_controls("a\u{1b}[31mb\u{7}\tc\u{7f}\u{e9}\n".as_bytes()),
            "a?[31mb?\tc?\u{e9}\n".as_bytes()
        );
        assert_eq!(without_controls("x\u{9b}31m\u{85}\u{a0}".as_bytes()), "x?31m?\u{a0}".as_bytes());
        for halves in [&[0xc2][..], &[0xe2], &[0xe2, 0x80]] {
            assert_eq!(without_controls(halves), halves, "parts of a letter");
        }
        // The same letters as everywhere else, of all that there are.
        for letter in ('\0'..=char::MAX).filter(|letter| !matches!(letter, '\n' | '\t')) {
            let shown = plain(&letter.to_string());
            let expected = if record::is_obeyed(letter) { "?".to_owned() } else { letter.to_string() };
            assert_eq!(shown, expected, "{letter:?}");
        }
    }

    #[test]
    fn an_existing_path_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        std::fs::write(&path, "old").unwrap();
        let error = OutputFile::create("--json-output", &path).err().unwrap().to_string();
        assert!(error.contains("--json-output") && error.contains("never overwritten"), "{error}");
        let link = dir.path().join("link.json");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &link).unwrap();
        assert!(OutputFile::create("--json-output", &link).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        let mut dropped = OutputFile::create("--out", &path).unwrap();
        dropped.write_all(b"half").unwrap();
        drop(dropped);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        OutputFile::create("--out", &path).unwrap().finish_with_json(&[1, 2]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[\n  1,\n  2\n]\n");
    }

    #[test]
    fn a_path_made_meanwhile_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        let output = OutputFile::create("--out", &path).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        assert!(output.finish().unwrap_err().to_string().contains("meanwhile"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
    }

    #[test]
    fn two_outputs_in_one_place_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let (plain, linked, other) = (dir.path().join("x"), link.join("x"), dir.path().join("y"));
        let check = |a: &Path, b: &Path| check_distinct(&[("--a", Some(a)), ("--b", Some(b)), ("--c", None)]);
        assert!(check(&plain, &other).is_ok());
        let message = check(&plain, &linked).unwrap_err().to_string();
        assert!(message.contains("--a") && message.contains("--b"), "{message}");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = OutputFile::create("--out", Path::new("/nonexistent/x.json")).err().unwrap().to_string();
        assert!(error.contains("/nonexistent/x.json") && error.contains("directory does not exist"), "{error}");
    }
}
