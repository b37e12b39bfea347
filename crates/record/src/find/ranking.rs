//! The ranking: candidates by what the request could gain, and the books that show that nothing is counted twice.
//! Not here: where each row's seconds come from (`rows.rs`).

use crate::check::Check;
use crate::find::candidate::{Candidate, CandidateKind, Experiment, MemoryRow};
use crate::find::request::RequestSummary;
use crate::find::rows::{PhaseParts, Row, rows};
use crate::find::rungs::{RungOffer, offers};
use crate::find::views::Views;
use crate::find::{memory, words};
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::workload::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the request's time goes and what of it could be gained. Seconds per request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ranking {
    /// One sentence: what to change, and how much that could bring.
    pub verdict: String,
    /// Why it is not more certain.
    pub doubts: Vec<String>,
    /// What to run next, the most useful first.
    pub next: Vec<Experiment>,
    /// `request = floor + recoverable + unexplained`.
    pub request: Reading,
    /// Sum of the candidates' floors.
    pub floor: Reading,
    /// Sum of what the candidates within the request could gain.
    pub recoverable: Reading,
    /// What is in no row. Below zero: the replayed passes take longer than the request's.
    pub unexplained: Reading,
    pub phases: Vec<PhaseBudget>,
    /// Those that could gain most first.
    pub candidates: Vec<Candidate>,
    /// Bytes, ranked apart.
    pub memory: Vec<MemoryRow>,
    /// Rungs that follow the checkpoint.
    pub rungs: Vec<RungOffer>,
}

/// A phase of the request and what it is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PhaseBudget {
    pub phase: Phase,
    pub clocked: Reading,
    /// By the replay, times the passes.
    pub operators: Reading,
    pub dispatch: Reading,
    pub sampling: Reading,
    /// The clocked time less those of the three that are known. A GPU's pauses in a prefill are not, and are in it.
    pub unexplained: Reading,
    /// How much longer the clocked requests took over this phase than those between the replay's rounds, minutes apart: what the
    /// replayed times were multiplied with.
    #[serde(default = "no_requests_between")]
    pub drift: Reading,
}

fn no_requests_between() -> Reading {
    Known::unavailable(
        "no requests were clocked between the replay's rounds: replayed times were taken as they are",
        "`hourglass find` with this build",
    )
}

impl Ranking {
    /// Ranks what the views show.
    ///
    /// # Errors
    /// A sentence: without the request's own time nothing can be a part of it.
    pub fn of(views: &Views, checkpoint: &str) -> Result<Ranking, String> {
        let clock = views.clock.as_ref().ok_or("the request was not clocked")?;
        let summary = RequestSummary::of(&clock.record)?;
        let request = summary.whole_request.value().ok_or("no request of the clock came to its end")?;
        let (mut rows, parts) = rows(views, checkpoint, &summary);
        rows.sort_by(|a, b| b.recoverable().total_cmp(&a.recoverable()));
        let rungs = offers(views, checkpoint, &rows);
        let subject = words::Subject { views, checkpoint, workload: &clock.record.workload };
        let ranks = ranks(rows.iter().map(bounds_of));
        let candidates: Vec<Candidate> =
            rows.iter().zip(ranks).map(|(row, rank)| candidate(&subject, row, rank, &rungs, request)).collect();
        let sum = |pick: fn(&Row) -> f64| rows.iter().filter(|row| row.in_request).map(pick).sum::<f64>();
        let (floor, recoverable) = (sum(|row| row.floor.unwrap_or(0.0)), sum(Row::recoverable));
        let n = summary.samples_s.len() as u64;
        let seconds = |value: f64| Reading::measured(value, Unit::Seconds, n);
        let mut ranking = Ranking {
            verdict: String::new(),
            doubts: Vec::new(),
            next: Vec::new(),
            request: seconds(request),
            floor: seconds(floor),
            recoverable: seconds(recoverable),
            unexplained: seconds(request - floor - recoverable),
            phases: parts.iter().map(|parts| budget(parts, n)).collect(),
            candidates,
            memory: memory::memory(views, &summary),
            rungs,
        };
        ranking.verdict = words::verdict(&subject, &ranking, &summary);
        ranking.doubts = words::doubts(&subject, &ranking, &summary, &rows);
        ranking.next = words::next(&subject, &ranking);
        Ok(ranking)
    }

