//! What `compare` prints for a person: at most 100 columns, the outcome first. Numbers come from the record alone.
//! Not here: the record's JSON.

use std::fmt::Write;

use record::bench::{Metric, Verdict};
use record::compare::{CaptureView, Delta, DeltaMethod, DifferenceKind, ReplayView};
use record::{ComparisonRecord, Known, Reading, Unit};

use crate::figures::{mebibytes, percent, show, thousands};
use crate::prose::paragraph;

/// Everything, in reading order.
pub(crate) fn text(record: &ComparisonRecord) -> String {
    let mut text = String::new();
    outcome(&mut text, record);
    workload(&mut text, record);
    request(&mut text, record);
    for view in record.replays.known().into_iter().flatten() {
        replay(&mut text, view);
    }
    around(&mut text, record);
    conditions(&mut text, record);
    missing(&mut text, record);
    for gate in &record.gates {
        text += &paragraph("Gate: ", &gate.sentence, "  ");
    }
    text
}

fn outcome(text: &mut String, record: &ComparisonRecord) {
    let outcome = &record.outcome;
    *text += &paragraph("", &sentence_case(&outcome.sentence), "  ");
    for because in &outcome.because {
        *text += &paragraph("- ", because, "  ");
    }
    *text += &paragraph("Next: ", &outcome.next, "  ");
    text.push('\n');
}

/// With a capital and a full stop.
pub(crate) fn sentence_case(sentence: &str) -> String {
    let mut characters = sentence.chars();
    let first = characters.next().map_or_else(String::new, |first| first.to_uppercase().collect());
    format!("{first}{}.", characters.as_str().trim_end_matches('.'))
}

fn workload(text: &mut String, record: &ComparisonRecord) {
    let workload = &record.workload;
    let line = format!(
        "{} against {}, on {}: {} prompt tokens, {} generated, logits {}.",
        record.after.name,
        record.before.name,
        workload.model,
        workload.context_tokens,
        workload.output_tokens,
        workload.logits.name()
    );
    *text += &paragraph("", &line, "  ");
    text.push('\n');
}

const HEAD: [&str; 5] = ["before", "after", "change", "95 % interval", "verdict"];

fn head(text: &mut String, title: &str) {
    let [before, after, change, interval, verdict] = HEAD;
    let _ = writeln!(text, "{title:<38} {before:>11} {after:>11} {change:>9} {interval:>18} {verdict}");
}

fn line(text: &mut String, name: &str, delta: &Delta, form: impl Fn(f64) -> String) {
    let name: String = name.chars().take(38).collect();
    let change = show(&delta.ratio, signed);
    let interval = match &delta.interval {
        Known::Is(ends) => format!("{} to {}", signed(ends.low), signed(ends.high)),
        Known::Unavailable(_) => "n/a".to_owned(),
    };
    let verdict = match (&delta.verdict, delta.method) {
        (Known::Is(Verdict::Better), _) => "better",
        (Known::Is(Verdict::Worse), _) => "worse",
        (Known::Is(Verdict::NoDifference { .. }), _) => "same",
        (Known::Is(Verdict::Inconclusive { .. }), _) => "open",
        (_, DeltaMethod::Single) => "",
        _ => "n/a",
    };
    let (before, after) = (show(&delta.before, &form), show(&delta.after, &form));
    let row = format!("{name:<38} {before:>11} {after:>11} {change:>9} {interval:>18} {verdict}");
    let _ = writeln!(text, "{}", row.trim_end());
}

/// A ratio as a change: `+12.3 %`, or `2.50 x` from twice on.
fn signed(ratio: f64) -> String {
    if ratio >= 2.0 { format!("{ratio:.2} x") } else { format!("{:+.1} %", 100.0 * (ratio - 1.0)) }
}

fn request(text: &mut String, record: &ComparisonRecord) {
    let Known::Is(view) = &record.request else { return };
    let metrics = [
        (Metric::Request, "request, s"),
        (Metric::Ttft, "time to first token, s"),
        (Metric::Prefill, "prefill, tok/s"),
        (Metric::Decode, "decode, tok/s"),
        (Metric::TokenP95, "between tokens, p95, us"),
        (Metric::Peak, "memory: peak allocation"),
        (Metric::PeakRss, "memory: peak resident"),
    ];
    head(text, "Request clock");
    for (metric, name) in metrics {
        if let Some(row) = view.row(metric) {
            line(text, name, row, |value| match metric.unit() {
                Unit::Seconds => format!("{value:.4}"),
                Unit::Bytes => mebibytes(value),
                _ => thousands(value),
            });
        }
    }
    *text += &paragraph("", &sentence_case(&view.design), "  ");
    let share = |reading: &Reading| show(reading, percent);
    let phases: Vec<String> = view
        .phases
        .iter()
        .map(|phase| {
            format!("{} {} before, {} after", phase.phase, share(&phase.share_before), share(&phase.share_after))
        })
        .collect();
    let tokens = match &view.tokens_equal {
        Known::Is(true) => "the tokens are equal".to_owned(),
        Known::Is(false) => "the tokens differ".to_owned(),
        Known::Unavailable(missing) => format!("whether the tokens are equal is not known: {}", missing.unavailable),
    };
    *text += &paragraph("", &format!("Share of the request: {}; {tokens}.", phases.join("; ")), "  ");
    text.push('\n');
}

