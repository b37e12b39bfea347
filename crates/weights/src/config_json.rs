//! config.json and generation_config.json to a [`Config`], in memory.
//! Not here: whether the tensors agree (`config`), the `quantization` block (`mlx`).
//!
//! The rule: a field that would change the numbers and is not implemented is refused by name and value; null, absent
//! and neutral values pass; fields that only concern training or storage are ignored.

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::{Architecture, Config, RopeLayout, RopeScaling};
use crate::mlx::Quantization;
use crate::{Error, Result};

/// What the two files say.
#[derive(Debug)]
pub(crate) struct ModelConfig {
    pub(crate) config: Config,
    pub(crate) quantization: Option<Quantization>,
}

/// When a field does not change the result.
enum Neutral {
    /// null, false, 0 or an empty list or object.
    Off,
    /// null or 1.
    One,
}

/// Fields of related architectures that change the result. `Off` and `One` are the values under which they do not.
const REFUSED: [(&str, Neutral); 29] = [
    ("use_sliding_window", Neutral::Off),
    ("mlp_bias", Neutral::Off),
    ("use_bias", Neutral::Off),
    ("bias", Neutral::Off),
    ("clip_qkv", Neutral::Off),
    ("alibi", Neutral::Off),
    ("use_mrope", Neutral::Off),
    ("mrope_section", Neutral::Off),
    ("no_rope_layers", Neutral::Off),
    ("no_rope_layer_interval", Neutral::Off),
    ("attn_logit_softcapping", Neutral::Off),
    ("final_logit_softcapping", Neutral::Off),
    ("logits_soft_cap", Neutral::Off),
    ("query_pre_attn_scalar", Neutral::Off),
    ("attention_multiplier", Neutral::Off),
    ("attn_output_gate", Neutral::Off),
    ("attention_output_gate", Neutral::Off),
    ("attn_temperature_tuning", Neutral::Off),
    ("attention_chunk_size", Neutral::Off),
    ("add_cross_attention", Neutral::Off),
    ("is_encoder_decoder", Neutral::Off),
    ("num_kv_shared_layers", Neutral::Off),
    ("partial_rotary_factor", Neutral::One),
    ("pretraining_tp", Neutral::One),
    ("logit_scale", Neutral::One),
    ("logits_scaling", Neutral::One),
    ("embedding_multiplier", Neutral::One),
    ("residual_multiplier", Neutral::One),
    ("lm_head_multiplier", Neutral::One),
];

/// Reads both files. `file` is config.json's path, for messages; `generation` is generation_config.json's content.
pub(crate) fn parse(text: &[u8], generation: Option<&[u8]>, file: &Path) -> Result<ModelConfig> {
    let fields = Fields { map: object(text, file)?, file };
    let name = fields.text("model_type")?;
    let Some(architecture) = Architecture::from_name(&name) else {
        return fields.refuse("model_type", "qwen3, llama and qwen2 are implemented");
    };
    fields.check_class(architecture)?;
    fields.refuse_unsupported(architecture)?;
    let quantization = Quantization::from_config(&fields.map, file)?;

    let heads = fields.size("num_attention_heads")?;
    let hidden_size = fields.size("hidden_size")?;
    let kv_heads = match fields.optional_size("num_key_value_heads")? {
        Some(kv_heads) => kv_heads,
        None if architecture == Architecture::Llama => heads,
        None => fields.size("num_key_value_heads")?,
    };
    let head_dim = match fields.optional_size("head_dim")? {
        Some(head_dim) => head_dim,
        None if architecture == Architecture::Qwen3 => 128,
        None if heads > 0 && hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => fields.size("head_dim")?,
    };
    let (rope_theta, rope_scaling) = fields.rope()?;
    let mut eos_tokens = Vec::new();
    if let Some(generation) = generation {
        let path = file.with_file_name("generation_config.json");
        let generation = Fields { map: object(generation, &path)?, file: &path };
        eos_tokens = generation.tokens("eos_token_id")?;
    }
    for token in fields.tokens("eos_token_id")? {
        if !eos_tokens.contains(&token) {
            eos_tokens.push(token);
        }
    }
    let config = Config {
        architecture,
        hidden_size,
        layers: fields.size("num_hidden_layers")?,
        mlp_width: fields.size("intermediate_size")?,
        heads,
        kv_heads,
        head_dim,
        vocab_size: fields.size("vocab_size")?,
        norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        rope_layout: RopeLayout::HalfSplit,
        max_positions: fields.size("max_position_embeddings")?,
        tied_embeddings: fields.flag("tie_word_embeddings")?,
        qk_norm: architecture == Architecture::Qwen3,
        qkv_bias: architecture == Architecture::Qwen2,
        eos_tokens,
        bos_token: fields.tokens("bos_token_id")?.first().copied(),
        add_bos: false,
    };
    config.check_sizes(file)?;
    Ok(ModelConfig { config, quantization })
}

