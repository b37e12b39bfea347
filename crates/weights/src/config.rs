//! What a model is: its sizes and the few switches that change its arithmetic, and whether its tensors agree.
//! Not here: reading config.json (`config_json`) or GGUF metadata (`gguf`), which both end in a [`Config`].

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::{Error, Result, Tensor};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    Qwen3,
    Llama,
    Qwen2,
}

impl Architecture {
    /// The `model_type` of config.json, also GGUF's `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Qwen3 => "qwen3",
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Architecture> {
        [Architecture::Qwen3, Architecture::Llama, Architecture::Qwen2].into_iter().find(|a| a.name() == name)
    }
}

/// Which elements of a head form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeLayout {
    /// Element i with element i + head_dim / 2 (Hugging Face, MLX, GGUF qwen2 and qwen3).
    HalfSplit,
    /// Element 2i with element 2i + 1 (GGUF llama, whose q and k rows are stored permuted for it).
    Interleaved,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    None,
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position: usize },
}

/// A checked model description. Sizes are in elements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    pub layers: usize,
    /// Width between gate/up and down.
    pub mlp_width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Even; `heads * head_dim` need not equal `hidden_size`.
    pub head_dim: usize,
    pub vocab_size: usize,
    /// Epsilon of every RMSNorm.
    pub norm_eps: f64,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub rope_layout: RopeLayout,
    pub max_positions: usize,
    /// The vocabulary projection is the embedding matrix.
    pub tied_embeddings: bool,
    /// RMSNorm over each head of q and k before the rotation (qwen3).
    pub qk_norm: bool,
    /// q, k and v projections have biases (qwen2).
    pub qkv_bias: bool,
    /// Any of these ends a generation.
    pub eos_tokens: Vec<u32>,
    pub bos_token: Option<u32>,
    /// Raw text starts with `bos_token`.
    pub add_bos: bool,
}

/// The largest size accepted for any width or count: far above every real model, small enough that products of two fit
/// in 64 bits.
pub(crate) const SIZE_LIMIT: usize = 1 << 28;

impl Config {
    /// Refuses sizes that no arithmetic downstream could hold: zero, absurdly large, or not dividing each other.
    pub(crate) fn check_sizes(&self, file: &Path) -> Result<()> {
        let sizes = [
            ("hidden_size", self.hidden_size, SIZE_LIMIT),
            ("num_hidden_layers", self.layers, 4096),
            ("intermediate_size", self.mlp_width, SIZE_LIMIT),
            ("num_attention_heads", self.heads, 1 << 16),
            ("num_key_value_heads", self.kv_heads, 1 << 16),
            ("head_dim", self.head_dim, 1 << 12),
            ("vocab_size", self.vocab_size, SIZE_LIMIT),
            ("max_position_embeddings", self.max_positions, SIZE_LIMIT),
        ];
        let wrong = |field: &str, expected: String, found: String| {
            Err(Error::Malformed { file: file.into(), part: field.into(), expected, found })
        };
        for (field, size, limit) in sizes {
            if size == 0 || size > limit {
                return wrong(field, format!("1 to {limit}"), size.to_string());
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return wrong(
                "num_key_value_heads",
                format!("a divisor of num_attention_heads = {}", self.heads),
                self.kv_heads.to_string(),
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return wrong("head_dim", "an even number (positions rotate pairs)".into(), self.head_dim.to_string());
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            return wrong("rms_norm_eps", "a number between 0 and 1".into(), self.norm_eps.to_string());
        }
        if !(self.rope_theta.is_finite() && self.rope_theta >= 1.0) {
            return wrong("rope_theta", "a finite number of at least 1".into(), self.rope_theta.to_string());
        }
        if let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } =
            self.rope_scaling
        {
            let sane = [factor, low_freq_factor, high_freq_factor].iter().all(|v| v.is_finite() && *v > 0.0);
            if !sane || high_freq_factor <= low_freq_factor || original_max_position == 0 {
                return wrong(
                    "rope_scaling (llama3)",
                    "positive numbers with high_freq_factor above low_freq_factor".into(),
                    format!("{:?}", self.rope_scaling),
                );
            }
        }
        Ok(())
    }

    /// Every tensor the model needs, by canonical name, with its shape `(rows, cols)` and the field that sets it.
    pub(crate) fn expected_tensors(&self) -> Vec<(String, usize, usize, &'static str)> {
        let hidden = self.hidden_size;
        let q_rows = self.heads * self.head_dim;
        let kv_rows = self.kv_heads * self.head_dim;
        let mut all = Vec::with_capacity(3 + self.layers * 14);
        all.push(("model.embed_tokens.weight".to_string(), self.vocab_size, hidden, "vocab_size, hidden_size"));
        all.push(("model.norm.weight".to_string(), 1, hidden, "hidden_size"));
        if !self.tied_embeddings {
            all.push(("lm_head.weight".to_string(), self.vocab_size, hidden, "vocab_size, hidden_size"));
        }
        for layer in 0..self.layers {
            let mut add = |name: &str, rows: usize, cols: usize, field: &'static str| {
                all.push((format!("model.layers.{layer}.{name}"), rows, cols, field));
            };
            add("input_layernorm.weight", 1, hidden, "hidden_size");
            add("post_attention_layernorm.weight", 1, hidden, "hidden_size");
            add("self_attn.q_proj.weight", q_rows, hidden, "num_attention_heads, head_dim, hidden_size");
            add("self_attn.k_proj.weight", kv_rows, hidden, "num_key_value_heads, head_dim, hidden_size");
            add("self_attn.v_proj.weight", kv_rows, hidden, "num_key_value_heads, head_dim, hidden_size");
            add("self_attn.o_proj.weight", hidden, q_rows, "hidden_size, num_attention_heads, head_dim");
            add("mlp.gate_proj.weight", self.mlp_width, hidden, "intermediate_size, hidden_size");
            add("mlp.up_proj.weight", self.mlp_width, hidden, "intermediate_size, hidden_size");
            add("mlp.down_proj.weight", hidden, self.mlp_width, "hidden_size, intermediate_size");
            if self.qk_norm {
                add("self_attn.q_norm.weight", 1, self.head_dim, "head_dim");
                add("self_attn.k_norm.weight", 1, self.head_dim, "head_dim");
            }
            if self.qkv_bias {
                add("self_attn.q_proj.bias", 1, q_rows, "num_attention_heads, head_dim");
                add("self_attn.k_proj.bias", 1, kv_rows, "num_key_value_heads, head_dim");
                add("self_attn.v_proj.bias", 1, kv_rows, "num_key_value_heads, head_dim");
            }
        }
        all
    }

