//! One captured stretch before and after: each operator's part of the workers' samples, and how long its calls took there.
//! Not here: how a capture is reduced. Nothing in one is a latency, and it says nothing of other shapes or of the request.

use super::delta::{Delta, Meaning};
use crate::bench::Better;
use crate::capture::reduced::CaptureRecord;
use crate::capture::reduced::kernels::KernelRow;
use crate::quantity::{Reading, Unit};
use crate::statistics::unpaired::{Measured, MedianOf};
use crate::statistics::verdict::Names;
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Two captures of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureView {
    /// `prefill` or `decode`.
    pub phase: String,
    pub workload: Workload,
    pub workload_id: String,
    /// Every operator of either side, the largest share before the change first.
    pub rows: Vec<CaptureRow>,
}

/// One operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRow {
    pub operator: String,
    /// `name/isa` of each kernel; empty if the side has no such call.
    pub kernels_before: Vec<String>,
    pub kernels_after: Vec<String>,
    /// Parts of the workers' samples in the stretch.
    pub share_before: Reading,
    pub share_after: Reading,
    /// Microseconds of a call, each as long as its slowest worker, mean over the operator's calls of a pass.
    pub call_before: Reading,
    pub call_after: Reading,
    /// Microseconds of a pass's calls. Tracing is in it, on both sides alike. The interval holds what two runs may differ by.
    pub per_pass: Delta,
}

impl CaptureView {
    /// None where a side has no kernels.
    pub(super) fn of(
        before: &CaptureRecord,
        after: &CaptureRecord,
        band: f64,
        names: Names<'_>,
    ) -> Option<CaptureView> {
        let (a, b) = (&before.kernels.known()?.rows, &after.kernels.known()?.rows);
        let mut operators: Vec<&str> = Vec::new();
        for row in a.iter().chain(b) {
            if !operators.contains(&row.operator.as_str()) {
                operators.push(&row.operator);
            }
        }
        let phase = before.workload.phase.name();
        let mut rows: Vec<CaptureRow> = operators
            .into_iter()
            .map(|operator| CaptureRow {
                operator: operator.to_owned(),
                kernels_before: of(a, operator).map(|row| row.kernel.clone()).collect(),
                kernels_after: of(b, operator).map(|row| row.kernel.clone()).collect(),
                share_before: share(a, operator),
                share_after: share(b, operator),
                call_before: call(a, operator),
                call_after: call(b, operator),
                per_pass: delta(&row_name(phase, operator), time(a, operator), time(b, operator), band, names),
            })
            .collect();
        let part = |row: &CaptureRow| row.share_before.value().unwrap_or(0.0);
        rows.sort_by(|one, other| part(other).total_cmp(&part(one)));
        let workload = before.workload.clone();
        Some(CaptureView { phase: phase.to_owned(), workload_id: workload.id(), workload, rows })
    }

    /// The row of an operator.
    pub fn operator(&self, operator: &str) -> Option<&CaptureRow> {
        self.rows.iter().find(|row| row.operator == operator)
    }
}

/// What the row of an operator's pass is called.
pub(super) fn row_name(phase: &str, operator: &str) -> String {
    format!("capture.{phase}.{operator}")
}

fn of<'r>(rows: &'r [KernelRow], operator: &str) -> impl Iterator<Item = &'r KernelRow> {
    rows.iter().filter(move |row| row.operator == operator)
}

fn no_calls() -> Reading {
    Reading::unavailable("this side has no such calls", "nothing is missing: the other side has them")
}

fn share(rows: &[KernelRow], operator: &str) -> Reading {
    let samples: u64 = of(rows, operator).map(|row| row.cost.samples).sum();
    match of(rows, operator).next() {
        // A kernel that was called and met by no sample has a share of zero.
        Some(_) => {
            Reading::measured(of(rows, operator).map(|row| row.cost.share.value).sum(), Unit::Share, samples.max(1))
        }
        None => no_calls(),
    }
}

/// Microseconds per pass of an operator's kernels together, and their deviation.
fn time(rows: &[KernelRow], operator: &str) -> Result<MedianOf, Reading> {
    let (mut median, mut squares, mut n) = (0.0, 0.0, u64::MAX);
    for row in of(rows, operator) {
        match (&row.per_pass, &row.per_pass_spread) {
            (Reading::Is(time), Reading::Is(spread)) => {
                median += time.value();
                squares += spread.value().powi(2);
                n = n.min(time.n());
            }
            (missing @ Reading::Unavailable(_), _) | (_, missing) => return Err(missing.clone()),
        }
    }
    if n == u64::MAX { Err(no_calls()) } else { Ok(MedianOf { median, deviation: squares.sqrt(), n }) }
}

fn call(rows: &[KernelRow], operator: &str) -> Reading {
    let calls: u64 = of(rows, operator).map(|row| row.calls).sum();
    match time(rows, operator) {
        Ok(time) => Reading::ratio(time.median, calls as f64, Unit::Microseconds, time.n),
        Err(missing) => missing,
    }
}

fn delta(
    name: &str,
    before: Result<MedianOf, Reading>,
    after: Result<MedianOf, Reading>,
    band: f64,
    names: Names<'_>,
) -> Delta {
    let meaning = Meaning { name, unit: Unit::Microseconds, better: Better::Lower, measured: Measured::Time };
    if let (Ok(a), Ok(b)) = (&before, &after)
        && let Some(delta) = Delta::of_two_medians(meaning, *a, *b, band, names)
    {
        return delta;
    }
    let reading = |side: Result<MedianOf, Reading>| match side {
        Ok(time) => Reading::measured(time.median, Unit::Microseconds, time.n),
        Err(missing) => missing,
    };
    Delta::single(name, reading(before), reading(after))
}
