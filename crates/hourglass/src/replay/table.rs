//! What `replay` prints for a person: text of at most 100 columns. Numbers come from the record and from nowhere else.
//! Not here: the record's own JSON.

use std::fmt::Write;

use record::{
    Change, GroupRow, Known, Limit, Phase, Reading, Replay, ReplayComparison, ReplayRecord, ShapeStudy, Timing,
};

use super::turns::Done;
use crate::figures::{percent, show, thousands};
use crate::prose::paragraph;

/// Ceilings that were measured with a smaller share of the processors are lower bounds.
const CEILINGS_BUSY: f64 = 0.95;

/// Below this share of the processors the machine was too busy to measure on.
const BUSY: f64 = 0.85;

/// Ceilings and medians are no more exact than this.
const NEAR_THE_FLOOR: f64 = 0.05;

/// A larger part of the pass than this that no row explains is remarked on.
const UNEXPLAINED: f64 = 0.05;

pub(crate) fn default_model() -> String {
    paragraph(
        "",
        "No --model was given, so this is the embedded default: random weights of exactly this model's shapes. Speed does \
         not depend on weight values.",
        "",
    ) + "\n"
}

/// Before several cases: there will be nothing to see for a while.
pub(crate) fn in_turn(cases: usize) -> String {
    format!("{cases} cases take turns, so that a slow minute falls on all of them; their tables follow together.\n\n")
}

/// A whole record, read from a file.
pub(crate) fn record(record: &ReplayRecord) -> String {
    let mut text = String::new();
    for case in &record.cases {
        let description = format!("{}, read from a record", case.replay.workload.model);
        text += &self::case(&Done { description, case: case.clone() });
    }
    text + &foot(record)
}

/// One case.
pub(crate) fn case(done: &Done) -> String {
    let replay = &done.case.replay;
    let mut text = paragraph(&format!("{}: ", done.case.case), &done.description, "  ");
    if let Some(reason) = replay.coverage.reason() {
        text += &paragraph("  incomplete: ", &format!("{reason}; no total. Missing, not zero."), "    ");
        text.push('\n');
        return text;
    }
    let workload = &replay.workload;
    let shape = match workload.phase {
        Phase::Decode => format!("A decode step of 1 row after {} cached", workload.context_tokens - 1),
        _ => format!("A prefill pass of {} rows", workload.new_rows),
    };
    let _ = writeln!(
        text,
        "{shape}, capacity {}, logits {} (medians of {} rounds, in µs)",
        workload.capacity,
        workload.logits.name(),
        replay.round_order.len()
    );
    header(&mut text, "group");
    for group in &replay.groups {
        row(&mut text, &group.group, group);
    }
    for absent in &replay.absent {
        text += &paragraph(&format!("  {:<39}    - ", absent.group), &absent.why, "    ");
    }
    if let Some(timing) = replay.sampling.known() {
        timed(&mut text, "sampling (argmax)", timing);
    }
    totals(&mut text, replay);
    if let Some(operators) = replay.operators.known() {
        header(&mut text, "operator, each timed alone");
        for operator in operators {
            row(&mut text, &operator.name(), &operator.row);
        }
    }
    above_the_floor(&mut text, replay);
    if let Some(group) = replay.largest() {
        let share = show(&group.timing.share, percent);
        let floor = group.floor.known().and_then(|floor| Some((floor.fraction.value()?, *floor.limit.known()?)));
        let of_floor = floor.map_or_else(String::new, |(fraction, limit)| {
            format!("; its floor by {} is {} of its time", limit.name(), percent(fraction))
        });
        let largest = format!("{} ({share}), bound to {}{of_floor}", group.group, group.kernels.join(", "));
        text += &paragraph("  Largest: ", &largest, "    ");
    }
    text.push('\n');
    text
}

/// Says so if rows took less than their floor: then a floor is too high, which only its ceiling can cause.
fn above_the_floor(text: &mut String, replay: &Replay) {
    let operators = replay.operators.known().into_iter().flatten().map(|operator| &operator.row);
    let fractions = replay.groups.iter().chain(operators).filter_map(|row| row.floor.known()?.fraction.value());
    let above = fractions.filter(|fraction| *fraction > 1.0 + NEAR_THE_FLOOR).count();
    if above > 0 {
        let why = format!(
            "{above} rows took less time than their floor, so the ceilings were too low: measured while other processes ran, \
             or the machine has changed its state. Do not rely on \"of it\"; `hourglass ceilings --refresh` on a quiet machine."
        );
        *text += &paragraph("  Above the limit: ", &why, "    ");
    }
}

