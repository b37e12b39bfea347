//! Which of the outcomes a comparison is, in one word, one sentence, and what speaks for it.
//! Not here: the rows that it follows from, and whether the change is kept (a decision's rules say that).

use super::delta::Delta;
use super::replays::ReplayView;
use super::request::RequestView;
use super::{ComparisonRecord, DifferenceKind, Target};
use crate::bench::{Metric, Verdict};
use crate::known::Known;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeOutcome {
    pub outcome: Outcome,
    /// In words, with the numbers.
    pub sentence: String,
    /// Where the limit is, what grew, what to be careful with: one thought each, the weightiest first.
    pub because: Vec<String>,
    /// What to do next.
    pub next: String,
}

/// The outcomes that a change to one group of operators can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The mechanism survived a test that could have disproved it.
    TargetFellRequestFaster,
    /// Something else is the limit.
    TargetFellRequestUnmoved,
    RequestSlower,
    /// The request got faster, and not by what the change was aimed at.
    RequestFasterTargetDidNotFall,
    /// The request got faster; no replay says by what.
    RequestFaster,
    TargetDidNotFall,
    /// No difference seen, within a stated bound.
    NoDifference,
    Inconclusive,
    /// The change reached no call, an output differs, or a record is void: nothing was compared.
    Void,
}

impl Outcome {
    pub const fn words(self) -> &'static str {
        match self {
            Outcome::TargetFellRequestFaster => "the target fell and the request got faster",
            Outcome::TargetFellRequestUnmoved => "the target fell, but the request did not move",
            Outcome::RequestSlower => "the request got slower",
            Outcome::RequestFasterTargetDidNotFall => "the request got faster, but the target did not fall",
            Outcome::RequestFaster => "the request got faster",
            Outcome::TargetDidNotFall => "the target did not fall",
            Outcome::NoDifference => "no difference seen",
            Outcome::Inconclusive => "inconclusive",
            Outcome::Void => "void",
        }
    }
}

/// What the target did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Fell,
    Not,
    Unclear,
    Unknown,
}

/// Why nothing may be concluded, found before the rows are looked at.
pub(super) fn void(record: &ComparisonRecord, faults: &[String]) -> Option<ChangeOutcome> {
    let because = |because: Vec<String>, sentence: &str, next: &str| ChangeOutcome {
        outcome: Outcome::Void,
        sentence: format!("void: {sentence}"),
        because,
        next: next.to_owned(),
    };
    if !faults.is_empty() {
        let next = "mend what is wrong and measure again; the numbers below say nothing";
        return Some(because(faults.to_vec(), &faults[0], next));
    }
    let wiring = record.wiring.known()?;
    if wiring.reached {
        return None;
    }
    let why =
        "both sides were measured by one build and bound the same kernels to the same calls in both phases".to_owned();
    let next = "see which kernel each call gets with `hourglass wiring`, and whether the shapes take the new one";
    Some(because(vec![why], "the change reached no call, so whatever the clocks show is noise", next))
}