    /// Checks that the tensors are exactly those of this configuration. A copy of the head in a tied model and the
    /// rotation frequencies that old checkpoints carry are recomputable and dropped; any other stranger would change
    /// the result if it were used, so it is refused rather than ignored.
    pub(crate) fn check_tensors(&self, file: &Path, tensors: &mut BTreeMap<String, Tensor>) -> Result<()> {
        if self.tied_embeddings {
            tensors.remove("lm_head.weight");
        }
        tensors.retain(|name, _| !name.ends_with("rotary_emb.inv_freq"));

        let differs = |field: &str, tensor: &str, difference: String| {
            let field = self.with_value(field);
            Err(Error::Disagreement { file: file.into(), field, tensor: tensor.into(), difference })
        };
        // The config's layer count is a claim; the tensors bound what is allocated for it.
        if self.layers > tensors.len() {
            let last = format!("model.layers.{}", self.layers - 1);
            return differs("num_hidden_layers", &last, format!("there are {} tensors in all", tensors.len()));
        }
        let expected = self.expected_tensors();
        for (name, rows, cols, field) in &expected {
            let shape = tensors.get(name).map(|tensor| (tensor.rows(), tensor.cols()));
            if shape != Some((*rows, *cols)) {
                let found = shape.map_or("no such tensor".to_string(), |(rows, cols)| format!("({rows}, {cols})"));
                return differs(field, name, format!("expected ({rows}, {cols}), found {found}"));
            }
        }
        if tensors.len() > expected.len() {
            let known: std::collections::BTreeSet<&str> = expected.iter().map(|e| e.0.as_str()).collect();
            if let Some(stranger) = tensors.keys().find(|name| !known.contains(name.as_str())) {
                let difference = "it would be left out of the computation".into();
                return differs("model_type, num_hidden_layers", stranger, difference);
            }
        }
        Ok(())
    }

    /// `hidden_size = 64, head_dim = 32` for a list of config.json's field names.
    fn with_value(&self, fields: &str) -> String {
        let value = |field: &str| match field {
            "model_type" => self.architecture.name().to_string(),
            "num_hidden_layers" => self.layers.to_string(),
            "hidden_size" => self.hidden_size.to_string(),
            "vocab_size" => self.vocab_size.to_string(),
            "intermediate_size" => self.mlp_width.to_string(),
            "num_attention_heads" => self.heads.to_string(),
            "num_key_value_heads" => self.kv_heads.to_string(),
            _ => self.head_dim.to_string(),
        };
        fields.split(", ").map(|field| format!("{field} = {}", value(field))).collect::<Vec<_>>().join(", ")
    }
}
