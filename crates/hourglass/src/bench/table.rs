//! What `bench` prints for a person: text of at most 100 columns, the verdict first. Numbers come from the record alone.
//! Not here: the record's own JSON, and what is shown while it runs (`view.rs`).

use std::fmt::Write;

use ops::{CachePolicy, Registry};
use record::bench::{Arm, BenchRecord, Metric, MetricComparison, Outcome, Sample, Tolerance, Verdict, Verified};
use record::{Known, Reading};

use crate::prose::paragraph;

/// Rows per second of a rung without a cache, for the warning's estimate: `week1` on two quiet Zen 4 cores
/// (`docs/performance.md`). It was a sixth of that while other work wanted both.
const ROWS_PER_S: f64 = 400.0;

/// More repeats than this are no advice: the machine has to become quieter.
const MOST_REPEATS: u64 = 1000;

/// Metrics whose verdicts are said first.
const HEADLINES: [Metric; 3] = [Metric::Decode, Metric::Prefill, Metric::Request];

/// Says so, before a run, where an arm recomputes the whole prefix for every token and will take long.
pub(crate) fn warning(record: &BenchRecord, registry: &Registry) -> Option<String> {
    let workload = &record.workload;
    let (prompt, output) = (workload.context_tokens as f64, workload.output_tokens as f64);
    let cacheless =
        |arm: &&Arm| registry.checkpoint(&arm.name).is_ok_and(|checkpoint| checkpoint.cache == CachePolicy::None);
    let arm = record.arms.iter().find(cacheless)?;
    let requests = record.protocol.warmup as f64 + 1.0;
    let rows = requests * output * (prompt + output / 2.0);
    // On the small models of tests and demonstrations it takes no time worth a warning.
    if rows < 20_000.0 || workload.model.starts_with("synthetic:tiny") {
        return None;
    }
    let minutes = rows / ROWS_PER_S / 60.0;
    Some(format!(
        "hourglass: {} recomputes the whole prefix for every token: each of its {} processes runs about {:.0} rows, where \
         a cache needs {:.0}. For a 0.6B model on two cores that may take {:.0} minutes a process, and --time-limit-seconds \
         allows {:.0}; --output-len 17 or --warmup 1 make it shorter",
        arm.name,
        record.protocol.repeats,
        rows,
        requests * (prompt + output),
        minutes.max(1.0),
        record.protocol.time_limit_s / 60.0
    ))
}

/// Everything, in reading order. `default_model`: nobody chose the model; `kept`: the record is in a file.
pub(crate) fn text(record: &BenchRecord, default_model: bool, kept: bool) -> String {
    let mut text = String::new();
    for check in record.checks.iter().filter(|check| !check.passed) {
        let line =
            format!("{}: expected {}, found {}; rely on nothing below.", check.name, check.expected, check.found);
        text += &paragraph("VOID: ", &line, "  ");
    }
    verdicts(&mut text, record);
    workload(&mut text, record, default_model);
    rates(&mut text, record);
    beside(&mut text, record);
    latencies(&mut text, record);
    noise(&mut text, record);
    samples(&mut text, record);
    outputs(&mut text, record);
    if let Some(reason) = record.coverage.reason() {
        text += &paragraph("Incomplete: ", &format!("{reason}."), "  ");
    }
    next(&mut text, record, kept);
    text
}

/// `12.3 % faster (95 %: 10.1 to 14.0 %)`: the change of a metric, its direction in the word.
pub(crate) fn phrase(row: &MetricComparison) -> String {
    let name = row.metric.name().replace('_', " ");
    let Some(ratio) = row.ratio.value() else { return format!("{name}: no ratio") };
    let range = match &row.interval {
        Known::Is(interval) => format!(" (95 %: {} to {})", change(interval.low), change(interval.high)),
        Known::Unavailable(_) => String::new(),
    };
    match &row.verdict {
        Known::Is(Verdict::Better) => format!("{name} better: {}{range}", change(ratio)),
        Known::Is(Verdict::Worse) => format!("{name} worse: {}{range}", change(ratio)),
        Known::Is(Verdict::NoDifference { within_percent }) => {
            format!("{name}: no difference seen within ±{within_percent:.1} %")
        }
        Known::Is(Verdict::Inconclusive { more_repeats }) if *more_repeats <= MOST_REPEATS => {
            format!("{name} inconclusive: {}{range}, needs about {more_repeats} more repeats", change(ratio))
        }
        Known::Is(Verdict::Inconclusive { .. }) => {
            format!("{name} inconclusive: {}{range}, too noisy for any number of repeats", change(ratio))
        }
        Known::Unavailable(missing) => format!("{name}: {}, no verdict: {}", change(ratio), missing.unavailable),
    }
}

