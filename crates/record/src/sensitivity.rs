//! `sensitivity/1`: how much of a time that is added to an operator arrives in the request: would a faster one move it?
//! Not here: adding the time (`ops`, `probe`), and what an operator costs by itself (`replay.rs`).

use crate::bench::Surroundings;
use crate::check::Check;
use crate::conditions::Conditions;
use crate::coverage::Coverage;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::read::{Record, StoredId};
use crate::statistics::CONFIDENCE;
use crate::statistics::quantile::student_quantile;
use crate::subject::Subject;
use crate::workload::{Phase, Workload};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Slopes this near to 0 or 1 are taken for 0 or 1: less is of no consequence.
pub const NEAR: f64 = 0.1;
/// Between hidden and critical; an interval on both sides of it decides nothing.
const MIDDLE: f64 = 0.5;

/// `sensitivity/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SensitivityRecord {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    /// The request that was clocked.
    pub workload: Workload,
    pub workload_id: String,
    pub conditions: Conditions,
    pub conditions_id: String,
    pub subject: Subject,
    /// All requests ran in this one warm process.
    pub process_id: u32,
    /// In whose passes time was added; `request`: in both.
    pub phase: Phase,
    /// Part of a request's time that the smaller delay was chosen to add.
    pub added_share: f64,
    pub coverage: Coverage,
    /// What went on around this process during the rounds. Workers that share their processors with other processes wait for
    /// each other longer than any barrier makes them, and slopes rise above 1.
    pub surroundings: Surroundings,
    /// Those that moved the request most first.
    pub targets: Vec<Target>,
    /// Every clocked request in its order.
    pub samples: Vec<Clocked>,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// One group or operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    pub target: String,
    /// Calls of a request that time was added to.
    pub calls: u64,
    /// Its own time in one traced request: of each call its slowest worker's.
    pub own: Reading,
    /// What its slope would be if every share took as long as in the trace and only the barriers made workers wait.
    pub expected_slope: Reading,
    /// Request seconds per added second, over all rounds, each round's level taken out.
    pub slope: Known<Slope>,
    /// Slope times its own time: what the request would lose if the operator cost nothing, as far as the line is straight.
    pub at_stake: Reading,
    pub verdict: Verdict,
}

/// A fitted slope.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slope {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    /// How often such an interval holds the true slope.
    pub confidence: f64,
    /// Points behind it.
    pub n: u64,
}

/// One clocked request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Clocked {
    pub round: u64,
    /// Where the time was added; absent where none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// 0, 1 or 2 times the delay.
    pub times: u64,
    /// As measured while it was added: of each call its most delayed worker's, summed.
    pub injected_seconds: f64,
    pub request_seconds: f64,
}

/// What the slope says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    OnTheCriticalPath,
    PartlyHidden,
    Hidden,
    Inconclusive,
}

impl Verdict {
    pub const fn words(self) -> &'static str {
        match self {
            Verdict::OnTheCriticalPath => "on the critical path",
            Verdict::PartlyHidden => "partly hidden",
            Verdict::Hidden => "hidden",
            Verdict::Inconclusive => "inconclusive",
        }
    }

    /// Decided by the whole interval.
    pub fn of(slope: &Slope) -> Verdict {
        let Slope { low, high, .. } = *slope;
        if low > MIDDLE && high >= 1.0 - NEAR {
            Verdict::OnTheCriticalPath
        } else if high < MIDDLE && low <= NEAR {
            Verdict::Hidden
        } else if low > NEAR && high < 1.0 - NEAR {
            Verdict::PartlyHidden
        } else {
            Verdict::Inconclusive
        }
    }
}

impl Slope {
    /// Least squares of request seconds on added seconds with a level per round, and Student's interval.
    /// `rounds` holds the points (added, request) of each round.
    ///
    /// None with fewer than two degrees of freedom, or where nothing was added.
    pub fn fit(rounds: &[Vec<(f64, f64)>]) -> Option<Slope> {
        let mut centred = Vec::new();
        let mut levels = 0;
        for round in rounds.iter().filter(|round| !round.is_empty()) {
            let n = round.len() as f64;
            let (x, y) = round.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / n, y + point.1 / n));
            centred.extend(round.iter().map(|point| (point.0 - x, point.1 - y)));
            levels += 1;
        }
        let degrees = centred.len().checked_sub(levels + 1).filter(|degrees| *degrees >= 2)?;
        let xx: f64 = centred.iter().map(|(x, _)| x * x).sum();
        if xx <= 0.0 {
            return None;
        }
        let value = centred.iter().map(|(x, y)| x * y).sum::<f64>() / xx;
        let residual: f64 = centred.iter().map(|(x, y)| (y - value * x).powi(2)).sum();
        let error = (residual / degrees as f64 / xx).sqrt();
        let half = student_quantile(0.5 + CONFIDENCE / 2.0, degrees) * error;
        let (low, high, n) = (value - half, value + half, centred.len() as u64);
        (half.is_finite() && value.is_finite()).then_some(Slope { value, low, high, confidence: CONFIDENCE, n })
    }
}

