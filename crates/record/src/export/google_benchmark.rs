//! Google Benchmark's JSON, one entry per process and clock, for its `compare.py` and that script's U test.
//! Not here: aggregates; the script computes them.
//!
//! `compare.py filters FILE selected/ fast/` compares two arms of one record, `compare.py benchmarks OLD NEW` two records.
//! `cpu_time` is the workers' time on a processor divided by their number where it was measured, else `real_time` again,
//! because the script cannot do without.

use super::{counting, pretty};
use crate::Reading;
use crate::bench::{BenchRecord, Measured};
use serde_json::{Value, json};

type Clock = (&'static str, fn(&Measured) -> &Reading);

const CLOCKS: [Clock; 4] = [
    ("prefill", |measured| &measured.clock.prefill),
    ("decode", |measured| &measured.clock.decode),
    ("ttft", |measured| &measured.clock.time_to_first_token),
    ("request", |measured| &measured.clock.whole_request),
];

pub(super) fn render(record: &BenchRecord) -> String {
    let mut benchmarks = Vec::new();
    let mut family = 0;
    for (_, arm, samples) in counting(record) {
        for (clock, of) in CLOCKS {
            let times: Vec<_> =
                samples.iter().filter_map(|(_, measured)| Some((of(measured).value()?, *measured))).collect();
            let name = format!("{}/{clock}/{}", arm.name, size(record, clock));
            for (index, (seconds, measured)) in times.iter().enumerate() {
                // Of the whole request; its parts have none of their own.
                let share = measured.clock.processor_share.value().filter(|_| clock == "request").unwrap_or(1.0);
                benchmarks.push(json!({
                    "name": name,
                    "family_index": family,
                    "per_family_instance_index": 0,
                    "run_name": name,
                    "run_type": "iteration",
                    "repetitions": times.len(),
                    "repetition_index": index,
                    "threads": 1,
                    "iterations": 1,
                    "real_time": seconds * 1e3,
                    "cpu_time": seconds * 1e3 * share,
                    "time_unit": "ms",
                }));
            }
            family += usize::from(!times.is_empty());
        }
    }
    let context = json!({
        "date": record.created,
        "executable": "hourglass bench",
        "num_cpus": record.host.processors,
        "library_version": record.binary.version,
        "library_build_type": "release",
        "json_schema_version": 1,
        "workload_id": record.workload_id,
        "caches": Value::Array(Vec::new()),
    });
    pretty(&json!({ "context": context, "benchmarks": benchmarks }))
}

fn size(record: &BenchRecord, clock: &str) -> u64 {
    match clock {
        "prefill" | "ttft" => record.workload.new_rows,
        _ => record.workload.output_tokens,
    }
}
