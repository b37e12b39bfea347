//! Any opened model written as a dense Hugging Face checkpoint, for engines that read nothing else; once per machine.
//! Not here: what other engines make of it (`peers/`), text files (a peer gets token ids).

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use half::bf16;
use serde_json::{Map, Value, json};

use crate::config::{Architecture, Config, RopeLayout, RopeScaling};
use crate::files::TextFiles;
use crate::partial_directory::PartialDirectory;
use crate::{DenseType, Encoding, Error, ModelFiles, ModelSource, OpenOptions, Result, Tensor, open};

/// Part of the cache's directory names: changes whenever the same model would be written differently.
const LAYOUT_VERSION: u32 = 1;

/// A checkpoint that other engines can read, and where what they make of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseCheckpoint {
    /// config.json and BF16 safetensors.
    pub model: PathBuf,
    /// A directory of this model alone, for the engines' own conversions.
    pub conversions: PathBuf,
    /// What became of the values on the way; None when the model is used as it lies there.
    pub rounding: Option<String>,
}

/// `$XDG_CACHE_HOME/hourglass/peers`, else below `~/.cache`. Errors: neither XDG_CACHE_HOME nor HOME is set.
pub fn peers_cache() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache"))).ok_or(Error::NoCache)?;
    Ok(base.join("hourglass").join("peers"))
}

/// The dense form of a model: a directory of BF16 safetensors is used as it is, anything else is written once below
/// `cache`, under a name made from its fingerprint, and found there the next time. Concurrent callers write it once.
///
/// Of `options`, `progress` (bytes of the new weights) and `cancelled` are used.
/// Errors: those of [`export_dense`]; a cache that cannot be written.
pub fn dense_in_cache(files: &ModelFiles, cache: &Path, options: &OpenOptions) -> Result<DenseCheckpoint> {
    let own = cache.join(format!("{}-{LAYOUT_VERSION}", &files.fingerprint()?[..16]));
    let conversions = own.join("conversions");
    fs::create_dir_all(&conversions).map_err(|e| Error::io(&conversions, "make the directory", e))?;
    if matches!(files.text(), TextFiles::Directory { .. }) && is_bf16(files)? {
        // An engine started elsewhere must find it too.
        let model = fs::canonicalize(files.place()).map_err(|e| Error::io(files.place(), "resolve", e))?;
        return Ok(DenseCheckpoint { model, conversions, rounding: None });
    }
    let model = own.join("dense");
    let rounding = Some(format!("{} rounded to BF16", files.describe_encoding()));
    let _lock = lock(&own.join("dense.lock"), options)?;
    if !is_whole(&model, files) {
        PartialDirectory::remove_leftovers(&model)?;
        if fs::symlink_metadata(&model).is_ok() {
            fs::remove_dir_all(&model).map_err(|e| Error::io(&model, "remove the damaged copy", e))?;
        }
        export_dense(files, &model, options)?;
    }
    Ok(DenseCheckpoint { model, conversions, rounding })
}

/// Writes `out/` with config.json and one model.safetensors, every tensor in BF16 under its Hugging Face name. What is
/// not BF16 is rounded to it (for synthetic weights that changes nothing: their values are exact in BF16).
///
/// Nothing is left behind on an error: the directory appears under its name only when it is whole.
/// Errors: `out` exists; rows stored in another order than Hugging Face's (a llama GGUF); a value that is not finite; a
/// full disk; cancelled.
pub fn export_dense(files: &ModelFiles, out: &Path, options: &OpenOptions) -> Result<()> {
    if fs::symlink_metadata(out).is_ok() {
        return Err(Error::Exists { path: out.into() });
    }
    if files.config().rope_layout != RopeLayout::HalfSplit {
        return Err(Error::Unsupported {
            file: files.place().into(),
            field: "rope layout".into(),
            found: "interleaved".into(),
            supported: "only rows in Hugging Face's order are written for other engines".into(),
        });
    }
    let partial = PartialDirectory::create(out)?;
    let config = partial.path().join("config.json");
    let mut text = serde_json::to_string_pretty(&config_json(files.config())).expect("a JSON object can be written");
    text.push('\n');
    fs::write(&config, text).map_err(|e| Error::io(&config, "write", e))?;
    write_weights(files, &partial.path().join("model.safetensors"), options)?;
    partial.finish(out)
}