fn verdicts(text: &mut String, record: &BenchRecord) {
    let control = &record.arms[0];
    if record.arms.len() == 1 {
        *text += "One variant: nothing is compared. --variant A/A shows the machine's noise.\n";
    }
    if let Some(reason) = &control.reason {
        *text += &paragraph("", &format!("The control {} does not count: {reason}.", control.name), "  ");
    }
    for (index, arm) in record.arms.iter().enumerate().skip(1) {
        let lead = format!("{} against {}: ", arm.name, control.name);
        if let Some(reason) = &arm.reason {
            *text += &paragraph(&lead, &format!("its time does not count: {reason}."), "  ");
            continue;
        }
        let phrases: Vec<String> =
            HEADLINES.iter().filter_map(|metric| record.comparison(index, *metric)).map(phrase).collect();
        if phrases.is_empty() {
            *text += &paragraph(&lead, "not compared: no block has a sample of both that counts.", "  ");
        } else {
            *text += &paragraph(&lead, &format!("{}.", phrases.join("; ")), "  ");
        }
    }
    text.push('\n');
}

fn workload(text: &mut String, record: &BenchRecord, default_model: bool) {
    let (workload, protocol) = (&record.workload, &record.protocol);
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let line = format!(
        "{}: {} prompt tokens, {} generated (greedy), logits {}; {} fresh process{} per variant, {} warm-up request{} in each; \
         {}.",
        workload.model,
        workload.context_tokens,
        workload.output_tokens,
        workload.logits.name(),
        protocol.repeats,
        if protocol.repeats == 1 { "" } else { "es" },
        protocol.warmup,
        plural(protocol.warmup),
        protocol.design,
    );
    *text += &paragraph("", &line, "  ");
    if default_model {
        *text += &paragraph(
            "",
            "No --model was given, so this is the embedded default: weights from a seed, of exactly this model's shapes. \
             Speed does not depend on weight values.",
            "  ",
        );
    }
    text.push('\n');
}

fn rates(text: &mut String, record: &BenchRecord) {
    let _ = writeln!(
        text,
        "{:<20}{:>14}{:>10}{:>14}{:>10}{:>9}{:>10}{:>10}{:>3}",
        "medians", "prefill tok/s", "", "decode tok/s", "", "output", "peak", "resident", "n"
    );
    let _ = writeln!(
        text,
        "{:<20}{:>14}{:>10}{:>14}{:>10}{:>9}{:>10}{:>10}",
        "", "± MAD", "control", "± MAD", "control", "tok/s", "MiB", "MiB"
    );
    for (index, arm) in record.arms.iter().enumerate() {
        let n = record.samples_of(index).filter(|sample| sample.counting().is_some()).count();
        let _ = writeln!(
            text,
            "{:<20}{:>14}{:>10}{:>14}{:>10}{:>9}{:>10}{:>10}{:>3}",
            short(&arm.name, 20),
            spread(arm, Metric::Prefill),
            against(record, index, Metric::Prefill),
            spread(arm, Metric::Decode),
            against(record, index, Metric::Decode),
            show(&arm.median(Metric::Output), |rate| format!("{rate:.1}")),
            show(&arm.median(Metric::Peak), mebibytes),
            show(&arm.median(Metric::PeakRss), mebibytes),
            n
        );
    }
    *text += "  = no difference seen, ? inconclusive, ! its time does not count\n\n";
}

/// The chapter's columns: everything beside week1 and beside MLX, where they ran.
fn beside(text: &mut String, record: &BenchRecord) {
    let scales: Vec<(usize, &str)> =
        ["week1", "mlx"].iter().filter_map(|name| Some((record.arm_named(name)?, *name))).collect();
    let scales: Vec<(usize, &str)> = scales.into_iter().filter(|(arm, _)| record.arms[*arm].counts).collect();
    if scales.is_empty() || record.arms.len() < 3 {
        return;
    }
    let mut head = format!("{:<20}", "medians divided");
    for metric in ["prefill", "decode"] {
        for (_, name) in &scales {
            let _ = write!(head, "{:>18}", format!("{metric} vs {name}"));
        }
    }
    let _ = writeln!(text, "{head}");
    for arm in record.arms.iter().filter(|arm| arm.counts) {
        let mut line = format!("{:<20}", short(&arm.name, 20));
        for metric in [Metric::Prefill, Metric::Decode] {
            for (scale, _) in &scales {
                let ratio = match (arm.median(metric).value(), record.arms[*scale].median(metric).value()) {
                    (Some(own), Some(other)) if other > 0.0 => beside_words(own / other),
                    _ => "n/a".to_owned(),
                };
                let _ = write!(line, "{ratio:>18}");
            }
        }
        let _ = writeln!(text, "{line}");
    }
    text.push('\n');
}

