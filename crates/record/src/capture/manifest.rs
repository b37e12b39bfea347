//! A manifest: which files belong to a directory, and the SHA-256 of each, as sorted lines of digest, two spaces, path.
//! Not here: what the files hold. `sha256sum -c` reads the same lines.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The largest manifest that is read.
pub const MAX_MANIFEST_BYTES: usize = 16 << 20;

/// Files by path, each with the SHA-256 of its contents in lower-case hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest(BTreeMap<String, String>);

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{name}: {bytes} bytes is more than a manifest's largest size of {MAX_MANIFEST_BYTES}")]
    TooLarge { name: String, bytes: usize },
    #[error("{name}, line {line}: expected 64 hexadecimal digits, two spaces and a path, found '{found}'")]
    Line { name: String, line: usize, found: String },
    #[error("{name}, line {line}: the path '{path}' {why}; expected a relative path with names between slashes")]
    BadPath { name: String, line: usize, path: String, why: &'static str },
    #[error(
        "{name}, line {line}: '{path}' does not come after '{before}'; a manifest is sorted and names each file once"
    )]
    Order { name: String, line: usize, path: String, before: String },
    #[error("{name}: no file is named; an empty manifest proves nothing")]
    Empty { name: String },
    #[error("the path '{path}' {why}; a manifest cannot name it")]
    Name { path: String, why: &'static str },
    #[error("{path}: is {found}; a manifest covers regular files alone: replace it by the file, or remove it")]
    NotAFile { path: String, found: &'static str },
    #[error("{path}: cannot read it: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path}: in the manifest and not in the directory; a file was removed: take the whole directory again")]
    Missing { path: String },
    #[error("{path}: in the directory and not in the manifest; a file was added: remove it")]
    Extra { path: String },
    #[error("{path}: its SHA-256 is {found}, the manifest says {expected}: the file was changed after it was written")]
    Changed { path: String, expected: String, found: String },
}

/// What a directory was found to hold by [`Manifest::verify`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub files: u64,
    pub bytes: u64,
}

impl Manifest {
    /// Adds a file.
    ///
    /// # Errors
    /// A path that a manifest cannot hold.
    pub fn insert(&mut self, path: &str, sha256: String) -> Result<(), ManifestError> {
        if let Some(why) = fault(path) {
            return Err(ManifestError::Name { path: path.to_owned(), why });
        }
        self.0.insert(path.to_owned(), sha256);
        Ok(())
    }

