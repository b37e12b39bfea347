//! What a device's kernels put their work into: launches by name into one stream, each allowed to start before the one before it has
//! ended (kernels wait for their inputs themselves). Products of one input that follow each other without a barrier become one
//! launch, and so does what begins a step of one row. Not here: the kernels, and capturing what is put here as a graph (`graphs.rs`).

use crate::driver::{Driver, Function, LaunchAttribute, Module, OVERLAP, Stream, TensorMap};
use crate::operators::linear::matvec::{Arguments, Cut, Part};
use crate::operators::linear::tiles::Together;
use crate::operators::next_step::NextStep;
use ops::recording::Launch;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Grid, block and bytes of dynamic shared memory.
pub(crate) type Shape = ([u32; 3], [u32; 3], u32);

/// What waits for more that fits in its launch, and the calls that it serves: products of one input, and what begins a step.
enum Pending {
    Matvec(Cut, Arguments, Vec<u32>),
    Matmul(Together, Vec<u32>),
    Begin(NextStep, Vec<u32>),
}

/// One stream of one GPU. Used by one thread at a time.
pub struct Queue {
    pub(crate) driver: Arc<Driver>,
    pub(crate) stream: Stream,
    modules: HashMap<&'static str, Module>,
    /// With the shared memory that their launches may ask for.
    functions: RefCell<HashMap<&'static str, (Function, u32)>>,
    overlap: bool,
    pub(crate) multiprocessors: u32,
    /// The device's copy of the step.
    pub(crate) step: u64,
    /// Zeroed words that kernels count arrivals in and leave zeroed.
    pub(crate) arrivals: u64,
    pending: RefCell<Option<Pending>>,
    /// Where logits will be of which the largest is wanted, and where its key goes.
    largest: Cell<Option<(u64, u64)>>,
    /// Calls that what is put now serves, and what was noted since [`Queue::take_launches`].
    serving: RefCell<Vec<u32>>,
    launches: RefCell<Vec<Launch>>,
    /// Whether launches are noted: it takes an allocation each.
    notes: Cell<bool>,
    error: Cell<Option<io::Error>>,
}

impl Queue {
    pub(crate) fn new(
        driver: &Arc<Driver>,
        modules: HashMap<&'static str, Module>,
        (overlap, multiprocessors): (bool, u32),
        (step, arrivals): (u64, u64),
    ) -> io::Result<Queue> {
        Ok(Queue {
            driver: Arc::clone(driver),
            stream: driver.stream()?,
            modules,
            functions: RefCell::default(),
            overlap,
            multiprocessors,
            step,
            arrivals,
            pending: RefCell::default(),
            largest: Cell::default(),
            serving: RefCell::default(),
            launches: RefCell::default(),
            notes: Cell::new(false),
            error: Cell::default(),
        })
    }

    /// What is put from now on serves this call of the program; none if it is the device's own.
    pub(crate) fn serve(&self, call: Option<usize>) {
        let mut serving = self.serving.borrow_mut();
        serving.clear();
        serving.extend(call.map(|call| call as u32));
    }

    /// Whether what is put from now on is noted.
    pub(crate) fn note(&self, on: bool) {
        self.notes.set(on);
    }

    /// What was put and noted since the last time.
    pub(crate) fn take_launches(&self) -> Vec<Launch> {
        self.launches.take()
    }

    /// Puts one launch of kernel `name` of `file` behind what is there. An error is kept until [`Queue::finish`].
    pub(crate) fn launch<T: Copy>(&self, file: &'static str, name: &'static str, shape: Shape, argument: &T) {
        self.flush();
        self.put(file, name, shape, argument);
    }

    /// The same, in clusters of so many blocks in each dimension; of one block, it is no cluster.
    pub(crate) fn put_clusters<T: Copy>(
        &self,
        file: &'static str,
        name: &'static str,
        shape: Shape,
        cluster: [u32; 3],
        argument: &T,
    ) {
        if cluster == [1; 3] {
            return self.put(file, name, shape, argument);
        }
        self.put_with(file, name, shape, &[OVERLAP, LaunchAttribute::cluster(cluster)], argument);
    }

    /// The same, ahead of what [`Queue::matvec`] and [`Queue::matmul`] held back.
    pub(crate) fn put<T: Copy>(&self, file: &'static str, name: &'static str, shape: Shape, argument: &T) {
        self.put_with(file, name, shape, if self.overlap { &[OVERLAP] } else { &[] }, argument);
    }

    fn put_with<T: Copy>(
        &self,
        file: &'static str,
        name: &'static str,
        shape: Shape,
        attributes: &[LaunchAttribute],
        argument: &T,
    ) {
        if shape.0.contains(&0) {
            return;
        }
        let launched = self
            .function(file, name, shape.2)
            .and_then(|function| self.driver.launch(function, shape, self.stream, attributes, argument));
        if self.notes.get() {
            let calls = self.serving.borrow().clone();
            self.launches.borrow_mut().push(Launch { kernel: name.to_owned(), calls });
        }
        if let Err(error) = launched {
            self.fail(io::Error::new(error.kind(), format!("{name}: {error}")));
        }
    }

