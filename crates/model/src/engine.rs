//! A loaded model: packed weights, workers, and the bound programs of recent step shapes.
//! Not here: choosing tokens (`sampler.rs`, `generate.rs`), storage of keys and values (`cache.rs`), kernels (`ops`).

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::load::{self, LoadOptions};
use crate::lower::{WeightFormats, lower};
use ops::{
    Bound, CachePolicy, DType, Device, Kernel, Matrix, Observer, Plain, Resolved, Sequence, SequenceShape, Step, Until,
    Weights, Workers,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use weights::{Config, ModelFiles};

/// Bound programs kept: decode, and the chunks of a prompt of some thousand tokens.
const PROGRAMS: usize = 8;
/// Steps of at most so many rows share one program per capacity; longer ones get one sized to the context they reach.
const SHORT_ROWS: usize = 8;
const CONTEXT_STEP: usize = 256;

/// Which rows of a step get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The last one.
    Last,
    /// Of the last one only its largest ([`Logits::argmax`]), whose id the caller means to feed next: a device may begin that step
    /// before it is asked for.
    Next,
    All,
    LastRows(usize),
}

/// One pass of a longer run of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Which of the tokens.
    pub rows: Range<usize>,
    /// Of those.
    pub keep: Keep,
}

/// A model ready to run under one checkpoint.
pub struct Engine {
    config: Config,
    checkpoint: Resolved,
    options: LoadOptions,
    preferred: Option<&'static Kernel>,
    weights: Arc<Weights>,
    formats: WeightFormats,
    notes: Vec<String>,
    workers: Workers,
    /// Most recently used last.
    programs: Vec<Slot>,
    /// What programs that are no longer kept had dispatched.
    spent: Vec<Dispatches>,
    step_tokens: Vec<u32>,
}

struct Slot {
    shape: Shape,
    bound: Bound,
    /// The kernel that was preferred when it was bound.
    preferred: Option<&'static Kernel>,
    /// Committed steps since the counters were reset.
    passes: u64,
}

/// What the steps of one row count dispatched since the counters were reset: the wiring as it really ran.
#[derive(Clone, Debug)]
pub struct Dispatches {
    pub rows: usize,
    /// Committed steps.
    pub passes: u64,
    /// One per call of the program, in its order.
    pub calls: Vec<CallDispatches>,
}

/// How often one call of a program was dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDispatches {
    pub layer: Option<usize>,
    pub slot: &'static str,
    /// `operator: kernel/instructions`.
    pub kernel: String,
    pub count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    rows: usize,
    keep: usize,
    context: usize,
}

impl Engine {
    /// Packs the weights of `files` for `options.checkpoint` and starts the workers.
    ///
    /// # Errors
    /// Files that do not hold what the configuration needs, values that the checkpoint's formats cannot hold, switches that
    /// the checkpoint cannot follow, memory, or cancellation.
    pub fn load(files: &ModelFiles, options: LoadOptions) -> Result<Engine> {
        let checkpoint = options.checkpoint.resolve(options.controls).map_err(Error::Checkpoint)?;
        if options.prefill_chunk == 0 {
            return Err(Error::Option { what: "prefill chunk", expected: "at least 1", found: "0".into() });
        }
        let mut options = options;
        let loaded = load::load(files, &checkpoint, &options)?;
        let mut threads = options.threads.max(1);
        if let Some(device) = &options.device {
            // One thread walks the program and enqueues.
            threads = 1;
            options.threads = 1;
            options.registry = options.registry.on_device(device.kernels());
        }
        let workers = Workers::new(threads, options.pin).map_err(|source| Error::Threads { threads, source })?;
        Ok(Engine {
            config: files.config().clone(),
            checkpoint,
            preferred: None,
            weights: loaded.weights,
            formats: loaded.formats,
            notes: loaded.notes,
            workers,
            programs: Vec::with_capacity(PROGRAMS + 1),
            spent: Vec::new(),
            step_tokens: Vec::with_capacity(options.prefill_chunk),
            options,
        })
    }

    /// The model's dimensions and special tokens, as its files say.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The checkpoint with its switches applied.
    pub fn checkpoint(&self) -> &Resolved {
        &self.checkpoint
    }

    /// What it was loaded with.
    pub fn options(&self) -> &LoadOptions {
        &self.options
    }

