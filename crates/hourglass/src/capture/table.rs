//! What `hourglass capture` prints: what was captured and where it is. Never which kernel or line costs what.
//! Not here: the numbers (`probe`), and kernels and lines (`reduce`, `lines`).

use record::capture::raw::{CounterKind, RawCounter};
use record::capture::{Ended, Simulation};
use record::{CaptureMetadata, Known, Phase};

use super::Paths;
use crate::prose;

pub(super) fn body(record: &CaptureMetadata, counters: &[RawCounter], paths: &Paths) -> String {
    let mut text = format!("{}{}{}", stretch(record), sampling(record), overhead(record));
    text.push_str(&self::counters(record, counters));
    text.push_str(&format!(
        "\n{}: {} files, {:.1} MB\n{}\n{}\n",
        paths.trace.display(),
        record.trace.files,
        record.trace.bytes as f64 / 1e6,
        paths.manifest.display(),
        paths.metadata.display()
    ));
    text.push_str(&format!(
        "\nKernels, counters and lines: hourglass reduce --capture-metadata {} \\\n    --manifest {} --trace {} --output NEW.json\n",
        paths.metadata.display(),
        paths.manifest.display(),
        paths.trace.display()
    ));
    for check in record.checks.iter().filter(|check| !check.passed) {
        text.push_str(&paragraph(&format!(
            "VOID: {}: expected {}, found {}. Capture again, at a lower --frequency.",
            check.name, check.expected, check.found
        )));
    }
    text
}

fn stretch(record: &CaptureMetadata) -> String {
    let workload = &record.workload;
    let pass = match workload.phase {
        Phase::Decode => format!("decode step at context {}", workload.context_tokens),
        _ => format!("prefill of {} rows, logits of {}", workload.new_rows, workload.logits.name()),
    };
    let ended = match record.ended {
        Ended::AsAsked => "",
        Ended::AtMost => "; more were asked for than are captured at once",
        Ended::Interrupted => "; interrupted",
    };
    paragraph(&format!(
        "{pass}, cache of {} positions: {} passes in {:.3} s, after {} to warm up{ended}.",
        workload.capacity,
        record.steps,
        record.wall_ns as f64 / 1e9,
        record.warmup
    ))
}

fn sampling(record: &CaptureMetadata) -> String {
    let sampling = &record.sampling;
    let rate = sampling.frequency_hz.known().map_or_else(String::new, |hz| format!(" at {hz} Hz and thread"));
    let lost = match &sampling.lost {
        Known::Is(lost) => format!("{lost} lost"),
        Known::Unavailable(missing) => format!("lost ones: {}", missing.unavailable),
    };
    let mut text = format!("CPU samples: {}{rate}, {lost} ({}).", sampling.samples, sampling.why);
    match &record.precision {
        Known::Is(half_width) => text.push_str(&format!(
            " A kernel's share of them is known to {:.1} percentage points or better (95 %).",
            100.0 * half_width
        )),
        Known::Unavailable(missing) => text.push_str(&format!(" Precision: {}.", missing.unavailable)),
    }
    paragraph(&text)
}

fn overhead(record: &CaptureMetadata) -> String {
    let share = match &record.overhead {
        Known::Is(Known::Is(share)) => format!(
            "A captured pass takes {:+.1} % compared with a plain one (medians of {} passes in alternation).",
            100.0 * share.value(),
            share.n()
        ),
        Known::Is(Known::Unavailable(missing)) | Known::Unavailable(missing) => {
            format!("What capturing costs: {}.", missing.unavailable)
        }
    };
    paragraph(&format!("{share} {}", record.caution))
}

fn counters(record: &CaptureMetadata, counters: &[RawCounter]) -> String {
    let mut text = String::from("\n");
    for (kind, name) in [
        (CounterKind::Hardware, "Hardware counters"),
        (CounterKind::Software, "Software counters"),
        (CounterKind::Simulated, "Simulated counters, of one pass"),
    ] {
        let own: Vec<&RawCounter> = counters.iter().filter(|counter| counter.kind == kind).collect();
        if own.is_empty() {
            continue;
        }
        let counted: Vec<String> =
            own.iter().filter_map(|counter| Some(format!("{} {:.0}", counter.name, counter.count.known()?))).collect();
        let mut reasons: Vec<String> = own
            .iter()
            .filter_map(|counter| counter.count.missing())
            .map(|missing| format!("unavailable: {} (to get them: {})", missing.unavailable, missing.how_to_get))
            .collect();
        reasons.dedup();
        let parts: Vec<String> = counted.into_iter().chain(reasons).collect();
        text.push_str(&paragraph(&format!("{name}: {}.", parts.join(", "))));
    }
    match &record.simulation {
        Known::Is(simulation) => text.push_str(&paragraph(&simulated(record, simulation))),
        Known::Unavailable(missing) if missing.unavailable == super::callgrind::NOT_ASKED => {}
        Known::Unavailable(missing) => text.push_str(&paragraph(&format!(
            "Simulation: unavailable: {} (to get it: {}).",
            missing.unavailable, missing.how_to_get
        ))),
    }
    text
}

fn simulated(record: &CaptureMetadata, simulation: &Simulation) -> String {
    let other = simulation.kernels.iter().filter(|kernel| !record.conditions.kernels.contains(kernel)).count();
    let path = match other {
        0 => "with the kernels that were captured".to_owned(),
        _ => format!("on another dispatch path: {other} of {} kernels are others", simulation.kernels.len()),
    };
    format!("{} ran one pass on one thread, {path} (features {}).", simulation.tool, simulation.features.join(", "))
}

fn paragraph(words: &str) -> String {
    prose::paragraph("", words, "")
}