impl Target {
    /// Fits what `samples` say of it and judges.
    fn fill(&mut self, samples: &[Clocked]) {
        self.slope = match Slope::fit(&points(&self.target, samples)) {
            Some(slope) => Known::Is(slope),
            None => Known::unavailable("fewer than two rounds were clocked", "let at least two rounds finish"),
        };
        let slope = self.slope.known();
        self.verdict = slope.map_or(Verdict::Inconclusive, Verdict::of);
        self.at_stake = match (slope, self.own.value()) {
            (Some(slope), Some(own)) => Reading::measured(slope.value * own, Unit::Seconds, slope.n),
            _ => Known::unavailable("there is no slope", "let at least two rounds finish"),
        };
    }
}

/// By round, (added, request) of the target and of the requests that nothing was added to.
fn points(target: &str, samples: &[Clocked]) -> Vec<Vec<(f64, f64)>> {
    let mine = |sample: &&Clocked| sample.target.as_deref().is_none_or(|name| name == target);
    let mut rounds: Vec<Vec<(f64, f64)>> = Vec::new();
    for sample in samples.iter().filter(mine) {
        let round = sample.round as usize;
        if rounds.len() <= round && round < samples.len() {
            rounds.resize(round + 1, Vec::new());
        }
        if let Some(points) = rounds.get_mut(round) {
            points.push((sample.injected_seconds, sample.request_seconds));
        }
    }
    rounds
}

/// Fits every target; those with most at stake first.
fn rank(targets: &mut [Target], samples: &[Clocked]) {
    targets.iter_mut().for_each(|target| target.fill(samples));
    let stake = |target: &Target| target.at_stake.value().unwrap_or(f64::NEG_INFINITY);
    targets.sort_by(|a, b| stake(b).total_cmp(&stake(a)));
}

impl SensitivityRecord {
    /// Fits every target, ranks them by what is at stake, and fills in the ids, the checks and whether one voids the record.
    pub fn close(&mut self) {
        rank(&mut self.targets, &self.samples);
        self.workload_id = self.workload.id();
        self.conditions_id = self.conditions.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }
}

