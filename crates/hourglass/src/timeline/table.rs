//! What `timeline` prints for a person: text of at most 100 columns. Numbers come from the record and from nowhere else.
//! Not here: the trace, and the record's own JSON.

use std::fmt::Write;

use record::timeline::{
    Cause, LaneTime, LostTo, Occupation, OperatorRow, OutlierKind, OverheadUnit, SamplingRung, StepSeries, Straggler,
    TimelineSummary,
};
use record::{Known, Reading, TimelineRecord};

use crate::figures::{mebibytes, percent, show, thousands};
use crate::prose::paragraph;

/// Workers with a column of their own.
const COLUMNS: usize = 3;
/// Operators and outliers that are shown; the record has all.
const ROWS: usize = 12;
const OUTLIERS: usize = 5;
/// Workers that others waited for, and operators of each.
const BLAMED: usize = 3;
/// What an operator's name may take.
const NAME: usize = 38;

/// Everything, in reading order: the request, where its time went, gaps, operators, steps, and what the numbers rest on.
pub(crate) fn body(record: &TimelineRecord) -> String {
    let mut text = String::new();
    request(&mut text, record);
    occupation(&mut text, &record.summary);
    device(&mut text, record);
    lost(&mut text, &record.summary);
    gaps(&mut text, &record.summary);
    operators(&mut text, &record.summary);
    for series in &record.summary.steps {
        steps(&mut text, series);
    }
    evidence(&mut text, record);
    for check in record.checks.iter().filter(|check| !check.passed) {
        let found =
            format!("{}: expected {}, found {}; rely on nothing above.", check.name, check.expected, check.found);
        text += &paragraph("VOID: ", &found, "  ");
    }
    if let Some(reason) = record.summary.coverage.reason() {
        text += &paragraph("", &format!("Incomplete: {reason}."), "  ");
    }
    text
}

fn ms(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 1.0 { format!("{ms:.3}") } else { format!("{ms:.1}") }
}

fn share(part: u64, whole: u64) -> String {
    percent(part as f64 / whole.max(1) as f64)
}

fn request(text: &mut String, record: &TimelineRecord) {
    let (workload, summary) = (&record.workload, &record.summary);
    let traced = match workload.phase {
        record::Phase::Request => "the whole request",
        record::Phase::Prefill => "its prefill",
        record::Phase::Decode => "its decode steps",
    };
    let words = format!(
        "A request of {} prompt tokens, {} generated (greedy), traced once after {} warm-up: {traced}",
        workload.context_tokens, workload.output_tokens, record.warmup
    );
    *text += &paragraph("", &words, "  ");
    let _ = writeln!(text, "  {:<26}{:>11} ms", "wall", ms(summary.wall_ns));
    for phase in &summary.phases {
        let _ = writeln!(text, "  {:<26}{:>11} ms", phase.name, ms(phase.wall_ns));
    }
    let cpu = show(&record.main_thread_cpu, |seconds| format!("{:.1}", seconds * 1e3));
    let among = if on_device(summary) { "waiting for the GPU" } else { "worker 0's computing" };
    let _ = writeln!(text, "  {:<26}{cpu:>11} ms   ({among} among it)", "main thread on a processor");
    let _ = writeln!(
        text,
        "  {:<26}{:>14}   (keys and values: {})",
        "peak allocation",
        show(&record.peak_allocation, mebibytes),
        show(&record.kv_allocation, mebibytes)
    );
    let _ = writeln!(
        text,
        "  {:<26}{:>14}   a {} not to be added to the CPU time\n",
        "device busy",
        show(&summary.device.busy_share, percent),
        if on_device(summary) { "kernel runs on the GPU;" } else { "worker computes;" }
    );
}

/// Whether a device's streams were traced in place of workers.
fn on_device(summary: &TimelineSummary) -> bool {
    summary.lanes.iter().any(|lane| lane.kind == "stream")
}

