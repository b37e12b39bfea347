//! What can go wrong between a model's name and its tensors and text; every message says what to do.
//! Not here: errors of running a model.

use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: cannot {doing}", path.display())]
    Io { path: PathBuf, doing: &'static str, source: std::io::Error },

    #[error("{}: cannot {doing}: the disk is full; free some space and run the same command again", path.display())]
    DiskFull { path: PathBuf, doing: &'static str },

    /// The text of `--model` names nothing this program can open.
    #[error(
        "model {text:?}: {reason}; give a directory, a .gguf file, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, owner/name or synthetic:NAME[@SEED]"
    )]
    UnknownSource { text: String, reason: String },

    /// A directory that is not a model.
    #[error("{}: not a model directory: {missing} is missing; a model directory holds config.json and *.safetensors (or give the .gguf file itself)", path.display())]
    NotAModel { path: PathBuf, missing: String },

    /// Damaged or lying bytes. `part` is the tensor, header or field.
    #[error("{}: {part}: expected {expected}, found {found}; the file is damaged or was not written for this use: get it again", file.display())]
    Malformed { file: PathBuf, part: String, expected: String, found: String },

    #[error("{}: {}; get the file again", file.display(), json_fault(source))]
    Json { file: PathBuf, source: serde_json::Error },

    /// A file that is read whole and is larger than its kind can be. `size` and `limit` in bytes.
    #[error("{}: {what} of {size} bytes, expected at most {limit}; this is not a model's file or it is damaged: get it again", file.display())]
    TooLarge { file: PathBuf, what: &'static str, size: u64, limit: u64 },

    /// A field that would change the result and is not implemented.
    #[error("{}: {field} = {found} is not supported: {supported}; use a model without it", file.display())]
    Unsupported { file: PathBuf, field: String, found: String, supported: String },

    /// Configuration and tensors contradict each other. `field` is told with its value.
    #[error("{}: {field} does not fit tensor {tensor}: {difference}; config and weights are not of the same model", file.display())]
    Disagreement { file: PathBuf, field: String, tensor: String, difference: String },

    #[error("{}: tensor {tensor} is missing; the file is incomplete or of another architecture", file.display())]
    MissingTensor { file: PathBuf, tensor: String },

    #[error("{model}: has no tokenizer ({why}); give token ids with --ids instead of text")]
    NoTokenizer { model: String, why: String },

    /// The tokenizer's description cannot be used.
    #[error("{}: not a usable tokenizer: {reason}; get the file again, or give token ids with --ids", file.display())]
    Tokenizer { file: PathBuf, reason: String },

    #[error("the text cannot be turned into tokens: {reason}")]
    Encode { reason: String },

    #[error(
        "these token ids cannot be turned into text: {reason}; the ids are of another model, or its tokenizer file is damaged"
    )]
    Decode { reason: String },

    /// A syntax error, or an operation that failed while rendering.
    #[error("{}: chat template{}: {reason}; use --raw to give the text without a template", file.display(), line.map(|l| format!(", line {l}")).unwrap_or_default())]
    Template { file: PathBuf, line: Option<usize>, reason: String },

    /// The template itself called `raise_exception`.
    #[error("{}: the chat template refuses this conversation: {message}; change the messages, or use --raw", file.display())]
    TemplateRefused { file: PathBuf, message: String },

    #[error("{}: the chat template did not finish within {steps} steps; it loops forever or the conversation is too long for it: use --raw, or another template", file.display())]
    TemplateEndless { file: PathBuf, steps: u64 },

    #[error(
        "tensor {tensor}: row {row}, column {col} is not a finite number; the weights are damaged: get the file again"
    )]
    NotFinite { tensor: String, row: usize, col: usize },

    // Hub.
    #[error("{repo}: {file} is not in the local hub cache {}, and --offline forbids the network; run `hourglass pull {repo}` without --offline, or set HF_HUB_CACHE to the cache that holds it", cache.display())]
    Offline { repo: String, file: String, cache: PathBuf },

    #[error("{url}: the server answered {status}; {advice}")]
    HttpStatus { url: String, status: u16, advice: &'static str },

    #[error(
        "{url}: no answer after {attempts} attempts: {last}; check the network, or use --offline with a model that is already here"
    )]
    Network { url: String, attempts: u32, last: String },

    #[error(
        "{url}: content check failed: expected {expected}, received {found}; the partial file was removed: run the same command again"
    )]
    Corrupt { url: String, expected: String, found: String },

    #[error("cancelled while {doing}")]
    Cancelled { doing: String },

    // Quantize.
    #[error("{}: already exists and is never overwritten; choose another path or remove it", path.display())]
    Exists { path: PathBuf },

    /// The directory that the output would go into.
    #[error("{}: cannot be made: there is no directory {}; make that first (mkdir -p) or choose another path", path.display(), parent.display())]
    NoParent { path: PathBuf, parent: PathBuf },

    #[error(
        "there is no place for a cache: neither XDG_CACHE_HOME nor HOME is set; set XDG_CACHE_HOME to a directory with room for the model"
    )]
    NoCache,

    #[error("--group {group}: expected 32, 64 or 128")]
    Group { group: usize },

    #[error("tensor {tensor}: cannot be quantized: {why}")]
    NotQuantizable { tensor: String, why: String },
}

impl Error {
    /// An I/O error, with a full disk told apart.
    pub(crate) fn io(path: impl Into<PathBuf>, doing: &'static str, source: std::io::Error) -> Error {
        let path = path.into();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Error::DiskFull { path, doing },
            _ => Error::Io { path, doing, source },
        }
    }
}

/// The cause (`source`) says where and what.
fn json_fault(error: &serde_json::Error) -> &'static str {
    if error.is_data() { "JSON, but not the content expected" } else { "not valid JSON" }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::error::Error as _;

    #[test]
    fn a_cause_is_told_once_and_json_of_another_shape_is_not_called_invalid() {
        let json = |text: &str| {
            let source = serde_json::from_str::<Vec<u8>>(text).unwrap_err();
            Error::Json { file: "some/file".into(), source }
        };
        assert!(json("[1,").to_string().contains("some/file: not valid JSON"));
        assert!(!json("{}").to_string().contains("not valid"));
        let io = Error::io("some/file", "read", std::io::Error::other("the cable is out"));
        for error in [json("[1,"), json("{}"), io] {
            let cause = error.source().unwrap().to_string();
            assert!(!error.to_string().contains(&cause), "{error}");
        }
    }
}
