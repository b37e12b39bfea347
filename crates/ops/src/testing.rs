//! How kernels are tested: a [`Case`] is one call with random operands. [`check`] runs it through the real program, binding
//! and walk, and compares with the operator's reference; [`hold`] holds a kernel to everything else that a walk relies on, on
//! cases and on shapes drawn at random; [`every_kernel_holds`] does both for a list of kernels, which is all that a user's
//! kernel needs. Not here: the cases, which are the operators' own.

mod caches;
mod concrete;
mod contract;
mod draw;
mod guarded;
mod on_device;

use crate::operator::{CallShape, Kernel, Operator, ViewShape, WeightShape};
use crate::operators;
use crate::program::Attributes;
use crate::step::SequenceShape;
use crate::weight::WeightFormat;
use crate::{DType, Features};
use concrete::Concrete;

pub use crate::random::{Random, RandomWeight};
pub use contract::{hold, hold_on_random_shapes};
pub use draw::Draw;
pub use on_device::check_on;

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

    /// The same in a step of one sequence after so many positions, by which a device may give a launch another shape.
    pub fn after(mut self, offset: usize) -> Case {
        self.label += &format!(" after {offset}");
        self.sequences.iter_mut().for_each(|sequence| sequence.offset = offset);
        self
    }

    /// The call's shape, as [`Kernel::supports`] sees it.
    pub fn shape(&self) -> CallShape {
        let view = |input: &CaseBuffer| ViewShape { rows: input.rows, width: input.width, dtype: input.dtype };
        let output = |output: &CaseOutput| match *output {
            CaseOutput::Fresh { rows, width, dtype } => ViewShape { rows, width, dtype },
            CaseOutput::InPlace(input) => view(&self.inputs[input]),
        };
        let weight = |w: &CaseWeight| WeightShape { rows: w.rows, cols: w.cols, format: w.format };
        CallShape {
            inputs: self.inputs.iter().map(view).collect(),
            outputs: self.outputs.iter().map(output).collect(),
            weights: self.weights.iter().map(weight).collect(),
            attributes: self.attributes,
            cache_dtype: self.cache.map_or(DType::BF16, |cache| cache.dtype),
            sequences: self.sequences.clone(),
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
    if let Err(reason) = (kernel.supports)(&case.shape()) {
        return Ok(Outcome::Unsupported(reason));
    }
    let want = Concrete::new(operator, case, seed, true).run(operator.kernels()[0], 1)?;
    // The reference itself must be exactly itself, whatever the number of workers.
    let wide = std::ptr::eq(kernel, operator.kernels()[0]);
    let mut worst = 0.0f64;
    let tested = Concrete::new(operator, case, seed, wide);
    for workers in WORKER_COUNTS {
        let got = tested.run(kernel, workers)?;
        let problem = |problem| {
            format!("{} {} on {} with {workers} workers: {problem}", operator.name(), kernel.label(), case.label)
        };
        worst = worst.max(compare(&got, &want, kernel).map_err(problem)?);
    }
    Ok(Outcome::Passed { nmse: worst })
}

/// Whether two kernels give the same bits on `case`, with operands from `seed` and one worker; or why one of them does not run:
/// the shape, or what this machine lacks.
///
/// # Errors
/// A kernel that fails.
pub fn same_bits(
    operator: &'static dyn Operator,
    kernels: [&'static Kernel; 2],
    case: &Case,
    seed: u64,
) -> Result<Result<bool, String>, String> {
    for kernel in kernels {
        let missing = kernel.features.missing_from(Features::detect());
        if !missing.is_empty() {
            return Ok(Err(format!("this processor has no {missing}")));
        }
        if let Err(reason) = (kernel.supports)(&case.shape()) {
            return Ok(Err(reason));
        }
    }
    let concrete = Concrete::new(operator, case, seed, false);
    let (one, other) = (concrete.run(kernels[0], 1)?, concrete.run(kernels[1], 1)?);
    let bits = |results: &[(&str, Vec<f32>)]| -> Vec<u32> {
        results.iter().flat_map(|(_, values)| values.iter().map(|value| value.to_bits())).collect()
    };
    Ok(Ok(bits(&one) == bits(&other)))
}

/// The largest [`nmse`] over the named results, which must be within the kernel's tolerance.
fn compare(got: &[(&str, Vec<f32>)], want: &[(&str, Vec<f32>)], kernel: &Kernel) -> Result<f64, String> {
    let mut worst = 0.0f64;
    for ((name, got), (_, want)) in got.iter().zip(want) {
        let error = nmse(got, want);
        if error.is_nan() || error > kernel.tolerance.nmse {
            return Err(format!(
                "{name} differs from the reference, NMSE {error:.3e} (tolerance {:.1e}); {}",
                kernel.tolerance.nmse,
                first_difference(got, want),
            ));
        }
        worst = worst.max(error);
    }
    Ok(worst)
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

/// Holds every kernel of the list to its operator's reference on all of the operator's cases ([`check`]), and to everything
/// else on shapes drawn at random ([`hold_on_random_shapes`]). Prints a line per kernel; one whose instructions this machine
/// lacks is skipped, and its line says so.
///
/// # Panics
/// With everything that was found, if anything was.
pub fn every_kernel_holds(kernels: &[&'static Kernel]) {
    let mut failures = Vec::new();
    for kernel in kernels {
        match holds(kernel) {
            Ok(line) => println!("{:<18} {:<28} {line}", kernel.operator, kernel.label()),
            Err(problem) => failures.push(format!("{}:{}: {problem}", kernel.file, kernel.line)),
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn holds(kernel: &'static Kernel) -> Result<String, String> {
    let Some(operator) = operators::ALL.iter().find(|operator| operator.name() == kernel.operator) else {
        let known: Vec<_> = operators::ALL.iter().map(|operator| operator.name()).collect();
        return Err(format!("no operator is called '{}'; known ones are {}", kernel.operator, known.join(", ")));
    };
    let (mut passed, mut worst, mut refusals) = (0, 0.0f64, Vec::new());
    for (index, case) in operator.cases().iter().enumerate() {
        match check(*operator, kernel, case, index as u64)? {
            Outcome::Passed { nmse } => (passed, worst) = (passed + 1, worst.max(nmse)),
            Outcome::Unsupported(why) => refusals.push(format!("{}: {why}", case.label)),
            Outcome::Skipped(missing) => return Ok(format!("skipped: it needs {missing}")),
        }
    }
    if passed == 0 {
        return Err(format!(
            "{} {} takes none of the operator's cases, so nothing was tested; its `supports` says {}",
            kernel.operator,
            kernel.label(),
            refusals.first().map_or("nothing", String::as_str),
        ));
    }
    let random = hold_on_random_shapes(*operator, kernel, 0)?;
    Ok(format!("{passed} cases of {}, worst NMSE {worst:.1e}; {random} random shapes", passed + refusals.len()))
}
