//! What a verb is given to read: text, a file (or stdin as `-`) or token ids, and when it does not fit the model.
//! Not here: which model (`load`).

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Result;
use weights::{Config, Error, Message, ModelFiles, RenderOptions, Tokenizer};

use crate::failure::{Interrupted, usage};
use crate::interrupt;

/// More text than any model's context holds; what is larger is the wrong file, or does not end.
const MOST_BYTES: u64 = 256 << 20;

/// Reads a whole text file, or stdin if the path is `-`. `flag` is who asked. A wait for stdin ends at Ctrl-C.
///
/// # Errors
/// It cannot be read, is no regular file (pipes come through stdin, where a wait can be interrupted), is larger than
/// 256 MiB, or is not UTF-8.
pub(crate) fn read_text(flag: &str, path: &Path) -> Result<String> {
    let unreadable = |error| usage(format!("{flag} {}: cannot read it: {error}", path.display()));
    let bytes = if path == Path::new("-") {
        // Not through std's Stdin: its buffer would hide from the wait what it holds already.
        let mut stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(unreadable)?);
        read_all(&mut stdin, MOST_BYTES, interrupt::wait_for_stdin)
    } else {
        // Before opening: that alone would wait for a pipe's writer.
        let metadata = path.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            let found = if metadata.is_dir() { "a directory" } else { "a pipe, socket or device" };
            return Err(usage(format!(
                "{flag} {}: expected a regular file, found {found}; what is not a file comes through stdin: {flag} -",
                path.display()
            )));
        }
        read_all(&mut File::open(path).map_err(unreadable)?, MOST_BYTES, || !interrupt::requested())
    };
    let bytes = bytes.map_err(|stopped| match stopped {
        Stopped::Failed(error) => unreadable(error),
        Stopped::Interrupted => Interrupted(format!("while reading {flag} {}; nothing was run", path.display())).into(),
        Stopped::TooLarge => usage(format!(
            "{flag} {}: expected at most {} MiB of text, found more; no model reads that much at once: cut it",
            path.display(),
            MOST_BYTES >> 20
        )),
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        usage(format!(
            "{flag} {}: expected UTF-8 text, found another encoding at byte {at}; convert it",
            path.display()
        ))
    })
}

/// Why [`read_all`] did not reach the end.
#[derive(Debug)]
enum Stopped {
    Failed(std::io::Error),
    Interrupted,
    TooLarge,
}

/// Everything up to the end of `source`, at most `most` bytes. Before every read `wait` says whether to go on.
fn read_all(source: &mut impl Read, most: u64, wait: impl Fn() -> bool) -> Result<Vec<u8>, Stopped> {
    let mut bytes = Vec::new();
    let mut part = vec![0; 1 << 16];
    loop {
        if !wait() {
            return Err(Stopped::Interrupted);
        }
        match source.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            // A signal, or another reader of the same stdin was faster: the wait decides.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(Stopped::Failed(error)),
        }
        if bytes.len() as u64 > most {
            return Err(Stopped::TooLarge);
        }
    }
}

/// Reads `1,2,3` (white space allowed). `flag` is who asked.
///
/// # Errors
/// Something that is not a token id.
pub(crate) fn parse_ids(flag: &str, list: &str) -> Result<Vec<u32>> {
    let parts = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            part.parse().map_err(|_| {
                usage(format!("{flag}: expected token ids such as 1,2,3; found '{part}', which is not a whole number"))
            })
        })
        .collect()
}

/// # Errors
/// An id that the model's vocabulary does not have.
pub(crate) fn check_ids(flag: &str, ids: &[u32], config: &Config) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= config.vocab_size) {
        None => Ok(()),
        Some(id) => Err(usage(format!(
            "{flag}: token id {id} is not in the model's vocabulary of {} (0 to {})",
            config.vocab_size,
            config.vocab_size - 1
        ))),
    }
}

/// [`check_ids`] for ids that a tokenizer made: no flag's fault.
///
/// # Errors
/// An id that the model's vocabulary does not have.
pub(crate) fn check_tokenized(ids: &[u32], files: &ModelFiles) -> Result<()> {
    let size = files.config().vocab_size;
    match ids.iter().find(|id| **id as usize >= size) {
        None => Ok(()),
        Some(id) => Err(usage(format!(
            "{}: the tokenizer turns this text into token id {id}, and the model's vocabulary has {size} (0 to {}); \
             they do not belong together: use the tokenizer files that came with these weights",
            files.label(),
            size - 1
        ))),
    }
}

