//! Two kernels of one operator in the passes that a workload is made of, on real weights and a real cache.
//! Not here: which record the workload is from (the binary), what the times come to (`record::ShapeStudy`).

use crate::error::Error;
use crate::replay::rows::{Calls, spelled};
use crate::stopwatch::Stopwatch;
use model::{Cache, Engine, Keep};
use ops::{Both, BoundCall, CallShape, DType, Kernel, Plain, Until, Where};
use record::{Known, LogitsMode, Phase, ShapeRow, Tensor, Timing, Workload};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Contexts at which decode steps of a request are sampled, where the operator's cost depends on the context.
const CONTEXTS: usize = 4;

/// What is compared.
pub struct Shapes<'a> {
    /// A request, or one pass of a replay.
    pub workload: &'a Workload,
    /// As many ids as the workload's context and output together.
    pub tokens: &'a [u32],
    /// Of one operator.
    pub kernels: [&'static Kernel; 2],
    pub warmup: usize,
    pub iterations: usize,
}

/// A pass, and how many passes of the workload it stands for.
struct Stretch {
    phase: Phase,
    offset: usize,
    rows: usize,
    passes: u64,
    keep: Keep,
}

/// One place of the layer in a stretch: its row, and which kernels it can be timed with.
struct Place {
    calls: Calls,
    row: ShapeRow,
    runs: [Result<(), String>; 2],
    samples: [Vec<f64>; 2],
}

