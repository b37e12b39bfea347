//! How kernels are tested: a [`Case`] is one call with random operands; [`check`] runs it through the real program, binding
//! and walk, once with the reference and once with the kernel at several worker counts, and compares. Bytes that the call
//! must not write are checked too, and everything it must not read is NaN. Not here: the cases, which are the operators' own.

use crate::bind::{Bound, bind};
use crate::bits::f32_to_bf16;
use crate::checkpoint::{CachePolicy, Choice, Resolved, WeightPolicy};
use crate::operator::{CallShape, Cost, Group, Kernel, KernelFn, Operator};
use crate::program::{Attributes, Program, ProgramBuilder, View};
use crate::registry::Registry;
use crate::step::{LayerCache, PreviousCache, Sequence, SequenceShape, Step};
use crate::walk::{Plain, run};
use crate::weight::{ElementType, WeightFormat, WeightRequest, Weights, half_to_f32};
use crate::workers::Workers;
use crate::{DType, Features, MechanismControls};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use crate::random::{Random, RandomWeight};

/// Worker counts that every kernel is tried with.
const WORKER_COUNTS: [usize; 4] = [1, 2, 3, 5];

/// How an operand's values are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Gaussian with this standard deviation.
    Normal(f32),
    /// Gaussian with deviation 1, one value in a hundred fifty times as large.
    Outliers,
    /// Uniform in a range.
    Uniform(f32, f32),
}

/// An input or output buffer of a case.
#[derive(Clone, Copy, Debug)]
pub struct CaseBuffer {
    pub rows: usize,
    pub width: usize,
    pub dtype: DType,
    pub fill: Fill,
}

/// Where an output goes.
#[derive(Clone, Copy, Debug)]
pub enum CaseOutput {
    Fresh {
        rows: usize,
        width: usize,
        dtype: DType,
    },
    /// Over the input of this number.
    InPlace(usize),
}

/// How a weight's values are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightFill {
    /// Gaussian over the square root of the columns; random codes where the format has codes.
    Random,
    /// Every code is this byte (Int8: its bits), scales and biases are random: the limits of integer sums. Packed formats
    /// only.
    Codes(u8),
    /// Column i of n is `theta^(-i / n)`: inverse rotary frequencies. Dense formats only.
    Frequencies { theta: f32 },
}

#[derive(Clone, Copy, Debug)]
pub struct CaseWeight {
    pub rows: usize,
    pub cols: usize,
    pub format: WeightFormat,
    pub fill: WeightFill,
}

/// The caches that the case's sequences have: random contents up to each offset, NaN beyond.
#[derive(Clone, Copy, Debug)]
pub struct CaseCache {
    pub kv_heads: usize,
    pub head_dim: usize,
    pub dtype: DType,
    /// Capacity beyond what the step needs.
    pub spare: usize,
    /// The storage grows: the filled part is in the previous storage, the current one is all NaN.
    pub grows: bool,
}

/// One call to test.
#[derive(Clone, Debug)]
pub struct Case {
    pub label: String,
    pub inputs: Vec<CaseBuffer>,
    pub outputs: Vec<CaseOutput>,
    pub weights: Vec<CaseWeight>,
    pub attributes: Attributes,
    pub sequences: Vec<SequenceShape>,
    pub cache: Option<CaseCache>,
    /// Token ids are drawn below this.
    pub vocabulary: usize,
}

impl Case {
    /// A case without weights, caches or attributes, over one sequence of as many rows as the first output.
    pub fn new(label: impl Into<String>, inputs: Vec<CaseBuffer>, outputs: Vec<CaseOutput>) -> Case {
        let rows = match outputs[0] {
            CaseOutput::Fresh { rows, .. } => rows,
            CaseOutput::InPlace(input) => inputs[input].rows,
        };
        Case {
            label: label.into(),
            inputs,
            outputs,
            weights: Vec::new(),
            attributes: Attributes::default(),
            sequences: vec![SequenceShape { rows, offset: 0 }],
            cache: None,
            vocabulary: 2,
        }
    }
}

