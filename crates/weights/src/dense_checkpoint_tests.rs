//! Tests of `dense_checkpoint`: what is written opens as the same model with the same values, once, whole or not at all.
//! Not here: what other engines make of it.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::scratch_model::ScratchModel;
use std::sync::atomic::AtomicBool;

fn synthetic(text: &str) -> ModelFiles {
    open(&ModelSource::parse(text).unwrap(), &OpenOptions::default()).unwrap()
}

fn directory(path: &Path) -> ModelFiles {
    open(&ModelSource::Directory(path.into()), &OpenOptions::default()).unwrap()
}

fn values(files: &ModelFiles, name: &str) -> Vec<f32> {
    let tensor = files.tensor(name).unwrap();
    let mut all = vec![0.0; tensor.rows() * tensor.cols()];
    for (row, values) in all.chunks_exact_mut(tensor.cols()).enumerate() {
        tensor.read_f32(row, values);
    }
    all
}

#[test]
fn synthetic_weights_are_written_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (synthetic("synthetic:tiny@5"), dir.path().join("dense"));
    export_dense(&source, &out, &OpenOptions::default()).unwrap();
    let made = directory(&out);
    assert_eq!(made.config(), source.config());
    assert_eq!(made.describe_encoding(), "BF16");
    assert_eq!(made.tensor_names().collect::<Vec<_>>(), source.tensor_names().collect::<Vec<_>>());
    for name in source.tensor_names() {
        assert_eq!(values(&made, name), values(&source, name), "{name}");
    }
}

#[test]
fn every_architecture_comes_back_with_values_rounded_to_bf16() {
    for (architecture, dtype, tied) in [("qwen3", "F32", false), ("llama", "F16", true), ("qwen2", "F32", true)] {
        let dir = tempfile::tempdir().unwrap();
        let (from, out) = (dir.path().join("from"), dir.path().join("out"));
        fs::create_dir(&from).unwrap();
        ScratchModel::dense(architecture, dtype, tied).write(&from);
        let source = directory(&from);
        export_dense(&source, &out, &OpenOptions::default()).unwrap();
        let made = directory(&out);
        assert_eq!(made.config(), source.config(), "{architecture}");
        for name in source.tensor_names() {
            let rounded: Vec<f32> = values(&source, name).iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
            assert_eq!(values(&made, name), rounded, "{architecture} {name}");
        }
    }
}

#[test]
fn the_cache_is_written_once_and_a_dense_directory_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("deep/cache");
    let written = AtomicBool::new(false);
    let progress = |_: u64, _: Option<u64>, _: &str| written.store(true, Ordering::Relaxed);
    let options = OpenOptions { progress: Some(&progress), ..Default::default() };
    let source = synthetic("synthetic:tiny");
    let first = dense_in_cache(&source, &cache, &options).unwrap();
    assert!(written.swap(false, Ordering::Relaxed));
    assert!(first.rounding.as_deref().unwrap().contains("W4"), "{first:?}");
    assert_eq!(dense_in_cache(&source, &cache, &options).unwrap(), first);
    assert!(!written.load(Ordering::Relaxed), "the second call wrote again");
    let other = dense_in_cache(&synthetic("synthetic:tiny@1"), &cache, &options).unwrap();
    assert_ne!(other.model, first.model);

    written.store(false, Ordering::Relaxed);
    let given = dense_in_cache(&directory(&first.model), &cache, &options).unwrap();
    assert_eq!((given.model.as_path(), given.rounding), (fs::canonicalize(&first.model).unwrap().as_path(), None));
    assert_ne!(given.conversions, first.conversions);
    assert!(!written.load(Ordering::Relaxed), "a dense directory was copied");
}

#[test]
fn a_damaged_copy_and_what_killed_runs_left_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let source = synthetic("synthetic:tiny");
    let options = OpenOptions::default();
    let made = dense_in_cache(&source, dir.path(), &options).unwrap().model;
    let weights = made.join("model.safetensors");
    let size = fs::metadata(&weights).unwrap().len();
    File::options().write(true).open(&weights).unwrap().set_len(size - 2).unwrap();
    let leftover = made.with_file_name(".dense.partial-1");
    fs::create_dir(&leftover).unwrap();
    fs::write(leftover.join("model.safetensors"), "half").unwrap();
    assert_eq!(dense_in_cache(&source, dir.path(), &options).unwrap().model, made);
    assert_eq!(fs::metadata(&weights).unwrap().len(), size);
    assert!(!leftover.exists());
}

#[test]
fn callers_at_the_same_time_all_get_a_whole_copy() {
    let dir = tempfile::tempdir().unwrap();
    let source = synthetic("synthetic:tiny");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let made = dense_in_cache(&source, dir.path(), &OpenOptions::default()).unwrap();
                assert!(is_whole(&made.model, &source));
            });
        }
    });
}

#[test]
fn cancelled_or_refused_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("dense");
    let cancelled = AtomicBool::new(true);
    let options = OpenOptions { cancelled: Some(&cancelled), ..Default::default() };
    let source = synthetic("synthetic:tiny");
    assert!(matches!(export_dense(&source, &out, &options), Err(Error::Cancelled { .. })));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    fs::create_dir(&out).unwrap();
    assert!(matches!(export_dense(&source, &out, &OpenOptions::default()), Err(Error::Exists { .. })));
}

#[test]
fn a_value_beyond_bf16_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let mut model = ScratchModel::dense("qwen3", "F32", true);
    model.tensors.get_mut("model.norm.weight").unwrap().2[..4].copy_from_slice(&3.4e38f32.to_le_bytes());
    model.write(&from);
    let error = export_dense(&directory(&from), &dir.path().join("out"), &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("model.norm.weight: row 0, column 0"), "{error}");
    assert!(!dir.path().join("out").exists());
}
