//! The request cut into rows: every moment of it in one row or in none. Where each row's seconds come from is said here.
//! Not here: ordering the rows (`ranking.rs`), and what is said of them (`words.rs`).
//!
//! An operator's row is its replayed median less the replay's dispatch floor (which every sample holds once), times the
//! passes of the request; a part of the requests that had turns between the replay's rounds, and taken as the same part of the
//! clocked one. What perfect sharing would take off it, by the timeline, is moved to the row of waits; what the
//! ceilings do not allow to be less is its floor. Dispatch is the replay's floor times the passes. Sampling is the replay's
//! (the timeline's where there is no replay), set-up the clock's remainder, and idle rows are stretches of the timeline in
//! which no worker computed, for causes that none of the others holds. What the timeline says is taken as a part of its
//! window and of the clocked request alike.
//!
//! A GPU's replayed times hold no start of a pass. What it pauses for in a decode step is the timeline's, of a request without its
//! profiler, less the choice of a token, which is a row already; pauses of the recorded request are the profiler's as much as the
//! program's, and in no row, and so is what the GPU pauses for in a prefill.

use crate::capture::reduced::kernels::KernelRow;
use crate::evidence::EvidenceRef;
use crate::find::candidate::{CandidateKind, Multiplicity, SecondsInterval};
use crate::find::request::RequestSummary;
use crate::find::views::{Seen, Views};
use crate::known::Known;
use crate::replay::between::by_turn;
use crate::replay::cases::{ReplayCase, ReplayRecord};
use crate::replay::floor::{Floor, Limit};
use crate::replay::{GroupRow, Timing};
use crate::statistics::median::median_interval;
use crate::timeline::{Cause, TimelineRecord};
use crate::workload::Phase;

/// The row of what a GPU pauses for, whose kind is that of starting passes, in its place.
pub(super) const PAUSES: &str = "pauses of the GPU";

/// A row of the request. Seconds per request.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) kind: CandidateKind,
    pub(super) name: String,
    /// The operator's name; of rows that are none their own.
    pub(super) operator: String,
    /// As the timeline names it.
    pub(super) traced: String,
    pub(super) phase: Phase,
    pub(super) multiplicity: Multiplicity,
    pub(super) measured: f64,
    pub(super) waits: f64,
    /// None: no ceiling is known; nothing is taken off.
    pub(super) floor: Option<f64>,
    /// The floor was above what was measured, and is cut to it.
    pub(super) floor_too_high: bool,
    /// Of `measured`.
    pub(super) interval: Known<SecondsInterval>,
    pub(super) samples: u64,
    pub(super) limit: Known<Limit>,
    /// Of one pass: bytes that must come from memory, and operations.
    pub(super) bytes: u64,
    pub(super) flops: u64,
    pub(super) barriers: u64,
    pub(super) instruction_path: Option<String>,
    pub(super) kernels: Vec<String>,
    /// What a capture says that its kernel waits for.
    pub(super) limiter: Option<&'static str>,
    pub(super) in_request: bool,
    pub(super) evidence: Vec<EvidenceRef>,
}

impl Row {
    /// A row without a floor of its own: everything could be gained.
    fn plain(kind: CandidateKind, name: &str, phase: Phase, passes: u64, measured: f64, seen: &EvidenceRef) -> Row {
        Row {
            kind,
            name: name.to_owned(),
            operator: name.to_owned(),
            traced: name.to_owned(),
            phase,
            multiplicity: Multiplicity { passes, calls: 1, context_tokens: 0 },
            measured,
            waits: 0.0,
            floor: Some(0.0),
            floor_too_high: false,
            interval: Known::unavailable("it was measured once", "repeat the view"),
            samples: 1,
            limit: Known::unavailable("nothing sets a floor", "nothing to do"),
            bytes: 0,
            flops: 0,
            barriers: 0,
            instruction_path: None,
            kernels: Vec::new(),
            limiter: None,
            in_request: true,
            evidence: vec![seen.clone()],
        }
    }

    pub(super) fn recoverable(&self) -> f64 {
        self.measured - self.waits - self.floor.unwrap_or(0.0)
    }