/// What the device's own profiler recorded, and how far it can be relied on.
fn device(text: &mut String, record: &TimelineRecord) {
    let Known::Is(found) = &record.device else { return };
    let count = |number: u64| thousands(number as f64);
    let words = format!(
        "{} kernels of the request were launched, {} of them in replayed graphs; {} were recorded, {} records dropped ({}). \
         For {} ms a kernel had started while the one before it still ran; that time is the one before\'s. The clocks agree \
         within {} ns and drifted apart by {} ns. Its memory\'s peak: {}",
        count(found.launched),
        count(found.in_graphs),
        count(found.recorded),
        count(found.dropped),
        found.profiler,
        ms(found.overlapped_ns),
        count(found.clock_error_ns),
        found.clock_drift_ns,
        show(&found.peak_allocation, mebibytes),
    );
    *text += &paragraph("GPU: ", &words, "  ");
    let words = match &found.pauses {
        Known::Is(pauses) => format!(
            "{} of a step, whose median is {}: of a request without the profiler, which makes steps longer and lets none \
             begin ahead; {:.1} µs of it between the kernels of a graph",
            show(&pauses.idle_share, percent),
            show(&pauses.step, |seconds| format!("{:.3} ms", seconds * 1e3)),
            found.gaps_in_graph_ns as f64 / 1e3
        ),
        Known::Unavailable(missing) => missing.unavailable.clone(),
    };
    *text += &paragraph("GPU idle: ", &words, "  ");
    text.push('\n');
}

fn occupation(text: &mut String, summary: &TimelineSummary) {
    let lanes: &[LaneTime] = if summary.lanes.len() <= COLUMNS { &summary.lanes } else { &summary.lanes[..COLUMNS] };
    let _ = write!(text, "Where the time went: ms and share of the wall\n  {:<30}{:>15}", "", "device");
    for lane in lanes {
        let _ = write!(text, "{:>15}", lane.name);
    }
    text.push('\n');
    let columns: Vec<&Occupation> =
        std::iter::once(&summary.device).chain(lanes.iter().map(|lane| &lane.occupation)).collect();
    let mut row = |name: &str, times: Vec<u64>| {
        let cell = |ns: u64| format!("{:>7}{:>8}", ms(ns), share(ns, summary.wall_ns));
        let cells: String = times.into_iter().map(cell).collect();
        let _ = writeln!(text, "  {name:<30}{cells}");
    };
    row("busy", columns.iter().map(|column| column.busy_ns).collect());
    for cause in Cause::ALL {
        let times: Vec<u64> = columns.iter().map(|column| column.lost_to(cause)).collect();
        if times.iter().any(|ns| *ns > 0) {
            row(&format!("idle: {}", cause.name()), times);
        }
    }
    if summary.lanes.len() > lanes.len() {
        let _ = writeln!(text, "  ({} more workers are in the record)", summary.lanes.len() - lanes.len());
    }
    for lane in lanes.iter().filter(|lane| !lane.awaited.is_empty()) {
        let parts: Vec<String> =
            lane.awaited.iter().map(|time| format!("{} {} ms", time.what.name(), ms(time.wall_ns))).collect();
        let lead = format!("  {} at barriers, by what the last to arrive did: ", lane.name);
        *text += &paragraph(&lead, &parts.join(", "), "    ");
    }
    text.push('\n');
}

/// What idle time comes down to, and who is to blame where it was a worker.
fn lost(text: &mut String, summary: &TimelineSummary) {
    let all: u64 = summary.lost.iter().map(|time| time.wall_ns).sum();
    if all == 0 {
        return;
    }
    let whole = summary.wall_ns.saturating_mul(summary.lanes.len() as u64);
    let _ = match on_device(summary) {
        true => writeln!(text, "What the streams' time was lost to: ms of all streams and share of their time"),
        false => writeln!(
            text,
            "What the workers' time was lost to in the end: ms of all workers and share of their time\n\
             (a wait at a barrier counts for what the last to come did meanwhile)"
        ),
    };
    for time in &summary.lost {
        let _ = writeln!(text, "  {:<50}{:>9}{:>8}", time.to.name(), ms(time.wall_ns), share(time.wall_ns, whole));
        if time.to == LostTo::SlowestWorker {
            blame(text, &summary.stragglers);
        }
    }
    if on_device(summary) {
        *text += &paragraph(
            "  ",
            "(dispatch: within a pass, before its first kernel, between its kernels, and until the host knows of its end; recording \
             every kernel makes it longer, and the GPU's idle share above is without that)",
            "  ",
        );
    }
    text.push('\n');
}

