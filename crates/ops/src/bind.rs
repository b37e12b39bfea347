//! From a program to something that runs: kernels chosen, addresses resolved, the needed barriers found.
//! Not here: lowering and rewriting, the memory plan (`plan.rs`), and running what is bound (`walk.rs`).

#![allow(unsafe_code, reason = "resolved addresses of operands are raw pointers shared by the workers")]

use crate::arena::Arena;
use crate::checkpoint::{Choice, Resolved};
use crate::device::Device;
use crate::features::Features;
use crate::invocation::Invocation;
use crate::operator::{CacheUse, CallShape, Cost, Group, Kernel};
use crate::plan::MemoryPlan;
use crate::program::{Attributes, Call, Program, View};
use crate::registry::Registry;
use crate::step::{SequenceShape, Step};
use crate::verify::VerifyError;
use crate::weight::{WeightFormat, Weights};
use crate::{DType, Matrix, MatrixMut};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// A program bound to kernels, packed weights and memory: what the workers walk.
pub struct Bound {
    program: Program,
    calls: Vec<BoundCall>,
    plan: MemoryPlan,
    activations: Arena,
    scratch: Arena,
    scratch_per_worker: usize,
    workers: usize,
    /// Keeps the addresses in `calls` alive.
    weights: Arc<Weights>,
    /// What a device keeps with the program.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// One call with everything resolved.
pub struct BoundCall {
    pub kernel: &'static Kernel,
    pub layer: Option<usize>,
    pub slot: &'static str,
    pub group: Group,
    /// All workers meet before this call.
    pub barrier_before: bool,
    pub(crate) attributes: Attributes,
    pub(crate) cache_dtype: DType,
    pub(crate) inputs: Vec<Operand>,
    pub(crate) outputs: Vec<Operand>,
    pub(crate) weights: Vec<WeightOperand>,
    pub(crate) scratch: usize,
    pub(crate) dispatches: AtomicU64,
    /// Who waits before this call asks for what that one reads: the first from here on that names something.
    pub(crate) ahead: Option<usize>,
    /// Items that workers have taken of those that belong to none, where the pace is guided.
    pub(crate) taken: Option<AtomicUsize>,
}

#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) start: *mut u8,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) dtype: DType,
}

#[derive(Debug)]
pub(crate) struct WeightOperand {
    pub(crate) start: *const u8,
    pub(crate) bytes: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) format: WeightFormat,
}

// SAFETY: the addresses point into arenas that `Bound` owns (activations) or shares (weights); what workers do with them is
// ordered by the barriers, and a walk borrows the `Bound` exclusively.
unsafe impl Send for BoundCall {}
// SAFETY: as above.
unsafe impl Sync for BoundCall {}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(transparent)]
    Verify(#[from] VerifyError),
    #[error("call {slot} (operator {operator}): weight '{weight}' was not packed")]
    MissingWeight { slot: &'static str, operator: &'static str, weight: String },
    #[error(
        "call {slot} (operator {operator}): weight '{weight}' is ({rows}, {cols}) as {format}, packed as another shape or format"
    )]
    WeightMismatch {
        slot: &'static str,
        operator: &'static str,
        weight: String,
        rows: usize,
        cols: usize,
        format: WeightFormat,
    },
    #[error("call {slot} (operator {operator}): no kernel '{kernel}' exists; known ones are {known}")]
    UnknownKernel { slot: &'static str, operator: &'static str, kernel: String, known: String },
    #[error("call {slot} (operator {operator}): kernel {kernel} cannot run here: {why}")]
    NoKernel { slot: &'static str, operator: &'static str, kernel: String, why: String },
    // The cause is the error's source: whoever prints the chain prints it once.
    #[error("cannot reserve {bytes} bytes for activations; use fewer rows, a shorter context, or free memory")]
    Memory { bytes: usize, source: std::io::Error },
}