/// As the chapter's table has it: times as fast, percent, or matched.
fn beside_words(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if ratio >= 2.0 {
        format!("{ratio:.2}x")
    } else if percent.abs() < 0.05 {
        "matched".to_owned()
    } else if percent > 0.0 {
        format!("{percent:.1} % faster")
    } else {
        format!("{:.1} % slower", -percent)
    }
}

fn latencies(text: &mut String, record: &BenchRecord) {
    let _ = writeln!(
        text,
        "{:<20}{:>12}{:>12}{:>14}{:>12}{:>12}{:>12}",
        "milliseconds", "request", "1st token", "per token", "median", "p95", "p99"
    );
    for arm in &record.arms {
        let from_s = |metric| show(&arm.median(metric), |seconds| format!("{:.1}", seconds * 1e3));
        let from_us = |metric| show(&arm.median(metric), |us| format!("{:.3}", us / 1e3));
        let _ = writeln!(
            text,
            "{:<20}{:>12}{:>12}{:>14}{:>12}{:>12}{:>12}",
            short(&arm.name, 20),
            from_s(Metric::Request),
            from_s(Metric::Ttft),
            from_us(Metric::PerToken),
            from_us(Metric::TokenMedian),
            from_us(Metric::TokenP95),
            from_us(Metric::TokenP99),
        );
    }
    text.push('\n');
}

fn noise(text: &mut String, record: &BenchRecord) {
    let rows = match &record.noise {
        Known::Is(rows) => rows,
        Known::Unavailable(missing) => {
            *text +=
                &paragraph("Noise: ", &format!("not known: {}; {}.", missing.unavailable, missing.how_to_get), "  ");
            return;
        }
    };
    for row in rows.iter().filter(|row| matches!(row.metric, Metric::Decode | Metric::Prefill)) {
        let false_alarms = show(&row.false_positives, |share| format!("{:.1} %", share * 100.0));
        let least = match &row.detectable_percent {
            Known::Is(percent) if *percent > 100.0 => "only more than a doubling is found".to_owned(),
            Known::Is(percent) => format!("differences from {percent:.1} % on are found"),
            Known::Unavailable(_) => "what is found is not known".to_owned(),
        };
        let more = match &row.repeats_for_3_percent {
            Known::Is(repeats) if *repeats <= MOST_REPEATS => format!("; 3 % takes about {repeats} repeats"),
            _ => String::new(),
        };
        let line = format!(
            "with {} repeats a false alarm in {false_alarms} of runs, and {least} (from {}){more}.",
            row.repeats, row.source
        );
        *text += &paragraph(&format!("Noise of {} today: ", row.metric.name()), &line, "  ");
    }
}

/// What was lost, marked or left out: losses one by one, marks together, since a busy machine marks many.
fn samples(text: &mut String, record: &BenchRecord) {
    let name = |sample: &Sample| &record.arms[sample.arm as usize].name;
    for sample in &record.samples {
        if let Outcome::Lost(why) = &sample.outcome {
            *text += &paragraph(
                &format!("Process {} ({}) lost: ", sample.order + 1, name(sample)),
                &format!("{why}."),
                "  ",
            );
        }
    }
    let marked: Vec<&Sample> = record.samples.iter().filter(|sample| !sample.marks.is_empty()).collect();
    let Some(first) = marked.first() else { return };
    let left_out = record.samples.iter().filter(|sample| sample.excluded.is_some()).count();
    let line = format!(
        "{} of {} processes were measured under load, {left_out} left out with their blocks (process {}, {}: {}). Rule: {}.",
        marked.len(),
        record.samples.len(),
        first.order + 1,
        name(first),
        first.marks.join("; "),
        record.protocol.exclusion_rule
    );
    *text += &paragraph("Load: ", &line, "  ");
}

