//! The dearest lines of each place as tables of at most 100 columns.
//! Not here: source text (`annotate`).

use std::fmt::Write;

use record::capture::lines::{LineRow, LinesRecord, PlaceLines, Verification};
use record::capture::{CAUTION, Cost, Place};

use crate::figures::{percent, thousands};
use crate::prose::paragraph;

/// Rows per place; the files have all.
const ROWS: usize = 12;
/// Columns for a line's place in the source.
const NAME: usize = 50;

pub(crate) fn body(record: &LinesRecord, shown: &[&PlaceLines]) -> String {
    let mut text = String::new();
    let words = format!(
        "{} {} at S = {}, {}: {} samples in {} passes. 95 % intervals; lines of one rank cannot be told apart.",
        record.subject.checkpoint,
        record.workload.phase.name(),
        record.workload.context_tokens,
        record.workload.model,
        thousands(record.samples as f64),
        thousands(record.stretch.steps as f64)
    );
    text += &paragraph("", &words, "  ");
    text += &paragraph(
        "",
        "\"self, in repo\" and \"self\" each add up to the kernel: a sample counts at the innermost line of this \
         repository, or at the innermost line at all. \"inclusive\" counts what was called or inlined too and adds up to \
         nothing.",
        "  ",
    );
    for place in shown {
        self::place(&mut text, place);
    }
    let unverified = record.files.iter().filter_map(|file| match &file.verification {
        Verification::Verified => None,
        Verification::Unverified { why } => Some((file.file.as_str(), why.as_str())),
    });
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for (file, why) in unverified {
        match by_reason.iter_mut().find(|(known, _)| *known == why) {
            Some((_, files)) => files.push(file),
            None => by_reason.push((why, vec![file])),
        }
    }
    for (why, files) in by_reason {
        text += &paragraph("Unverified (?): ", &format!("{}: {why}.", files.join(", ")), "  ");
    }
    for used in record.executables.iter().filter(|used| used.samples > 0) {
        if let Some(missing) = used.lines.missing() {
            let words = format!("{} with {} samples: {}.", used.name, used.samples, missing.unavailable);
            text += &paragraph("No lines: ", &words, "  ");
        }
    }
    for check in record.checks.iter().filter(|check| !check.passed) {
        let found =
            format!("{}: expected {}, found {}; rely on nothing above.", check.name, check.expected, check.found);
        text += &paragraph("VOID: ", &found, "  ");
    }
    text += &paragraph("", CAUTION, "");
    text
}

fn place(text: &mut String, place: &PlaceLines) {
    let _ = writeln!(
        text,
        "\n{}: {} of all samples, {}\n{:>4}{:>22}{:>9}{:>11}  line",
        place.place,
        interval(&place.cost),
        thousands(place.cost.samples as f64),
        "rank",
        "self, in repo",
        "self",
        "inclusive"
    );
    // Waits and pauses are not code to change: their head is enough.
    let most = if matches!(place.place, Place::Kernel { .. }) { ROWS } else { 3 };
    let own = |row: &&LineRow| row.self_in_repository.samples > 0 || row.self_innermost.samples > 0;
    let all = place.rows.iter().filter(own).count();
    for row in place.rows.iter().filter(own).take(most) {
        let rank = row.rank.map(|rank| rank.to_string()).unwrap_or_default();
        let _ = writeln!(
            text,
            "{rank:>4}{:>22}{:>9}{:>11}  {}",
            if row.self_in_repository.samples == 0 { "-".to_owned() } else { interval(&row.self_in_repository) },
            percent(row.self_innermost.share.value),
            percent(row.inclusive_not_summable.share.value),
            location(row)
        );
    }
    if all > most {
        let _ = writeln!(text, "     ({} more are in the files)", all - most);
    }
    let share = |samples: u64| percent(samples as f64 / place.cost.samples.max(1) as f64);
    if place.line_zero_samples > 0 {
        let _ = writeln!(
            text,
            "     {} are at line 0: the compiler gave those instructions no line",
            share(place.line_zero_samples)
        );
    }
    if place.outside_repository_samples > 0 {
        let _ = writeln!(text, "     {} have no line of this repository", share(place.outside_repository_samples));
    }
}

fn location(row: &LineRow) -> String {
    let mark = if row.in_repository && !row.verified { "?" } else { "" };
    let at = format!("{}:{}{mark}", row.file, row.line);
    let length = at.chars().count();
    if length <= NAME { at } else { std::iter::once('…').chain(at.chars().skip(length - (NAME - 1))).collect() }
}

/// `61.2 % (58.1-64.2)`.
pub(super) fn interval(cost: &Cost) -> String {
    let share = cost.share;
    format!("{:.1} % ({:.1}-{:.1})", 100.0 * share.value, 100.0 * share.low, 100.0 * share.high)
}
