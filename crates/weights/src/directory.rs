//! A directory in Hugging Face or MLX layout: which files make up the model, and its tensors by name.
//! Not here: how the container and the packed triples are read (`safetensors`, `mlx`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::config_json::{self, object};
use crate::files::{Identity, Parts, TextFiles};
use crate::mapping::{MappedFile, Span};
use crate::mlx::{PackedRows, Quantization};
use crate::safetensors::{self, DenseRows, Dtype, Entry};
use crate::small_file::{TEXT_LIMIT, read_small, read_small_if_there};
use crate::{Encoding, Error, Result, Tensor};

const INDEX: &str = "model.safetensors.index.json";

/// Opens the directory. Errors: a missing, damaged, contradictory or unsupported file, by name.
pub(crate) fn open(path: &Path) -> Result<Parts> {
    let config_path = path.join("config.json");
    let Some(config_text) = read_small_if_there(&config_path, "configuration", TEXT_LIMIT)? else {
        return Err(Error::NotAModel { path: path.into(), missing: "config.json".into() });
    };
    let generation = read_small_if_there(&path.join("generation_config.json"), "configuration", TEXT_LIMIT)?;
    let mut parsed = config_json::parse(&config_text, generation.as_deref(), &config_path)?;

    let there = |name: &str| Some(path.join(name)).filter(|file| file.exists());
    let tokenizer_config = there("tokenizer_config.json");
    if let Some(file) = &tokenizer_config {
        let text = read_small(file, "tokenizer configuration", TEXT_LIMIT)?;
        let asks = object(&text, file)?.get("add_bos_token").and_then(Value::as_bool) == Some(true);
        parsed.config.add_bos = asks && parsed.config.bos_token.is_some();
    }
    let text = TextFiles::Directory {
        tokenizer: there("tokenizer.json"),
        tokenizer_config,
        chat_template: there("chat_template.jinja"),
    };

    let (stored, files) = open_containers(path)?;
    let tensors = assemble(stored, parsed.quantization.as_ref(), &config_path)?;
    Ok(Parts { config: parsed.config, tensors, text, identity: Identity::Files(files) })
}

/// One tensor as it is stored, before packed triples are put together.
struct Stored {
    file: Arc<MappedFile>,
    entry: Entry,
}

impl Stored {
    fn span(&self) -> Span {
        self.file.span(self.entry.start, self.entry.len).expect("the table was checked against the file's size")
    }
}

type StoredTensors = BTreeMap<String, Stored>;

/// Maps every container of the directory. Order: the single file, the index, any `model*.safetensors` (as older MLX
/// writers left them, without an index).
fn open_containers(path: &Path) -> Result<(StoredTensors, Vec<PathBuf>)> {
    let single = path.join("model.safetensors");
    let mut stored = StoredTensors::new();
    if single.exists() {
        add_container(&single, &mut stored)?;
        return Ok((stored, vec![single]));
    }
    let index_path = path.join(INDEX);
    if let Some(text) = read_small_if_there(&index_path, "index", TEXT_LIMIT)? {
        let map = read_index(&text, &index_path)?;
        let mut shards: Vec<&String> = map.values().collect();
        shards.sort();
        shards.dedup();
        let files: Vec<PathBuf> = shards.into_iter().map(|shard| path.join(shard)).collect();
        for file in &files {
            add_container(file, &mut stored)?;
        }
        check_index(&map, &stored, &index_path)?;
        return Ok((stored, files));
    }
    let mut files = Vec::new();
    for item in std::fs::read_dir(path).map_err(|e| Error::io(path, "list", e))? {
        let file = item.map_err(|e| Error::io(path, "list", e))?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        let missing = format!("model.safetensors (or {INDEX} with its shards)");
        return Err(Error::NotAModel { path: path.into(), missing });
    }
    for file in &files {
        add_container(file, &mut stored)?;
    }
    Ok((stored, files))
}

