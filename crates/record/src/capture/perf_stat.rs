//! Counters as `perf stat -j` writes them: one JSON object per line, with whatever else is printed in between.
//! Not here: running perf. The keys are those of perf's manual page, "JSON FORMAT".

use crate::capture::raw::CounterKind;
use crate::capture::reduced::counters::{CounterOrigin, CounterRow, ProfileUse};
use crate::known::Known;
use serde_json::Value;

/// The largest file that is read.
pub const MAX_PROFILE_BYTES: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(
        "{name}: {bytes} bytes is more than the largest size of {MAX_PROFILE_BYTES}; give the output of `perf stat -j`"
    )]
    TooLarge { name: String, bytes: usize },
    #[error(
        "{name}: expected an object with \"event\" and \"counter-value\" in each line, as `perf stat -j` writes them; found \
         none in {lines} lines"
    )]
    Nothing { name: String, lines: u64 },
}

/// Reads the lines; of an event that comes several times (per interval or processor) the counts are added. An event that was
/// not counted is unavailable with perf's words; `running` is the least that was seen.
///
/// # Errors
/// No counter at all, or a file far too large for one.
pub fn parse(name: &str, bytes: &[u8]) -> Result<(Vec<CounterRow>, ProfileUse), ProfileError> {
    if bytes.len() > MAX_PROFILE_BYTES {
        return Err(ProfileError::TooLarge { name: name.to_owned(), bytes: bytes.len() });
    }
    let text = String::from_utf8_lossy(bytes);
    let mut rows: Vec<CounterRow> = Vec::new();
    let (mut skipped, mut lines) = (0, 0);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        lines += 1;
        match counter(line) {
            Some(row) => add(&mut rows, row),
            None => skipped += 1,
        }
    }
    if rows.is_empty() {
        return Err(ProfileError::Nothing { name: name.to_owned(), lines });
    }
    let counters = rows.len() as u64;
    Ok((rows, ProfileUse { counters, skipped_lines: skipped }))
}

fn counter(line: &str) -> Option<CounterRow> {
    let value: Value = serde_json::from_str(line).ok()?;
    let name = value.get("event")?.as_str()?.trim();
    let counted = value.get("counter-value")?;
    if name.is_empty() {
        return None;
    }
    let number = |value: &Value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse::<f64>().ok(),
        _ => None,
    };
    let finite = |value: &Value| number(value).filter(|number| number.is_finite() && *number >= 0.0);
    // perf writes times of its software clocks in milliseconds.
    let scale = if value.get("unit").and_then(Value::as_str) == Some("msec") { 1e6 } else { 1.0 };
    let count = match finite(counted) {
        Some(count) => Known::Is(count * scale),
        None => {
            let words = counted.as_str().unwrap_or("no number").trim().trim_matches(['<', '>']).to_owned();
            let words = if words.is_empty() { "perf gave no count".to_owned() } else { words };
            Known::unavailable(words, "a processor and a system on which `perf stat` counts this event")
        }
    };
    let running = match value.get("pcnt-running").and_then(finite).filter(|percent| *percent <= 100.5) {
        Some(percent) => Known::Is((percent / 100.0).min(1.0)),
        None => Known::unavailable("the file does not say", "a newer perf writes \"pcnt-running\""),
    };
    Some(CounterRow { name: name.to_owned(), kind: kind(name), origin: CounterOrigin::PerfStat, count, running })
}

fn add(rows: &mut Vec<CounterRow>, row: CounterRow) {
    let Some(known) = rows.iter_mut().find(|known| known.name == row.name) else {
        rows.push(row);
        return;
    };
    // A part that was not counted leaves the sum unknown.
    known.count = match (known.count.clone(), row.count) {
        (Known::Is(a), Known::Is(b)) => Known::Is(a + b),
        (Known::Unavailable(missing), _) | (_, Known::Unavailable(missing)) => Known::Unavailable(missing),
    };
    known.running = match (known.running.clone(), row.running) {
        (Known::Is(a), Known::Is(b)) => Known::Is(a.min(b)),
        (Known::Unavailable(missing), _) | (_, Known::Unavailable(missing)) => Known::Unavailable(missing),
    };
}

fn kind(name: &str) -> CounterKind {
    const SOFTWARE: [&str; 12] = [
        "task-clock",
        "cpu-clock",
        "context-switches",
        "cs",
        "cpu-migrations",
        "migrations",
        "page-faults",
        "faults",
        "minor-faults",
        "major-faults",
        "alignment-faults",
        "emulation-faults",
    ];
    let plain = name.split(':').next().unwrap_or(name);
    if SOFTWARE.contains(&plain) { CounterKind::Software } else { CounterKind::Hardware }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use proptest::prelude::*;

    // Written by hand from the manual page's keys, with what perf itself and a started program print around them.
    const FILE: &str = r#"# started on Mon Nov 30 10:00:00 2026
hello from the program
{"counter-value" : "4000000000.000000", "unit" : "", "event" : "cycles:u", "event-runtime" : 1000000, "pcnt-running" : 100.00, "metric-value" : "2.0", "metric-unit" : "GHz"}
{"counter-value" : "6000000000.000000", "unit" : "", "event" : "instructions:u", "event-runtime" : 1000000, "pcnt-running" : 71.50}
{"counter-value" : "<not supported>", "unit" : "", "event" : "LLC-load-misses", "event-runtime" : 0, "pcnt-running" : 100.00}
{"counter-value" : "2000.500000", "unit" : "msec", "event" : "task-clock", "event-runtime" : 1, "pcnt-running" : 100.00}
{"counter-value" : "12.0", "event" : "page-faults"}
{"counter-value" : "30.0", "event" : "page-faults"}
{"counter-value" : "1.0", "unit"
{"metric-value" : "1.5", "metric-unit" : "insn per cycle"}
"#;

    #[test]
    fn counters_are_read_and_everything_else_is_counted() {
        let (rows, used) = parse("p", FILE.as_bytes()).unwrap();
        assert_eq!(used, ProfileUse { counters: 5, skipped_lines: 4 });
        let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(row("cycles:u").count, Known::Is(4e9));
        assert_eq!(
            (&row("instructions:u").count, &row("instructions:u").running),
            (&Known::Is(6e9), &Known::Is(0.715))
        );
        assert_eq!(row("LLC-load-misses").count.missing().unwrap().unavailable, "not supported");
        assert_eq!(row("task-clock").count, Known::Is(2_000_500_000.0));
        assert_eq!(row("task-clock").kind, CounterKind::Software);
        assert_eq!(row("page-faults").count, Known::Is(42.0));
        assert!(row("page-faults").running.known().is_none());
    }

    #[test]
    fn a_file_without_counters_is_refused() {
        for text in
            ["", "hello\n", "{}\n[1,2]\n", "{\"event\": \"cycles\"}\n", "{\"event\":\"\",\"counter-value\":\"1\"}"]
        {
            let message = parse("x.jsonl", text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains("x.jsonl") && message.contains("perf stat -j"), "{message}");
        }
    }

    #[test]
    fn numbers_that_are_none_never_become_counts() {
        for value in ["\"nan\"", "\"inf\"", "-1", "\"-3\"", "null", "\"\"", "[1]"] {
            let line = format!("{{\"event\":\"cycles\",\"counter-value\":{value},\"pcnt-running\":\"nan\"}}");
            let (rows, _) = parse("p", line.as_bytes()).unwrap();
            assert!(rows[0].count.known().is_none() && rows[0].running.known().is_none(), "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_counters_or_a_message(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse("p", &bytes);
        }
    }
}
