//! From two sides to a `comparison/1`: pairing by view and workload, the target, the views, the outcome.
//! Not here: each view's rows, and the outcome's rules.

use super::around::{TimelineView, machine};
use super::captured::CaptureView;
use super::delta::Delta;
use super::differences::{WiringView, clocks, differences};
use super::outcome::{outcome, void};
use super::replays::ReplayView;
use super::request::RequestView;
use super::sides::{Clocked, Replayed, Side};
use super::{ChangeOutcome, ComparedSide, ComparisonRecord, Outcome, Target};
use crate::gate::Rule;
use crate::known::Known;
use crate::read::Record;
use crate::statistics::verdict::{DEFAULT_BAND, Names};
use crate::workload::Workload;

/// What is asked of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Asked<'a> {
    /// UTC, RFC 3339: now.
    pub created: &'a str,
    /// The group that the change was aimed at, as replays call it.
    pub target: Option<&'a str>,
    /// `prefill` or `decode`: which phase the target is in.
    pub phase: Option<&'a str>,
    /// The workload to compare, where both sides have several. Replays of the same model go with it.
    pub workload_id: Option<&'a str>,
    /// Files that are void, and why.
    pub void: Vec<String>,
    pub gates: &'a [Rule],
}

/// Why two sides are not compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    #[error("{before} and {after} are of different workloads: they differ in {fields}; measure both on the same one")]
    Workloads { before: String, after: String, fields: String },
    #[error(
        "{before} holds {of_before} and {after} holds {of_after}: there is no view that both have; measure the same of both"
    )]
    NoView { before: String, after: String, of_before: String, of_after: String },
    #[error("--target {target}: nothing replayed or captured here is called that; there are {known}")]
    Target { target: String, known: String },
}

