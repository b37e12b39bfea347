//! The records that a ranking is made of, each beside the reference by which the ranking names it.
//! Not here: reading them from a folder.

use crate::bench::BenchRecord;
use crate::capture::reduced::CaptureRecord;
use crate::ceilings::Ceilings;
use crate::evidence::EvidenceRef;
use crate::find::RungText;
use crate::replay::cases::ReplayRecord;
use crate::timeline::TimelineRecord;
use crate::wiring_plan::WiringPlan;

/// A record and what it is called.
#[derive(Clone, Debug)]
pub struct Seen<R> {
    pub record: R,
    pub evidence: EvidenceRef,
}

/// What was seen of one request. What is missing is left out of the ranking, which says so.
#[derive(Clone, Debug, Default)]
pub struct Views {
    /// The checkpoint alone, or against itself.
    pub clock: Option<Seen<BenchRecord>>,
    /// With a case of the whole prompt.
    pub prefill: Option<Seen<ReplayRecord>>,
    /// With a case of a decode step in the middle of the request's.
    pub decode: Option<Seen<ReplayRecord>>,
    /// Of a whole request.
    pub timeline: Option<Seen<TimelineRecord>>,
    /// Of steps of the request, reduced.
    pub captures: Vec<Seen<CaptureRecord>>,
    pub ceilings: Option<Seen<Ceilings>>,
    pub wiring: Option<Seen<WiringPlan>>,
    /// The rungs that follow the checkpoint, with their plans.
    pub rungs: Vec<(RungText, Seen<WiringPlan>)>,
    /// Flags that every command of this request takes: model, solution, threads, ...
    pub flags: Vec<String>,
}

impl Views {
    /// Whether a GPU ran the request.
    pub(super) fn on_gpu(&self) -> bool {
        let arm = self.clock.as_ref().and_then(|seen| seen.record.arms.first());
        arm.and_then(|arm| arm.conditions.known()).is_some_and(|conditions| conditions.host.device != "cpu")
    }
}
