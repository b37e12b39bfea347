//! What stands around a change: how busy the device was (timelines) and what the machine could do (ceilings), on both sides.
//! Not here: how either is measured; single traces have no interval.

use super::delta::{Delta, Meaning};
use crate::bench::Better;
use crate::ceilings::{Ceilings, Level, Traffic};
use crate::quantity::{Reading, Unit};
use crate::statistics::unpaired::Measured;
use crate::statistics::verdict::Names;
use crate::timeline::{Cause, TimelineRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Two traced requests. Tracing costs time, so their length is no request clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimelineView {
    pub workload_id: String,
    /// Part of the window in which a worker computed.
    pub busy: Delta,
    /// What the rest was lost to, as parts of the window; longest after the change first.
    pub idle: Vec<CauseChange>,
}

/// One cause of idle time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CauseChange {
    pub cause: Cause,
    /// Parts of the window.
    pub before: Reading,
    pub after: Reading,
}

impl TimelineView {
    pub(super) fn of(before: &TimelineRecord, after: &TimelineRecord) -> TimelineView {
        let busy = Delta::single(
            "timeline.busy_share",
            before.summary.device.busy_share.clone(),
            after.summary.device.busy_share.clone(),
        );
        let share = |record: &TimelineRecord, cause: Cause| {
            let (lost, wall) = (record.summary.device.lost_to(cause) as f64, record.summary.wall_ns as f64);
            Reading::ratio(lost, wall, Unit::Share, 1)
        };
        let all = Cause::ALL.into_iter().map(|cause| CauseChange {
            cause,
            before: share(before, cause),
            after: share(after, cause),
        });
        let seen = |row: &CauseChange| [&row.before, &row.after].iter().any(|part| part.value().unwrap_or(0.0) > 0.0);
        let mut idle: Vec<CauseChange> = all.filter(seen).collect();
        idle.sort_by(|a, b| b.after.value().unwrap_or(0.0).total_cmp(&a.after.value().unwrap_or(0.0)));
        TimelineView { workload_id: before.workload.id(), busy, idle }
    }
}

/// The machine's reading bandwidth at the most threads that both measured, the one number that decode steps live on.
pub(super) fn machine(before: &Ceilings, after: &Ceilings, names: Names<'_>) -> Vec<Delta> {
    let rate = |record: &Ceilings, threads: u64| {
        let row = record.threads.iter().find(|row| row.threads == threads)?;
        let of_memory =
            |row: &&crate::ceilings::BandwidthRow| row.level == Level::Memory && row.traffic == Traffic::Read;
        let rows = row.bandwidth.iter().filter(of_memory).filter_map(|row| row.rate.known());
        rows.max_by(|a, b| a.median.value().unwrap_or(0.0).total_cmp(&b.median.value().unwrap_or(0.0))).cloned()
    };
    let both =
        before.threads.iter().map(|row| row.threads).filter(|own| after.threads.iter().any(|row| row.threads == *own));
    let Some(threads) = both.max() else { return Vec::new() };
    let (Some(a), Some(b)) = (rate(before, threads), rate(after, threads)) else { return Vec::new() };
    let meaning = Meaning {
        name: "machine.memory_read",
        unit: Unit::GigabytesPerSecond,
        better: Better::Higher,
        measured: Measured::Time,
    };
    Delta::unpaired(meaning, &a.samples, &b.samples, 0.02, names).into_iter().collect()
}