/// Compares the sides.
///
/// # Errors
/// Nothing that both have; views that both have and that are of different workloads (the fields are named); a target that no
/// replay knows.
pub fn compare(before: &Side<'_>, after: &Side<'_>, asked: &Asked<'_>) -> Result<ComparisonRecord, CompareError> {
    let mut left_out = Vec::new();
    let requests = pair_requests(before, after, asked, &mut left_out)?;
    let replays = pair_replays(before, after, requests.as_ref().map(|(a, _)| a.workload), &mut left_out)?;
    let timelines = pair_timelines(before, after, requests.as_ref().map(|(a, _)| a.workload), &mut left_out)?;
    let captures = pair_captures(before, after, &mut left_out);
    let ceilings = before.ceilings.first().zip(after.ceilings.first());
    let workload = requests
        .as_ref()
        .map(|(a, _)| a.workload)
        .or_else(|| replays.first().map(|(a, _)| &a.replay.workload))
        .or_else(|| timelines.map(|(a, _)| &a.workload))
        .or_else(|| captures.first().map(|(a, _)| &a.workload));
    let Some(workload) = workload else {
        let (of_before, of_after) = (views(before), views(after));
        return Err(CompareError::NoView {
            before: before.name.clone(),
            after: after.name.clone(),
            of_before,
            of_after,
        });
    };
    let (name_before, name_after) = names(before, after);
    let names = Names { control: &name_before, arm: &name_after };
    let request = requests.as_ref().map(|(a, b)| RequestView::of(a, b, names));
    let band = requests.as_ref().map_or(DEFAULT_BAND, |(a, _)| a.band());
    let pair = request.as_ref().zip(requests.as_ref().map(|(a, _)| a.workload));
    let paired = replays;
    let replays: Vec<ReplayView> = paired.iter().map(|(a, b)| ReplayView::of(a, b, pair, band, names)).collect();
    let captured: Vec<CaptureView> = captures.iter().filter_map(|(a, b)| CaptureView::of(a, b, band, names)).collect();
    let machine = ceilings.map(|((_, a), (_, b))| machine(a, b, names));
    let mut faults = asked.void.clone();
    if let Some((a, b)) = &requests {
        faults.extend([*a, *b].into_iter().filter_map(Clocked::fault));
    }
    let mut different = differences(before, after);
    different.extend(clocks(&paired));
    different.extend(machine.iter().flatten().filter(|row| row.is_better() || row.is_worse()).map(|row| {
        super::ConditionDifference {
            what: "the machine's memory bandwidth".to_owned(),
            before: row.before.value().map_or_else(String::new, |rate| format!("{rate:.1} GB/s")),
            after: row.after.value().map_or_else(String::new, |rate| format!("{rate:.1} GB/s")),
            kind: super::DifferenceKind::Suspicious,
        }
    }));
    let mut record = ComparisonRecord {
        schema: ComparisonRecord::SCHEMA.to_owned(),
        created: asked.created.to_owned(),
        workload: workload.clone(),
        workload_id: workload.id(),
        before: side(before),
        after: side(after),
        target: target(asked, request.as_ref(), &replays, &captured)?,
        request: or_missing(
            request,
            "no request was clocked on both sides",
            "hourglass bench --variant BEFORE --variant AFTER",
        ),
        replays: or_missing(
            (!replays.is_empty()).then_some(replays),
            "no pass was replayed on both sides",
            "hourglass replay --case CHECKPOINT:decode:128",
        ),
        timeline: or_missing(
            timelines.map(|(a, b)| TimelineView::of(a, b)),
            "no request was traced on both sides",
            "hourglass timeline",
        ),
        captures: or_missing(
            (!captured.is_empty()).then_some(captured),
            "no stretch was captured on both sides",
            "hourglass capture, then hourglass reduce",
        ),
        machine: or_missing(machine, "no ceilings were measured on both sides", "hourglass ceilings"),
        wiring: or_missing(
            WiringView::of(before, after),
            "a side does not say which kernels it bound",
            "measure with an engine of this build",
        ),
        different,
        left_out,
        outcome: ChangeOutcome {
            outcome: Outcome::Inconclusive,
            sentence: String::new(),
            because: Vec::new(),
            next: String::new(),
        },
        gates: Vec::new(),
        checks: Vec::new(),
        void: false,
    };
    record.checks = record.cross_foot();
    faults.extend(
        record.checks.iter().filter(|check| !check.passed && check.name != REACHED).map(|check| check.name.clone()),
    );
    record.outcome = void(&record, &faults).unwrap_or_else(|| outcome(&record));
    record.void = record.checks.iter().any(|check| !check.passed);
    record.gates = asked.gates.iter().map(|gate| gate.ask(&record)).collect();
    Ok(record)
}

/// The name of the wiring's check, whose failure is told in words of its own.
const REACHED: &str = "the change reaches a call";

fn or_missing<T>(value: Option<T>, why: &str, how_to_get: &str) -> Known<T> {
    value.map_or_else(|| Known::unavailable(why, how_to_get), Known::Is)
}

/// How sentences call the two: by checkpoint where that tells them apart.
fn names(before: &Side<'_>, after: &Side<'_>) -> (String, String) {
    let name = |side: &Side<'_>| match (side.requests.first(), side.subject()) {
        (Some(clocked), _) => clocked.name.to_owned(),
        (None, Some(subject)) => subject.checkpoint.clone(),
        (None, None) => side.name.clone(),
    };
    let (a, b) = (name(before), name(after));
    if a == b { (format!("{a} before"), format!("{b} after")) } else { (a, b) }
}

fn side(side: &Side<'_>) -> ComparedSide {
    let (subject, conditions) = (side.subject(), side.conditions());
    let why = "its records do not say";
    let of_subject = |pick: fn(&crate::Subject) -> &String| match subject {
        Some(subject) => Known::Is(pick(subject).clone()),
        None => Known::unavailable(why, "measure with an engine of this build"),
    };
    ComparedSide {
        name: side.name.clone(),
        checkpoint: of_subject(|subject| &subject.checkpoint),
        solution: of_subject(|subject| &subject.solution),
        build_id: conditions.map_or_else(
            || Known::unavailable(why, "measure with an engine of this build"),
            |conditions| conditions.binary.build_id.clone(),
        ),
        conditions_id: or_missing(conditions.map(crate::Conditions::id), why, "measure with an engine of this build"),
        evidence: side.evidence(),
    }
}