    /// Where `recoverable` lies; floor and waits are taken as exact.
    pub(super) fn recoverable_interval(&self) -> Known<SecondsInterval> {
        let off = self.waits + self.floor.unwrap_or(0.0);
        match &self.interval {
            Known::Is(interval) => Known::Is(SecondsInterval {
                low: (interval.low - off).max(0.0),
                high: (interval.high - off).max(0.0),
                confidence: interval.confidence,
            }),
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        }
    }
}

/// What a phase of the request is made of, in seconds; parts that no view shows are None.
#[derive(Clone, Debug)]
pub(super) struct PhaseParts {
    pub(super) phase: Phase,
    pub(super) clocked: Option<f64>,
    pub(super) operators: Option<f64>,
    pub(super) dispatch: Option<f64>,
    pub(super) sampling: Option<f64>,
    /// What its replayed times were multiplied with; None: they were taken as they are.
    pub(super) drift: Option<f64>,
}

/// The case of a replay record that is of this checkpoint and phase and complete.
pub(super) fn case<'a>(seen: &'a Option<Seen<ReplayRecord>>, checkpoint: &str, phase: Phase) -> Option<&'a ReplayCase> {
    let cases = &seen.as_ref()?.record.cases;
    cases.iter().find(|case| {
        let replay = &case.replay;
        replay.checkpoint == checkpoint && replay.workload.phase == phase && replay.coverage.is_complete()
    })
}

/// All rows, and what each phase is made of.
pub(super) fn rows(views: &Views, checkpoint: &str, request: &RequestSummary) -> (Vec<Row>, Vec<PhaseParts>) {
    let mut rows = Vec::new();
    let mut phases = Vec::new();
    for (phase, seen, clocked) in
        [(Phase::Prefill, &views.prefill, &request.prefill), (Phase::Decode, &views.decode, &request.decode)]
    {
        let mut parts = PhaseParts {
            phase,
            clocked: clocked.value(),
            operators: None,
            dispatch: None,
            sampling: None,
            drift: None,
        };
        if let (Some(case), Some(seen)) = (case(seen, checkpoint, phase), seen) {
            parts.drift = drift(&seen.record, checkpoint, views, request, phase);
            let drift = parts.drift.unwrap_or(1.0);
            let own = phase_rows(case, &seen.record, passes(views, phase), drift, &seen.evidence);
            let sum = |kind| own.iter().filter(|row| row.kind == kind).map(|row| row.measured).sum::<f64>();
            parts.operators = Some(sum(CandidateKind::Operator));
            parts.dispatch = (!case.replay.is_by_device()).then(|| sum(CandidateKind::Dispatch));
            parts.sampling = Some(sum(CandidateKind::Sampling));
            rows.extend(own);
        }
        phases.push(parts);
    }
    captured(&mut rows, views);
    if let Some(ceilings) = &views.ceilings {
        dispatch_floors(&mut rows, views, ceilings);
    }
    if let Some(clock) = &views.clock
        && let Some(set_up) = request.set_up.value().filter(|seconds| *seconds > 0.0)
    {
        rows.push(Row::plain(CandidateKind::SetUp, "set-up and release", Phase::Request, 1, set_up, &clock.evidence));
    }
    if let Some(timeline) = whole_request(&views.timeline) {
        let scale = scale(timeline, request);
        let waits = move_waits(&mut rows, timeline, scale);
        rows.extend(waits);
        let decode = phases.iter_mut().find(|parts| parts.phase == Phase::Decode && parts.dispatch.is_none());
        if let Some(row) = decode.and_then(|decode| pauses(timeline, decode, passes(views, Phase::Decode))) {
            rows.push(row);
        }
        rows.extend(idle_rows(timeline, &phases, scale, views.on_gpu()));
    }
    (rows, phases)
}

/// The timeline, if it is of whole requests.
pub(super) fn whole_request(seen: &Option<Seen<TimelineRecord>>) -> Option<&Seen<TimelineRecord>> {
    seen.as_ref().filter(|seen| seen.record.workload.phase == Phase::Request)
}