/// The outcome of a comparison whose rows are filled in and that is not void.
pub(super) fn outcome(record: &ComparisonRecord) -> ChangeOutcome {
    let request = record.request.known();
    let row = request.and_then(|view| view.row(Metric::Request));
    let moved = record.target.known().map_or(Moved::Unknown, |target| target_moved(record, target));
    let mut because = Vec::new();
    let suspicious: Vec<String> = record
        .different
        .iter()
        .filter(|different| different.kind == DifferenceKind::Suspicious)
        .map(|different| format!("{} was {} before and {} after", different.what, different.before, different.after))
        .collect();
    if !suspicious.is_empty() {
        let sentence = format!(
            "inconclusive: the conditions differ besides the change, and any of them may be what made a difference: {}",
            suspicious.join("; ")
        );
        let next = "measure both sides under the same conditions".to_owned();
        return ChangeOutcome { outcome: Outcome::Inconclusive, sentence, because: rows(record), next };
    }
    let verdict = row.and_then(|row| row.verdict.known());
    let (outcome, next) = match (verdict, moved) {
        (Some(Verdict::Worse), _) => {
            because.extend(grown(record));
            (
                Outcome::RequestSlower,
                "keep the record, say in a sentence what happened, and look at what grew".to_owned(),
            )
        }
        (Some(Verdict::Better), Moved::Fell) => {
            because.extend(arrived(record));
            (Outcome::TargetFellRequestFaster, next_candidate(record))
        }
        (Some(Verdict::Better), Moved::Not) => {
            because.extend(fallen(record));
            (Outcome::RequestFasterTargetDidNotFall, "find out what made it faster before you rely on it".to_owned())
        }
        (Some(Verdict::Better), Moved::Unclear | Moved::Unknown) => {
            because.extend(fallen(record));
            (Outcome::RequestFaster, "replay both checkpoints to see which group made it faster".to_owned())
        }
        (Some(Verdict::NoDifference { .. }), Moved::Fell) => {
            because.extend(limits(record));
            (Outcome::TargetFellRequestUnmoved, next_candidate(record))
        }
        (Some(Verdict::NoDifference { .. }), Moved::Not) => {
            (Outcome::TargetDidNotFall, "the mechanism is not what you wrote down: profile again".to_owned())
        }
        (Some(Verdict::NoDifference { .. }), _) => {
            (Outcome::NoDifference, "reject the change, or find the shape at which it should matter".to_owned())
        }
        (Some(Verdict::Inconclusive { .. }), moved) => {
            if moved == Moved::Fell {
                because.push("the target fell; whether the request moved is not settled".to_owned());
                because.extend(limits(record));
            }
            (Outcome::Inconclusive, more(record))
        }
        (None, Moved::Not) => (Outcome::TargetDidNotFall, "profile again before you clock the request".to_owned()),
        (None, moved) => {
            if moved == Moved::Fell {
                let view = if record.replays.known().is_some() { "replay" } else { "capture" };
                because.push(format!("the target fell in the {view}; no request was compared, and only that tells"));
            }
            (
                Outcome::Inconclusive,
                "clock both in one alternated run: hourglass bench --variant A --variant B".to_owned(),
            )
        }
    };
    if let Known::Is(wiring) = &record.wiring
        && !wiring.differ_by_name
        && wiring.same_build == Known::Is(true)
    {
        because
            .push("both sides are the same checkpoint of the same build: this is an A/A, and shows noise".to_owned());
    }
    because.extend(memory(record));
    ChangeOutcome { outcome, sentence: sentence(record, outcome, row, moved), because, next }
}

/// What the replay says of the target. A group whose calls are gone is judged by the total: its work is done elsewhere.
fn target_moved(record: &ComparisonRecord, target: &Target) -> Moved {
    let Known::Is(delta) = &target.delta else { return Moved::Unknown };
    let judged = if delta.after.missing().is_some() { total(record, &target.phase) } else { Some(delta) };
    match judged {
        Some(delta) if delta.is_better() => Moved::Fell,
        Some(delta) if delta.is_worse() || delta.is_same() => Moved::Not,
        Some(_) => Moved::Unclear,
        None => Moved::Unknown,
    }
}

fn view<'r>(record: &'r ComparisonRecord, phase: &str) -> Option<&'r ReplayView> {
    record.replays.known()?.iter().find(|view| view.phase == phase)
}

fn total<'r>(record: &'r ComparisonRecord, phase: &str) -> Option<&'r Delta> {
    view(record, phase).map(|view| &view.total)
}

fn sentence(record: &ComparisonRecord, outcome: Outcome, row: Option<&Delta>, moved: Moved) -> String {
    let mut parts = Vec::new();
    if let Known::Is(target) = &record.target {
        let named = format!("{} in {}", target.group, target.phase);
        match (&target.delta, moved) {
            (Known::Is(delta), Moved::Fell | Moved::Not | Moved::Unclear) => parts.push(match change_words(delta) {
                Some(words) => format!("{named}: {words}"),
                None => format!("{named}: {}", delta.sentence),
            }),
            (Known::Unavailable(missing), _) => parts.push(format!("{named}: {}", missing.unavailable)),
            _ => {}
        }
    }
    match (row, &record.request) {
        (Some(row), _) => parts.push(row.sentence.clone()),
        (None, Known::Unavailable(missing)) => parts.push(format!("request: {}", missing.unavailable)),
        (None, Known::Is(_)) => parts.push("request: not compared".to_owned()),
    }
    format!("{}: {}", outcome.words(), parts.join("; "))
}

