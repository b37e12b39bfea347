//! One case made concrete: a program around the call, random operands, and a run of it in the engine's own way.
//! Not here: what is compared (`../testing.rs`), and runs share by share over fenced memory (`contract.rs`).

use super::caches::{CaseStorage, Storage};
use super::guarded::Edge;
use super::{Case, CaseOutput, Draw, Random, RandomWeight};
use crate::bind::{Bound, bind};
use crate::checkpoint::{CachePolicy, Choice, Resolved, WeightPolicy};
use crate::operator::{CallShape, Cost, Group, Kernel, KernelFn, Operator};
use crate::program::{Attributes, Program, ProgramBuilder, View};
use crate::registry::Registry;
use crate::step::{LayerCache, Sequence, SequenceShape, Step};
use crate::walk::{Plain, run};
use crate::weight::{WeightRequest, Weights};
use crate::workers::Workers;
use crate::{DType, Features, MechanismControls, Pace};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One case with its operands.
pub(super) struct Concrete {
    pub(super) program: Program,
    pub(super) operands: Vec<(View, Vec<f32>)>,
    pub(super) outputs: Vec<View>,
    pub(super) weights: Arc<Weights>,
    pub(super) tokens: Vec<u32>,
    pub(super) sequences: Vec<SequenceShape>,
    pub(super) caches: Vec<CaseStorage>,
}

impl Concrete {
    /// The operands depend on the seed and the case alone. With `wide`, fresh outputs (and in-place operands) are f32, so
    /// that the reference's result is not rounded.
    pub(super) fn new(operator: &'static dyn Operator, case: &Case, seed: u64, wide: bool) -> Concrete {
        let mut random = Random::new(seed);
        let rows = case.sequences.iter().map(|s| s.rows).sum();
        let context = case.sequences.iter().map(|s| s.offset + s.rows).max().unwrap_or(1);
        let cache_dtype = case.cache.map_or(DType::BF16, |cache| cache.dtype);
        let mut builder = ProgramBuilder::new(rows, context, CachePolicy::Bounded, cache_dtype);
        builder.layer(Some(0));
        let in_place = |index: usize| case.outputs.iter().any(|o| matches!(o, CaseOutput::InPlace(i) if *i == index));
        let inputs: Vec<(View, Vec<f32>)> = case
            .inputs
            .iter()
            .enumerate()
            .map(|(index, input)| {
                let dtype = if wide && in_place(index) { DType::F32 } else { input.dtype };
                let view = builder.buffer("input", input.rows, input.width, dtype);
                (view, random.values(input.rows * input.width, input.fill, input.dtype))
            })
            .collect();
        let guard = builder.buffer("guard", 1, 2048, DType::F32);
        let mut given: Vec<View> = inputs.iter().map(|(view, _)| *view).collect();
        given.push(guard);
        builder.call(&GIVEN, "given", &[], &[], &given, Attributes::default());
        let outputs: Vec<View> = case
            .outputs
            .iter()
            .map(|output| match *output {
                CaseOutput::Fresh { rows, width, dtype } => {
                    builder.buffer("output", rows, width, if wide { DType::F32 } else { dtype })
                }
                CaseOutput::InPlace(input) => inputs[input].0,
            })
            .collect();
        let sources: Vec<RandomWeight> =
            case.weights.iter().map(|w| RandomWeight::filled(&mut random, w.rows, w.cols, w.format, w.fill)).collect();
        let ids: Vec<_> = case
            .weights
            .iter()
            .enumerate()
            .map(|(i, w)| builder.weight(&format!("weight {i}"), w.rows, w.cols, w.format))
            .collect();
        let views: Vec<View> = inputs.iter().map(|(view, _)| *view).collect();
        builder.call(operator, "tested", &views, &ids, &outputs, case.attributes);
        given.extend(&outputs);
        let end = builder.buffer("end", 1, 16, DType::F32);
        builder.call(&GIVEN, "kept", &given, &[], &[end], Attributes::default());
        let requests: Vec<_> = sources
            .iter()
            .enumerate()
            .map(|(i, source)| WeightRequest {
                name: format!("weight {i}"),
                format: case.weights[i].format,
                source,
                may_round: true,
            })
            .collect();
        let weights = Weights::pack(&requests, 1, &AtomicBool::new(false)).expect("random weights pack");
        let tokens = (0..rows).map(|_| random.below(case.vocabulary) as u32).collect();
        let caches = case.cache.iter().flat_map(|cache| case.sequences.iter().map(move |s| (cache, s)));
        let caches = caches.map(|(cache, s)| CaseStorage::new(*cache, *s, &mut random)).collect();
        let sequences = case.sequences.clone();
        Concrete {
            program: builder.finish(end),
            operands: inputs,
            outputs,
            weights: Arc::new(weights),
            tokens,
            sequences,
            caches,
        }
    }

