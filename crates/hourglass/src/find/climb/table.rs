//! The route table as a person reads it; at most 100 columns.
//! Not here: what a row says.

use std::fmt::Write;
use std::path::Path;

use record::{ClimbRecord, ClimbRow, Known, Reading};

use crate::figures::show;
use crate::prose::paragraph;

fn milliseconds(reading: &Reading) -> String {
    show(reading, |seconds| format!("{:.1}", seconds * 1e3))
}

/// A finished step in one line.
pub(super) fn line(row: &ClimbRow) -> String {
    paragraph("", &format!("{} -> {}: {}", row.start_from, row.checkpoint, row.sentence), "  ").trim_end().to_owned()
}

/// The route so far.
pub(crate) fn text(record: &ClimbRecord, directory: &Path) -> String {
    let mut text = format!(
        "\n{:<22}{:<13}{:>10}{:>10}{:>10}{:>10}  {}\n",
        "checkpoint", "hypothesis", "at most", "by bytes", "gained", "request", "decision"
    );
    text += "  (milliseconds per request: predicted from its parent's profile, observed, what remains)\n";
    for row in &record.rows {
        let decision = row.decision.known().map_or("n/a", String::as_str);
        let _ = writeln!(
            text,
            "{:<22}{:<13}{:>10}{:>10}{:>10}{:>10}  {decision}",
            row.checkpoint,
            row.finding.name(),
            milliseconds(&row.predicted.at_most),
            milliseconds(&row.predicted.by_bytes),
            milliseconds(&row.gained),
            milliseconds(&row.after),
        );
    }
    text.push('\n');
    for row in &record.rows {
        let profile = match (&row.dominates, &row.hits_the_first) {
            (Known::Is(first), Known::Is(true)) => format!("profile's first: {first}, which it changes"),
            (Known::Is(first), _) => format!("profile's first: {first}, which it leaves alone"),
            (Known::Unavailable(missing), _) => format!("no profile: {}", missing.unavailable),
        };
        text += &paragraph(&format!("{}: ", row.checkpoint), &format!("{}; {profile}.", row.change), "  ");
        text += &paragraph("  Hypothesis: ", &format!("{}: {}", row.hypothesis, row.finding.name()), "    ");
        if let Known::Unavailable(missing) = &row.decision {
            text += &paragraph("  Not decided: ", &missing.unavailable, "    ");
        }
    }
    if let Some(reason) = record.coverage.reason() {
        text += &paragraph("Incomplete: ", reason, "  ");
    }
    let _ = writeln!(text, "\nRecords of every step: {}", directory.display());
    text
}
