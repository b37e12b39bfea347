//! Two replays of one workload, group by group, and how much of the change arrived in the request.
//! Not here: whether the change is kept (`decision.rs`).

use crate::check::Check;
use crate::identity::identity;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::read::{Record, StoredId};
use crate::replay::cases::ReplayCase;
use crate::replay::clocked::ClockedRequest;
use crate::replay::{Replay, Timing};
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why two replays are not compared.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ComparisonError {
    #[error(
        "{before} and {after} are replays of different workloads: they differ in {fields}; replay both at the same \
         shape and change the checkpoint alone"
    )]
    Workloads { before: String, after: String, fields: String },
    #[error("{case} is incomplete ({reason}), so there is nothing to compare; replay it again")]
    Incomplete { case: String, reason: String },
    #[error(
        "the request's record has {field} {found}, the replay {expected}: a request of another model says nothing \
         about this replay"
    )]
    Request { field: &'static str, expected: String, found: String },
}

/// `replay-comparison/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayComparison {
    pub schema: String,
    pub workload: Workload,
    pub workload_id: String,
    /// What was compared: case and conditions of both sides.
    pub before: Side,
    pub after: Side,
    /// Conditions that differ (binary, host, threads, features, whose clock the rows are by); kernels are meant to and are not
    /// named. Empty: comparable.
    pub different_conditions: Vec<String>,
    /// Every group of either side, then sampling.
    pub groups: Vec<Change>,
    pub total: Change,
    pub whole_pass: Change,
    pub request: Known<Arrival>,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// One of the two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Side {
    pub case: String,
    pub checkpoint: String,
    pub conditions_id: Known<String>,
}

/// One row before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    pub name: String,
    pub before: Reading,
    pub after: Reading,
    /// `before - after`: positive is less time.
    pub saved: Reading,
    /// `saved / before`.
    pub gain: Reading,
    /// Whether the middle samples of both sides do not overlap: medians further apart than both spreads together.
    pub beyond_spread: Known<bool>,
}

/// What arrived in the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// The requests' workload, the same on both sides.
    pub workload_id: String,
    /// One pass of the replay's phase as clocked in the request: the prefill, or one decode step on average.
    pub pass: Change,
    pub whole_request: Change,
    /// What the request's pass saved over what the replay total saved. About 1: everything arrived. It is rarely all of it.
    pub arrived: Reading,
}

/// Compares `before` with `after`.
///
/// # Errors
/// Different workloads (the fields are named), an incomplete side.
pub fn compare_replays(before: &ReplayCase, after: &ReplayCase) -> Result<ReplayComparison, ComparisonError> {
    for side in [before, after] {
        if let Some(reason) = side.replay.coverage.reason() {
            return Err(ComparisonError::Incomplete { case: side.case.clone(), reason: reason.to_owned() });
        }
    }
    same_workload(&before.case, &before.replay.workload, &after.case, &after.replay.workload)?;
    let (a, b) = (&before.replay, &after.replay);
    let mut names: Vec<&str> = a.groups.iter().map(|row| row.group.as_str()).collect();
    let own = |name: &str| a.groups.iter().any(|row| row.group == name);
    names.extend(b.groups.iter().map(|row| row.group.as_str()).filter(|name| !own(name)));
    let mut groups: Vec<Change> =
        names.into_iter().map(|name| Change::of_timings(name, of_group(a, name), of_group(b, name))).collect();
    groups.push(Change::of_timings("sampling", of_sampling(a), of_sampling(b)));
    let side = |side: &ReplayCase| Side {
        case: side.case.clone(),
        checkpoint: side.replay.checkpoint.clone(),
        conditions_id: side.conditions_id.clone(),
    };
    let mut comparison = ReplayComparison {
        schema: ReplayComparison::SCHEMA.to_owned(),
        workload: a.workload.clone(),
        workload_id: a.workload.id(),
        before: side(before),
        after: side(after),
        different_conditions: different_conditions(before, after),
        groups,
        total: Change::new("replay total", &a.replay_total_us, &b.replay_total_us),
        whole_pass: Change::of_timings("the pass with all its calls", of_whole_pass(a), of_whole_pass(b)),
        request: Known::unavailable("no request was given beside the replays", "--bench BEFORE AFTER"),
        checks: Vec::new(),
        void: false,
    };
    comparison.checks = comparison.cross_foot();
    comparison.void = comparison.checks.iter().any(|check| !check.passed);
    Ok(comparison)
}

impl Record for ReplayComparison {
    const SCHEMA: &'static str = "replay-comparison/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() }]
    }

    fn cross_foot(&self) -> Vec<Check> {
        let sum = |side: fn(&Change) -> &Reading| self.groups.iter().filter_map(|change| side(change).value()).sum();
        let total = |reading: &Reading| reading.value().unwrap_or(0.0);
        vec![
            Check::sums("groups sum to the total before", total(&self.total.before), sum(|change| &change.before)),
            Check::sums("groups sum to the total after", total(&self.total.after), sum(|change| &change.after)),
        ]
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }
}