fn outputs(text: &mut String, record: &BenchRecord) {
    for arm in &record.arms {
        match &arm.output_check.result {
            Verified::Passed(_) | Verified::Failed(_) => {}
            Verified::NotChecked(why) if arm.counts => {
                *text += &paragraph(&format!("Output of {} not checked: ", arm.name), &format!("{why}."), "  ");
            }
            Verified::NotChecked(_) => {}
        }
    }
    let checked: Vec<&Arm> =
        record.arms.iter().filter(|arm| matches!(arm.output_check.result, Verified::Passed(_))).collect();
    if checked.len() > 1 {
        let tied = checked.iter().any(|arm| matches!(arm.output_check.tolerance, Tolerance::NearTie { .. }));
        let how = if tied { "the control's tokens, near ties aside" } else { "the control's tokens, every one" };
        let _ = writeln!(text, "Output: {} of {} variants gave {how}.", checked.len(), record.arms.len());
    }
    let wired: Vec<&Arm> = record.arms.iter().filter(|arm| matches!(arm.wiring_check, Verified::Passed(_))).collect();
    if let Some(Verified::Passed(what)) = wired.first().map(|arm| &arm.wiring_check) {
        let _ = writeln!(text, "Wiring: {what} ({} of {} variants say so).", wired.len(), record.arms.len());
    }
}

fn next(text: &mut String, record: &BenchRecord, kept: bool) {
    let verdict = |index: usize| record.comparison(index, Metric::Decode).and_then(|row| row.verdict.known());
    let arms = || (1..record.arms.len()).filter_map(|index| Some((&record.arms[index], verdict(index)?)));
    let open = arms().find_map(|(_, verdict)| match verdict {
        Verdict::Inconclusive { more_repeats } => Some(*more_repeats),
        _ => None,
    });
    let command = if let Some(more) = open {
        if more <= MOST_REPEATS {
            // Even, as the order wants it.
            let repeats = (record.protocol.repeats + more).next_multiple_of(2);
            format!("for a verdict run the same again with --repeats {repeats}")
        } else {
            "for a verdict close what else runs on this machine, and run the same again".to_owned()
        }
    } else if let Some((arm, _)) = arms().find(|(_, verdict)| matches!(verdict, Verdict::Worse)) {
        format!("see which operators it comes from: hourglass find --checkpoint {}", arm.name)
    } else if !kept {
        "keep it, so that the next change can be compared with it: the same with --json-output FILE".to_owned()
    } else {
        let newest = record.arms.iter().rev().find(|arm| arm.counts && arm.subject.known().is_some());
        let name = newest.map_or("fast", |arm| arm.name.as_str());
        let name = if name == "A/A" { record.arms[0].name.as_str() } else { name };
        format!("see where the time goes now: hourglass find --checkpoint {name}")
    };
    text.push('\n');
    *text += &paragraph("Next: ", &command, "  ");
}

/// An arm's metric beside the control's, with the verdict's sign.
fn against(record: &BenchRecord, index: usize, metric: Metric) -> String {
    if !record.arms[index].counts {
        return "!".to_owned();
    }
    if index == 0 {
        return String::new();
    }
    let Some(row) = record.comparison(index, metric) else { return "n/a".to_owned() };
    let Some(ratio) = row.ratio.value() else { return "n/a".to_owned() };
    let sign = match &row.verdict {
        Known::Is(Verdict::NoDifference { .. }) => " =",
        Known::Is(Verdict::Inconclusive { .. }) | Known::Unavailable(_) => " ?",
        Known::Is(Verdict::Better | Verdict::Worse) => "",
    };
    format!("{}{sign}", change(ratio))
}

fn change(ratio: f64) -> String {
    match ratio {
        100.0.. => ">100x".to_owned(),
        2.0.. => format!("{ratio:.2}x"),
        _ => format!("{:+.1} %", (ratio - 1.0) * 100.0),
    }
}

fn spread(arm: &Arm, metric: Metric) -> String {
    let row = arm.summary.iter().find(|row| row.metric == metric);
    match row.and_then(|row| Some((row.median.value()?, row.spread.value()?))) {
        Some((median, spread)) if median >= 1000.0 => format!("{median:.0} ±{spread:.0}"),
        Some((median, spread)) => format!("{median:.1} ±{spread:.1}"),
        None => "n/a".to_owned(),
    }
}

fn short(name: &str, width: usize) -> String {
    let most = width - 1;
    if name.chars().count() <= most { name.to_owned() } else { name.chars().take(most - 1).chain(['…']).collect() }
}

fn show(reading: &Reading, form: impl Fn(f64) -> String) -> String {
    reading.value().map_or_else(|| "n/a".to_owned(), form)
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}
