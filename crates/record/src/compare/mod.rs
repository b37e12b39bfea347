//! `comparison/1`: what two sides of one workload say about a change, view by view, and which of the outcomes it is.
//! Not here: which records make a side (`sides.rs`), how rows come about (`delta.rs`, `request.rs`, `replays.rs`, `captured.rs`,
//! `around.rs`), what follows (`outcome.rs`), and asking rules of it (`gate/rule.rs`).

mod around;
mod build;
mod captured;
mod delta;
mod differences;
mod outcome;
mod replays;
mod request;
mod sides;

pub use around::{CauseChange, TimelineView};
pub use build::{Asked, CompareError, compare};
pub use captured::{CaptureRow, CaptureView};
pub use delta::{Delta, DeltaMethod};
pub use differences::{ConditionDifference, DifferenceKind, KernelChange, WiringView};
pub use outcome::{ChangeOutcome, Outcome};
pub use replays::ReplayView;
pub use request::{PhaseTimes, RequestView};
pub use sides::{Collection, Side, SideError};

use crate::bench::Interval;
use crate::check::Check;
use crate::evidence::EvidenceRef;
use crate::gate::RuleAnswer;
use crate::known::Known;
use crate::quantity::Reading;
use crate::read::{Record, StoredId};
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `comparison/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComparisonRecord {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    /// Of the request where one was clocked on both sides, else of the first replay. Both sides have it.
    pub workload: Workload,
    pub workload_id: String,
    pub before: ComparedSide,
    pub after: ComparedSide,
    /// What the change was aimed at.
    pub target: Known<Target>,
    pub request: Known<RequestView>,
    /// One per workload that both sides replayed.
    pub replays: Known<Vec<ReplayView>>,
    pub timeline: Known<TimelineView>,
    /// One per workload that both sides captured.
    #[serde(default = "no_captures")]
    pub captures: Known<Vec<CaptureView>>,
    /// What a record of the machine's ceilings on each side says about the machine itself.
    pub machine: Known<Vec<Delta>>,
    pub wiring: Known<WiringView>,
    /// Everything besides the workload that differs.
    pub different: Vec<ConditionDifference>,
    /// Records of either side that have no partner on the other, and why others were not used.
    pub left_out: Vec<String>,
    pub outcome: ChangeOutcome,
    /// Conditions that were asked of this comparison.
    pub gates: Vec<RuleAnswer>,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

fn no_captures() -> Known<Vec<CaptureView>> {
    Known::unavailable("the comparison was made without captures", "compare again with this build")
}

/// One of the two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComparedSide {
    /// As given, e.g. `bench.json#selected`.
    pub name: String,
    pub checkpoint: Known<String>,
    pub solution: Known<String>,
    /// SHA-256 of the executable file that measured.
    pub build_id: Known<String>,
    pub conditions_id: Known<String>,
    /// The records that it is made of.
    pub evidence: Vec<EvidenceRef>,
}

/// The group of operators that a change was aimed at, in one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    pub group: String,
    /// `prefill` or `decode`.
    pub phase: String,
    /// Whether somebody named it; else it is the largest group of the larger phase before the change.
    pub named: bool,
    /// What the replay says about it; where nothing was replayed, the capture.
    pub delta: Known<Delta>,
    /// What the request saved per pass of this phase over what the replay of all groups saved. About 1: everything arrived.
    pub arrived: Reading,
    pub arrived_interval: Known<Interval>,
}

impl ComparisonRecord {
    /// The row of this name: a metric of the clock (`decode`), a group (`replay.decode.projections`), `target`, and others.
    pub fn row(&self, name: &str) -> Option<&Delta> {
        if name == "target" {
            return self.target.known().and_then(|target| target.delta.known());
        }
        let request = self.request.known().into_iter().flat_map(|view| &view.rows);
        let replays = self.replays.known().into_iter().flatten().flat_map(ReplayView::rows);
        let timeline = self.timeline.known().into_iter().map(|view| &view.busy);
        let captures = self.captures.known().into_iter().flatten().flat_map(|view| &view.rows).map(|row| &row.per_pass);
        request.chain(replays).chain(timeline).chain(captures).find(|row| row.name == name)
    }

    /// Whether both sides generated the same tokens, if that is known.
    pub fn tokens_equal(&self) -> Known<bool> {
        match &self.request {
            Known::Is(view) => view.tokens_equal.clone(),
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        }
    }
}

impl Record for ComparisonRecord {
    const SCHEMA: &'static str = "comparison/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        let mut ids = vec![StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() }];
        for view in self.replays.known().into_iter().flatten() {
            let (stored, computed) = (view.workload_id.as_str(), view.workload.id());
            ids.push(StoredId { field: "replays.workload_id", stored, computed });
        }
        for view in self.captures.known().into_iter().flatten() {
            let (stored, computed) = (view.workload_id.as_str(), view.workload.id());
            ids.push(StoredId { field: "captures.workload_id", stored, computed });
        }
        ids
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }

    /// That the parts of the request and of the replays sum up, and that the change reached a call at all.
    fn cross_foot(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        if let Known::Is(view) = &self.request {
            checks.extend(view.checks());
        }
        for view in self.replays.known().into_iter().flatten() {
            checks.extend(view.checks());
        }
        if let Known::Is(wiring) = &self.wiring {
            checks.push(wiring.check());
        }
        checks
    }
}