/// The end of the output: what these tables do not say, and what is wrong with the record.
pub(crate) fn foot(record: &ReplayRecord) -> String {
    let mut text = String::new();
    if record.cases.iter().flat_map(|case| &case.replay.groups).any(|row| row.floor.known().is_some()) {
        let letters =
            "floor is the least time that the row's bytes (m), operations (a) or calls (d) allow, whichever is most.";
        text += &paragraph("", letters, "  ");
    }
    if record.cases.iter().any(|case| case.replay.coverage.is_complete()) {
        for rule in [
            "Read the largest group, not the total: no real pass takes the sum of groups that were timed apart.",
            "A share is no prediction: twice as fast in a group of 70 % is not 35 % off the request; clock the request.",
            "A replay does not prove wiring: it runs what the program plans; `hourglass find` counts what a request ran.",
            "Two replays compare only at the same workload: change the checkpoint and nothing else.",
        ] {
            text += &paragraph("", rule, "  ");
        }
        if record.cases.iter().any(|case| case.replay.is_by_device()) {
            let what =
                "between marks around a row's graph, which waited in the stream: nothing of the host is in a row.";
            text += &paragraph("Times are the GPU's own, ", what, "  ");
        }
        for request in &record.requests {
            let parts =
                [("whole request", &request.whole_request), ("prefill", &request.prefill), ("decode", &request.decode)];
            let parts = parts.map(|(name, timing)| format!("{name} {}", show(&timing.median, thousands)));
            let count = request.whole_request.samples_us.len();
            text += &paragraph(
                &format!("{}: ", request.name()),
                &format!("{} µs (medians of {count} between the turns: how fast the machine was).", parts.join(", ")),
                "  ",
            );
        }
        if let Some(share) = record.ceilings.known().and_then(|used| used.processor_share.value())
            && share < CEILINGS_BUSY
        {
            let why = format!(
                "this process had {} of the processors while they were measured. The machine can do more, floors are too high, \
                 and so is \"of it\"; `hourglass ceilings --refresh` when it is quiet.",
                percent(share)
            );
            text += &paragraph("Ceilings: ", &why, "  ");
        }
        if let Some(missing) = record.ceilings.missing() {
            text += &paragraph("No floors: ", &format!("{}; {}.", missing.unavailable, missing.how_to_get), "  ");
        }
    }
    for check in record.checks.iter().filter(|check| !check.passed) {
        let what =
            format!("{}: expected {}, found {}; rely on nothing above.", check.name, check.expected, check.found);
        text += &paragraph("VOID: ", &what, "  ");
    }
    if let Some(reason) = record.coverage.reason() {
        text += &paragraph("Incomplete: ", &format!("{reason}."), "  ");
    }
    text
}

/// Two replays beside each other.
pub(crate) fn comparison(comparison: &ReplayComparison) -> String {
    let mut text = String::new();
    let lead = format!("{} -> {}: ", comparison.before.case, comparison.after.case);
    text += &paragraph(&lead, &format!("the same workload ({}).", &comparison.workload_id[..12]), "  ");
    if !comparison.different_conditions.is_empty() {
        let what = format!("{}: differences may come from there.", comparison.different_conditions.join(", "));
        text += &paragraph("Different conditions: ", &what, "  ");
    }
    let _ = writeln!(text, "  {:<39}{:>11}{:>11}{:>11}{:>9}", "(µs)", "before", "after", "saved", "gain");
    let rows = comparison.groups.iter().chain([&comparison.total, &comparison.whole_pass]);
    for change in rows {
        changed(&mut text, change);
    }
    for change in &comparison.groups {
        for (side, reading) in [("before", &change.before), ("after", &change.after)] {
            if let Some(missing) = reading.missing() {
                text += &paragraph(&format!("  {}, {side}: ", change.name), &missing.unavailable, "    ");
            }
        }
    }
    match &comparison.request {
        Known::Is(arrival) => {
            changed(&mut text, &arrival.pass);
            changed(&mut text, &arrival.whole_request);
            let arrived = show(&arrival.arrived, percent);
            let more = arrival.arrived.value().is_some_and(|share| !(0.0..=1.0).contains(&share));
            let remark = if more {
                "More than all of it, or less than nothing: something else changed too, or one side was disturbed."
            } else {
                "It is rarely all of it."
            };
            let what = format!("{arrived} of what the replay total saved per pass. {remark}");
            text += &paragraph("  Arrived in the request: ", &what, "    ");
        }
        Known::Unavailable(missing) => {
            let what =
                format!("{}; {}. Only the request clock says what arrived.", missing.unavailable, missing.how_to_get);
            text += &paragraph("  Request: ", &what, "    ");
        }
    }
    text
}