/// Gaussian bf16 input `(rows, width)`.
pub fn bf16(rows: usize, width: usize) -> CaseBuffer {
    CaseBuffer { rows, width, dtype: DType::BF16, fill: Fill::Normal(1.0) }
}

/// Gaussian f32 input `(rows, width)`.
pub fn f32(rows: usize, width: usize) -> CaseBuffer {
    CaseBuffer { rows, width, dtype: DType::F32, fill: Fill::Normal(1.0) }
}

/// Random weight `(rows, cols)`.
pub fn weight(rows: usize, cols: usize, format: WeightFormat) -> CaseWeight {
    CaseWeight { rows, cols, format, fill: WeightFill::Random }
}

/// Fresh output `(rows, width)`.
pub fn out(rows: usize, width: usize, dtype: DType) -> CaseOutput {
    CaseOutput::Fresh { rows, width, dtype }
}

/// What became of testing a kernel on a case.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// Normalised mean squared error against the reference, the largest over outputs, caches and worker counts.
    Passed { nmse: f64 },
    /// The kernel does not take this shape, with its reason.
    Unsupported(String),
    /// The machine lacks these features.
    Skipped(Features),
}

/// Runs `kernel` on `case` with random operands from `seed` and compares with the operator's reference.
///
/// # Errors
/// What differs: an error above the tolerance, a NaN, a write outside the outputs, or results that depend on the worker
/// count where all must agree within the tolerance.
pub fn check(
    operator: &'static dyn Operator,
    kernel: &'static Kernel,
    case: &Case,
    seed: u64,
) -> Result<Outcome, String> {
    let missing = kernel.features.missing_from(Features::detect());
    if !missing.is_empty() {
        return Ok(Outcome::Skipped(missing));
    }
    let mut truth = Bench::new(operator, case, seed, true);
    if let Err(reason) = (kernel.supports)(&truth.case_shape(case)) {
        return Ok(Outcome::Unsupported(reason));
    }
    let want = truth.run(operator.kernels()[0], 1)?;
    // The reference itself must be exactly itself, whatever the number of workers.
    let wide = std::ptr::eq(kernel, operator.kernels()[0]);
    let mut worst = 0.0f64;
    let mut tested = Bench::new(operator, case, seed, wide);
    for workers in WORKER_COUNTS {
        let got = tested.run(kernel, workers)?;
        for (name, got, want) in got.iter().zip(&want).map(|((name, g), (_, w))| (name, g, w)) {
            let error = nmse(got, want);
            if error.is_nan() || error > kernel.tolerance.nmse {
                return Err(format!(
                    "{} {} on {} with {workers} workers: {name} differs from the reference, NMSE {error:.3e} (tolerance {:.1e}); {}",
                    operator.name(),
                    kernel.label(),
                    case.label,
                    kernel.tolerance.nmse,
                    first_difference(got, want),
                ));
            }
            worst = worst.max(error);
        }
    }
    Ok(Outcome::Passed { nmse: worst })
}

/// Σ(got − want)² ÷ Σ want²; NaN if one value is NaN and its counterpart is not. Where both are (elements that the operator
/// leaves unwritten keep their poison), nothing is compared.
pub fn nmse(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (mut error, mut power) = (0.0f64, 0.0f64);
    for (got, want) in got.iter().zip(want) {
        if got.is_nan() && want.is_nan() {
            continue;
        }
        error += (f64::from(*got) - f64::from(*want)).powi(2);
        power += f64::from(*want).powi(2);
    }
    if error == 0.0 { 0.0 } else { error / power.max(f64::MIN_POSITIVE) }
}

fn differs(got: f32, want: f32, by: f32) -> bool {
    got.is_nan() != want.is_nan() || (got - want).abs() > by
}