    /// Reads a manifest; `name` is what messages call it.
    ///
    /// # Errors
    /// Anything but sorted lines of a digest and a relative path without `.` or `..`, each path once, at least one.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let owned = || name.to_owned();
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge { name: owned(), bytes: bytes.len() });
        }
        let text = String::from_utf8_lossy(bytes);
        let (mut files, mut before) = (BTreeMap::new(), None);
        for (index, content) in text.lines().enumerate() {
            let line = index + 1;
            let wrong = || ManifestError::Line { name: owned(), line, found: content.chars().take(80).collect() };
            let (digest, path) = content.split_once("  ").ok_or_else(wrong)?;
            if digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
                return Err(wrong());
            }
            if let Some(why) = fault(path) {
                return Err(ManifestError::BadPath { name: owned(), line, path: path.to_owned(), why });
            }
            if let Some(before) = before.replace(path).filter(|before| *before >= path) {
                return Err(ManifestError::Order {
                    name: owned(),
                    line,
                    path: path.to_owned(),
                    before: before.to_owned(),
                });
            }
            files.insert(path.to_owned(), digest.to_owned());
        }
        if files.is_empty() {
            return Err(ManifestError::Empty { name: owned() });
        }
        Ok(Manifest(files))
    }

    /// Hashes every file of a directory and of those below it.
    ///
    /// # Errors
    /// A link or anything else that is no regular file or directory, a name that a manifest cannot hold, a file that cannot
    /// be read.
    pub fn of_directory(directory: &Path) -> Result<(Manifest, Contents), ManifestError> {
        let (mut manifest, mut contents) = (Manifest::default(), Contents::default());
        for path in files_in(directory)? {
            let read = |source| ManifestError::Read { path: path.clone(), source };
            let (sha256, bytes) = hash(File::open(directory.join(&path)).map_err(read)?).map_err(read)?;
            manifest.insert(&path, sha256)?;
            contents.files += 1;
            contents.bytes += bytes;
        }
        Ok((manifest, contents))
    }

    /// As a file's text.
    pub fn text(&self) -> String {
        self.0.iter().map(|(path, sha256)| format!("{sha256}  {path}\n")).collect()
    }

    /// Of the text.
    pub fn sha256(&self) -> String {
        crate::identity::hex(&Sha256::digest(self.text()))
    }

    /// Path and digest of each file, by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, sha256)| (path.as_str(), sha256.as_str()))
    }

    /// The digest of one file.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// Whether exactly `found` are the files, each with its digest; `open` reads one.
    ///
    /// # Errors
    /// The first file, by path, that is missing, too much, changed or unreadable.
    pub fn verify<R: Read>(
        &self,
        found: &[String],
        mut open: impl FnMut(&str) -> io::Result<R>,
    ) -> Result<Contents, ManifestError> {
        if let Some(extra) = found.iter().find(|path| !self.0.contains_key(*path)) {
            return Err(ManifestError::Extra { path: extra.clone() });
        }
        let mut contents = Contents::default();
        for (path, expected) in &self.0 {
            if !found.contains(path) {
                return Err(ManifestError::Missing { path: path.clone() });
            }
            let read = |source| ManifestError::Read { path: path.clone(), source };
            let (found, bytes) = hash(open(path).map_err(read)?).map_err(read)?;
            if found != *expected {
                return Err(ManifestError::Changed { path: path.clone(), expected: expected.clone(), found });
            }
            contents.files += 1;
            contents.bytes += bytes;
        }
        Ok(contents)
    }

    /// [`Manifest::verify`] for a directory: nothing in it is a link, and nothing is read through one.
    ///
    /// # Errors
    /// As for [`Manifest::verify`] and [`Manifest::of_directory`].
    pub fn verify_directory(&self, directory: &Path) -> Result<Contents, ManifestError> {
        self.verify(&files_in(directory)?, |path| File::open(directory.join(path)))
    }
}

/// Why a path cannot stand in a manifest.
fn fault(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("is empty");
    }
    if path.starts_with('/') {
        return Some("is absolute");
    }
    if path.chars().any(|letter| crate::is_obeyed(letter) || letter == '\\' || letter == char::REPLACEMENT_CHARACTER) {
        return Some("holds a backslash or a character that cannot be printed");
    }
    path.split('/').find_map(|name| match name {
        "" => Some("has an empty name"),
        "." | ".." => Some("leads out of its directory or back to it"),
        _ => None,
    })
}