/// A JSON object, or an error that names the file.
pub(crate) fn object(text: &[u8], file: &Path) -> Result<Map<String, Value>> {
    serde_json::from_slice(text).map_err(|source| Error::Json { file: file.into(), source })
}

struct Fields<'a> {
    map: Map<String, Value>,
    file: &'a Path,
}

impl Fields<'_> {
    /// A field's value, with null read as absent.
    fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn refuse<T>(&self, field: &str, supported: &str) -> Result<T> {
        let found = self.map.get(field).unwrap_or(&Value::Null).to_string();
        self.refuse_value(field, found, supported)
    }

    fn refuse_value<T>(&self, field: &str, found: String, supported: &str) -> Result<T> {
        Err(Error::Unsupported { file: self.file.into(), field: field.into(), found, supported: supported.into() })
    }

    fn malformed<T>(&self, field: &str, expected: &str) -> Result<T> {
        let found = self.map.get(field).map_or("nothing".into(), Value::to_string);
        Err(Error::Malformed { file: self.file.into(), part: field.into(), expected: expected.into(), found })
    }

    fn text(&self, field: &str) -> Result<String> {
        match self.get(field).and_then(Value::as_str) {
            Some(text) => Ok(text.to_string()),
            None => self.malformed(field, "a text"),
        }
    }

    fn size(&self, field: &str) -> Result<usize> {
        match self.optional_size(field)? {
            Some(size) => Ok(size),
            None => self.malformed(field, "a whole number"),
        }
    }

    fn optional_size(&self, field: &str) -> Result<Option<usize>> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => match value.as_u64().and_then(|v| usize::try_from(v).ok()) {
                Some(size) => Ok(Some(size)),
                None => self.malformed(field, "a whole number"),
            },
        }
    }

    fn number(&self, field: &str) -> Result<Option<f64>> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => self.malformed(field, "a number"),
            },
        }
    }

    fn flag(&self, field: &str) -> Result<bool> {
        match self.get(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => self.malformed(field, "true or false"),
        }
    }

    /// Token ids: one number, a list, or nothing.
    fn tokens(&self, field: &str) -> Result<Vec<u32>> {
        let one = |value: &Value| value.as_u64().and_then(|v| u32::try_from(v).ok());
        let tokens = match self.get(field) {
            None => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(one).collect(),
            Some(value) => one(value).map(|token| vec![token]),
        };
        tokens.map_or_else(|| self.malformed(field, "a token id or a list of them"), Ok)
    }

    /// The class name, where given, must be the plain text model: the same `model_type` also heads classifiers.
    fn check_class(&self, architecture: Architecture) -> Result<()> {
        let class = match architecture {
            Architecture::Qwen3 => "Qwen3ForCausalLM",
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
        };
        match self.get("architectures") {
            None => Ok(()),
            Some(Value::Array(list)) if list.iter().all(|name| name == class) => Ok(()),
            Some(_) => self.refuse("architectures", &format!("{class} is implemented for this model_type")),
        }
    }

    fn refuse_unsupported(&self, architecture: Architecture) -> Result<()> {
        for (field, neutral) in REFUSED {
            let passes = match (self.get(field), &neutral) {
                (None, _) => true,
                (Some(value), Neutral::Off) => is_off(value),
                (Some(value), Neutral::One) => value.as_f64() == Some(1.0),
            };
            if !passes {
                let supported = match neutral {
                    Neutral::Off => "only models without it are implemented",
                    Neutral::One => "only 1 is implemented",
                };
                return self.refuse(field, supported);
            }
        }
        for (field, value) in &self.map {
            let experts = ["expert", "moe"].iter().any(|word| field.contains(word));
            if experts && value.as_f64().is_some_and(|v| v > 0.0) {
                return self.refuse(field, "mixtures of experts are not implemented");
            }
        }
        // Qwen's own code ignores the window unless use_sliding_window is true, which is refused above.
        if architecture == Architecture::Llama && self.get("sliding_window").is_some() {
            return self.refuse("sliding_window", "only full attention is implemented");
        }
        if let Some(layers) = self.get("layer_types") {
            let full = layers.as_array().is_some_and(|list| list.iter().all(|kind| kind == "full_attention"));
            if !full {
                return self.refuse("layer_types", "only full_attention is implemented");
            }
        }
        if self.get("hidden_act").is_some_and(|act| act != "silu" && act != "swish") {
            return self.refuse("hidden_act", "only silu is implemented");
        }
        if architecture != Architecture::Qwen2 && self.get("attention_bias").is_some_and(|bias| !is_off(bias)) {
            return self.refuse("attention_bias", "only qwen2's biases (q, k and v) are implemented");
        }
        for field in ["qk_norm", "use_qk_norm", "qk_layernorm"] {
            if architecture != Architecture::Qwen3 && self.get(field).is_some_and(|v| !is_off(v)) {
                return self.refuse(field, "query and key norms are implemented for qwen3");
            }
        }
        Ok(())
    }

    /// Rotation base and scaling from `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters`
    /// (transformers 5). Both may stand in one file if they agree.
    fn rope(&self) -> Result<(f64, RopeScaling)> {
        let mut theta = self.number("rope_theta")?;
        let mut scaling = None;
        for field in ["rope_parameters", "rope_scaling"] {
            let Some(value) = self.get(field) else { continue };
            let Some(map) = value.as_object() else {
                return self.refuse(field, "an object with rope_type is read");
            };
            let block = Fields { map: map.clone(), file: self.file };
            let name = |key: &str| format!("{field}.{key}");
            if block.get("partial_rotary_factor").is_some_and(|v| v.as_f64() != Some(1.0)) {
                return block.refuse_as(
                    "partial_rotary_factor",
                    &name("partial_rotary_factor"),
                    "only 1 is implemented",
                );
            }
            if let Some(nested) = map.iter().find(|(_, v)| v.is_object()) {
                return block.refuse_as(nested.0, &name(nested.0), "one rotation for all layers is implemented");
            }
            if let Some(own) = block.number("rope_theta")? {
                if theta.is_some_and(|theta| theta != own) {
                    return block.refuse_as("rope_theta", &name("rope_theta"), "it must equal the other rope_theta");
                }
                theta = Some(own);
            }
            let own = block.scaling(field)?;
            if scaling.is_some_and(|scaling| scaling != own) {
                return self.refuse(field, "it must agree with rope_parameters");
            }
            scaling = Some(own);
        }
        // What the architectures' own code uses where the file is silent.
        Ok((theta.unwrap_or(10_000.0), scaling.unwrap_or(RopeScaling::None)))
    }

    fn refuse_as<T>(&self, key: &str, name: &str, supported: &str) -> Result<T> {
        self.refuse_value(name, self.map.get(key).unwrap_or(&Value::Null).to_string(), supported)
    }

    fn scaling(&self, field: &str) -> Result<RopeScaling> {
        let key = if self.get("rope_type").is_some() { "rope_type" } else { "type" };
        let kind = self.get(key).map_or("default", |kind| kind.as_str().unwrap_or("?"));
        match kind {
            "default" => Ok(RopeScaling::None),
            "llama3" => {
                let required = |key: &str| match self.number(key)? {
                    Some(number) => Ok(number),
                    None => self.malformed(key, "a number, as llama3 scaling needs"),
                };
                Ok(RopeScaling::Llama3 {
                    factor: required("factor")?,
                    low_freq_factor: required("low_freq_factor")?,
                    high_freq_factor: required("high_freq_factor")?,
                    original_max_position: self.size("original_max_position_embeddings")?,
                })
            }
            _ => self.refuse_as(key, &format!("{field}.{key}"), "default and llama3 are implemented"),
        }
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn qwen3() -> Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false,
            "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
            "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
            "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": null,
            "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
            "use_cache": true, "use_sliding_window": false, "vocab_size": 151936
        })
    }

    fn llama() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false,
            "eos_token_id": [128001, 128008], "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
            "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 16,
            "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "vocab_size": 128256,
            "rope_theta": 500000.0,
            "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3"}
        })
    }

    fn read(value: &Value) -> Result<ModelConfig> {
        parse(value.to_string().as_bytes(), None, Path::new("config.json"))
    }

    fn with(mut base: Value, changes: Value) -> Value {
        for (key, value) in changes.as_object().unwrap() {
            base[key] = value.clone();
        }
        base
    }

    #[test]
    fn qwen3_as_published() {
        let config = read(&qwen3()).unwrap().config;
        let expected = Config {
            architecture: Architecture::Qwen3,
            hidden_size: 1024,
            layers: 28,
            mlp_width: 3072,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            vocab_size: 151_936,
            norm_eps: 1e-6,
            rope_theta: 1e6,
            rope_scaling: RopeScaling::None,
            rope_layout: RopeLayout::HalfSplit,
            max_positions: 40_960,
            tied_embeddings: true,
            qk_norm: true,
            qkv_bias: false,
            eos_tokens: vec![151_645],
            bos_token: Some(151_643),
            add_bos: false,
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn both_rope_spellings_agree() {
        let old = read(&llama()).unwrap().config;
        let mut value = llama();
        let mut parameters = value["rope_scaling"].clone();
        parameters["rope_theta"] = json!(500000.0);
        let map = value.as_object_mut().unwrap();
        map.remove("rope_scaling");
        map.remove("rope_theta");
        map.insert("rope_parameters".into(), parameters);
        assert_eq!(read(&value).unwrap().config, old);
        assert_eq!(old.head_dim, 64);
        let scaling = RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        };
        assert_eq!((old.rope_theta, old.rope_scaling), (500_000.0, scaling));
        let error = read(&with(value, json!({"rope_theta": 1e4}))).unwrap_err().to_string();
        assert!(error.contains("rope_parameters.rope_theta"), "{error}");
    }

    #[test]
    fn stop_tokens_of_both_files() {
        let text = qwen3().to_string();
        let read = |generation: &str| parse(text.as_bytes(), Some(generation.as_bytes()), Path::new("d/config.json"));
        assert_eq!(read(r#"{"eos_token_id":[151645,151643]}"#).unwrap().config.eos_tokens, [151_645, 151_643]);
        assert_eq!(read(r#"{"eos_token_id":7}"#).unwrap().config.eos_tokens, [7, 151_645]);
        assert_eq!(read("{}").unwrap().config.eos_tokens, [151_645]);
        let error = read(r#"{"eos_token_id":"x"}"#).unwrap_err().to_string();
        assert!(error.contains("d/generation_config.json"), "{error}");
        assert!(read("{").is_err());
    }

    #[test]
    fn neutral_values_pass() {
        let neutral = json!({"partial_rotary_factor": 1.0, "mlp_bias": false, "num_experts": 0, "sliding_window": 32768,
            "layer_types": ["full_attention", "full_attention"], "rope_scaling": {"rope_type": "default"},
            "final_logit_softcapping": null, "qk_norm": true, "quantization_config": null, "logit_scale": 1});
        assert_eq!(read(&with(qwen3(), neutral)).unwrap().config, read(&qwen3()).unwrap().config);
        let qwen2 = json!({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "head_dim": null,
            "attention_bias": true});
        let config = read(&with(qwen3(), qwen2)).unwrap().config;
        assert!(config.qkv_bias && !config.qk_norm && config.head_dim == 64);
    }

    #[test]
    fn what_would_change_the_result_is_refused_by_name_and_value() {
        for (base, change) in [
            (qwen3(), json!({"model_type": "gemma3"})),
            (qwen3(), json!({"architectures": ["Qwen3ForSequenceClassification"]})),
            (qwen3(), json!({"use_sliding_window": true})),
            (qwen3(), json!({"layer_types": ["sliding_attention"]})),
            (qwen3(), json!({"hidden_act": "gelu"})),
            (qwen3(), json!({"attention_bias": true})),
            (qwen3(), json!({"num_experts": 128})),
            (qwen3(), json!({"moe_intermediate_size": 768})),
            (qwen3(), json!({"partial_rotary_factor": 0.5})),
            (qwen3(), json!({"final_logit_softcapping": 30.0})),
            (llama(), json!({"mlp_bias": true})),
            (llama(), json!({"sliding_window": 4096})),
            (llama(), json!({"pretraining_tp": 2})),
            (llama(), json!({"qk_norm": true})),
        ] {
            let error = read(&with(base, change.clone())).unwrap_err().to_string();
            let (field, value) = change.as_object().unwrap().iter().next().unwrap();
            assert!(error.contains(&format!("{field} = {value}")), "{change}: {error}");
        }
        for (change, named) in [
            (json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}), "rope_scaling.type = \"yarn\""),
            (json!({"rope_scaling": {"rope_type": "linear"}}), "rope_scaling.rope_type = \"linear\""),
            (json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}), "rope_parameters.full_attention"),
            (
                json!({"rope_parameters": {"partial_rotary_factor": 0.25}}),
                "rope_parameters.partial_rotary_factor = 0.25",
            ),
            (json!({"quantization_config": {"quant_method": "awq"}}), "quantization_config.quant_method = \"awq\""),
        ] {
            let error = read(&with(qwen3(), change.clone())).unwrap_err().to_string();
            assert!(error.contains(named), "{change}: {error}");
        }
    }

    #[test]
    fn sizes_that_cannot_be() {
        for (field, value) in [
            ("hidden_size", json!(0)),
            ("hidden_size", json!(-1)),
            ("hidden_size", json!(1u64 << 60)),
            ("vocab_size", json!("many")),
            ("num_hidden_layers", json!(1_000_000)),
            ("num_key_value_heads", json!(3)),
            ("head_dim", json!(127)),
            ("rms_norm_eps", json!(-1.0)),
            ("rope_theta", json!(0)),
            ("tie_word_embeddings", json!("yes")),
            ("num_attention_heads", json!(null)),
            ("max_position_embeddings", json!(null)),
        ] {
            let error = read(&with(qwen3(), json!({field: value}))).unwrap_err().to_string();
            assert!(error.contains(field) && error.contains("config.json"), "{field}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_value_in_any_field_never_panics(index in 0usize..26, pick in 0usize..10, number in any::<f64>(), whole in any::<i64>()) {
            let mut value = qwen3();
            let map = value.as_object_mut().unwrap();
            let key = map.keys().nth(index % map.len()).unwrap().clone();
            let junk = [json!(null), json!(true), json!("x"), json!([]), json!({}), json!(number), json!(whole), json!([whole]), json!({"rope_type": "llama3", "factor": number}), json!([[]])];
            map.insert(key, junk[pick].clone());
            let _ = read(&value);
        }

        #[test]
        fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, Some(&bytes), Path::new("config.json"));
        }
    }
}
