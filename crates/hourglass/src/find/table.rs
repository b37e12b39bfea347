//! What `find` prints for a person: text of at most 100 columns. Numbers come from the record and from nowhere else.
//! Not here: the record's own JSON.

use std::fmt::Write;

use model::Engine;
use ops::Registry;
use record::{FindRecord, GroupRow, Known, NextStep, Phase, Reading, Replay, RequestClock, Timing, Wiring};

use super::next;
use crate::figures::{mebibytes, percent, show, thousands};
use crate::prose::paragraph;

/// Below this share of the processors the machine was too busy to measure on.
const BUSY: f64 = 0.85;

/// The first lines: what is measured.
pub(crate) fn head(description: &str, is_default: bool, load_seconds: f64) -> String {
    let mut text = paragraph("", description, "  ");
    if is_default {
        text += &paragraph(
            "",
            "No --model was given, so this is the embedded default: random weights of exactly this model's shapes. Speed does \
             not depend on weight values.",
            "",
        );
    }
    let _ = writeln!(text, "Ready in {load_seconds:.1} s.\n");
    text
}

/// Everything measured, in reading order: request, wiring, groups per phase, next step, failed checks.
pub(crate) fn body(record: &FindRecord, engine: &Engine, registry: &Registry) -> String {
    let mut text = String::new();
    request(&mut text, record, engine);
    for replay in &record.replays {
        replayed(&mut text, replay);
    }
    conclusion(&mut text, record, engine, registry);
    for check in record.checks.iter().filter(|check| !check.passed) {
        text += &paragraph(
            "",
            &format!(
                "VOID: {}: expected {}, found {}; rely on nothing above.",
                check.name, check.expected, check.found
            ),
            "  ",
        );
    }
    if let Some(reason) = record.coverage.reason() {
        text += &paragraph("", &format!("Incomplete: {reason}."), "  ");
    }
    text
}

fn request(text: &mut String, record: &FindRecord, engine: &Engine) {
    let workload = &record.workload;
    let _ = writeln!(
        text,
        "Request: {} prompt tokens, {} generated (greedy), logits {}, after {} warm-up request{}",
        workload.context_tokens,
        workload.output_tokens,
        workload.logits.name(),
        record.protocol.warmup,
        if record.protocol.warmup == 1 { "" } else { "s" },
    );
    match &record.request {
        Known::Is(clock) => clocked(text, clock, engine),
        Known::Unavailable(missing) => {
            *text += &paragraph("  unavailable: ", &format!("{}; {}", missing.unavailable, missing.how_to_get), "    ");
        }
    }
    for wiring in &record.wiring {
        wired(text, wiring);
    }
    text.push('\n');
}

fn clocked(text: &mut String, clock: &RequestClock, engine: &Engine) {
    let ms = |reading: &Reading| show(reading, |seconds| format!("{:.1} ms", seconds * 1e3));
    let from_us = |reading: &Reading| show(reading, |us| format!("{:.2} ms", us / 1e3));
    let rate = |reading: &Reading| show(reading, |rate| format!("{rate:.1} tok/s"));
    let _ = writeln!(text, "  {:<22}{:>14}{:>16}", "prefill", rate(&clock.prefill_rate), ms(&clock.prefill));
    let _ = writeln!(
        text,
        "  {:<22}{:>14}{:>16}   per token: median {}, p95 {}",
        "decode",
        rate(&clock.decode_rate),
        ms(&clock.decode),
        from_us(&clock.inter_token_median),
        from_us(&clock.inter_token_p95),
    );
    let _ = writeln!(text, "  {:<22}{:>30}", "time to first token", ms(&clock.time_to_first_token));
    let _ = writeln!(text, "  {:<22}{:>14}{:>16}", "whole request", rate(&clock.output_rate), ms(&clock.whole_request));
    let _ = writeln!(
        text,
        "  {:<22}{:>30}   (weights: {}; not resident memory)",
        "peak allocation",
        show(&clock.peak_allocation, mebibytes),
        mebibytes(engine.weight_bytes() as f64),
    );
    if let Some(share) = clock.processor_share.value() {
        let busy = if share < BUSY { "   other processes ran: times are too long" } else { "" };
        let _ = writeln!(text, "  {:<22}{:>30}{busy}", "on a processor", percent(share));
    }
}

fn wired(text: &mut String, wiring: &Wiring) {
    let Wiring { layers, layers_as_planned, passes, calls_per_pass, dispatched, .. } = wiring;
    let _ = writeln!(
        text,
        "  {:<22}{layers_as_planned} of {layers} layers dispatched as planned ({} calls of {}: {calls_per_pass} x {passes})",
        format!("{} wiring", wiring.phase.name()),
        thousands(*dispatched as f64),
        thousands(wiring.planned as f64),
    );
    for deviation in &wiring.deviations {
        let _ = writeln!(text, "    not as planned: {deviation}");
    }
}

