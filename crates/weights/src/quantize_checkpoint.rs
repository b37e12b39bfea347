//! A dense checkpoint rewritten as a 4-bit one in MLX's layout, row by row.
//! Not here: the rule itself (`quantize`).

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::Ordering;

use half::bf16;
use serde_json::{Map, Value, json};

use crate::files::TextFiles;
use crate::partial_directory::PartialDirectory;
use crate::quantize::{GROUPS, quantize_row};
use crate::small_file::{TEXT_LIMIT, check_regular, read_small};
use crate::{DenseType, Encoding, Error, ModelFiles, OpenOptions, Result, Tensor};

/// Files that belong to a model's text side and are copied as they are.
const COPIED: [&str; 8] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// Numbers of this size are in no trained model.
const DAMAGED: &str = "the weights are damaged, get the file again, or use another model";

/// Writes `out/` (config.json with its `quantization` block, model.safetensors, tokenizer files): every matrix in groups
/// of `group` columns, every vector in BF16. Codes, scales and biases are those of mlx; F16 and F32 checkpoints are
/// rounded to BF16 first, as mlx's converter does when asked for bfloat16, and only if `convert` allows it.
///
/// Of `options`, `progress` (bytes of the new weights) and `cancelled` are used. Nothing is left behind on an error: the
/// directory appears under its name only when it is whole.
/// Errors: `out` exists; `files` is not a dense checkpoint directory; a matrix whose columns are not groups of `group`;
/// F16 or F32 tensors without `convert`; a value, scale or bias that is not finite (also by rounding to BF16); no directory
/// to put `out` in; a full disk.
pub fn quantize_checkpoint(
    files: &ModelFiles,
    out: &Path,
    group: usize,
    convert: bool,
    options: &OpenOptions,
) -> Result<()> {
    if !GROUPS.contains(&group) {
        return Err(Error::Group { group });
    }
    if fs::symlink_metadata(out).is_ok() {
        return Err(Error::Exists { path: out.into() });
    }
    let plan = plan(files, group, convert)?;
    if !matches!(files.text(), TextFiles::Directory { .. }) {
        return Err(Error::NotAModel { path: files.place().into(), missing: "config.json".into() });
    }
    let partial = PartialDirectory::create(out)?;
    write_config(files.place(), partial.path(), group)?;
    for name in COPIED {
        let from = files.place().join(name);
        if let Ok(data) = fs::metadata(&from) {
            check_regular(&from, &data)?;
            let to = partial.path().join(name);
            fs::copy(&from, &to).map_err(|e| Error::io(&to, "write", e))?;
        }
    }
    write_weights(&plan, &partial.path().join("model.safetensors"), group, options)?;
    partial.finish(out)
}

fn not_quantizable(tensor: &str, why: String) -> Error {
    Error::NotQuantizable { tensor: tensor.into(), why }
}

/// The matrices, then the vectors: in this order every part starts at a multiple of its element size.
fn plan(files: &ModelFiles, group: usize, convert: bool) -> Result<Vec<Tensor>> {
    let (mut matrices, mut vectors) = (Vec::new(), Vec::new());
    for name in files.tensor_names() {
        let tensor = files.tensor(name)?;
        let Encoding::Dense(kind) = tensor.encoding() else {
            let why = format!(
                "it is already packed: the model is {}; run that as it is, or give the BF16 checkpoint it was made from",
                files.describe_encoding()
            );
            return Err(not_quantizable(name, why));
        };
        if kind != DenseType::BF16 && !convert {
            let why = format!("it is {kind:?}, and rounding it to BF16 changes values; allow that with --convert");
            return Err(not_quantizable(name, why));
        }
        if tensor.rows() == 1 {
            vectors.push(tensor);
        } else if tensor.cols().is_multiple_of(group) {
            matrices.push(tensor);
        } else {
            let fitting = GROUPS.iter().rev().find(|g| tensor.cols().is_multiple_of(**g));
            let advice = fitting.map_or("no group size divides them".into(), |g| format!("use --group {g}"));
            return Err(not_quantizable(
                name,
                format!("{} columns are not groups of {group}: {advice}", tensor.cols()),
            ));
        }
    }
    matrices.extend(vectors);
    Ok(matrices)
}

