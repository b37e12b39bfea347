//! What the evidence of one run points at: the larger phase, each phase's largest group, and the next rung of the ladder.
//! Not here: whether that rung pays; only measuring it says so.

use model::Engine;
use ops::{Checkpoint, Features, Kernel, Registry};
use record::{Known, NextStep, Replay, RequestClock};

/// What to try next, if the request and both replays are complete.
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
    let ends = || ("the ladder ends here".to_owned(), "write a kernel in crates/lab, or carry the question on");
    let text = |pick: fn(&Checkpoint) -> &'static str| match child {
        Some(child) => Known::Is(pick(child).to_owned()),
        None => Known::unavailable(ends().0, ends().1),
    };
    Known::Is(NextStep {
        larger_phase: if decode_seconds > prefill_seconds { "decode" } else { "prefill" }.to_owned(),
        largest_prefill_group: prefill.group.clone(),
        largest_decode_group: decode.group.clone(),
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

/// Kernels of an operator that run here and are not in `bound`, the reference left out.
pub(crate) fn unbound(operator: &str, bound: &[String], registry: &Registry, features: Features) -> Vec<String> {
    let operators = registry.operators().iter().filter(|known| known.name() == operator);
    let runs =
        |kernel: &&'static Kernel| kernel.name != "reference" && kernel.features.missing_from(features).is_empty();
    let labels = operators.flat_map(|operator| registry.kernels(*operator).filter(runs)).map(Kernel::label);
    labels.filter(|label| !bound.iter().any(|known| known.ends_with(label.as_str()))).collect()
}
