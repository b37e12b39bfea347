//! The table for a document: rates and peak of every arm, beside the control and the arms that give scale; then the verdicts.
//! Not here: the table on the terminal.

use crate::bench::{Arm, BenchRecord, Metric};
use crate::quantity::Unit;

/// Arms that get a column of their own where they ran: the ladder's foot, and another engine.
const SCALES: [&str; 2] = ["week1", "mlx"];

pub(super) fn render(record: &BenchRecord) -> String {
    let workload = &record.workload;
    let mut text = format!(
        "{}: {} tokens in, {} out, logits {}, {} fresh processes per arm, medians. Workload `{}`.\n\n",
        escape(&workload.model),
        workload.new_rows,
        workload.output_tokens,
        workload.logits.name(),
        record.protocol.repeats,
        workload.id().chars().take(12).collect::<String>()
    );
    if record.void {
        let failed = record.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str());
        text += &format!("**Void:** {}.\n\n", escape(&failed.collect::<Vec<_>>().join("; ")));
    }
    if let Some(reason) = record.coverage.reason() {
        text += &format!("**Incomplete:** {}.\n\n", escape(reason));
    }
    let scales: Vec<usize> = scales(record);
    let mut header = vec!["variant".to_owned()];
    for phase in ["prefill", "decode"] {
        header.push(format!("{phase} tok/s"));
        header.extend(scales.iter().map(|index| format!("vs {}", escape(&record.arms[*index].name))));
    }
    header.push("peak allocation".to_owned());
    text += &row(&header);
    text += &row(&header
        .iter()
        .enumerate()
        .map(|(i, _)| if i == 0 { "---" } else { "---:" }.to_owned())
        .collect::<Vec<_>>());
    for (index, arm) in record.arms.iter().enumerate() {
        let name = if arm.counts { escape(&arm.name) } else { format!("{} (does not count)", escape(&arm.name)) };
        let mut cells = vec![name];
        for metric in [Metric::Prefill, Metric::Decode] {
            cells.push(number(arm, metric));
            cells.extend(scales.iter().map(|scale| versus(record, index, *scale, metric)));
        }
        cells.push(number(arm, Metric::Peak));
        text += &row(&cells);
    }
    let notes: Vec<String> = record
        .arms
        .iter()
        .filter(|arm| !arm.counts)
        .map(|arm| {
            format!("{} does not count: {}", arm.name, arm.reason.as_deref().unwrap_or("no reason was recorded"))
        })
        .chain(
            record
                .comparisons
                .iter()
                .filter(|row| matches!(row.metric, Metric::Prefill | Metric::Decode | Metric::Request | Metric::Peak))
                .map(|row| row.sentence.clone()),
        )
        .collect();
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        text += &format!("- {}\n", escape(&note));
    }
    text
}

/// The control, then the arms that give scale.
fn scales(record: &BenchRecord) -> Vec<usize> {
    let named = SCALES.iter().filter_map(|name| record.arm_named(name));
    let mut scales: Vec<usize> = (0..record.arms.len().min(1)).chain(named.filter(|index| *index > 0)).collect();
    scales.dedup();
    scales
}

/// How an arm stands to one that gives scale: times for the ladder's foot, percent for others. To the control by the paired
/// estimate, which the verdict below is about; to the others by both medians.
fn versus(record: &BenchRecord, index: usize, scale_index: usize, metric: Metric) -> String {
    let (arm, scale) = (&record.arms[index], &record.arms[scale_index]);
    if index == scale_index || !arm.counts || !scale.counts {
        return "–".to_owned();
    }
    let ratio = if scale_index == 0 {
        let row = record.comparisons.iter().find(|row| row.arm == index as u64 && row.metric == metric);
        row.and_then(|row| row.ratio.value())
    } else {
        arm.median(metric).value().zip(scale.median(metric).value()).map(|(value, base)| value / base)
    };
    let Some(ratio) = ratio else {
        return "–".to_owned();
    };
    let percent = (ratio - 1.0) * 100.0;
    if !ratio.is_finite() {
        "–".to_owned()
    } else if percent.abs() < 0.05 {
        "matched".to_owned()
    } else if percent < 0.0 {
        format!("{:.1} % slower", -percent)
    } else if scale.name == "week1" || ratio >= 3.0 {
        format!("{ratio:.2}x")
    } else {
        format!("{percent:.1} % faster")
    }
}

fn number(arm: &Arm, metric: Metric) -> String {
    match arm.median(metric).value() {
        None => "unavailable".to_owned(),
        Some(bytes) if metric.unit() == Unit::Bytes => format!("{:.0} MiB", bytes / 1_048_576.0),
        Some(rate) if rate < 10.0 => format!("{rate:.2}"),
        Some(rate) => format!("{rate:.1}"),
    }
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Text that stays text inside a table.
fn escape(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if matches!(c, '|' | '`' | '*' | '<' | '_') {
                vec!['\\', c]
            } else if crate::is_obeyed(c) {
                vec![' ']
            } else {
                vec![c]
            }
        })
        .collect()
}
