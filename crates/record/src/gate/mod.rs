//! Conditions: `decode < 0.97 * baseline`, asked of a `bench/1` record (where continuous integration should stop) or of a
//! `comparison/1` (whether a change is kept). Not here: reading the text (`parse.rs`), what its parts are (`condition.rs`,
//! `name.rs`), asking a comparison (`rule.rs`), and exit codes.
//!
//! A condition compares two sums of products of numbers with units, metrics and `baseline` (the control's value of the metric
//! named), or asks for a verdict: `decode.verdict == slower`. It is checked, units included, before anything runs. A
//! [`Gate`] is asked of every arm but the control and the control again; what is missing is an error, never a pass.

mod condition;
mod name;
mod parse;
mod rule;
mod settled;

pub use name::{Name, NamedMetric, Namespace, Part, RowName, replay_row};
pub use parse::GateError;
pub use rule::{Answer, Rule, RuleAnswer, UsedNumber};

use crate::bench::{ArmKind, BenchRecord};
use crate::known::{Known, Unavailable};
use crate::quantity::{Reading, Unit};
use condition::{Condition, Finding, Range, short};
use name::scale;

/// A checked condition about a `bench/1` record.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    text: String,
    condition: Condition,
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

const NOT_COMPARED: &str = "it was not compared with the control";
const MORE_REPEATS: &str = "run again with more repeats";

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
        let condition = parse::condition(text, &Namespace::bench())?;
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
                Condition::Numbers { left, relation, right, unit } => {
                    let side = |node: &condition::Node| {
                        let range = node.range(&mut |name| self.named(name, record, index))?;
                        self.finite(range.value, &record.arms[index].name)
                    };
                    let (left, right) = (side(left)?, side(right)?);
                    relation.holds(left, right).then(|| {
                        format!("{}: {}: {} {relation} {} {unit}", self.text, arm.name, short(left), short(right))
                    })
                }
                Condition::Verdicts { metrics, equal, finding } => {
                    self.verdict(metrics, *equal, *finding, record, index)?
                }
                // Its names are not of a run.
                Condition::Tokens { .. } => None,
            };
            failures.extend(found.map(|sentence| Failure { arm: arm.name.clone(), sentence }));
        }
        Ok(failures)
    }

    fn finite(&self, value: f64, arm: &str) -> Result<f64, GateMissing> {
        if value.is_finite() {
            return Ok(value);
        }
        Err(GateMissing::NotANumber { gate: self.text.clone(), arm: arm.to_owned(), value })
    }

    /// The number behind a name, in a condition's base units.
    fn named(&self, name: &Name, record: &BenchRecord, arm: usize) -> Result<Range, GateMissing> {
        // A run's conditions name its clock alone.
        let NamedMetric::Clock(metric) = &name.metric else { return Ok(Range::exactly(f64::NAN)) };
        let row = record.comparison(arm, *metric);
        let not_compared = || Known::unavailable(NOT_COMPARED, MORE_REPEATS);
        let of_interval = |pick: fn(&crate::bench::Interval) -> f64| match row.map(|row| &row.interval) {
            Some(Known::Is(interval)) => Reading::measured(pick(interval), Unit::Ratio, 1),
            Some(Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
            None => not_compared(),
        };
        let reading = match name.part {
            Part::Value => record.arms[arm].median(*metric),
            Part::Baseline => record.arms[0].median(*metric),
            Part::Ratio => row.map_or_else(not_compared, |row| row.ratio.clone()),
            Part::Low => of_interval(|interval| interval.low),
            Part::High => of_interval(|interval| interval.high),
        };
        match &reading {
            Known::Is(quantity) => Ok(Range::exactly(quantity.value() * scale(quantity.unit()))),
            Known::Unavailable(missing) => Err(self.missing(&record.arms[arm].name, &name.to_string(), Some(missing))),
        }
    }

    fn verdict(
        &self,
        metrics: &[NamedMetric],
        equal: bool,
        wanted: Finding,
        record: &BenchRecord,
        arm: usize,
    ) -> Result<Option<String>, GateMissing> {
        let name = &record.arms[arm].name;
        let mut missing = None;
        for metric in metrics {
            let NamedMetric::Clock(metric) = metric else { continue };
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
            || (NOT_COMPARED.to_owned(), MORE_REPEATS.to_owned()),
            |reason| (reason.unavailable.clone(), reason.how_to_get.clone()),
        );
        GateMissing::Value { gate: self.text.clone(), arm: arm.to_owned(), what: what.to_owned(), why, how_to_get }
    }
}
