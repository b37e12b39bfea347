//! The record of `hourglass find`: one warmed request, what it dispatched, and a replay of both phases.
//! The views are in `request.rs`, `wiring.rs` and `replay.rs`; reading a file is in `read.rs`.

use crate::check::Check;
use crate::conditions::Conditions;
use crate::coverage::Coverage;
use crate::known::Known;
use crate::read::{Record, StoredId};
use crate::replay::Replay;
use crate::request::RequestClock;
use crate::subject::Subject;
use crate::wiring::Wiring;
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `find/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FindRecord {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    pub workload: Workload,
    pub workload_id: String,
    pub conditions: Conditions,
    pub conditions_id: String,
    pub subject: Subject,
    pub protocol: Protocol,
    pub coverage: Coverage,
    pub request: Known<RequestClock>,
    /// Of the clocked request, prefill then decode.
    pub wiring: Vec<Wiring>,
    /// Prefill then decode.
    pub replays: Vec<Replay>,
    pub next: Known<NextStep>,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// How often things were done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Complete requests before the clocked one, and replay rounds before the timed ones.
    pub warmup: u64,
    /// Timed rounds of each replay.
    pub iterations: u64,
    /// All samples of the record come from this one process.
    pub process_id: u32,
}

/// What the evidence points at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NextStep {
    /// The larger phase of the clocked request.
    pub larger_phase: String,
    pub largest_prefill_group: String,
    pub largest_decode_group: String,
    /// Kernels that the registry also has for the larger phase's largest group, for these shapes on this machine:
    /// `operator: kernel/isa`.
    pub other_kernels: Vec<String>,
    /// The next rung of the ladder.
    pub checkpoint: Known<String>,
    /// What should be true of this profile if that rung is to pay.
    pub hypothesis: Known<String>,
    /// What it changes.
    pub change: Known<String>,
}

impl NextStep {
    /// The larger phase's largest group.
    pub fn largest_group(&self) -> &str {
        if self.larger_phase == "decode" { &self.largest_decode_group } else { &self.largest_prefill_group }
    }
}

impl FindRecord {
    /// Fills in the ids, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.workload_id = self.workload.id();
        self.conditions_id = self.conditions.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for FindRecord {
    const SCHEMA: &'static str = "find/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        let mut ids = vec![
            StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() },
            StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() },
        ];
        ids.extend(self.replays.iter().map(|row| StoredId {
            field: "replays.workload_id",
            stored: &row.workload_id,
            computed: row.workload.id(),
        }));
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
        if let Some(request) = self.request.known()
            && request.coverage.is_complete()
        {
            let [first, rest @ ..] = request.token_seconds.as_slice() else {
                return vec![Check::counts("request: a time per generated token", self.workload.output_tokens, 0)];
            };
            let seconds = |reading: &crate::Reading| reading.value().unwrap_or(0.0);
            checks.push(Check::counts(
                "request: a time per generated token",
                self.workload.output_tokens,
                request.token_seconds.len() as u64,
            ));
            checks.push(Check::sums(
                "request: the first token's time is the prefill's",
                seconds(&request.prefill),
                *first,
            ));
            checks.push(Check::sums(
                "request: the other tokens' times sum to decode",
                seconds(&request.decode),
                rest.iter().sum(),
            ));
        }
        for wiring in &self.wiring {
            let phase = wiring.phase.name();
            checks.push(Check::counts(format!("{phase} wiring: calls x passes"), wiring.planned, wiring.dispatched));
            checks.push(Check::counts(
                format!("{phase} wiring: layers dispatched as planned"),
                wiring.layers,
                wiring.layers_as_planned,
            ));
        }
        for replay in &self.replays {
            checks.extend(replay.checks());
        }
        checks
    }
}