/// Two kernels at the shapes of a workload.
pub(crate) fn study(study: &ShapeStudy) -> String {
    let [first, second] = &study.kernels;
    let mut text = paragraph(
        &format!("{}: ", study.operator),
        &format!(
            "{} (1) beside {} (2), at the shapes of {} ({})",
            first.label, second.label, study.source, study.workload.model
        ),
        "  ",
    );
    let _ = writeln!(
        text,
        "  {:<8}{:<20}{:>5}{:>8}{:>7}{:>13}{:>13}{:>12}{:>12}",
        "phase", "place", "rows", "context", "calls", "1, µs/pass", "2, µs/pass", "1, ms", "2, ms"
    );
    let ms = |seconds: Option<f64>| seconds.map_or_else(|| "n/a".to_owned(), |seconds| format!("{:.1}", seconds * 1e3));
    for row in &study.rows {
        let us = |kernel: usize| row.median(kernel).map_or_else(|| "n/a".to_owned(), thousands);
        let _ = writeln!(
            text,
            "  {:<8}{:<20}{:>5}{:>8}{:>7}{:>13}{:>13}{:>12}{:>12}",
            row.phase.name(),
            row.slot,
            row.pass_rows,
            row.offset + row.pass_rows,
            row.calls * row.passes,
            us(0),
            us(1),
            ms(row.total(0)),
            ms(row.total(1)),
        );
    }
    let total = |reading: &Reading| ms(reading.value());
    let _ = writeln!(text, "  {:<74}{:>12}{:>12}", "all", total(&study.totals[0]), total(&study.totals[1]));
    let share = show(&study.estimated_share, percent);
    let verdict = format!(
        "in place of (1), (2) would take {} ms off the recorded {} ms ({share}), if a request saved what its calls save when \
         timed apart. Only the request clock can tell.",
        total(&study.saved),
        total(&study.recorded)
    );
    text += &paragraph("Estimate: ", &verdict, "  ");
    if let Some(reason) = study.coverage.reason() {
        text += &paragraph("Incomplete: ", &format!("{reason}. Totals are of the shapes that both run."), "  ");
    }
    text
}

fn changed(text: &mut String, change: &Change) {
    let noise = if change.beyond_spread.known() == Some(&false) { "  within spreads" } else { "" };
    let _ = writeln!(
        text,
        "  {:<39}{:>11}{:>11}{:>11}{:>9}{noise}",
        change.name,
        show(&change.before, thousands),
        show(&change.after, thousands),
        show(&change.saved, thousands),
        show(&change.gain, percent),
    );
}

fn header(text: &mut String, what: &str) {
    let _ = writeln!(
        text,
        "  {what:<39}{:>5}{:>11}{:>8}{:>7}{:>8}{:>9}{:>9}",
        "calls", "median", "share", "GB/s", "GFLOP/s", "floor", "of it"
    );
}

fn row(text: &mut String, name: &str, row: &GroupRow) {
    let floor = row.floor.known();
    let least = floor.map_or_else(String::new, |floor| show(&floor.least, thousands));
    let part = |share: f64| if share < 9.995 { format!("{:.0} %", 100.0 * share) } else { ">999 %".to_owned() };
    let fraction = floor.map_or_else(String::new, |floor| show(&floor.fraction, part));
    let limit = match floor.and_then(|floor| floor.limit.known()) {
        Some(Limit::Memory) => " m",
        Some(Limit::Arithmetic) => " a",
        Some(Limit::Dispatch) => " d",
        None => "",
    };
    let line = format!(
        "  {name:<39}{:>5}{:>11}{:>8}{:>7}{:>8}{least:>9} {fraction:>6}{limit}",
        row.calls,
        show(&row.timing.median, thousands),
        show(&row.timing.share, percent),
        show(&row.bandwidth, |rate| format!("{rate:.1}")),
        show(&row.arithmetic, |rate| format!("{rate:.1}")),
    );
    let _ = writeln!(text, "{}", line.trim_end());
}

/// A row that is no operator group: it has no calls and no exact costs.
fn timed(text: &mut String, name: &str, timing: &Timing) {
    let share = timing.share.value().map(percent).unwrap_or_default();
    let line = format!("  {name:<44}{:>11}{share:>8}", show(&timing.median, thousands));
    let _ = writeln!(text, "{}", line.trim_end());
}

fn totals(text: &mut String, replay: &Replay) {
    let total = show(&replay.replay_total_us, thousands);
    let _ = writeln!(text, "  {:<44}{total:>11}   sum of the medians: shares are of this", "replay total");
    if let Some(timing) = replay.whole_pass.known() {
        timed(text, "the pass with all its calls", timing);
    }
    let share = replay.unexplained_share().map_or_else(String::new, |share| format!(" ({})", percent(share)));
    let unexplained = show(&replay.unexplained_us, thousands);
    let _ = writeln!(text, "  {:<44}{unexplained:>11}   the pass less its groups{share}", "unexplained");
    if let Some(timing) = replay.dispatch_floor.known() {
        timed(text, "dispatch floor (in every row once)", timing);
    }
    // A GPU's own times are as they are whoever has the processors.
    if let Some(share) = replay.processor_share.value()
        && share < BUSY
        && !replay.is_by_device()
    {
        let busy = format!("{} of the time: other processes ran, and every time is too long.", percent(share));
        *text += &paragraph("  The workers were on a processor ", &busy, "    ");
    }
    if replay.unexplained_share().is_some_and(|share| share.abs() > UNEXPLAINED) {
        let why = if replay.is_by_device() {
            "more than 5 %: on a GPU a kernel begins while the one before it runs, and a pass overlaps others than a row does."
        } else {
            "more than 5 %: either the machine was not steady (look at the samples' spread), or calls get each other's \
             data from caches in a way that timing them apart does not show."
        };
        *text += &paragraph("  Unexplained is ", why, "    ");
    }
}