fn write_config(from: &Path, to: &Path, group: usize) -> Result<()> {
    let source = from.join("config.json");
    let text = read_small(&source, "configuration", TEXT_LIMIT)?;
    let mut config = crate::config_json::object(&text, &source)?;
    let block = json!({"group_size": group, "bits": 4, "mode": "affine"});
    config.insert("quantization".into(), block.clone());
    config.insert("quantization_config".into(), block);
    for field in ["torch_dtype", "dtype"] {
        if let Some(value) = config.get_mut(field) {
            *value = json!("bfloat16");
        }
    }
    let path = to.join("config.json");
    let mut text = serde_json::to_string_pretty(&config).expect("a JSON object can be written");
    text.push('\n');
    fs::write(&path, text).map_err(|e| Error::io(&path, "write", e))
}

/// The header of the new container, padded so that the data starts at a multiple of 8; and the size of the data.
fn header(plan: &[Tensor], group: usize) -> (Vec<u8>, u64) {
    let mut map = Map::new();
    map.insert("__metadata__".into(), json!({"format": "mlx"}));
    let mut at = 0u64;
    let mut add = |name: String, dtype: &str, shape: Vec<usize>, bytes: u64| {
        let count = shape.iter().product::<usize>() as u64;
        map.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + count * bytes]}));
        at += count * bytes;
    };
    for tensor in plan {
        let (name, rows, cols) = (tensor.name(), tensor.rows(), tensor.cols());
        if rows == 1 {
            add(name.into(), "BF16", vec![cols], 2);
        } else {
            let module = name.trim_end_matches(".weight");
            add(name.into(), "U32", vec![rows, cols / 8], 4);
            add(format!("{module}.scales"), "BF16", vec![rows, cols / group], 2);
            add(format!("{module}.biases"), "BF16", vec![rows, cols / group], 2);
        }
    }
    let mut text = Value::Object(map).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    (bytes, at)
}

fn write_weights(plan: &[Tensor], path: &Path, group: usize, options: &OpenOptions) -> Result<()> {
    let failed = |e| Error::io(path, "write", e);
    let mut out = BufWriter::with_capacity(1 << 20, File::create_new(path).map_err(failed)?);
    let (head, data) = header(plan, group);
    out.write_all(&head).map_err(failed)?;
    let total = head.len() as u64 + data;
    let mut done = head.len() as u64;
    for tensor in plan {
        if options.cancelled.is_some_and(|c| c.load(Ordering::Relaxed)) {
            return Err(Error::Cancelled { doing: format!("writing {}", path.display()) });
        }
        done += write_tensor(tensor, group, &mut out, path)?;
        tensor.release_pages();
        if let Some(progress) = options.progress {
            progress(done, Some(total), "model.safetensors");
        }
    }
    let file = out.into_inner().map_err(|e| Error::io(path, "write", e.into_error()))?;
    file.sync_all().map_err(failed)
}

