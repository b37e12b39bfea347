//! `replay/1`: the cases of one run of `hourglass replay`, each with what it ran and under what.
//! Not here: what a case holds (`replay.rs`), and what follows from two of them (`compare.rs`, `decision.rs`).

use crate::ceilings::Ceilings;
use crate::check::Check;
use crate::conditions::Conditions;
use crate::coverage::Coverage;
use crate::known::Known;
use crate::protocol::Protocol;
use crate::quantity::Reading;
use crate::read::{Record, StoredId};
use crate::replay::Replay;
use crate::replay::between::RequestsBetween;
use crate::subject::Subject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `replay/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRecord {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    /// Of every case.
    pub protocol: Protocol,
    /// The ceilings that the floors are at.
    pub ceilings: Known<CeilingsUsed>,
    /// In the order asked for.
    pub cases: Vec<ReplayCase>,
    /// Whole requests that had turns between those of the cases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<RequestsBetween>,
    /// The order of the timed turns: who, and how many rounds. Empty: the cases were replayed one after the other, and a slow
    /// minute may have fallen on one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
    /// Whether every case is complete.
    pub coverage: Coverage,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// A stretch in which one case, or one request, was timed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// The case's name, or the request's.
    pub of: String,
    /// Rounds of the case; requests.
    pub rounds: u64,
}

/// Which ceilings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CeilingsUsed {
    /// [`Ceilings::id`].
    pub id: String,
    /// When they were measured.
    pub created: String,
    /// [`Ceilings::processor_share`]: low, other load was present, and the machine can do more than these ceilings say.
    #[serde(default = "share_not_recorded")]
    pub processor_share: Reading,
}

fn share_not_recorded() -> Reading {
    Known::unavailable("the record does not say", "replay again with this build")
}

impl CeilingsUsed {
    pub fn of(ceilings: &Ceilings) -> CeilingsUsed {
        CeilingsUsed {
            id: ceilings.id(),
            created: ceilings.created.clone(),
            processor_share: ceilings.processor_share.clone(),
        }
    }
}

/// One case. Its workload does not hold the checkpoint, so that cases of two checkpoints can be compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayCase {
    /// As asked for: `selected:decode:128`.
    pub case: String,
    pub subject: Known<Subject>,
    pub conditions: Known<Conditions>,
    pub conditions_id: Known<String>,
    pub replay: Replay,
}

impl ReplayCase {
    /// A case that was not measured.
    pub fn not_measured(case: &str, replay: Replay) -> ReplayCase {
        let why = || replay.coverage.reason().unwrap_or("not measured").to_owned();
        let how = "remove the cause and replay again";
        ReplayCase {
            case: case.to_owned(),
            subject: Known::unavailable(why(), how),
            conditions: Known::unavailable(why(), how),
            conditions_id: Known::unavailable(why(), how),
            replay,
        }
    }
}

impl ReplayRecord {
    /// Rounds in each turn of a case, in order; empty where cases had no turns.
    pub fn turns_of(&self, case: &str) -> Vec<usize> {
        self.turns.iter().filter(|turn| turn.of == case).map(|turn| turn.rounds as usize).collect()
    }

    /// Fills in the ids, the coverage, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        for request in &mut self.requests {
            request.workload_id = request.workload.id();
        }
        for case in &mut self.cases {
            case.replay.workload_id = case.replay.workload.id();
            if let Known::Is(conditions) = &case.conditions {
                case.conditions_id = Known::Is(conditions.id());
            }
        }
        let missing = |case: &ReplayCase| Some(format!("{}: {}", case.case, case.replay.coverage.reason()?));
        let reasons: Vec<String> = self.cases.iter().filter_map(missing).collect();
        self.coverage =
            if reasons.is_empty() { Coverage::complete() } else { Coverage::incomplete(reasons.join("; ")) };
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for ReplayRecord {
    const SCHEMA: &'static str = "replay/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        let mut ids = Vec::new();
        for case in &self.cases {
            let (stored, computed) = (case.replay.workload_id.as_str(), case.replay.workload.id());
            ids.push(StoredId { field: "cases.workload_id", stored, computed });
            if let (Known::Is(conditions), Known::Is(id)) = (&case.conditions, &case.conditions_id) {
                ids.push(StoredId { field: "cases.conditions_id", stored: id, computed: conditions.id() });
            }
        }
        let between = self.requests.iter();
        ids.extend(between.map(|request| StoredId {
            field: "requests.workload_id",
            stored: &request.workload_id,
            computed: request.workload.id(),
        }));
        ids
    }

    fn cross_foot(&self) -> Vec<Check> {
        let with_id = self.cases.iter().filter(|case| case.conditions_id.known().is_some()).count();
        let with_conditions = self.cases.iter().filter(|case| case.conditions.known().is_some()).count();
        let named = |case: &&ReplayCase| {
            let (replay, workload) = (&case.replay, &case.replay.workload);
            case.case == format!("{}:{}:{}", replay.checkpoint, workload.phase.name(), workload.context_tokens)
        };
        let named = self.cases.iter().filter(named).count();
        let mut checks = vec![
            Check::counts("an id for each case's conditions", with_conditions as u64, with_id as u64),
            Check::counts("cases named after what was replayed", self.cases.len() as u64, named as u64),
        ];
        let in_turns = |name: &str| self.turns_of(name).iter().sum::<usize>() as u64;
        for request in &self.requests {
            let name = request.name();
            let samples = request.samples() as u64;
            checks.push(Check::counts(format!("{name}: one sample per turn"), in_turns(&name), samples));
        }
        for case in &self.cases {
            if !self.turns.is_empty() && case.replay.coverage.is_complete() {
                let rounds = case.replay.round_order.len() as u64;
                checks.push(Check::counts(format!("{}: rounds of all turns", case.case), in_turns(&case.case), rounds));
            }
            for mut check in case.replay.checks() {
                check.name = format!("{} {}", case.case, check.name);
                checks.push(check);
            }
        }
        checks
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }
}