/// Seconds of the clocked request for a nanosecond of the traced one, which ran in another minute and was traced.
fn scale(timeline: &Seen<TimelineRecord>, request: &RequestSummary) -> f64 {
    let wall = timeline.record.summary.wall_ns.max(1) as f64;
    request.whole_request.value().unwrap_or(0.0) / wall
}

/// How much longer the clocked request took over a phase than the requests that had turns between the replay's rounds. The
/// replayed rows are parts of these, which met the same minutes; the clock's were others, and a shared machine is not as fast in
/// all of them. None without such requests: then the times are taken as they are.
fn drift(
    replays: &ReplayRecord,
    checkpoint: &str,
    views: &Views,
    request: &RequestSummary,
    phase: Phase,
) -> Option<f64> {
    let workload = &views.clock.as_ref()?.record.workload;
    let own = replays.requests.iter().find(|own| own.checkpoint == checkpoint && own.workload == *workload)?;
    let (clocked, between) = match phase {
        Phase::Prefill => (&request.prefill, &own.prefill),
        Phase::Decode => (&request.decode, &own.decode),
        Phase::Request => (&request.whole_request, &own.whole_request),
    };
    let drift = clocked.value()? * 1e6 / between.median.value()?;
    (drift.is_finite() && drift > 0.0).then_some(drift)
}

/// Passes of a phase in one request. A replayed prefill is the whole prompt's, in however many chunks a request runs it.
fn passes(views: &Views, phase: Phase) -> u64 {
    let workload = views.clock.as_ref().map(|seen| &seen.record.workload);
    match phase {
        Phase::Decode => workload.map_or(0, |workload| workload.output_tokens.saturating_sub(1)),
        Phase::Prefill | Phase::Request => 1,
    }
}

fn phase_rows(case: &ReplayCase, replays: &ReplayRecord, passes: u64, drift: f64, evidence: &EvidenceRef) -> Vec<Row> {
    let replay = &case.replay;
    let turns = replays.turns_of(&case.case);
    let phase = replay.workload.phase;
    let context_tokens = replay.workload.context_tokens;
    let scale = passes as f64 * drift * 1e-6;
    let dispatch = replay.dispatch_floor.known();
    let dispatch_us = dispatch.and_then(|timing| timing.median.value()).unwrap_or(0.0);
    let lowest_us = dispatch.and_then(|timing| timing.lowest().value()).unwrap_or(0.0);
    let mut rows = Vec::new();
    let mut operator = |name: String, slot: &str, operator: &str, row: &GroupRow| {
        let Some(median) = row.timing.median.value() else { return };
        let measured = (median - dispatch_us).max(0.0) * scale;
        let floor = row.floor.known().and_then(|floor| net_floor(floor, lowest_us));
        // What bytes and operations allow does not drift with the machine's load.
        let floor = floor.map(|(us, limit)| (us * passes as f64 * 1e-6, limit));
        let floor_too_high = floor.is_some_and(|(seconds, _)| seconds > measured);
        let known = row.floor.known();
        rows.push(Row {
            kind: CandidateKind::Operator,
            name,
            operator: operator.to_owned(),
            traced: if slot == operator { slot.to_owned() } else { format!("{slot} ({operator})") },
            phase,
            multiplicity: Multiplicity { passes, calls: row.calls, context_tokens },
            measured,
            waits: 0.0,
            floor: floor.map(|(seconds, _)| seconds.min(measured)),
            floor_too_high,
            interval: spread(&row.timing, &turns, dispatch_us, scale),
            samples: row.timing.samples_us.len() as u64,
            limit: match floor {
                Some((_, limit)) => Known::Is(limit),
                None => Known::unavailable("no ceiling is known", "`hourglass ceilings`, then replay again"),
            },
            bytes: row.bytes_read + row.bytes_written,
            flops: row.flops,
            barriers: known.map_or(0, |floor| floor.work.barriers),
            instruction_path: known.and_then(|floor| floor.instruction_path.known().cloned()),
            kernels: row.kernels.clone(),
            limiter: None,
            in_request: true,
            evidence: vec![evidence.clone()],
        });
    };
    match &replay.operators {
        Known::Is(operators) => {
            for row in operators {
                operator(row.name(), &row.slot, &row.operator, &row.row);
            }
        }
        // Groups alone: fewer and larger rows of the same time.
        Known::Unavailable(_) => {
            for row in &replay.groups {
                operator(row.group.clone(), &row.group, &row.group, row);
            }
        }
    }
    let mut timed = |kind, name: &str, timing: &Timing, off: f64| {
        let Some(median) = timing.median.value() else { return };
        let mut row = Row::plain(kind, name, phase, passes, (median - off).max(0.0) * scale, evidence);
        row.multiplicity.context_tokens = context_tokens;
        row.interval = spread(timing, &turns, off, scale);
        row.samples = timing.samples_us.len() as u64;
        rows.push(row);
    };
    if let Some(timing) = dispatch {
        timed(CandidateKind::Dispatch, "dispatch of a pass", timing, 0.0);
    }
    if let Some(timing) = replay.sampling.known() {
        timed(CandidateKind::Sampling, "sampling", timing, 0.0);
    }
    rows
}

