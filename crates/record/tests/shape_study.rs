//! `shapes/1`: totals by arithmetic, what is missing, and the exports' required fields.

#![allow(clippy::unwrap_used, reason = "tests")]

use record::{
    Binary, Conditions, Coverage, Host, KernelName, Known, LogitsMode, Mechanisms, Phase, Protocol, Reading, Record,
    ShapeRow, ShapeStudy, Subject, Tensor, Timing, Unit, Workload, flashinfer_files, read, test_backend_ops,
};
use serde_json::Value;

fn tensor(rows: u64, cols: u64, format: &str) -> Tensor {
    Tensor { rows, cols, format: format.into() }
}

fn row(slot: &str, passes: u64, us: [Option<f64>; 2]) -> ShapeRow {
    let timing = |us: Option<f64>| match us {
        Some(us) => Known::Is(Timing::new(vec![us, us, us]).unwrap()),
        None => Known::unavailable("matvec/avx2 does not run here: takes at most 8 rows", "another kernel"),
    };
    ShapeRow {
        phase: Phase::Decode,
        slot: slot.into(),
        shape: "(1, 8) bf16, weight (16, 8) w4-g8 -> (1, 16) bf16".into(),
        pass_rows: 1,
        offset: 20,
        calls: 2,
        passes,
        inputs: vec![tensor(1, 8, "bf16")],
        weights: vec![tensor(16, 8, "w4-g8")],
        outputs: vec![tensor(1, 16, "bf16")],
        bytes: 4096,
        flops: 512,
        timings: us.map(timing),
    }
}

fn study(rows: Vec<ShapeRow>) -> ShapeStudy {
    let missing = || Known::unavailable("not here", "elsewhere");
    let reading = || Reading::unavailable("not here", "elsewhere");
    let mut study = ShapeStudy {
        schema: ShapeStudy::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: Workload {
            model: "synthetic:tiny@0".into(),
            weights_hash: "ab".repeat(32),
            phase: Phase::Request,
            context_tokens: 16,
            new_rows: 16,
            capacity: 27,
            output_tokens: 11,
            logits: LogitsMode::Last,
            sampling: "greedy".into(),
            seed: 0,
            prompt_rule: "uniform".into(),
            token_trace_hash: record::token_trace_hash(&[1]),
        },
        workload_id: String::new(),
        conditions: Conditions {
            binary: Binary { version: "0.1.0".into(), build_id: missing(), commit: missing(), dirty: Known::Is(false) },
            host: Host {
                device: "cpu".into(),
                cpu_model: missing(),
                processors: 2,
                memory_bytes: Known::Is(1 << 30),
                operating_system: missing(),
                kernel_release: missing(),
                huge_pages: missing(),
                driver: missing(),
            },
            threads: 2,
            pinned: false,
            features: Vec::new(),
            kernels: Vec::new(),
        },
        conditions_id: String::new(),
        subject: Subject {
            solution: "hourglass".into(),
            checkpoint: "selected".into(),
            mechanisms: Mechanisms { capacity_cache: true, register_cached_rmsnorm: true, tiled_prefill: true },
            engine: "hourglass".into(),
            version: "0.1.0".into(),
            weights_form: "BF16".into(),
            conversions: Vec::new(),
        },
        protocol: Protocol { warmup: 1, iterations: 3, process_id: 1 },
        source: "find/1".into(),
        operator: "linear".into(),
        kernels: ["matvec/avx2", "matvec/avx512-vnni"]
            .map(|label| KernelName { label: label.into(), source: "crates/ops/src/x.rs:1".into() }),
        rows,
        totals: [reading(), reading()],
        saved: reading(),
        recorded: Reading::measured(0.01, Unit::Seconds, 1),
        estimated_share: reading(),
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    study.close();
    study
}

fn close(found: Option<f64>, expected: f64) {
    assert!((found.unwrap() - expected).abs() < 1e-12, "{found:?}, expected {expected}");
}

#[test]
fn totals_are_medians_times_passes_of_the_rows_that_both_run() {
    let study = study(vec![
        row("q_proj", 10, [Some(40.0), Some(20.0)]),
        row("k_proj", 10, [Some(30.0), Some(25.0)]),
        row("v_proj", 10, [None, Some(1000.0)]),
    ]);
    close(study.totals[0].value(), 700e-6);
    close(study.totals[1].value(), 450e-6);
    close(study.saved.value(), 250e-6);
    close(study.estimated_share.value(), 0.025);
    let reason = study.coverage.reason().unwrap();
    assert!(reason.contains("at most 8 rows (decode v_proj)"), "{reason}");
    assert!(!study.void, "{:?}", study.checks);
    let text = serde_json::to_vec(&study).unwrap();
    assert_eq!(read::<ShapeStudy>("s", &text).unwrap(), study);
}

#[test]
fn nothing_that_both_run_is_no_total() {
    let study = study(vec![row("q_proj", 1, [None, Some(1.0)])]);
    assert!(study.totals[0].known().is_none() && study.estimated_share.known().is_none());
}

/// The columns that llama.cpp's scripts/compare-llama-bench.py declares for this table.
#[test]
fn the_table_of_test_backend_ops_has_its_columns() {
    let study = study(vec![row("q_proj", 10, [Some(40.0), Some(20.0)]), row("k_proj", 1, [None, Some(8.0)])]);
    let table = test_backend_ops(&study);
    let rows = table.as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        for (column, is_text) in [
            ("test_time", true),
            ("build_commit", true),
            ("backend_name", true),
            ("op_name", true),
            ("op_params", true),
            ("test_mode", true),
            ("supported", false),
            ("passed", false),
            ("error_message", true),
            ("time_us", false),
            ("flops", false),
            ("bandwidth_gb_s", false),
            ("memory_kb", false),
            ("n_runs", false),
        ] {
            assert_eq!(row[column].is_string(), is_text, "{column}: {row}");
            assert!(row[column].is_string() || row[column].is_number(), "{column}: {row}");
        }
    }
    // 2 calls in 40 µs: 20 µs each, for 256 flops and 2048 bytes.
    assert_eq!((rows[0]["time_us"].as_f64(), rows[0]["flops"].as_f64()), (Some(20.0), Some(12_800_000.0)));
    close(rows[0]["bandwidth_gb_s"].as_f64(), 2048.0 / 20e-6 / 1e9);
    assert_eq!((&rows[0]["op_params"], &rows[1]["build_commit"]), (&rows[1]["op_params"], &Value::from("kernel-2")));
    assert_eq!((rows[2]["supported"].as_i64(), rows[3]["supported"].as_i64()), (Some(0), Some(1)));
    assert!(rows[2]["error_message"].as_str().unwrap().contains("8 rows"));
}

