//! Checkpoints written by transformers and by mlx themselves (made for the model's tests) open as what they are.
//! Not here: their arithmetic (the model's tests), GGUF.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use weights::{Architecture, DenseType, Encoding, ModelFiles, ModelSource, OpenOptions, RopeScaling};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures").join(name)
}

fn open(name: &str) -> ModelFiles {
    weights::open(&ModelSource::Directory(fixture(name)), &OpenOptions::default()).unwrap()
}

#[test]
fn transformers_single_file_tied() {
    let files = open("qwen3-odd-tied");
    let config = files.config();
    assert_eq!((config.architecture, config.layers, config.heads, config.kv_heads), (Architecture::Qwen3, 3, 6, 3));
    assert!(config.tied_embeddings && config.qk_norm && !files.has_tensor("lm_head.weight"));
    assert_eq!((files.label(), files.describe_encoding().as_str()), ("qwen3-odd-tied", "BF16"));
    assert_eq!(files.tensor_names().count(), 2 + 3 * 11);
    let error = files.tensor("lm_head.weight").err().unwrap().to_string();
    assert!(error.contains("lm_head.weight") && error.contains("qwen3-odd-tied"), "{error}");
}

#[test]
fn transformers_shards_and_rope_parameters() {
    let files = open("qwen3-sharded-untied");
    assert!(!files.config().tied_embeddings);
    assert_eq!((files.config().head_dim, files.config().rope_theta), (128, 10_000.0));
    assert_eq!(files.tensor("lm_head.weight").unwrap().rows(), files.config().vocab_size);

    let config = open("llama3-scaled").config().clone();
    let scaling =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position: 64 };
    assert_eq!((config.rope_theta, config.rope_scaling), (500_000.0, scaling));
    assert_eq!((config.bos_token, config.eos_tokens), (Some(264), vec![266]));

    let files = open("qwen2-biases");
    assert!(files.config().qkv_bias && files.has_tensor("model.layers.0.self_attn.q_proj.bias"));
}

#[test]
fn mlx_groups_and_overrides() {
    let encoding = |files: &ModelFiles, name: &str| files.tensor(name).unwrap().encoding();
    for (name, group) in [("qwen3-mlx-g64", 64), ("qwen3-mlx-g128", 128)] {
        let files = open(name);
        assert_eq!(files.describe_encoding(), format!("W4 g{group} (MLX)"));
        assert_eq!(encoding(&files, "model.embed_tokens.weight"), Encoding::Affine4 { group });
        assert_eq!(files.has_tensor("lm_head.weight"), name == "qwen3-mlx-g128");
    }
    let files = open("qwen3-mlx-mixed-f16");
    assert_eq!(encoding(&files, "model.embed_tokens.weight"), Encoding::Affine4 { group: 32 });
    assert_eq!(encoding(&files, "model.layers.0.self_attn.q_proj.weight"), Encoding::Affine4 { group: 64 });
    assert_eq!(encoding(&files, "model.layers.1.self_attn.q_proj.weight"), Encoding::Affine4 { group: 128 });
    assert_eq!(encoding(&files, "model.layers.1.mlp.down_proj.weight"), Encoding::Dense(DenseType::F16));
    assert_eq!(files.tensor("model.embed_tokens.weight").unwrap().parameter_type(), DenseType::F16);
}

#[test]
fn fingerprints_tell_models_apart_and_stay() {
    let names = ["qwen3-odd-tied", "qwen3-sharded-untied", "qwen3-mlx-g64", "llama3-scaled"];
    let prints: Vec<String> = names.iter().map(|name| open(name).fingerprint().unwrap()).collect();
    for (at, print) in prints.iter().enumerate() {
        assert_eq!(*print, open(names[at]).fingerprint().unwrap());
        assert!(print.len() == 64 && !prints[..at].contains(print));
    }
    let synthetic = |text: &str| {
        let files = weights::open(&ModelSource::parse(text).unwrap(), &OpenOptions::default()).unwrap();
        (files.label().to_string(), files.describe_encoding(), files.fingerprint().unwrap())
    };
    let (a, b) = (synthetic("synthetic:tiny"), synthetic("synthetic:tiny@1"));
    assert_eq!((a.0.as_str(), a.1.as_str()), ("synthetic:tiny@0", "W4 g128 (synthetic)"));
    assert!(a.2 != b.2 && a.2 == synthetic("synthetic:tiny@0").2);
}

#[test]
fn an_opened_model_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    let files = open("qwen3-odd-tied");
    shared(&files);
    shared(&files.tensor("model.norm.weight").unwrap());
    let tensor = files.tensor("model.embed_tokens.weight").unwrap();
    drop(files);
    // A tensor keeps its map alive, and threads read it side by side.
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let tensor = tensor.clone();
            scope.spawn(move || {
                let mut row = vec![0.0; tensor.cols()];
                for at in (thread..tensor.rows()).step_by(2) {
                    tensor.read_f32(at, &mut row);
                    assert!(row.iter().all(|v| v.is_finite()));
                }
            });
        }
    });
}
