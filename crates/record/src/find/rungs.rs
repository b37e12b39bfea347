//! What a rung that follows the checkpoint would change of the ranking, from the two plans of calls: nothing of it has run.
//! Not here: whether it pays, which only the request's clock says.

use crate::ceilings::{Ceilings, InstructionPath};
use crate::evidence::EvidenceRef;
use crate::find::candidate::{CandidateKind, Experiment};
use crate::find::rows::Row;
use crate::find::views::{Seen, Views};
use crate::find::words;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::wiring_plan::{PlannedPass, WiringPlan};
use crate::workload::Phase;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A rung's words, out of the ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RungText {
    pub name: String,
    pub change: String,
    pub hypothesis: String,
}

/// A rung that follows, held against the ranking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RungOffer {
    pub checkpoint: String,
    pub change: String,
    /// What should be true of this profile if it is to pay.
    pub hypothesis: String,
    /// Rows of the ranking whose calls it replaces or binds to another kernel: `decode q_proj: linear`.
    pub addresses: Vec<String>,
    /// Seconds that those rows take in one request now.
    pub addressed: Reading,
    /// Seconds that the request could gain if the calls in their place ran at the ceilings.
    pub at_most: Reading,
    /// Seconds gained if they kept their part of the ceilings and only moved fewer bytes; unavailable if they move as many.
    pub by_bytes: Reading,
    pub try_command: Experiment,
    pub evidence: EvidenceRef,
}

/// Calls of one slot and operator over a pass.
#[derive(Default, PartialEq)]
struct Calls {
    count: u64,
    kernels: Vec<String>,
    bytes: u64,
    flops: u64,
}

fn calls(pass: &PlannedPass) -> BTreeMap<String, Calls> {
    let mut found: BTreeMap<String, Calls> = BTreeMap::new();
    for call in &pass.calls {
        let name =
            if call.slot == call.operator { call.slot.clone() } else { format!("{}: {}", call.slot, call.operator) };
        let entry = found.entry(name).or_default();
        entry.count += 1;
        entry.bytes = entry.bytes.saturating_add(call.bytes_read).saturating_add(call.bytes_written);
        entry.flops = entry.flops.saturating_add(call.flops);
        if !entry.kernels.contains(&call.kernel) {
            entry.kernels.push(call.kernel.clone());
        }
    }
    found
}

fn pass(plan: &WiringPlan, phase: Phase) -> Option<&PlannedPass> {
    plan.passes.iter().find(|pass| pass.workload.phase == phase)
}

/// What every rung of the views would change of these rows; those that could gain most first.
pub(super) fn offers(views: &Views, checkpoint: &str, rows: &[Row]) -> Vec<RungOffer> {
    let Some(own) = &views.wiring else { return Vec::new() };
    let mut offers: Vec<RungOffer> =
        views.rungs.iter().map(|(text, plan)| offer(views, checkpoint, rows, &own.record, text, plan)).collect();
    let most = |offer: &RungOffer| offer.at_most.value().unwrap_or(0.0);
    offers.sort_by(|a, b| most(b).total_cmp(&most(a)));
    offers
}

fn offer(
    views: &Views,
    checkpoint: &str,
    rows: &[Row],
    own: &WiringPlan,
    text: &RungText,
    plan: &Seen<WiringPlan>,
) -> RungOffer {
    let mut addresses = Vec::new();
    let (mut now, mut least, mut by_bytes, mut fewer) = (0.0, Some(0.0), 0.0, false);
    for phase in [Phase::Prefill, Phase::Decode] {
        let (Some(before), Some(after)) = (pass(own, phase), pass(&plan.record, phase)) else { continue };
        let (footprint, threads) = (after.bytes_read, plan.record.conditions.threads);
        let (before, after) = (calls(before), calls(after));
        let operators = || rows.iter().filter(|row| row.phase == phase && row.kind == CandidateKind::Operator);
        let changed: Vec<&Row> = operators().filter(|row| before.get(&row.name) != after.get(&row.name)).collect();
        let Some(first) = changed.first() else { continue };
        let passes = first.multiplicity.passes as f64;
        let time: f64 = changed.iter().map(|row| row.measured).sum();
        now += time;
        addresses.extend(changed.iter().map(|row| words::titled(row.phase, &row.name)));
        let new: Vec<&Calls> =
            after.iter().filter(|(name, calls)| before.get(*name) != Some(calls)).map(|(_, calls)| calls).collect();
        let floor = new.iter().map(|calls| floor(views, calls, footprint, threads)).sum::<Option<f64>>();
        least = least.zip(floor).map(|(sum, floor)| sum + (floor * passes).min(time));
        let bytes_before: u64 = changed.iter().filter_map(|row| before.get(&row.name)).map(|calls| calls.bytes).sum();
        let bytes_after: u64 = new.iter().map(|calls| calls.bytes).sum();
        if bytes_after < bytes_before {
            fewer = true;
            by_bytes += time * (1.0 - bytes_after as f64 / bytes_before as f64);
        }
    }
    let samples = rows.iter().map(|row| row.samples).max().unwrap_or(1).max(1);
    let seconds = |value: f64| Reading::measured(value, Unit::Seconds, samples);
    RungOffer {
        checkpoint: text.name.clone(),
        change: text.change.clone(),
        hypothesis: text.hypothesis.clone(),
        at_most: seconds(now - least.unwrap_or(0.0)),
        by_bytes: if fewer {
            seconds(by_bytes)
        } else {
            Known::unavailable("what it changes moves as many bytes as before", "clock it")
        },
        addressed: seconds(now),
        try_command: words::try_rung(views, checkpoint, &text.name),
        addresses,
        evidence: plan.evidence.clone(),
    }
}

/// Seconds of a pass's calls at the ceilings, the fastest instruction of any kind allowed; None without ceilings.
fn floor(views: &Views, calls: &Calls, footprint: u64, threads: u64) -> Option<f64> {
    let ceilings: &Ceilings = &views.ceilings.as_ref()?.record;
    let threads = if ceilings.is_of_device() { 1 } else { threads };
    let bandwidth = ceilings.bandwidth(threads, footprint).value().filter(|rate| *rate > 0.0)?;
    let paths = InstructionPath::ALL.into_iter().chain([InstructionPath::TensorBf16]);
    let peaks = paths.filter_map(|path| ceilings.peak(path, threads).value());
    let peak = peaks.fold(0.0, f64::max);
    let arithmetic = if peak > 0.0 { calls.flops as f64 / peak * 1e-9 } else { 0.0 };
    Some((calls.bytes as f64 / bandwidth * 1e-9).max(arithmetic))
}