/// The floor without the dispatch that the replay's samples hold once, and what sets it; None where no part is known.
fn net_floor(floor: &Floor, dispatch_us: f64) -> Option<(f64, Limit)> {
    let parts = [
        (Limit::Memory, floor.memory.value()),
        (Limit::Arithmetic, floor.arithmetic.value()),
        (Limit::Dispatch, floor.dispatch.value().map(|us| (us - dispatch_us).max(0.0))),
    ];
    let least = floor.least.value()?;
    let (limit, us) =
        parts.into_iter().filter_map(|(limit, us)| Some((limit, us?))).max_by(|a, b| a.1.total_cmp(&b.1))?;
    // A group's floor is the sum of its operators' and may be above its largest part.
    let us = if limit == Limit::Dispatch { us } else { us.max(least) };
    Some((us, limit))
}

/// Where the median lies, by the medians of the turns: rounds of one turn met the same moment of the machine, and are no
/// independent samples of it.
fn spread(timing: &Timing, turns: &[usize], off_us: f64, scale: f64) -> Known<SecondsInterval> {
    let samples = by_turn(&timing.samples_us, turns).unwrap_or_else(|| timing.samples_us.clone());
    match median_interval(&samples) {
        Some((low, high, confidence)) => Known::Is(SecondsInterval {
            low: (low - off_us).max(0.0) * scale,
            high: (high - off_us).max(0.0) * scale,
            confidence,
        }),
        None => Known::unavailable("one sample has no spread", "replay with more --iterations"),
    }
}

/// What the captured samples of a phase say of its operators: no time is taken from them.
fn captured(rows: &mut [Row], views: &Views) {
    for seen in &views.captures {
        let Some(tree) = seen.record.kernels.known() else { continue };
        let phase = seen.record.workload.phase;
        for row in rows.iter_mut().filter(|row| row.phase == phase && row.kind == CandidateKind::Operator) {
            let own = |kernel: &&KernelRow| {
                let label = format!("{}: {}", kernel.operator, kernel.kernel);
                kernel.operator == row.operator && row.kernels.contains(&label)
            };
            let Some(kernel) = tree.rows.iter().find(own) else { continue };
            row.limiter = kernel.limiter.verdict.known().map(|bound| bound.name());
            row.evidence.push(seen.evidence.clone());
        }
    }
}

/// What starting a walk takes at the least is a ceiling too.
fn dispatch_floors(rows: &mut [Row], views: &Views, ceilings: &Seen<crate::ceilings::Ceilings>) {
    let arm = views.clock.as_ref().and_then(|seen| seen.record.arms.first());
    let Some(conditions) = arm.and_then(|arm| arm.conditions.known()) else { return };
    // A GPU's pauses hold no start of a pass that was put ahead.
    if ceilings.record.is_of_device() {
        return;
    }
    let Some(us) = ceilings.record.dispatch(conditions.threads).value() else { return };
    for row in rows.iter_mut().filter(|row| row.kind == CandidateKind::Dispatch) {
        let least = us * 1e-6 * row.multiplicity.passes as f64;
        row.floor = Some(least.min(row.measured));
        row.limit = Known::Is(Limit::Dispatch);
        row.evidence.push(ceilings.evidence.clone());
    }
}