    /// How the weights are held and what was converted: sentences for the first line of output and for records.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Bytes of packed weights.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// An empty cache for a request of at most `capacity` tokens (prompt plus new ones).
    pub fn new_cache(&self, capacity: usize) -> Cache {
        let Config { layers, kv_heads, head_dim, .. } = self.config;
        let shape = (layers, kv_heads, head_dim);
        Cache::new(self.checkpoint.cache, shape, self.checkpoint.activations, capacity).on(self.options.device.as_ref())
    }

    /// Runs `tokens` after what `cache` holds, in chunks, and returns the logits of the rows that `keep` names.
    ///
    /// With [`Keep::All`] or [`Keep::LastRows`] the kept rows must lie in one chunk.
    ///
    /// # Errors
    /// No tokens, an id outside the vocabulary, more tokens than the cache or the model's positions allow (nothing has
    /// changed then), or interruption (the chunks before it are cached).
    pub fn forward(&mut self, cache: &mut Cache, tokens: &[u32], keep: Keep) -> Result<Logits<'_>> {
        let mut passes = self.passes(cache, tokens, keep)?;
        let cancelled = Arc::clone(&self.options.cancelled);
        // The kept rows are the last pass's.
        let last = passes.next_back().expect("there is at least one token");
        for pass in passes {
            let mut step = self.prepare(cache, &tokens[pass.rows], pass.keep)?;
            step.run(&Until(&cancelled))?;
            if cancelled.load(Relaxed) {
                return Err(Error::Interrupted);
            }
            step.commit();
        }
        let mut step = self.prepare(cache, &tokens[last.rows], last.keep)?;
        step.run(&Until(&cancelled))?;
        if cancelled.load(Relaxed) {
            return Err(Error::Interrupted);
        }
        Ok(step.commit())
    }

    /// The passes in which [`Engine::forward`] runs `tokens`: for who prepares, observes and commits each by itself.
    ///
    /// # Errors
    /// As for [`Engine::forward`], before anything has changed.
    pub fn passes(
        &self,
        cache: &Cache,
        tokens: &[u32],
        keep: Keep,
    ) -> Result<impl DoubleEndedIterator<Item = Pass> + use<>> {
        let kept = kept_rows(keep, tokens.len())?;
        self.check_tokens(cache, tokens)?;
        let count = tokens.len();
        let chunk = if cache.policy() == CachePolicy::None { count } else { self.options.prefill_chunk.max(kept) };
        // The last pass ends the prompt and holds every kept row.
        let last = (count.saturating_sub(1) / chunk * chunk).min(count - kept);
        let before = (0..last.div_ceil(chunk))
            .map(move |pass| Pass { rows: pass * chunk..((pass + 1) * chunk).min(last), keep: Keep::Last });
        let keep = if keep == Keep::Next { keep } else { Keep::LastRows(kept) };
        Ok(before.chain(std::iter::once(Pass { rows: last..count, keep })))
    }

    /// Makes one pass over `tokens` ready, unchunked. It can be run any number of times, under any observer, before it is
    /// committed; dropped instead, the cache stays as it was.
    ///
    /// # Errors
    /// As for [`Engine::forward`].
    pub fn prepare<'e, 'c>(&'e mut self, cache: &'c mut Cache, tokens: &[u32], keep: Keep) -> Result<Prepared<'e, 'c>> {
        let kept = kept_rows(keep, tokens.len())?;
        self.check_tokens(cache, tokens)?;
        cache.begin(tokens)?;
        self.step_tokens.clear();
        let (offset, run) = match cache.policy() {
            CachePolicy::None => (0, cache.tokens()),
            _ => (cache.offset(), tokens),
        };
        self.step_tokens.extend_from_slice(run);
        let rows = self.step_tokens.len();
        let context = context_for(rows, offset + rows, cache.capacity());
        self.bind(Shape { rows, keep: kept, context })?;
        Ok(Prepared { engine: self, cache, offset, keep })
    }

    /// One token for each of several requests, in one pass over the weights. Row i of the logits is request i's.
    ///
    /// # Errors
    /// A token per cache is needed; otherwise as for [`Engine::forward`].
    pub fn decode_batch(&mut self, caches: &mut [&mut Cache], tokens: &[u32]) -> Result<Logits<'_>> {
        if caches.len() != tokens.len() || tokens.is_empty() {
            return Err(Error::Batch { tokens: tokens.len(), caches: caches.len() });
        }
        for (cache, token) in caches.iter_mut().zip(tokens) {
            if cache.policy() == CachePolicy::None {
                return Err(Error::BatchWithoutCache(self.checkpoint.name));
            }
            self.check_tokens(cache, &[*token])?;
            cache.begin(&[*token])?;
        }
        let context = caches.iter().map(|cache| cache.capacity()).max().unwrap_or(1);
        let rows = tokens.len();
        self.bind(Shape { rows, keep: rows, context })?;
        let sequences: Vec<Sequence<'_>> = caches
            .iter()
            .enumerate()
            .map(|(row, cache)| Sequence { first_row: row, rows: 1, offset: cache.offset(), caches: cache.layers() })
            .collect();
        let slot = self.programs.last_mut().expect("bound above");
        slot.passes += 1;
        walk(&mut slot.bound, &self.workers, &Step { tokens, sequences: &sequences }, &Plain, false)?;
        drop(sequences);
        for cache in caches {
            cache.commit();
        }
        Ok(Logits { bound: &slot.bound, largest_only: false })
    }

    /// The bound program of a step of `rows` tokens that brings the cached length to at most `context`: what would run.
    ///
    /// # Errors
    /// A call whose kernel does not run here, or memory.
    pub fn kernels(&mut self, rows: usize, keep: Keep, context: usize) -> Result<&Bound> {
        let keep = kept_rows(keep, rows)?;
        self.bind(Shape { rows, keep, context })
    }

    /// From now on, calls whose shape `kernel` takes are bound to it in place of what the checkpoint chooses; `None` ends that.
    /// Bound programs are kept, so that going back and forth between two kernels binds each once.
    pub fn prefer(&mut self, kernel: Option<&'static Kernel>) {
        self.preferred = kernel;
    }

    /// What was dispatched since [`Engine::reset_dispatches`], by row count; steps that were run and not committed count as
    /// dispatches without a pass.
    pub fn dispatches(&self) -> Vec<Dispatches> {
        let mut all = self.spent.clone();
        for slot in &self.programs {
            add(&mut all, slot);
        }
        all
    }

    /// Sets every dispatch counter to zero.
    pub fn reset_dispatches(&mut self) {
        self.spent.clear();
        for slot in &mut self.programs {
            slot.passes = 0;
            slot.bound.reset_dispatches();
        }
    }

    fn check_tokens(&self, cache: &Cache, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let vocabulary = self.config.vocab_size;
        if let Some(position) = tokens.iter().position(|id| *id as usize >= vocabulary) {
            return Err(Error::TokenRange { id: tokens[position], position, vocabulary });
        }
        let end = cache.offset() + tokens.len();
        if end > cache.capacity() {
            return Err(Error::CapacityExceeded { capacity: cache.capacity(), rows: tokens.len(), end });
        }
        let limit = self.config.max_positions;
        if end > limit {
            return Err(Error::ContextLimit { wanted: end, limit });
        }
        Ok(())
    }

    /// Makes the program of this shape the last of `programs`.
    fn bind(&mut self, shape: Shape) -> Result<&Bound> {
        let preferred = self.preferred;
        let same = |slot: &Slot| {
            slot.shape == shape
                && match (slot.preferred, preferred) {
                    (Some(one), Some(other)) => std::ptr::eq(one, other),
                    (one, other) => one.is_none() && other.is_none(),
                }
        };
        if let Some(index) = self.programs.iter().position(same) {
            let found = self.programs.remove(index);
            self.programs.push(found);
        } else {
            if self.programs.len() == PROGRAMS {
                let slot = self.programs.remove(0);
                add(&mut self.spent, &slot);
            }
            let Shape { rows, keep, context } = shape;
            let program = lower(&self.config, &self.checkpoint, &self.formats, rows, keep, context);
            let LoadOptions { registry, features, .. } = &self.options;
            let workers = self.workers.count();
            let bound = match preferred {
                None => ops::bind(program, &self.checkpoint, registry, &self.weights, *features, workers)?,
                Some(kernel) => {
                    let checkpoint = self.checkpoint.preferring(kernel.operator, kernel.name);
                    let registry = registry.preferring(kernel);
                    ops::bind(program, &checkpoint, &registry, &self.weights, *features, workers)?
                }
            };
            self.programs.push(Slot { shape, bound, preferred, passes: 0 });
        }
        Ok(&self.programs.last().expect("pushed above").bound)
    }
}

