//! The exports against what their readers need, and against arithmetic by hand.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bench_fixture;

use bench_fixture::{OUTPUT, PROMPT, Takes, arm, finish, run};
use record::bench::{ArmKind, BenchRecord, Metric};
use record::export::{ExportError, Format};
use serde_json::Value;

/// `week1`, `selected` and `mlx`, four processes each: 0.25, 0.05 and 0.055 s for the prompt, and one process lost.
fn record() -> BenchRecord {
    let arms = vec![arm("week1", ArmKind::Checkpoint), arm("selected", ArmKind::Checkpoint), arm("mlx", ArmKind::Peer)];
    let mut record = run(arms, 4, |order, _, arm| {
        let factor = [1.0, 0.2, 0.22][arm] * (1.0 + 0.001 * (order % 3) as f64);
        (order != 7).then(|| Takes::times(factor))
    });
    finish(&mut record);
    assert!(!record.void, "{:?}", record.checks);
    record
}

fn json(format: Format, record: &BenchRecord) -> Value {
    serde_json::from_str(&format.render(record).unwrap()).unwrap()
}

/// The columns by which `compare-llama-bench.py` pairs rows, and at the end those that it needs besides. Scripts of 2025 pair by
/// `use_mmap`, those of 2026 (in llama-cpp-python 0.3.36) by `load_mode`, `n_cpu_moe`, `fit_target` and `fit_min_ctx`.
const LLAMA_BENCH_NEEDS: [&str; 32] = [
    "cpu_info",
    "gpu_info",
    "backends",
    "n_gpu_layers",
    "tensor_buft_overrides",
    "model_filename",
    "model_type",
    "n_batch",
    "n_ubatch",
    "embeddings",
    "cpu_mask",
    "cpu_strict",
    "poll",
    "n_threads",
    "type_k",
    "type_v",
    "use_mmap",
    "load_mode",
    "n_cpu_moe",
    "fit_target",
    "fit_min_ctx",
    "no_kv_offload",
    "split_mode",
    "main_gpu",
    "tensor_split",
    "flash_attn",
    "n_prompt",
    "n_gen",
    "n_depth",
    "build_commit",
    "test_time",
    "avg_ts",
];

#[test]
fn llama_bench_rows_have_every_key_and_the_clocks_numbers() {
    let record = record();
    for format in [Format::LlamaBench, Format::LlamaBenchArms] {
        let rows = json(format, &record);
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 6, "prefill and decode of three arms");
        for row in rows {
            for key in LLAMA_BENCH_NEEDS {
                let value = row.get(key).unwrap_or_else(|| panic!("{key} is missing"));
                assert!(!value.is_null() && !value.is_array() && !value.is_object(), "{key} is no column: {value}");
            }
            let tokens = row["n_prompt"].as_f64().unwrap() + row["n_gen"].as_f64().unwrap();
            let (ns, ts) = (row["samples_ns"].as_array().unwrap(), row["samples_ts"].as_array().unwrap());
            assert!(ns.len() >= 3 && ns.len() == ts.len());
            for (ns, ts) in ns.iter().zip(ts) {
                let again = tokens * 1e9 / ns.as_f64().unwrap();
                assert!((ts.as_f64().unwrap() / again - 1.0).abs() < 1e-6);
            }
            let mean = ts.iter().map(|ts| ts.as_f64().unwrap()).sum::<f64>() / ts.len() as f64;
            assert!((row["avg_ts"].as_f64().unwrap() / mean - 1.0).abs() < 1e-12);
        }
        let tests: Vec<_> = rows[..2]
            .iter()
            .map(|row| ["n_prompt", "n_gen", "n_depth"].map(|key| row[key].as_u64().unwrap()))
            .collect();
        assert_eq!(tests, [[PROMPT, 0, 0], [0, OUTPUT - 1, PROMPT]]);
    }
}

/// The script pairs rows whose keys are equal: by commit no two arms may be paired, by arm all are.
#[test]
fn llama_bench_builds_are_commits_or_arms() {
    let record = record();
    let keys = |row: &Value| LLAMA_BENCH_NEEDS[..26].iter().map(|key| row[*key].to_string()).collect::<Vec<_>>();
    let by_commit = json(Format::LlamaBench, &record);
    assert!(by_commit.as_array().unwrap().iter().all(|row| row["build_commit"] == "01234567"));
    assert_ne!(keys(&by_commit[0]), keys(&by_commit[2]));
    let by_arm = json(Format::LlamaBenchArms, &record);
    let builds: Vec<&str> =
        by_arm.as_array().unwrap().iter().map(|row| row["build_commit"].as_str().unwrap()).collect();
    // Of one length: the script cuts longer ones to the shortest.
    assert_eq!(builds, ["week1___", "week1___", "selected", "selected", "mlx_____", "mlx_____"]);
    assert_eq!(keys(&by_arm[0]), keys(&by_arm[2]));
}