/// Binds `program` to the kernels that `checkpoint` chooses, for a walk of `workers` workers on a machine with `features`.
///
/// # Errors
/// An unsound program, a missing weight, or a call for which the checkpoint's kernel does not run on this machine or shape:
/// never a silent substitute.
pub fn bind(
    program: Program,
    checkpoint: &Resolved,
    registry: &Registry,
    weights: &Arc<Weights>,
    features: Features,
    workers: usize,
) -> Result<Bound, BindError> {
    program.verify()?;
    let plan = MemoryPlan::new(&program);
    // Everything lies where the weights do.
    let device = weights.device();
    let activations =
        Arena::on(device, plan.bytes).map_err(|source| BindError::Memory { bytes: plan.bytes, source })?;
    let place = |view: &View| {
        let buffer = program.buffer(view.buffer);
        let offset = plan.offsets[view.buffer.index()] + view.first_row * buffer.width * buffer.dtype.bytes();
        let start = activations.as_mut_ptr().wrapping_add(offset);
        Operand { start, rows: view.rows, width: buffer.width, dtype: buffer.dtype }
    };
    let mut calls = Vec::with_capacity(program.calls.len());
    let mut hazards = Hazards::default();
    for call in &program.calls {
        let shape = program.call_shape(call, &[]);
        let kernel = choose(call, &shape, checkpoint, registry, features)?;
        let weights = call.weights.iter().map(|id| {
            let name = &program.weight(*id).name;
            let packed = weights.locate(name).ok_or_else(|| BindError::MissingWeight {
                slot: call.slot,
                operator: call.operator.name(),
                weight: name.clone(),
            })?;
            let spec = program.weight(*id);
            if (packed.rows, packed.cols, packed.format) != (spec.rows, spec.cols, spec.format) {
                let (slot, operator, weight) = (call.slot, call.operator.name(), name.clone());
                let (rows, cols, format) = (spec.rows, spec.cols, spec.format);
                return Err(BindError::WeightMismatch { slot, operator, weight, rows, cols, format });
            }
            Ok(WeightOperand {
                start: packed.start,
                bytes: packed.bytes,
                rows: packed.rows,
                cols: packed.cols,
                format: packed.format,
            })
        });
        let weights = weights.collect::<Result<Vec<_>, BindError>>()?;
        let inputs: Vec<_> = call.inputs.iter().map(place).collect();
        let outputs: Vec<_> = call.outputs.iter().map(place).collect();
        let cache = call.operator.touches_cache(&call.attributes);
        calls.push(BoundCall {
            kernel,
            layer: call.layer,
            slot: call.slot,
            group: call.group,
            barrier_before: hazards.admit(&inputs, &outputs, call.layer, cache),
            attributes: call.attributes,
            cache_dtype: program.cache_dtype,
            inputs,
            outputs,
            weights,
            scratch: (kernel.scratch)(&shape),
            dispatches: AtomicU64::new(0),
            ahead: None,
            taken: checkpoint.pace.guided.then(AtomicUsize::default),
        });
    }
    // Where no barrier follows, who is done goes on to the next call: only before one is it of use to take from another.
    for index in 0..calls.len() {
        if calls.get(index + 1).is_some_and(|next| !next.barrier_before) {
            calls[index].taken = None;
        }
    }
    if checkpoint.pace.fetch_ahead {
        let mut next = None;
        for (index, call) in calls.iter_mut().enumerate().rev() {
            next = if call.kernel.ahead.is_some() { Some(index) } else { next };
            call.ahead = next;
        }
    }
    let scratch_per_worker = calls.iter().map(|call| call.scratch).max().unwrap_or(0).next_multiple_of(4096);
    let scratch_bytes = scratch_per_worker * workers;
    let scratch =
        Arena::on(device, scratch_bytes).map_err(|source| BindError::Memory { bytes: scratch_bytes, source })?;
    let weights = Arc::clone(weights);
    let kept = OnceLock::new();
    Ok(Bound { program, calls, plan, activations, scratch, scratch_per_worker, workers, weights, kept })
}