/// Takes out of each operator what its workers' uneven shares cost, and makes it a row of its own. The timeline does
/// not tell phases apart: what it says is given to the rows of one operator by their time.
fn move_waits(rows: &mut [Row], timeline: &Seen<TimelineRecord>, scale: f64) -> Option<Row> {
    let mut moved = 0.0;
    for seen in &timeline.record.summary.operators {
        let Some(imbalance) = seen.imbalance.known() else { continue };
        let lost = imbalance.lost_ns as f64 * scale;
        let own = |row: &&mut Row| row.kind == CandidateKind::Operator && row.traced == seen.operator;
        let all: f64 = rows.iter_mut().filter(own).map(|row| row.measured).sum();
        for row in rows.iter_mut().filter(own).filter(|_| all > 0.0) {
            // No more than what is above the floor: the floor's barriers are nobody's to gain.
            let above = row.measured - row.floor.unwrap_or(0.0);
            row.waits = (lost * row.measured / all).min(above).max(0.0);
            if row.waits > 0.0 {
                row.evidence.push(timeline.evidence.clone());
            }
            moved += row.waits;
        }
    }
    (moved > 0.0)
        .then(|| Row::plain(CandidateKind::Waits, "waits at barriers", Phase::Request, 1, moved, &timeline.evidence))
}

/// What a GPU pauses for in the steps of the clocked request. Choosing a token is a part of what it pauses for or, where the next step
/// is there already, hidden behind that: either way that row has it.
fn pauses(timeline: &Seen<TimelineRecord>, decode: &mut PhaseParts, passes: u64) -> Option<Row> {
    let pauses = timeline.record.device.known()?.pauses.known()?;
    let idle = pauses.idle_share.value()? * decode.clocked?;
    let seconds = (idle - decode.sampling.unwrap_or(0.0)).max(0.0);
    decode.dispatch = Some(seconds);
    Some(Row::plain(CandidateKind::Dispatch, PAUSES, Phase::Decode, passes, seconds, &timeline.evidence))
}

/// Stretches in which no worker computed. Causes that other rows hold already are left out.
fn idle_rows(timeline: &Seen<TimelineRecord>, phases: &[PhaseParts], scale: f64, on_gpu: bool) -> Vec<Row> {
    let no_sampling = phases.iter().all(|parts| parts.sampling.is_none());
    let no_dispatch = phases.iter().all(|parts| parts.dispatch.is_none());
    let causes = &timeline.record.summary.device.idle_by_cause;
    let rows = causes.iter().filter_map(|time| {
        let (kind, name) = match time.cause {
            // Of a GPU: see above; and a trace without its kernels shows none of its work.
            cause if on_gpu && cause != Cause::Tokenising => return None,
            Cause::Steal => (CandidateKind::Machine, "steal by the hypervisor"),
            Cause::Descheduled => (CandidateKind::Machine, "processors taken by others"),
            Cause::PageFault => (CandidateKind::Idle, "page faults"),
            Cause::Unexplained => (CandidateKind::Idle, "nobody computed, cause not recorded"),
            Cause::Tokenising => (CandidateKind::Tokenising, "tokenising"),
            Cause::Sampling if no_sampling => (CandidateKind::Sampling, "sampling"),
            Cause::Dispatch if no_dispatch => (CandidateKind::Dispatch, "dispatch"),
            // In operators' rows and waits; in the clock's remainder.
            Cause::Sampling | Cause::Dispatch | Cause::Barrier | Cause::Setup => return None,
        };
        let seconds = time.wall_ns as f64 * scale;
        let mut row = Row::plain(kind, name, Phase::Request, 1, seconds, &timeline.evidence);
        // The request's clock starts with token ids.
        row.in_request = kind != CandidateKind::Tokenising;
        Some(row)
    });
    rows.collect()
}