#[test]
fn google_benchmark_has_an_entry_per_process_and_clock() {
    let text = json(Format::GoogleBenchmark, &record());
    let rows = text["benchmarks"].as_array().unwrap();
    // Eleven processes, four clocks.
    assert_eq!(rows.len(), 44);
    for row in rows {
        for key in ["name", "run_name", "run_type", "time_unit"] {
            assert!(row[key].is_string(), "{key}");
        }
        for key in ["repetitions", "repetition_index", "iterations", "real_time", "cpu_time", "threads"] {
            assert!(row[key].is_number(), "{key}");
        }
    }
    let first = rows.iter().find(|row| row["name"] == "selected/prefill/128").unwrap();
    assert!((first["real_time"].as_f64().unwrap() / 50.0 - 1.0).abs() < 0.01, "milliseconds");
    assert!(text["context"]["date"].is_string() && text["context"]["num_cpus"].is_number());
}

#[test]
fn bmf_has_medians_between_their_bounds() {
    let record = record();
    let text = json(Format::Bmf, &record);
    let benchmarks = text.as_object().unwrap();
    assert_eq!(benchmarks.len(), 3 * 10, "peak_rss is missing and stays so");
    for (name, measures) in benchmarks {
        let (_, measure) = measures.as_object().unwrap().iter().next().unwrap();
        let of = |key: &str| measure[key].as_f64().unwrap();
        assert!(of("lower_value") <= of("value") && of("value") <= of("upper_value"), "{name}");
    }
    let ttft = text["selected/ttft"]["latency"]["value"].as_f64().unwrap();
    assert!((ttft / (record.arms[1].median(Metric::Ttft).value().unwrap() * 1e9) - 1.0).abs() < 1e-9, "nanoseconds");
    assert!(text["mlx/decode"]["throughput"].is_object() && text["mlx/peak"]["memory"].is_object());
}

#[test]
fn csv_has_a_row_per_process_and_no_empty_number() {
    let mut record = record();
    record.samples[2].marks = vec!["load, \"high\"".into(), "steal".into()];
    let text = Format::Csv.render(&record).unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert_eq!(lines.len(), 1 + 12 + 1);
    let header: Vec<&str> = lines[0].split(',').collect();
    let column = |name: &str| header.iter().position(|column| *column == name).unwrap();
    let cells: Vec<&str> = lines[1].split(',').collect();
    assert_eq!(cells.len(), header.len());
    assert_eq!((cells[column("arm")], cells[column("counts")]), ("week1", "yes"));
    assert_eq!(cells[column("prefill_tok_per_s")].parse::<f64>().unwrap(), PROMPT as f64 / 0.25);
    assert_eq!(cells[column("peak_rss_bytes")], "unavailable");
    assert!(lines[3].contains("\"load, \"\"high\"\"; steal\""), "{}", lines[3]);
    let lost: Vec<&str> = lines[8].split(',').collect();
    assert_eq!((lost[column("counts")], lost[column("why_not")]), ("no", "ended by a test"));
    assert_eq!(lost[column("decode_tok_per_s")], "unavailable");
}

#[test]
fn markdown_has_the_chapters_columns_and_the_verdicts() {
    let mut record = record();
    let text = Format::Markdown.render(&record).unwrap();
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(
        table[0],
        "| variant | prefill tok/s | vs week1 | vs mlx | decode tok/s | vs week1 | vs mlx | peak allocation |"
    );
    assert!(table.iter().all(|line| line.matches('|').count() == 9));
    let cells: Vec<&str> = table[3].split('|').map(str::trim).collect();
    assert_eq!((cells[1], cells[3], cells[6], cells[8]), ("selected", "5.00x", "5.00x", "572 MiB"));
    assert!(cells[4].ends_with("% faster"), "{}", cells[4]);
    let cells: Vec<&str> = table[4].split('|').map(str::trim).collect();
    // The paired estimate, which the verdict is about; the ratio of the medians would be 4.55.
    assert_eq!((cells[1], cells[3], cells[4]), ("mlx", "4.54x", "–"));
    assert!(text.contains("- decode: selected is faster than week1: "), "{text}");
    // What does not count is shown and has no comparison.
    record.arms[2].counts = false;
    record.arms[2].reason = Some("its tokens differ | badly".into());
    finish(&mut record);
    let text = Format::Markdown.render(&record).unwrap();
    assert!(text.contains("mlx (does not count)") && text.contains("its tokens differ \\| badly"), "{text}");
    assert!(!text.contains("decode: mlx"));
}

#[test]
fn formats_are_found_by_name_and_need_samples() {
    for format in Format::ALL {
        assert_eq!(Format::parse(format.name()), Ok(format));
    }
    let message = Format::parse("xml").unwrap_err().to_string();
    assert!(message.contains("\"xml\"") && message.contains("llama-bench, "), "{message}");
    let lost = {
        let arms = vec![arm("week1", ArmKind::Checkpoint), arm("selected", ArmKind::Checkpoint)];
        let mut record = run(arms, 2, |_, _, _| None);
        finish(&mut record);
        record
    };
    for format in Format::ALL {
        match format.render(&lost) {
            Ok(text) => assert!(matches!(format, Format::Csv | Format::Markdown) && text.ends_with('\n')),
            Err(error) => assert_eq!(error, ExportError::Nothing { format: format.name() }),
        }
    }
}