/// `1,204 us to 801 us (-33.5 %)`.
fn change_words(delta: &Delta) -> Option<String> {
    let (before, after) = (delta.before.value()?, delta.after.value()?);
    let unit = delta.before.known()?.unit();
    let ends = delta.interval.known().map_or_else(String::new, |ends| {
        format!(", 95 % interval {:+.1} to {:+.1} %", 100.0 * (ends.low - 1.0), 100.0 * (ends.high - 1.0))
    });
    Some(format!("{before:.1} to {after:.1} {unit} ({:+.1} %{ends})", 100.0 * (after / before - 1.0)))
}

/// How much of the replay's saving the request shows.
fn arrived(record: &ComparisonRecord) -> Option<String> {
    let target = record.target.known()?;
    match (&target.arrived, &target.arrived_interval) {
        (Known::Is(share), Known::Is(ends)) => Some(format!(
            "{:.0} % of what the replay saved per {} pass arrived in the request ({:.0} to {:.0} %); it is rarely all of it",
            100.0 * share.value(),
            target.phase,
            100.0 * ends.low,
            100.0 * ends.high
        )),
        (Known::Is(share), _) => {
            Some(format!("{:.0} % of what the replay saved arrived in the request", 100.0 * share.value()))
        }
        (Known::Unavailable(missing), _) => Some(format!("how much arrived is not known: {}", missing.unavailable)),
    }
}

/// Where the limit may be when a fallen target did not move the request.
fn limits(record: &ComparisonRecord) -> Vec<String> {
    let mut found = Vec::new();
    let Known::Is(target) = &record.target else { return found };
    let request = record.request.known();
    if let Some(words) = request.and_then(|request| promised(record, target, request)) {
        found.push(words);
    }
    let phase = request.and_then(|view| view.phase(&target.phase));
    if let Some(share) = phase.and_then(|phase| phase.share_after.value())
        && share < 0.5
    {
        let other = if target.phase == "decode" { "prefill" } else { "decode" };
        found.push(format!(
            "the target is in {}, and {:.0} % of the request is {other}: look there",
            target.phase,
            100.0 * (1.0 - share)
        ));
    }
    if let Known::Is(timeline) = &record.timeline
        && let Some(busy) = timeline.busy.after.value()
        && busy < 0.9
    {
        let cause = timeline.idle.first().map_or_else(String::new, |row| {
            format!(", most of it to {} ({:.0} %)", row.cause.name(), 100.0 * row.after.value().unwrap_or(0.0))
        });
        found.push(format!("no worker computed in {:.0} % of the traced request{cause}", 100.0 * (1.0 - busy)));
    }
    if let Some(view) = view(record, &target.phase) {
        let largest = view.group(&view.largest_after).and_then(|row| row.after.value());
        if let (Some(largest), Some(total)) = (largest, view.total.after.value()) {
            found.push(format!(
                "the largest group that remains in {} is {} ({:.0} % of the replay)",
                view.phase,
                view.largest_after,
                100.0 * largest / total
            ));
        }
        let grown = grown_groups(view);
        if !grown.is_empty() {
            found.push(format!("meanwhile these grew: {}", grown.join("; ")));
        }
    }
    found
}

/// What the replay's saving could at most take off the request, beside what the clock can see.
fn promised(record: &ComparisonRecord, target: &Target, request: &RequestView) -> Option<String> {
    let view = view(record, &target.phase)?;
    let (before, after) = (view.total.before.value()?, view.total.after.value()?);
    let phase = request.phase(&target.phase)?;
    let part = phase.share_before.value()? * (1.0 - after / before);
    let ends = request.row(Metric::Request)?.interval.known()?;
    let seen = (ends.high / ends.low).sqrt() - 1.0;
    let small = part.abs() < seen;
    Some(format!(
        "all of the replay's saving would be {:.1} % of the request{}",
        100.0 * part,
        if small {
            format!(", less than the ±{:.1} % that this comparison can see", 100.0 * seen)
        } else {
            String::new()
        }
    ))
}