fn first_difference(got: &[f32], want: &[f32]) -> String {
    let scale = want.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    let worst = (0..got.len()).find(|i| differs(got[*i], want[*i], 0.02 * scale)).unwrap_or(0);
    format!("at element {worst} of {}: got {}, want {}", got.len(), got[worst], want[worst])
}

/// One case made concrete.
struct Bench {
    program: Program,
    operands: Vec<(View, Vec<f32>)>,
    outputs: Vec<View>,
    weights: Arc<Weights>,
    tokens: Vec<u32>,
    sequences: Vec<SequenceShape>,
    caches: Vec<CaseStorage>,
}

struct CaseStorage {
    shape: CaseCache,
    capacity: usize,
    valid: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Bench {
    /// The operands depend on the seed and the case alone. With `wide`, fresh outputs (and in-place operands) are f32, so
    /// that the reference's result is not rounded.
    fn new(operator: &'static dyn Operator, case: &Case, seed: u64, wide: bool) -> Bench {
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
        Bench {
            program: builder.finish(end),
            operands: inputs,
            outputs,
            weights: Arc::new(weights),
            tokens,
            sequences,
            caches,
        }
    }

    /// Shapes with the case's own element types (not widened).
    fn case_shape(&self, case: &Case) -> CallShape {
        let mut shape = self.program.call_shape(&self.program.calls[1], &self.sequences);
        for (view, input) in shape.inputs.iter_mut().zip(&case.inputs) {
            view.dtype = input.dtype;
        }
        for (view, output) in shape.outputs.iter_mut().zip(&case.outputs) {
            view.dtype = match output {
                CaseOutput::Fresh { dtype, .. } => *dtype,
                CaseOutput::InPlace(input) => case.inputs[*input].dtype,
            };
        }
        shape
    }

    /// Named results of running the call bound to `kernel`: outputs, then cache contents.
    fn run(&mut self, kernel: &'static Kernel, workers: usize) -> Result<Vec<(&'static str, Vec<f32>)>, String> {
        let choice = Choice { operator: kernel.operator, rows: 0..=usize::MAX, packed: None, kernel: kernel.name };
        let checkpoint = Resolved {
            name: "test",
            cache: CachePolicy::Bounded,
            weights: WeightPolicy::Packed,
            activations: DType::BF16,
            rewrites: Vec::new(),
            kernels: vec![choice],
            controls: MechanismControls::default(),
        };
        let registry = Registry::only(kernel);
        let threads = Workers::new(workers, false).map_err(|e| e.to_string())?;
        let program = self.program.clone();
        let mut bound = bind(program, &checkpoint, &registry, &self.weights, Features::detect(), workers)
            .map_err(|e| e.to_string())?;
        bound.poison();
        for (view, values) in &self.operands {
            seed_view(&mut bound, *view, values);
        }
        let before = bound.activation_image();
        let mut storage: Vec<_> = self.caches.iter().map(CaseStorage::allocate).collect();
        let layer_caches: Vec<[LayerCache; 1]> = storage.iter_mut().map(|s| [s.layer_cache()]).collect();
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
        let step = Step { tokens: &self.tokens, sequences: &sequences };
        run(&mut bound, &threads, &step, &Plain);
        bound
            .unchanged_outside(&before, &self.outputs)
            .map_err(|problem| format!("{} with {workers} workers: {problem}", kernel.label()))?;
        let mut results: Vec<(&'static str, Vec<f32>)> =
            self.outputs.iter().map(|view| ("output", read_view(&mut bound, *view))).collect();
        for storage in &storage {
            storage.check_guard()?;
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

impl CaseStorage {
    fn new(shape: CaseCache, sequence: SequenceShape, random: &mut Random) -> CaseStorage {
        let valid = sequence.offset + sequence.rows;
        // The whole valid range is random: operators that read the cache find it filled, those that append overwrite it.
        let mut fill = || random.values(shape.kv_heads * valid * shape.head_dim, Fill::Normal(1.0), shape.dtype);
        let (keys, values) = (fill(), fill());
        CaseStorage { shape, capacity: valid + shape.spare, valid, keys, values }
    }

    fn allocate(&self) -> Storage {
        let bytes = self.shape.kv_heads * self.capacity * self.shape.head_dim * self.shape.dtype.bytes();
        let guarded = |numbers: &[f32]| {
            let mut blocks = [vec![0xffu8; bytes + 2 * GUARD], vec![0xffu8; bytes + 2 * GUARD]];
            for (index, value) in numbers.iter().enumerate() {
                let (row, d) = (index / self.shape.head_dim, index % self.shape.head_dim);
                let (head, position) = (row / self.valid, row % self.valid);
                // The previous storage has another capacity than the current one, as it has in a model.
                let capacity = if self.shape.grows { self.valid } else { self.capacity };
                let element = (head * capacity + position) * self.shape.head_dim + d;
                store(&mut blocks[usize::from(self.shape.grows)][GUARD..], self.shape.dtype, element, *value);
            }
            blocks
        };
        let ([keys, old_keys], [values, old_values]) = (guarded(&self.keys), guarded(&self.values));
        Storage { shape: self.shape, capacity: self.capacity, filled: self.valid, keys, values, old_keys, old_values }
    }
}

const GUARD: usize = 256;

fn store(bytes: &mut [u8], dtype: DType, element: usize, value: f32) {
    match dtype {
        DType::F32 => bytes[element * 4..][..4].copy_from_slice(&value.to_le_bytes()),
        DType::BF16 => bytes[element * 2..][..2].copy_from_slice(&f32_to_bf16(value).to_le_bytes()),
    }
}

struct Storage {
    shape: CaseCache,
    capacity: usize,
    filled: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
    old_keys: Vec<u8>,
    old_values: Vec<u8>,
}

impl Storage {
    fn layer_cache(&mut self) -> LayerCache {
        let previous = self.shape.grows.then(|| PreviousCache {
            keys: self.old_keys[GUARD..].as_ptr(),
            values: self.old_values[GUARD..].as_ptr(),
            capacity: self.filled,
        });
        let (keys, values) = (self.keys[GUARD..].as_mut_ptr(), self.values[GUARD..].as_mut_ptr());
        LayerCache { keys, values, capacity: self.capacity, previous }
    }

    /// The filled positions, (kv_heads, filled, head_dim); what a growing cache has not copied yet reads as -1.
    fn valid(&self, values: bool) -> Vec<f32> {
        let bytes = &if values { &self.values } else { &self.keys }[GUARD..];
        let CaseCache { kv_heads, head_dim, dtype, .. } = self.shape;
        let mut numbers = Vec::with_capacity(kv_heads * self.filled * head_dim);
        for head in 0..kv_heads {
            for index in 0..self.filled * head_dim {
                let at = (head * self.capacity * head_dim + index) * dtype.bytes();
                let number = match dtype {
                    DType::F32 => f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")),
                    DType::BF16 => half_to_f32(ElementType::BF16, u16::from_le_bytes([bytes[at], bytes[at + 1]])),
                };
                numbers.push(if self.shape.grows && number.is_nan() { -1.0 } else { number });
            }
        }
        numbers
    }

    /// Nothing was written outside the storage or into its unfilled tail.
    fn check_guard(&self) -> Result<(), String> {
        let CaseCache { kv_heads, head_dim, dtype, .. } = self.shape;
        let head_bytes = self.capacity * head_dim * dtype.bytes();
        let filled_bytes = self.filled * head_dim * dtype.bytes();
        for (name, bytes) in [("keys", &self.keys), ("values", &self.values)] {
            for (at, byte) in bytes.iter().enumerate() {
                let inside =
                    (GUARD..GUARD + kv_heads * head_bytes).contains(&at) && (at - GUARD) % head_bytes < filled_bytes;
                if !inside && *byte != 0xff {
                    return Err(format!("cached {name}: byte {at} outside the filled positions was written"));
                }
            }
        }
        Ok(())
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
}
