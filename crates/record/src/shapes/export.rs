//! A shape study in the forms that other tools read: llama.cpp's `test_backend_ops` table, and FlashInfer-Bench's data set.
//! Not here: the study (`shapes.rs`), writing files.

use crate::identity::{canonical_json, identity};
use crate::shapes::{ShapeRow, ShapeStudy, Tensor};
use serde_json::{Value, json};

/// Rows of the table `test_backend_ops`, as the array that `compare-llama-bench.py --tool test-backend-ops` reads.
///
/// That script compares two builds, so the first kernel stands as build `kernel-1` and the second as `kernel-2` (which kernel
/// that is, the extra field `kernel` says; the script ignores it). Times and rates are per call.
pub fn test_backend_ops(study: &ShapeStudy) -> Value {
    let mut table = Vec::new();
    for row in &study.rows {
        for (which, kernel) in study.kernels.iter().enumerate() {
            let per_call = row.median(which).map(|us| us / row.calls as f64);
            let per_second = |amount: u64| per_call.map_or(0.0, |us| amount as f64 / row.calls as f64 / us * 1e6);
            let missing = row.timings[which].missing().map_or("", |missing| missing.unavailable.as_str());
            let parameters = format!(
                "slot={},phase={},rows={},offset={},shape={}",
                row.slot,
                row.phase.name(),
                row.pass_rows,
                row.offset,
                row.shape
            );
            table.push(json!({
                "test_time": study.created,
                "build_commit": format!("kernel-{}", which + 1),
                "backend_name": "hourglass CPU",
                "op_name": study.operator,
                "op_params": parameters,
                "test_mode": "perf",
                "supported": i32::from(per_call.is_some()),
                "passed": i32::from(per_call.is_some()),
                "error_message": missing,
                "time_us": per_call.unwrap_or(0.0),
                "flops": per_second(row.flops),
                "bandwidth_gb_s": per_second(row.bytes) / 1e9,
                "memory_kb": row.bytes / row.calls / 1024,
                "n_runs": study.protocol.iterations * row.calls,
                "kernel": kernel.label,
            }));
        }
    }
    Value::Array(table)
}

/// One file of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashInferFile {
    /// Below the data set's folder.
    pub path: String,
    pub content: String,
}

/// Operators that have a FlashInfer definition here.
pub const FLASHINFER_OPERATORS: [&str; 2] = ["linear", "swiglu"];

/// The study as a FlashInfer-Bench data set: definitions, workloads, solutions and traces.
///
/// # Errors
/// An operator that has no definition here: a sentence that says why.
pub fn flashinfer_files(study: &ShapeStudy) -> Result<Vec<FlashInferFile>, String> {
    let mut files: Vec<FlashInferFile> = Vec::new();
    let mut add = |path: String, line: Option<&Value>, whole: Option<&Value>| {
        let text = match (line, whole) {
            (Some(line), _) => canonical_json(line) + "\n",
            (None, Some(whole)) => serde_json::to_string_pretty(whole).unwrap_or_default() + "\n",
            (None, None) => return,
        };
        match files.iter_mut().find(|file| file.path == path) {
            Some(file) if line.is_some() => file.content += &text,
            Some(_) => {}
            None => files.push(FlashInferFile { path, content: text }),
        }
    };
    for row in &study.rows {
        let Definition { op_type, name, value, axes } = definition(&study.operator, row)?;
        add(format!("definitions/{op_type}/{name}.json"), None, Some(&value));
        let random: serde_json::Map<String, Value> = value["inputs"]
            .as_object()
            .into_iter()
            .flat_map(|inputs| inputs.keys().map(|input| (input.clone(), json!({"type": "random"}))))
            .collect();
        let place = json!([name, row.slot, row.phase.name(), row.pass_rows, row.offset, study.workload_id]);
        let workload = json!({"axes": axes, "inputs": random, "uuid": uuid(&identity(&place))});
        let trace = |solution: Value, evaluation: Value| json!({"definition": name, "workload": workload, "solution": solution, "evaluation": evaluation});
        add(format!("workloads/{op_type}/{name}.jsonl"), Some(&trace(Value::Null, Value::Null)), None);
        for (which, kernel) in study.kernels.iter().enumerate() {
            let solution = format!("hourglass_{}", plain(&kernel.label));
            add(
                format!("solutions/hourglass/{op_type}/{name}/{solution}.json"),
                None,
                Some(&self::solution(&solution, &name, kernel, study)),
            );
            if let Some(evaluation) = evaluation(study, row, which) {
                let line = trace(Value::from(solution), evaluation);
                add(format!("traces/hourglass/{op_type}/{name}.jsonl"), Some(&line), None);
            }
        }
    }
    Ok(files)
}

struct Definition {
    op_type: &'static str,
    name: String,
    value: Value,
    axes: Value,
}

