//! GGUF files: one memory map to a configuration, canonical tensors and text metadata.
//! Not here: the parts themselves, each in its own file below (`container`, `blocks`, `config`, `names`, `rope`, `tokenizer`).

pub(crate) mod blocks;
pub(crate) mod config;
pub(crate) mod container;
mod names;
mod rope;
#[cfg(test)]
mod tests;
pub(crate) mod tokenizer;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::files::TextFiles;
use crate::mapping::{MappedFile, Span};
use crate::tensor::RowSource;
use crate::{Config, DenseType, Error, Result, Tensor};
use blocks::BlockType;
use container::{Container, TensorEntry};

/// The table of frequency factors of a Llama 3.1 file: not a weight, but where its position scaling is written.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// What the text side of a GGUF file needs later: the file, read again on demand, and what to call its tensors' types.
#[derive(Clone)]
pub(crate) struct GgufText {
    pub(crate) file: Arc<MappedFile>,
    types: BTreeMap<String, BlockType>,
}

impl GgufText {
    /// The GGUF type of a tensor by canonical name, such as "Q4_1".
    pub(crate) fn type_name(&self, tensor: &str) -> Option<&str> {
        self.types.get(tensor).map(|t| t.name())
    }
}

impl std::fmt::Debug for GgufText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GgufText({})", self.file.path().display())
    }
}

/// Opens a GGUF file: maps it, checks its header and table, reads the configuration. No weight is read (but the small
/// table of frequency factors, if there is one).
/// Errors: see [`container::parse`] and [`config::read`]; also a tensor of a name that these architectures do not have.
pub(crate) fn open(path: &Path) -> Result<(Config, BTreeMap<String, Tensor>, TextFiles)> {
    let file = MappedFile::open(path)?;
    let container = container::parse(path, file.bytes())?;
    let config = read_config(path, &container, file.bytes())?;
    let mut tensors = BTreeMap::new();
    let mut types = BTreeMap::new();
    for entry in container.tensors.iter().filter(|t| t.name != ROPE_FACTORS) {
        let (name, rows, cols) = matrix(path, entry)?;
        let span = file.span(entry.start, entry.len).expect("the container's parser checked that tensors lie inside");
        let rows_of = GgufRows { span, kind: entry.kind, row_bytes: entry.kind.row_bytes(cols) };
        tensors.insert(name.clone(), Tensor::new(&name, rows, cols, entry.kind.encoding(), Arc::new(rows_of)));
        types.insert(name, entry.kind);
    }
    let text = GgufText { file: file.clone(), types };
    Ok((config, tensors, TextFiles::Gguf(Arc::new(text))))
}

/// The configuration of a parsed file.
pub(crate) fn read_config(path: &Path, container: &Container, bytes: &[u8]) -> Result<Config> {
    let factors = match container.tensors.iter().find(|t| t.name == ROPE_FACTORS) {
        None => None,
        Some(entry) if entry.kind == BlockType::F32 => {
            let stored = &bytes[entry.start as usize..][..entry.len as usize];
            let mut values = vec![0.0; stored.len() / 4];
            entry.kind.read_f32(stored, &mut values);
            Some(values)
        }
        Some(entry) => {
            return Err(Error::Unsupported {
                file: path.into(),
                field: format!("type of tensor {ROPE_FACTORS:?}"),
                found: entry.kind.name().into(),
                supported: "only F32 is".into(),
            });
        }
    };
    config::read(path, container, factors.as_deref())
}

/// Canonical name, rows and columns of an entry.
fn matrix(path: &Path, entry: &TensorEntry) -> Result<(String, usize, usize)> {
    let unsupported = |found: String, supported: &str| Error::Unsupported {
        file: path.into(),
        field: "tensor".into(),
        found,
        supported: supported.into(),
    };
    let name = names::canonical(entry.name).ok_or_else(|| {
        unsupported(format!("{:?}", entry.name), "only the dense tensors of qwen3, llama and qwen2 are")
    })?;
    if entry.dims.len() > 2 && entry.dims[2..].iter().any(|d| *d != 1) {
        let found = format!("{:?} with dimensions {:?}", entry.name, entry.dims);
        return Err(unsupported(found, "only vectors and matrices are"));
    }
    let size = |dim: u64| usize::try_from(dim).expect("a dimension of a tensor inside a mapped file fits usize");
    Ok((name, entry.dims.get(1).map_or(1, |d| size(*d)), size(entry.dims[0])))
}

/// The rows of one tensor in the map.
struct GgufRows {
    span: Span,
    kind: BlockType,
    row_bytes: usize,
}

impl GgufRows {
    fn row(&self, row: usize) -> &[u8] {
        &self.span.bytes()[row * self.row_bytes..][..self.row_bytes]
    }
}

impl RowSource for GgufRows {
    fn parameter_type(&self) -> DenseType {
        self.kind.parameter_type()
    }

    fn read_f32(&self, row: usize, out: &mut [f32]) {
        self.kind.read_f32(self.row(row), out);
    }

    fn read_raw16(&self, row: usize, out: &mut [u16]) {
        self.kind.read_raw16(self.row(row), out);
    }

    fn read_codes(&self, row: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        self.kind.read_codes(self.row(row), codes, scales, biases);
    }

    fn non_finite_at(&self, row: usize, cols: usize) -> Option<usize> {
        self.kind.non_finite_at(self.row(row), cols)
    }

    fn release_pages(&self) {
        self.span.release();
    }
}
