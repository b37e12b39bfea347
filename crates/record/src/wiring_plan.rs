//! `wiring/1`: the calls that a checkpoint's forward passes would make, from the bound programs' lists; nothing is run.
//! What a clocked request really dispatched of them is in `wiring.rs`.

use crate::check::Check;
use crate::conditions::Conditions;
use crate::read::{Record, StoredId};
use crate::subject::Subject;
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `wiring/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WiringPlan {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    pub subject: Subject,
    pub conditions: Conditions,
    pub conditions_id: String,
    /// One per phase asked for.
    pub passes: Vec<PlannedPass>,
    /// Kernels of the registry that no checkpoint's passes over this model reach here.
    pub unreached: Vec<UnreachedKernel>,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// One unchunked pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedPass {
    pub workload: Workload,
    pub workload_id: String,
    /// In program order.
    pub calls: Vec<PlannedCall>,
    /// Sums over the calls.
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub flops: u64,
}

/// One call as it would be bound here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedCall {
    /// Absent for calls outside the layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u64>,
    pub slot: String,
    pub group: String,
    pub operator: String,
    /// `name/isa`.
    pub kernel: String,
    /// `file:line` of the kernel.
    pub source: String,
    pub inputs: Vec<Shape>,
    pub outputs: Vec<Shape>,
    pub weights: Vec<Shape>,
    /// The least that the call moves and computes, exactly; a multiply-add is two operations.
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub flops: u64,
}

/// `(rows, cols)`, row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    pub rows: u64,
    pub cols: u64,
    /// Element type of a buffer, packed format of a weight.
    pub form: String,
}

/// A kernel that is never bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnreachedKernel {
    pub operator: String,
    /// `name/isa`.
    pub kernel: String,
    pub source: String,
    pub reason: Unreached,
    /// In words.
    pub why: String,
}

/// Why a kernel is never bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unreached {
    /// Nothing calls it, though it could run: dead code, a checkpoint that is missing, or one that a switch chooses.
    NoCheckpoint,
    /// It is its operator's reference, which tests compare with.
    Reference,
    /// It plays an instruction in plain memory, so that tests need no machine that has it.
    Emulation,
    /// Another version of the same name is preferred on this machine.
    OtherVersion,
    /// No call of this model has a shape or format that it takes.
    NoShape,
    /// This machine lacks an instruction that it needs.
    NoFeature,
}

impl WiringPlan {
    /// Fills in the ids, the sums, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.conditions_id = self.conditions.id();
        for pass in &mut self.passes {
            pass.workload_id = pass.workload.id();
            pass.bytes_read = pass.calls.iter().map(|call| call.bytes_read).sum();
            pass.bytes_written = pass.calls.iter().map(|call| call.bytes_written).sum();
            pass.flops = pass.calls.iter().map(|call| call.flops).sum();
        }
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for WiringPlan {
    const SCHEMA: &'static str = "wiring/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        let conditions =
            StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() };
        let passes = self.passes.iter().map(|pass| StoredId {
            field: "passes.workload_id",
            stored: &pass.workload_id,
            computed: pass.workload.id(),
        });
        std::iter::once(conditions).chain(passes).collect()
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// The kernels of the conditions are those of the calls, and each pass's sums are those of its calls.
    fn cross_foot(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for pass in &self.passes {
            let phase = pass.workload.phase;
            let bound =
                self.conditions.kernels.iter().filter(|kernel| kernel.phase == phase).map(|kernel| kernel.calls);
            let name = phase.name();
            checks.push(Check::counts(format!("{name}: calls by kernel"), pass.calls.len() as u64, bound.sum()));
            let sum = |pick: fn(&PlannedCall) -> u64| pass.calls.iter().map(pick).sum::<u64>();
            checks.push(Check::counts(format!("{name}: bytes read"), sum(|call| call.bytes_read), pass.bytes_read));
            checks.push(Check::counts(
                format!("{name}: bytes written"),
                sum(|call| call.bytes_written),
                pass.bytes_written,
            ));
            checks.push(Check::counts(format!("{name}: operations"), sum(|call| call.flops), pass.flops));
        }
        checks
    }

    fn void(&self) -> bool {
        self.void
    }
}