fn add_container(path: &Path, stored: &mut StoredTensors) -> Result<()> {
    let file = MappedFile::open(path)?;
    let table = safetensors::parse(file.bytes(), file.bytes().len() as u64, path)?;
    for (name, entry) in table {
        if let Some(first) = stored.get(&name) {
            return Err(Error::Malformed {
                file: path.into(),
                part: format!("tensor {name}"),
                expected: "each tensor in one file".into(),
                found: format!("another copy in {}", first.file.path().display()),
            });
        }
        stored.insert(name, Stored { file: file.clone(), entry });
    }
    Ok(())
}

/// The `weight_map` of an index: tensor name to shard file name. A shard name is only ever a file beside the index, so
/// an index cannot reach outside its directory or name itself.
pub(crate) fn read_index(text: &[u8], file: &Path) -> Result<BTreeMap<String, String>> {
    let wrong = |part: &str, expected: &str, found: String| {
        Err(Error::Malformed { file: file.into(), part: part.into(), expected: expected.into(), found })
    };
    let index = object(text, file)?;
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return wrong("weight_map", "an object from tensor names to file names", "none".into());
    };
    let mut result = BTreeMap::new();
    for (tensor, shard) in map {
        let part = format!("weight_map.{tensor}");
        let plain = shard.as_str().filter(|name| {
            name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', '\0', ':'])
        });
        let Some(shard) = plain else {
            return wrong(&part, "a plain file name ending in .safetensors, beside the index", shard.to_string());
        };
        result.insert(tensor.clone(), shard.to_string());
    }
    if result.is_empty() {
        return wrong("weight_map", "at least one tensor", "none".into());
    }
    Ok(result)
}

/// Index and shards must tell the same: a tensor that one of them does not know is lost or stale.
fn check_index(map: &BTreeMap<String, String>, stored: &StoredTensors, index: &Path) -> Result<()> {
    for (name, shard) in map {
        match stored.get(name) {
            None => {
                return Err(Error::MissingTensor { file: index.with_file_name(shard), tensor: name.clone() });
            }
            Some(found) if found.file.path().file_name().is_none_or(|file| file != shard.as_str()) => {
                return Err(Error::Malformed {
                    file: index.into(),
                    part: format!("weight_map.{name}"),
                    expected: format!("the tensor in {shard}"),
                    found: found.file.path().display().to_string(),
                });
            }
            Some(_) => {}
        }
    }
    match stored.iter().find(|(name, _)| !map.contains_key(*name)) {
        None => Ok(()),
        Some((name, found)) => Err(Error::Malformed {
            file: found.file.path().into(),
            part: format!("tensor {name}"),
            expected: format!("only tensors that {INDEX} lists"),
            found: "one that it does not list".into(),
        }),
    }
}

/// Puts packed triples together and gives every other tensor its dense rows.
fn assemble(
    mut stored: StoredTensors,
    quantization: Option<&Quantization>,
    config: &Path,
) -> Result<BTreeMap<String, Tensor>> {
    let mut tensors = BTreeMap::new();
    let packed: Vec<String> = stored
        .iter()
        .filter(|(name, s)| s.entry.dtype == Dtype::U32 && name.ends_with(".weight"))
        .map(|(name, _)| name.trim_end_matches(".weight").to_string())
        .collect();
    for module in packed {
        let tensor = assemble_packed(&mut stored, &module, quantization, config)?;
        tensors.insert(tensor.name().to_string(), tensor);
    }
    for (name, stored) in stored {
        let module = name.trim_end_matches(".weight");
        let file = stored.file.path();
        let Dtype::Dense(kind) = stored.entry.dtype else {
            return Err(Error::Unsupported {
                file: file.into(),
                field: format!("type of tensor {name}"),
                found: stored.entry.dtype_name.clone(),
                supported: "BF16, F16, F32 and MLX 4-bit weights are read".into(),
            });
        };
        if quantization.is_some_and(|q| q.demands(module)) {
            return Err(disagreement(config, module, "packed", &name, "U32 codes", &stored.entry.dtype_name));
        }
        let (rows, cols) = stored.entry.matrix(file, &name)?;
        let source = DenseRows { span: stored.span(), kind, cols };
        tensors.insert(name.clone(), Tensor::new(&name, rows, cols, Encoding::Dense(kind), Arc::new(source)));
    }
    Ok(tensors)
}

