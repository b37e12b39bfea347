//! Compares what the steps of a request dispatched with what was planned: every call once per pass.
//! A replay cannot show this, because it chooses the calls itself.

use model::Dispatches;
use record::{Phase, Wiring};
use std::collections::BTreeSet;

/// Deviations that are spelled out; one broken layer has a dozen.
const NAMED: usize = 16;

/// Sums the dispatches of one phase, over all of its row counts.
pub(crate) fn tally(phase: Phase, layers: usize, steps: &[Dispatches]) -> Wiring {
    let (mut deviations, mut seen, mut off) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let (mut passes, mut dispatched) = (0, 0);
    for step in steps {
        passes += step.passes;
        for call in &step.calls {
            dispatched += call.count;
            seen.extend(call.layer);
            if call.count != step.passes {
                off.extend(call.layer);
                if deviations.len() < NAMED {
                    let place = call.layer.map_or_else(String::new, |layer| format!("layer {layer} "));
                    deviations.push(format!("{place}{}: {} of {}", call.slot, call.count, step.passes));
                }
            }
        }
    }
    Wiring {
        phase,
        layers: layers as u64,
        layers_as_planned: seen.difference(&off).count() as u64,
        passes,
        calls_per_pass: steps.iter().map(|step| step.calls.len() as u64).max().unwrap_or(0),
        planned: steps.iter().map(|step| step.passes * step.calls.len() as u64).sum(),
        dispatched,
        deviations,
    }
}
