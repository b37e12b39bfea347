//! `shapes/1`: two kernels of one operator at every shape that a recorded workload used, weighted by how often it used it.
//! Not here: timing (`probe`), other tools' forms of it (`shapes/export.rs`).

mod export;

use crate::check::Check;
use crate::conditions::Conditions;
use crate::coverage::Coverage;
use crate::known::Known;
use crate::protocol::Protocol;
use crate::quantity::{Reading, Unit};
use crate::read::{Record, StoredId};
use crate::replay::Timing;
use crate::subject::Subject;
use crate::workload::{Phase, Workload};
pub use export::{FLASHINFER_OPERATORS, FlashInferFile, flashinfer_files, test_backend_ops};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `shapes/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShapeStudy {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    /// The recorded workload that the shapes are of.
    pub workload: Workload,
    pub workload_id: String,
    pub conditions: Conditions,
    pub conditions_id: String,
    pub subject: Subject,
    /// Rounds per shape; both kernels run in each, taking turns in going first.
    pub protocol: Protocol,
    /// What the record was, e.g. `find/2 of 2026-01-01T00:00:00Z`.
    pub source: String,
    pub operator: String,
    pub kernels: [KernelName; 2],
    pub rows: Vec<ShapeRow>,
    /// Of the first and the second kernel: sums over the rows that both could run, in seconds.
    pub totals: [Reading; 2],
    /// First less second: positive if the second takes less.
    pub saved: Reading,
    /// Time of the recorded request (or replayed pass), in seconds.
    pub recorded: Reading,
    /// `saved / recorded`. An estimate: calls timed apart from the rest of the pass, at a few contexts of many; the request
    /// clock decides.
    pub estimated_share: Reading,
    pub coverage: Coverage,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// A kernel and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelName {
    /// `name/instructions`.
    pub label: String,
    /// `file:line`.
    pub source: String,
}

/// One place of the layer at one shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShapeRow {
    pub phase: Phase,
    /// What the calls are for, e.g. `q_proj`.
    pub slot: String,
    /// Their shape in words, as in a replay.
    pub shape: String,
    /// New rows of the pass, and tokens cached before it.
    pub pass_rows: u64,
    pub offset: u64,
    /// Calls per pass, and passes of the workload that this row stands for (neighbouring contexts are represented by the
    /// middle one).
    pub calls: u64,
    pub passes: u64,
    /// The same as numbers: rows, columns and element type of each input, weight and output.
    pub inputs: Vec<Tensor>,
    pub weights: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    /// Of one pass.
    pub bytes: u64,
    pub flops: u64,
    /// Of the first and the second kernel, one pass, in microseconds.
    pub timings: [Known<Timing>; 2],
}

/// One operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    pub rows: u64,
    pub cols: u64,
    /// `bf16`, `f32`, or a packed format such as `w4-g128`.
    pub format: String,
}

impl ShapeRow {
    /// Microseconds of one pass with the first (0) or second (1) kernel.
    pub fn median(&self, kernel: usize) -> Option<f64> {
        self.timings[kernel].known()?.median.value()
    }

    /// Seconds over all passes that the row stands for.
    pub fn total(&self, kernel: usize) -> Option<f64> {
        Some(self.median(kernel)? * self.passes as f64 / 1e6)
    }
}

impl ShapeStudy {
    /// Fills in ids, totals, the estimate, coverage and checks from the rows.
    pub fn close(&mut self) {
        self.workload_id = self.workload.id();
        self.conditions_id = self.conditions.id();
        let sums = self.sums();
        let n = self.protocol.iterations;
        let none = || Known::unavailable("no shape ran with both kernels", "compare kernels that take these shapes");
        let both = self.rows.iter().any(|row| row.total(0).is_some() && row.total(1).is_some());
        let total = |sum: f64| if both { Reading::measured(sum, Unit::Seconds, n) } else { none() };
        self.totals = sums.map(total);
        self.saved = total(sums[0] - sums[1]);
        self.estimated_share = match (&self.saved, &self.recorded) {
            (Known::Is(saved), Known::Is(recorded)) => Reading::ratio(saved.value(), recorded.value(), Unit::Share, n),
            (Known::Unavailable(missing), _) | (_, Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
        };
        // One sentence per reason, however many places it holds for.
        let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
        for row in &self.rows {
            for missing in row.timings.iter().filter_map(Known::missing) {
                let place = format!("{} {}", row.phase.name(), row.slot);
                match reasons.iter_mut().find(|(reason, _)| *reason == missing.unavailable) {
                    Some((_, places)) if places.contains(&place) => {}
                    Some((_, places)) => places.push(place),
                    None => reasons.push((missing.unavailable.clone(), vec![place])),
                }
            }
        }
        let reasons: Vec<String> =
            reasons.into_iter().map(|(reason, places)| format!("{reason} ({})", places.join(", "))).collect();
        self.coverage =
            if reasons.is_empty() { Coverage::complete() } else { Coverage::incomplete(reasons.join("; ")) };
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }

    /// Seconds of both kernels over the rows that both could run.
    fn sums(&self) -> [f64; 2] {
        let both = self.rows.iter().filter_map(|row| Some([row.total(0)?, row.total(1)?]));
        both.fold([0.0, 0.0], |sum, row| [sum[0] + row[0], sum[1] + row[1]])
    }
}

impl Record for ShapeStudy {
    const SCHEMA: &'static str = "shapes/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![
            StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() },
            StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() },
        ]
    }

    fn cross_foot(&self) -> Vec<Check> {
        let [first, second] = self.sums();
        let total = |reading: &Reading| reading.value().unwrap_or(0.0);
        let timings = || self.rows.iter().flat_map(|row| row.timings.iter().filter_map(Known::known));
        let again: f64 = timings()
            .filter_map(|timing| crate::Samples::new(&timing.samples_us).ok())
            .map(|samples| samples.median())
            .sum();
        vec![
            Check::sums("rows sum to the first kernel's total", first, total(&self.totals[0])),
            Check::sums("rows sum to the second kernel's total", second, total(&self.totals[1])),
            Check::sums(
                "medians are those of the samples",
                again,
                timings().filter_map(|timing| timing.median.value()).sum(),
            ),
            Check::counts(
                "one sample per kernel, row and round",
                timings().count() as u64 * self.protocol.iterations,
                timings().map(|timing| timing.samples_us.len() as u64).sum(),
            ),
        ]
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }
}
