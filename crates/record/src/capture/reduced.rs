//! `capture/1`: what one captured stretch comes to: kernels, counters, source lines, instructions; each there or why not.
//! Not here: the raw files (`raw.rs`), and every line of every kernel, which is `lines/1` (`lines.rs`).

pub mod counters;
pub mod device;
pub mod instructions;
pub mod kernels;

use crate::capture::attribute::{Placed, kernel_tree};
use crate::capture::limiter::{Hints, Roofs};
use crate::capture::lines::LineTree;
use crate::capture::load::RawTrace;
use crate::capture::provenance::{Provenance, Stretch};
use crate::check::Check;
use crate::conditions::Conditions;
use crate::known::Known;
use crate::read::{Record, StoredId};
use crate::replay::cases::CeilingsUsed;
use crate::subject::Subject;
use crate::workload::Workload;
use counters::CounterTree;
use device::DeviceTree;
use instructions::InstructionTree;
use kernels::KernelTree;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `capture/1`. Nothing in it is a latency: sampling and tracing are inside every time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRecord {
    pub schema: String,
    /// UTC, RFC 3339: when it was captured.
    pub created: String,
    pub workload: Workload,
    pub workload_id: String,
    pub conditions: Conditions,
    pub conditions_id: String,
    pub subject: Subject,
    pub provenance: Provenance,
    pub stretch: Stretch,
    /// The ceilings that rates and limiters are held against.
    pub ceilings: Known<CeilingsUsed>,
    pub kernels: Known<KernelTree>,
    pub counters: Known<CounterTree>,
    pub lines: Known<LineTree>,
    pub instructions: Known<InstructionTree>,
    /// What a GPU's counters say.
    #[serde(default = "device::none")]
    pub device: Known<DeviceTree>,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

impl CaptureRecord {
    /// Where there are no counters of a GPU.
    pub fn without_device() -> Known<DeviceTree> {
        device::none()
    }

    /// Fills in the ids, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.workload_id = self.workload.id();
        self.conditions_id = self.conditions.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

/// What a capture's record would check of a trace beside its lines: its kernels, and what a GPU's profiler counted.
pub fn trace_checks(trace: &RawTrace, placed: &Placed, device: Option<&DeviceTree>) -> Vec<Check> {
    let mut checks = Vec::new();
    let roofs = Roofs { ceilings: None, threads: trace.workers() as u64, footprint: 0 };
    if let Known::Is(tree) = kernel_tree(trace, placed, roofs, &Hints::default()) {
        tree.checks(trace.steps.len() as u64, &mut checks);
    }
    if let Some(device) = device {
        device.checks(&mut checks);
    }
    checks
}

impl Record for CaptureRecord {
    const SCHEMA: &'static str = "capture/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![
            StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() },
            StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() },
        ]
    }

    /// Kernels, barrier waits and dispatch are all samples of the stretch; every pass made every call; the lines of a kernel
    /// are its samples; none was lost.
    fn cross_foot(&self) -> Vec<Check> {
        let mut checks =
            vec![Check::counts("lost samples", 0, self.stretch.sampling.lost.known().copied().unwrap_or(0))];
        if let Known::Is(tree) = &self.kernels {
            tree.checks(self.stretch.steps, &mut checks);
            if let Known::Is(lines) = &self.lines {
                lines.checks(tree, &mut checks);
            }
            if let Known::Is(instructions) = &self.instructions {
                instructions.checks(tree, &mut checks);
            }
        }
        if let Known::Is(device) = &self.device {
            device.checks(&mut checks);
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