/// Runs a bound program where its weights are; with `ahead` as [`ops::Device::run`] says.
fn walk<O: Observer>(bound: &mut Bound, workers: &Workers, step: &Step<'_>, observer: &O, ahead: bool) -> Result<()> {
    let Some(device) = bound.device() else {
        ops::run(bound, workers, step, observer);
        return Ok(());
    };
    if !observer.goes_on() {
        return Ok(());
    }
    let run = device.run(bound, step, &|call| observer.wants(call), ahead);
    run.map_err(of_device(device))
}

/// A device's error, with whose it is.
fn of_device(device: &Arc<dyn Device>) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Device { label: device.label(), source }
}

/// Adds what a program dispatched to the entry of its row count and calls.
fn add(all: &mut Vec<Dispatches>, slot: &Slot) {
    let calls: Vec<CallDispatches> = slot
        .bound
        .dispatches()
        .map(|(call, count)| CallDispatches {
            layer: call.layer,
            slot: call.slot,
            kernel: format!("{}: {}", call.kernel.operator, call.kernel.label()),
            count,
        })
        .collect();
    if calls.iter().all(|call| call.count == 0) {
        return;
    }
    let same = |known: &&mut Dispatches| {
        known.rows == slot.shape.rows
            && known.calls.len() == calls.len()
            && known.calls.iter().zip(&calls).all(|(a, b)| (a.layer, a.slot, &a.kernel) == (b.layer, b.slot, &b.kernel))
    };
    match all.iter_mut().find(same) {
        Some(known) => {
            known.passes += slot.passes;
            known.calls.iter_mut().zip(&calls).for_each(|(known, call)| known.count += call.count);
        }
        None => all.push(Dispatches { rows: slot.shape.rows, passes: slot.passes, calls }),
    }
}

