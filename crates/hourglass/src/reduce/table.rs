//! What `reduce` prints for a person: text of at most 100 columns. Numbers come from the record and from nowhere else.
//! Not here: the record's own JSON.

use std::fmt::Write;

use record::capture::lines::LineTree;
use record::capture::raw::CounterKind;
use record::capture::reduced::counters::{CounterOrigin, CounterTree};
use record::capture::reduced::device::DeviceTree;
use record::capture::reduced::instructions::InstructionTree;
use record::capture::reduced::kernels::{KernelRow, KernelTree};
use record::capture::{CAUTION, Cost, Place};
use record::{CaptureRecord, Known};

use crate::figures::{percent, show, thousands};
use crate::prose::paragraph;

/// Rows of each kind; the record has more.
const ROWS: usize = 12;
const LINES: usize = 5;
const NAME: usize = 29;

/// Everything, in reading order.
pub(crate) fn body(record: &CaptureRecord) -> String {
    let mut text = String::new();
    head(&mut text, record);
    match &record.kernels {
        Known::Is(tree) => kernels(&mut text, tree, record.device.known().is_some()),
        Known::Unavailable(missing) => unavailable(&mut text, "Kernels", missing),
    }
    match &record.device {
        Known::Is(tree) => gpu(&mut text, tree),
        Known::Unavailable(missing) if record.conditions.host.device != "cpu" => {
            unavailable(&mut text, "Counters of the GPU", missing);
        }
        Known::Unavailable(_) => {}
    }
    match &record.lines {
        Known::Is(tree) => lines(&mut text, tree),
        Known::Unavailable(missing) => unavailable(&mut text, "Source lines", missing),
    }
    match &record.instructions {
        Known::Is(tree) => instructions(&mut text, tree),
        Known::Unavailable(missing) => unavailable(&mut text, "Instructions", missing),
    }
    match &record.counters {
        Known::Is(tree) => counters(&mut text, tree),
        Known::Unavailable(missing) => unavailable(&mut text, "Counters", missing),
    }
    for check in record.checks.iter().filter(|check| !check.passed) {
        let found =
            format!("{}: expected {}, found {}; rely on nothing above.", check.name, check.expected, check.found);
        text += &paragraph("VOID: ", &found, "  ");
    }
    text += &paragraph("", CAUTION, "");
    text
}

fn unavailable(text: &mut String, what: &str, missing: &record::Unavailable) {
    *text += &paragraph(
        &format!("\n{what}: unavailable: "),
        &format!("{}. How to get it: {}.", missing.unavailable, missing.how_to_get),
        "  ",
    );
}

fn head(text: &mut String, record: &CaptureRecord) {
    let (workload, stretch) = (&record.workload, &record.stretch);
    let overhead = match &stretch.overhead {
        Known::Is(reading) => show(reading, |share| format!("{:+.1} %", 100.0 * share)),
        Known::Unavailable(missing) => format!("unknown ({})", missing.unavailable),
    };
    let words = format!(
        "{} {} at S = {}, C = {}, of {}: {} passes in {:.2} s after {} to warm up, {} samples; capturing cost {overhead}",
        record.subject.checkpoint,
        workload.phase.name(),
        workload.context_tokens,
        workload.capacity,
        workload.model,
        thousands(stretch.steps as f64),
        stretch.wall_ns as f64 / 1e9,
        stretch.warmup,
        thousands(stretch.sampling.samples as f64),
    );
    *text += &paragraph("", &words, "  ");
}

/// Waits of a kernel that are named.
const WAITS: usize = 2;