    /// The candidate with most to give that a change of the program could reach.
    pub fn first(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.kind != CandidateKind::Machine)
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let value = |reading: &Reading| reading.value().unwrap_or(0.0);
        let inside = || self.candidates.iter().filter(|candidate| candidate.in_request);
        let mut checks = vec![
            Check::sums(
                "ranking: floor + recoverable + unexplained = request",
                value(&self.request),
                value(&self.floor) + value(&self.recoverable) + value(&self.unexplained),
            ),
            near(
                "ranking: the candidates' floors sum to the floor",
                value(&self.floor),
                inside().map(|candidate| value(&candidate.floor)).sum(),
            ),
            near(
                "ranking: what the candidates could gain sums to what is recoverable",
                value(&self.recoverable),
                inside().map(|candidate| value(&candidate.recoverable)).sum(),
            ),
            near(
                "ranking: waits taken out of operators are the row of waits",
                self.candidates.iter().map(|candidate| value(&candidate.waits)).sum(),
                inside().filter(|row| row.kind == CandidateKind::Waits).map(|row| value(&row.measured)).sum(),
            ),
        ];
        let whole = self.candidates.iter().filter(|candidate| {
            let parts = value(&candidate.waits) + value(&candidate.floor) + value(&candidate.recoverable);
            near("", value(&candidate.measured), parts).passed
        });
        checks.push(Check::counts(
            "ranking: candidates that are waits + floor + recoverable",
            self.candidates.len() as u64,
            whole.count() as u64,
        ));
        let bounds_of = |candidate: &Candidate| bounds(value(&candidate.recoverable), &candidate.interval);
        let again = ranks(self.candidates.iter().map(bounds_of));
        let ranked = self.candidates.iter().zip(again).filter(|(candidate, rank)| candidate.rank == *rank);
        checks.push(Check::counts("ranking: ranks", self.candidates.len() as u64, ranked.count() as u64));
        checks
    }
}

/// Sums in another order: equal up to a rounding of each part. Unlike [`Check::sums`] it takes parts that cancel.
fn near(name: &str, expected: f64, found: f64) -> Check {
    let tolerance = 1e-9;
    let passed = (expected - found).abs() <= tolerance * expected.abs().max(found.abs()).max(1e-6);
    Check { name: name.to_owned(), expected, found, tolerance, passed }
}

fn budget(parts: &PhaseParts, n: u64) -> PhaseBudget {
    let seconds = |value: Option<f64>, why: &str, how: &str| match value {
        Some(value) => Reading::measured(value, Unit::Seconds, n),
        None => Known::unavailable(why, how),
    };
    let replayed = |value| seconds(value, "this phase was not replayed", "see the steps of the find record");
    let parts_sum = parts.operators.map(|sum| sum + parts.dispatch.unwrap_or(0.0) + parts.sampling.unwrap_or(0.0));
    PhaseBudget {
        phase: parts.phase,
        clocked: seconds(parts.clocked, "no request came to its end", "see the clock's record"),
        operators: replayed(parts.operators),
        dispatch: match (parts.operators, parts.dispatch) {
            (Some(_), None) => Known::unavailable(
                "the GPU's own times hold no start of a pass, and no view says what it paused for in this phase",
                "of decode steps `hourglass timeline --device` says it",
            ),
            (_, dispatch) => replayed(dispatch),
        },
        sampling: replayed(parts.sampling),
        unexplained: replayed(parts.clocked.zip(parts_sum).map(|(clocked, sum)| clocked - sum)),
        drift: match parts.drift {
            Some(drift) => Reading::measured(drift, Unit::Ratio, n),
            None => no_requests_between(),
        },
    }
}

fn candidate(subject: &words::Subject<'_>, row: &Row, rank: u64, rungs: &[RungOffer], request: f64) -> Candidate {
    let seconds = |value: f64| Reading::measured(value, Unit::Seconds, row.samples);
    let recoverable = row.recoverable();
    Candidate {
        rank,
        kind: row.kind,
        name: row.name.clone(),
        phase: row.phase,
        multiplicity: row.multiplicity,
        measured: seconds(row.measured),
        waits: seconds(row.waits),
        floor: match row.floor {
            Some(floor) => seconds(floor),
            None => Known::unavailable("no ceiling is known", "`hourglass ceilings`, then find again"),
        },
        recoverable: seconds(recoverable),
        interval: row.recoverable_interval(),
        share: Reading::ratio(recoverable, request, Unit::Share, row.samples),
        remaining: if row.in_request {
            seconds(request - recoverable)
        } else {
            Known::unavailable("it lies beside the clocked request", "nothing to get")
        },
        in_request: row.in_request,
        limit: row.limit.clone(),
        mechanism: words::mechanism(subject, row),
        falsify: words::falsify(subject, row),
        tries: words::tries(subject, row, rungs),
        evidence: row.evidence.clone(),
    }
}

/// Low, middle, high.
type Bounds = (f64, f64, f64);

fn bounds_of(row: &Row) -> Bounds {
    bounds(row.recoverable(), &row.recoverable_interval())
}

fn bounds(middle: f64, interval: &Known<crate::find::SecondsInterval>) -> Bounds {
    interval.known().map_or((middle, middle, middle), |interval| (interval.low, middle, interval.high))
}

/// Ranks of candidates that stand in order: one that surely has less to give than the first of the rank before begins a rank
/// of its own, its place.
fn ranks(ordered: impl Iterator<Item = Bounds>) -> Vec<u64> {
    let mut first: Option<(u64, Bounds)> = None;
    let rank = |(index, own): (usize, Bounds)| match first {
        Some((rank, leader)) if own.2 >= leader.0 => rank,
        _ => first.insert((index as u64 + 1, own)).0,
    };
    ordered.enumerate().map(rank).collect()
}
