//! What the integration tests share: fixtures, oracles, errors between logits.
//! Not here: what is tested; each test file says that of itself.

#![allow(dead_code, reason = "each test binary uses its part")]

use model::{Engine, Keep, LoadOptions};
use ops::Registry;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use weights::{ModelFiles, ModelSource, OpenOptions};

pub const PROMPTS: [usize; 3] = [1, 17, 130];

/// Where the fixtures are on a machine that this was not compiled on.
pub static MOVED_TO: OnceLock<PathBuf> = OnceLock::new();

pub fn fixture(name: &str) -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    MOVED_TO.get().cloned().unwrap_or_else(here).join(name)
}

/// A downloaded file, or None after saying what is missing; where everything must run (`CI=true`), a failure.
pub fn download(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../downloads").join(name);
    if path.exists() {
        return Some(path);
    }
    let message = format!("skipped: needs downloads/{name}; get it with `cargo xtask fixtures`");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{message}");
    println!("{message}");
    None
}

pub fn open(path: &Path) -> ModelFiles {
    let source = ModelSource::parse(&path.display().to_string()).unwrap();
    weights::open(&source, &OpenOptions { offline: true, ..OpenOptions::default() }).unwrap()
}

/// A model made from a fixed seed, in memory.
pub fn synthetic(name: &str) -> ModelFiles {
    weights::open(&ModelSource::parse(&format!("synthetic:{name}")).unwrap(), &OpenOptions::default()).unwrap()
}

pub fn options(checkpoint: &str) -> LoadOptions {
    let mut options = LoadOptions::new(Registry::standard().checkpoint(checkpoint).unwrap());
    options.threads = 2;
    options
}

pub fn engine(files: &ModelFiles, checkpoint: &str) -> Engine {
    Engine::load(files, options(checkpoint)).unwrap()
}

/// Names of the checkpoints that are held to bfloat16's accuracy, in order: neither the oracle nor what is less exact by intent.
pub fn rungs() -> Vec<&'static str> {
    let registry = Registry::standard();
    let names = registry.checkpoints().map(|checkpoint| checkpoint.name);
    names.filter(|name| !["reference", "eight-bit"].contains(name)).collect()
}

/// Logits of every position of `ids` from an empty cache, `(positions, vocabulary)`.
pub fn all_logits(engine: &mut Engine, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut cache = engine.new_cache(ids.len());
    let logits = engine.forward(&mut cache, ids, Keep::All).unwrap();
    (0..ids.len())
        .map(|row| {
            let mut out = Vec::new();
            logits.row(row, &mut out).unwrap();
            out
        })
        .collect()
}

/// ‖got − want‖ ÷ ‖want‖ over all rows.
pub fn relative_l2(got: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (mut error, mut power) = (0.0f64, 0.0f64);
    for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
        error += (f64::from(*got) - f64::from(*want)).powi(2);
        power += f64::from(*want).powi(2);
    }
    (error / power).sqrt()
}

/// KL(want ‖ got) in nats, mean over rows.
pub fn kl(got: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - best).exp()).sum();
        row.iter().map(|x| f64::from(x - best) - sum.ln()).collect()
    };
    let rows = got.iter().zip(want).map(|(got, want)| {
        let (got, want) = (log_softmax(got), log_softmax(want));
        got.iter().zip(&want).map(|(g, w)| w.exp() * (w - g)).sum::<f64>()
    });
    rows.sum::<f64>() / want.len() as f64
}

/// The oracle of a fixture at one prompt length.
pub struct Oracle {
    pub ids: Vec<u32>,
    pub logits: Vec<Vec<f32>>,
    /// transformers' own bfloat16 run against its float32.
    pub bf16_rel_l2: f64,
    pub bf16_kl: f64,
}

/// Reads `NAME.oracle.safetensors` (see the fixtures' README).
pub fn oracle(name: &str, prompt: usize) -> Oracle {
    let bytes = std::fs::read(fixture(&format!("{name}.oracle.safetensors"))).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let data = &bytes[8 + header_len..];
    let words = |key: &str| -> Vec<[u8; 4]> {
        let offsets = &header[format!("p{prompt}.{key}")]["data_offsets"];
        let (start, end) = (offsets[0].as_u64().unwrap() as usize, offsets[1].as_u64().unwrap() as usize);
        data[start..end].chunks_exact(4).map(|word| word.try_into().unwrap()).collect()
    };
    let floats = |key: &str| -> Vec<f32> { words(key).into_iter().map(f32::from_le_bytes).collect() };
    let ids: Vec<u32> = words("ids").into_iter().map(u32::from_le_bytes).collect();
    let logits = floats("logits_f32");
    let vocabulary = logits.len() / ids.len();
    Oracle {
        logits: logits.chunks_exact(vocabulary).map(<[f32]>::to_vec).collect(),
        bf16_rel_l2: f64::from(floats("bf16_rel_l2")[0]),
        bf16_kl: f64::from(floats("bf16_kl")[0]),
        ids,
    }
}

/// Every small model: fixture name, file within it (or itself).
pub const MODELS: [(&str, &str); 11] = [
    ("qwen3-odd-tied", "qwen3-odd-tied"),
    ("qwen3-sharded-untied", "qwen3-sharded-untied"),
    ("llama3-scaled", "llama3-scaled"),
    ("qwen2-biases", "qwen2-biases"),
    ("qwen3-mlx-g64", "qwen3-mlx-g64"),
    ("qwen3-mlx-g128", "qwen3-mlx-g128"),
    ("qwen3-mlx-mixed-f16", "qwen3-mlx-mixed-f16"),
    ("qwen3-mixed", "qwen3-mixed.gguf"),
    ("qwen3-k", "qwen3-k.gguf"),
    ("llama3-scaled-q8_0", "llama3-scaled-q8_0.gguf"),
    ("qwen2-q4_1", "qwen2-q4_1.gguf"),
];