/// Weights stand as what they are worth (bfloat16): the exchange format has no packed ones, so the form is in the description.
fn definition(operator: &str, row: &ShapeRow) -> Result<Definition, String> {
    let float = |tensor: &Tensor| if tensor.format == "f32" { "float32" } else { "bfloat16" };
    let constant = |value: u64| json!({"type": "const", "value": value});
    let tensor =
        |shape: [&str; 2], dtype: &str, text: &str| json!({"shape": shape, "dtype": dtype, "description": text});
    match (operator, &row.inputs[..], &row.weights[..], &row.outputs[..]) {
        ("linear", [x], [w], [y]) => {
            let name = format!("gemm_n{}_k{}_{}", w.rows, w.cols, plain(&w.format));
            let value = json!({
                "name": name,
                "op_type": "gemm",
                "description": format!("C = A B^T; B is held as {}", w.format),
                "axes": {"M": {"type": "var"}, "N": constant(w.rows), "K": constant(w.cols)},
                "inputs": {
                    "A": tensor(["M", "K"], float(x), "rows of activations"),
                    "B": tensor(["N", "K"], "bfloat16", &format!("weights, held as {}", w.format)),
                },
                "outputs": {"C": tensor(["M", "N"], float(y), "sums in float32, rounded once")},
                "reference": "import torch\n\n\ndef run(A, B):\n    return (A.float() @ B.float().T).to(torch.bfloat16)\n",
            });
            Ok(Definition { op_type: "gemm", name, value, axes: json!({"M": x.rows}) })
        }
        ("swiglu", [gate, _], [], [y]) => {
            let name = format!("swiglu_n{}", gate.cols);
            let value = json!({
                "name": name,
                "op_type": "swiglu",
                "description": "silu(gate) * up",
                "axes": {"M": {"type": "var"}, "N": constant(gate.cols)},
                "inputs": {
                    "gate": tensor(["M", "N"], float(gate), "what is activated"),
                    "up": tensor(["M", "N"], float(gate), "what it multiplies"),
                },
                "outputs": {"product": tensor(["M", "N"], float(y), "rounded once")},
                "reference": "import torch\n\n\ndef run(gate, up):\n    product = torch.nn.functional.silu(gate.float()) \
                    * up.float()\n    return product.to(torch.bfloat16)\n",
            });
            Ok(Definition { op_type: "swiglu", name, value, axes: json!({"M": gate.rows}) })
        }
        _ => Err(format!(
            "operator '{operator}' ({}) has no FlashInfer definition here: those of one input and one weight ('linear') and \
             'swiglu' have; export test-backend-ops instead",
            row.shape
        )),
    }
}

fn solution(name: &str, definition: &str, kernel: &crate::KernelName, study: &ShapeStudy) -> Value {
    let cpu = study.conditions.host.cpu_model.known().map_or("CPU", String::as_str);
    let source = format!(
        "def run(*_inputs):\n    raise NotImplementedError(\"{} is compiled into hourglass: {}\")\n",
        kernel.label, kernel.source
    );
    json!({
        "name": name,
        "definition": definition,
        "author": "hourglass",
        "description": format!("kernel {} of operator {}; Python cannot call it", kernel.label, study.operator),
        "spec": {
            "language": "python",
            "target_hardware": [cpu],
            "entry_point": "main.py::run",
            "dependencies": [format!("hourglass {}", study.subject.version)],
            "destination_passing_style": false,
        },
        "sources": [{"path": "main.py", "content": source}],
    })
}

/// Latency per call. The exchange format wants errors with it, which were not measured here: they are its "NaN".
fn evaluation(study: &ShapeStudy, row: &ShapeRow, which: usize) -> Option<Value> {
    let ms = |kernel: usize| Some(row.median(kernel)? / row.calls as f64 / 1e3);
    let own = ms(which)?;
    // The other side of "speedup" is the first kernel; if that does not run here, the kernel itself.
    let reference = ms(0).unwrap_or(own);
    let cpu = study.conditions.host.cpu_model.known().map_or("CPU", String::as_str);
    Some(json!({
        "status": "PASSED",
        "environment": {"hardware": cpu, "libs": {"hourglass": study.subject.version}},
        "timestamp": study.created,
        "log": format!(
            "{} of {}; reference_latency_ms is kernel {}; errors were not measured at this shape",
            row.slot, study.subject.checkpoint, study.kernels[0].label
        ),
        "correctness": {"max_relative_error": "NaN", "max_absolute_error": "NaN"},
        "performance": {
            "latency_ms": own,
            "reference_latency_ms": reference,
            "speedup_factor": reference / own,
        },
    }))
}

/// Letters, digits and `_`.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// Thirty-two hexadecimal digits in the grouping of a UUID.
fn uuid(hash: &str) -> String {
    let part = |from: usize, to: usize| hash.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}