/// The worker that was waited for longest, and in which operators.
fn blame(text: &mut String, stragglers: &[Straggler]) {
    let mut workers: Vec<(&str, u64)> = Vec::new();
    for straggler in stragglers {
        match workers.iter_mut().find(|(worker, _)| *worker == straggler.worker) {
            Some((_, waited)) => *waited += straggler.waited_ns,
            None => workers.push((&straggler.worker, straggler.waited_ns)),
        }
    }
    workers.sort_by_key(|(_, waited)| std::cmp::Reverse(*waited));
    let all: u64 = workers.iter().map(|(_, waited)| waited).sum();
    for (worker, waited) in workers.iter().take(BLAMED) {
        let own = stragglers.iter().filter(|straggler| straggler.worker == *worker);
        let operators: Vec<String> = own
            .take(BLAMED)
            .map(|straggler| format!("{} {} ms", shortened(&straggler.operator, NAME), ms(straggler.waited_ns)))
            .collect();
        let lead = format!("    for {worker} ({}): ", share(*waited, all));
        *text += &paragraph(&lead, &operators.join(", "), "      ");
    }
}

fn gaps(text: &mut String, summary: &TimelineSummary) {
    if summary.gaps.is_empty() {
        return;
    }
    let idle = if on_device(summary) { "no kernel runs" } else { "no worker computes" };
    let _ = writeln!(text, "The longest gaps: {idle}\n  {:>11}{:>10}  why; what CPU samples saw", "at ms", "µs");
    for gap in &summary.gaps {
        let causes: Vec<String> = gap
            .by_cause
            .iter()
            .take(2)
            .map(|time| match gap.by_cause.len() {
                1 => time.cause.name().to_owned(),
                _ => format!("{} {}", time.cause.name(), share(time.wall_ns, gap.wall_ns)),
            })
            .collect();
        let mut words = causes.join(", ");
        if let Some(top) = gap.top.first() {
            let _ = write!(words, "; {} of {} samples in {}", top.samples, gap.samples, shortened(&top.function, 40));
        }
        let lead = format!(
            "  {:>11}{:>10}  ",
            format!("{:.3}", gap.start_ns as f64 / 1e6),
            thousands(gap.wall_ns as f64 / 1e3)
        );
        *text += &paragraph(&lead, &words, "                         ");
    }
    text.push('\n');
}

fn operators(text: &mut String, summary: &TimelineSummary) {
    let workers = summary.lanes.len() as u64;
    let _ = match on_device(summary) {
        true => writeln!(
            text,
            "Operators: launches, and the time from the end of the kernel before (or its own start) to its end\n  \
             {:<NAME$}{:>8}{:>11}{:>8}",
            "operator", "calls", "ms", "share"
        ),
        false => writeln!(
            text,
            "Operators: mean of the workers, and what sharing unevenly costs\n  \
             {:<NAME$}{:>8}{:>11}{:>8}  {:<12}{:>7}{:>9}",
            "operator", "calls", "ms", "share", "slowest", "by", "lost ms"
        ),
    };
    for operator in summary.operators.iter().take(ROWS) {
        let _ = writeln!(text, "{}", operator_row(operator, workers, summary.wall_ns).trim_end());
    }
    if summary.operators.len() > ROWS {
        let _ = writeln!(text, "  ({} shorter ones are in the record)", summary.operators.len() - ROWS);
    }
    text.push('\n');
}

fn operator_row(row: &OperatorRow, workers: u64, wall_ns: u64) -> String {
    let mean = row.wall_ns.iter().sum::<u64>() / workers.max(1);
    let calls = row.calls.iter().copied().max().unwrap_or(0);
    let (slowest, by, lost) = match row.imbalance.known() {
        Some(imbalance) => (
            imbalance.slowest.clone(),
            show(&imbalance.slowest_over_mean, |over| format!("+{:.0} %", 100.0 * over)),
            ms(imbalance.lost_ns),
        ),
        None => (String::new(), String::new(), String::new()),
    };
    let name = shortened(&row.operator, NAME);
    let calls = thousands(calls as f64);
    format!("  {name:<NAME$}{calls:>8}{:>11}{:>8}  {slowest:<12}{by:>7}{lost:>9}", ms(mean), share(mean, wall_ns))
}