/// The kernel that [`bind`] gives a call: the one that the checkpoint names, in the last version in the registry that runs on
/// a machine with `features`. `shape` is the call's ([`Program::call_shape`]; sequences are not looked at), after the
/// checkpoint's rewrites. Nothing is allocated or bound: what a checkpoint would run can be listed without weights.
///
/// Of several choices that fit a call the first one counts whose kernel takes the call's shape in some version; a feature
/// that the machine lacks is never a reason to go on to another choice.
///
/// # Errors
/// [`BindError::UnknownKernel`] for a name that no kernel of the operator has; [`BindError::NoKernel`] if no version of the
/// chosen kernel takes the shape and runs here, with each version's reason.
pub fn choose(
    call: &Call,
    shape: &CallShape,
    checkpoint: &Resolved,
    registry: &Registry,
    features: Features,
) -> Result<&'static Kernel, BindError> {
    let (slot, operator) = (call.slot, call.operator.name());
    let rows = shape.inputs.first().or(shape.outputs.first()).map_or(0, |view| view.rows);
    let packed = shape.weights.first().is_some_and(|weight| weight.format.is_packed());
    let kernels: Vec<_> = registry.kernels(call.operator).collect();
    let fits = |choice: &&Choice| {
        choice.operator == operator
            && choice.rows.contains(&rows)
            && choice.packed.is_none_or(|wanted| wanted == packed)
    };
    let takes_shape = |choice: &&Choice| {
        kernels.iter().any(|kernel| kernel.name == choice.kernel && (kernel.supports)(shape).is_ok())
    };
    let mut choices = checkpoint.kernels.iter().filter(fits);
    let first = choices.clone().next();
    let choice = choices.find(takes_shape).or(first);
    let named = |kernel: &&&'static Kernel| match choice {
        Some(choice) => choice.kernel == kernel.name,
        None => kernel.name != REFERENCE,
    };
    let mut why = Vec::new();
    let mut best = None;
    for kernel in kernels.iter().filter(named) {
        let missing = kernel.features.missing_from(features);
        if !missing.is_empty() {
            why.push(format!("{} needs {missing}", kernel.label()));
        } else if let Err(reason) = (kernel.supports)(shape) {
            why.push(format!("{}: {reason}", kernel.label()));
        } else {
            best = Some(*kernel);
        }
    }
    if let Some(kernel) = best {
        return Ok(kernel);
    }
    let kernel = choice.map_or("(any)", |choice| choice.kernel).to_owned();
    if why.is_empty() {
        let known = kernels.iter().map(|kernel| kernel.label()).collect::<Vec<_>>().join(", ");
        return Err(BindError::UnknownKernel { slot, operator, kernel, known });
    }
    Err(BindError::NoKernel { slot, operator, kernel, why: why.join("; ") })
}

/// Name of every operator's reference kernel; bound only where a checkpoint names it.
pub(crate) const REFERENCE: &str = "reference";

/// What calls since the last barrier have touched. A later call that conflicts with it needs a barrier first.
#[derive(Default)]
struct Hazards {
    read: Vec<Range<usize>>,
    written: Vec<Range<usize>>,
    caches_read: Vec<usize>,
    caches_written: Vec<usize>,
}

impl Hazards {
    /// Notes the call; true if it conflicts with what was noted before, which is then forgotten.
    fn admit(&mut self, inputs: &[Operand], outputs: &[Operand], layer: Option<usize>, cache: CacheUse) -> bool {
        let range = |operand: &Operand| {
            let start = operand.start as usize;
            start..start + operand.rows * operand.width * operand.dtype.bytes()
        };
        let touches = |known: &[Range<usize>], operand: &Operand| {
            let range = range(operand);
            known.iter().any(|other| other.start < range.end && range.start < other.end)
        };
        let layer = layer.unwrap_or(usize::MAX);
        let conflict = inputs.iter().any(|input| touches(&self.written, input))
            || outputs.iter().any(|output| touches(&self.written, output) || touches(&self.read, output))
            || match cache {
                CacheUse::None => false,
                CacheUse::Read => self.caches_written.contains(&layer),
                CacheUse::Write => self.caches_written.contains(&layer) || self.caches_read.contains(&layer),
            };
        if conflict {
            *self = Hazards::default();
        }
        self.read.extend(inputs.iter().map(range));
        self.written.extend(outputs.iter().map(range));
        match cache {
            CacheUse::None => {}
            CacheUse::Read => self.caches_read.push(layer),
            CacheUse::Write => self.caches_written.push(layer),
        }
        conflict
    }
}

impl Bound {
    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn calls(&self) -> &[BoundCall] {
        &self.calls
    }

    /// Workers that it was bound for; a walk needs exactly so many.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Bytes of the activation arena and of all workers' scratch.
    pub fn activation_bytes(&self) -> usize {
        self.activations.len() + self.scratch.len()
    }

    /// The exact cost of a call for a step of these sequences.
    pub fn cost(&self, call: usize, sequences: &[SequenceShape]) -> Cost {
        let call = &self.program.calls[call];
        call.operator.cost(&self.program.call_shape(call, sequences))
    }