fn views(side: &Side<'_>) -> String {
    let kinds = [
        ("clocked requests", side.requests.len()),
        ("replays", side.replays.len()),
        ("timelines", side.timelines.len()),
        ("captures", side.captures.len()),
        ("ceilings", side.ceilings.len()),
    ];
    let there: Vec<&str> = kinds.into_iter().filter(|(_, count)| *count > 0).map(|(kind, _)| kind).collect();
    if there.is_empty() { "nothing".to_owned() } else { there.join(", ") }
}

/// The clocked requests of one workload on both sides: of one alternated run before others, more samples before fewer.
fn pair_requests<'s, 'a>(
    before: &'s Side<'a>,
    after: &'s Side<'a>,
    asked: &Asked<'_>,
    left_out: &mut Vec<String>,
) -> Result<Option<(&'s Clocked<'a>, &'s Clocked<'a>)>, CompareError> {
    let wanted = |clocked: &&Clocked<'_>| asked.workload_id.is_none_or(|id| clocked.workload.id() == id);
    let (of_before, of_after): (Vec<_>, Vec<_>) =
        (before.requests.iter().filter(wanted).collect(), after.requests.iter().filter(wanted).collect());
    let pairs = of_before.iter().flat_map(|a| of_after.iter().map(move |b| (*a, *b)));
    let best = pairs.filter(|(a, b)| a.workload == b.workload).max_by_key(|(a, b)| {
        let one_run = a.evidence.sha256() == b.evidence.sha256() && a.name != b.name;
        (one_run, a.clocks().len().min(b.clocks().len()))
    });
    if let (None, Some(a), Some(b)) = (&best, of_before.first(), of_after.first()) {
        return Err(different(a.evidence.file.as_str(), a.workload, b.evidence.file.as_str(), b.workload));
    }
    for (own, clocked) in
        of_before.iter().map(|c| (best.map(|b| b.0), c)).chain(of_after.iter().map(|c| (best.map(|b| b.1), c)))
    {
        match own {
            Some(used) if std::ptr::eq(used, *clocked) => {}
            Some(_) => left_out
                .push(format!("{} ({}): another pair of requests says more", clocked.evidence.file, clocked.name)),
            None => left_out
                .push(format!("{} ({}): the other side has no clocked request", clocked.evidence.file, clocked.name)),
        }
    }
    Ok(best)
}

fn pair_replays<'s, 'a>(
    before: &'s Side<'a>,
    after: &'s Side<'a>,
    request: Option<&Workload>,
    left_out: &mut Vec<String>,
) -> Result<Vec<(&'s Replayed<'a>, &'s Replayed<'a>)>, CompareError> {
    let usable = |side: &'s Side<'a>, left_out: &mut Vec<String>| {
        let mut usable: Vec<&'s Replayed<'a>> = Vec::new();
        for replayed in &side.replays {
            let replay = replayed.replay;
            let name = format!("{} ({}, {})", replayed.evidence.file, replay.checkpoint, replay.workload.phase.name());
            if let Some(reason) = replay.coverage.reason() {
                left_out.push(format!("{name}: incomplete: {reason}"));
            } else if request.is_some_and(|request| {
                request.model != replay.workload.model || request.weights_hash != replay.workload.weights_hash
            }) {
                left_out.push(format!("{name}: of another model than the request"));
            } else if usable.iter().any(|other| other.replay.workload == replay.workload) {
                left_out.push(format!("{name}: another replay of this workload came first"));
            } else {
                usable.push(replayed);
            }
        }
        usable
    };
    let (of_before, of_after) = (usable(before, left_out), usable(after, left_out));
    let partner = |one: &Replayed<'_>, others: &[&'s Replayed<'a>]| {
        others.iter().find(|other| other.replay.workload == one.replay.workload).copied()
    };
    let pairs: Vec<_> = of_before.iter().filter_map(|a| Some((*a, partner(a, &of_after)?))).collect();
    if let (true, Some(a), Some(b)) = (pairs.is_empty(), of_before.first(), of_after.first()) {
        // Of one phase they should have been the same; of two, there is nothing to pair.
        if a.replay.workload.phase == b.replay.workload.phase {
            let (a_name, b_name) = (a.evidence.file.as_str(), b.evidence.file.as_str());
            return Err(different(a_name, &a.replay.workload, b_name, &b.replay.workload));
        }
    }
    for (own, others) in [(&of_before, &of_after), (&of_after, &of_before)] {
        for replayed in own.iter().filter(|replayed| partner(replayed, others).is_none()) {
            let workload = &replayed.replay.workload;
            left_out.push(format!(
                "{} ({}:{}:{}): the other side has no replay of this workload",
                replayed.evidence.file,
                replayed.replay.checkpoint,
                workload.phase.name(),
                workload.context_tokens
            ));
        }
    }
    Ok(pairs)
}

