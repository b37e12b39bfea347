//! One opened model: its configuration, its named tensors, and where its text side lives.
//! Not here: how each format is read (`directory`, `gguf`, `synthetic`), and what happens to the weights afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sha2::{Digest, Sha256};

use crate::mapping::MappedFile;
use crate::{
    ChatTemplate, Config, DenseType, Encoding, Error, ModelSource, Result, Tensor, Tokenizer, directory, gguf, hub,
    synthetic,
};

/// What a download tells while it runs: bytes done, bytes in all if known, file name.
pub type Progress<'a> = &'a (dyn Fn(u64, Option<u64>, &str) + Sync);

/// How [`open`] may behave. The default may use the network and is silent.
#[derive(Clone, Copy, Default)]
pub struct OpenOptions<'a> {
    /// Never touch the network.
    pub offline: bool,
    pub progress: Option<Progress<'a>>,
    /// When it becomes true, a download stops with [`Error::Cancelled`]; what has arrived is kept and resumed next time.
    pub cancelled: Option<&'a AtomicBool>,
}

/// Where the tokenizer and the chat template come from.
#[derive(Clone, Debug)]
pub(crate) enum TextFiles {
    /// Synthetic weights know no text.
    None,
    /// Files beside the weights, each if it exists.
    Directory { tokenizer: Option<PathBuf>, tokenizer_config: Option<PathBuf>, chat_template: Option<PathBuf> },
    /// The metadata of a GGUF file.
    Gguf(Arc<gguf::GgufText>),
}

/// An opened model. `Send + Sync`; owns its memory maps.
pub struct ModelFiles {
    label: String,
    /// The file that a message about a missing tensor names.
    place: PathBuf,
    config: Config,
    tensors: BTreeMap<String, Tensor>,
    text: TextFiles,
    identity: Identity,
}

/// What the fingerprint is made from.
pub(crate) enum Identity {
    Files(Vec<PathBuf>),
    Synthetic { name: String, seed: u64 },
}

/// What a format's reader hands over.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) text: TextFiles,
    pub(crate) identity: Identity,
}

/// Opens a model: maps its files and checks that configuration and tensors agree. No weight is read.
/// Errors: anything missing, damaged, contradictory or unsupported, by file and name; for a hub repository also the
/// network, unless `offline`.
pub fn open(source: &ModelSource, options: &OpenOptions) -> Result<ModelFiles> {
    match source {
        ModelSource::Synthetic { name, seed } => {
            finish(source.to_string(), PathBuf::from(source.to_string()), synthetic::open(name, *seed)?)
        }
        ModelSource::Gguf(path) => {
            let (config, tensors, text) = gguf::open(path)?;
            let identity = Identity::Files(vec![path.clone()]);
            finish(last_name(path), path.clone(), Parts { config, tensors, text, identity })
        }
        ModelSource::Directory(path) => finish(last_name(path), path.clone(), directory::open(path)?),
        ModelSource::Hub { repo } => {
            let path = hub::locate(repo, options)?;
            finish(repo.clone(), path.clone(), directory::open(&path)?)
        }
    }
}

fn finish(label: String, place: PathBuf, mut parts: Parts) -> Result<ModelFiles> {
    parts.config.check_sizes(&place)?;
    parts.config.check_tensors(&place, &mut parts.tensors)?;
    Ok(ModelFiles {
        label,
        place,
        config: parts.config,
        tensors: parts.tensors,
        text: parts.text,
        identity: parts.identity,
    })
}

fn last_name(path: &Path) -> String {
    let full = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    full.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

impl ModelFiles {
    /// `synthetic:qwen3-0.6b@0`, the repository, or the file's or directory's name.
    pub fn label(&self) -> &str {
        &self.label
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A tensor by its canonical (Hugging Face) name. Errors: no such tensor, naming the file.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.tensors
            .get(name)
            .cloned()
            .ok_or_else(|| Error::MissingTensor { file: self.place.clone(), tensor: name.to_string() })
    }

    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Canonical names in sorted order; a packed matrix appears once, as its `.weight`.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Errors: [`Error::NoTokenizer`] when the model brings none.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        Tokenizer::open(&self.text, &self.label)
    }

    /// None when the model brings no template (a base model).
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        ChatTemplate::open(&self.text)
    }

    /// Where the tokenizer and template files lie, for copying them beside rewritten weights.
    pub(crate) fn text(&self) -> &TextFiles {
        &self.text
    }

    /// The directory or file of this model; its label where there is none.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// A hex SHA-256 that names these weights: of the configuration, the tensor table, and each file's size and first
    /// and last mebibyte; for synthetic weights of name, seed and generator version. Reading the whole of a large model
    /// to name it would take longer than running it; a file changed only in its middle keeps its name.
    pub fn fingerprint(&self) -> Result<String> {
        const EDGE: usize = 1 << 20;
        let mut hash = Sha256::new();
        match &self.identity {
            Identity::Synthetic { name, seed } => {
                hash.update(format!("synthetic {name} {seed} {}", synthetic::GENERATOR_VERSION));
            }
            Identity::Files(paths) => {
                hash.update(serde_json::to_string(&self.config).expect("a config is plain numbers and names"));
                for (name, tensor) in &self.tensors {
                    hash.update(format!("\n{name} {} {} {:?}", tensor.rows(), tensor.cols(), tensor.encoding()));
                }
                for path in paths {
                    let file = MappedFile::open(path)?;
                    let bytes = file.bytes();
                    hash.update(format!("\n{} ", bytes.len()));
                    hash.update(&bytes[..bytes.len().min(EDGE)]);
                    hash.update(&bytes[bytes.len().saturating_sub(EDGE)..]);
                }
            }
        }
        Ok(crate::hex(&hash.finalize()))
    }

    /// One phrase for a person: `W4 g128 (MLX)`, `BF16`, `GGUF Q4_1, embedding Q8_0`.
    pub fn describe_encoding(&self) -> String {
        let matrices = |embedding: bool| -> BTreeSet<String> {
            let is_embedding = |name: &str| name == "model.embed_tokens.weight";
            self.tensors
                .iter()
                .filter(|(name, tensor)| tensor.rows() > 1 && is_embedding(name) == embedding)
                .map(|(_, tensor)| self.phrase(tensor))
                .collect()
        };
        let join = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(" and ");
        let (body, embedding) = (join(matrices(false)), join(matrices(true)));
        let prefix = if matches!(self.text, TextFiles::Gguf(_)) { "GGUF " } else { "" };
        let origin = match (&self.text, body.contains("W4") || embedding.contains("W4")) {
            (TextFiles::Directory { .. }, true) => " (MLX)",
            (TextFiles::None, true) => " (synthetic)",
            _ => "",
        };
        if body == embedding || embedding.is_empty() {
            format!("{prefix}{body}{origin}")
        } else {
            format!("{prefix}{body}, embedding {embedding}{origin}")
        }
    }

    fn phrase(&self, tensor: &Tensor) -> String {
        if let TextFiles::Gguf(text) = &self.text
            && let Some(name) = text.type_name(tensor.name())
        {
            return name.to_string();
        }
        match tensor.encoding() {
            Encoding::Dense(DenseType::F32) => "F32".into(),
            Encoding::Dense(DenseType::F16) => "F16".into(),
            Encoding::Dense(DenseType::BF16) => "BF16".into(),
            Encoding::Affine4 { group } => format!("W4 g{group}"),
            Encoding::Int8 { group } => format!("W8 g{group}"),
        }
    }
}
