//! `decision/1`: what somebody decided about one change, with the two replays that the words are about.
//! Not here: whether the words are right. A replay's shares are not production traffic; the request clock says what arrived.

use crate::check::Check;
use crate::known::Known;
use crate::read::{Record, StoredId};
use crate::replay::cases::ReplayCase;
use crate::replay::compare::{Change, ComparisonError, ReplayComparison, compare_replays};
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `decision/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    /// Commit of the binary that replayed both cases.
    pub source: Known<String>,
    pub solution: String,
    pub model: String,
    pub workload: Workload,
    pub workload_id: String,
    pub baseline_checkpoint: String,
    pub candidate_checkpoint: String,
    /// The group of operators that the change was aimed at.
    pub dominant_category: String,
    /// What should be true if the change is to pay.
    pub hypothesis: String,
    pub observed_effect: String,
    pub decision: Outcome,
    pub next_experiment: String,
    /// `operator_replay`.
    pub evidence_kind: String,
    /// What this kind of evidence cannot show.
    pub evidence_limits: String,
    pub evidence: Evidence,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Keep,
    Reject,
    Inconclusive,
}

/// The words of a decision, as given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    pub dominant_category: String,
    pub hypothesis: String,
    pub observed_effect: String,
    pub decision: Outcome,
    pub next_experiment: String,
}

/// What the two replays say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The group with the largest median on each side, whatever the words call dominant.
    pub largest_before: String,
    pub largest_after: String,
    /// The dominant category's row of the comparison.
    pub category: Change,
    pub comparison: ReplayComparison,
}

/// Why no decision is written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecisionError {
    #[error(transparent)]
    Comparison(#[from] ComparisonError),
    #[error(
        "the baseline and the candidate have different {field}: {baseline} and {candidate}; replay both in one run, so \
         that only the checkpoint differs"
    )]
    Different { field: &'static str, baseline: String, candidate: String },
    #[error("{case} has no {field}: {why}; replay it again")]
    Missing { case: String, field: &'static str, why: String },
    #[error("the dominant category '{category}' is no group of these replays, which have {known}")]
    Category { category: String, known: String },
}

/// The record of a decision about two replayed cases.
///
/// # Errors
/// Cases of different source, solution, model or workload (the field is named), incomplete ones, a category that neither has.
pub fn decide(
    words: &Words,
    created: &str,
    baseline: &ReplayCase,
    candidate: &ReplayCase,
) -> Result<DecisionRecord, DecisionError> {
    let comparison = compare_replays(baseline, candidate)?;
    let (binary, subject) = (binary(baseline)?, subject(baseline)?);
    let theirs = [
        ("source", identity_of(binary), identity_of(self::binary(candidate)?)),
        ("solution", subject.solution.clone(), self::subject(candidate)?.solution.clone()),
    ];
    if let Some((field, baseline, candidate)) = theirs.into_iter().find(|(_, a, b)| a != b) {
        return Err(DecisionError::Different { field, baseline, candidate });
    }
    let Some(category) = comparison.groups.iter().find(|change| change.name == words.dominant_category) else {
        let known: Vec<&str> = comparison.groups.iter().map(|change| change.name.as_str()).collect();
        let category = words.dominant_category.clone();
        return Err(DecisionError::Category { category, known: known.join("; ") });
    };
    let largest = |case: &ReplayCase| case.replay.largest().map_or_else(String::new, |row| row.group.clone());
    let workload = baseline.replay.workload.clone();
    let Words { dominant_category, hypothesis, observed_effect, decision, next_experiment } = words.clone();
    let mut record = DecisionRecord {
        schema: DecisionRecord::SCHEMA.to_owned(),
        created: created.to_owned(),
        source: binary.commit.clone(),
        solution: subject.solution.clone(),
        model: workload.model.clone(),
        workload_id: workload.id(),
        workload,
        baseline_checkpoint: baseline.replay.checkpoint.clone(),
        candidate_checkpoint: candidate.replay.checkpoint.clone(),
        dominant_category,
        hypothesis,
        observed_effect,
        decision,
        next_experiment,
        evidence_kind: "operator_replay".to_owned(),
        evidence_limits: "shares of one replayed shape: neither the traffic of a service nor the time of a request"
            .to_owned(),
        evidence: Evidence {
            largest_before: largest(baseline),
            largest_after: largest(candidate),
            category: category.clone(),
            comparison: comparison.clone(),
        },
        checks: Vec::new(),
        void: false,
    };
    record.checks = record.cross_foot();
    record.void = record.checks.iter().any(|check| !check.passed);
    Ok(record)
}

impl Record for DecisionRecord {
    const SCHEMA: &'static str = "decision/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        let own = StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() };
        let mut ids = vec![own];
        ids.extend(self.evidence.comparison.identities());
        ids
    }

    fn cross_foot(&self) -> Vec<Check> {
        let comparison = &self.evidence.comparison;
        let same = comparison.workload_id == self.workload_id;
        let mut checks = vec![Check::counts("the evidence is of this workload", 1, u64::from(same))];
        checks.extend(comparison.cross_foot());
        checks
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }
}

fn binary(case: &ReplayCase) -> Result<&crate::Binary, DecisionError> {
    match &case.conditions {
        Known::Is(conditions) => Ok(&conditions.binary),
        Known::Unavailable(missing) => Err(missing_part(case, "conditions", &missing.unavailable)),
    }
}

fn subject(case: &ReplayCase) -> Result<&crate::Subject, DecisionError> {
    match &case.subject {
        Known::Is(subject) => Ok(subject),
        Known::Unavailable(missing) => Err(missing_part(case, "subject", &missing.unavailable)),
    }
}

fn missing_part(case: &ReplayCase, field: &'static str, why: &str) -> DecisionError {
    DecisionError::Missing { case: case.case.clone(), field, why: why.to_owned() }
}

/// A binary in a few words: its commit if it has one, and its build.
fn identity_of(binary: &crate::Binary) -> String {
    let known =
        |text: &Known<String>| text.known().map_or("unknown", String::as_str).chars().take(12).collect::<String>();
    let dirty = if binary.dirty.known() == Some(&true) { " (changed)" } else { "" };
    format!("commit {}{dirty}, build {}", known(&binary.commit), known(&binary.build_id))
}