/// Times both kernels at every shape. `progress(done, total, what)` is called between rounds.
///
/// In each round a kernel first serves an untimed pass with all its calls, so that what its timed calls then find in caches is
/// what a request leaves there; then each place of the layer is timed alone. The kernels take turns in going first.
///
/// # Errors
/// A pass that does not run, or interruption.
pub fn shapes(
    engine: &mut Engine,
    study: &Shapes<'_>,
    progress: &dyn Fn(usize, usize, &str),
) -> Result<Vec<ShapeRow>, Error> {
    let stretches = stretches(engine, study)?;
    let rounds = study.warmup + study.iterations;
    let total = stretches.len() * rounds;
    let mut rows = Vec::new();
    let cancelled = Arc::clone(&engine.options().cancelled);
    for (index, stretch) in stretches.iter().enumerate() {
        let mut cache = seeded(engine, study, stretch)?;
        let tokens = &study.tokens[stretch.offset..stretch.offset + stretch.rows];
        let mut places = places(engine, &mut cache, tokens, stretch, study.kernels)?;
        let watch = Stopwatch::new(engine)?;
        for round in 0..rounds {
            progress(index * rounds + round, total, stretch.phase.name());
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for kernel in order {
                engine.prefer(Some(study.kernels[kernel]));
                let mut step = engine.prepare(&mut cache, tokens, stretch.keep)?;
                step.run(&Both(&Until(&cancelled), &Plain))?;
                for place in &mut places {
                    if place.runs[kernel].is_err() {
                        continue;
                    }
                    let calls = place.calls;
                    let run = || step.run(&Both(&Until(&cancelled), &Where(|call: &BoundCall| calls.has(call))));
                    let elapsed = watch.time(run);
                    if cancelled.load(Relaxed) {
                        break;
                    }
                    let elapsed = elapsed?;
                    if round >= study.warmup {
                        place.samples[kernel].push(elapsed);
                    }
                }
                if cancelled.load(Relaxed) {
                    engine.prefer(None);
                    return Err(model::Error::Interrupted.into());
                }
            }
        }
        engine.prefer(None);
        for Place { mut row, runs, samples, .. } in places {
            for ((timing, run), samples) in row.timings.iter_mut().zip(runs).zip(samples) {
                *timing = match run {
                    Ok(()) => Known::Is(Timing::new(samples)?),
                    Err(why) => Known::unavailable(why, "compare a kernel that takes this shape"),
                };
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The passes of the workload, alike ones counted together.
fn stretches(engine: &mut Engine, study: &Shapes<'_>) -> Result<Vec<Stretch>, Error> {
    let Workload { phase, context_tokens, output_tokens, logits, .. } = *study.workload;
    let prompt = context_tokens as usize;
    let keep = if logits == LogitsMode::All { Keep::All } else { Keep::Last };
    let decode =
        |offset: usize, passes: u64| Stretch { phase: Phase::Decode, offset, rows: 1, passes, keep: Keep::Last };
    match phase {
        Phase::Prefill => return Ok(vec![Stretch { phase, offset: 0, rows: prompt, passes: 1, keep }]),
        Phase::Decode => return Ok(vec![decode(prompt - 1, 1)]),
        Phase::Request => {}
    }
    let mut all = Vec::new();
    // As `Engine::forward` cuts a prompt.
    let whole = engine.checkpoint().cache == ops::CachePolicy::None || keep == Keep::All;
    let chunk = if whole { prompt } else { engine.options().prefill_chunk };
    for offset in (0..prompt).step_by(chunk.max(1)) {
        let rows = chunk.min(prompt - offset);
        all.push(Stretch { phase: Phase::Prefill, offset, rows, passes: 1, keep });
    }
    let steps = (output_tokens as usize).saturating_sub(1);
    let parts = if depends_on_context(engine, study, prompt, steps)? { CONTEXTS.min(steps) } else { 1.min(steps) };
    for part in 0..parts {
        let (from, to) = (part * steps / parts, (part + 1) * steps / parts);
        all.push(decode(prompt + (from + to) / 2, (to - from) as u64));
    }
    Ok(all)
}

/// Whether the operator costs more late in a request than early.
fn depends_on_context(engine: &mut Engine, study: &Shapes<'_>, prompt: usize, steps: usize) -> Result<bool, Error> {
    let capacity = study.workload.capacity as usize;
    // Without a cache every step runs all rows before it.
    if engine.checkpoint().cache == ops::CachePolicy::None {
        return Ok(true);
    }
    let bound = engine.kernels(1, Keep::Last, capacity)?;
    let operator = study.kernels[0].operator;
    let own = |(index, call): (usize, &BoundCall)| (call.kernel.operator == operator).then_some(index);
    let calls: Vec<usize> = bound.calls().iter().enumerate().filter_map(own).collect();
    let cost = |offset: usize| {
        let mut sum = ops::Cost::default();
        for call in &calls {
            sum += bound.cost(*call, &[ops::SequenceShape { rows: 1, offset }]);
        }
        sum
    };
    Ok(cost(prompt) != cost(prompt + steps.saturating_sub(1)))
}

fn seeded(engine: &mut Engine, study: &Shapes<'_>, stretch: &Stretch) -> Result<Cache, Error> {
    let mut cache = engine.new_cache(study.workload.capacity as usize);
    if stretch.offset > 0 {
        engine.forward(&mut cache, &study.tokens[..stretch.offset], Keep::Last)?;
    }
    Ok(cache)
}

/// Every place of the layer that the operator is called at, and whether each kernel was bound there.
fn places(
    engine: &mut Engine,
    cache: &mut Cache,
    tokens: &[u32],
    stretch: &Stretch,
    kernels: [&'static Kernel; 2],
) -> Result<Vec<Place>, Error> {
    let mut places: Vec<Place> = Vec::new();
    for (which, kernel) in kernels.into_iter().enumerate() {
        engine.prefer(Some(kernel));
        let step = engine.prepare(cache, tokens, stretch.keep)?;
        let (bound, sequences) = (step.bound(), step.step_shape());
        for (index, call) in
            bound.calls().iter().enumerate().filter(|(_, call)| call.kernel.operator == kernel.operator)
        {
            let calls = Calls::Operator { slot: call.slot, operator: kernel.operator };
            let program = bound.program();
            let shape = program.call_shape(&program.calls[index], &sequences);
            let known = places.iter().position(|place| place.calls == calls);
            let place = match known {
                Some(known) => &mut places[known],
                None => {
                    places.push(Place {
                        calls,
                        row: empty_row(stretch, call.slot, &shape, sequences[0]),
                        runs: [Ok(()), Ok(())],
                        samples: [Vec::new(), Vec::new()],
                    });
                    places.last_mut().expect("pushed above")
                }
            };
            if which == 0 {
                let cost = bound.cost(index, &sequences);
                place.row.calls += 1;
                place.row.bytes += cost.bytes_read + cost.bytes_written;
                place.row.flops += cost.flops;
            }
            if !std::ptr::eq(call.kernel, kernel) {
                let why = (kernel.supports)(&shape).err();
                let why = why.unwrap_or_else(|| format!("{} was bound in its place", call.kernel.label()));
                place.runs[which] = Err(format!("{} does not run here: {why}", kernel.label()));
            }
        }
    }
    engine.prefer(None);
    Ok(places)
}

fn empty_row(stretch: &Stretch, slot: &str, shape: &CallShape, sequence: ops::SequenceShape) -> ShapeRow {
    let views = |views: &[ops::ViewShape]| -> Vec<Tensor> {
        let format = |dtype| if dtype == DType::F32 { "f32" } else { "bf16" };
        let tensor = |view: &ops::ViewShape| Tensor {
            rows: view.rows as u64,
            cols: view.width as u64,
            format: format(view.dtype).to_owned(),
        };
        views.iter().map(tensor).collect()
    };
    let weight = |weight: &ops::WeightShape| Tensor {
        rows: weight.rows as u64,
        cols: weight.cols as u64,
        format: weight.format.to_string(),
    };
    let untimed = || Known::unavailable("not timed", "let the study finish");
    ShapeRow {
        phase: stretch.phase,
        slot: slot.to_owned(),
        shape: spelled(shape),
        pass_rows: sequence.rows as u64,
        offset: sequence.offset as u64,
        calls: 0,
        passes: stretch.passes,
        inputs: views(&shape.inputs),
        weights: shape.weights.iter().map(weight).collect(),
        outputs: views(&shape.outputs),
        bytes: 0,
        flops: 0,
        timings: [untimed(), untimed()],
    }
}
