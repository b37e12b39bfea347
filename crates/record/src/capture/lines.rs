//! `lines/1`: source locations with what they cost, and the stacks behind them; no source text. And its summary in `capture/1`.
//! Not here: resolving addresses, which is `probe`'s, and adding up (`line_table.rs`).

use crate::capture::place::{Cost, Place};
use crate::capture::provenance::{Provenance, Stretch};
use crate::capture::reduced::kernels::KernelTree;
use crate::check::Check;
use crate::conditions::Conditions;
use crate::known::Known;
use crate::read::{Record, StoredId};
use crate::subject::Subject;
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `lines/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinesRecord {
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
    /// How the intervals are made.
    pub method: String,
    /// Workers' samples inside the passes.
    pub samples: u64,
    pub executables: Vec<ExecutableUse>,
    /// Every file of the repository that a line is in.
    pub files: Vec<SourceFile>,
    /// Most samples first.
    pub places: Vec<PlaceLines>,
    pub frames: Vec<StackFrame>,
    /// Each different stack once per place.
    pub stacks: Vec<StackCost>,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// A mapped file that samples are in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecutableUse {
    /// Without the path to it.
    pub name: String,
    pub program: bool,
    pub build_id: Known<String>,
    /// Samples whose innermost address is in it.
    pub samples: u64,
    /// Whether it had lines for them, or why not.
    pub lines: Known<bool>,
}

/// A source file of the repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// From the repository's root.
    pub file: String,
    pub verification: Verification,
}

/// Whether the checkout's file is the one that the captured program was compiled from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verification {
    /// It has the hash that the trace's `sources.sha256` names.
    Verified,
    /// It was changed, moved, or is not in that list.
    Unverified { why: String },
}

impl Verification {
    pub fn is_verified(&self) -> bool {
        matches!(self, Verification::Verified)
    }
}

/// The lines of one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaceLines {
    pub place: Place,
    /// Of all workers' samples in the stretch. The rows' shares are of this place.
    pub cost: Cost,
    /// Samples whose innermost line the debugging information gives as 0: the compiler could not say.
    pub line_zero_samples: u64,
    /// Samples that no line of the repository is in the stack of.
    pub outside_repository_samples: u64,
    /// By `self_in_repository`, then by `self_innermost`, largest first.
    pub rows: Vec<LineRow>,
}

/// One source location of one place. The three costs answer three questions; only the first two add up, each by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LineRow {
    /// By `self_in_repository`; rows whose intervals overlap have the same; absent where that is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// From the repository's root; else a shortened name, in brackets where there is no file.
    pub file: String,
    /// From 1; 0 is shown as such: the instructions have no line of their own.
    pub line: u32,
    /// The functions that the line is of, shortest first.
    pub functions: Vec<String>,
    pub in_repository: bool,
    pub verified: bool,
    /// Samples whose innermost line this is. Sums to the place.
    pub self_innermost: Cost,
    /// Samples for which this is the innermost line in this repository: intrinsics and library code count for the line that
    /// uses them. Sums to the place.
    pub self_in_repository: Cost,
    /// Samples that this line is anywhere in the stack of, once each. Sums to nothing.
    pub inclusive_not_summable: Cost,
}

/// One function in stacks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StackFrame {
    pub function: String,
    pub file: String,
    pub line: u32,
    /// Inlined into the frame behind it (its caller).
    pub inlined: bool,
    pub in_repository: bool,
}

/// One stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StackCost {
    pub place: Place,
    /// Indices of frames, innermost first; the inline chain of the sampled instruction first.
    pub frames: Vec<u32>,
    pub samples: u64,
    pub weight_ns: u64,
}

/// The dearest lines of each kernel, in `capture/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LineTree {
    pub files: Vec<SourceFile>,
    pub executables: Vec<ExecutableUse>,
    pub places: Vec<LineSummary>,
}

