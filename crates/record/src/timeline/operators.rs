//! Operators over all their calls: how many, how long, how evenly the workers shared them.
//! Not here: which operator matters most; that is the ranking's.

use super::partition::Partition;
use super::{Imbalance, OperatorRow};
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::trace::{Category, LaneKind, Name, Trace};
use std::collections::{BTreeMap, HashMap};

/// How often the program says that an operator is called in the whole window: its calls per step times the steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCalls {
    pub operator: String,
    pub calls: u64,
}

/// A row per operator that was seen or planned, by the time of its slowest lane, longest first.
pub(super) fn rows(trace: &Trace, partition: &Partition, planned: &Known<Vec<PlannedCalls>>) -> Vec<OperatorRow> {
    // Durations of every operator's slices, lane by lane, in order.
    let mut seen: BTreeMap<Name, Vec<Vec<u64>>> = BTreeMap::new();
    for (position, &lane) in partition.lanes.iter().enumerate() {
        let operators = trace.lanes[lane].slices.iter().filter(|slice| slice.category == Category::Operator);
        for slice in operators {
            let lanes = seen.entry(slice.name).or_insert_with(|| vec![Vec::new(); partition.lanes.len()]);
            lanes[position].push(slice.duration_ns());
        }
    }
    let mut wanted: HashMap<&str, u64> = HashMap::new();
    for row in planned.known().into_iter().flatten() {
        *wanted.entry(&row.operator).or_default() += row.calls;
    }
    let mut rows: Vec<OperatorRow> = seen
        .iter()
        .map(|(&name, lanes)| {
            let operator = trace.names.text(name).to_owned();
            let planned_calls = match planned {
                Known::Is(_) => Known::Is(wanted.remove(operator.as_str()).unwrap_or(0)),
                Known::Unavailable(why) => Known::Unavailable(why.clone()),
            };
            OperatorRow {
                operator,
                planned_calls,
                calls: lanes.iter().map(|calls| calls.len() as u64).collect(),
                wall_ns: lanes.iter().map(|calls| calls.iter().sum()).collect(),
                imbalance: imbalance(trace, partition, lanes),
            }
        })
        .collect();
    let nowhere = vec![0; partition.lanes.len()];
    rows.extend(wanted.into_iter().map(|(operator, calls)| OperatorRow {
        operator: operator.to_owned(),
        planned_calls: Known::Is(calls),
        calls: nowhere.clone(),
        wall_ns: nowhere.clone(),
        imbalance: Known::unavailable("no call was seen", "trace a request that runs it"),
    }));
    let longest = |row: &OperatorRow| row.wall_ns.iter().copied().max().unwrap_or(0);
    rows.sort_by(|a, b| (longest(b), &a.operator).cmp(&(longest(a), &b.operator)));
    rows
}

fn imbalance(trace: &Trace, partition: &Partition, lanes: &[Vec<u64>]) -> Known<Imbalance> {
    let workers = partition.lanes.iter().all(|&lane| matches!(trace.lanes[lane].kind, LaneKind::Worker { .. }));
    if lanes.len() < 2 || !workers {
        let why = "its calls are not shared between workers";
        return Known::unavailable(why, "trace a run of two threads or more on the CPU");
    }
    let calls = lanes[0].len();
    if lanes.iter().any(|lane| lane.len() != calls) {
        let why = "the workers' calls differ in number, so that they cannot be matched";
        return Known::unavailable(why, "trace a shorter window, in which no slice is dropped");
    }
    let totals: Vec<u64> = lanes.iter().map(|lane| lane.iter().sum()).collect();
    let slowest = (0..totals.len()).max_by_key(|&lane| (totals[lane], std::cmp::Reverse(lane))).unwrap_or(0);
    let mean = totals.iter().sum::<u64>() as f64 / totals.len() as f64;
    let lost_ns = (0..calls)
        .map(|call| {
            let shares = lanes.iter().map(|lane| lane[call]);
            let mean = shares.clone().sum::<u64>() / lanes.len() as u64;
            shares.max().unwrap_or(0) - mean
        })
        .sum();
    Known::Is(Imbalance {
        slowest: trace.lanes[partition.lanes[slowest]].name.clone(),
        slowest_over_mean: Reading::ratio(totals[slowest] as f64 - mean, mean, Unit::Share, calls as u64),
        lost_ns,
    })
}
