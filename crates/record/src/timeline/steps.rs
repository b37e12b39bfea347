//! Steps and their jitter: which took far longer than their like, and what grew in them.
//! Not here: comparing two runs.

use super::partition::{Partition, State};
use super::segments::within;
use super::{Cause, Outlier, OutlierCause, OutlierKind, StepRow, StepSeries};
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::samples::Samples;
use crate::trace::{Category, Name, Slice, Trace};
use std::collections::{BTreeMap, BTreeSet};

/// Below this there is no usual step to compare with.
const FEWEST: usize = 5;
/// A step is an outlier beyond the median by more than this many standard deviations (estimated from the median absolute
/// deviation, which 1.4826 scales to one for normal noise) ...
const DEVIATIONS: f64 = 6.0 * 1.4826;
/// ... and by more than this part of the median: on a quiet machine the deviation is tiny and nobody cares.
const LEAST_SHARE: f64 = 0.02;

/// What takes time in a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Idle(Cause),
    /// An operator on a device lane.
    Operator(usize, Name),
}

/// A series per name of the main lane's outermost steps, in order of first appearance.
pub(super) fn series(trace: &Trace, partition: &Partition) -> Vec<StepSeries> {
    let mut named: Vec<(Name, Vec<&Slice>)> = Vec::new();
    let Some(main) = trace.main_lane() else { return Vec::new() };
    let mut end = 0;
    for slice in trace.lanes[main].slices.iter().filter(|slice| slice.category == Category::Step) {
        if slice.start_ns < end {
            continue;
        }
        end = slice.end_ns;
        match named.iter_mut().find(|(name, _)| *name == slice.name) {
            Some((_, steps)) => steps.push(slice),
            None => named.push((slice.name, vec![slice])),
        }
    }
    named.iter().filter_map(|(name, steps)| one(trace, partition, *name, steps)).collect()
}

fn one(trace: &Trace, partition: &Partition, name: Name, steps: &[&Slice]) -> Option<StepSeries> {
    let walls: Vec<f64> = steps.iter().map(|step| step.duration_ns() as f64).collect();
    let samples = Samples::new(&walls).ok()?;
    let (median, spread) = (samples.median(), samples.median_absolute_deviation());
    let seconds = |ns: f64| Reading::measured(ns / 1e9, Unit::Seconds, steps.len() as u64);
    let outliers = if steps.len() < FEWEST {
        let why = format!("{} steps are too few to tell an unusual one", steps.len());
        Known::unavailable(why, format!("trace a request with at least {FEWEST} such steps"))
    } else {
        let limit = median + (DEVIATIONS * spread).max(LEAST_SHARE * median);
        Known::Is(outliers(trace, partition, steps, median, limit))
    };
    let idle: Vec<f64> = steps.iter().map(|step| idle_share(partition, step)).collect();
    Some(StepSeries {
        name: trace.names.text(name).to_owned(),
        median: seconds(median),
        spread: seconds(spread),
        idle_share: Reading::measured(Samples::new(&idle).ok()?.median(), Unit::Share, steps.len() as u64),
        steps: steps.iter().map(|step| row(trace, partition, step)).collect(),
        outliers,
    })
}

/// Part of a step in which no device lane was busy.
fn idle_share(partition: &Partition, step: &Slice) -> f64 {
    let parts = within(&partition.device, (step.start_ns, step.end_ns));
    let idle: u64 = parts.filter(|part| matches!(part.value, State::Idle(_))).map(|part| part.wall_ns()).sum();
    idle as f64 / step.duration_ns().max(1) as f64
}

fn row(trace: &Trace, partition: &Partition, step: &Slice) -> StepRow {
    let spans = partition.lanes.iter().map(|&lane| {
        let slices = &trace.lanes[lane].slices;
        let first = slices.partition_point(|slice| slice.start_ns < step.start_ns);
        let (mut sum, mut end) = (0, 0);
        for slice in slices[first..].iter().take_while(|slice| slice.start_ns < step.end_ns) {
            if slice.start_ns >= end {
                sum += slice.duration_ns();
                end = slice.end_ns;
            }
        }
        sum
    });
    StepRow {
        start_ns: step.start_ns - trace.start_ns,
        wall_ns: step.duration_ns(),
        spans_ns: spans.max().unwrap_or(0),
    }
}

fn outliers(trace: &Trace, partition: &Partition, steps: &[&Slice], median: f64, limit: f64) -> Vec<Outlier> {
    let far: Vec<usize> = (0..steps.len()).filter(|&step| steps[step].duration_ns() as f64 > limit).collect();
    if far.is_empty() {
        return Vec::new();
    }
    let parts: Vec<BTreeMap<Part, u64>> = steps.iter().map(|step| parts(partition, step)).collect();
    let mut found: Vec<Outlier> = far
        .into_iter()
        .map(|step| {
            let wall_ns = steps[step].duration_ns();
            let excess_ns = wall_ns - median as u64;
            Outlier { step: step as u64, wall_ns, excess_ns, cause: cause(trace, &parts, step, excess_ns) }
        })
        .collect();
    found.sort_by_key(|outlier| (std::cmp::Reverse(outlier.wall_ns), outlier.step));
    found
}

/// Time of the device by idle cause, and of each lane by operator, within a step.
fn parts(partition: &Partition, step: &Slice) -> BTreeMap<Part, u64> {
    let window = (step.start_ns, step.end_ns);
    let mut parts = BTreeMap::new();
    for segment in within(&partition.device, window) {
        if let State::Idle(cause) = segment.value {
            *parts.entry(Part::Idle(cause)).or_default() += segment.wall_ns();
        }
    }
    for (lane, states) in partition.states.iter().enumerate() {
        for segment in within(states, window) {
            if let State::Busy(name) = segment.value {
                *parts.entry(Part::Operator(lane, name)).or_default() += segment.wall_ns();
            }
        }
    }
    parts
}

fn cause(trace: &Trace, parts: &[BTreeMap<Part, u64>], step: usize, excess_ns: u64) -> Known<OutlierCause> {
    let keys: BTreeSet<Part> = parts[step].keys().copied().collect();
    let grown = keys.into_iter().filter_map(|key| {
        let mut all: Vec<u64> = parts.iter().map(|step| step.get(&key).copied().unwrap_or(0)).collect();
        all.sort_unstable();
        let usual = all[all.len() / 2];
        Some((parts[step][&key].checked_sub(usual)?, key))
    });
    // Of equal growth the first key: a known loss before the operator that it happened in.
    let most = grown.max_by_key(|&(growth, key)| (growth, std::cmp::Reverse(key)));
    match most {
        Some((growth, key)) if growth > 0 && growth >= excess_ns - excess_ns / 2 => {
            let what = match key {
                Part::Idle(cause) => OutlierKind::Idle(cause),
                Part::Operator(_, name) => OutlierKind::Operator(trace.names.text(name).to_owned()),
            };
            Known::Is(OutlierCause { what, excess_ns: growth })
        }
        _ => Known::unavailable("no single cause makes up half of the excess", "look at the step in the trace file"),
    }
}
