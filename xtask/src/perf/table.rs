//! The table of targets as markdown: a line per bar, the engines and their settings, what could not be measured and why.
//! Not here: judging (`measure.rs`).

use std::collections::BTreeSet;
use std::fmt::Write;

use super::measure::{Line, Outcome, Spread, Verdict, setting};

/// What the numbers of a line are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// One number divided by another, or seconds.
    Ratio,
    /// Tokens per second.
    Rate,
    /// A part of a whole.
    Share,
}

impl Unit {
    /// A measured number.
    pub(super) fn figure(self, value: f64) -> String {
        match self {
            Unit::Ratio => format!("{value:.2}"),
            Unit::Rate => thousands(value),
            Unit::Share => format!("{:.1} %", 100.0 * value),
        }
    }

    /// A number that is demanded, in as many digits as it has.
    fn demand(self, value: f64) -> String {
        match self {
            Unit::Ratio => format!("{value}"),
            Unit::Rate => thousands(value),
            Unit::Share => format!("{} %", 100.0 * value),
        }
    }
}

/// Whole, with a comma before each three digits.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Whose targets: what the columns hold, and what is to be known before they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sheet {
    Cpu,
    Gpu,
}

impl Sheet {
    fn head(self) -> &'static str {
        match self {
            Sheet::Cpu => {
                "| work | ours | held against | ratio (95 %) | must | aim | verdict |\n\
                 | --- | ---: | --- | ---: | ---: | ---: | --- |\n"
            }
            Sheet::Gpu => {
                "| work | ours | llama.cpp, of record | interval | must | aim | verdict |\n\
                 | --- | ---: | --- | ---: | ---: | ---: | --- |\n"
            }
        }
    }

    fn explained(self, quick: bool) -> String {
        let made = match (self, quick) {
            (Sheet::Cpu, false) => return String::new(),
            (Sheet::Cpu, true) => "A quick look (`--quick`): two repeats, whose extremes stand for intervals.",
            (Sheet::Gpu, false) => {
                "Medians of six fresh processes. The interval is from the least to the most of them, which holds the true \
                 median in 97 of 100 cases. Must is held against all of it, the aim against the median."
            }
            (Sheet::Gpu, true) => {
                "A quick look (`--quick`): two fresh processes, whose extremes stand for intervals and hold the true median \
                 in 50 of 100 cases."
            }
        };
        let llama = match self {
            Sheet::Cpu => "",
            Sheet::Gpu => " llama.cpp's are tokens per second of its CUDA build b11549 on one H200, on another day.",
        };
        format!("{made}{llama}\n\n")
    }

    fn notes(self) -> &'static str {
        match self {
            Sheet::Cpu => "Floors, and what was not measurable:",
            Sheet::Gpu => "What else is to be known, and what was not measurable:",
        }
    }
}

/// What is judged, and where the true one lies. On a GPU the median stands beside it already.
fn interval(line: &Line) -> String {
    let Some(Spread { median, low, high }) = line.judged else { return "-".to_owned() };
    let range = format!("{} to {}", line.unit.figure(low), line.unit.figure(high));
    if line.unit == Unit::Ratio { format!("{} ({range})", line.unit.figure(median)) } else { range }
}

/// Both demands, must and aim.
fn demands(line: &Line) -> [String; 2] {
    let sign = if line.lower_is_better { "≤ " } else { "" };
    [line.must, line.aim].map(|value| format!("{sign}{}", line.unit.demand(value)))
}

fn verdict(line: &Line) -> &'static str {
    match (line.verdict, line.judged) {
        (Verdict::NotMeasurable, _) | (_, None) => "not measurable here",
        (Verdict::Missed, _) => "missed",
        (Verdict::Inconclusive, Some(_)) => "inconclusive",
        (Verdict::Met, Some(judged)) => {
            let aimed = if line.lower_is_better { judged.median <= line.aim } else { judged.median >= line.aim };
            if aimed { "met, aim too" } else { "met" }
        }
    }
}

/// One line, for a person who waits.
pub(super) fn short(line: &Line) -> String {
    let why = if line.verdict == Verdict::NotMeasurable { format!(": {}", line.note) } else { String::new() };
    let (interval, verdict) = (interval(line), verdict(line));
    if line.unit == Unit::Ratio {
        return format!("  {} {}; {interval} of {}: {verdict}{why}", line.what, line.ours, line.against);
    }
    let [must, _] = demands(line);
    format!("  {}: {} ({interval}), must {must}: {verdict}{why}", line.what, line.ours)
}