    /// Keeps the first error.
    fn fail(&self, error: io::Error) {
        let before = self.error.take();
        self.error.set(Some(before.unwrap_or(error)));
    }

    /// As [`Driver::tensor_map`]; an error is kept until [`Queue::finish`].
    pub(crate) fn tensor_map(&self, start: u64, size: (u32, u32), tile: (u32, u32)) -> Option<TensorMap> {
        self.driver.tensor_map(start, size, tile).map_err(|error| self.fail(error)).ok()
    }

    fn function(&self, file: &'static str, name: &'static str, shared_bytes: u32) -> io::Result<Function> {
        let known = self.functions.borrow().get(name).copied();
        let (function, mut allowed) = match known {
            Some((function, allowed)) if shared_bytes <= allowed => return Ok(function),
            Some(known) => known,
            // Some launches may have without asking, less what their kernel declares itself: each asks.
            None => {
                let module =
                    self.modules.get(file).ok_or_else(|| io::Error::other(format!("no kernel file {file}")))?;
                (self.driver.function(*module, name)?, 0)
            }
        };
        if shared_bytes > allowed {
            self.driver.allow_shared(function, shared_bytes)?;
            allowed = shared_bytes;
        }
        self.functions.borrow_mut().insert(name, (function, allowed));
        Ok(function)
    }

    /// A matrix-vector product, in one launch with those before it if they have the same input and shape.
    pub(crate) fn matvec(&self, cut: Cut, arguments: &Arguments, part: Part) {
        if let Some(Pending::Matvec(known, together, calls)) = &mut *self.pending.borrow_mut()
            && *known == cut
            && together.join(arguments, part, &cut)
        {
            calls.extend(self.serving.borrow().iter());
            return;
        }
        self.flush();
        let mut alone = *arguments;
        alone.join(arguments, part, &cut);
        let calls = self.serving.borrow().clone();
        *self.pending.borrow_mut() = Some(Pending::Matvec(cut, alone, calls));
    }

    /// A product of many rows, in one launch with those before it if they have the same input.
    pub(crate) fn matmul(&self, one: Together) {
        if let Some(Pending::Matmul(together, calls)) = &mut *self.pending.borrow_mut()
            && together.join(&one)
        {
            calls.extend(self.serving.borrow().iter());
            return;
        }
        self.flush();
        let calls = self.serving.borrow().clone();
        *self.pending.borrow_mut() = Some(Pending::Matmul(one, calls));
    }

    /// What begins a step, in one launch with what of it came just before.
    pub(crate) fn begin(&self, one: NextStep) {
        if let Some(Pending::Begin(all, calls)) = &mut *self.pending.borrow_mut()
            && all.join(&one)
        {
            calls.extend(self.serving.borrow().iter());
            return;
        }
        self.flush();
        let calls = self.serving.borrow().clone();
        *self.pending.borrow_mut() = Some(Pending::Begin(one, calls));
    }

    /// Ends a step whose largest column is at `best`, in one launch with what was held back of the beginning of the next.
    pub(crate) fn close(&self, best: u64, result: u64) {
        let mut pending = self.pending.borrow_mut();
        let next = match &mut *pending {
            Some(Pending::Begin(next, _)) => *next,
            _ => NextStep::new(self.step),
        };
        *pending = None;
        drop(pending);
        next.close(best, result, self);
    }

    /// The next launch whose outputs lie at `logits` is to leave the key of the largest at `best`, if it can.
    pub(crate) fn want_largest(&self, logits: u64, best: u64) {
        self.largest.set(Some((logits, best)));
    }

    /// By a launch that can: where the key goes, if it is wanted of the outputs at `y`.
    pub(crate) fn takes_largest(&self, y: u64) -> Option<u64> {
        let (_, best) = self.largest.get().filter(|(logits, _)| *logits == y)?;
        self.largest.set(None);
        Some(best)
    }

    /// Whether no launch has taken it since it was wanted, which it is no longer.
    pub(crate) fn largest_is_missing(&self) -> bool {
        self.largest.take().is_some()
    }

    /// Launches what was held back.
    pub(crate) fn flush(&self) {
        let pending = self.pending.borrow_mut().take();
        let serve = |calls, launch: &dyn Fn()| {
            let now = self.serving.replace(calls);
            launch();
            self.serving.replace(now);
        };
        match pending {
            Some(Pending::Matvec(cut, arguments, calls)) => serve(calls, &|| arguments.launch(self, &cut)),
            Some(Pending::Matmul(together, calls)) => serve(calls, &|| together.launch(self)),
            Some(Pending::Begin(step, calls)) => serve(calls, &|| step.open(self)),
            None => {}
        }
    }

    /// Everything is in the stream.
    ///
    /// # Errors
    /// The first error since the last call.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.flush();
        self.error.take().map_or(Ok(()), Err)
    }
}
