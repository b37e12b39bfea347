//! The table of targets as markdown: a line per bar, the engines and their settings, what could not be measured and why.
//! Not here: judging (`measure.rs`).

use std::collections::BTreeSet;
use std::fmt::Write;

use super::measure::{Line, Outcome, Spread, Verdict, setting};

fn ratio(ratio: Option<Spread>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |r| format!("{:.2} ({:.2} to {:.2})", r.median, r.low, r.high))
}

fn verdict(line: &Line) -> &'static str {
    match (line.verdict, line.ratio) {
        (Verdict::NotMeasurable, _) | (_, None) => "not measurable here",
        (Verdict::Missed, _) => "missed",
        (Verdict::Inconclusive, Some(_)) => "inconclusive",
        (Verdict::Met, Some(ratio)) => {
            let aimed = if line.lower_is_better { ratio.median <= line.aim } else { ratio.median >= line.aim };
            if aimed { "met, aim too" } else { "met" }
        }
    }
}

/// One line, for a person who waits.
pub(super) fn short(line: &Line) -> String {
    let why = if line.verdict == Verdict::NotMeasurable { format!(": {}", line.note) } else { String::new() };
    format!("  {} {}; {} of {}: {}{why}", line.what, line.ours, ratio(line.ratio), line.against, verdict(line))
}

pub(super) fn markdown(outcomes: &[Outcome], quick: bool) -> String {
    let mut text = String::new();
    if let Some(machine) = outcomes.iter().find_map(|outcome| outcome.machine.as_ref()) {
        let _ = writeln!(text, "{machine}.\n");
    }
    if quick {
        text += "A quick look (`--quick`): two repeats, whose extremes stand for intervals.\n\n";
    }
    text += "| work | ours | held against | ratio (95 %) | must | aim | verdict |\n";
    text += "| --- | ---: | --- | ---: | ---: | ---: | --- |\n";
    let lines = || outcomes.iter().flat_map(|outcome| &outcome.lines);
    for line in lines() {
        let sign = if line.lower_is_better { "≤ " } else { "" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {sign}{} | {sign}{} | {} |",
            line.what,
            line.ours,
            line.against,
            ratio(line.ratio),
            line.must,
            line.aim,
            verdict(line)
        );
    }
    let mut notes: Vec<(&str, &str)> = Vec::new();
    for line in lines().filter(|line| !line.note.is_empty()) {
        if !notes.contains(&(line.what, line.note.as_str())) {
            notes.push((line.what, &line.note));
        }
    }
    if !notes.is_empty() {
        text += "\nFloors, and what was not measurable:\n\n";
        for (what, note) in notes {
            let _ = writeln!(text, "- {what}: {note}");
        }
    }
    // One engine may have run with several numbers of threads or features.
    let mut engines = BTreeSet::new();
    for engine in outcomes.iter().flat_map(|outcome| &outcome.engines) {
        let settings = engine.settings.iter().map(|(name, value)| format!("{name} {}", setting(value)));
        let settings: Vec<String> = settings.collect();
        let line = format!("{} {}, {}: {}", engine.engine, engine.version, engine.weights_form, settings.join(", "));
        engines.insert(line);
    }
    if !engines.is_empty() {
        text += "\nEngines and their settings, as each reports them:\n\n";
        for line in engines {
            let _ = writeln!(text, "- {line}");
        }
    }
    let count = |wanted: Verdict| lines().filter(|line| line.verdict == wanted).count();
    let _ = writeln!(
        text,
        "\n{} met, {} missed, {} inconclusive (the demand lies inside the interval), {} not measurable here.",
        count(Verdict::Met),
        count(Verdict::Missed),
        count(Verdict::Inconclusive),
        count(Verdict::NotMeasurable)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verdict: Verdict, ratio: f64, lower: bool) -> Line {
        Line {
            what: "decode",
            ours: "100 tok/s ±2 %".into(),
            against: "llama.cpp, 50 tok/s".into(),
            ratio: (verdict != Verdict::NotMeasurable).then_some(Spread { median: ratio, low: ratio, high: ratio }),
            must: 1.4,
            aim: if lower { 1.2 } else { 1.6 },
            lower_is_better: lower,
            verdict,
            note: if verdict == Verdict::NotMeasurable { "no tiles".into() } else { String::new() },
        }
    }

    #[test]
    fn each_verdict_and_its_reason_is_in_the_table() {
        let lines = vec![
            line(Verdict::Met, 2.0, false),
            line(Verdict::Met, 1.5, false),
            line(Verdict::Met, 1.1, true),
            line(Verdict::Missed, 1.0, false),
            line(Verdict::Inconclusive, 1.4, false),
            line(Verdict::NotMeasurable, 0.0, false),
        ];
        let text = markdown(&[Outcome { lines, ..Outcome::default() }], false);
        assert_eq!(text.matches("| met, aim too |").count(), 2, "{text}");
        assert_eq!(text.matches("| met |").count(), 1, "{text}");
        assert!(text.contains("| 1.40 (1.40 to 1.40) | 1.4 | 1.6 | inconclusive |"), "{text}");
        assert!(text.contains("| 1.00 (1.00 to 1.00) | 1.4 | 1.6 | missed |"), "{text}");
        assert!(
            text.contains("| - | 1.4 | 1.6 | not measurable here |") && text.contains("- decode: no tiles"),
            "{text}"
        );
        assert!(text.contains("3 met, 1 missed, 1 inconclusive"), "{text}");
    }
}
