//! The dry list: what a checkpoint's passes would call, bound by name and counted exactly, from shapes alone.
//! Not here: what was really dispatched (`wiring.rs`); nothing is loaded, allocated or run.

use model::{WeightFormats, lower};
use ops::{BindError, CachePolicy, CallShape, Features, Kernel, Program, Registry, Resolved, SequenceShape, choose};
use record::{BoundKernel, LogitsMode, Phase, PlannedCall, PlannedPass, Shape, Unreached, UnreachedKernel, Workload};
use std::collections::BTreeSet;
use weights::Config;

/// What decides which kernel a call gets.
pub struct Binding<'a> {
    pub config: &'a Config,
    pub registry: &'a Registry,
    pub features: Features,
}

/// Rows, context and logits of a pass that reaches a context of `tokens`.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub phase: Phase,
    /// Tokens cached after the pass.
    pub tokens: usize,
    /// Positions that the cache is made for.
    pub capacity: usize,
    pub logits: LogitsMode,
}

impl Pass {
    /// New rows of the pass: all tokens of a prefill, one in a decode step; without a cache always all of them.
    fn rows(&self, cache: CachePolicy) -> usize {
        if self.phase == Phase::Decode && cache != CachePolicy::None { 1 } else { self.tokens }
    }

    fn lower(&self, config: &Config, checkpoint: &Resolved, formats: &WeightFormats) -> Program {
        let rows = self.rows(checkpoint.cache);
        let keep = if self.phase == Phase::Prefill && self.logits == LogitsMode::All { rows } else { 1 };
        lower(config, checkpoint, formats, rows, keep, self.capacity)
    }
}

/// The calls of one pass of `checkpoint`, whose weights are packed in `formats`.
///
/// # Errors
/// A call for which the checkpoint's kernel does not run here.
pub fn planned_pass(
    binding: &Binding<'_>,
    checkpoint: &Resolved,
    formats: &WeightFormats,
    pass: Pass,
    workload: Workload,
) -> Result<PlannedPass, BindError> {
    let program = pass.lower(binding.config, checkpoint, formats);
    let rows = pass.rows(checkpoint.cache);
    let sequences = [SequenceShape { rows, offset: pass.tokens - rows }];
    let call = |call: &ops::Call| -> Result<PlannedCall, BindError> {
        let shape = program.call_shape(call, &sequences);
        let kernel = choose(call, &shape, checkpoint, binding.registry, binding.features)?;
        let cost = call.operator.cost(&shape);
        let (inputs, outputs, weights) = operands(&shape);
        Ok(PlannedCall {
            layer: call.layer.map(|layer| layer as u64),
            slot: call.slot.to_owned(),
            group: call.group.name().to_owned(),
            operator: call.operator.name().to_owned(),
            kernel: kernel.label(),
            source: source(kernel),
            inputs,
            outputs,
            weights,
            bytes_read: cost.bytes_read,
            bytes_written: cost.bytes_written,
            flops: cost.flops,
        })
    };
    let calls = program.calls.iter().map(call).collect::<Result<Vec<_>, _>>()?;
    // Ids and sums are the record's to compute.
    Ok(PlannedPass { workload, workload_id: String::new(), calls, bytes_read: 0, bytes_written: 0, flops: 0 })
}

/// Which kernel each operator of planned passes gets, and how many calls.
pub fn planned_kernels(passes: &[PlannedPass]) -> Vec<BoundKernel> {
    let mut kernels: Vec<BoundKernel> = Vec::new();
    for pass in passes {
        let phase = pass.workload.phase;
        for call in &pass.calls {
            let same = |known: &&mut BoundKernel| {
                (known.phase, &known.operator, &known.kernel) == (phase, &call.operator, &call.kernel)
            };
            match kernels.iter_mut().find(same) {
                Some(known) => known.calls += 1,
                None => kernels.push(BoundKernel {
                    phase,
                    operator: call.operator.clone(),
                    kernel: call.kernel.clone(),
                    calls: 1,
                    source: call.source.clone(),
                }),
            }
        }
    }
    kernels
}

/// Kernels that none of `checkpoints` reaches in any of `passes`, with the reason. A checkpoint that cannot be bound here
/// reaches what it names elsewhere: its calls count for shapes alone.
pub fn unreached(
    binding: &Binding<'_>,
    checkpoints: &[(Resolved, WeightFormats)],
    passes: &[Pass],
) -> Vec<UnreachedKernel> {
    let mut reached: BTreeSet<(&str, String)> = BTreeSet::new();
    let mut shapes: Vec<(&str, CallShape)> = Vec::new();
    for (checkpoint, formats) in checkpoints {
        for pass in passes {
            let program = pass.lower(binding.config, checkpoint, formats);
            for call in &program.calls {
                let shape = program.call_shape(call, &[]);
                let operator = call.operator.name();
                if let Ok(kernel) = choose(call, &shape, checkpoint, binding.registry, binding.features) {
                    reached.insert((operator, kernel.label()));
                }
                if !shapes.iter().any(|(known, other)| *known == operator && *other == shape) {
                    shapes.push((operator, shape));
                }
            }
        }
    }
    let mut found = Vec::new();
    for operator in binding.registry.operators() {
        let kernels: Vec<&'static Kernel> = binding.registry.kernels(*operator).collect();
        for kernel in kernels.iter().filter(|kernel| !reached.contains(&(kernel.operator, kernel.label()))) {
            let missing = kernel.features.missing_from(binding.features);
            let fits =
                |(known, shape): &(&str, CallShape)| *known == kernel.operator && (kernel.supports)(shape).is_ok();
            let other = kernels.iter().find(|k| k.name == kernel.name && reached.contains(&(k.operator, k.label())));
            let (reason, why) = if !missing.is_empty() {
                (Unreached::NoFeature, format!("needs {missing}, which this machine lacks or was told to do without"))
            } else if !shapes.iter().any(fits) {
                (Unreached::NoShape, "no call of this model has a shape and format that it takes".to_owned())
            } else if kernel.name == "reference" {
                (Unreached::Reference, "tests compare with it".to_owned())
            } else if kernel.is_emulation() {
                (Unreached::Emulation, "it plays an instruction in plain memory, for tests".to_owned())
            } else if let Some(other) = other {
                (Unreached::OtherVersion, format!("{} is preferred here", other.label()))
            } else {
                (Unreached::NoCheckpoint, "no checkpoint chooses it for any of these passes; a switch may".to_owned())
            };
            found.push(UnreachedKernel {
                operator: kernel.operator.to_owned(),
                kernel: kernel.label(),
                source: source(kernel),
                reason,
                why,
            });
        }
    }
    found
}

/// A call's inputs, outputs and weights, as records hold them.
pub(crate) fn operands(shape: &CallShape) -> (Vec<Shape>, Vec<Shape>, Vec<Shape>) {
    let one = |rows: usize, cols: usize, form: String| Shape { rows: rows as u64, cols: cols as u64, form };
    let views = |views: &[ops::ViewShape]| {
        views.iter().map(|view| one(view.rows, view.width, format!("{:?}", view.dtype).to_lowercase())).collect()
    };
    let weights = shape.weights.iter().map(|weight| one(weight.rows, weight.cols, weight.format.to_string())).collect();
    (views(&shape.inputs), views(&shape.outputs), weights)
}

/// `file:line` of a kernel.
pub(crate) fn source(kernel: &Kernel) -> String {
    format!("{}:{}", kernel.file, kernel.line)
}
