//! Compares what a bound program counted with what was planned: every call once per pass.
//! A replay cannot show this, because it chooses the calls itself.

use ops::Bound;
use record::{Phase, Wiring};
use std::collections::BTreeSet;

/// Deviations that are spelled out; one broken layer has a dozen.
const NAMED: usize = 16;

/// The dispatches of `bound` since its counters were reset, in `passes` passes.
pub(crate) fn tally(phase: Phase, layers: usize, passes: usize, bound: &Bound) -> Wiring {
    let planned = passes as u64;
    let (mut dispatched, mut calls, mut deviations, mut seen, mut off) =
        (0, 0, Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (call, count) in bound.dispatches() {
        dispatched += count;
        calls += 1;
        seen.extend(call.layer);
        if count != planned {
            off.extend(call.layer);
            if deviations.len() < NAMED {
                let place = call.layer.map_or_else(String::new, |layer| format!("layer {layer} "));
                deviations.push(format!("{place}{}: {count} of {planned}", call.slot));
            }
        }
    }
    Wiring {
        phase,
        layers: layers as u64,
        layers_as_planned: seen.difference(&off).count() as u64,
        passes: planned,
        calls_per_pass: calls,
        dispatched,
        deviations,
    }
}
