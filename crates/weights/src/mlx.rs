//! MLX's packed 4-bit matrices: which modules of a config are packed, and their rows out of mapped triples.
//! Not here: making them (`quantize`), the container (`safetensors`).
//!
//! A packed matrix `(rows, cols)` is three tensors: `.weight` U32 `(rows, cols / 8)` with element j of 8 in bits
//! `4j..4j+4`, and `.scales` and `.biases` `(rows, cols / group)` in BF16, F16 or F32. `w = q * scale + bias`, where the
//! scale may be negative.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::mapping::Span;
use crate::safetensors::read_dense;
use crate::tensor::RowSource;
use crate::{DenseType, Error, Result};

/// The `quantization` block of config.json.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quantization {
    /// Columns per scale where no override says otherwise.
    group: usize,
    /// Module path to its own group, or None for a module that is left dense.
    overrides: BTreeMap<String, Option<usize>>,
}

impl Quantization {
    /// The group of a module if it is packed, None when the config says that it is left dense.
    pub(crate) fn group_of(&self, module: &str) -> Option<usize> {
        self.overrides.get(module).copied().unwrap_or(Some(self.group))
    }

    /// Whether the config names this module as packed in its own entry.
    pub(crate) fn demands(&self, module: &str) -> bool {
        matches!(self.overrides.get(module), Some(Some(_)))
    }

    /// Reads `quantization` or `quantization_config` of a config (MLX writes both, equal). None if neither is there.
    /// Errors: another method (gptq, awq, fp8, ...), bits other than 4, another mode, an unknown group.
    pub(crate) fn from_config(config: &Map<String, Value>, file: &Path) -> Result<Option<Quantization>> {
        let present = |field: &str| config.get(field).filter(|value| !value.is_null());
        let (field, value) = match (present("quantization"), present("quantization_config")) {
            (None, None) => return Ok(None),
            (Some(a), Some(b)) if a != b => {
                return unsupported(file, "quantization_config", b, "it must equal the quantization block");
            }
            (Some(value), _) => ("quantization", value),
            (None, Some(value)) => ("quantization_config", value),
        };
        let Some(block) = value.as_object() else {
            return unsupported(file, field, value, "only an object with group_size and bits is read");
        };
        if let Some(method) = block.get("quant_method") {
            let field = format!("{field}.quant_method");
            return unsupported(file, &field, method, "of the packed formats, MLX 4-bit and GGUF are read");
        }
        let group = read_group(block, field, None, file)?;
        let mut overrides = BTreeMap::new();
        for (module, value) in block {
            let place = format!("{field}.{module}");
            match value {
                _ if matches!(module.as_str(), "group_size" | "bits" | "mode") => {}
                Value::Bool(packed) => {
                    overrides.insert(module.clone(), packed.then_some(group));
                }
                Value::Object(own) => {
                    overrides.insert(module.clone(), Some(read_group(own, &place, Some(group), file)?));
                }
                Value::Null => {}
                other => return unsupported(file, &place, other, "only per-module objects, true and false are read"),
            }
        }
        Ok(Some(Quantization { group, overrides }))
    }
}

/// Group size of one block, after refusing what is not affine 4-bit. A module's own block may leave the group to the default.
fn read_group(block: &Map<String, Value>, place: &str, default: Option<usize>, file: &Path) -> Result<usize> {
    let bits = block.get("bits").unwrap_or(&Value::Null);
    if bits.as_u64() != Some(4) && !(bits.is_null() && default.is_some()) {
        return unsupported(file, &format!("{place}.bits"), bits, "4 bits are read");
    }
    if let Some(mode) = block.get("mode")
        && mode.as_str() != Some("affine")
        && !mode.is_null()
    {
        return unsupported(file, &format!("{place}.mode"), mode, "only \"affine\" is read");
    }
    if default.is_some()
        && let Some((key, value)) = block.iter().find(|(k, _)| !matches!(k.as_str(), "bits" | "mode" | "group_size"))
    {
        return unsupported(file, &format!("{place}.{key}"), value, "a module's entry holds group_size, bits and mode");
    }
    match (block.get("group_size"), default) {
        (None, Some(group)) => Ok(group),
        (value, _) => match value.and_then(Value::as_u64) {
            Some(group @ (32 | 64 | 128)) => Ok(group as usize),
            _ => {
                let value = value.unwrap_or(&Value::Null);
                unsupported(file, &format!("{place}.group_size"), value, "groups of 32, 64 and 128 are read")
            }
        },
    }
}

fn unsupported<T>(file: &Path, field: &str, found: &Value, supported: &str) -> Result<T> {
    Err(Error::Unsupported {
        file: file.into(),
        field: field.into(),
        found: found.to_string(),
        supported: supported.into(),
    })
}

/// Rows of one packed matrix in mapped files. The spans' lengths were checked against `cols` and `group`.
pub(crate) struct PackedRows {
    pub(crate) codes: Span,
    pub(crate) scales: Span,
    pub(crate) biases: Span,
    /// Element type of scales and biases.
    pub(crate) kind: DenseType,
    pub(crate) cols: usize,
    pub(crate) group: usize,
}

impl PackedRows {
    fn codes(&self, row: usize) -> &[u8] {
        let stride = self.cols / 2;
        &self.codes.bytes()[row * stride..][..stride]
    }

