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
    /// Of every case. Cases are replayed one after the other, not alternated: a slow minute may fall on one of them.
    pub protocol: Protocol,
    /// The ceilings that the floors are at.
    pub ceilings: Known<CeilingsUsed>,
    /// In the order asked for.
    pub cases: Vec<ReplayCase>,
    /// Whether every case is complete.
    pub coverage: Coverage,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
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
    /// Fills in the ids, the coverage, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
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
        for case in &self.cases {
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