    /// The operand at `view`, for seeding inputs before a walk and reading results after one.
    pub fn view(&mut self, view: View) -> MatrixMut<'_> {
        let Matrix { start, rows, width, dtype, lifetime } = self.read(view);
        MatrixMut { start: start.cast_mut(), rows, width, dtype, lifetime }
    }

    /// The program's result after a walk: `(logits rows, vocabulary)`.
    pub fn output(&self) -> Matrix<'_> {
        self.read(self.program.output)
    }

    fn read(&self, view: View) -> Matrix<'_> {
        let buffer = self.program.buffer(view.buffer);
        let offset = self.plan.offsets[view.buffer.index()] + view.first_row * buffer.width * buffer.dtype.bytes();
        let start = self.activations.as_ptr().wrapping_add(offset);
        Matrix { start, rows: view.rows, width: buffer.width, dtype: buffer.dtype, lifetime: PhantomData }
    }

    pub(crate) fn scratch(&self, worker: usize) -> (*mut u8, usize) {
        (self.scratch.as_mut_ptr().wrapping_add(worker * self.scratch_per_worker), self.scratch_per_worker)
    }

    /// How often each call was dispatched since the last reset, in program order: the wiring as it really ran.
    pub fn dispatches(&self) -> impl Iterator<Item = (&BoundCall, u64)> {
        self.calls.iter().map(|call| (call, call.dispatches.load(Relaxed)))
    }

    /// The device that it was bound for; None for the CPU.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.weights.device()
    }

    /// What a device keeps with this program (its captured graphs, say), made at the first call.
    pub fn kept<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        let kept = self.kept.get_or_init(|| Box::new(make()));
        kept.downcast_ref().expect("one device keeps one type")
    }

    /// Runs a device's kernel function for one call: it puts work into `queue`, where the scratch is one call's after another. The
    /// device counts its dispatches ([`Bound::count_dispatch`]).
    pub fn enqueue(&self, call: usize, step: &Step<'_>, queue: &dyn Any) {
        let call = &self.calls[call];
        let (scratch, scratch_bytes) = self.scratch(0);
        let invocation = Invocation { worker: 0, workers: 1, step, call, scratch, scratch_bytes, queue: Some(queue) };
        (call.kernel.run)(&invocation);
    }

    /// Counts a dispatch of a call that a device ran because it was asked to.
    pub fn count_dispatch(&self, call: usize) {
        let dispatches = &self.calls[call].dispatches;
        dispatches.store(dispatches.load(Relaxed) + 1, Relaxed);
    }

    pub fn reset_dispatches(&self) {
        for call in &self.calls {
            call.dispatches.store(0, Relaxed);
        }
    }

    /// Fills activations and scratch with NaN bytes, for tests.
    pub(crate) fn poison(&mut self) {
        self.activations.as_mut_slice().fill(0xff);
        self.scratch.as_mut_slice().fill(0xff);
    }

    /// A call whose operands a test places elsewhere.
    pub(crate) fn call_mut(&mut self, call: usize) -> &mut BoundCall {
        &mut self.calls[call]
    }

    pub(crate) fn activation_arena(&self) -> &Arena {
        &self.activations
    }

    /// Which bytes of the activations a view takes.
    pub(crate) fn range(&self, view: View) -> Range<usize> {
        let matrix = self.read(view);
        let start = matrix.as_ptr() as usize - self.activations.as_ptr() as usize;
        start..start + matrix.rows * matrix.row_bytes()
    }

    pub(crate) fn activation_image(&self) -> Vec<u8> {
        self.activations.as_slice().to_vec()
    }

    /// Checks that no activation byte outside `views` differs from `before`.
    pub(crate) fn unchanged_outside(&self, before: &[u8], views: &[View]) -> Result<(), String> {
        let origin = self.activations.as_ptr() as usize;
        let allowed: Vec<Range<usize>> = views
            .iter()
            .map(|view| {
                let matrix = self.read(*view);
                let start = matrix.as_ptr() as usize - origin;
                start..start + matrix.rows * matrix.row_bytes()
            })
            .collect();
        let now = self.activations.as_slice();
        let stray =
            (0..now.len()).find(|at| now[*at] != before[*at] && !allowed.iter().any(|range| range.contains(at)));
        match stray {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} outside the outputs (at {allowed:?}) was written")),
        }
    }
}