type Timelines<'a> = Option<(&'a crate::TimelineRecord, &'a crate::TimelineRecord)>;

fn pair_timelines<'a>(
    before: &Side<'a>,
    after: &Side<'a>,
    request: Option<&Workload>,
    left_out: &mut Vec<String>,
) -> Result<Timelines<'a>, CompareError> {
    let of = |side: &Side<'a>| {
        let fits = |record: &&crate::TimelineRecord| request.is_none_or(|request| *request == record.workload);
        let all: Vec<&'a crate::TimelineRecord> = side.timelines.iter().map(|(_, record)| *record).collect();
        all.iter().copied().find(fits).or_else(|| if request.is_none() { all.first().copied() } else { None })
    };
    match (of(before), of(after)) {
        (Some(a), Some(b)) if a.workload == b.workload => Ok(Some((a, b))),
        (Some(a), Some(b)) => Err(different(&before.name, &a.workload, &after.name, &b.workload)),
        _ => {
            for (evidence, _) in before.timelines.iter().chain(&after.timelines) {
                left_out.push(format!("{}: the other side has no timeline of this workload", evidence.file));
            }
            Ok(None)
        }
    }
}

/// Captures of one workload on both sides.
fn pair_captures<'a>(
    before: &Side<'a>,
    after: &Side<'a>,
    left_out: &mut Vec<String>,
) -> Vec<(&'a crate::CaptureRecord, &'a crate::CaptureRecord)> {
    let mut pairs = Vec::new();
    for (evidence, own) in &before.captures {
        match after.captures.iter().find(|(_, other)| other.workload == own.workload) {
            Some((_, other)) => pairs.push((*own, *other)),
            None => left_out.push(format!("{}: the other side has no capture of this workload", evidence.file)),
        }
    }
    for (evidence, own) in &after.captures {
        if !before.captures.iter().any(|(_, other)| other.workload == own.workload) {
            left_out.push(format!("{}: the other side has no capture of this workload", evidence.file));
        }
    }
    pairs
}

fn different(before: &str, a: &Workload, after: &str, b: &Workload) -> CompareError {
    let values = |workload: &Workload, field: &str| match serde_json::to_value(workload) {
        Ok(serde_json::Value::Object(fields)) => fields.get(field).map_or_else(String::new, ToString::to_string),
        _ => String::new(),
    };
    let named = |field: String| {
        let (one, other) = (values(a, &field), values(b, &field));
        format!("{field} ({one} and {other})")
    };
    let fields = a.differences(b).into_iter().map(named).collect::<Vec<_>>().join(", ");
    CompareError::Workloads { before: before.to_owned(), after: after.to_owned(), fields }
}