fn assemble_packed(
    stored: &mut StoredTensors,
    module: &str,
    quantization: Option<&Quantization>,
    config: &Path,
) -> Result<Tensor> {
    let name = format!("{module}.weight");
    let codes = stored.remove(&name).expect("the caller found it");
    let file = codes.file.path().to_path_buf();
    let Some(quantization) = quantization else {
        return Err(disagreement(config, "", "absent", &name, "dense numbers", "packed codes (U32)"));
    };
    let Some(group) = quantization.group_of(module) else {
        return Err(disagreement(config, module, "false", &name, "a dense tensor", "packed codes (U32)"));
    };
    let mut take = |suffix: &str| {
        let name = format!("{module}.{suffix}");
        stored.remove(&name).ok_or_else(|| Error::MissingTensor { file: file.clone(), tensor: name })
    };
    let (scales, biases) = (take("scales")?, take("biases")?);
    let (rows, words) = codes.entry.matrix(&file, &name)?;
    let cols = words.saturating_mul(8);
    let shape = [rows as u64, (cols / group) as u64];
    let kind = match (scales.entry.dtype, biases.entry.dtype) {
        (Dtype::Dense(a), Dtype::Dense(b)) if a == b => a,
        _ => {
            return Err(Error::Malformed {
                file,
                part: format!("tensors {module}.scales and .biases"),
                expected: "both BF16, both F16 or both F32".into(),
                found: format!("{} and {}", scales.entry.dtype_name, biases.entry.dtype_name),
            });
        }
    };
    for (suffix, part) in [("scales", &scales), ("biases", &biases)] {
        // A single row may be stored without its leading 1.
        let fits = part.entry.shape == shape || (codes.entry.shape.len() == 1 && part.entry.shape == shape[1..]);
        if !cols.is_multiple_of(group) || !fits {
            return Err(disagreement(
                config,
                module,
                &format!("group_size {group}"),
                &format!("{module}.{suffix}"),
                &format!("({rows}, {cols} / {group}) for {name} of {cols} columns"),
                &format!("{:?}", part.entry.shape),
            ));
        }
    }
    let source = PackedRows { codes: codes.span(), scales: scales.span(), biases: biases.span(), kind, cols, group };
    Ok(Tensor::new(&name, rows, cols, Encoding::Affine4 { group }, Arc::new(source)))
}

