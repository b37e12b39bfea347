//! What the evidence of one run points at: the larger phase, each phase's largest group, and the next rung of the ladder.
//! Not here: whether that rung pays; only measuring it says so.

use model::Engine;
use ops::{Bound, Checkpoint, Features, Kernel, Registry};
use record::{Known, NextStep, Replay, RequestClock};
use std::collections::BTreeSet;

/// What to try next, if the request and both replays are complete; `other_kernels` is left to [`others`].
pub(crate) fn step(
    clock: &Known<RequestClock>,
    replays: &[Replay],
    engine: &Engine,
    registry: &Registry,
) -> Known<NextStep> {
    let seconds = clock.known().and_then(|clock| Some((clock.prefill.value()?, clock.decode.value()?)));
    let [prefill, decode] = replays else { return unmeasured() };
    let (Some((prefill_seconds, decode_seconds)), Some(prefill), Some(decode)) =
        (seconds, prefill.largest(), decode.largest())
    else {
        return unmeasured();
    };
    let child = children(engine, registry).into_iter().next();
    let newest = engine.checkpoint().name == registry.newest().name;
    let why = if newest { "this is the newest rung" } else { "no rung follows this checkpoint" };
    let how = "write a kernel in crates/lab, or carry the question on";
    let text = |pick: fn(&Checkpoint) -> &'static str| match child {
        Some(child) => Known::Is(pick(child).to_owned()),
        None => Known::unavailable(why, how),
    };
    Known::Is(NextStep {
        larger_phase: if decode_seconds > prefill_seconds { "decode" } else { "prefill" }.to_owned(),
        largest_prefill_group: prefill.group.clone(),
        largest_decode_group: decode.group.clone(),
        other_kernels: Vec::new(),
        checkpoint: text(|child| child.name),
        hypothesis: text(|child| child.hypothesis),
        change: text(|child| child.change),
    })
}

fn unmeasured() -> Known<NextStep> {
    Known::unavailable("the request or a replay is incomplete", "run again and let it finish")
}

/// The rungs whose parent is the engine's checkpoint.
pub(crate) fn children(engine: &Engine, registry: &Registry) -> Vec<&'static Checkpoint> {
    let name = engine.checkpoint().name;
    registry.checkpoints().filter(|rung| rung.parent.is_some_and(|parent| parent.name == name)).collect()
}

/// Kernels that the registry has for the calls of `group` beside those bound, the reference left out: they run here and
/// take these shapes.
pub(crate) fn others(group: &str, bound: &Bound, registry: &Registry, features: Features) -> Vec<String> {
    let program = bound.program();
    let mut found = BTreeSet::new();
    for (call, bound) in program.calls.iter().zip(bound.calls()).filter(|(call, _)| call.group.name() == group) {
        let shape = program.call_shape(call, &[]);
        let fits = |kernel: &&'static Kernel| {
            kernel.name != "reference"
                && kernel.label() != bound.kernel.label()
                && kernel.features.missing_from(features).is_empty()
                && (kernel.supports)(&shape).is_ok()
        };
        let labels = registry.kernels(call.operator).filter(fits).map(Kernel::label);
        found.extend(labels.map(|label| format!("{}: {label}", call.operator.name())));
    }
    found.into_iter().collect()
}
