//! A condition over a `bench/1` record at which continuous integration should stop: `decode < 0.97 * baseline`.
//! Not here: reading the text (`parse.rs`), and exit codes.
//!
//! A condition compares two sums of products of numbers with units, metrics (an arm's median) and `baseline` (the control's
//! median of the same metric), or asks for a verdict: `decode.verdict == slower`. It is checked, units included, before
//! anything runs. It is then asked of every arm but the control and the control again; what is missing is an error, never a pass.

mod parse;

pub use parse::GateError;

use crate::bench::{ArmKind, BenchRecord, Metric, Verdict};
use crate::known::Unavailable;
use crate::quantity::Unit;
use std::fmt;

/// A checked condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    text: String,
    condition: Condition,
}

#[derive(Clone, Debug, PartialEq)]
enum Condition {
    Numbers {
        left: Node,
        relation: Relation,
        right: Node,
        /// The metric that is named, the first of several; the one that `baseline` is of.
        metric: Metric,
        /// Of both sides.
        unit: Unit,
    },
    /// Holds if it holds for one of the metrics.
    Verdicts { metrics: Vec<Metric>, equal: bool, finding: Finding },
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// In seconds, bytes, tokens per second, or of no unit.
    Number(f64),
    Metric(Metric),
    Baseline,
    Operation(Box<Node>, Operator, Box<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Plus,
    Minus,
    Times,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    Equal,
    Unequal,
}

/// A verdict without its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Better,
    Worse,
    NoDifference,
    Inconclusive,
}

/// Why a condition cannot be answered from a record.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GateMissing {
    #[error("--fail-if \"{gate}\": the record is void ({check} failed), so no condition can pass on it; run again")]
    Void { gate: String, check: String },
    #[error("--fail-if \"{gate}\": there is no arm besides the control {control}; compare at least two")]
    NoArm { gate: String, control: String },
    #[error("--fail-if \"{gate}\": {what} of {arm} is missing: {why}; {how_to_get}")]
    Value { gate: String, arm: String, what: String, why: String, how_to_get: String },
    #[error("--fail-if \"{gate}\": for {arm} a side is {value}, not a number; look at what it divides by")]
    NotANumber { gate: String, arm: String, value: f64 },
}

/// An arm for which the condition holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub arm: String,
    /// With the numbers that were compared.
    pub sentence: String,
}

impl Gate {
    /// Reads and checks a condition.
    ///
    /// # Errors
    /// What is not one; the message points at the place.
    pub fn parse(text: &str) -> Result<Gate, GateError> {
        let condition = parse::condition(text)?;
        Ok(Gate { text: text.to_owned(), condition })
    }

    /// The arms for which the condition holds. None: the gate is passed.
    ///
    /// # Errors
    /// A void record, no arm to ask, or anything that the condition names and an arm lacks: its metric, its verdict, or its
    /// right to be compared.
    pub fn failures(&self, record: &BenchRecord) -> Result<Vec<Failure>, GateMissing> {
        let gate = || self.text.clone();
        if let Some(check) = record.checks.iter().find(|check| !check.passed) {
            return Err(GateMissing::Void { gate: gate(), check: check.name.clone() });
        }
        let control = record.arms.first().map_or("(none)", |arm| &arm.name);
        let candidate = |index: usize| index > 0 && record.arms[index].kind != ArmKind::SameAgain;
        if !(0..record.arms.len()).any(candidate) {
            return Err(GateMissing::NoArm { gate: gate(), control: control.to_owned() });
        }
        let mut failures = Vec::new();
        for (index, arm) in record.arms.iter().enumerate() {
            if !arm.counts {
                let why = arm.reason.clone().unwrap_or_else(|| "it does not count".to_owned());
                return Err(GateMissing::Value {
                    gate: gate(),
                    arm: arm.name.clone(),
                    what: "the right to be compared".to_owned(),
                    why,
                    how_to_get: "mend it or leave the arm out".to_owned(),
                });
            }
            if !candidate(index) {
                continue;
            }
            let found = match &self.condition {
                Condition::Numbers { left, relation, right, metric, unit } => {
                    let side = |node| self.value(node, *metric, record, index);
                    let (left, right) = (side(left)?, side(right)?);
                    relation.holds(left, right).then(|| {
                        format!("{}: {}: {} {relation} {} {unit}", self.text, arm.name, short(left), short(right))
                    })
                }
                Condition::Verdicts { metrics, equal, finding } => {
                    self.verdict(metrics, *equal, *finding, record, index)?
                }
            };
            failures.extend(found.map(|sentence| Failure { arm: arm.name.clone(), sentence }));
        }
        Ok(failures)
    }