fn disagreement(config: &Path, module: &str, value: &str, tensor: &str, expected: &str, found: &str) -> Error {
    let of = if module.is_empty() { String::new() } else { format!(" of {module}") };
    Error::Disagreement {
        file: config.into(),
        field: format!("quantization{of} = {value}"),
        tensor: tensor.into(),
        difference: format!("expected {expected}, found {found}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::quantize::quantize_row;
    use crate::scratch_model::{ScratchModel, encode, noise};
    use crate::{DenseType, ModelFiles, ModelSource, OpenOptions};
    use proptest::prelude::*;
    use serde_json::json;
    use std::fs;

    fn open_model(path: &Path) -> Result<ModelFiles> {
        crate::open(&ModelSource::Directory(path.into()), &OpenOptions::default())
    }

    fn written(model: &ScratchModel) -> (tempfile::TempDir, Result<ModelFiles>) {
        let dir = tempfile::tempdir().unwrap();
        model.write(dir.path());
        let opened = open_model(dir.path());
        (dir, opened)
    }

    fn failure(model: &ScratchModel) -> String {
        written(model).1.err().expect("it must not open").to_string()
    }

    #[test]
    fn dense_types_architectures_and_shards_read_back_exactly() {
        for (architecture, dtype, tied) in
            [("qwen3", "BF16", true), ("qwen3", "F32", false), ("llama", "F16", true), ("qwen2", "BF16", false)]
        {
            let model = ScratchModel::dense(architecture, dtype, tied);
            for sharded in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                if sharded {
                    model.write_sharded(dir.path())
                } else {
                    model.write(dir.path())
                }
                let files = open_model(dir.path()).unwrap();
                assert_eq!(files.describe_encoding(), dtype);
                assert_eq!(files.tensor_names().count(), model.tensors.len());
                for (name, (dtype, _, bytes)) in &model.tensors {
                    let tensor = files.tensor(name).unwrap();
                    let mut row = vec![0.0; tensor.cols()];
                    let mut read = Vec::new();
                    for at in 0..tensor.rows() {
                        tensor.read_f32(at, &mut row);
                        read.extend(encode(dtype, &row));
                        assert_eq!(tensor.non_finite_at(at), None);
                    }
                    assert!(read == *bytes, "{name}");
                    tensor.release_pages();
                    tensor.read_f32(0, &mut row);
                    assert_eq!(encode(dtype, &row), bytes[..encode(dtype, &row).len()]);
                }
                assert_eq!(files.fingerprint().unwrap().len(), 64);
            }
        }
    }

    /// Replaces a dense matrix by its packed triple.
    fn pack(model: &mut ScratchModel, module: &str, group: usize, kind: &'static str) {
        let name = format!("{module}.weight");
        let (_, shape, _) = model.tensors.remove(&name).unwrap();
        let (rows, cols) = (shape[0], shape[1]);
        let values = noise(&name, rows * cols);
        let (mut words, mut all_scales, mut all_biases) = (Vec::new(), Vec::new(), Vec::new());
        for row in values.chunks_exact(cols) {
            let (mut codes, mut scales, mut biases) = (vec![0; cols], vec![0.0; cols / group], vec![0.0; cols / group]);
            quantize_row(row, group, &mut codes, &mut scales, &mut biases);
            // Word by word as the format describes it.
            for eight in codes.chunks_exact(8) {
                let word = eight.iter().enumerate().fold(0u32, |w, (j, q)| w | u32::from(*q) << (4 * j));
                words.extend(word.to_le_bytes());
            }
            all_scales.extend(scales);
            all_biases.extend(biases);
        }
        let parameters = vec![rows, cols / group];
        model.tensors.insert(name, ("U32", vec![rows, cols / 8], words));
        model.tensors.insert(format!("{module}.scales"), (kind, parameters.clone(), encode(kind, &all_scales)));
        model.tensors.insert(format!("{module}.biases"), (kind, parameters, encode(kind, &all_biases)));
    }

    fn packed(kind: &'static str) -> ScratchModel {
        let mut model = ScratchModel::dense("qwen3", "BF16", true);
        pack(&mut model, "model.embed_tokens", 64, kind);
        pack(&mut model, "model.layers.0.self_attn.q_proj", 32, kind);
        pack(&mut model, "model.layers.1.mlp.down_proj", 128, kind);
        model.config["quantization"] = json!({"group_size": 64, "bits": 4,
            "model.layers.0.self_attn.q_proj": {"group_size": 32, "bits": 4},
            "model.layers.1.mlp.down_proj": {"group_size": 128, "bits": 4},
            "model.layers.0.mlp.up_proj": false});
        model
    }

    #[test]
    fn packed_triples_with_overrides() {
        for (kind, dense_type) in [("BF16", DenseType::BF16), ("F16", DenseType::F16), ("F32", DenseType::F32)] {
            let (_dir, files) = written(&packed(kind));
            let files = files.unwrap();
            assert!(!files.has_tensor("model.embed_tokens.scales"));
            for (name, group) in [
                ("model.embed_tokens.weight", 64),
                ("model.layers.0.self_attn.q_proj.weight", 32),
                ("model.layers.1.mlp.down_proj.weight", 128),
            ] {
                let tensor = files.tensor(name).unwrap();
                assert_eq!((tensor.encoding(), tensor.parameter_type()), (Encoding::Affine4 { group }, dense_type));
                let (cols, groups) = (tensor.cols(), tensor.cols() / group);
                let values = noise(name, tensor.rows() * cols);
                let (mut codes, mut scales, mut biases) = (vec![0; cols], vec![0.0; groups], vec![0.0; groups]);
                let (mut codes_in, mut scales_in, mut biases_in) = (codes.clone(), scales.clone(), biases.clone());
                let mut read = vec![0.0; cols];
                for row in 0..tensor.rows() {
                    quantize_row(&values[row * cols..][..cols], group, &mut codes, &mut scales, &mut biases);
                    tensor.read_codes(row, &mut codes_in, &mut scales_in, &mut biases_in);
                    assert_eq!(codes, codes_in);
                    // F16 cannot hold every BF16 value; what it holds is what must come back.
                    let stored = |v: &[f32]| {
                        let mut out = vec![0.0; v.len()];
                        crate::safetensors::read_dense(dense_type, &encode(kind, v), &mut out);
                        out
                    };
                    assert_eq!((stored(&scales), stored(&biases)), (scales_in.clone(), biases_in.clone()));
                    tensor.read_f32(row, &mut read);
                    for (at, value) in read.iter().enumerate() {
                        assert_eq!(*value, f32::from(codes[at]) * scales_in[at / group] + biases_in[at / group]);
                    }
                    assert_eq!(tensor.non_finite_at(row), None);
                }
            }
        }
    }

    #[test]
    fn what_config_and_packed_tensors_may_not_say() {
        let name = "model.layers.0.self_attn.q_proj";
        let mut model = packed("BF16");
        model.config["quantization"] = json!(null);
        assert!(failure(&model).contains("quantization = absent"), "{}", failure(&model));

        let mut model = packed("BF16");
        model.config["quantization"][name] = json!(false);
        assert!(failure(&model).contains(&format!("quantization of {name} = false")), "{}", failure(&model));

        let mut model = packed("BF16");
        model.config["quantization"][name] = json!({"group_size": 128, "bits": 4});
        assert!(failure(&model).contains("group_size 128"), "{}", failure(&model));

        let mut model = packed("BF16");
        model.config["quantization"]["model.layers.0.mlp.up_proj"] = json!({"group_size": 64, "bits": 4});
        assert!(failure(&model).contains("model.layers.0.mlp.up_proj"), "{}", failure(&model));

        let mut model = packed("BF16");
        model.tensors.remove(&format!("{name}.biases"));
        assert!(failure(&model).contains(&format!("{name}.biases is missing")), "{}", failure(&model));

        let mut model = packed("BF16");
        let scales = model.tensors.get_mut(&format!("{name}.scales")).unwrap();
        *scales = ("F32", scales.1.clone(), vec![0; scales.2.len() * 2]);
        assert!(failure(&model).contains("both BF16"), "{}", failure(&model));
    }

    #[test]
    fn non_finite_weights_are_found() {
        let mut model = packed("BF16");
        model.tensors.get_mut("model.embed_tokens.scales").unwrap().2[2 * (2 * 7 + 1)..][..2]
            .copy_from_slice(&[0x80, 0x7f]);
        model.tensors.get_mut("model.layers.0.mlp.up_proj.weight").unwrap().2[2 * (128 * 3 + 5)..][..2]
            .copy_from_slice(&[0xc1, 0xff]);
        let (_dir, files) = written(&model);
        let files = files.unwrap();
        let embedding = files.tensor("model.embed_tokens.weight").unwrap();
        assert_eq!((embedding.non_finite_at(6), embedding.non_finite_at(7)), (None, Some(64)));
        let up = files.tensor("model.layers.0.mlp.up_proj.weight").unwrap();
        assert_eq!((up.non_finite_at(2), up.non_finite_at(3)), (None, Some(5)));
    }

    #[test]
    fn config_and_tensors_that_disagree() {
        for (field, value, tensor) in [
            ("num_hidden_layers", json!(3), "model.layers.2.input_layernorm.weight"),
            ("num_hidden_layers", json!(1), "model.layers.1."),
            ("num_hidden_layers", json!(4000), "model.layers.3999"),
            ("hidden_size", json!(64), "model.embed_tokens.weight"),
            ("intermediate_size", json!(128), "mlp.gate_proj.weight"),
            ("head_dim", json!(32), "q_proj.weight"),
            ("vocab_size", json!(25), "model.embed_tokens.weight"),
            ("tie_word_embeddings", json!(false), "lm_head.weight"),
            ("model_type", json!("llama"), "k_norm.weight"),
            ("model_type", json!("qwen2"), "q_proj.bias"),
        ] {
            let mut model = ScratchModel::dense("qwen3", "BF16", true);
            model.config[field] = value.clone();
            let text = failure(&model);
            assert!(text.contains(tensor), "{field} = {value}: {text}");
        }
        let mut model = ScratchModel::dense("qwen3", "BF16", true);
        model.tensors.insert("model.layers.0.self_attn.o_proj.bias".into(), ("BF16", vec![128], vec![0; 256]));
        assert!(failure(&model).contains("o_proj.bias"));
        // A copy of the head and stored frequencies are harmless.
        let head = model.tensors["model.embed_tokens.weight"].clone();
        model.tensors.remove("model.layers.0.self_attn.o_proj.bias");
        model.tensors.insert("lm_head.weight".into(), head);
        model.tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), ("F32", vec![32], vec![0; 128]));
        let (_dir, files) = written(&model);
        assert!(!files.unwrap().has_tensor("lm_head.weight"));
    }

    #[test]
    fn indexes_cannot_reach_out_or_lie() {
        let model = ScratchModel::dense("qwen3", "BF16", true);
        let change = |edit: &dyn Fn(&mut serde_json::Map<String, Value>, &Path)| {
            let dir = tempfile::tempdir().unwrap();
            model.write_sharded(dir.path());
            let path = dir.path().join(INDEX);
            let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            edit(index["weight_map"].as_object_mut().unwrap(), dir.path());
            fs::write(&path, index.to_string()).unwrap();
            open_model(dir.path()).err().expect("it must not open").to_string()
        };
        let norm = "model.norm.weight";
        for shard in [
            "/etc/passwd.safetensors",
            "../model-0.safetensors",
            "a/b.safetensors",
            "..",
            ".",
            "",
            INDEX,
            "model.bin",
            "..safetensors",
            "c:\\x.safetensors",
        ] {
            let text = change(&|map, _| {
                map.insert(norm.into(), json!(shard));
            });
            assert!(text.contains("plain file name") && text.contains(norm), "{shard}: {text}");
        }
        let text = change(&|map, _| {
            map.insert(norm.into(), json!(7));
        });
        assert!(text.contains("plain file name"), "{text}");
        let text = change(&|map, _| {
            map.insert(norm.into(), json!("model-0.safetensors"));
        });
        assert!(text.contains(norm) && text.contains("model-0.safetensors"), "{text}");
        let text = change(&|map, _| {
            map.insert("model.extra".into(), json!("model-0.safetensors"));
        });
        assert!(text.contains("model.extra is missing"), "{text}");
        let text = change(&|map, _| {
            map.remove(norm);
        });
        assert!(text.contains("does not list"), "{text}");
        let text = change(&|_, dir| fs::remove_file(dir.join("model-1.safetensors")).unwrap());
        assert!(text.contains("model-1.safetensors"), "{text}");
        let text = change(&|_, dir| {
            fs::remove_file(dir.join("model-1.safetensors")).unwrap();
            std::os::unix::fs::symlink("model-1.safetensors", dir.join("model-1.safetensors")).unwrap();
        });
        assert!(text.contains("model-1.safetensors"), "a link to itself: {text}");
    }

    #[test]
    fn directories_that_are_no_model() {
        let dir = tempfile::tempdir().unwrap();
        let error = open_model(dir.path()).err().unwrap().to_string();
        assert!(error.contains("config.json is missing"), "{error}");
        ScratchModel::dense("qwen3", "BF16", true).write_config(dir.path());
        let error = open_model(dir.path()).err().unwrap().to_string();
        assert!(error.contains("model.safetensors"), "{error}");
    }

    #[test]
    fn a_truncated_file_names_a_tensor_or_the_header() {
        let model = ScratchModel::dense("qwen3", "BF16", true);
        let whole = model.container(|_| true);
        let dir = tempfile::tempdir().unwrap();
        model.write_config(dir.path());
        for len in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
            fs::write(dir.path().join("model.safetensors"), &whole[..len]).unwrap();
            let error = open_model(dir.path()).err().unwrap().to_string();
            assert!(error.contains("model.safetensors: "), "{len}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_index_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), name in ".{0,40}") {
            let _ = read_index(&bytes, Path::new(INDEX));
            let text = json!({"weight_map": {"t": name}}).to_string();
            if let Ok(map) = read_index(text.as_bytes(), Path::new(INDEX)) {
                prop_assert_eq!(Path::new(&map["t"]).components().count(), 1);
            }
        }
    }
}
