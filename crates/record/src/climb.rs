//! `climb/1`: the ladder walked rung by rung on one machine: what each rung's hypothesis was, what the profile said of it,
//! and what the request gained. Not here: walking it, and the records of each step, which stand beside it.

mod row;

pub use row::row as climb_row;

use crate::bench::{Interval, Verdict, Verified};
use crate::check::Check;
use crate::conditions::{Binary, Host};
use crate::coverage::Coverage;
use crate::evidence::EvidenceRef;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::read::{Record, StoredId};
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `climb/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClimbRecord {
    pub schema: String,
    /// UTC, RFC 3339: when the climb began.
    pub created: String,
    /// The request, the same at every rung.
    pub workload: Workload,
    pub workload_id: String,
    /// A climb goes on only with the same binary on the same machine.
    pub binary: Binary,
    pub host: Host,
    pub solution: String,
    /// First and last rung, by their own names.
    pub from: String,
    pub to: String,
    /// Flags that every command took: model, threads, ...
    pub flags: Vec<String>,
    /// From the first rung upwards; those finished so far.
    pub rows: Vec<ClimbRow>,
    pub coverage: Coverage,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// One step of the ladder: the chapter's route table with this machine's numbers in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClimbRow {
    pub start_from: String,
    pub checkpoint: String,
    /// Of the rung: what should be true of a profile of `start_from` if it is to pay.
    pub hypothesis: String,
    pub change: String,
    /// The ranking's first candidate at `start_from`.
    pub dominates: Known<String>,
    /// Rows of the ranking that the rung's program has no more or calls differently.
    pub addresses: Vec<String>,
    /// Whether the ranking's first candidate is among them.
    pub hits_the_first: Known<bool>,
    pub predicted: Prediction,
    /// Whether the rung's output is the parent's, within the bench's tolerance.
    pub output: Verified,
    /// Seconds of the whole request, medians of one alternated run.
    pub before: Reading,
    pub after: Reading,
    /// After over before, pair by pair.
    pub ratio: Reading,
    pub interval: Known<Interval>,
    pub verdict: Known<Verdict>,
    /// `before - after` by the paired ratio.
    pub gained: Reading,
    pub finding: Finding,
    /// The finding in a sentence with its numbers.
    pub sentence: String,
    pub decision: Known<String>,
    /// The ledger's entry.
    pub decision_id: Known<String>,
    /// `find/2` of `start_from` and `bench/1` of both.
    pub find: EvidenceRef,
    pub bench: EvidenceRef,
}

/// What the ranking of the parent says that the rung could gain. Seconds per request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// If what it changes ran at the ceilings.
    pub at_most: Reading,
    /// If what it changes kept its part of the ceilings and only moved fewer bytes; unavailable where it moves as many.
    pub by_bytes: Reading,
}

/// What became of the hypothesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The request got faster.
    Confirmed,
    /// The request got slower, or no faster than makes a difference.
    Refuted,
    Inconclusive,
    /// The output or the wiring was not as it must be, or the change reaches no call of this request: no time counts.
    Void,
}

impl Finding {
    pub const fn name(self) -> &'static str {
        match self {
            Finding::Confirmed => "confirmed",
            Finding::Refuted => "refuted",
            Finding::Inconclusive => "inconclusive",
            Finding::Void => "void",
        }
    }

    /// By what the clock of both says of the whole request.
    pub fn of(counts: bool, verdict: &Known<Verdict>) -> Finding {
        match (counts, verdict) {
            (false, _) => Finding::Void,
            (true, Known::Is(Verdict::Better)) => Finding::Confirmed,
            (true, Known::Is(Verdict::Worse | Verdict::NoDifference { .. })) => Finding::Refuted,
            (true, Known::Is(Verdict::Inconclusive { .. }) | Known::Unavailable(_)) => Finding::Inconclusive,
        }
    }
}

impl ClimbRow {
    /// The gain by the paired ratio, in seconds.
    pub fn gain(before: &Reading, ratio: &Reading) -> Reading {
        match (before.value(), ratio) {
            (Some(before), Known::Is(ratio)) => {
                Reading::measured(before * (1.0 - ratio.value()), Unit::Seconds, ratio.n())
            }
            _ => Known::unavailable("the two were not clocked", "see the bench record"),
        }
    }
}

impl ClimbRecord {
    /// Fills in the id, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.workload_id = self.workload.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for ClimbRecord {
    const SCHEMA: &'static str = "climb/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() }]
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }

    /// Each row starts where the one before it ended, gains are those of their ratios, and findings those of the verdicts.
    fn cross_foot(&self) -> Vec<Check> {
        let starts = std::iter::once(&self.from).chain(self.rows.iter().map(|row| &row.checkpoint));
        let joined = self.rows.iter().zip(starts).filter(|(row, start)| row.start_from == **start).count();
        let mut checks = vec![Check::counts("rows join", self.rows.len() as u64, joined as u64)];
        for row in &self.rows {
            let again = ClimbRow::gain(&row.before, &row.ratio).value().unwrap_or(0.0);
            let stated = row.gained.value().unwrap_or(0.0);
            checks.push(Check::sums(format!("{}: the gain is the ratio's", row.checkpoint), again, stated));
            let counts = row.finding != Finding::Void;
            let same = Finding::of(counts, &row.verdict) == row.finding;
            checks.push(Check::counts(format!("{}: the finding is the verdict's", row.checkpoint), 1, same.into()));
        }
        checks
    }
}
