//! Source text with heat beside it, read from the checkout while it is shown and kept nowhere.
//! Not here: files whose hash is not the compiled one's: they are shown as numbers without text, and why.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use record::capture::Place;
use record::capture::lines::{LineRow, LinesRecord, PlaceLines, Verification};

use crate::prose::{COLUMNS, paragraph};

/// Lines around a line with samples.
const AROUND: u32 = 2;
/// Files per place, dearest first.
const FILES: usize = 3;
/// Lines of a file that are worth showing with their surroundings.
const LINES: usize = 24;
const HEAT: usize = 8;

/// The kernels among `shown`, each with its dearest files.
pub(crate) fn body(record: &LinesRecord, shown: &[&PlaceLines], sources: &Path) -> String {
    let mut text = String::new();
    for place in shown.iter().filter(|place| matches!(place.place, Place::Kernel { .. })) {
        let mut files: BTreeMap<&str, Vec<&LineRow>> = BTreeMap::new();
        for row in place.rows.iter().filter(|row| row.in_repository && own(row) > 0) {
            files.entry(&row.file).or_default().push(row);
        }
        let mut files: Vec<(&str, Vec<&LineRow>)> = files.into_iter().collect();
        let samples = |rows: &[&LineRow]| rows.iter().map(|row| row.self_in_repository.samples).sum::<u64>();
        files.sort_by_key(|(_, rows)| std::cmp::Reverse(samples(rows)));
        text.push('\n');
        text += &paragraph("", &format!("{}, annotated: heat and shares of its samples", place.place), "  ");
        for (file, rows) in files.into_iter().take(FILES) {
            let of_file = record.files.iter().find(|known| known.file == file);
            match of_file.map(|known| &known.verification) {
                Some(Verification::Verified) => match std::fs::read_to_string(sources.join(file)) {
                    Ok(source) => annotated(&mut text, file, &source, &rows),
                    Err(error) => numbers(&mut text, file, &rows, &format!("cannot be read any more: {error}")),
                },
                Some(Verification::Unverified { why }) => numbers(&mut text, file, &rows, why),
                None => numbers(&mut text, file, &rows, "it was not verified"),
            }
        }
    }
    text
}

fn own(row: &LineRow) -> u64 {
    row.self_in_repository.samples.max(row.self_innermost.samples)
}

fn head(text: &mut String, file: &str) {
    let _ = writeln!(text, "{file}\n{:>HEAT$}{:>14}{:>8}  line", "", "self, in repo", "self");
}

fn annotated(text: &mut String, file: &str, source: &str, rows: &[&LineRow]) {
    head(text, file);
    let lines: Vec<&str> = source.lines().collect();
    let mut dear: Vec<&&LineRow> = rows.iter().filter(|row| row.line > 0).collect();
    dear.sort_by_key(|row| std::cmp::Reverse(own(row)));
    dear.truncate(LINES);
    let wanted = |line: u32| dear.iter().any(|row| row.line.abs_diff(line) <= AROUND);
    // Deep code is moved to the left, or little of it would fit.
    let shown = (1..).zip(&lines).filter(|(line, content)| wanted(*line) && !content.trim().is_empty());
    let indent = shown.map(|(_, content)| content.len() - content.trim_start().len()).min().unwrap_or(0);
    let mut gap = false;
    for (line, content) in (1..).zip(&lines) {
        if !wanted(line) {
            gap = true;
            continue;
        }
        if std::mem::take(&mut gap) {
            let _ = writeln!(text, "{:>HEAT$}{:>14}{:>8}  ...", "", "", "");
        }
        let row = rows.iter().find(|row| row.line == line).copied();
        let (heat, repository, innermost) = figures(row);
        let lead = format!("{heat:>HEAT$}{repository:>14}{innermost:>8}  {line:>5}  ");
        let plain: String = content.chars().skip(indent).map(|c| if record::is_obeyed(c) { ' ' } else { c }).collect();
        let room = COLUMNS - lead.chars().count();
        let shown: String = plain.trim_end().chars().take(room).collect();
        let _ = writeln!(text, "{}", format!("{lead}{shown}").trim_end());
    }
    zero(text, rows);
}

fn numbers(text: &mut String, file: &str, rows: &[&LineRow], why: &str) {
    *text += &paragraph(&format!("{file}: "), &format!("numbers without text: {why}"), "  ");
    head(text, "");
    let mut by_line: Vec<&&LineRow> = rows.iter().filter(|row| row.line > 0).collect();
    by_line.sort_by_key(|row| row.line);
    for row in by_line {
        let (heat, repository, innermost) = figures(Some(row));
        let _ = writeln!(text, "{heat:>HEAT$}{repository:>14}{innermost:>8}  {:>5}", row.line);
    }
    zero(text, rows);
}

fn zero(text: &mut String, rows: &[&LineRow]) {
    for row in rows.iter().filter(|row| row.line == 0) {
        let (heat, repository, innermost) = figures(Some(row));
        let _ = writeln!(text, "{heat:>HEAT$}{repository:>14}{innermost:>8}      0  (no line of its own)");
    }
}

/// A bar, and both self columns; nothing where there is nothing.
fn figures(row: Option<&LineRow>) -> (String, String, String) {
    let percent = |share: f64| if share > 0.0 { format!("{:.1} %", 100.0 * share) } else { String::new() };
    let Some(row) = row else { return Default::default() };
    let (repository, innermost) = (row.self_in_repository.share.value, row.self_innermost.share.value);
    let eighths = (repository.max(innermost) * (8 * (HEAT - 1)) as f64).ceil() as usize;
    let mut heat = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        heat.extend(['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get(eighths % 8 - 1));
    }
    (heat, percent(repository), percent(innermost))
}
