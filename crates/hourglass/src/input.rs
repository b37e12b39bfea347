//! What a verb is given to read: text, a file (or stdin as `-`) or token ids, and when it does not fit the model.
//! Not here: which model (`load`).

use std::io::Read;
use std::path::Path;

use anyhow::Result;
use weights::{Config, Message, ModelFiles, RenderOptions, Tokenizer};

use crate::failure::usage;

/// Reads a whole text file, or stdin if the path is `-`. `flag` is who asked.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub(crate) fn read_text(flag: &str, path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
    } else {
        std::fs::read(path).map(|content| bytes = content)
    };
    read.map_err(|error| usage(format!("{flag} {}: cannot read it: {error}", path.display())))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        usage(format!(
            "{flag} {}: expected UTF-8 text, found another encoding at byte {at}; convert it",
            path.display()
        ))
    })
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

/// A conversation to ids through the model's own template.
///
/// # Errors
/// The model has no template, or it refuses the conversation.
pub(crate) fn conversation_ids(
    files: &ModelFiles,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<Vec<u32>> {
    let Some(template) = files.chat_template()? else {
        return Err(usage(format!(
            "{}: has no chat template; it is a base model: use `hourglass run --raw` or --ids",
            files.label()
        )));
    };
    Ok(tokenizer.encode_conversation(&template, messages, options)?)
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
}