/// A place with its dearest rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LineSummary {
    pub place: Place,
    pub samples: u64,
    pub line_zero_samples: u64,
    pub outside_repository_samples: u64,
    /// At most [`SUMMARY_ROWS`] with `self_in_repository` above nothing.
    pub rows: Vec<LineRow>,
    /// Samples of `self_in_repository` in the rows that are left out.
    pub other_samples: u64,
}

/// Rows per place in a summary.
pub const SUMMARY_ROWS: usize = 12;

impl LineTree {
    /// The dearest rows of each place.
    pub fn of(record: &LinesRecord) -> LineTree {
        let summary = |place: &PlaceLines| {
            let dear = |row: &&LineRow| row.self_in_repository.samples > 0;
            let rows: Vec<LineRow> = place.rows.iter().filter(dear).take(SUMMARY_ROWS).cloned().collect();
            let shown: u64 = rows.iter().map(|row| row.self_in_repository.samples).sum();
            LineSummary {
                place: place.place.clone(),
                samples: place.cost.samples,
                line_zero_samples: place.line_zero_samples,
                outside_repository_samples: place.outside_repository_samples,
                rows,
                other_samples: place.cost.samples.saturating_sub(shown),
            }
        };
        let places = record.places.iter().map(summary).collect();
        LineTree { files: record.files.clone(), executables: record.executables.clone(), places }
    }

    pub(crate) fn checks(&self, tree: &KernelTree, checks: &mut Vec<Check>) {
        for (place, cost) in tree.places().into_iter().filter(|(_, cost)| cost.samples > 0) {
            let own = self.places.iter().find(|summary| summary.place == place);
            let sum = own.map_or(0, |summary| {
                summary.rows.iter().map(|row| row.self_in_repository.samples).sum::<u64>() + summary.other_samples
            });
            checks.push(Check::counts(format!("{place}: its lines are its samples"), cost.samples, sum));
        }
    }
}

impl LinesRecord {
    /// Fills in the ids, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.workload_id = self.workload.id();
        self.conditions_id = self.conditions.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for LinesRecord {
    const SCHEMA: &'static str = "lines/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![
            StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() },
            StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() },
        ]
    }

    /// Each of the two self columns, and the stacks, sum to the place; places to the stretch; nothing is above its place.
    fn cross_foot(&self) -> Vec<Check> {
        let of_places = self.places.iter().map(|place| place.cost.samples).sum();
        let mut checks = vec![
            Check::counts("lost samples", 0, self.stretch.sampling.lost.known().copied().unwrap_or(0)),
            Check::counts("the places' samples are the stretch's", self.samples, of_places),
        ];
        for place in &self.places {
            let (name, whole) = (&place.place, place.cost.samples);
            let sum = |cost: fn(&LineRow) -> &Cost| place.rows.iter().map(|row| cost(row).samples).sum::<u64>();
            let weight = |cost: fn(&LineRow) -> &Cost| place.rows.iter().map(|row| cost(row).weight_ns).sum::<u64>();
            let stacks = self.stacks.iter().filter(|stack| stack.place == place.place).map(|stack| stack.samples).sum();
            let above = place.rows.iter().filter(|row| row.inclusive_not_summable.samples > whole).count();
            checks.extend([
                Check::counts(format!("{name}: self is the whole"), whole, sum(|row| &row.self_innermost)),
                Check::counts(
                    format!("{name}: self in the repository is the whole"),
                    whole,
                    sum(|row| &row.self_in_repository),
                ),
                Check::counts(
                    format!("{name}: the weight of self is the whole's"),
                    place.cost.weight_ns,
                    weight(|row| &row.self_innermost),
                ),
                Check::counts(
                    format!("{name}: the weight of self in the repository is the whole's"),
                    place.cost.weight_ns,
                    weight(|row| &row.self_in_repository),
                ),
                Check::counts(format!("{name}: its stacks are the whole"), whole, stacks),
                Check::counts(format!("{name}: lines with more than the whole"), 0, above as u64),
            ]);
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