/// Writes one tensor and returns its bytes. Codes are streamed; scales and biases follow the last row, so they are held.
fn write_tensor(tensor: &Tensor, group: usize, out: &mut impl Write, path: &Path) -> Result<u64> {
    let failed = |e| Error::io(path, "write", e);
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let groups = cols / group;
    let mut values = vec![0.0; cols];
    let (mut codes, mut scales, mut biases) = (vec![0; cols], vec![0.0; groups], vec![0.0; groups]);
    let (mut all_scales, mut all_biases) = (Vec::new(), Vec::new());
    let mut packed = vec![0; cols / 2];
    let mut written = 0;
    for row in 0..rows {
        if let Some(col) = tensor.non_finite_at(row) {
            return Err(Error::NotFinite { tensor: tensor.name().into(), row, col });
        }
        tensor.read_f32(row, &mut values);
        for value in &mut values {
            *value = bf16::from_f32(*value).to_f32();
        }
        if let Some(col) = values.iter().position(|value| !value.is_finite()) {
            let why = format!("the value in row {row}, column {col} is too large for BF16; {DAMAGED}");
            return Err(not_quantizable(tensor.name(), why));
        }
        if rows == 1 {
            let bytes = bf16_bytes(&values);
            out.write_all(&bytes).map_err(failed)?;
            return Ok(bytes.len() as u64);
        }
        quantize_row(&values, group, &mut codes, &mut scales, &mut biases);
        let overflows = |(scale, bias): (&f32, &f32)| !(scale.is_finite() && bias.is_finite());
        if let Some(at) = scales.iter().zip(&biases).position(overflows) {
            let (first, last) = (at * group, at * group + group - 1);
            let why = format!(
                "row {row}, columns {first} to {last}: the values lie too far apart for a BF16 scale and bias; {DAMAGED}"
            );
            return Err(not_quantizable(tensor.name(), why));
        }
        for (byte, pair) in packed.iter_mut().zip(codes.as_chunks::<2>().0) {
            *byte = pair[0] | pair[1] << 4;
        }
        out.write_all(&packed).map_err(failed)?;
        all_scales.extend(bf16_bytes(&scales));
        all_biases.extend(bf16_bytes(&biases));
        written += packed.len() as u64;
    }
    out.write_all(&all_scales).map_err(failed)?;
    out.write_all(&all_biases).map_err(failed)?;
    Ok(written + (all_scales.len() + all_biases.len()) as u64)
}

fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::scratch_model::ScratchModel;
    use crate::{ModelSource, open};
    use std::sync::atomic::AtomicBool;

    fn open_dir(path: &Path) -> Result<ModelFiles> {
        open(&ModelSource::Directory(path.into()), &OpenOptions::default())
    }

    #[test]
    fn what_is_written_reads_back_as_the_rule_made_it() {
        for (dtype, group, tied) in [("BF16", 64, true), ("F32", 32, false), ("F16", 128, true)] {
            let dir = tempfile::tempdir().unwrap();
            let (dense, out) = (dir.path().join("dense"), dir.path().join("w4"));
            fs::create_dir(&dense).unwrap();
            ScratchModel::dense("qwen3", dtype, tied).write(&dense);
            fs::write(dense.join("tokenizer.json"), "{}").unwrap();
            let source = open_dir(&dense).unwrap();
            let seen = std::sync::Mutex::new((0, None));
            let progress = |done: u64, total: Option<u64>, _: &str| *seen.lock().unwrap() = (done, total);
            let options = OpenOptions { progress: Some(&progress), ..Default::default() };
            if dtype != "BF16" {
                let refused = quantize_checkpoint(&source, &out, group, false, &options).unwrap_err().to_string();
                assert!(refused.contains("--convert") && refused.contains(&format!("it is {dtype}")), "{refused}");
                assert!(
                    refused.starts_with("tensor lm_head.weight:") || refused.starts_with("tensor model."),
                    "{refused}"
                );
            }
            quantize_checkpoint(&source, &out, group, dtype != "BF16", &options).unwrap();

            let made = open_dir(&out).unwrap();
            assert_eq!(made.describe_encoding(), format!("W4 g{group} (MLX)"));
            assert_eq!(made.config(), source.config());
            assert!(out.join("tokenizer.json").is_file());
            let size = fs::metadata(out.join("model.safetensors")).unwrap().len();
            assert_eq!(*seen.lock().unwrap(), (size, Some(size)));
            for name in source.tensor_names() {
                let (dense, packed) = (source.tensor(name).unwrap(), made.tensor(name).unwrap());
                let (cols, groups) = (dense.cols(), dense.cols() / group);
                let mut values = vec![0.0; cols];
                let (mut codes, mut scales, mut biases) = (vec![0; cols], vec![0.0; groups], vec![0.0; groups]);
                let (mut codes_in, mut scales_in, mut biases_in) = (codes.clone(), scales.clone(), biases.clone());
                for row in 0..dense.rows() {
                    dense.read_f32(row, &mut values);
                    values.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32());
                    if dense.rows() == 1 {
                        let mut own = vec![0.0; cols];
                        packed.read_f32(0, &mut own);
                        assert_eq!(own, values, "{name}");
                    } else {
                        quantize_row(&values, group, &mut codes, &mut scales, &mut biases);
                        packed.read_codes(row, &mut codes_in, &mut scales_in, &mut biases_in);
                        assert_eq!((&codes, &scales, &biases), (&codes_in, &scales_in, &biases_in), "{name} {row}");
                    }
                }
            }
            // Nothing else appeared beside the two directories.
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
            let again = quantize_checkpoint(&made, &dir.path().join("twice"), group, true, &options).unwrap_err();
            let words = format!("already packed: the model is W4 g{group} (MLX); run that as it is");
            assert!(again.to_string().contains(&words), "{again}");
        }
    }

    #[test]
    fn failures_leave_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let dense = dir.path().join("dense");
        fs::create_dir(&dense).unwrap();
        let mut model = ScratchModel::dense("llama", "BF16", true);
        model.write(&dense);
        let source = open_dir(&dense).unwrap();
        let out = dir.path().join("out");
        let run = |source: &ModelFiles, group: usize, options: &OpenOptions| {
            quantize_checkpoint(source, &out, group, false, options).unwrap_err().to_string()
        };
        let quiet = OpenOptions::default();
        assert_eq!(run(&source, 33, &quiet), "--group 33: expected 32, 64 or 128");
        let deep = dir.path().join("absent").join("out");
        let text = quantize_checkpoint(&source, &deep, 64, false, &quiet).unwrap_err().to_string();
        assert!(text.starts_with(&deep.display().to_string()) && text.contains("mkdir"), "{text}");
        assert!(!text.contains("partial"), "{text}");
        let stop = AtomicBool::new(true);
        let cancelled = OpenOptions { cancelled: Some(&stop), ..Default::default() };
        assert!(run(&source, 64, &cancelled).contains("cancelled"));
        fs::create_dir(&out).unwrap();
        assert!(run(&source, 64, &quiet).contains("already exists"));
        fs::remove_dir(&out).unwrap();

        // A value that is not a number, in the middle of a matrix.
        let name = "model.layers.1.mlp.up_proj.weight";
        model.tensors.get_mut(name).unwrap().2[2 * (128 * 5 + 9) + 1] = 0x7f;
        model.tensors.get_mut(name).unwrap().2[2 * (128 * 5 + 9)] = 0xc0;
        model.write(&dense);
        let text = run(&open_dir(&dense).unwrap(), 64, &quiet);
        assert!(text.contains(name) && text.contains("row 5, column 9"), "{text}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the source is left");
    }

    #[test]
    fn what_overflows_by_quantizing_is_refused_with_its_place() {
        let name = "model.layers.1.mlp.up_proj.weight";
        // Finite in itself: the two ends of BF16 in one group; and an F32 that only BF16 cannot hold.
        let ends = [half::bf16::MAX.to_f32(), half::bf16::MIN.to_f32()];
        for (dtype, tensor, values, at, place) in [
            ("BF16", name, &ends[..], 128 * 5 + 64, "row 5, columns 64 to 127"),
            ("F32", name, &[f32::MAX], 128 * 5 + 9, "row 5, column 9"),
            ("F32", "model.norm.weight", &[f32::MIN], 7, "row 0, column 7"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (dense, out) = (dir.path().join("dense"), dir.path().join("out"));
            fs::create_dir(&dense).unwrap();
            let mut model = ScratchModel::dense("llama", dtype, true);
            let bytes = crate::scratch_model::encode(dtype, values);
            let start = at * bytes.len() / values.len();
            model.tensors.get_mut(tensor).unwrap().2[start..start + bytes.len()].copy_from_slice(&bytes);
            model.write(&dense);
            let source = open_dir(&dense).unwrap();
            let error = quantize_checkpoint(&source, &out, 64, true, &OpenOptions::default()).unwrap_err().to_string();
            assert!(error.contains(tensor) && error.contains(place), "{error}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the source is left");
        }
    }
}
