//! Rows as `llama-bench -o json` writes them, for llama.cpp's `compare-llama-bench.py`: pp (prefill) and tg (decode).
//! Not here: its other output forms. As there, neither includes making the prompt, tokenising or detokenising; ours includes
//! the greedy choice.
//!
//! The script pairs rows of two builds whose key columns are all equal, so every key column is present. Columns that only
//! describe llama.cpp's own switches hold what the run amounts to: no GPU layers, one batch of the prompt's length. Threads
//! that an engine did not state are -1. Optional columns that are not known are left out.

use super::{counting, pretty};
use crate::bench::{Arm, BenchRecord, Measured, Setting};
use crate::samples::Samples;
use serde_json::{Value, json};

/// What stands for a build of llama.cpp.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Build {
    /// The commit; the arm is a key column (`backends`).
    Commit,
    /// The arm's name.
    Arm,
}

pub(super) fn render(record: &BenchRecord, build: Build) -> String {
    // The script cuts all builds to the shortest one's length; names of equal length stay apart.
    let longest = record.arms.iter().map(|arm| arm.name.chars().count()).max().unwrap_or(0);
    let mut rows = Vec::new();
    for (_, arm, samples) in counting(record) {
        let (commit, backends) = match build {
            Build::Commit => (commit(record), format!("hourglass bench: {}", arm.name)),
            Build::Arm => (format!("{:_<longest$}", arm.name), "hourglass bench".to_owned()),
        };
        let started = &samples[0].0.started;
        let seconds = |of: fn(&Measured) -> &crate::Reading| -> Vec<f64> {
            samples.iter().filter_map(|(_, measured)| of(measured).value()).collect()
        };
        let (prompt, generated) = (record.workload.new_rows, record.workload.output_tokens.saturating_sub(1));
        for (n_prompt, n_gen, n_depth, seconds) in [
            (prompt, 0, 0, seconds(|measured| &measured.clock.prefill)),
            (0, generated, prompt, seconds(|measured| &measured.clock.decode)),
        ] {
            if let Some(times) = times(&seconds, n_prompt + n_gen) {
                let mut row = columns(record, arm, &commit, &backends, started);
                row.extend([
                    ("n_prompt".to_owned(), json!(n_prompt)),
                    ("n_gen".to_owned(), json!(n_gen)),
                    ("n_depth".to_owned(), json!(n_depth)),
                ]);
                row.extend(times);
                rows.push(Value::Object(row));
            }
        }
    }
    pretty(&Value::Array(rows))
}

/// Eight digits, as the script's builds usually have.
fn commit(record: &BenchRecord) -> String {
    record.binary.commit.known().map_or_else(|| "unknown_".to_owned(), |commit| commit.chars().take(8).collect())
}

fn columns(
    record: &BenchRecord,
    arm: &Arm,
    commit: &str,
    backends: &str,
    started: &str,
) -> serde_json::Map<String, Value> {
    let cpu = record.host.cpu_model.known().map_or("unknown", String::as_str);
    let prompt = record.workload.new_rows;
    let columns = json!({
        "build_commit": commit,
        "cpu_info": cpu,
        "gpu_info": "",
        "backends": backends,
        "model_filename": record.workload.model,
        "model_type": record.workload.model,
        "n_batch": prompt,
        "n_ubatch": prompt,
        "n_threads": threads(arm),
        "cpu_mask": "0x0",
        "cpu_strict": false,
        "poll": 0,
        "type_k": "bf16",
        "type_v": "bf16",
        "n_gpu_layers": 0,
        "n_cpu_moe": 0,
        "split_mode": "none",
        "main_gpu": 0,
        "no_kv_offload": false,
        "flash_attn": false,
        "tensor_split": "0.00",
        "tensor_buft_overrides": "none",
        // Older scripts pair by the first, newer ones by the other three; each drops what it does not know.
        "use_mmap": false,
        "load_mode": "none",
        "fit_target": 0,
        "fit_min_ctx": 0,
        "embeddings": false,
        "no_op_offload": 0,
        "test_time": started,
    });
    match columns {
        Value::Object(columns) => columns,
        _ => serde_json::Map::new(),
    }
}

fn threads(arm: &Arm) -> i64 {
    if let Some(conditions) = arm.conditions.known() {
        return i64::try_from(conditions.threads).unwrap_or(i64::MAX);
    }
    match arm.engine.known().and_then(|engine| engine.settings.get("threads")) {
        Some(Setting::Whole(threads)) => *threads,
        _ => -1,
    }
}

/// The time columns of a test that takes `seconds` for `tokens`; none without samples or tokens.
fn times(seconds: &[f64], tokens: u64) -> Option<Vec<(String, Value)>> {
    let rates: Vec<f64> = seconds.iter().filter(|s| **s > 0.0).map(|s| tokens as f64 / s).collect();
    if rates.is_empty() || rates.len() < seconds.len() || tokens == 0 {
        return None;
    }
    let nanoseconds: Vec<f64> = seconds.iter().map(|s| (s * 1e9).round()).collect();
    let whole = |value: f64| value.round() as u64;
    let ((avg_ns, stddev_ns), (avg_ts, stddev_ts)) = (moments(&nanoseconds)?, moments(&rates)?);
    Some(vec![
        ("avg_ns".to_owned(), json!(whole(avg_ns))),
        ("stddev_ns".to_owned(), json!(whole(stddev_ns))),
        ("avg_ts".to_owned(), json!(avg_ts)),
        ("stddev_ts".to_owned(), json!(stddev_ts)),
        ("samples_ns".to_owned(), json!(nanoseconds.iter().map(|ns| whole(*ns)).collect::<Vec<_>>())),
        ("samples_ts".to_owned(), json!(rates)),
    ])
}

/// Mean and standard deviation (of a sample; 0 for a single one, as llama-bench has it).
fn moments(values: &[f64]) -> Option<(f64, f64)> {
    let samples = Samples::new(values).ok()?;
    let mean = samples.sum() / samples.count() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = if values.len() > 1 { (squares / (values.len() - 1) as f64).sqrt() } else { 0.0 };
    Some((mean, deviation))
}