fn is_bf16(files: &ModelFiles) -> Result<bool> {
    for name in files.tensor_names() {
        if files.tensor(name)?.encoding() != Encoding::Dense(DenseType::BF16) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A copy that opens (its header fits its size) and describes the same model.
fn is_whole(model: &Path, files: &ModelFiles) -> bool {
    let copy = open(&ModelSource::Directory(model.into()), &OpenOptions::default());
    copy.is_ok_and(|copy| {
        // Begin-of-text rules belong to the text side, which is not written.
        let expected = Config { add_bos: copy.config().add_bos, ..files.config().clone() };
        copy.config() == &expected && is_bf16(&copy).unwrap_or(false)
    })
}

/// Waits for the one who writes the same model now. The lock ends with the returned file.
fn lock(path: &Path, options: &OpenOptions) -> Result<File> {
    let failed = |e| Error::io(path, "lock", e);
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => {
                check_cancelled(options, "waiting for another process that writes this model")?;
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(fs::TryLockError::Error(e)) => return Err(failed(e)),
        }
    }
}

fn check_cancelled(options: &OpenOptions, doing: &str) -> Result<()> {
    if options.cancelled.is_some_and(|c| c.load(Ordering::Relaxed)) {
        return Err(Error::Cancelled { doing: doing.into() });
    }
    Ok(())
}

/// Every field that transformers, mlx-lm and the adapters read. The rotation is told in the old and the new way.
fn config_json(config: &Config) -> Value {
    let class = match config.architecture {
        Architecture::Qwen3 => "Qwen3ForCausalLM",
        Architecture::Llama => "LlamaForCausalLM",
        Architecture::Qwen2 => "Qwen2ForCausalLM",
    };
    let mut rope = match config.rope_scaling {
        RopeScaling::None => json!({"rope_type": "default"}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original_max_position
        }),
    };
    rope["rope_theta"] = json!(config.rope_theta);
    let mut value = json!({
        "architectures": [class],
        "model_type": config.architecture.name(),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "intermediate_size": config.mlp_width,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": rope,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    });
    if !config.qkv_bias {
        value["attention_bias"] = json!(false);
    }
    if !config.eos_tokens.is_empty() {
        value["eos_token_id"] = json!(config.eos_tokens);
    }
    if let Some(bos) = config.bos_token {
        value["bos_token_id"] = json!(bos);
    }
    value
}

fn write_weights(files: &ModelFiles, path: &Path, options: &OpenOptions) -> Result<()> {
    let failed = |e| Error::io(path, "write", e);
    let tensors: Vec<Tensor> = files.tensor_names().map(|name| files.tensor(name)).collect::<Result<_>>()?;
    let mut map = Map::new();
    // What transformers asks of a file before it reads it.
    map.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut at = 0u64;
    for tensor in &tensors {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let shape = if rows == 1 { vec![cols] } else { vec![rows, cols] };
        let end = at + 2 * rows as u64 * cols as u64;
        map.insert(tensor.name().into(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let mut header = Value::Object(map).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let total = 8 + header.len() as u64 + at;

    let mut out = BufWriter::with_capacity(1 << 20, File::create_new(path).map_err(failed)?);
    out.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| out.write_all(&header)).map_err(failed)?;
    let mut done = total - at;
    for tensor in &tensors {
        check_cancelled(options, &format!("writing {}", path.display()))?;
        write_tensor(tensor, &mut out, path)?;
        tensor.release_pages();
        done += 2 * tensor.rows() as u64 * tensor.cols() as u64;
        if let Some(progress) = options.progress {
            progress(done, Some(total), "model.safetensors");
        }
    }
    let file = out.into_inner().map_err(|e| failed(e.into_error()))?;
    // The directory's name promises that it is whole, also after a power cut.
    file.sync_all().map_err(failed)
}

fn write_tensor(tensor: &Tensor, out: &mut impl Write, path: &Path) -> Result<()> {
    let mut values = vec![0.0; tensor.cols()];
    let mut bytes = vec![0; 2 * tensor.cols()];
    for row in 0..tensor.rows() {
        tensor.read_f32(row, &mut values);
        for (col, (value, bytes)) in values.iter().zip(bytes.as_chunks_mut::<2>().0).enumerate() {
            let rounded = bf16::from_f32(*value);
            if !rounded.is_finite() {
                return Err(Error::NotFinite { tensor: tensor.name().into(), row, col });
            }
            *bytes = rounded.to_le_bytes();
        }
        out.write_all(&bytes).map_err(|e| Error::io(path, "write", e))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "dense_checkpoint_tests.rs"]
mod tests;