impl ReplayComparison {
    /// Adds what two clocked requests of one workload say about the same change.
    ///
    /// # Errors
    /// Requests of different workloads, or of another model than the replays'.
    pub fn add_requests(&mut self, before: &ClockedRequest, after: &ClockedRequest) -> Result<(), ComparisonError> {
        same_workload(&before.name, &before.workload, &after.name, &after.workload)?;
        let (own, theirs) = (&self.workload, &before.workload);
        for (field, expected, found) in
            [("model", &own.model, &theirs.model), ("weights_hash", &own.weights_hash, &theirs.weights_hash)]
        {
            if expected != found {
                let (expected, found) = (expected.clone(), found.clone());
                return Err(ComparisonError::Request { field, expected, found });
            }
        }
        let passes = match own.phase {
            crate::Phase::Decode => theirs.output_tokens.saturating_sub(1) as f64,
            _ => 1.0,
        };
        let pass = |times: &ClockedRequest| {
            let seconds = if own.phase == crate::Phase::Decode { &times.decode } else { &times.prefill };
            scaled(seconds, 1e6 / passes)
        };
        let name = if own.phase == crate::Phase::Decode { "one decode step of the request" } else { "its prefill" };
        let pass = Change::new(name, &pass(before), &pass(after));
        let arrived = match (pass.saved.value(), self.total.saved.value()) {
            (Some(request), Some(replay)) => Reading::ratio(request, replay, Unit::Share, 1),
            _ => Known::unavailable("one of the two gains is unavailable", "clock complete requests"),
        };
        let micros = |reading: &Reading| scaled(reading, 1e6);
        let whole_request =
            Change::new("the whole request", &micros(&before.whole_request), &micros(&after.whole_request));
        self.request = Known::Is(Arrival { workload_id: theirs.id(), pass, whole_request, arrived });
        Ok(())
    }
}

impl Change {
    fn new(name: &str, before: &Reading, after: &Reading) -> Change {
        let (saved, gain) = match (before, after) {
            (Known::Is(a), Known::Is(b)) => {
                let (saved, n) = (a.value() - b.value(), a.n().min(b.n()));
                (Reading::measured(saved, Unit::Microseconds, n), Reading::ratio(saved, a.value(), Unit::Share, n))
            }
            (Known::Unavailable(missing), _) | (_, Known::Unavailable(missing)) => {
                (Known::Unavailable(missing.clone()), Known::Unavailable(missing.clone()))
            }
        };
        let beyond_spread = Known::unavailable("single numbers have no spread", "look at the samples' rows");
        Change { name: name.to_owned(), before: before.clone(), after: after.clone(), saved, gain, beyond_spread }
    }

    fn of_timings(name: &str, before: Row<'_>, after: Row<'_>) -> Change {
        let median = |side: &Row<'_>| match side {
            Ok(timing) => timing.median.clone(),
            Err(why) => Known::unavailable(why.as_str(), "nothing is missing"),
        };
        let mut change = Change::new(name, &median(&before), &median(&after));
        let spreads = before.ok().zip(after.ok()).and_then(|(a, b)| Some(a.spread.value()? + b.spread.value()?));
        if let (Some(saved), Some(spreads)) = (change.saved.value(), spreads) {
            change.beyond_spread = Known::Is(saved.abs() > spreads);
        }
        change
    }
}

/// A row of one replay, or why it has none.
type Row<'a> = Result<&'a Timing, String>;

fn of_group<'a>(replay: &'a Replay, name: &str) -> Row<'a> {
    let row = replay.groups.iter().find(|row| row.group == name).map(|row| &row.timing);
    let absent = replay.absent.iter().find(|absent| absent.group == name);
    row.ok_or_else(|| absent.map_or_else(no_calls, |absent| absent.why.clone()))
}

fn of_sampling(replay: &Replay) -> Row<'_> {
    replay.sampling.known().ok_or_else(no_calls)
}

fn of_whole_pass(replay: &Replay) -> Row<'_> {
    replay.whole_pass.known().ok_or_else(no_calls)
}

fn no_calls() -> String {
    "this side has no such calls".to_owned()
}

fn scaled(reading: &Reading, factor: f64) -> Reading {
    match reading {
        Known::Is(quantity) => Reading::measured(quantity.value() * factor, Unit::Microseconds, quantity.n()),
        Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
    }
}

fn same_workload(before: &str, a: &Workload, after: &str, b: &Workload) -> Result<(), ComparisonError> {
    if a.id() == b.id() {
        return Ok(());
    }
    let fields = a.differences(b).join(", ");
    Err(ComparisonError::Workloads { before: before.to_owned(), after: after.to_owned(), fields })
}

/// Names of the parts of the conditions in which two cases differ, the bound kernels aside.
fn different_conditions(a: &ReplayCase, b: &ReplayCase) -> Vec<String> {
    let clocks = (a.replay.clock(), b.replay.clock());
    let clock = (clocks.0 != clocks.1).then(|| format!("clock of the rows ({}, {})", clocks.0, clocks.1));
    let (Known::Is(a), Known::Is(b)) = (&a.conditions, &b.conditions) else {
        return [Some("conditions of one side are unavailable".to_owned()), clock].into_iter().flatten().collect();
    };
    let parts = |conditions: &crate::Conditions| {
        [
            ("binary", identity(&conditions.binary)),
            ("host", identity(&conditions.host)),
            ("threads", conditions.threads.to_string()),
            ("pinned", conditions.pinned.to_string()),
            ("features", conditions.features.join(" ")),
        ]
    };
    let pairs = parts(a).into_iter().zip(parts(b));
    pairs.filter(|(a, b)| a.1 != b.1).map(|(a, _)| a.0.to_owned()).chain(clock).collect()
}
