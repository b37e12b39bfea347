//! What a walk relies on in every kernel, beyond the right numbers: [`hold`] tests it on one case, share by share, over fenced
//! memory. Not here: the fences (`guarded.rs`), and the run in the engine's own way (`concrete.rs`).
//!
//! - A kernel touches its operands and nothing beside them, wherever they lie, and writes its outputs alone. Operands are
//!   tried flush with a fence at either end, so that they start at every alignment that elements allow.
//! - Each element of an output is written by one worker only, whatever the number of workers: who writes an element first must
//!   be the same when the workers go in the opposite order.
//! - No share depends on another: any order, and all at once, gives the same bytes.
//! - The same call gives the same bytes again.
//! - What it asks memory for in advance (`ahead`) comes to an end, and touches nothing.
//! - Where the operator works in place, a kernel does; where it need not, a kernel needs not.

use super::caches::{Storage, fetch, store};
use super::concrete::{Concrete, said};
use super::guarded::{Edge, Guarded, POISON};
use super::{Case, CaseOutput, Draw, Outcome, Random, compare};
use crate::bind::Bound;
use crate::operator::{Kernel, Operator};
use crate::step::Step;
use crate::workers::Workers;
use crate::{DType, Features, Invocation};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The tested call's place in the program.
const CALL: usize = 1;

/// Worker counts that every kernel is tried with.
const MOST_WORKERS: usize = 8;

/// More pieces than any worker's share is worth asking for in advance.
const MOST_PIECES: usize = 1 << 16;

/// Shapes that [`hold_on_random_shapes`] tests, and draws that it takes at most to find so many that the kernel supports.
const SHAPES: usize = 8;
const DRAWS: u64 = 400;

/// Tests `kernel` on `case` with operands from `seed`: what this module's text lists, and the numbers.
///
/// # Errors
/// The first thing that does not hold.
pub fn hold(
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
    let mut worst = 0.0f64;
    for case in placements(operator, case) {
        let wide = std::ptr::eq(kernel, operator.kernels()[0]);
        let want = Concrete::new(operator, &case, seed, true).run(operator.kernels()[0], 1)?;
        let concrete = Concrete::new(operator, &case, seed, wide);
        for edge in [Edge::End, Edge::Start] {
            // The start shows accesses before it, for which one split of the work is enough.
            let counts = if edge == Edge::End { 1..=MOST_WORKERS } else { 3..=3 };
            for workers in counts {
                let error = Arrangement::new(&concrete, &case, kernel, workers, edge)
                    .and_then(|mut arrangement| arrangement.test(&want, seed))
                    .map_err(|problem| {
                        format!(
                            "{} {} on {} with {workers} workers: {problem}",
                            operator.name(),
                            kernel.label(),
                            case.label
                        )
                    })?;
                worst = worst.max(error);
            }
        }
    }
    Ok(Outcome::Passed { nmse: worst })
}

/// [`hold`] on shapes that [`Operator::random_case`] draws and the kernel takes, and where it takes few of them, on the smallest
/// of the operator's cases that it takes; how many there were in all (0 only for a kernel that this machine cannot run, or that
/// takes nothing). A failure on a random shape is reported at the smallest size that shows one.
///
/// # Errors
/// What [`hold`] found.
pub fn hold_on_random_shapes(
    operator: &'static dyn Operator,
    kernel: &'static Kernel,
    seed: u64,
) -> Result<usize, String> {
    let mut held = 0;
    for draw in 0..DRAWS {
        let seed = seed * DRAWS + draw;
        match hold(operator, kernel, &operator.random_case(&mut Draw::new(seed, Draw::SIZE)), seed) {
            Ok(Outcome::Passed { .. }) => held += 1,
            Ok(Outcome::Unsupported(_)) => {}
            Ok(Outcome::Skipped(_)) => return Ok(0),
            Err(problem) => return Err(smallest(operator, kernel, seed).unwrap_or(problem)),
        }
        if held == SHAPES {
            return Ok(held);
        }
    }
    let mut cases = operator.cases();
    cases.retain(|case| (kernel.supports)(&case.shape()).is_ok());
    cases.sort_by_key(|case| operator.cost(&case.shape()).flops);
    for case in cases.iter().take(SHAPES - held) {
        hold(operator, kernel, case, seed)?;
        held += 1;
    }
    Ok(held)
}