fn replayed(text: &mut String, replay: &Replay) {
    let workload = &replay.workload;
    let shape = match workload.phase {
        Phase::Decode => format!("decode step of 1 row after {} cached", workload.context_tokens - 1),
        _ => format!("prefill pass of {} rows", workload.new_rows),
    };
    let _ =
        writeln!(text, "A {shape}, group by group (replayed; medians of {} rounds, in µs)", replay.round_order.len());
    if let Some(reason) = replay.coverage.reason() {
        *text += &paragraph("  incomplete: ", &format!("{reason}; no total"), "    ");
        text.push('\n');
        return;
    }
    let _ = writeln!(
        text,
        "  {:<39}{:>5}{:>12}{:>9}{:>8}{:>9}{:>7}{:>9}",
        "group", "calls", "median", "± MAD", "share", "MB", "GB/s", "GFLOP/s"
    );
    for row in &replay.groups {
        group(text, row);
    }
    for absent in &replay.absent {
        *text += &paragraph(&format!("  {:<39}    - ", absent.group), &absent.why, "    ");
    }
    if let Some(timing) = replay.sampling.known() {
        timed(text, "sampling (argmax)", timing);
    }
    let total = show(&replay.replay_total_us, thousands);
    let _ = writeln!(text, "  {:<44}{total:>12}   sum of the medians: shares are of this", "replay total");
    if let Some(timing) = replay.whole_pass.known() {
        timed(text, "the pass with all its calls", timing);
    }
    let unexplained = show(&replay.unexplained_us, thousands);
    let _ = writeln!(text, "  {:<44}{unexplained:>12}   the pass less the groups alone", "unexplained");
    if let Some(timing) = replay.dispatch_floor.known() {
        timed(text, "dispatch floor (in every group's row)", timing);
    }
    if let Some(row) = replay.largest() {
        let share = show(&row.timing.share, percent);
        let largest = format!("{} ({share}), bound to {}", row.group, row.kernels.join(", "));
        *text += &paragraph("  Largest: ", &largest, "    ");
    }
    if workload.phase == Phase::Decode {
        step_bytes(text, replay);
    }
    text.push('\n');
}

fn group(text: &mut String, row: &GroupRow) {
    let bytes = (row.bytes_read + row.bytes_written) as f64;
    let _ = writeln!(
        text,
        "  {:<39}{:>5}{:>12}{:>9}{:>8}{:>9.2}{:>7}{:>9}",
        row.group,
        row.calls,
        show(&row.timing.median, thousands),
        show(&row.timing.spread, thousands),
        show(&row.timing.share, percent),
        bytes / 1e6,
        show(&row.bandwidth, |rate| format!("{rate:.1}")),
        show(&row.arithmetic, |rate| format!("{rate:.1}")),
    );
}

/// A row that is no operator group: it has no calls and no exact costs.
fn timed(text: &mut String, name: &str, timing: &Timing) {
    let share = timing.share.value().map(percent).unwrap_or_default();
    let line =
        format!("  {name:<44}{:>12}{:>9}{share:>8}", show(&timing.median, thousands), show(&timing.spread, thousands),);
    let _ = writeln!(text, "{}", line.trim_end());
}

fn step_bytes(text: &mut String, replay: &Replay) {
    let bytes: u64 = replay.groups.iter().map(|row| row.bytes_read + row.bytes_written).sum();
    let Some(us) = replay.whole_pass.known().and_then(|timing| timing.median.value()) else { return };
    let _ = writeln!(
        text,
        "  One step must move {} bytes; in {} µs that is {:.1} GB/s.",
        thousands(bytes as f64),
        thousands(us),
        bytes as f64 / us / 1e3
    );
}

fn conclusion(text: &mut String, record: &FindRecord, engine: &Engine, registry: &Registry) {
    let Some(step) = record.next.known() else { return };
    let largest = step.largest_group();
    let part = record.request.known().and_then(|clock| {
        let (prefill, decode) = (clock.prefill.value()?, clock.decode.value()?);
        Some(percent(prefill.max(decode) / (prefill + decode)))
    });
    *text += &paragraph(
        "",
        &format!(
            "Next: {} is the larger phase ({} of prefill and decode), and its largest group is {largest}.",
            step.larger_phase,
            part.unwrap_or_default()
        ),
        "  ",
    );
    let name = engine.checkpoint().name;
    let rungs = next::children(engine, registry);
    for rung in &rungs {
        *text += &paragraph("  ", &format!("After '{name}' comes '{}': {}.", rung.name, rung.change), "    ");
        *text += &paragraph("  ", &format!("It should pay if this is true here: {}.", rung.hypothesis), "    ");
        *text += &paragraph("  ", &format!("Try it on the same request: --checkpoint {}", rung.name), "    ");
    }
    if rungs.is_empty() {
        *text += &paragraph("  ", &format!("The ladder ends at '{name}'. {}", offers(step)), "    ");
    }
}

/// What else the registry has for the larger phase's largest group.
fn offers(step: &NextStep) -> String {
    let write_one = "Write a kernel in crates/lab and run with --solution lab.";
    let group = step.largest_group();
    if step.other_kernels.is_empty() {
        return format!("For {group} the registry has no other kernel for these shapes on this machine. {write_one}");
    }
    let mut by_operator: Vec<(&str, Vec<&str>)> = Vec::new();
    for (operator, kernel) in step.other_kernels.iter().filter_map(|other| other.split_once(": ")) {
        match by_operator.last_mut() {
            Some((known, kernels)) if *known == operator => kernels.push(kernel),
            _ => by_operator.push((operator, vec![kernel])),
        }
    }
    let offers: Vec<String> =
        by_operator.iter().map(|(operator, kernels)| format!("for '{operator}' {}", kernels.join(", "))).collect();
    format!("In {group} the registry also has {}. {write_one}", offers.join("; "))
}
