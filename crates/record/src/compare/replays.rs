//! One replayed workload before and after: every group, the total, and how much of what it saved arrived in the request.
//! Not here: the replay itself (`replay.rs`), and what follows (`outcome.rs`).

use super::delta::{Delta, group_row, of_group};
use super::request::RequestView;
use super::sides::Replayed;
use crate::bench::Interval;
use crate::check::Check;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::replay::between::by_turn;
use crate::replay::{Replay, Timing};
use crate::statistics::paired::Pair;
use crate::statistics::verdict::Names;
use crate::workload::{Phase, Workload};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Two replays of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayView {
    /// `prefill` or `decode`.
    pub phase: String,
    pub workload: Workload,
    pub workload_id: String,
    /// One process replayed both.
    pub same_run: bool,
    /// And both had their turns in alternation: what both met in a turn cancels. Else every interval holds what runs may differ
    /// by.
    #[serde(default)]
    pub in_turn: bool,
    /// Every group of either side and sampling; one that a side has no calls of is missing there, with the reason.
    pub groups: Vec<Delta>,
    /// Sum of the groups and sampling.
    pub total: Delta,
    /// The pass with all its calls.
    pub whole_pass: Delta,
    /// The group with the largest median.
    pub largest_before: String,
    pub largest_after: String,
    /// What the request saved per pass of this phase over what the total saved. It is rarely all of it.
    pub arrived: Reading,
    /// The same at the ends of the request's interval. What the replays themselves may be off by is not in it.
    pub arrived_interval: Known<Interval>,
}

impl ReplayView {
    /// Two complete replays of one workload.
    pub(super) fn of(
        before: &Replayed<'_>,
        after: &Replayed<'_>,
        request: Option<(&RequestView, &Workload)>,
        band: f64,
        names: Names<'_>,
    ) -> ReplayView {
        let (a, b) = (before.replay, after.replay);
        let turns = Turns::of(before, after);
        let row = |name: &str, before, after| row(name, before, after, &turns, band, names);
        let phase = a.workload.phase.name();
        let mut groups: Vec<&str> = a.groups.iter().chain(&b.groups).map(|row| row.group.as_str()).collect();
        let mut seen = Vec::new();
        groups.retain(|group| {
            !seen.contains(group) && {
                seen.push(group);
                true
            }
        });
        let mut rows: Vec<Delta> = groups
            .into_iter()
            .map(|group| {
                let side = |replay: &'_ Replay| -> Result<Vec<f64>, String> {
                    timing(replay, group).map(|timing| timing.samples_us.clone())
                };
                row(&group_row(phase, group), side(a), side(b))
            })
            .collect();
        let sampling = |replay: &Replay| match &replay.sampling {
            Known::Is(timing) => Ok(timing.samples_us.clone()),
            Known::Unavailable(missing) => Err(missing.unavailable.clone()),
        };
        rows.push(row(&group_row(phase, "sampling"), sampling(a), sampling(b)));
        let mut total = row(&group_row(phase, "total"), rounds(a), rounds(b));
        // The medians' sum, as the replay's own record has it, and not the median of the sums.
        (total.before, total.after) = (a.replay_total_us.clone(), b.replay_total_us.clone());
        let whole = |replay: &Replay| match &replay.whole_pass {
            Known::Is(timing) => Ok(timing.samples_us.clone()),
            Known::Unavailable(missing) => Err(missing.unavailable.clone()),
        };
        let whole_pass = row(&group_row(phase, "whole pass"), whole(a), whole(b));
        let largest = |replay: &Replay| replay.largest().map_or_else(String::new, |row| row.group.clone());
        let (arrived, arrived_interval) = match request {
            Some((view, workload)) => arrived(&total, a.workload.phase, view, workload),
            None => {
                let missing = || Known::unavailable("no request was clocked on both sides", "give records of bench");
                (missing(), Known::unavailable("no request was clocked on both sides", "give records of bench"))
            }
        };
        ReplayView {
            phase: phase.to_owned(),
            workload: a.workload.clone(),
            workload_id: a.workload.id(),
            same_run: before.evidence.sha256() == after.evidence.sha256(),
            in_turn: turns.is_some(),
            groups: rows,
            total,
            whole_pass,
            largest_before: largest(a),
            largest_after: largest(b),
            arrived,
            arrived_interval,
        }
    }

    /// Every row of it.
    pub fn rows(&self) -> impl Iterator<Item = &Delta> {
        self.groups.iter().chain([&self.total, &self.whole_pass])
    }

    /// The row of a group, as the replay calls it.
    pub fn group(&self, group: &str) -> Option<&Delta> {
        let name = group_row(&self.phase, group);
        self.groups.iter().find(|row| row.name == name)
    }

    /// The groups sum to the totals.
    pub(super) fn checks(&self) -> Vec<Check> {
        let sum = |side: fn(&Delta) -> &Reading| self.groups.iter().filter_map(|row| side(row).value()).sum();
        let phase = &self.phase;
        let mut checks = Vec::new();
        for (when, side) in [("before", (|row| &row.before) as fn(&Delta) -> &Reading), ("after", |row| &row.after)] {
            let total = side(&self.total).value().unwrap_or(0.0);
            checks.push(Check::sums(format!("{phase} replay {when}: groups sum to the total"), total, sum(side)));
        }
        checks
    }
}

