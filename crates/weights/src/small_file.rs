//! Files read whole: only regular ones, and only up to a size that such a file can have.
//! Not here: mapping weights (`mapping`), and what the bytes mean.

use std::fs::{self, File, FileType, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::{Error, Result};

/// Configurations, indexes, templates: the largest known are a few MiB.
pub(crate) const TEXT_LIMIT: u64 = 64 << 20;
/// A tokenizer.json: the largest known are some tens of MiB.
pub(crate) const TOKENIZER_LIMIT: u64 = 512 << 20;

/// Opens a regular file for reading; links are followed. Looked at before it is opened: opening a FIFO waits for a
/// writer that may never come, and opening a device can have effects.
/// Errors: not there, not readable, not a regular file.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    check_regular(path, &fs::metadata(path).map_err(|e| Error::io(path, "open", e))?)?;
    let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
    // Another file may have taken the name since.
    let data = file.metadata().map_err(|e| Error::io(path, "read the size of", e))?;
    check_regular(path, &data)?;
    Ok((file, data))
}

/// Errors: what `data` describes is not a regular file.
pub(crate) fn check_regular(path: &Path, data: &Metadata) -> Result<()> {
    if data.is_file() {
        return Ok(());
    }
    Err(Error::Malformed {
        file: path.into(),
        part: "file".into(),
        expected: "a regular file".into(),
        found: kind_in_words(data.file_type()).into(),
    })
}

fn kind_in_words(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a FIFO (named pipe)",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "something else",
    }
}

/// The bytes of a regular file of at most `limit` bytes; `what` names its role in the message.
/// Errors: those of [`open_regular`]; larger than `limit`.
pub(crate) fn read_small(path: &Path, what: &'static str, limit: u64) -> Result<Vec<u8>> {
    let (file, data) = open_regular(path)?;
    let too_large = |size| Err(Error::TooLarge { file: path.into(), what, size, limit });
    if data.len() > limit {
        return too_large(data.len());
    }
    let mut bytes = Vec::new();
    // A file that grows meanwhile is not followed beyond the limit.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| Error::io(path, "read", e))?;
    if bytes.len() as u64 > limit {
        return too_large(bytes.len() as u64);
    }
    Ok(bytes)
}

/// As [`read_small`]; None if there is no such file.
pub(crate) fn read_small_if_there(path: &Path, what: &'static str, limit: u64) -> Result<Option<Vec<u8>>> {
    match read_small(path, what, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::scratch_model::ScratchModel;
    use crate::{ModelFiles, ModelSource, OpenOptions};
    use std::path::PathBuf;
    use std::time::Duration;

    /// What `work` returns. A wait for a FIFO's writer never ends, so the watchdog makes it a failure.
    fn promptly<T: Send + 'static>(what: &Path, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || drop(send.send(work())));
        receive.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{}: hangs", what.display()))
    }

    fn fifo(path: &Path) {
        if path.exists() {
            fs::remove_file(path).unwrap();
        }
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    fn sparse(path: &Path, size: u64) {
        File::create(path).unwrap().set_len(size).unwrap();
    }

    fn model() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        ScratchModel::dense("qwen3", "BF16", true).write(dir.path());
        let path = dir.path().to_path_buf();
        (dir, path)
    }

    /// Opens the model with all its text files; the error, if any.
    fn failure(source: ModelSource) -> Option<String> {
        let all = |files: ModelFiles| {
            files.chat_template()?;
            files.tokenizer()
        };
        crate::open(&source, &OpenOptions::default()).and_then(all).err().map(|error| error.to_string())
    }

    fn refused(path: &Path, source: ModelSource) -> String {
        promptly(path, move || failure(source)).unwrap_or_else(|| panic!("{} was accepted", path.display()))
    }

    #[test]
    fn a_fifo_is_refused_wherever_a_model_has_a_file() {
        for name in [
            "config.json",
            "generation_config.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            "tokenizer.json",
            "model.safetensors",
            "model.safetensors.index.json",
        ] {
            let (_dir, path) = model();
            if name.ends_with("index.json") {
                fs::remove_file(path.join("model.safetensors")).unwrap();
            }
            let file = path.join(name);
            fifo(&file);
            let text = refused(&file, ModelSource::Directory(path));
            assert!(text.contains(name) && text.contains("a regular file, found a FIFO"), "{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("pipe"), dir.path().join("x.gguf"));
        fifo(&file);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let text = refused(&link, ModelSource::Gguf(link.clone()));
        assert!(text.contains("x.gguf") && text.contains("FIFO"), "{text}");
    }

    #[test]
    fn an_oversized_file_is_named_with_size_and_limit() {
        for (name, limit) in [
            ("config.json", TEXT_LIMIT),
            ("generation_config.json", TEXT_LIMIT),
            ("tokenizer_config.json", TEXT_LIMIT),
            ("chat_template.jinja", TEXT_LIMIT),
            ("tokenizer.json", TOKENIZER_LIMIT),
            ("model.safetensors.index.json", TEXT_LIMIT),
        ] {
            let (_dir, path) = model();
            if name.ends_with("index.json") {
                fs::remove_file(path.join("model.safetensors")).unwrap();
            }
            sparse(&path.join(name), limit + 1);
            let text = failure(ModelSource::Directory(path)).unwrap();
            let size = format!("{} bytes", limit + 1);
            assert!(text.contains(name) && text.contains(&size) && text.contains(&limit.to_string()), "{text}");
        }
    }

    #[test]
    fn the_limit_itself_is_allowed_and_absence_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        assert!(read_small_if_there(&path, "text", 10).unwrap().is_none());
        sparse(&path, 10);
        assert_eq!(read_small(&path, "text", 10).unwrap().len(), 10);
        assert!(matches!(read_small(&path, "text", 9), Err(Error::TooLarge { size: 10, limit: 9, .. })));
        assert!(read_small_if_there(dir.path(), "text", 10).unwrap_err().to_string().contains("a directory"));
        assert!(read_small(Path::new("/dev/null"), "text", 10).unwrap_err().to_string().contains("a device"));
    }
}
