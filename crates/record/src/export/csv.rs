//! Comma-separated values: a row per process in the order of execution, those that do not count included (RFC 4180).
//! Not here: per-token times, which the record has.

use crate::bench::{BenchRecord, Metric, Outcome};
use crate::quantity::Unit;

/// Stands where there is no number: an empty cell could be read as 0.
const MISSING: &str = "unavailable";

pub(super) fn render(record: &BenchRecord) -> String {
    let mut header: Vec<String> =
        ["order", "block", "arm", "started", "process_id", "process_s", "counts", "why_not", "marks"]
            .map(str::to_owned)
            .into();
    header.extend(Metric::ALL.map(|metric| format!("{}_{}", metric.name(), suffix(metric))));
    header.push("output_hash".to_owned());
    let mut text = line(&header);
    for sample in &record.samples {
        let arm = record.arms.get(sample.arm as usize);
        let why_not = match (&sample.outcome, &sample.excluded, arm) {
            (Outcome::Lost(why), ..) => Some(why.as_str()),
            (_, Some(why), _) => Some(why.as_str()),
            (_, _, Some(arm)) if !arm.counts => Some(arm.reason.as_deref().unwrap_or("the arm does not count")),
            _ => None,
        };
        let mut cells = vec![
            sample.order.to_string(),
            sample.block.to_string(),
            arm.map_or(MISSING, |arm| &arm.name).to_owned(),
            sample.started.clone(),
            sample.process_id.known().map_or_else(|| MISSING.to_owned(), u32::to_string),
            sample.process_s.to_string(),
            if why_not.is_none() { "yes" } else { "no" }.to_owned(),
            why_not.unwrap_or("").to_owned(),
            sample.marks.join("; "),
        ];
        cells.extend(Metric::ALL.map(|metric| {
            let value = sample.measured().and_then(|measured| metric.of(&measured.clock).value());
            value.map_or_else(|| MISSING.to_owned(), |value| value.to_string())
        }));
        cells.push(sample.measured().map_or(MISSING, |measured| &measured.clock.output_hash).to_owned());
        text += &line(&cells);
    }
    text
}

fn suffix(metric: Metric) -> &'static str {
    match metric.unit() {
        Unit::TokensPerSecond => "tok_per_s",
        Unit::Seconds => "s",
        Unit::Microseconds => "us",
        _ => "bytes",
    }
}

fn line(cells: &[String]) -> String {
    let cells: Vec<String> = cells
        .iter()
        .map(|cell| {
            if cell.contains(['"', ',', '\n', '\r']) {
                format!("\"{}\"", cell.replace('"', "\"\""))
            } else {
                cell.clone()
            }
        })
        .collect();
    cells.join(",") + "\r\n"
}