/// Every regular file of a directory and those below it, as paths from there, sorted.
fn files_in(directory: &Path) -> Result<Vec<String>, ManifestError> {
    let (mut found, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(folder) = folders.pop() {
        let here = directory.join(&folder);
        let read = |source| ManifestError::Read { path: here.display().to_string(), source };
        for entry in fs::read_dir(&here).map_err(read)? {
            let entry = entry.map_err(read)?;
            let name = entry.file_name();
            let path = format!("{folder}{}", name.to_string_lossy());
            if name.to_str().is_none() {
                return Err(ManifestError::Name { path, why: "is not UTF-8" });
            }
            if let Some(why) = fault(&path) {
                return Err(ManifestError::Name { path, why });
            }
            let kind = entry.file_type().map_err(read)?;
            if kind.is_dir() {
                folders.push(path + "/");
            } else if kind.is_file() {
                found.push(path);
            } else {
                let found = if kind.is_symlink() { "a link" } else { "a pipe, socket or device" };
                return Err(ManifestError::NotAFile { path, found });
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// SHA-256 and length of everything that `source` gives.
fn hash(mut source: impl Read) -> io::Result<(String, u64)> {
    let (mut hash, mut block, mut bytes) = (Sha256::new(), vec![0; 1 << 16], 0);
    loop {
        match source.read(&mut block)? {
            0 => return Ok((crate::identity::hex(&hash.finalize()), bytes)),
            read => {
                hash.update(&block[..read]);
                bytes += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use proptest::prelude::*;

    /// SHA-256 of nothing and of "abc", as FIPS 180-4 has them.
    const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("sub")).unwrap();
        fs::write(directory.path().join("sub/empty"), "").unwrap();
        fs::write(directory.path().join("a.txt"), "abc").unwrap();
        directory
    }

    #[test]
    fn a_directory_has_the_manifest_that_sha256sum_writes() {
        let directory = directory();
        let (manifest, contents) = Manifest::of_directory(directory.path()).unwrap();
        let text = format!("{ABC}  a.txt\n{NOTHING}  sub/empty\n");
        assert_eq!((manifest.text(), contents), (text.clone(), Contents { files: 2, bytes: 3 }));
        assert_eq!(Manifest::parse("m", text.as_bytes()).unwrap(), manifest);
        assert_eq!(manifest.verify_directory(directory.path()).unwrap(), contents);
        assert_eq!((manifest.get("a.txt"), manifest.get("b")), (Some(ABC), None));
    }

    #[test]
    fn whatever_was_done_to_the_directory_is_said() {
        let whole = directory();
        let (manifest, _) = Manifest::of_directory(whole.path()).unwrap();
        type Change = fn(&Path);
        let changes: [(Change, &str); 6] = [
            (|d| fs::write(d.join("a.txt"), "abd").unwrap(), "a.txt: its SHA-256"),
            (|d| fs::remove_file(d.join("sub/empty")).unwrap(), "sub/empty: in the manifest and not"),
            (|d| fs::write(d.join("sub/new"), "").unwrap(), "sub/new: in the directory and not"),
            (|d| fs::create_dir(d.join("empty folder")).unwrap(), ""),
            (
                |d| {
                    fs::rename(d.join("a.txt"), d.join("sub/a.txt")).unwrap();
                    std::os::unix::fs::symlink("sub/a.txt", d.join("a.txt")).unwrap();
                },
                "a.txt: is a link",
            ),
            (|d| std::os::unix::fs::symlink("/etc", d.join("sub/far")).unwrap(), "sub/far: is a link"),
        ];
        for (change, words) in changes {
            let directory = directory();
            change(directory.path());
            let verified = manifest.verify_directory(directory.path());
            let message = verified.map_or_else(|error| error.to_string(), |_| String::new());
            assert!(message.starts_with(words) && message.is_empty() == words.is_empty(), "{words}: {message}");
        }
        assert!(Manifest::of_directory(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn lines_that_are_no_manifest_are_refused() {
        let line = |path: &str| format!("{ABC}  {path}\n");
        let cases = [
            (String::new(), "no file is named"),
            (format!("{ABC} a\n"), "line 1: expected 64"),
            (format!("{}  a\n", &ABC[1..]), "line 1: expected 64"),
            (format!("{}  a\n", ABC.to_uppercase()), "line 1: expected 64"),
            (line("a") + "\n", "line 2: expected 64"),
            (line("/etc/passwd"), "is absolute"),
            (line("../a"), "leads out"),
            (line("a/../../b"), "leads out"),
            (line("a/./b"), "leads out"),
            (line("a//b"), "empty name"),
            (line("a/"), "empty name"),
            (line(""), "is empty"),
            (line("a\\b"), "backslash"),
            (line("a\tb"), "cannot be printed"),
            (line("b") + &line("a"), "line 2: 'a' does not come after 'b'"),
            (line("a") + &line("a"), "each file once"),
        ];
        for (text, words) in cases {
            let message = Manifest::parse("m", text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(words), "{text:?}: {message}");
        }
        assert!(Manifest::default().insert("../x", ABC.to_owned()).is_err());
        assert!(Manifest::parse("m", &vec![b'a'; MAX_MANIFEST_BYTES + 1]).is_err());
        assert!(Manifest::parse("m", b"\xff\xfe").is_err());
    }

    proptest! {
        /// What is read is written again as it was, and nothing makes the reader panic.
        #[test]
        fn reading_is_the_inverse_of_writing(text in "([0-9a-f]{64}  [a-z./ ]{1,9}\n){0,3}") {
            if let Ok(manifest) = Manifest::parse("m", text.as_bytes()) {
                prop_assert_eq!(manifest.text(), text);
            }
        }

        #[test]
        fn any_bytes_are_a_manifest_or_a_message(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Manifest::parse("m", &bytes);
        }
    }
}