/// The failure of the smallest draws that fail, searched from size 1 upwards.
fn smallest(operator: &'static dyn Operator, kernel: &'static Kernel, seed: u64) -> Option<String> {
    let sizes = (1..Draw::SIZE).flat_map(|size| (0..12).map(move |draw| (size, draw)));
    sizes
        .map(|(size, draw)| operator.random_case(&mut Draw::new(seed + draw, size)))
        .find_map(|case| hold(operator, kernel, &case, seed).err())
        .map(|problem| format!("{problem} (the smallest of the random shapes that show it)"))
}

/// The case, and the same with outputs that may lie over inputs placed the other way.
fn placements(operator: &'static dyn Operator, case: &Case) -> Vec<Case> {
    let mut cases = vec![case.clone()];
    for (output, input) in operator.in_place() {
        let (over, mut other) = (case.inputs[*input], case.clone());
        other.outputs[*output] = match case.outputs[*output] {
            CaseOutput::InPlace(_) => CaseOutput::Fresh { rows: over.rows, width: over.width, dtype: over.dtype },
            CaseOutput::Fresh { rows, width, dtype } if (rows, width, dtype) == (over.rows, over.width, over.dtype) => {
                CaseOutput::InPlace(*input)
            }
            CaseOutput::Fresh { .. } => continue,
        };
        other.label.push_str(" (placed the other way)");
        if operator.check(&other.shape()).is_ok() {
            cases.push(other);
        }
    }
    cases
}

/// The call bound over fenced memory.
struct Arrangement<'a> {
    concrete: &'a Concrete,
    kernel: &'static Kernel,
    bound: Bound,
    workers: usize,
    /// Inputs in order, each with its element type.
    inputs: Vec<(Guarded, DType)>,
    /// Per output: its own memory, or the number of the input that it lies over.
    outputs: Vec<Result<(Guarded, DType), usize>>,
    weights: Vec<Guarded>,
    scratch: Vec<Guarded>,
    storage: Vec<Storage>,
}