    fn parameters<'a>(&self, span: &'a Span, row: usize) -> &'a [u8] {
        let stride = self.cols / self.group * if self.kind == DenseType::F32 { 4 } else { 2 };
        &span.bytes()[row * stride..][..stride]
    }
}

impl RowSource for PackedRows {
    fn parameter_type(&self) -> DenseType {
        self.kind
    }

    fn read_f32(&self, row: usize, out: &mut [f32]) {
        let size = if self.kind == DenseType::F32 { 4 } else { 2 };
        let scales = self.parameters(&self.scales, row).chunks_exact(size);
        let biases = self.parameters(&self.biases, row).chunks_exact(size);
        let codes = self.codes(row).chunks_exact(self.group / 2);
        for (((values, codes), scale), bias) in out.chunks_exact_mut(self.group).zip(codes).zip(scales).zip(biases) {
            let (mut s, mut b) = ([0.0], [0.0]);
            read_dense(self.kind, scale, &mut s);
            read_dense(self.kind, bias, &mut b);
            for (pair, byte) in values.chunks_exact_mut(2).zip(codes) {
                pair[0] = f32::from(byte & 15) * s[0] + b[0];
                pair[1] = f32::from(byte >> 4) * s[0] + b[0];
            }
        }
    }

    fn read_codes(&self, row: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        for (pair, byte) in codes.chunks_exact_mut(2).zip(self.codes(row)) {
            pair[0] = byte & 15;
            pair[1] = byte >> 4;
        }
        read_dense(self.kind, self.parameters(&self.scales, row), scales);
        read_dense(self.kind, self.parameters(&self.biases, row), biases);
    }

    /// Codes are small and finite, so a row is finite when its scales and biases are and no product overflows.
    fn non_finite_at(&self, row: usize, _cols: usize) -> Option<usize> {
        let groups = self.cols / self.group;
        let (mut scales, mut biases) = (vec![0.0; groups], vec![0.0; groups]);
        read_dense(self.kind, self.parameters(&self.scales, row), &mut scales);
        read_dense(self.kind, self.parameters(&self.biases, row), &mut biases);
        let finite = |s: f32, b: f32| b.is_finite() && (15.0 * s + b).is_finite() && (15.0 * s).is_finite();
        scales.iter().zip(&biases).position(|(s, b)| !finite(*s, *b)).map(|group| group * self.group)
    }

    fn release_pages(&self) {
        self.codes.release();
        self.scales.release();
        self.biases.release();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn read(json: &str) -> Result<Option<Quantization>> {
        let map: Map<String, Value> = serde_json::from_str(json).unwrap();
        Quantization::from_config(&map, Path::new("config.json"))
    }

    #[test]
    fn defaults_and_overrides() {
        let q = read(
            r#"{"quantization":{"group_size":64,"bits":4,"mode":"affine",
                "model.layers.0.self_attn.q_proj":{"group_size":32,"bits":4},
                "model.layers.1.mlp.up_proj":{"bits":4},
                "lm_head":false, "model.embed_tokens":true}}"#,
        )
        .unwrap()
        .unwrap();
        assert_eq!(q.group_of("model.layers.5.mlp.up_proj"), Some(64));
        assert_eq!(q.group_of("model.layers.0.self_attn.q_proj"), Some(32));
        assert_eq!(q.group_of("model.layers.1.mlp.up_proj"), Some(64));
        assert_eq!(q.group_of("model.embed_tokens"), Some(64));
        assert_eq!(q.group_of("lm_head"), None);
        assert!(q.demands("model.embed_tokens") && !q.demands("model.layers.5.mlp.up_proj"));
        assert_eq!(read("{}").unwrap(), None);
        assert_eq!(read(r#"{"quantization":null}"#).unwrap(), None);
        let both = r#"{"quantization":{"group_size":128,"bits":4},"quantization_config":{"group_size":128,"bits":4}}"#;
        assert_eq!(read(both).unwrap().unwrap().group_of("x"), Some(128));
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (json, field) in [
            (r#"{"quantization":{"group_size":64,"bits":8}}"#, "quantization.bits"),
            (r#"{"quantization":{"group_size":64}}"#, "quantization.bits"),
            (r#"{"quantization":{"group_size":16,"bits":4}}"#, "quantization.group_size"),
            (r#"{"quantization":{"bits":4}}"#, "quantization.group_size"),
            (r#"{"quantization":{"group_size":32,"bits":4,"mode":"mxfp4"}}"#, "quantization.mode"),
            (r#"{"quantization":{"group_size":32,"bits":4,"a.b":{"bits":6}}}"#, "quantization.a.b.bits"),
            (r#"{"quantization":{"group_size":32,"bits":4,"a.b":{"bits":4,"x":1}}}"#, "quantization.a.b.x"),
            (r#"{"quantization":{"group_size":32,"bits":4,"zero_point":7}}"#, "quantization.zero_point"),
            (r#"{"quantization_config":{"quant_method":"gptq","bits":4}}"#, "quantization_config.quant_method"),
            (r#"{"quantization":3}"#, "quantization"),
            (
                r#"{"quantization":{"group_size":64,"bits":4},"quantization_config":{"group_size":32,"bits":4}}"#,
                "quantization_config",
            ),
        ] {
            let text = read(json).unwrap_err().to_string();
            assert!(text.contains(&format!(" {field} = ")), "{json}: {text}");
        }
    }
}
