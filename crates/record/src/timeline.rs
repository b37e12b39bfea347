//! The record of `hourglass timeline`: was the device busy, and what did everyone do while it was not.
//! What it is computed from is a `trace::Trace`; the computations are in `timeline/`. CPU and device time overlap and are
//! never added to each other.

mod awaited;
mod cause;
mod device;
mod evidence;
mod gaps;
mod lost_to;
mod operators;
mod partition;
mod segments;
mod steps;
mod summary;

use cause::cause_times;
pub use cause::{Awaited, AwaitedTime, Cause, CauseTime};
pub use device::{DevicePauses, DeviceTrace};
pub use evidence::{Fault, OffProcessor, StealReading, from_samples, from_steal, from_switches};
pub use lost_to::{LostTime, LostTo, Straggler};
pub use operators::PlannedCalls;
pub(crate) use segments::smallest;
pub use summary::summarise;

use crate::check::Check;
use crate::conditions::Conditions;
use crate::coverage::Coverage;
use crate::known::Known;
use crate::quantity::Reading;
use crate::read::{Record, StoredId};
use crate::subject::Subject;
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `timeline/1`. Fields in `_ns` are exact, of one monotonic clock; those of moments count from the start of the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimelineRecord {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    pub workload: Workload,
    pub workload_id: String,
    pub conditions: Conditions,
    pub conditions_id: String,
    pub subject: Subject,
    /// Complete requests in this process before the traced one.
    pub warmup: u64,
    pub process_id: u32,
    pub summary: TimelineSummary,
    /// Time on a processor of the main thread within the window.
    pub main_thread_cpu: Reading,
    /// The most bytes allocated at once within the window, resident weights included.
    pub peak_allocation: Reading,
    /// The part of it that held keys and values.
    pub kv_allocation: Reading,
    pub overhead: Known<TracingOverhead>,
    pub sampling: SamplingUse,
    #[serde(default = "device::none")]
    pub device: Known<DeviceTrace>,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// What a trace comes to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimelineSummary {
    /// Incomplete if slices were dropped or there was no device lane.
    pub coverage: Coverage,
    /// Slices that were dropped for want of room, over all lanes.
    pub dropped: u64,
    /// The recorded window.
    pub wall_ns: u64,
    /// Of the traced request, in order of first appearance: what tracing costs is in them, so they are no request clock.
    pub phases: Vec<PhaseTime>,
    /// All device lanes together: busy while at least one is.
    pub device: Occupation,
    /// Each device lane.
    pub lanes: Vec<LaneTime>,
    /// What the lanes' idle time was lost to in the end, all lanes together, longest first: a wait at a barrier counts for what
    /// the last to come did meanwhile.
    pub lost: Vec<LostTime>,
    /// Whom others waited for while it computed, and in which operator; longest first.
    pub stragglers: Vec<Straggler>,
    /// The longest stretches with no device lane busy, longest first; at most ten.
    pub gaps: Vec<Gap>,
    pub operators: Vec<OperatorRow>,
    /// One per name of steps, e.g. prefill and decode.
    pub steps: Vec<StepSeries>,
}

/// One phase of the request, prefill or decode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PhaseTime {
    pub name: String,
    pub wall_ns: u64,
}

/// Where time went. `busy_ns` and the causes are disjoint and sum to the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Occupation {
    /// Union of the intervals in which an operator ran and had its processor.
    pub busy_ns: u64,
    pub busy_share: Reading,
    pub idle_ns: u64,
    /// Longest first; causes that took no time are left out.
    pub idle_by_cause: Vec<CauseTime>,
}

/// Where one device lane's time went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneTime {
    pub name: String,
    /// `worker` or `stream`.
    pub kind: String,
    pub occupation: Occupation,
    /// The part spent at barriers, by what the worker that came last did meanwhile; longest first.
    pub awaited: Vec<AwaitedTime>,
    /// Slices that were not recorded.
    pub dropped: u64,
}

