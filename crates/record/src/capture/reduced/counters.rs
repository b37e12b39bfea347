//! What was counted over the captured passes: by the processor, by the operating system, by a simulated processor.
//! Not here: reading perf's and callgrind's files (`perf_stat.rs`, `callgrind.rs`).

use crate::capture::Simulation;
use crate::capture::raw::{CounterKind, RawCounter};
use crate::known::Known;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counters and what follows from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CounterTree {
    pub rows: Vec<CounterRow>,
    /// Only those whose two counters both exist.
    pub rates: Vec<CounterRate>,
    /// Lines of the other tool's file that were no objects, and counters in it; unavailable if there was none.
    pub profile: Known<ProfileUse>,
    /// Instructions by function, counted on a simulated processor: exact, and of another dispatch path.
    pub simulated: Known<SimulatedTree>,
}

/// One counter over the whole stretch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CounterRow {
    /// perf's name.
    pub name: String,
    pub kind: CounterKind,
    pub origin: CounterOrigin,
    /// Summed over the workers, scaled up if the counter was not on the whole time.
    pub count: Known<f64>,
    /// The part of the time that it counted, 0 to 1.
    pub running: Known<f64>,
}

/// From which file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CounterOrigin {
    /// The trace's: exactly the captured passes of the workers.
    Trace,
    /// A file of `perf stat -j`: whatever that command covered.
    PerfStat,
}

/// One counter divided by another, of the same file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CounterRate {
    /// E.g. `instructions per cycle`.
    pub name: String,
    pub value: f64,
    pub origin: CounterOrigin,
    /// Numerator, denominator.
    pub from: [String; 2],
}

/// How another tool's file was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileUse {
    pub counters: u64,
    /// Lines that are no objects, or objects that are no counters.
    pub skipped_lines: u64,
}

/// What callgrind counted in one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulatedTree {
    /// What was simulated: not the captured kernels, unless the features are the same.
    pub simulation: Known<Simulation>,
    /// What is counted: `Ir` is instructions.
    pub event: String,
    pub total: u64,
    /// Each function's own, largest first, at most 40; the rest is in `others`.
    pub functions: Vec<SimulatedFunction>,
    pub others: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulatedFunction {
    pub function: String,
    /// As the debugging information has it; empty if it has none.
    pub file: String,
    pub own: u64,
}

/// (name of the rate, numerator, denominator, factor), where both are counted in one file.
const RATES: [(&str, &str, &str, f64); 9] = [
    ("instructions per cycle", "instructions", "cycles", 1.0),
    ("branch misses per 1000 instructions", "branch-misses", "instructions", 1e3),
    ("cache misses per 1000 instructions", "cache-misses", "instructions", 1e3),
    ("L1 load misses per 1000 instructions", "L1-dcache-load-misses", "instructions", 1e3),
    ("LLC load misses per 1000 instructions", "LLC-load-misses", "instructions", 1e3),
    ("cache misses per reference", "cache-misses", "cache-references", 1.0),
    ("L1 load misses per load", "L1-dcache-load-misses", "L1-dcache-loads", 1.0),
    ("front end stalled, part of cycles", "stalled-cycles-frontend", "cycles", 1.0),
    ("back end stalled, part of cycles", "stalled-cycles-backend", "cycles", 1.0),
];

impl CounterTree {
    /// Puts the counters of the trace and of another tool's file side by side and divides those that belong together.
    pub fn new(
        trace: &[RawCounter],
        profile: Known<(Vec<CounterRow>, ProfileUse)>,
        simulated: Known<SimulatedTree>,
    ) -> CounterTree {
        let of_trace = trace.iter().map(|raw| CounterRow {
            name: raw.name.clone(),
            kind: raw.kind,
            origin: CounterOrigin::Trace,
            count: raw.count.clone(),
            running: raw.running.clone(),
        });
        let mut rows: Vec<CounterRow> = of_trace.collect();
        let profile = match profile {
            Known::Is((own, used)) => {
                rows.extend(own);
                Known::Is(used)
            }
            Known::Unavailable(missing) => Known::Unavailable(missing),
        };
        let rates = rates(&rows);
        CounterTree { rows, rates, profile, simulated }
    }

    /// Instructions per cycle over the captured passes; of another tool's file if the trace has none.
    pub fn instructions_per_cycle(&self) -> Option<f64> {
        let of = |origin| self.rates.iter().find(|rate| rate.name == RATES[0].0 && rate.origin == origin);
        of(CounterOrigin::Trace).or_else(|| of(CounterOrigin::PerfStat)).map(|rate| rate.value)
    }
}

fn rates(rows: &[CounterRow]) -> Vec<CounterRate> {
    let mut rates = Vec::new();
    for origin in [CounterOrigin::Trace, CounterOrigin::PerfStat] {
        let own = || rows.iter().filter(|row| row.origin == origin && row.kind != CounterKind::Simulated);
        for (name, over, under, factor) in RATES {
            for numerator in own() {
                let (plain, suffix) = split(&numerator.name);
                // Both with or both without the operating system's part.
                let same = |row: &&CounterRow| split(&row.name) == (under, suffix);
                let Some(denominator) = own().find(same).filter(|_| plain == over) else { continue };
                if let (Some(a), Some(b)) = (numerator.count.known(), denominator.count.known())
                    && *b > 0.0
                {
                    rates.push(CounterRate {
                        name: name.to_owned(),
                        value: a / b * factor,
                        origin,
                        from: [numerator.name.clone(), denominator.name.clone()],
                    });
                }
            }
        }
    }
    rates
}

/// An event's name without its modifiers, and these.
fn split(name: &str) -> (&str, &str) {
    name.split_once(':').unwrap_or((name, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, count: Option<f64>) -> RawCounter {
        let count = count.map_or_else(|| Known::unavailable("no PMU in this VM", "bare metal"), Known::Is);
        RawCounter { name: name.to_owned(), kind: CounterKind::Hardware, count, running: Known::Is(1.0) }
    }

    fn tree(rows: &[RawCounter]) -> CounterTree {
        CounterTree::new(rows, Known::unavailable("none", "none"), Known::unavailable("none", "none"))
    }

    #[test]
    fn rates_exist_only_where_both_counters_do_and_belong_together() {
        let both =
            tree(&[row("instructions:u", Some(6e9)), row("cycles:u", Some(3e9)), row("cache-misses:u", Some(6e6))]);
        let found: Vec<(&str, f64)> = both.rates.iter().map(|rate| (rate.name.as_str(), rate.value)).collect();
        assert_eq!(found, [("instructions per cycle", 2.0), ("cache misses per 1000 instructions", 1.0)]);
        assert_eq!(both.instructions_per_cycle(), Some(2.0));
        for rows in [
            vec![row("instructions", None), row("cycles", Some(3e9))],
            vec![row("instructions", Some(6e9)), row("cycles", Some(0.0))],
            // With and without the operating system's part.
            vec![row("instructions:u", Some(6e9)), row("cycles", Some(3e9))],
        ] {
            let tree = tree(&rows);
            assert!(tree.rates.is_empty(), "{:?}", tree.rates);
            assert_eq!(tree.rows.len(), 2, "an unavailable counter stays, with its reason");
        }
    }
}
