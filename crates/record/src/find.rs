//! `find/2`: one walk through all views of a request: what was run, what the request took, and the ranking that follows.
//! Not here: the views themselves, each an ordinary record in the same folder, and how the ranking is made (`find/`).

mod candidate;
mod memory;
mod ranking;
mod request;
mod rows;
mod rungs;
mod views;
mod words;

pub use candidate::{Candidate, CandidateKind, Experiment, MemoryRow, Multiplicity, SecondsInterval};
pub use ranking::{PhaseBudget, Ranking};
pub use request::RequestSummary;
pub use rungs::{RungOffer, RungText};
pub use views::{Seen, Views};

use crate::check::Check;
use crate::conditions::Conditions;
use crate::coverage::Coverage;
use crate::evidence::EvidenceRef;
use crate::known::Known;
use crate::read::{Record, StoredId};
use crate::subject::Subject;
use crate::wiring::Wiring;
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `find/2`. Everything in `request`, `wiring` and `ranking` is computed from the records that `steps` name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindRecord {
    pub schema: String,
    /// UTC, RFC 3339: when the ranking was made.
    pub created: String,
    /// The request.
    pub workload: Workload,
    pub workload_id: String,
    /// What was clocked, and under which conditions, as the clock's record has them.
    pub subject: Known<Subject>,
    pub conditions: Known<Conditions>,
    pub conditions_id: Known<String>,
    pub protocol: FindProtocol,
    /// In the order they ran.
    pub steps: Vec<FindStep>,
    pub request: Known<RequestSummary>,
    /// What the clocked request dispatched, prefill then decode.
    pub wiring: Vec<Wiring>,
    pub ranking: Known<Ranking>,
    /// Incomplete: a view is missing, and why.
    pub coverage: Coverage,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// How the walk was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindProtocol {
    /// The checkpoint that was looked at, by its own name.
    pub checkpoint: String,
    /// Fewer repeats and no capture.
    pub quick: bool,
    /// Seconds that the whole walk was planned for.
    pub budget_s: f64,
    /// What every command below was given beside its own flags: model, solution, threads, ...
    pub flags: Vec<String>,
}

/// One command of the walk. Anybody can run it alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindStep {
    /// What it is called in the folder, e.g. `clock`: its record is `clock.json`.
    pub name: String,
    /// The words of the command, `hourglass` first; files are relative to the folder that this record is in.
    pub command: Vec<String>,
    pub outcome: StepOutcome,
    /// The record that it left.
    pub record: Known<EvidenceRef>,
    /// From start to end of the process; absent for a step that was not started.
    pub seconds: Known<f64>,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepOutcome {
    Done,
    /// It ended without its record, or with one that says it is incomplete: its own words.
    Failed(String),
    /// It was not started: why.
    LeftOut(String),
    /// Ctrl-C ended it.
    Interrupted,
}

impl FindRecord {
    /// Fills in the ids, the coverage, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.workload_id = self.workload.id();
        self.conditions_id = match &self.conditions {
            Known::Is(conditions) => Known::Is(conditions.id()),
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        };
        let missing: Vec<String> = self.steps.iter().filter_map(FindStep::missing).collect();
        self.coverage =
            if missing.is_empty() { Coverage::complete() } else { Coverage::incomplete(missing.join("; ")) };
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl FindStep {
    /// Why its view is missing, unless it is there or was never wanted.
    fn missing(&self) -> Option<String> {
        match &self.outcome {
            StepOutcome::Done | StepOutcome::LeftOut(_) => None,
            StepOutcome::Failed(why) => Some(format!("{}: {why}", self.name)),
            StepOutcome::Interrupted => Some(format!("{}: interrupted", self.name)),
        }
    }
}

impl Record for FindRecord {
    const SCHEMA: &'static str = "find/2";

    fn identities(&self) -> Vec<StoredId<'_>> {
        let mut ids = vec![StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() }];
        if let (Known::Is(conditions), Known::Is(stored)) = (&self.conditions, &self.conditions_id) {
            ids.push(StoredId { field: "conditions_id", stored, computed: conditions.id() });
        }
        ids
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }

    fn cross_foot(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for wiring in &self.wiring {
            let phase = wiring.phase.name();
            checks.push(Check::counts(format!("{phase} wiring: calls x passes"), wiring.planned, wiring.dispatched));
        }
        if let Known::Is(request) = &self.request {
            checks.extend(request.checks());
        }
        if let Known::Is(ranking) = &self.ranking {
            checks.extend(ranking.checks());
        }
        checks
    }
}