fn kept_rows(keep: Keep, rows: usize) -> Result<usize> {
    let kept = match keep {
        Keep::Last | Keep::Next => 1.min(rows),
        Keep::All => rows,
        Keep::LastRows(wanted) => wanted,
    };
    if rows > 0 && (kept == 0 || kept > rows) {
        return Err(Error::Keep { wanted: kept, rows });
    }
    Ok(kept)
}

/// The context that a program's buffers are sized for: the whole capacity for short steps, so that decode keeps one
/// program; what a long step reaches, rounded up, so that its score matrix is not sized for tokens that come later.
fn context_for(rows: usize, end: usize, capacity: usize) -> usize {
    if rows <= SHORT_ROWS { capacity } else { end.next_multiple_of(CONTEXT_STEP).min(capacity) }
}

/// A step that is ready to run. See [`Engine::prepare`].
pub struct Prepared<'e, 'c> {
    engine: &'e mut Engine,
    cache: &'c mut Cache,
    offset: usize,
    keep: Keep,
}

impl<'e> Prepared<'e, '_> {
    /// Runs the whole step once (or what the observer wants of it). On a device the observer is asked what it wants and told
    /// nothing: who runs when is the device's to say.
    ///
    /// # Errors
    /// The device's; the CPU has none.
    pub fn run<O: Observer>(&mut self, observer: &O) -> Result<()> {
        let Engine { programs, workers, step_tokens, config, .. } = &mut *self.engine;
        let bound = &mut programs.last_mut().expect("prepare bound it").bound;
        let (rows, offset) = (step_tokens.len(), self.offset);
        let sequences = [Sequence { first_row: 0, rows, offset, caches: self.cache.layers() }];
        let room = offset + rows < self.cache.capacity().min(config.max_positions);
        let ahead = self.keep == Keep::Next && self.cache.policy() == CachePolicy::Bounded && room;
        walk(bound, workers, &Step { tokens: step_tokens, sequences: &sequences }, observer, ahead)
    }

    /// What runs.
    pub fn bound(&self) -> &Bound {
        &self.engine.programs.last().expect("prepare bound it").bound
    }

    /// The step's shape, for costs.
    pub fn step_shape(&self) -> Vec<SequenceShape> {
        vec![SequenceShape { rows: self.engine.step_tokens.len(), offset: self.offset }]
    }

    /// Makes the step's tokens part of the cache and hands out its logits.
    pub fn commit(self) -> Logits<'e> {
        self.cache.commit();
        let slot = self.engine.programs.last_mut().expect("prepare bound it");
        slot.passes += 1;
        Logits { bound: &slot.bound, largest_only: self.keep == Keep::Next }
    }
}

/// The logits of a step, `(rows, vocabulary)`, valid until the next one.
pub struct Logits<'a> {
    bound: &'a Bound,
    /// The step was run with [`Keep::Next`].
    largest_only: bool,
}