/// The target: the group that was named, else the largest one of the larger phase before the change.
fn target(
    asked: &Asked<'_>,
    request: Option<&RequestView>,
    replays: &[ReplayView],
    captures: &[CaptureView],
) -> Result<Known<Target>, CompareError> {
    let larger = request.and_then(|view| {
        let share = |phase: &&super::PhaseTimes| phase.share_before.value();
        let phases = view.phases.iter().filter(|phase| share(phase).is_some());
        phases
            .max_by(|a, b| share(a).unwrap_or(0.0).total_cmp(&share(b).unwrap_or(0.0)))
            .map(|phase| phase.phase.clone())
    });
    let has = |view: &&ReplayView, group: &str| view.group(group).is_some();
    let phase = asked.phase.map(str::to_owned).or_else(|| match asked.target {
        // A named group may have been replayed in one phase alone.
        Some(group) => {
            let known: Vec<&ReplayView> = replays.iter().filter(|view| has(view, group)).collect();
            match known[..] {
                [view] => Some(view.phase.clone()),
                _ => larger.clone(),
            }
        }
        None => larger.clone(),
    });
    let of_phase = phase.as_ref().and_then(|phase| replays.iter().find(|view| view.phase == *phase));
    // Nobody named the phase: what was replayed is what can be looked at.
    let view = of_phase.or_else(|| replays.first().filter(|_| asked.phase.is_none()));
    let Some(view) = view else {
        if let Some(target) = captured_target(asked, phase.as_deref(), captures)? {
            return Ok(Known::Is(target));
        }
        if let (Some(group), Some(phase)) = (asked.target, phase) {
            let missing = || Known::unavailable(format!("{phase} was not replayed on both sides"), "hourglass replay");
            return Ok(Known::Is(Target {
                group: group.to_owned(),
                phase: phase.clone(),
                named: true,
                delta: Known::unavailable(format!("{phase} was not replayed on both sides"), "hourglass replay"),
                arrived: missing(),
                arrived_interval: Known::unavailable("there is no replay", "hourglass replay"),
            }));
        }
        return Ok(Known::unavailable("no replay of both sides says which group is the target", "hourglass replay"));
    };
    let group = asked.target.unwrap_or(&view.largest_before);
    let Some(row) = view.group(group) else {
        let known = replays.iter().flat_map(|view| &view.groups).map(|row| row.name.as_str()).collect::<Vec<_>>();
        return Err(CompareError::Target { target: group.to_owned(), known: known.join(", ") });
    };
    let delta = Delta { name: "target".to_owned(), ..row.clone() };
    Ok(Known::Is(Target {
        group: group.to_owned(),
        phase: view.phase.clone(),
        named: asked.target.is_some(),
        delta: Known::Is(delta),
        arrived: view.arrived.clone(),
        arrived_interval: view.arrived_interval.clone(),
    }))
}

/// The target by captures alone: the operator that was named, else the dearest one before the change. None without captures of
/// the phase.
fn captured_target(
    asked: &Asked<'_>,
    phase: Option<&str>,
    captures: &[CaptureView],
) -> Result<Option<Target>, CompareError> {
    let of_phase = captures.iter().find(|view| phase.is_none_or(|phase| phase == view.phase));
    let Some(view) = of_phase.or_else(|| captures.first().filter(|_| asked.phase.is_none())) else { return Ok(None) };
    let row = match asked.target {
        Some(operator) => view.operator(operator).ok_or_else(|| CompareError::Target {
            target: operator.to_owned(),
            known: view.rows.iter().map(|row| row.operator.as_str()).collect::<Vec<_>>().join(", "),
        })?,
        None => match view.rows.first() {
            Some(row) => row,
            None => return Ok(None),
        },
    };
    let (why, how) = ("a capture is no latency: it says nothing of the request", "replay and clock both sides");
    Ok(Some(Target {
        group: row.operator.clone(),
        phase: view.phase.clone(),
        named: asked.target.is_some(),
        delta: Known::Is(Delta { name: "target".to_owned(), ..row.per_pass.clone() }),
        arrived: Known::unavailable(why, how),
        arrived_interval: Known::unavailable(why, how),
    }))
}