fn replay(text: &mut String, view: &ReplayView) {
    head(
        text,
        &format!("{} replay at {}, us", sentence_case(&view.phase).trim_end_matches('.'), view.workload.context_tokens),
    );
    let prefix = format!("replay.{}.", view.phase);
    for row in view.rows() {
        line(text, &row.name.trim_start_matches(&prefix).replace('_', " "), row, thousands);
    }
    let run = match (view.in_turn, view.same_run) {
        (true, _) => "in one run, in turn",
        (false, true) => "in one run, one after the other: not alternated",
        (false, false) => "in two runs: not alternated",
    };
    let words = format!(
        "Replayed {run}. Largest group: {} before, {} after. A share is no prediction; the request tells.",
        view.largest_before, view.largest_after
    );
    *text += &paragraph("", &words, "  ");
    text.push('\n');
}

fn around(text: &mut String, record: &ComparisonRecord) {
    if let Known::Is(view) = &record.timeline {
        head(text, "Timeline, part of the traced request");
        line(text, "a worker computes", &view.busy, percent);
        for row in &view.idle {
            let (before, after) = (show(&row.before, percent), show(&row.after, percent));
            let _ = writeln!(text, "{:<38} {before:>11} {after:>11}", format!("lost to {}", row.cause.name()));
        }
        text.push('\n');
    }
    for view in record.captures.known().into_iter().flatten() {
        capture(text, view);
    }
    if let Known::Is(rows) = &record.machine
        && !rows.is_empty()
    {
        head(text, "The machine");
        for row in rows {
            line(text, "reading memory, GB/s", row, thousands);
        }
        text.push('\n');
    }
}

/// Short times with more digits.
fn microseconds(us: f64) -> String {
    if us < 100.0 { format!("{us:.2}") } else { thousands(us) }
}

fn capture(text: &mut String, view: &CaptureView) {
    let title = format!("{} capture, us per pass", sentence_case(&view.phase).trim_end_matches('.'));
    head(text, &title);
    for row in &view.rows {
        line(text, &row.operator, &row.per_pass, thousands);
    }
    let title = format!("{:<38} {:>11} {:>11} {:>11} {:>11}", "", "samples", "after", "us a call", "after");
    let _ = writeln!(text, "{title}");
    for row in &view.rows {
        let name: String = row.operator.chars().take(38).collect();
        let (before, after) = (show(&row.share_before, percent), show(&row.share_after, percent));
        let (one, other) = (show(&row.call_before, microseconds), show(&row.call_after, microseconds));
        let _ = writeln!(text, "{name:<38} {before:>11} {after:>11} {one:>11} {other:>11}");
    }
    *text += "Two runs of one step each, with tracing in them: where the time is, never how long a request takes.\n\n";
}

fn conditions(text: &mut String, record: &ComparisonRecord) {
    if let Known::Is(wiring) = &record.wiring {
        if wiring.changed.is_empty() {
            *text += "Kernels: every call has the same kernel on both sides.\n";
        }
        for change in &wiring.changed {
            let side = |kernels: &[String]| if kernels.is_empty() { "none".to_owned() } else { kernels.join(" + ") };
            let lead = format!("Kernels: {} {}: ", change.phase.name(), change.operator);
            *text += &paragraph(&lead, &format!("{} -> {}", side(&change.before), side(&change.after)), "  ");
        }
    }
    for different in &record.different {
        let lead = match different.kind {
            DifferenceKind::Intended => "Differs: ",
            DifferenceKind::Suspicious => "DIFFERS TOO: ",
        };
        let words = format!("{}: {} -> {}", different.what, different.before, different.after);
        *text += &paragraph(lead, &words, "  ");
    }
}

fn missing(text: &mut String, record: &ComparisonRecord) {
    let views = [
        ("request clock", record.request.missing()),
        ("replay", record.replays.missing()),
        ("timeline", record.timeline.missing()),
        ("capture", record.captures.missing()),
        ("machine", record.machine.missing()),
        ("kernels", record.wiring.missing()),
    ];
    for (view, reason) in views {
        if let Some(reason) = reason {
            *text += &paragraph("Missing: ", &format!("{view}: {}; {}", reason.unavailable, reason.how_to_get), "  ");
        }
    }
    for left in &record.left_out {
        *text += &paragraph("Left out: ", left, "  ");
    }
}