pub(super) fn markdown(outcomes: &[Outcome], sheet: Sheet, quick: bool) -> String {
    let mut text = String::new();
    if let Some(machine) = outcomes.iter().find_map(|outcome| outcome.machine.as_ref()) {
        let _ = writeln!(text, "{machine}.\n");
    }
    text += &sheet.explained(quick);
    text += sheet.head();
    let lines = || outcomes.iter().flat_map(|outcome| &outcome.lines);
    for line in lines() {
        let ([must, aim], interval, verdict) = (demands(line), interval(line), verdict(line));
        let Line { what, ours, against, .. } = line;
        let _ = writeln!(text, "| {what} | {ours} | {against} | {interval} | {must} | {aim} | {verdict} |");
    }
    // What holds of several lines is said once.
    let mut notes: Vec<(Vec<&str>, &str)> = Vec::new();
    for line in lines().filter(|line| !line.note.is_empty()) {
        match notes.iter_mut().find(|(_, note)| *note == line.note) {
            Some((whats, _)) if whats.contains(&line.what) => {}
            Some((whats, _)) => whats.push(line.what),
            None => notes.push((vec![line.what], &line.note)),
        }
    }
    if !notes.is_empty() {
        let _ = writeln!(text, "\n{}\n", sheet.notes());
        for (whats, note) in notes {
            let whats =
                if whats.len() == lines().count() && whats.len() > 1 { "all".to_owned() } else { whats.join("; ") };
            let _ = writeln!(text, "- {whats}: {note}");
        }
    }
    let rungs: BTreeSet<&str> = outcomes.iter().flat_map(|outcome| &outcome.rungs).map(String::as_str).collect();
    if !rungs.is_empty() {
        let _ = writeln!(text, "\n{}.", rungs.into_iter().collect::<Vec<_>>().join(", "));
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
            judged: (verdict != Verdict::NotMeasurable).then_some(Spread { median: ratio, low: ratio, high: ratio }),
            unit: Unit::Ratio,
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
        let text = markdown(&[Outcome { lines, ..Outcome::default() }], Sheet::Cpu, false);
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

    #[test]
    fn what_is_said_of_intervals_is_what_the_statistics_say() {
        for (quick, processes) in [(false, 6), (true, 2)] {
            let samples: Vec<f64> = (0..processes).map(f64::from).collect();
            let (low, high, holds) = record::statistics::median::median_interval(&samples).expect("samples");
            assert_eq!((low, high), (samples[0], samples[samples.len() - 1]), "the least and the most");
            let said = Sheet::Gpu.explained(quick);
            assert!(said.contains(&format!("in {:.0} of 100 cases", 100.0 * holds)), "{said}");
        }
    }

    #[test]
    fn figures_of_a_gpu_have_their_units_and_a_reason_of_all_lines_is_said_once() {
        let of = |unit, (median, low, high), must, aim| Line {
            what: if unit == Unit::Rate { "prefill" } else { "idle" },
            judged: Some(Spread { median, low, high }),
            unit,
            must,
            aim,
            ..line(Verdict::Met, 0.0, unit == Unit::Share)
        };
        let rate = || of(Unit::Rate, (128_400.4, 999.6, 1_234_567.0), 60e3, 128e3);
        let idle = || of(Unit::Share, (0.037, 0.0352, 0.041), 0.05, 0.02);
        let text = markdown(&[Outcome { lines: vec![rate(), idle()], ..Outcome::default() }], Sheet::Gpu, true);
        assert!(text.contains("| 1,000 to 1,234,567 | 60,000 | 128,000 | met, aim too |"), "{text}");
        assert!(text.contains("| 3.5 % to 4.1 % | ≤ 5 % | ≤ 2 % | met |"), "{text}");
        assert!(text.contains("llama.cpp, of record") && !text.contains("not measurable:"), "{text}");
        let lost = |line: Line| Line { judged: None, verdict: Verdict::NotMeasurable, note: "no GPU".into(), ..line };
        let none =
            markdown(&[Outcome { lines: vec![lost(rate()), lost(idle())], ..Outcome::default() }], Sheet::Gpu, false);
        assert!(none.contains("\n- all: no GPU\n") && none.matches("no GPU").count() == 1, "{none}");
        assert!(short(&lost(rate())).ends_with("must 60,000: not measurable here: no GPU"), "{}", short(&lost(rate())));
    }
}