    /// The call (number 1 of the program) bound to `kernel`.
    pub(super) fn bind(&self, kernel: &'static Kernel, workers: usize) -> Result<Bound, String> {
        self.bind_with(&self.weights, kernel, workers)
    }

    /// The same with these weights, which may lie elsewhere.
    pub(super) fn bind_with(
        &self,
        weights: &Arc<Weights>,
        kernel: &'static Kernel,
        workers: usize,
    ) -> Result<Bound, String> {
        let choice = Choice { operator: kernel.operator, rows: 0..=usize::MAX, packed: None, kernel: kernel.name };
        let checkpoint = Resolved {
            name: "test",
            cache: CachePolicy::Bounded,
            weights: WeightPolicy::Packed,
            activations: DType::BF16,
            rewrites: Vec::new(),
            kernels: vec![choice],
            pace: Pace::PLAIN,
            controls: MechanismControls::default(),
        };
        let registry = Registry::only(kernel);
        bind(self.program.clone(), &checkpoint, &registry, weights, Features::detect(), workers)
            .map_err(|error| error.to_string())
    }

    /// Gives `body` the step of this case over these caches.
    pub(super) fn with_step<R>(&self, storage: &[Storage], body: impl FnOnce(&Step<'_>) -> R) -> R {
        let layer_caches: Vec<[LayerCache; 1]> = storage.iter().map(|storage| [storage.layer_cache()]).collect();
        let mut first_row = 0;
        let sequences: Vec<Sequence<'_>> = self
            .sequences
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let caches = layer_caches.get(i).map_or(&[][..], |c| &c[..]);
                let sequence = Sequence { first_row, rows: s.rows, offset: s.offset, caches };
                first_row += s.rows;
                sequence
            })
            .collect();
        body(&Step { tokens: &self.tokens, sequences: &sequences })
    }

    /// Named results of running the program with the call bound to `kernel`: outputs, then cache contents.
    pub(super) fn run(&self, kernel: &'static Kernel, workers: usize) -> Result<Vec<(&'static str, Vec<f32>)>, String> {
        let threads = Workers::new(workers, false).map_err(|error| error.to_string())?;
        let mut bound = self.bind(kernel, workers)?;
        bound.poison();
        for (view, values) in &self.operands {
            seed_view(&mut bound, *view, values);
        }
        let before = bound.activation_image();
        let storage: Vec<_> = self.caches.iter().map(|cache| cache.allocate(Edge::End)).collect();
        let problem = |problem| format!("{} with {workers} workers: {problem}", kernel.label());
        self.with_step(&storage, |step| catch_unwind(AssertUnwindSafe(|| run(&mut bound, &threads, step, &Plain))))
            .map_err(|panic| problem(format!("a worker panicked: {}", said(&*panic))))?;
        bound.unchanged_outside(&before, &self.outputs).map_err(problem)?;
        let mut results: Vec<(&'static str, Vec<f32>)> =
            self.outputs.iter().map(|view| ("output", read_view(&mut bound, *view))).collect();
        for storage in &storage {
            storage.intact().map_err(problem)?;
            results.push(("cached keys", storage.valid(false)));
            results.push(("cached values", storage.valid(true)));
        }
        Ok(results)
    }
}

fn seed_view(bound: &mut Bound, view: View, values: &[f32]) {
    let matrix = bound.view(view);
    for (index, value) in values.iter().enumerate() {
        matrix.set(index / matrix.width, index % matrix.width, *value);
    }
}

fn read_view(bound: &mut Bound, view: View) -> Vec<f32> {
    let matrix = bound.view(view);
    (0..matrix.rows * matrix.width).map(|i| matrix.get(i / matrix.width, i % matrix.width)).collect()
}

/// What a panic said.
pub(super) fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "no message",
    }
}

/// Stands for whoever wrote the inputs and reads the outputs: does nothing itself.
struct Given;
static GIVEN: Given = Given;
const GIVEN_RUN: KernelFn = |_| {};
static GIVEN_KERNEL: Kernel = crate::kernel! {
    operator: "given", name: "none", isa: "portable", features: &[],
    nmse: 0.0, because: "does nothing", run: GIVEN_RUN,
};
static GIVEN_KERNELS: &[&Kernel] = &[&GIVEN_KERNEL];

impl Operator for Given {
    fn name(&self) -> &'static str {
        "given"
    }
    fn group(&self) -> Group {
        Group::Pointwise
    }
    fn check(&self, _: &CallShape) -> Result<(), String> {
        Ok(())
    }
    fn cost(&self, _: &CallShape) -> Cost {
        Cost::default()
    }
    fn kernels(&self) -> &'static [&'static Kernel] {
        GIVEN_KERNELS
    }
    fn cases(&self) -> Vec<Case> {
        Vec::new()
    }
    fn random_case(&self, _: &mut Draw) -> Case {
        unreachable!("it is no operator of a model")
    }
}
