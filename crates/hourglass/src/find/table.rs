//! What `find` prints for a person: verdict, numbers, why it is not surer, what to run next; at most 100 columns.
//! Not here: any number that the record does not hold.

use std::fmt::Write;
use std::path::Path;

use record::find::{Candidate, Experiment, Ranking, RequestSummary, StepOutcome};
use record::{FindRecord, Known, Phase, Reading};

use crate::figures::{mebibytes, show};
use crate::prose::paragraph;

/// Candidates that are shown; the record has all.
const SHOWN: usize = 8;
const DEFAULT: &str = "No --model was given, so this is the embedded default: random weights of exactly this model's \
                       shapes. Speed does not depend on weight values.";

/// The first lines of a verb that has loaded a model: what is measured.
pub(crate) fn head(description: &str, is_default: bool, load_seconds: f64) -> String {
    let mut text = opening(description, is_default);
    text.truncate(text.trim_end().len());
    let _ = writeln!(text, "\nReady in {load_seconds:.1} s.\n");
    text
}

/// What is looked at, before anything has run.
pub(super) fn opening(description: &str, is_default: bool) -> String {
    let mut text = paragraph("", description, "  ");
    if is_default {
        text += &paragraph("", DEFAULT, "");
    }
    text.push('\n');
    text
}

/// Everything found.
pub(crate) fn text(record: &FindRecord, directory: &Path) -> String {
    let mut text = String::new();
    match &record.ranking {
        Known::Is(ranking) => {
            text += &paragraph("", &ranking.verdict, "  ");
            text.push('\n');
            numbers(&mut text, record, ranking);
        }
        Known::Unavailable(missing) => {
            text += &paragraph("No ranking: ", &format!("{}; {}", missing.unavailable, missing.how_to_get), "  ");
        }
    }
    doubts(&mut text, record);
    if let Known::Is(ranking) = &record.ranking {
        next(&mut text, &ranking.next, directory);
    }
    for check in record.checks.iter().filter(|check| !check.passed) {
        let words =
            format!("{}: expected {}, found {}; rely on nothing above.", check.name, check.expected, check.found);
        text += &paragraph("VOID: ", &words, "  ");
    }
    let _ = writeln!(text, "\nRecords of every view: {}", directory.display());
    text
}

fn milliseconds(reading: &Reading) -> String {
    show(reading, |seconds| format!("{:.1}", seconds * 1e3))
}

fn numbers(text: &mut String, record: &FindRecord, ranking: &Ranking) {
    let workload = &record.workload;
    let _ = writeln!(text, "Request of {} + {} tokens, milliseconds", workload.context_tokens, workload.output_tokens);
    if let Known::Is(request) = &record.request {
        clocked(text, request);
    }
    for wiring in &record.wiring {
        let _ = writeln!(
            text,
            "  {:<10}{} of {} layers dispatched as planned",
            wiring.phase.name(),
            wiring.layers_as_planned,
            wiring.layers
        );
    }
    let parts = format!(
        "of it {} are floor, {} could be gained, {} are in no row",
        milliseconds(&ranking.floor),
        milliseconds(&ranking.recoverable),
        milliseconds(&ranking.unexplained)
    );
    *text += &paragraph("  ", &parts, "    ");
    let _ = writeln!(
        text,
        "\n{:>4}  {:<37}{:>9}{:>9}{:>9}{:>9}{:>18}",
        "rank", "could be gained at most, ms", "now", "waits", "floor", "gain", "gain lies in"
    );
    for candidate in ranking.candidates.iter().take(SHOWN) {
        row(text, candidate);
    }
    if let Some(more) = ranking.candidates.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let _ = writeln!(text, "      and {more} more in the record");
    }
    text.push('\n');
    for candidate in ranking.candidates.iter().take(3) {
        *text += &paragraph(&format!("  {}: ", name(candidate)), &candidate.mechanism, "    ");
    }
    memory(text, ranking);
}

fn clocked(text: &mut String, request: &RequestSummary) {
    let spread = milliseconds(&request.spread);
    let noise = match &request.detectable_percent {
        Known::Is(percent) if *percent < 100.0 => format!("; differences below {percent:.1} % do not show today"),
        Known::Is(_) => "; so restless that even a doubling would not show".to_owned(),
        Known::Unavailable(_) => String::new(),
    };
    let _ = writeln!(
        text,
        "  {:<10}{:>10}  ± {spread}, {} samples{noise}",
        "clocked",
        milliseconds(&request.whole_request),
        request.samples_s.len()
    );
    for (name, reading) in [("prefill", &request.prefill), ("decode", &request.decode), ("set-up", &request.set_up)] {
        let _ = writeln!(text, "  {name:<10}{:>10}", milliseconds(reading));
    }
}

fn name(candidate: &Candidate) -> String {
    match candidate.phase {
        Phase::Request => candidate.name.clone(),
        phase => format!("{} {}", phase.name(), candidate.name),
    }
}

fn row(text: &mut String, candidate: &Candidate) {
    let interval = match &candidate.interval {
        Known::Is(interval) => format!("{:.1} to {:.1}", interval.low * 1e3, interval.high * 1e3),
        Known::Unavailable(_) => "n/a".to_owned(),
    };
    let beside = if candidate.in_request { "" } else { " (beside the clock)" };
    let name: String = format!("{}{beside}", name(candidate)).chars().take(36).collect();
    let _ = writeln!(
        text,
        "{:>4}  {name:<37}{:>9}{:>9}{:>9}{:>9}{interval:>18}",
        candidate.rank,
        milliseconds(&candidate.measured),
        milliseconds(&candidate.waits),
        milliseconds(&candidate.floor),
        milliseconds(&candidate.recoverable),
    );
}

fn memory(text: &mut String, ranking: &Ranking) {
    if ranking.memory.is_empty() {
        return;
    }
    let rows: Vec<String> =
        ranking.memory.iter().map(|row| format!("{} {}", row.name, show(&row.bytes, mebibytes))).collect();
    *text += &paragraph("Memory at its peak: ", &rows.join(", "), "  ");
}

fn doubts(text: &mut String, record: &FindRecord) {
    let mut doubts: Vec<String> = record.ranking.known().map(|ranking| ranking.doubts.clone()).unwrap_or_default();
    for step in &record.steps {
        match &step.outcome {
            StepOutcome::Failed(why) => doubts.push(format!("{} failed: {why}.", step.name)),
            StepOutcome::Interrupted => doubts.push(format!("{} was interrupted.", step.name)),
            StepOutcome::LeftOut(why) => doubts.push(format!("{} was left out: {why}.", step.name)),
            StepOutcome::Done => {}
        }
    }
    if doubts.is_empty() {
        return;
    }
    text.push_str("\nWhy this is not more certain\n");
    for doubt in doubts {
        *text += &paragraph("  - ", &doubt, "    ");
    }
}

fn next(text: &mut String, experiments: &[Experiment], directory: &Path) {
    // The folder's own records go by their names in it.
    let placed = |word: &String| {
        let own = directory.join(word);
        if word.ends_with(".json") && own.is_file() { own.to_string_lossy().into_owned() } else { word.clone() }
    };
    if experiments.is_empty() {
        return;
    }
    text.push_str("\nNext\n");
    for experiment in experiments.iter().take(3) {
        let words: Vec<String> = experiment.command.iter().map(placed).collect();
        *text += &paragraph("  ", &command_line(&words), "      ");
        *text += &paragraph("    ", &experiment.says, "    ");
    }
}

/// Words as a shell takes them.
fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%".contains(c);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}
