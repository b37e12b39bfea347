//! Test help: small checkpoint directories, whole or broken on purpose. Compiled for tests only.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use serde_json::{Map, Value, json};

/// One stored tensor: type name, shape, bytes.
pub(crate) type Raw = (&'static str, Vec<usize>, Vec<u8>);

/// A checkpoint in memory, to be changed and written.
pub(crate) struct ScratchModel {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Raw>,
}

/// Repeatable values between -1 and 1.
pub(crate) fn noise(name: &str, count: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(17u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
        })
        .collect()
}

pub(crate) fn encode(dtype: &str, values: &[f32]) -> Vec<u8> {
    match dtype {
        "F32" => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        "F16" => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        "BF16" => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => unreachable!("tests store floats as F32, F16 or BF16"),
    }
}

impl ScratchModel {
    /// Two layers, hidden 128, mlp 256, 2/1 heads of 64, vocabulary 24: the given architecture and element type.
    pub(crate) fn dense(architecture: &str, dtype: &'static str, tied: bool) -> ScratchModel {
        let config = json!({
            "model_type": architecture, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 24,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512,
            "tie_word_embeddings": tied, "eos_token_id": 3, "torch_dtype": "float32"
        });
        let parsed =
            crate::config_json::parse(config.to_string().as_bytes(), None, Path::new("scratch")).unwrap().config;
        let mut tensors = BTreeMap::new();
        for (name, rows, cols, _) in parsed.expected_tensors() {
            let shape = if rows == 1 { vec![cols] } else { vec![rows, cols] };
            let data = encode(dtype, &noise(&name, rows * cols));
            tensors.insert(name, (dtype, shape, data));
        }
        ScratchModel { config, tensors }
    }

    /// The bytes of a container with the chosen tensors, side by side in order of falling alignment.
    pub(crate) fn container(&self, keep: impl Fn(&str) -> bool) -> Vec<u8> {
        let mut order: Vec<(&String, &Raw)> = self.tensors.iter().filter(|(name, _)| keep(name)).collect();
        order.sort_by_key(|(_, raw)| raw.0 != "U32" && raw.0 != "F32");
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, (dtype, shape, bytes)) in order {
            let begin = data.len();
            data.extend(bytes);
            header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]}));
        }
        crate::safetensors::tests::file(&Value::Object(header).to_string(), &data)
    }

    /// config.json and model.safetensors.
    pub(crate) fn write(&self, dir: &Path) {
        self.write_config(dir);
        fs::write(dir.join("model.safetensors"), self.container(|_| true)).unwrap();
    }

    pub(crate) fn write_config(&self, dir: &Path) {
        fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
    }

    /// config.json, one shard per layer and one for the rest, and the index.
    pub(crate) fn write_sharded(&self, dir: &Path) {
        self.write_config(dir);
        let shard_of = |name: &str| match name.strip_prefix("model.layers.") {
            Some(rest) => format!("model-{}.safetensors", rest.split('.').next().unwrap()),
            None => "model-rest.safetensors".to_string(),
        };
        let map: Map<String, Value> = self.tensors.keys().map(|name| (name.clone(), json!(shard_of(name)))).collect();
        let shards: std::collections::BTreeSet<String> = self.tensors.keys().map(|n| shard_of(n)).collect();
        for shard in shards {
            fs::write(dir.join(&shard), self.container(|name| shard_of(name) == shard)).unwrap();
        }
        fs::write(dir.join("model.safetensors.index.json"), json!({"metadata": {}, "weight_map": map}).to_string())
            .unwrap();
    }
}