/// A stretch with no device lane busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    pub start_ns: u64,
    pub wall_ns: u64,
    /// Longest first; they sum to `wall_ns`.
    pub by_cause: Vec<CauseTime>,
    /// CPU samples of any thread inside the gap, and the functions they were in, most frequent first; at most five.
    pub samples: u64,
    pub top: Vec<SampledFunction>,
}

/// How often a function was the innermost one of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SampledFunction {
    pub function: String,
    pub samples: u64,
}

/// One operator over all its calls and workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorRow {
    pub operator: String,
    /// What the program's calls times the steps come to.
    pub planned_calls: Known<u64>,
    /// Seen on each device lane, in the order of `lanes`.
    pub calls: Vec<u64>,
    /// Wall time of its slices on each device lane.
    pub wall_ns: Vec<u64>,
    pub imbalance: Known<Imbalance>,
}

/// How unevenly workers share the calls of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Imbalance {
    /// The lane with the most time.
    pub slowest: String,
    /// Its time over the mean of the lanes, less 1: 0 is even.
    pub slowest_over_mean: Reading,
    /// Sum over the calls of the longest share less the mean share: what perfect sharing would take off the wall time.
    pub lost_ns: u64,
}

/// The steps of one name in order, and how much they vary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepSeries {
    pub name: String,
    pub median: Reading,
    /// Median absolute deviation.
    pub spread: Reading,
    /// Part of a step in which no device lane was busy: median over the steps.
    #[serde(default = "older")]
    pub idle_share: Reading,
    pub steps: Vec<StepRow>,
    /// Steps far above the median, longest first.
    pub outliers: Known<Vec<Outlier>>,
}

fn older() -> Reading {
    Reading::unavailable("the record is older than this field", "trace again with this build")
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepRow {
    pub start_ns: u64,
    pub wall_ns: u64,
    /// The most that one device lane's outermost slices within the step sum to.
    pub spans_ns: u64,
}

/// A step that took far longer than its like, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outlier {
    /// Position in the series, from 0.
    pub step: u64,
    pub wall_ns: u64,
    /// Beyond the median.
    pub excess_ns: u64,
    /// What grew most against the other steps, if that is at least half of the excess.
    pub cause: Known<OutlierCause>,
}

/// What made a step long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutlierCause {
    /// A [`Cause`], or that an operator computed longer.
    pub what: OutlierKind,
    /// How much more of it there was than in the median step.
    pub excess_ns: u64,
}

/// What grew in an outlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutlierKind {
    Idle(Cause),
    /// This operator's computing.
    Operator(String),
}

/// The same work with and without tracing, in alternation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracingOverhead {
    /// What was clocked.
    pub of: OverheadUnit,
    /// Traced over untraced time less 1, with its interval.
    pub share: Reading,
    pub low: Reading,
    pub high: Reading,
    /// Of the interval, e.g. 0.95.
    pub confidence: Reading,
    /// Every sample in the order of measurement.
    pub samples: Vec<OverheadSample>,
}

/// What is done with and without tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OverheadUnit {
    /// The passes over the prompt and the first token.
    Prefill,
    /// The pass over one token, and the next one.
    DecodeStep,
}

/// One clocked prefill or decode step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OverheadSample {
    pub traced: bool,
    pub wall_s: f64,
}

/// Which way of sampling was used, and why no better one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SamplingUse {
    pub rung: SamplingRung,
    /// Why the rungs above it could not be used, or that it is the best.
    pub why: String,
    /// Samples per second and thread that were asked for.
    pub frequency_hz: Known<u64>,
    pub samples: u64,
    pub lost: Known<u64>,
}

/// The ladder of sampling methods, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SamplingRung {
    /// Hardware cycles through perf events.
    Cycles,
    /// The kernel's CPU clock through perf events.
    CpuClock,
    /// A timer signal per thread.
    ThreadTimer,
    /// No samples: spans alone.
    None,
}