/// Groups that take longer than before, beyond what two runs may differ by; the most time first.
fn grown_groups(view: &ReplayView) -> Vec<String> {
    let mut grown: Vec<(&Delta, f64)> =
        view.groups.iter().filter(|row| row.is_worse()).filter_map(|row| Some((row, -row.saved()?))).collect();
    grown.sort_by(|a, b| b.1.total_cmp(&a.1));
    grown.into_iter().filter_map(|(row, _)| Some(format!("{} {}", row.name, change_words(row)?))).collect()
}

/// Why a request may have got slower.
fn grown(record: &ComparisonRecord) -> Vec<String> {
    let mut found = Vec::new();
    if let Known::Is(view) = &record.request {
        for phase in [Metric::Prefill, Metric::Decode] {
            found.extend(view.row(phase).filter(|row| row.is_worse()).map(|row| row.sentence.clone()));
        }
    }
    let views = record.replays.known().map_or(&[][..], Vec::as_slice);
    let groups: Vec<String> = views.iter().flat_map(grown_groups).collect();
    if !groups.is_empty() {
        found.push(format!("what grew in the replay: {}", groups.join("; ")));
    } else if views.is_empty() {
        found.push("no replay of both sides says which group grew".to_owned());
    } else {
        found.push(
            "no replayed group grew beyond what two runs differ by: the request's own shapes, or what is between the calls, \
             may be slower than the replay's shape"
                .to_owned(),
        );
    }
    match &record.wiring {
        Known::Is(wiring) if wiring.changed.is_empty() => {
            found.push(
                "no call has another kernel than before: the change is in what a kernel does, or elsewhere".to_owned(),
            );
        }
        Known::Is(_) => {}
        Known::Unavailable(missing) => {
            found.push(format!("whether the new path is called is not known: {}", missing.unavailable));
        }
    }
    found
}

/// Groups that fell, where it was not the target that made the request faster.
fn fallen(record: &ComparisonRecord) -> Vec<String> {
    let views = record.replays.known().map_or(&[][..], Vec::as_slice);
    let rows = views.iter().flat_map(|view| &view.groups).filter(|row| row.is_better());
    rows.filter_map(|row| Some(format!("{} fell: {}", row.name, change_words(row)?))).collect()
}

fn memory(record: &ComparisonRecord) -> Option<String> {
    let row = record.request.known()?.row(Metric::Peak)?;
    row.is_worse().then(|| format!("it costs memory: {}", row.sentence))
}

fn rows(record: &ComparisonRecord) -> Vec<String> {
    let view = record.request.known();
    let clocks = [Metric::Request, Metric::Prefill, Metric::Decode];
    clocks.iter().filter_map(|metric| Some(view?.row(*metric)?.sentence.clone())).collect()
}

/// The new replay's largest group is the next candidate.
fn next_candidate(record: &ComparisonRecord) -> String {
    let larger = record.request.known().and_then(|request| {
        let share = |phase: &super::PhaseTimes| phase.share_after.value();
        request.phases.iter().max_by(|a, b| share(a).unwrap_or(0.0).total_cmp(&share(b).unwrap_or(0.0)))
    });
    let phase = larger.map(|phase| phase.phase.as_str()).or(record.target.known().map(|target| target.phase.as_str()));
    match phase.and_then(|phase| view(record, phase)) {
        Some(view) => format!("the next candidate is {}, the largest group of {} now", view.largest_after, view.phase),
        None => "find again: the new profile's largest group is the next candidate".to_owned(),
    }
}

fn more(record: &ComparisonRecord) -> String {
    let row = record.request.known().and_then(|view| Some((view.row(Metric::Request)?, view.paired)));
    match row.map(|(row, paired)| (row.verdict.known(), paired)) {
        Some((Some(Verdict::Inconclusive { more_repeats }), true)) if *more_repeats <= 1000 => {
            format!("run again with about {more_repeats} more --repeats")
        }
        Some((Some(Verdict::Inconclusive { .. }), true)) => {
            "make the machine quieter: more than 1000 repeats would be needed".to_owned()
        }
        Some((Some(Verdict::Inconclusive { more_repeats }), false)) if *more_repeats <= 1000 => {
            format!("clock both in one alternated run with about {more_repeats} --repeats")
        }
        _ => "clock both in one alternated run: hourglass bench --variant A --variant B".to_owned(),
    }
}
