//! Bencher Metric Format: `{"arm/metric": {"measure": {value, lower_value, upper_value}}}`.
//! Not here: sending it.
//!
//! The value is the median of the arm's samples, the bounds are their smallest and largest: of n independent samples they hold
//! the true median with a chance of 1 - 2^(1-n), 94 % of 5. Bencher's latencies are in nanoseconds.

use super::{counting, pretty};
use crate::bench::{BenchRecord, Metric};
use crate::quantity::Unit;
use serde_json::{Map, Value, json};

pub(super) fn render(record: &BenchRecord) -> String {
    let mut benchmarks = Map::new();
    for (index, arm, _) in counting(record) {
        for metric in Metric::ALL {
            let Ok(samples) = crate::Samples::new(&record.values(index, metric)) else {
                continue;
            };
            let (measure, scale) = match metric.unit() {
                Unit::TokensPerSecond => ("throughput", 1.0),
                Unit::Seconds => ("latency", 1e9),
                Unit::Microseconds => ("latency", 1e3),
                _ => ("memory", 1.0),
            };
            let value = json!({
                "value": samples.median() * scale,
                "lower_value": samples.min() * scale,
                "upper_value": samples.max() * scale,
            });
            benchmarks.insert(format!("{}/{}", arm.name, metric.name()), json!({ measure: value }));
        }
    }
    pretty(&Value::Object(benchmarks))
}