impl TimelineRecord {
    /// Fills in the ids, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.workload_id = self.workload.id();
        self.conditions_id = self.conditions.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for TimelineRecord {
    const SCHEMA: &'static str = "timeline/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![
            StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() },
            StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() },
        ]
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }

    fn cross_foot(&self) -> Vec<Check> {
        let summary = &self.summary;
        let mut checks = vec![Check::counts("slices dropped", 0, summary.dropped)];
        if let Known::Is(lost) = self.sampling.lost {
            checks.push(Check::counts("CPU samples lost", 0, lost));
        }
        checks.extend(self.device.known().into_iter().flat_map(DeviceTrace::checks));
        checks.extend(summary.device.checks("device", summary.wall_ns));
        for lane in &summary.lanes {
            checks.extend(lane.occupation.checks(&lane.name, summary.wall_ns));
            let awaited = total(lane.awaited.iter().map(|time| time.wall_ns));
            let name = format!("{}: what was awaited sums to the time at barriers", lane.name);
            checks.push(Check::counts(name, lane.occupation.lost_to(Cause::Barrier), awaited));
        }
        let idle = total(summary.lanes.iter().map(|lane| lane.occupation.idle_ns));
        let lost = total(summary.lost.iter().map(|time| time.wall_ns));
        checks.push(Check::counts("what time was lost to sums to the lanes' idle time", idle, lost));
        let slowest = summary.lost.iter().filter(|time| time.to == LostTo::SlowestWorker).map(|time| time.wall_ns);
        let waited = total(summary.stragglers.iter().map(|straggler| straggler.waited_ns));
        checks.push(Check::counts("stragglers sum to what was lost to the slowest worker", total(slowest), waited));
        let streams = summary.lanes.iter().any(|lane| lane.kind == "stream");
        for row in &summary.operators {
            let Known::Is(planned) = row.planned_calls else { continue };
            if streams {
                let name = format!("{}: calls on all streams", row.operator);
                checks.push(Check::counts(name, planned, total(row.calls.iter().copied())));
            } else {
                for (lane, &calls) in summary.lanes.iter().zip(&row.calls) {
                    checks.push(Check::counts(format!("{}: calls on {}", row.operator, lane.name), planned, calls));
                }
            }
        }
        for series in &summary.steps {
            let fitting = series.steps.iter().filter(|step| step.spans_ns <= step.wall_ns).count();
            let name = format!("{}: steps that hold their spans", series.name);
            checks.push(Check::counts(name, series.steps.len() as u64, fitting as u64));
        }
        for (index, gap) in summary.gaps.iter().enumerate() {
            let causes = total(gap.by_cause.iter().map(|time| time.wall_ns));
            checks.push(Check::counts(format!("gap {}: causes sum to it", index + 1), gap.wall_ns, causes));
        }
        if let Known::Is(overhead) = &self.overhead {
            let traced = overhead.samples.iter().filter(|sample| sample.traced).count();
            let plain = overhead.samples.len() - traced;
            checks.push(Check::counts(
                "overhead: as many samples with tracing as without",
                plain as u64,
                traced as u64,
            ));
        }
        checks
    }
}

impl TimelineRecord {
    /// Where there is no device with a profiler of its own.
    pub fn without_device() -> Known<DeviceTrace> {
        device::none()
    }
}

impl Occupation {
    /// Time lost to one cause.
    pub fn lost_to(&self, cause: Cause) -> u64 {
        total(self.idle_by_cause.iter().filter(|time| time.cause == cause).map(|time| time.wall_ns))
    }

    fn checks(&self, name: &str, wall_ns: u64) -> [Check; 2] {
        let causes = total(self.idle_by_cause.iter().map(|time| time.wall_ns));
        [
            Check::counts(format!("{name}: busy + idle = wall"), wall_ns, self.busy_ns.saturating_add(self.idle_ns)),
            Check::counts(format!("{name}: causes sum to idle"), self.idle_ns, causes),
        ]
    }
}

// A record read from elsewhere may hold anything: sums must not overflow.
fn total(times: impl Iterator<Item = u64>) -> u64 {
    times.fold(0, u64::saturating_add)
}