impl Logits<'_> {
    fn matrix(&self) -> Matrix<'_> {
        self.bound.output()
    }

    /// Rows that got logits: as many as [`Keep`] named, or one per request of a batch.
    pub fn rows(&self) -> usize {
        self.matrix().rows
    }

    /// Logits per row, one per token id.
    pub fn vocabulary(&self) -> usize {
        self.matrix().width
    }

    /// Copies a row, as f32, into `out`.
    ///
    /// # Errors
    /// The step was run with [`Keep::Next`]; a device that ran it can no longer be read.
    ///
    /// # Panics
    /// No such row.
    pub fn row(&self, row: usize, out: &mut Vec<f32>) -> Result<()> {
        if self.largest_only {
            return Err(Error::LargestOnly);
        }
        let matrix = self.matrix();
        out.clear();
        if let Some(device) = self.bound.device() {
            assert!(row < matrix.rows, "row {row} of {}", matrix.rows);
            let mut bytes = vec![0; matrix.row_bytes()];
            let start = matrix.as_ptr().wrapping_add(row * bytes.len());
            device.download(start, &mut bytes).map_err(of_device(device))?;
            match matrix.dtype {
                DType::F32 => out.extend(bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x))),
                DType::BF16 => {
                    out.extend(bytes.as_chunks().0.iter().map(|x| ops::bf16_to_f32(u16::from_le_bytes(*x))));
                }
            }
            return Ok(());
        }
        match matrix.dtype {
            DType::F32 => out.extend_from_slice(matrix.f32(row)),
            DType::BF16 => out.extend(matrix.bf16(row).iter().map(|bits| ops::bf16_to_f32(*bits))),
        }
        Ok(())
    }

    /// The lowest token id with the largest logit of a row. The CPU's logits are not looked at further: whether they are finite
    /// is to be asked of [`Logits::row`].
    ///
    /// # Errors
    /// A device that ran the step can no longer be read, or says that the logits are not finite.
    ///
    /// # Panics
    /// No such row.
    pub fn argmax(&self, row: usize) -> Result<u32> {
        let matrix = self.matrix();
        assert!(row < matrix.rows, "row {row} of {}", matrix.rows);
        if let Some(device) = self.bound.device() {
            return device.argmax(self.bound, &matrix, row).map_err(|source| match source.kind() {
                std::io::ErrorKind::InvalidData => Error::Logits,
                _ => of_device(device)(source),
            });
        }
        Ok(match matrix.dtype {
            DType::F32 => first_max(matrix.f32(row), |value| value),
            // Sign and magnitude to two's complement: order-preserving, and compared sixteen bits at a time.
            DType::BF16 => first_max(matrix.bf16(row), |bits| {
                let bits = bits as i16;
                bits ^ ((bits >> 15) & 0x7fff)
            }),
        })
    }
}

/// Values whose largest is looked for at a time: few enough that the block in which the search ends is soon scanned.
const BLOCK: usize = 2048;

/// Index of the first largest value. One pass over all values, which compilers vectorise, finds the first block that holds the
/// largest; only that block is searched for its place.
fn first_max<T: Copy, K: Copy + PartialOrd>(values: &[T], key: impl Fn(T) -> K) -> u32 {
    let largest = |block: &[T]| {
        let first = key(block[0]);
        block.iter().fold(first, |best, value| {
            let value = key(*value);
            if value > best { value } else { best }
        })
    };
    let (mut best, mut best_block) = (largest(&values[..BLOCK.min(values.len())]), 0);
    for (index, block) in values.chunks(BLOCK).enumerate().skip(1) {
        let here = largest(block);
        if here > best {
            (best, best_block) = (here, index);
        }
    }
    let start = best_block * BLOCK;
    let place = values[start..].iter().position(|value| key(*value) == best).unwrap_or(0);
    (start + place) as u32
}

#[cfg(test)]
mod tests {
    use super::first_max;

    #[test]
    fn the_first_of_equal_largest_values_wins_wherever_blocks_end() {
        for length in [1, 2, 2047, 2048, 2049, 4096, 5000] {
            let mut values: Vec<i16> = (0..length).map(|at| (at * 7919 % 1000) as i16 - 2000).collect();
            for place in [0, length / 3, length / 2, length - 1] {
                let kept = values[place as usize];
                values[place as usize] = 7;
                assert_eq!(first_max(&values, |value| value), place as u32, "{place} of {length}");
                let last = values[length as usize - 1];
                values[length as usize - 1] = 7;
                assert_eq!(first_max(&values, |value| value), place as u32, "{place} of {length}, and the last");
                values[length as usize - 1] = last;
                values[place as usize] = kept;
            }
        }
    }
}
