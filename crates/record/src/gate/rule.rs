//! A condition asked of a `comparison/1`: it holds, it fails, it is undecided within what was measured, or a number is missing.
//! Not here: reading the text (`parse.rs`); what is decided by the answers (`ledger/judge.rs`).
//!
//! A number that was measured is a range, its 95 % interval, and a relation holds only if it holds for the whole range. Where
//! the condition names a baseline, the candidate's range is the baseline times the interval of their ratio, because that is
//! what was compared; else it is the candidate's own.

use super::condition::{Condition, Finding, Node, Range, short};
use super::name::{Name, NamedMetric, Namespace, Part, scale};
use super::parse::{self, GateError};
use crate::bench::Interval;
use crate::compare::{ComparisonRecord, Delta};
use crate::known::{Known, Unavailable};
use crate::quantity::Reading;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A checked condition about a `comparison/1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    text: String,
    condition: Condition,
}

/// What a comparison says to a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// For the whole of every interval.
    Holds,
    /// For no part of them.
    Fails,
    /// An interval reaches to both sides.
    Undecided,
    /// A number is not there, or the comparison is void.
    Missing,
}

impl Answer {
    pub const fn name(self) -> &'static str {
        match self {
            Answer::Holds => "holds",
            Answer::Fails => "fails",
            Answer::Undecided => "undecided",
            Answer::Missing => "missing",
        }
    }
}

/// A condition, its answer, and every number that it used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleAnswer {
    pub rule: String,
    pub answer: Answer,
    /// With the numbers that were compared, or what is missing and how to get it.
    pub sentence: String,
    pub used: Vec<UsedNumber>,
}

/// One named number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsedNumber {
    pub name: String,
    /// In the condition's base units: seconds, bytes, tokens per second.
    pub value: Reading,
    /// Where it may lie; missing where it is taken as exact.
    pub interval: Known<Interval>,
}

impl Rule {
    /// Reads and checks a condition.
    ///
    /// # Errors
    /// What is not one; the message points at the place.
    pub fn parse(text: &str, names: &Namespace) -> Result<Rule, GateError> {
        Ok(Rule { text: text.to_owned(), condition: parse::condition(text, names)? })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Asks a comparison.
    pub fn ask(&self, record: &ComparisonRecord) -> RuleAnswer {
        let mut used = Vec::new();
        if let Some(check) = record.checks.iter().find(|check| !check.passed) {
            let sentence = format!("{}: the comparison is void: {}", self.text, check.name);
            return RuleAnswer { rule: self.text.clone(), answer: Answer::Missing, sentence, used };
        }
        if record.outcome.outcome == crate::compare::Outcome::Void {
            let sentence = format!("{}: {}", self.text, record.outcome.sentence);
            return RuleAnswer { rule: self.text.clone(), answer: Answer::Missing, sentence, used };
        }
        let answered = match &self.condition {
            Condition::Numbers { left, relation, right, unit } => {
                let mut names = Vec::new();
                left.names(&mut names);
                right.names(&mut names);
                let relative: BTreeSet<&str> =
                    names.iter().filter(|name| name.part == Part::Baseline).map(|name| name.metric.name()).collect();
                let mut side = |node: &Node| {
                    node.range(&mut |name| {
                        let range = named(name, record, relative.contains(name.metric.name()))?;
                        note(&mut used, name, range);
                        Ok::<Range, Missing>(range)
                    })
                };
                side(left).and_then(|left| Ok((left, side(right)?))).map(|(left, right)| {
                    let answer = match relation.certainly(left, right) {
                        _ if !left.value.is_finite() || !right.value.is_finite() => Answer::Undecided,
                        Some(true) => Answer::Holds,
                        Some(false) => Answer::Fails,
                        None => Answer::Undecided,
                    };
                    let words = format!("{} {relation} {} {unit}", shown(left), shown(right));
                    (answer, words.trim_end_matches(" x").to_owned())
                })
            }
            Condition::Verdicts { metrics, equal, finding } => verdicts(metrics, *equal, *finding, record),
            Condition::Tokens { equal } => match record.tokens_equal() {
                Known::Is(found) => {
                    let answer = if found == *equal { Answer::Holds } else { Answer::Fails };
                    Ok((answer, (if found { "the tokens are equal" } else { "the tokens differ" }).to_owned()))
                }
                Known::Unavailable(missing) => Err(Missing { what: "tokens_equal".to_owned(), missing }),
            },
        };
        let (answer, words) = answered.unwrap_or_else(|missing| {
            let Missing { what, missing: Unavailable { unavailable, how_to_get } } = missing;
            (Answer::Missing, format!("{what} is missing: {unavailable}; {how_to_get}"))
        });
        let sentence = format!("{}: {}: {words}", self.text, answer.name());
        RuleAnswer { rule: self.text.clone(), answer, sentence, used }
    }
}

/// A number that is not there.
struct Missing {
    what: String,
    missing: Unavailable,
}

fn missing<T>(name: &Name, why: &str, how_to_get: &str) -> Result<T, Missing> {
    let missing = Unavailable { unavailable: why.to_owned(), how_to_get: how_to_get.to_owned() };
    Err(Missing { what: name.to_string(), missing })
}

fn row<'r>(name: &Name, record: &'r ComparisonRecord) -> Result<&'r Delta, Missing> {
    match record.row(name.metric.name()) {
        Some(row) => Ok(row),
        None => missing(name, "no record of both sides has it", "give records of the view that measures it"),
    }
}

/// The range behind a name, in base units; `relative` if the condition also names the baseline.
fn named(name: &Name, record: &ComparisonRecord, relative: bool) -> Result<Range, Missing> {
    if name.metric.name() == "arrived" {
        return arrived(name, record);
    }
    let row = row(name, record)?;
    let known = |reading: &Reading| match reading {
        Known::Is(quantity) => Ok(quantity.value() * scale(quantity.unit())),
        Known::Unavailable(reason) => missing(name, &reason.unavailable, &reason.how_to_get),
    };
    let ends = || match &row.interval {
        Known::Is(interval) => Ok(*interval),
        Known::Unavailable(reason) => missing(name, &reason.unavailable, &reason.how_to_get),
    };
    match name.part {
        Part::Value if relative => {
            let before = known(&row.before)?;
            let (ratio, ends) = (known(&row.ratio)?, ends()?);
            Ok(Range { low: before * ends.low, value: before * ratio, high: before * ends.high })
        }
        Part::Value => own(name, row, &row.after, &row.after_interval),
        Part::Baseline => Ok(Range::exactly(known(&row.before)?)),
        Part::Ratio => {
            let (value, ends) = (known(&row.ratio)?, ends()?);
            Ok(Range { low: ends.low, value, high: ends.high })
        }
        Part::Low => Ok(Range::exactly(ends()?.low)),
        Part::High => Ok(Range::exactly(ends()?.high)),
    }
}

/// The candidate's value by itself.
fn own(name: &Name, row: &Delta, value: &Reading, interval: &Known<Interval>) -> Result<Range, Missing> {
    let quantity = match value {
        Known::Is(quantity) => *quantity,
        Known::Unavailable(reason) => return missing(name, &reason.unavailable, &reason.how_to_get),
    };
    let unit = scale(quantity.unit());
    let value = quantity.value() * unit;
    match interval {
        Known::Is(ends) => {
            let (low, high) = ((ends.low * unit).min(value), (ends.high * unit).max(value));
            Ok(Range { low, value, high })
        }
        // A share of one trace is what it is; it is compared as it stands and says so.
        Known::Unavailable(_) if row.name.starts_with("timeline.") => Ok(Range::exactly(value)),
        Known::Unavailable(reason) => missing(name, &reason.unavailable, &reason.how_to_get),
    }
}

/// The part of the replay's saving that arrived, which has no side before.
fn arrived(name: &Name, record: &ComparisonRecord) -> Result<Range, Missing> {
    if name.part != Part::Value {
        return missing(name, "what arrived is one number of both sides", "name it as arrived, without a part");
    }
    let target = match &record.target {
        Known::Is(target) => target,
        Known::Unavailable(reason) => return missing(name, &reason.unavailable, &reason.how_to_get),
    };
    match (&target.arrived, &target.arrived_interval) {
        (Known::Is(value), Known::Is(ends)) => Ok(Range { low: ends.low, value: value.value(), high: ends.high }),
        (Known::Unavailable(reason), _) | (_, Known::Unavailable(reason)) => {
            missing(name, &reason.unavailable, &reason.how_to_get)
        }
    }
}

fn note(used: &mut Vec<UsedNumber>, name: &Name, range: Range) {
    let unit = name.kind().unit();
    let number = UsedNumber {
        name: name.to_string(),
        value: Reading::measured(range.value, unit, 1),
        interval: if range.low < range.high {
            Known::Is(Interval { low: range.low, high: range.high })
        } else {
            Known::unavailable("it is taken as exact", "nothing is missing")
        },
    };
    if !used.contains(&number) {
        used.push(number);
    }
}

fn shown(range: Range) -> String {
    if range.low == range.high {
        return short(range.value).to_string();
    }
    format!("{} [{} to {}]", short(range.value), short(range.low), short(range.high))
}

fn verdicts(
    metrics: &[NamedMetric],
    equal: bool,
    wanted: Finding,
    record: &ComparisonRecord,
) -> Result<(Answer, String), Missing> {
    let (mut lacking, mut words) = (None, Vec::new());
    for metric in metrics {
        let name = Name { metric: metric.clone(), part: Part::Value };
        let found = row(&name, record).and_then(|row| match &row.verdict {
            Known::Is(verdict) => Ok((row, verdict)),
            Known::Unavailable(reason) => missing(&name, &reason.unavailable, &reason.how_to_get),
        });
        match found {
            Ok((row, verdict)) => {
                if (Finding::of(verdict) == wanted) == equal {
                    return Ok((Answer::Holds, row.sentence.clone()));
                }
                // More repeats may still bring the verdict that is asked for.
                let open = equal && Finding::of(verdict) == Finding::Inconclusive;
                words.push((open, row.sentence.clone()));
            }
            Err(missing) => lacking = lacking.or(Some(missing)),
        }
    }
    if let Some(missing) = lacking {
        return Err(missing);
    }
    let answer = if words.iter().any(|(open, _)| *open) { Answer::Undecided } else { Answer::Fails };
    Ok((answer, words.into_iter().map(|(_, words)| words).collect::<Vec<_>>().join("; ")))
}