fn steps(text: &mut String, series: &StepSeries) {
    let from_s = |reading: &Reading| show(reading, |seconds| format!("{:.3} ms", seconds * 1e3));
    let _ = writeln!(
        text,
        "{}: {} of them, median {} ± {} (median absolute deviation)",
        series.name,
        series.steps.len(),
        from_s(&series.median),
        from_s(&series.spread)
    );
    let _ = writeln!(text, "  of it the device is idle for {} in the median", show(&series.idle_share, percent));
    match &series.outliers {
        Known::Unavailable(missing) => *text += &paragraph("  outliers: ", &missing.unavailable, "    "),
        Known::Is(outliers) if outliers.is_empty() => text.push_str("  no outliers\n"),
        Known::Is(outliers) => {
            for outlier in outliers.iter().take(OUTLIERS) {
                let cause = match &outlier.cause {
                    Known::Is(cause) => {
                        let what = match &cause.what {
                            OutlierKind::Idle(cause) => cause.name().to_owned(),
                            OutlierKind::Operator(name) => format!("{name} computed longer"),
                        };
                        format!("{what} (+{} ms)", ms(cause.excess_ns))
                    }
                    Known::Unavailable(missing) => missing.unavailable.clone(),
                };
                let lead =
                    format!("  number {}: {} ms, {} above: ", outlier.step, ms(outlier.wall_ns), ms(outlier.excess_ns));
                *text += &paragraph(&lead, &cause, "    ");
            }
            if outliers.len() > OUTLIERS {
                let _ = writeln!(text, "  ({} more are in the record)", outliers.len() - OUTLIERS);
            }
        }
    }
}

fn evidence(text: &mut String, record: &TimelineRecord) {
    let sampling = &record.sampling;
    let way = match sampling.rung {
        SamplingRung::Cycles => "hardware cycles",
        SamplingRung::CpuClock => "the kernel's CPU clock (perf events)",
        SamplingRung::ThreadTimer => "a timer per thread",
        SamplingRung::None => "none",
    };
    let mut words = way.to_owned();
    if let Known::Is(frequency) = sampling.frequency_hz {
        let lost = sampling.lost.known().map_or_else(|| "n/a".to_owned(), |lost| thousands(*lost as f64));
        let _ = write!(words, ", {} at {frequency} Hz, {lost} lost", thousands(sampling.samples as f64));
    }
    let _ = write!(words, " ({})", sampling.why);
    text.push('\n');
    *text += &paragraph("CPU samples: ", &words, "  ");
    let words = match &record.overhead {
        Known::Unavailable(missing) => missing.unavailable.clone(),
        Known::Is(overhead) => {
            // An interval from a few requests on a busy machine has ends that mean nothing but "unknown".
            let signed = |reading: &Reading| {
                show(reading, |share| match share {
                    ..10.0 => format!("{:+.1} %", 100.0 * share),
                    _ => "more than +1,000 %".to_owned(),
                })
            };
            let (one, all) = match overhead.of {
                OverheadUnit::Prefill => ("prefill", "prefills"),
                OverheadUnit::DecodeStep => ("decode step", "decode steps"),
            };
            format!(
                "{} of a {one} (95 % interval {} to {}), from {} {all} with and without it in turn",
                signed(&overhead.share),
                signed(&overhead.low),
                signed(&overhead.high),
                thousands(overhead.samples.len() as f64)
            )
        }
    };
    *text += &paragraph("Tracing costs: ", &words, "  ");
}

/// Without generic parameters, and of what is still too long the end: it says more than the beginning.
fn shortened(name: &str, most: usize) -> String {
    let mut depth = 0_usize;
    let plain: String = name
        .chars()
        .filter(|letter| {
            match letter {
                '<' => depth += 1,
                '>' => depth = depth.saturating_sub(1),
                _ => return depth == 0,
            }
            false
        })
        .collect();
    let length = plain.chars().count();
    if length <= most { plain } else { std::iter::once('…').chain(plain.chars().skip(length - (most - 1))).collect() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// The handbook's trace of workers, and the same numbers as if they were a device's.
    #[test]
    fn what_a_devices_time_was_lost_to_is_told_in_its_words() {
        let bytes = include_bytes!("../../../../docs/example/find/timeline.json");
        let mut record: TimelineRecord = record::read("timeline.json", bytes).unwrap();
        let flat = |record: &TimelineRecord| body(record).split_whitespace().collect::<Vec<_>>().join(" ");
        let of_workers = flat(&record);
        assert!(of_workers.contains("ms of all workers") && !of_workers.contains("(dispatch: "), "{of_workers}");
        record.summary.lanes.iter_mut().for_each(|lane| "stream".clone_into(&mut lane.kind));
        let of_streams = flat(&record);
        for words in ["What the streams' time was lost to", "(dispatch: within a pass, before its first kernel"] {
            assert!(of_streams.contains(words), "{words} is missing:\n{of_streams}");
        }
        assert!(
            !of_streams.contains("ms of all workers") && !of_streams.contains("no worker computes"),
            "{of_streams}"
        );
    }

    #[test]
    fn names_lose_their_parameters_first_and_their_beginning_then() {
        assert_eq!(shortened("probe::run<ops::Both<A, B>, Notes>", 40), "probe::run");
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "…cdefg");
    }
}