/// # Errors
/// Nothing to run, or more than the model's context.
pub(crate) fn check_length(ids: &[u32], config: &Config) -> Result<()> {
    if ids.is_empty() {
        return Err(usage("the prompt is empty: expected at least one token; give some text or ids"));
    }
    if ids.len() > config.max_positions {
        return Err(usage(format!(
            "the prompt has {} tokens, the model's context holds {}; shorten the prompt",
            ids.len(),
            config.max_positions
        )));
    }
    Ok(())
}

/// Raw text to ids: special-token text in it counts as such unless `plain`; a beginning token is put in front where the
/// model wants one.
pub(crate) fn raw_ids(files: &ModelFiles, tokenizer: &Tokenizer, text: &str, plain: bool) -> Result<Vec<u32>> {
    let ids = if plain { tokenizer.encode_plain(text) } else { tokenizer.encode_with_special(text) }?;
    let config = files.config();
    match config.bos_token {
        Some(bos) if config.add_bos && ids.first() != Some(&bos) => Ok(std::iter::once(bos).chain(ids).collect()),
        _ => Ok(ids),
    }
}

/// The tokenizer, for a verb that can do nothing without one: no advice to give token ids, as the error's own words have.
///
/// # Errors
/// The model brings none, or it cannot be used.
pub(crate) fn tokenizer(files: &ModelFiles) -> Result<Tokenizer> {
    files.tokenizer().map_err(|error| match error {
        Error::NoTokenizer { model, why } => usage(format!(
            "{model}: has no tokenizer ({why}); use a model that brings one: a directory with tokenizer.json, or a .gguf file"
        )),
        Error::Tokenizer { file, reason } => {
            usage(format!("{}: not a usable tokenizer: {reason}; get the file again", file.display()))
        }
        other => other.into(),
    })
}

/// A conversation to ids through the model's own template. `instead` is what else the verb offers, for the messages.
///
/// # Errors
/// The model has no template, or it fails, or refuses the conversation.
pub(crate) fn conversation_ids(
    files: &ModelFiles,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
    instead: &str,
) -> Result<Vec<u32>> {
    // The errors' own words advise `run --raw`, which not every verb has.
    let retold = |error| match error {
        Error::Template { file, line, reason } => {
            let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
            usage(format!("{}: chat template{line}: {reason}; {instead}", file.display()))
        }
        Error::TemplateRefused { file, message } => usage(format!(
            "{}: the chat template refuses this conversation: {message}; change the messages, or {instead}",
            file.display()
        )),
        Error::TemplateEndless { file, steps } => usage(format!(
            "{}: the chat template did not finish within {steps} steps; it loops forever or the conversation is too long \
             for it: {instead}",
            file.display()
        )),
        other => other.into(),
    };
    let Some(template) = files.chat_template().map_err(retold)? else {
        return Err(usage(format!("{}: has no chat template; it is a base model: {instead}", files.label())));
    };
    tokenizer.encode_conversation(&template, messages, options).map_err(retold)
}

pub(crate) fn message(role: &str, content: impl Into<String>) -> Message {
    Message { role: role.to_owned(), content: content.into(), extra: Default::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn ids_are_read_with_commas_or_spaces_and_nothing_else_passes() {
        assert_eq!(parse_ids("--ids", "1,2, 3\n4").unwrap(), [1, 2, 3, 4]);
        assert_eq!(parse_ids("--ids", "").unwrap(), [0u32; 0]);
        for bad in ["1,x", "-1", "4294967296", "1.5"] {
            assert!(parse_ids("--ids", bad).unwrap_err().to_string().contains("--ids"), "{bad}");
        }
    }

    #[test]
    fn a_file_that_is_not_utf8_is_told_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latin1.txt");
        std::fs::write(&path, b"caf\xe9").unwrap();
        let error = read_text("--prompt-file", &path).unwrap_err().to_string();
        assert!(error.contains("byte 3") && error.contains("latin1.txt"), "{error}");
    }

    #[test]
    fn reading_ends_at_the_limit_and_when_told_to() {
        let read = |most, go_on| read_all(&mut &b"12345"[..], most, || go_on);
        assert_eq!(read(5, true).unwrap(), b"12345");
        assert!(matches!(read(4, true), Err(Stopped::TooLarge)));
        assert!(matches!(read(5, false), Err(Stopped::Interrupted)));
    }
}