impl<'a> Arrangement<'a> {
    fn new(
        concrete: &'a Concrete,
        case: &Case,
        kernel: &'static Kernel,
        workers: usize,
        edge: Edge,
    ) -> Result<Arrangement<'a>, String> {
        let mut bound = concrete.bind(kernel, workers)?;
        let call = bound.call_mut(CALL);
        let over = |input: usize| case.outputs.iter().any(|o| matches!(o, CaseOutput::InPlace(i) if *i == input));
        let mut inputs = Vec::new();
        for (index, operand) in call.inputs.iter_mut().enumerate() {
            let bytes = operand.rows * operand.width * operand.dtype.bytes();
            let mut memory = Guarded::new(format!("input {index}"), bytes, edge, operand.dtype.bytes());
            for (element, value) in concrete.operands[index].1.iter().enumerate() {
                store(memory.bytes_mut(), operand.dtype, element, *value);
            }
            if !over(index) {
                memory.seal();
            }
            operand.start = memory.start();
            inputs.push((memory, operand.dtype));
        }
        let mut outputs = Vec::new();
        for (index, operand) in call.outputs.iter_mut().enumerate() {
            if let CaseOutput::InPlace(input) = case.outputs[index] {
                operand.start = inputs[input].0.start();
                outputs.push(Err(input));
                continue;
            }
            let bytes = operand.rows * operand.width * operand.dtype.bytes();
            let memory = Guarded::new(format!("output {index}"), bytes, edge, operand.dtype.bytes());
            operand.start = memory.start();
            outputs.push(Ok((memory, operand.dtype)));
        }
        let mut weights = Vec::new();
        for (index, weight) in call.weights.iter_mut().enumerate() {
            // Packed weights are 64-byte aligned: kernels may rely on it.
            let mut memory = Guarded::new(format!("weight {index}"), weight.bytes, edge, 64);
            let packed = concrete.weights.get(&format!("weight {index}")).expect("packed with the case");
            memory.bytes_mut().copy_from_slice(packed.bytes);
            memory.seal();
            weight.start = memory.start();
            weights.push(memory);
        }
        // The call of a program says what scratch the kernel wants; so is each worker's given, no more.
        let scratch = call.scratch;
        let scratch = (0..workers).map(|worker| Guarded::new(format!("worker {worker}'s scratch"), scratch, edge, 64));
        let scratch = scratch.collect();
        let storage = concrete.caches.iter().map(|cache| cache.allocate(edge)).collect();
        Ok(Arrangement { concrete, kernel, bound, workers, inputs, outputs, weights, scratch, storage })
    }

    /// Everything; the largest error.
    fn test(&mut self, want: &[(&str, Vec<f32>)], seed: u64) -> Result<f64, String> {
        let forwards: Vec<usize> = (0..self.workers).collect();
        let backwards: Vec<usize> = forwards.iter().rev().copied().collect();
        let (first_writers, bytes) = self.in_order(&forwards)?;
        let error = compare(&self.results(), want, self.kernel)?;
        let (again, other_bytes) = self.in_order(&backwards)?;
        if let Some(element) = (0..again.len()).find(|element| again[*element] != first_writers[*element]) {
            let (name, at) = self.name_of(element);
            let (one, other) = (first_writers[element], again[element]);
            let who = |worker: Option<usize>| worker.map_or("nobody".to_owned(), |worker| format!("worker {worker}"));
            return Err(format!(
                "workers race: element {at} of {name} is first written by {} if they go in order and by {} if they go \
                 backwards; give each element to one worker (`share`)",
                who(one),
                who(other)
            ));
        }
        let element = |at: usize| self.name_of(self.element_of_byte(at));
        if let Some(at) = (0..bytes.len()).find(|at| bytes[*at] != other_bytes[*at]) {
            let (name, at) = element(at);
            return Err(format!(
                "a share depends on another worker's: element {at} of {name} differs if the workers go backwards; between \
                 the calls of a program there are barriers, within one there are none"
            ));
        }
        if self.workers > 1 {
            let all_at_once = self.all_at_once(seed)?;
            if let Some(at) = (0..bytes.len()).find(|at| bytes[*at] != all_at_once[*at]) {
                let (name, at) = self.name_of(self.element_of_byte(at));
                return Err(format!("workers race: element {at} of {name} differs if they run at the same time"));
            }
        }
        Ok(error)
    }

    /// Runs the shares one after the other; who changed each element first, and the bytes afterwards.
    fn in_order(&mut self, order: &[usize]) -> Result<(Vec<Option<usize>>, Vec<u8>), String> {
        self.reset();
        let mut before = self.image();
        let mut first_writers: Vec<Option<usize>> = self.elements().map(|_| None).collect();
        for worker in order {
            self.concrete
                .with_step(&self.storage, |step| catch_unwind(AssertUnwindSafe(|| self.share(step, *worker))))
                .map_err(|panic| format!("worker {worker} panicked: {}", said(&*panic)))?;
            let now = self.image();
            let mut at = 0;
            for (element, bytes) in self.elements().enumerate() {
                if first_writers[element].is_none() && before[at..at + bytes] != now[at..at + bytes] {
                    first_writers[element] = Some(*worker);
                }
                at += bytes;
            }
            before = now;
            self.intact().map_err(|problem| format!("worker {worker}: {problem}"))?;
        }
        Ok((first_writers, before))
    }

    /// Runs the shares on threads that start one call in turns: the bytes afterwards.
    fn all_at_once(&mut self, seed: u64) -> Result<Vec<u8>, String> {
        self.reset();
        let threads = Workers::new(self.workers, false).map_err(|error| error.to_string())?;
        let mut random = Random::new(seed);
        let delays: Vec<usize> = (0..self.workers).map(|_| random.below(3000)).collect();
        self.concrete
            .with_step(&self.storage, |step| {
                catch_unwind(AssertUnwindSafe(|| {
                    threads.run(&|worker| {
                        for _ in 0..delays[worker] {
                            std::hint::spin_loop();
                        }
                        self.share(step, worker);
                    });
                }))
            })
            .map_err(|panic| format!("a worker panicked: {}", said(&*panic)))?;
        self.intact()?;
        Ok(self.image())
    }

    fn share(&self, step: &Step<'_>, worker: usize) {
        let call = &self.bound.calls()[CALL];
        let scratch = self.scratch[worker].start();
        let invocation =
            Invocation { queue: None, worker, workers: self.workers, step, call, scratch, scratch_bytes: call.scratch };
        if let Some(ahead) = self.kernel.ahead {
            let pieces = (0..MOST_PIECES).take_while(|piece| ahead(&invocation, *piece)).count();
            assert!(pieces < MOST_PIECES, "`ahead` names piece after piece without an end");
        }
        (self.kernel.run)(&invocation);
    }

    /// Everything as before the call.
    fn reset(&mut self) {
        for output in &mut self.outputs {
            match output {
                Ok((memory, _)) => memory.bytes_mut().fill(POISON),
                Err(input) => {
                    let (memory, dtype) = &mut self.inputs[*input];
                    for (element, value) in self.concrete.operands[*input].1.iter().enumerate() {
                        store(memory.bytes_mut(), *dtype, element, *value);
                    }
                }
            }
        }
        for scratch in &mut self.scratch {
            scratch.bytes_mut().fill(POISON);
        }
        for (storage, cache) in self.storage.iter_mut().zip(&self.concrete.caches) {
            cache.refill(storage);
        }
    }

    /// What the call may write: outputs, then caches.
    fn writable(&self) -> impl Iterator<Item = (String, &Guarded, DType)> {
        let outputs = self.outputs.iter().enumerate().map(|(index, output)| {
            let (memory, dtype) = match output {
                Ok(own) => own,
                Err(input) => &self.inputs[*input],
            };
            (format!("output {index}"), memory, *dtype)
        });
        let caches = self.storage.iter().enumerate().flat_map(|(sequence, storage)| {
            storage.writable().map(|(name, memory, dtype)| (format!("{name} of sequence {sequence}"), memory, dtype))
        });
        outputs.chain(caches)
    }

    /// All bytes that the call may write.
    fn image(&self) -> Vec<u8> {
        self.writable().flat_map(|(_, memory, _)| memory.bytes().iter().copied()).collect()
    }

    /// Bytes of each element of the image, in order.
    fn elements(&self) -> impl Iterator<Item = usize> {
        self.writable()
            .flat_map(|(_, memory, dtype)| std::iter::repeat_n(dtype.bytes(), memory.bytes().len() / dtype.bytes()))
    }

    fn element_of_byte(&self, byte: usize) -> usize {
        let ends = self.elements().scan(0, |end, bytes| {
            *end += bytes;
            Some(*end)
        });
        ends.take_while(|end| *end <= byte).count()
    }

    /// An element of the image as its operand and its number there.
    fn name_of(&self, element: usize) -> (String, usize) {
        let mut left = element;
        for (name, memory, dtype) in self.writable() {
            let count = memory.bytes().len() / dtype.bytes();
            if left < count {
                return (name, left);
            }
            left -= count;
        }
        unreachable!("elements are of some operand")
    }

    fn intact(&self) -> Result<(), String> {
        let outputs = self.outputs.iter().filter_map(|output| output.as_ref().ok());
        let operands = self.inputs.iter().chain(outputs).map(|(memory, _)| memory);
        operands.chain(&self.weights).chain(&self.scratch).try_for_each(Guarded::intact)?;
        self.storage.iter().try_for_each(Storage::intact)
    }

    /// As [`Concrete::run`] names them.
    fn results(&self) -> Vec<(&'static str, Vec<f32>)> {
        let numbers = |memory: &Guarded, dtype: DType| {
            (0..memory.bytes().len() / dtype.bytes()).map(|element| fetch(memory.bytes(), dtype, element)).collect()
        };
        let mut results = Vec::new();
        for output in &self.outputs {
            let (memory, dtype) = match output {
                Ok(own) => own,
                Err(input) => &self.inputs[*input],
            };
            results.push(("output", numbers(memory, *dtype)));
        }
        for storage in &self.storage {
            results.push(("cached keys", storage.valid(false)));
            results.push(("cached values", storage.valid(true)));
        }
        results
    }
}