    fn value(&self, node: &Node, metric: Metric, record: &BenchRecord, arm: usize) -> Result<f64, GateMissing> {
        let value = self.of(node, metric, record, arm)?;
        if value.is_finite() {
            return Ok(value);
        }
        Err(GateMissing::NotANumber { gate: self.text.clone(), arm: record.arms[arm].name.clone(), value })
    }

    fn of(&self, node: &Node, metric: Metric, record: &BenchRecord, arm: usize) -> Result<f64, GateMissing> {
        let median = |metric: Metric, arm: usize| {
            let reading = record.arms[arm].median(metric);
            // Times in seconds, whatever the record holds them in.
            let scale = if metric.unit() == Unit::Microseconds { 1e-6 } else { 1.0 };
            reading.value().map(|value| value * scale).ok_or_else(|| {
                let name = &record.arms[arm].name;
                self.missing(name, metric.name(), reading.missing())
            })
        };
        match node {
            Node::Number(number) => Ok(*number),
            Node::Metric(metric) => median(*metric, arm),
            Node::Baseline => median(metric, 0),
            Node::Operation(left, operator, right) => {
                let (left, right) = (self.of(left, metric, record, arm)?, self.of(right, metric, record, arm)?);
                Ok(match operator {
                    Operator::Plus => left + right,
                    Operator::Minus => left - right,
                    Operator::Times => left * right,
                    Operator::Over => left / right,
                })
            }
        }
    }

    fn verdict(
        &self,
        metrics: &[Metric],
        equal: bool,
        wanted: Finding,
        record: &BenchRecord,
        arm: usize,
    ) -> Result<Option<String>, GateMissing> {
        let name = &record.arms[arm].name;
        let mut missing = None;
        for metric in metrics {
            let row = record.comparison(arm, *metric);
            let verdict = row.and_then(|row| row.verdict.known());
            match (row, verdict) {
                (Some(row), Some(verdict)) => {
                    if (Finding::of(verdict) == wanted) == equal {
                        return Ok(Some(format!("{}: {}", self.text, row.sentence)));
                    }
                }
                (row, _) => {
                    let reason = row.and_then(|row| row.verdict.missing());
                    let what = format!("the {} verdict", metric.name());
                    missing.get_or_insert_with(|| self.missing(name, &what, reason));
                }
            }
        }
        missing.map_or(Ok(None), Err)
    }

    fn missing(&self, arm: &str, what: &str, reason: Option<&Unavailable>) -> GateMissing {
        let (why, how_to_get) = reason.map_or_else(
            || ("it was not compared with the control".to_owned(), "run again with more repeats".to_owned()),
            |reason| (reason.unavailable.clone(), reason.how_to_get.clone()),
        );
        GateMissing::Value { gate: self.text.clone(), arm: arm.to_owned(), what: what.to_owned(), why, how_to_get }
    }
}

impl Relation {
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Relation::Less => left < right,
            Relation::LessOrEqual => left <= right,
            Relation::More => left > right,
            Relation::MoreOrEqual => left >= right,
            Relation::Equal => left == right,
            Relation::Unequal => left != right,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Relation::Less => "<",
            Relation::LessOrEqual => "<=",
            Relation::More => ">",
            Relation::MoreOrEqual => ">=",
            Relation::Equal => "==",
            Relation::Unequal => "!=",
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Finding {
    fn of(verdict: &Verdict) -> Finding {
        match verdict {
            Verdict::Better => Finding::Better,
            Verdict::Worse => Finding::Worse,
            Verdict::NoDifference { .. } => Finding::NoDifference,
            Verdict::Inconclusive { .. } => Finding::Inconclusive,
        }
    }
}

/// Six digits are enough to see why a condition held.
fn short(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}
