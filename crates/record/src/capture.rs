//! A capture: one steady stretch of a step, sampled. What it leaves on disk (`raw.rs`), which files those were (`manifest.rs`),
//! what its metadata say, and what it comes to (`reduced.rs`, `lines.rs`).
//! Not here: taking one, and resolving its addresses, which are `probe`'s.

mod attribute;
pub mod callgrind;
pub mod export;
mod limiter;
pub mod line_table;
pub mod lines;
pub mod load;
pub mod manifest;
pub mod ncu;
pub mod perf_stat;
mod place;
mod provenance;
pub mod raw;
pub mod reduced;
pub mod share;

use crate::check::Check;
use crate::conditions::{BoundKernel, Conditions};
use crate::known::Known;
use crate::quantity::Reading;
use crate::read::{Record, StoredId};
use crate::subject::Subject;
use crate::timeline::SamplingUse;
use crate::workload::Workload;
pub use attribute::{Placed, PlacedSample, kernel_tree, placed};
pub use limiter::{Dearest, Hints, Roofs};
pub use place::{Cost, Place};
pub use provenance::{Provenance, Source, Stretch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What every reader of a capture must know.
pub const CAUTION: &str = "A capture is never a latency: sampling and tracing are inside every time. Shares are of the captured \
    stretch, not of a request.";

/// `capture-metadata/1`: what was captured and under which conditions; the trace is a directory beside it. Nothing in a
/// capture is a latency: sampling and tracing are inside every time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureMetadata {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    /// Phase `prefill` or `decode`; `context_tokens` is the chapter's S.
    pub workload: Workload,
    pub workload_id: String,
    pub conditions: Conditions,
    pub conditions_id: String,
    pub subject: Subject,
    pub process_id: u32,
    /// Passes of the same shape before the captured ones.
    pub warmup: u64,
    /// Captured passes, each the same step.
    pub steps: u64,
    /// Why there are no more of them.
    pub ended: Ended,
    /// From the first captured pass's start to the last one's end.
    pub wall_ns: u64,
    /// The half-width of the widest 95 % interval of a kernel's share of the samples, if one was asked for and reached.
    pub precision: Known<f64>,
    pub sampling: SamplingUse,
    /// A captured pass over an uncaptured one of the same run, medians, less 1.
    pub overhead: Known<Reading>,
    /// How the trace's `callgrind.out` was made: by another program than the captured one.
    pub simulation: Known<Simulation>,
    /// [`CAUTION`].
    pub caution: String,
    pub trace: TracePackage,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// Why a captured stretch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// After the steps, the time or the precision that was asked for.
    AsAsked,
    /// At the most that is captured at once; more was asked for.
    AtMost,
    /// By Ctrl-C.
    Interrupted,
}

/// One pass of the same step on a simulated processor. It can have fewer features than the machine, so that its kernels are
/// others: its counts are not those of the captured passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Simulation {
    /// Name and version, e.g. `valgrind-3.19.0`.
    pub tool: String,
    /// One, so that counts do not depend on who waits for whom.
    pub threads: u64,
    /// Instruction-set features that the simulated processor has.
    pub features: Vec<String>,
    pub kernels: Vec<BoundKernel>,
}

/// The directory with the raw files, as it was when the metadata were written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracePackage {
    /// Without the path to it.
    pub basename: String,
    pub files: u64,
    pub bytes: u64,
    /// SHA-256 of the manifest file: sorted lines of `sha256`, two spaces, relative path.
    pub manifest_sha256: String,
}

impl CaptureMetadata {
    /// Fills in the ids, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.workload_id = self.workload.id();
        self.conditions_id = self.conditions.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for CaptureMetadata {
    const SCHEMA: &'static str = "capture-metadata/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![
            StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() },
            StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() },
        ]
    }

    fn cross_foot(&self) -> Vec<Check> {
        vec![Check::counts("lost samples", 0, self.sampling.lost.known().copied().unwrap_or(0))]
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }
}