fn gpu(text: &mut String, tree: &DeviceTree) {
    let _ = writeln!(
        text,
        "\nThe GPU's counters, kernel by kernel: {} launches, each alone and with empty caches; shares of peaks\n\
         {:<NAME$}{:>6}{:>9}{:>10}{:>8}{:>7}{:>8}  warps wait for",
        tree.launches, "kernel", "calls", "us each", "MB read", "memory", "SM", "tensor",
    );
    for kernel in tree.kernels.iter().take(ROWS) {
        let each = kernel.launches.max(1) as f64;
        let waits: Vec<String> = kernel
            .stalls
            .iter()
            .filter(|row| !["selected", "not_selected"].contains(&row.reason.as_str()))
            .take(WAITS)
            .map(|row| format!("{} {:.0} %", row.reason, 100.0 * row.samples as f64 / kernel.samples.max(1) as f64))
            .collect();
        let whole = |share: f64| format!("{:.0} %", 100.0 * share);
        let _ = writeln!(
            text,
            "{:<NAME$}{:>6}{:>9}{:>10}{:>8}{:>7}{:>8}  {}",
            cut(&format!("{} {}", kernel.operator, kernel.kernel), NAME - 1),
            kernel.launches,
            show(&kernel.time, |us| format!("{:.1}", us / each)),
            show(&kernel.dram_read, |bytes| format!("{:.2}", bytes / each / 1e6)),
            show(&kernel.dram_share, whole),
            show(&kernel.sm_share, whole),
            show(&kernel.tensor_share, whole),
            waits.join(", ")
        );
    }
    if tree.kernels.len() > ROWS {
        let _ = writeln!(text, "({} more are in the record)", tree.kernels.len() - ROWS);
    }
}

/// `61.2 % (58.1-64.2)`.
fn interval(cost: &Cost) -> String {
    let share = cost.share;
    format!("{:.1} % ({:.1}-{:.1})", 100.0 * share.value, 100.0 * share.low, 100.0 * share.high)
}

fn kernels(text: &mut String, tree: &KernelTree, on_gpu: bool) {
    let _ = writeln!(
        text,
        "\n{}: {} samples, 95 % intervals; kernels of one rank cannot be told apart\n\
         {:>4} {:<NAME$}{:>6}{:>21}{:>9}{:>8} limited by",
        if on_gpu { "The GPU's time" } else { "Workers' time" },
        thousands(tree.samples as f64),
        "rank",
        "kernel",
        "calls",
        "share",
        "us/call",
        "GB/s",
    );
    for row in tree.rows.iter().take(ROWS) {
        let _ = writeln!(
            text,
            "{:>4} {:<NAME$}{:>6}{:>21}{:>9}{:>8} {}",
            row.rank,
            cut(&name(row), NAME - 1),
            row.calls,
            interval(&row.cost),
            show(&row.per_dispatch, |us| if us < 100.0 { format!("{us:.1}") } else { thousands(us) }),
            show(&row.bandwidth, |rate| format!("{rate:.1}")),
            limited(row),
        );
    }
    if tree.rows.len() > ROWS {
        let _ = writeln!(text, "     ({} more are in the record)", tree.rows.len() - ROWS);
    }
    let pauses = [(Place::BarrierWait, &tree.barrier_wait), (Place::Dispatch, &tree.dispatch)];
    for (place, pause) in pauses.into_iter().skip(usize::from(on_gpu)) {
        let clocked = show(&pause.clocked_share, percent);
        let _ = writeln!(
            text,
            "     {:<NAME$}{:>6}{:>21}   by the clock: {clocked}",
            place.to_string(),
            "",
            interval(&pause.cost)
        );
    }
    if on_gpu {
        text.push_str("     (dispatch: kernels of the device's own, which are in no call)\n");
    }
    let _ = writeln!(
        text,
        "     not counted: {} samples outside the passes, {} of threads that are no workers",
        thousands(tree.uncounted.outside_passes as f64),
        thousands(tree.uncounted.other_threads as f64)
    );
    for row in tree.rows.iter().take(3) {
        let sure = row.limiter.sure.name();
        *text += &paragraph(&format!("  {}: ", name(row)), &format!("{} ({sure}).", row.limiter.how), "    ");
    }
}

fn limited(row: &KernelRow) -> String {
    match &row.limiter.verdict {
        Known::Is(bound) => format!("{} ({})", bound.name(), row.limiter.sure.name()),
        Known::Unavailable(_) => "n/a".to_owned(),
    }
}