fn timing<'r>(replay: &'r Replay, group: &str) -> Result<&'r Timing, String> {
    let row = replay.groups.iter().find(|row| row.group == group).map(|row| &row.timing);
    let absent = replay.absent.iter().find(|absent| absent.group == group);
    row.ok_or_else(|| absent.map_or_else(|| "this side has no such calls".to_owned(), |absent| absent.why.clone()))
}

/// The sum over groups and sampling of every round.
fn rounds(replay: &Replay) -> Result<Vec<f64>, String> {
    let timings: Vec<&Timing> = replay.groups.iter().map(|row| &row.timing).chain(replay.sampling.known()).collect();
    let shortest = timings.iter().map(|timing| timing.samples_us.len()).min().unwrap_or(0);
    if shortest == 0 {
        return Err("a group has no samples".to_owned());
    }
    Ok((0..shortest).map(|round| timings.iter().map(|timing| timing.samples_us[round]).sum()).collect())
}

/// Both cases' turns, where one process gave them in alternation.
struct Turns {
    /// Rounds in each turn.
    before: Vec<usize>,
    after: Vec<usize>,
    /// Of each pair of turns, whether the side before the change had the earlier one.
    before_first: Vec<bool>,
}

impl Turns {
    fn of(before: &Replayed<'_>, after: &Replayed<'_>) -> Option<Turns> {
        if before.evidence.sha256() != after.evidence.sha256() || before.case == after.case {
            return None;
        }
        let places = |case: &str| -> Vec<usize> {
            let turns = before.run.turns.iter().enumerate();
            turns.filter(|(_, turn)| turn.of == case).map(|(place, _)| place).collect()
        };
        let (own, other) = (places(before.case), places(after.case));
        // Not one batch after the other: then nothing was alternated.
        let interleaved = own.first()? < other.last()? && other.first()? < own.last()?;
        interleaved.then(|| Turns {
            before_first: own.iter().zip(&other).map(|(one, other)| one < other).collect(),
            before: before.run.turns_of(before.case),
            after: before.run.turns_of(after.case),
        })
    }

    /// A pair per turn, of the medians of its rounds.
    fn pairs(&self, before: &[f64], after: &[f64]) -> Option<Vec<Pair>> {
        let (before, after) = (by_turn(before, &self.before)?, by_turn(after, &self.after)?);
        let pairs = before.into_iter().zip(after).zip(&self.before_first);
        Some(pairs.map(|((control, arm), first)| Pair { control, arm, control_first: *first }).collect())
    }
}

fn row(
    name: &str,
    before: Result<Vec<f64>, String>,
    after: Result<Vec<f64>, String>,
    turns: &Option<Turns>,
    band: f64,
    names: Names<'_>,
) -> Delta {
    if let (Ok(a), Ok(b)) = (&before, &after) {
        let pairs = turns.as_ref().and_then(|turns| turns.pairs(a, b));
        let delta = match pairs {
            Some(pairs) => Delta::paired(of_group(name), &pairs, a, b, band, names),
            None => Delta::unpaired(of_group(name), a, b, band, names),
        };
        if let Some(delta) = delta {
            return delta;
        }
    }
    let reading = |side: Result<Vec<f64>, String>| match side {
        Ok(samples) => match Timing::new(samples) {
            Ok(timing) => timing.median,
            Err(error) => Known::unavailable(error.to_string(), "replay again"),
        },
        Err(why) => Known::unavailable(why, "nothing is missing: the other side has these calls"),
    };
    Delta::single(name, reading(before), reading(after))
}

/// What one pass of the request saved over what the replay of it saved, and the same at the ends of the request's interval.
fn arrived(total: &Delta, phase: Phase, request: &RequestView, workload: &Workload) -> (Reading, Known<Interval>) {
    let missing = |why: &str, how: &str| (Known::unavailable(why, how), Known::unavailable(why, how));
    let Some(saved) = total.saved().filter(|_| total.is_better() || total.is_worse()) else {
        return missing(
            "the replays' totals do not differ by more than two runs may",
            "look at the request, or make a larger change",
        );
    };
    let (metric, passes) = match phase {
        Phase::Decode => ("decode", workload.output_tokens.saturating_sub(1) as f64),
        _ => ("prefill", 1.0),
    };
    let times = request.phase(metric).and_then(|phase| Some((phase.before.value()?, phase.after.value()?)));
    let Some((before, after)) = times.filter(|_| passes > 0.0 && saved != 0.0) else {
        return missing("the request has no such pass", "clock complete requests with several tokens");
    };
    let per_pass = 1e6 / passes;
    let arrived =
        Reading::measured((before - after) * per_pass / saved, Unit::Ratio, total.ratio.known().map_or(1, |q| q.n()));
    let row = request.rows.iter().find(|row| row.name == metric);
    let interval = match row.map(|row| &row.interval) {
        // The metric is a rate: its ratio's inverse is that of the times.
        Some(Known::Is(ends)) => {
            let at = |ratio: f64| before * (1.0 - 1.0 / ratio) * per_pass / saved;
            let (one, other) = (at(ends.low), at(ends.high));
            Known::Is(Interval { low: one.min(other), high: one.max(other) })
        }
        Some(Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
        None => Known::unavailable("the phase was not compared", "clock complete requests"),
    };
    (arrived, interval)
}
