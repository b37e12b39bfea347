//! What a name in a condition stands for, and which names a kind of record knows.
//! Not here: reading a condition (`parse.rs`), and the numbers behind a name (`mod.rs`, `rule.rs`).
//!
//! A name is a metric and a part of it: `decode` is the candidate's value, `decode.baseline` the other side's, `decode.ratio`
//! the first over the second, `decode.ratio.low` and `decode.ratio.high` the ends of the ratio's interval.

use crate::bench::Metric;
use crate::quantity::Unit;
use std::fmt;

/// A number that a condition can name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub metric: NamedMetric,
    pub part: Part,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedMetric {
    /// Of the request clock.
    Clock(Metric),
    /// Another row of a comparison, e.g. `replay.decode.projections`.
    Row(&'static str, String),
}

/// Which number of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The candidate's: the arm's, the later side's.
    Value,
    /// The control's, the earlier side's.
    Baseline,
    /// Candidate over baseline.
    Ratio,
    /// Where the ratio's interval begins.
    Low,
    /// Where it ends.
    High,
}

/// A row besides the clock's metrics: its name, what it counts, and what it is in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowName {
    pub name: String,
    /// `us`, `share`, `x`, `B`: the spelling of [`Unit`].
    pub unit: &'static str,
    pub meaning: String,
}

/// Which names conditions about a kind of record may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// What messages call the place that a condition was given at, e.g. `--fail-if`.
    pub flag: &'static str,
    /// Rows besides the clock's metrics.
    pub rows: Vec<RowName>,
    /// Whether `tokens_equal` can be asked.
    pub tokens: bool,
}

/// What a value is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Time,
    Bytes,
    Rate,
}

impl Namespace {
    /// Of a `bench/1` record: the clock's metrics alone.
    pub fn bench() -> Namespace {
        Namespace { flag: "--fail-if", rows: Vec::new(), tokens: false }
    }

    /// Of a `comparison/1` record. `groups` are the replay's groups of operators, as replays call them.
    pub fn comparison(flag: &'static str, groups: &[&str]) -> Namespace {
        let mut rows = Vec::new();
        let mut row = |name: String, unit: &'static str, meaning: String| rows.push(RowName { name, unit, meaning });
        for phase in ["prefill", "decode"] {
            let pass = if phase == "decode" { "one decode step" } else { "one pass over the prompt" };
            for group in groups.iter().copied().chain(["sampling"]) {
                row(replay_row(phase, group), "us", format!("{group}, over {pass}, as replayed"));
            }
            row(replay_row(phase, "total"), "us", format!("sum of the groups and sampling, over {pass}"));
            row(replay_row(phase, "whole pass"), "us", format!("{pass} with all its calls, as replayed"));
        }
        row("target".to_owned(), "us", "the target's group in the replay of the target's phase".to_owned());
        row("arrived".to_owned(), "x", "what the request saved per pass over what the replay saved".to_owned());
        row(
            "timeline.busy_share".to_owned(),
            "share",
            "part of the traced request in which a worker computed".to_owned(),
        );
        Namespace { flag, rows, tokens: true }
    }

    /// The metric of this name.
    pub(super) fn metric(&self, name: &str) -> Option<NamedMetric> {
        let row = self.rows.iter().find(|row| row.name == name);
        Metric::parse(name)
            .map(NamedMetric::Clock)
            .or_else(|| row.map(|row| NamedMetric::Row(row.unit, row.name.clone())))
    }

    /// What messages list.
    pub(super) fn listing(&self) -> String {
        let clocks = Metric::ALL.map(Metric::name).join(", ");
        if self.rows.is_empty() {
            return clocks;
        }
        format!("{clocks}, replay.PHASE.GROUP and others: `hourglass decide metrics` lists them")
    }
}

/// The row of a replay's group: `cache update` in a decode step is `replay.decode.cache_update`.
pub fn replay_row(phase: &str, group: &str) -> String {
    let words = group.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    format!("replay.{phase}.{}", words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("_"))
}

impl NamedMetric {
    /// As conditions spell it.
    pub fn name(&self) -> &str {
        match self {
            NamedMetric::Clock(metric) => metric.name(),
            NamedMetric::Row(_, name) => name,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        let unit = match self {
            NamedMetric::Clock(metric) => metric.unit().name(),
            NamedMetric::Row(unit, _) => unit,
        };
        match unit {
            "s" | "us" => Kind::Time,
            "B" => Kind::Bytes,
            "tok/s" => Kind::Rate,
            _ => Kind::Plain,
        }
    }
}

impl Name {
    pub(super) fn kind(&self) -> Kind {
        match self.part {
            Part::Value | Part::Baseline => self.metric.kind(),
            Part::Ratio | Part::Low | Part::High => Kind::Plain,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.metric.name())?;
        f.write_str(match self.part {
            Part::Value => "",
            Part::Baseline => ".baseline",
            Part::Ratio => ".ratio",
            Part::Low => ".ratio.low",
            Part::High => ".ratio.high",
        })
    }
}

impl Kind {
    pub(super) const fn words(self) -> &'static str {
        match self {
            Kind::Plain => "a number without unit",
            Kind::Time => "a time (s, ms or us)",
            Kind::Bytes => "bytes (B, kB, MB, GB, KiB, MiB or GiB)",
            Kind::Rate => "a rate (tok/s)",
        }
    }

    /// What both sides of a condition are in.
    pub(super) const fn unit(self) -> Unit {
        match self {
            Kind::Plain => Unit::Ratio,
            Kind::Time => Unit::Seconds,
            Kind::Bytes => Unit::Bytes,
            Kind::Rate => Unit::TokensPerSecond,
        }
    }
}

/// How much of a condition's base unit one of a record's units is: times are seconds in conditions.
pub(super) fn scale(unit: Unit) -> f64 {
    if unit == Unit::Microseconds { 1e-6 } else { 1.0 }
}