fn lines(text: &mut String, tree: &LineTree) {
    let unverified = tree.files.iter().filter(|file| !file.verification.is_verified()).count();
    let _ = writeln!(
        text,
        "\nThe dearest lines of the dearest kernels, of each kernel's samples (`hourglass lines` shows all)\n\
         {:>4}{:>22}{:>9}  line",
        "rank", "self in repository", "self"
    );
    for place in tree.places.iter().filter(|place| matches!(place.place, Place::Kernel { .. })).take(3) {
        let _ = writeln!(text, "  {}", cut(&place.place.to_string(), 90));
        for row in place.rows.iter().take(LINES) {
            let rank = row.rank.map(|rank| rank.to_string()).unwrap_or_default();
            let mark = if row.verified || !row.in_repository { "" } else { " (unverified)" };
            let _ = writeln!(
                text,
                "{rank:>4}{:>22}{:>9}  {}{mark}",
                interval(&row.self_in_repository),
                percent(row.self_innermost.share.value),
                cut(&format!("{}:{}", row.file, row.line), 48)
            );
        }
    }
    if unverified > 0 {
        let why = tree.files.iter().find_map(|file| match &file.verification {
            record::capture::lines::Verification::Verified => None,
            record::capture::lines::Verification::Unverified { why } => Some(format!("{}: {why}", file.file)),
        });
        let words = format!("{unverified} of {} files; {}", tree.files.len(), why.unwrap_or_default());
        *text += &paragraph("  unverified: ", &words, "    ");
    }
}

fn instructions(text: &mut String, tree: &InstructionTree) {
    text.push_str("\nHot loops: instructions by class (in the code, then samples)\n");
    for kernel in tree.kernels.iter().take(3) {
        let lead = format!("  {}: ", short(&kernel.operator, &kernel.kernel));
        let words = match &kernel.hot_loop {
            Known::Unavailable(missing) => missing.unavailable.clone(),
            Known::Is(hot) => {
                let classes: Vec<String> = hot
                    .classes
                    .iter()
                    .map(|row| format!("{} {} ({})", row.instructions, row.class.name(), row.samples))
                    .collect();
                let share = percent(hot.samples as f64 / hot.kernel_samples.max(1) as f64);
                format!("{} instructions with {share} of its samples: {}", hot.instructions, classes.join(", "))
            }
        };
        *text += &paragraph(&lead, &words, "    ");
    }
    *text += &paragraph("  ", &format!("{}.", tree.skid), "    ");
}

fn counters(text: &mut String, tree: &CounterTree) {
    text.push_str("\nCounters\n");
    let mut missing: Vec<(String, Vec<&str>)> = Vec::new();
    for row in &tree.rows {
        match &row.count {
            Known::Is(count) => {
                let from = match (row.origin, row.kind) {
                    (_, CounterKind::Simulated) => "one simulated pass",
                    (CounterOrigin::Trace, _) => "captured passes",
                    (CounterOrigin::PerfStat, _) => "perf stat",
                };
                let _ = writeln!(text, "  {:<30}{:>20}   {from}", row.name, thousands(*count));
            }
            Known::Unavailable(why) => {
                let reason = format!("{} ({})", why.unavailable, why.how_to_get);
                match missing.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, names)) => names.push(&row.name),
                    None => missing.push((reason, vec![&row.name])),
                }
            }
        }
    }
    for rate in &tree.rates {
        let _ = writeln!(text, "  {:<40}{:>10.3}", rate.name, rate.value);
    }
    for (reason, names) in missing {
        *text += &paragraph("  unavailable: ", &format!("{}: {reason}", names.join(", ")), "    ");
    }
    match &tree.simulated {
        Known::Is(simulated) => {
            let features = simulated.simulation.known().map_or_else(
                || "features unknown".to_owned(),
                |simulation| format!("{} with {}", simulation.tool, simulation.features.join(", ")),
            );
            let words = format!(
                "{} {} in one pass, on another dispatch path than the captured one ({features})",
                thousands(simulated.total as f64),
                simulated.event
            );
            *text += &paragraph("  simulated: ", &words, "    ");
            for function in simulated.functions.iter().take(LINES) {
                let share = percent(function.own as f64 / simulated.total.max(1) as f64);
                let _ = writeln!(text, "    {share:>7}  {}", cut(&function.function, 80));
            }
        }
        Known::Unavailable(why) => {
            *text +=
                &paragraph("  simulated: unavailable: ", &format!("{} ({})", why.unavailable, why.how_to_get), "    ");
        }
    }
}

fn name(row: &KernelRow) -> String {
    short(&row.operator, &row.kernel)
}

fn short(operator: &str, kernel: &str) -> String {
    format!("{operator}: {kernel}")
}

/// At most `most` characters; the end says more than the beginning.
fn cut(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        name.to_owned()
    } else {
        std::iter::once('…').chain(name.chars().skip(length - (most - 1))).collect()
    }
}