#[test]
fn a_flashinfer_data_set_refers_to_itself_consistently() {
    let study = study(vec![row("q_proj", 10, [Some(40.0), Some(20.0)]), row("k_proj", 1, [None, Some(8.0)])]);
    let files = flashinfer_files(&study).unwrap();
    let of = |folder: &str| -> Vec<&record::FlashInferFile> {
        files.iter().filter(|file| file.path.starts_with(folder)).collect()
    };
    let (definitions, solutions) = (of("definitions/"), of("solutions/"));
    assert_eq!((definitions.len(), solutions.len()), (1, 2), "two places of one shape, two kernels");
    let definition: Value = serde_json::from_str(&definitions[0].content).unwrap();
    let axes = definition["axes"].as_object().unwrap();
    for side in ["inputs", "outputs"] {
        for (name, tensor) in definition[side].as_object().unwrap() {
            for axis in tensor["shape"].as_array().unwrap() {
                assert!(axes.contains_key(axis.as_str().unwrap()), "{name}: {axis}");
            }
        }
    }
    assert!(definition["reference"].as_str().unwrap().contains("def run(A, B):"));
    let names: Vec<Value> =
        solutions.iter().map(|file| serde_json::from_str::<Value>(&file.content).unwrap()["name"].clone()).collect();
    let lines = |folder: &str| -> Vec<Value> {
        of(folder)
            .iter()
            .flat_map(|file| file.content.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let (workloads, traces) = (lines("workloads/"), lines("traces/"));
    assert_eq!((workloads.len(), traces.len()), (2, 3), "a kernel that did not run has no trace");
    assert_ne!(workloads[0]["workload"]["uuid"], workloads[1]["workload"]["uuid"]);
    for trace in traces {
        assert_eq!(trace["definition"], definition["name"]);
        assert!(names.contains(&trace["solution"]), "{trace}");
        assert!(workloads.iter().any(|workload| workload["workload"] == trace["workload"]), "{trace}");
        assert!(trace["evaluation"]["performance"]["latency_ms"].as_f64().unwrap() > 0.0);
        assert_eq!(trace["evaluation"]["correctness"]["max_absolute_error"], "NaN", "not measured is not zero");
    }
}

#[test]
fn an_operator_without_a_definition_says_so() {
    let mut study = study(vec![row("attention", 1, [Some(1.0), Some(1.0)])]);
    study.operator = "softmax".into();
    let why = flashinfer_files(&study).unwrap_err();
    assert!(why.contains("softmax") && why.contains("test-backend-ops"), "{why}");
}