impl Record for SensitivityRecord {
    const SCHEMA: &'static str = "sensitivity/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![
            StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() },
            StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() },
        ]
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// Slopes are those of the samples; nothing is added where nothing should be, and no time is negative.
    fn cross_foot(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for target in &self.targets {
            let again = Slope::fit(&points(&target.target, &self.samples)).map_or(0.0, |slope| slope.value);
            let stated = target.slope.known().map_or(0.0, |slope| slope.value);
            checks.push(Check::sums(format!("{}: the slope is that of the samples", target.target), again, stated));
        }
        let wrong = |sample: &&Clocked| {
            (sample.times == 0) != (sample.injected_seconds == 0.0) || sample.request_seconds <= 0.0
        };
        checks.push(Check::counts(
            "time was added where it should be and nowhere else",
            0,
            self.samples.iter().filter(wrong).count() as u64,
        ));
        checks
    }

    fn void(&self) -> bool {
        self.void
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::statistics::random::Random;

    #[test]
    fn a_line_is_found_whatever_the_rounds_levels_are() {
        let round = |level: f64| [0.0, 1.0, 2.0].map(|x| (x, level + 0.7 * x)).to_vec();
        let slope = Slope::fit(&[round(3.0), round(100.0), round(-5.0)]).unwrap();
        assert!((slope.value - 0.7).abs() < 1e-12 && slope.high - slope.low < 1e-9, "{slope:?}");
        assert_eq!(slope.n, 9);
    }

    /// By hand: points (0, 0), (1, 2), (2, 1) twice; slope 1/2, residuals 1/2, -1, 1/2 about each line, 3 degrees of freedom:
    /// standard error sqrt(3 / 3 / 4) = 1/2, and Student's 97.5 % quantile of 3 is 3.182446.
    #[test]
    fn the_interval_is_students() {
        let round = vec![(0.0, 0.0), (1.0, 2.0), (2.0, 1.0)];
        let slope = Slope::fit(&[round.clone(), round]).unwrap();
        assert!((slope.value - 0.5).abs() < 1e-12);
        assert!((slope.high - slope.value - 3.182_446 / 2.0).abs() < 1e-4, "{slope:?}");
    }

    #[test]
    fn nothing_added_or_too_few_points_give_no_slope() {
        assert_eq!(Slope::fit(&[vec![(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]]).map(|slope| slope.n), None);
        assert_eq!(Slope::fit(&[vec![(0.0, 1.0); 3], vec![(0.0, 1.0); 3]]), None);
        assert_eq!(Slope::fit(&[]), None);
    }

    #[test]
    fn the_interval_holds_the_true_slope_as_often_as_it_says() {
        let mut random = Random::new(7);
        let held = (0..1000)
            .filter(|_| {
                let mut round = |level: f64| [0.0, 0.05, 0.1].map(|x| (x, level + x + 0.02 * random.normal())).to_vec();
                let slope = Slope::fit(&[round(1.0), round(1.1), round(0.9), round(1.0)]).unwrap();
                slope.low <= 1.0 && 1.0 <= slope.high
            })
            .count();
        // 950 are expected, with a standard deviation of 7.
        assert!((920..=980).contains(&held), "{held}");
    }

    #[test]
    fn verdicts_need_the_whole_interval() {
        let of =
            |low: f64, high: f64| Verdict::of(&Slope { value: (low + high) / 2.0, low, high, confidence: 0.95, n: 9 });
        assert_eq!(of(0.8, 1.1), Verdict::OnTheCriticalPath);
        assert_eq!(of(0.93, 0.97), Verdict::OnTheCriticalPath);
        assert_eq!(of(-0.1, 0.2), Verdict::Hidden);
        assert_eq!(of(0.3, 0.6), Verdict::PartlyHidden);
        for (low, high) in [(-0.5, 1.5), (0.2, 1.2), (-0.2, 0.7)] {
            assert_eq!(of(low, high), Verdict::Inconclusive, "{low} {high}");
        }
    }

    /// Requests made up from known slopes: the operator that was slowed most is ranked first, the hidden one last, although its
    /// own time is the second largest.
    #[test]
    fn targets_are_ranked_by_what_is_at_stake_and_not_by_their_own_time() {
        let mut random = Random::new(3);
        let truths = [("hidden", 0.0, 3.0), ("slowed", 1.0, 5.0), ("short", 1.0, 0.5)];
        let mut samples = Vec::new();
        for round in 0..8 {
            let level = 1.0 + 0.2 * random.uniform();
            let mut clock = |target: Option<&str>, times: u64, slope: f64| {
                let injected_seconds = 0.05 * times as f64;
                let request_seconds = level + slope * injected_seconds + 0.004 * random.normal();
                samples.push(Clocked {
                    round,
                    target: target.map(str::to_owned),
                    times,
                    injected_seconds,
                    request_seconds,
                });
            };
            clock(None, 0, 0.0);
            for (name, slope, _) in truths {
                clock(Some(name), 1, slope);
                clock(Some(name), 2, slope);
            }
        }
        let missing = || Reading::unavailable("a test", "nothing");
        let mut targets: Vec<Target> = truths
            .iter()
            .map(|(name, _, own)| Target {
                target: (*name).to_owned(),
                calls: 1,
                own: Reading::measured(*own, Unit::Seconds, 1),
                expected_slope: missing(),
                slope: Known::unavailable("not fitted", "close"),
                at_stake: missing(),
                verdict: Verdict::Inconclusive,
            })
            .collect();
        rank(&mut targets, &samples);
        let found: Vec<_> = targets.iter().map(|target| (target.target.as_str(), target.verdict)).collect();
        assert_eq!(
            found,
            [
                ("slowed", Verdict::OnTheCriticalPath),
                ("short", Verdict::OnTheCriticalPath),
                ("hidden", Verdict::Hidden)
            ]
        );
        assert!((targets[0].at_stake.value().unwrap() - 5.0).abs() < 0.5, "{:?}", targets[0]);
    }
}
