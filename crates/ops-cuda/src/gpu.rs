//! One NVIDIA GPU as a device of `ops`: memory, weights in its layouts, and running bound programs, launch by launch or as a graph.
//! Not here: kernels and their launches (`operators/`), compiling (`compiler.rs`), and what a run uses (`running.rs`).

#![allow(unsafe_code, reason = "handles that cross threads")]

use crate::ahead::{Ahead, Overwritten, Put, What, after};
use crate::ceilings::Bench;
use crate::cupti::cupti;
use crate::driver::{CACHE_BYTES, CAPABILITY_MAJOR, CAPABILITY_MINOR, Context, Driver, GraphExec, MULTIPROCESSORS};
use crate::graphs::{Captured, Fed, Graphs, Key, Next};
use crate::images::images;
use crate::layout::{DeviceWeight, FRAGMENTS, PLAIN_BF16, describe, layout};
use crate::memory::Memory;
use crate::queue::Queue;
use crate::recorder::{Clocks, recording};
use crate::running::{ARGMAX_ROWS, ARRIVALS, Recorder, Running, finite};
use crate::sensors::Sensors;
use crate::timing::Timing;
use crate::{operators, step};
use ops::recording::{DeviceState, Launch, Record, Recording};
use ops::{Bound, BoundCall, Device, DeviceCeilings, Kernel, Matrix, Packed, Step, WeightFormat, WeightShape};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("no NVIDIA driver: {why}; `hourglass doctor` says how to get it")]
    Driver { why: String },
    #[error("GPU {wanted} was asked for, and the driver sees {found}; give --device cuda:N with N below that")]
    Ordinal { wanted: u32, found: i32 },
    #[error("{name} is of compute capability {major}.{minor}; the kernels need 8.0 or newer")]
    Capability { name: String, major: i32, minor: i32 },
    #[error("no run-time compiler (NVRTC): {why}; `hourglass doctor` says how to get it")]
    Compiler { why: String },
    #[error("the kernels did not compile: {why}")]
    Compile { why: String },
    #[error("the GPU cannot be used")]
    Gpu(#[from] io::Error),
}

/// Times that a run whose calls are timed is put into the stream, which is held up longer each time: the first is no graph, the second
/// captures one, and others come too late if the host was taken from its processor, or if a driver takes long for many kernels.
const TRIES: usize = 8;

/// An open GPU with its kernels loaded.
pub struct Gpu {
    driver: Arc<Driver>,
    context: Context,
    label: String,
    driver_version: String,
    hopper: bool,
    cache_bytes: u64,
    sensors: Result<Sensors, String>,
    notes: Vec<String>,
    running: Mutex<Running>,
}

// SAFETY: the driver's handles may be used by any thread that entered the context, which every method does; `Running` is used
// under its lock alone.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

#[repr(C)]
#[derive(Clone, Copy)]
struct PlaceArguments {
    from: DeviceWeight,
    to: u64,
    to_scales: u64,
}

/// Opens GPU `ordinal`, compiles the kernels for it (or takes them from the cache) and loads them.
///
/// # Errors
/// No driver, GPU or compiler, a GPU that is too old, or the driver's own error: one sentence each.
pub fn open(ordinal: u32) -> Result<Gpu, OpenError> {
    let driver = Driver::load().map_err(|why| OpenError::Driver { why })?;
    driver.start().map_err(|error| OpenError::Driver { why: error.to_string() })?;
    let found = driver.devices()?;
    if i64::from(ordinal) >= i64::from(found) {
        return Err(OpenError::Ordinal { wanted: ordinal, found });
    }
    let device = driver.device(ordinal as i32)?;
    let name = driver.name(device)?;
    let (major, minor) = (driver.attribute(device, CAPABILITY_MAJOR)?, driver.attribute(device, CAPABILITY_MINOR)?);
    if major < 8 {
        return Err(OpenError::Capability { name, major, minor });
    }
    let (images, notes) = images(major, minor)?;
    let context = driver.context(device)?;
    driver.enter(context)?;
    let mut modules = HashMap::new();
    for (name, image) in images {
        modules.insert(name, driver.load_module(&image)?);
    }
    let (host, host_there) = driver.mapped(step::ROOM + ARRIVALS * 4)?;
    let step_there = driver.allocate(step::ROOM)?;
    let words = driver.allocate(ARRIVALS * 4 * 4)?;
    driver.fill(words, 0, ARRIVALS * 4 * 4)?;
    let multiprocessors = driver.attribute(device, MULTIPROCESSORS)? as u32;
    let version = driver.version()?;
    let cache_bytes = u64::try_from(driver.attribute(device, CACHE_BYTES)?).unwrap_or(0);
    let sensors = driver.bus_id(device).map_err(|error| error.to_string()).and_then(|bus| Sensors::open(&bus));
    let driver_version = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
    let driver_version = match sensors.as_ref().map_err(Clone::clone).and_then(Sensors::driver) {
        Ok(own) => format!("{own} ({driver_version})"),
        Err(_) => driver_version,
    };
    let mut memory = Memory::default();
    memory.took(step_there, step::ROOM);
    memory.took(words, ARRIVALS * 4 * 4);
    let driver = Arc::new(driver);
    // Words of attention, then of argmax, then argmax's best (two words each).
    let queue = Queue::new(&driver, modules, (major >= 9, multiprocessors), (step_there, words))?;
    Ok(Gpu {
        context,
        label: format!("cuda:{ordinal} ({name})"),
        driver_version,
        hopper: major == 9,
        cache_bytes,
        sensors,
        notes,
        running: Mutex::new(Running {
            queue,
            host,
            host_there,
            step_there,
            best: words + 2 * ARRIVALS as u64 * 4,
            found: None,
            turn: 0,
            ahead: Ahead::default(),
            overwritten: Overwritten::default(),
            memory,
            last: Arc::default(),
            recording: Recorder::Off,
            watched: false,
        }),
        driver,
    })
}

impl Gpu {
    /// What a person should know of how it was opened.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Puts a graph into the stream, between two marks of the run's slot if graphs are timed.
    fn replay(&self, running: &Running, graph: GraphExec, turn: u32) -> io::Result<()> {
        match &running.recording {
            Recorder::Timing(timing) => timing.replay(graph, turn),
            _ => self.driver.replay(graph, running.queue.stream),
        }
    }

    fn timing(&self, running: &Running, held: bool) -> io::Result<Timing> {
        let (hopper, cache_bytes) = (self.hopper, self.cache_bytes);
        let bench = Bench { driver: &self.driver, queue: &running.queue, hopper, cache_bytes };
        Timing::new(&self.driver, &bench, running.step_there, held)
    }

    fn lock(&self) -> io::Result<MutexGuard<'_, Running>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.driver.enter(self.context)?;
        Ok(running)
    }

    /// For whatever is no run: a step that was put ahead has ended, and is forgotten.
    fn enter(&self) -> io::Result<MutexGuard<'_, Running>> {
        let mut running = self.lock()?;
        self.settle(&mut running)?;
        Ok(running)
    }

    /// Waits for a step that was put ahead and is not what is asked now.
    fn settle(&self, running: &mut Running) -> io::Result<()> {
        if running.ahead.give_up() { self.driver.wait(running.queue.stream) } else { Ok(()) }
    }

    /// Puts a run into the stream: launch by launch the first time, as a graph from then on.
    fn put(&self, running: &Running, run: &Run<'_>, turn: u32) -> io::Result<Put> {
        let Run { bound, step, wants, whole, key } = *run;
        let queue = &running.queue;
        let graphs = bound.kept(|| Graphs::new(&self.driver));
        let one_row = run.one_row();
        let launch_all = || {
            queue.serve(None);
            if key.fed == Fed::Host {
                running.step_in(key.step_bytes, one_row);
            }
            // What the step before has begun of this one.
            let begun = if key.fed == Fed::Begun { operators::next_step::calls(bound).len() } else { 0 };
            let last = bound.calls().len() - 1;
            let (mut order, mut wanted) = (false, false);
            for (index, call) in bound.calls().iter().enumerate().skip(begun) {
                order |= call.barrier_before;
                if wants(call) {
                    if order {
                        queue.flush();
                        order = false;
                    }
                    queue.serve(Some(index));
                    if whole && one_row && index == last {
                        // Nothing else that lies where logits will be is taken for them.
                        queue.flush();
                        wanted = running.want_largest(&bound.output());
                    }
                    bound.enqueue(index, step, queue);
                }
            }
            // What was held back serves the calls that it is of.
            queue.serve(None);
            queue.flush();
            let begins_next = wanted && !queue.largest_is_missing();
            if begins_next {
                for index in 0..operators::next_step::calls(bound).len() {
                    bound.enqueue(index, step, queue);
                }
                running.close();
            } else if whole {
                running.argmax(&bound.output(), one_row);
            }
            queue.finish().map(|()| begins_next)
        };
        let (launches, graph, begins_next) = match graphs.next(key) {
            Next::Launch => {
                let begins_next = launch_all()?;
                (Arc::new(queue.take_launches()), false, begins_next)
            }
            Next::Capture => {
                // Once per graph: every replay is of these launches.
                self.driver.begin_capture(queue.stream)?;
                queue.note(true);
                let captured = launch_all();
                let graph = self.driver.end_capture(queue.stream);
                let launches = Arc::new(queue.take_launches());
                queue.note(running.notes());
                let (begins_next, graph) = (captured?, graph?);
                graphs.keep(key, Captured { graph, launches: Arc::clone(&launches), begins_next });
                self.replay(running, graph, turn)?;
                (launches, true, begins_next)
            }
            Next::Replay(Captured { graph, launches, begins_next }) => {
                self.replay(running, graph, turn)?;
                (launches, true, begins_next)
            }
        };
        Ok(Put { launches, graph, ahead: key.fed != Fed::Host, begins_next })
    }

    /// Puts a run that is asked for into the stream. Where its calls are timed alone, it waits there behind all that they need.
    fn put_asked(&self, running: &Running, run: &Run<'_>, turn: u32) -> io::Result<Put> {
        let Some(timing) = running.calls_timed() else { return self.put(running, run, turn) };
        let run = Run { key: Key { fed: Fed::Device, ..run.key }, ..*run };
        for once_more in 0..TRIES {
            (0..=once_more).try_for_each(|_| timing.hold())?;
            running.step_in(run.key.step_bytes, run.one_row());
            running.queue.finish()?;
            let put = self.put(running, &run, turn)?;
            if put.graph && timing.in_time() {
                return Ok(put);
            }
            self.driver.wait(running.queue.stream)?;
            if run.whole {
                running.forget_results(turn, run.bound.output().rows);
            }
        }
        Err(io::Error::other(format!(
            "the GPU had nothing to do before a pass was in its stream, {TRIES} times in turn: end what takes this process's processor and \
             try again, or replay a later rung, of fewer kernels"
        )))
    }

    /// Puts the step that follows `run` into the stream, if that is certain but for its token; `begun` says whether `run` ends with its
    /// beginning.
    fn put_next(&self, running: &mut Running, run: &Run<'_>, begun: bool) -> io::Result<()> {
        let Some(sequence) = after(run.step) else { return Ok(()) };
        let step = Step { tokens: run.step.tokens, sequences: &[sequence] };
        let fed = if begun { Fed::Begun } else { Fed::Device };
        let key = Key { range: operators::attention::range_of(&step), fed, ..run.key };
        let next = Run { step: &step, key, ..*run };
        let turn = running.turn ^ 1;
        running.forget_results(turn, 1);
        let put = self.put(running, &next, turn)?;
        let output = run.bound.output();
        let start = output.as_ptr() as u64;
        // It is asked for as a step that the host feeds.
        running.put_ahead(What { output: start, key: Key { fed: Fed::Host, ..key } }, put, key.step_bytes);
        running.overwritten.put(start..start + (output.rows * output.row_bytes()) as u64);
        Ok(())
    }
}

/// What is asked of one run.
#[derive(Clone, Copy)]
struct Run<'a> {
    bound: &'a Bound,
    step: &'a Step<'a>,
    wants: &'a dyn Fn(&BoundCall) -> bool,
    /// It ends with the search for the largest column.
    whole: bool,
    key: Key,
}

impl Run<'_> {
    fn one_row(&self) -> bool {
        self.step.tokens.len() == 1 && self.step.sequences.len() == 1
    }
}

impl Device for Gpu {
    fn label(&self) -> String {
        self.label.clone()
    }

    fn driver(&self) -> String {
        self.driver_version.clone()
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        if self.hopper { operators::HOPPER } else { operators::ALL }
    }

    fn free_bytes(&self) -> io::Result<usize> {
        let _running = self.enter()?;
        self.driver.free_bytes()
    }

    fn state(&self) -> Result<DeviceState, String> {
        self.sensors.as_ref().map_err(Clone::clone)?.read()
    }

    fn peak_bytes(&self) -> usize {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).memory.peak()
    }

    fn reset_peak(&self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).memory.reset_peak();
    }

    fn allocate(&self, bytes: usize) -> io::Result<*mut u8> {
        let mut running = self.enter()?;
        let at = self.driver.allocate(bytes).map_err(|error| match self.driver.free_bytes() {
            Ok(free) => io::Error::new(error.kind(), format!("{error}: {bytes} bytes wanted, {free} free")),
            Err(_) => error,
        })?;
        running.memory.took(at, bytes);
        self.driver.fill(at, 0, bytes)?;
        Ok(at as *mut u8)
    }

    fn free(&self, start: *mut u8) {
        if let Ok(mut running) = self.enter() {
            let range = start as u64..start as u64 + running.memory.gave_back(start as u64) as u64;
            running.overwritten.forget(&range);
            self.driver.free(start as u64);
        }
    }

    fn upload(&self, to: *mut u8, from: &[u8]) -> io::Result<()> {
        let _running = self.enter()?;
        if from.is_empty() { Ok(()) } else { self.driver.upload(to as u64, from) }
    }

    fn download(&self, from: *const u8, to: &mut [u8]) -> io::Result<()> {
        let running = self.enter()?;
        running.readable(from as u64, to.len())?;
        if to.is_empty() { Ok(()) } else { self.driver.download(from as u64, to) }
    }

    fn place(&self, weight: &Packed<'_>, to: *mut u8) -> io::Result<()> {
        let shape = WeightShape { rows: weight.rows, cols: weight.cols, format: weight.format };
        let kind = layout(&shape);
        if kind != FRAGMENTS && kind != PLAIN_BF16 {
            return self.upload(to, weight.bytes);
        }
        let mut running = self.enter()?;
        let staged = self.driver.allocate(weight.bytes.len())?;
        running.memory.took(staged, weight.bytes.len());
        running.queue.serve(None);
        let placed = self.driver.upload(staged, weight.bytes).and_then(|()| {
            let there = describe(to as u64, &shape, false);
            let arguments =
                PlaceArguments { from: describe(staged, &shape, true), to: to as u64, to_scales: there.scales };
            let launch = |name, items: usize| {
                running.queue.launch(
                    "place.cu",
                    name,
                    ([items.div_ceil(256) as u32, 1, 1], [256, 1, 1], 0),
                    &arguments,
                );
            };
            let tiles = shape.rows.div_ceil(16);
            if let (FRAGMENTS, WeightFormat::Affine4 { group, .. }) = (kind, shape.format) {
                launch("place_fragments", tiles * (shape.cols / 128) * 256);
                launch("place_scales", tiles * (shape.cols / group) * 16);
            } else {
                launch("place_bf16", shape.rows * shape.cols);
            }
            running.queue.finish()?;
            self.driver.wait(running.queue.stream)
        });
        running.memory.gave_back(staged);
        self.driver.free(staged);
        running.between_runs();
        placed
    }

    fn run(&self, bound: &Bound, step: &Step<'_>, wants: &dyn Fn(&BoundCall) -> bool, ahead: bool) -> io::Result<()> {
        let mut running = self.lock()?;
        running.found = None;
        running.recording.asked();
        // Digest of the wanted calls (FNV-1a, a call at a time).
        let (mut calls, mut wanted) = (0xcbf2_9ce4_8422_2325u64, 0);
        for (index, call) in bound.calls().iter().enumerate() {
            if wants(call) {
                calls = (calls ^ index as u64).wrapping_mul(0x0100_0000_01b3);
                wanted += 1;
            }
        }
        if wanted == 0 {
            return Ok(());
        }
        let output = bound.output();
        let start = output.as_ptr() as u64;
        let whole = wanted == bound.calls().len() && output.rows <= ARGMAX_ROWS;
        let step_bytes = running.write_step(step)?;
        let longest = step.sequences.iter().map(|sequence| sequence.rows).max().unwrap_or(0);
        let range = operators::attention::range_of(step);
        let key = Key { calls, sequences: step.sequences.len(), longest, step_bytes, range, fed: Fed::Host };
        let run = Run { bound, step, wants, whole, key };
        running.overwritten.forget(&(start..start + (output.rows * output.row_bytes()) as u64));
        let known = running.claim(&What { output: start, key }, step_bytes);
        let turn = running.turn ^ 1;
        let put = match known {
            Some(put) => put,
            None => {
                self.settle(&mut running)?;
                if whole {
                    running.forget_results(turn, output.rows);
                }
                // Nothing that a failed run has put is left to write a later one's result.
                self.put_asked(&running, &run, turn).inspect_err(|_| drop(self.driver.wait(running.queue.stream)))?
            }
        };
        running.turn = turn;
        if ahead
            && whole
            && running.may_look_ahead()
            && running.ahead.pays()
            && let Err(error) = self.put_next(&mut running, &run, put.begins_next)
        {
            // Nothing is left in the stream that reads what the host writes next.
            let _ = self.driver.wait(running.queue.stream);
            return Err(error);
        }
        if whole {
            running.wait_for_results(output.rows)?;
            running.found = Some((start, output.rows));
            let token = running.result(0);
            running.overwritten.found(start, token);
        }
        // Records are whole when the stream has come to its end, which the results do not wait for.
        if !whole || running.notes() {
            self.driver.wait(running.queue.stream)?;
        }
        for (index, call) in bound.calls().iter().enumerate() {
            if wants(call) {
                bound.count_dispatch(index);
            }
        }
        let (graph, ahead) = (put.graph, put.ahead);
        running.ran(put.launches, true, graph);
        if let Recorder::Timing(timing) = &mut running.recording {
            timing.ran(turn, graph.then_some(ahead))?;
        }
        Ok(())
    }

    fn argmax(&self, _bound: &Bound, output: &Matrix<'_>, row: usize) -> io::Result<u32> {
        let known = (output.as_ptr() as u64, output.rows);
        {
            // The run found it already: nothing is asked of the driver, which may have lost the GPU since, and no step ahead is waited for.
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            if running.found == Some(known) {
                return running.column(row);
            }
            if let Some(token) = running.overwritten.largest(known.0) {
                return finite(token);
            }
        }
        let mut running = self.enter()?;
        running.readable(known.0, output.rows * output.row_bytes())?;
        running.queue.serve(None);
        if running.found != Some(known) {
            if output.rows > ARGMAX_ROWS {
                let start = output.as_ptr().wrapping_add(row * output.row_bytes()) as u64;
                running.argmax_of(start, (1, output.width), output.dtype);
                running.queue.finish()?;
                self.driver.wait(running.queue.stream)?;
                running.found = None;
                running.between_runs();
                return running.column(0);
            }
            running.argmax_of(known.0, (output.rows, output.width), output.dtype);
            running.queue.finish()?;
            self.driver.wait(running.queue.stream)?;
            running.found = Some(known);
            running.between_runs();
        }
        running.column(row)
    }

    fn ceilings(&self, rounds: usize) -> io::Result<DeviceCeilings> {
        let mut running = self.enter()?;
        running.queue.serve(None);
        let (queue, hopper, cache_bytes) = (&running.queue, self.hopper, self.cache_bytes);
        let measured = Bench { driver: &self.driver, queue, hopper, cache_bytes }.measure(rounds);
        running.between_runs();
        measured
    }

    fn record(&self, what: Record) -> io::Result<()> {
        let mut running = self.enter()?;
        if let (Record::Launches, Recorder::On { .. }) = (what, &running.recording) {
            // The profiler stays on: what it makes when it is switched on is there.
            self.driver.wait(running.queue.stream)?;
            running.recording = Recorder::On { start: cupti()?.begin()?, runs: Vec::new() };
            return Ok(());
        }
        running.recording = match std::mem::replace(&mut running.recording, Recorder::Off) {
            Recorder::On { start, runs } => {
                self.driver.wait(running.queue.stream)?;
                let profiler = cupti()?;
                profiler.off()?;
                Recorder::Stopped { clocks: Clocks { start, stop: profiler.clocks()? }, runs }
            }
            Recorder::Timing(timing) => Recorder::Timed(timing),
            other => other,
        };
        match what {
            Record::Nothing => {}
            Record::Launches => {
                let profiler = cupti()?;
                profiler.on()?;
                // Nobody would switch off what is not noted as on.
                let start = profiler.begin().inspect_err(|_| drop(profiler.off()))?;
                running.recording = Recorder::On { start, runs: Vec::new() };
            }
            Record::Graphs => running.recording = Recorder::Timing(self.timing(&running, false)?),
            Record::Calls => running.recording = Recorder::Timing(self.timing(&running, true)?),
        }
        running.queue.note(running.notes());
        Ok(())
    }

    fn recorded(&self) -> io::Result<Recording> {
        let mut running = self.enter()?;
        match std::mem::replace(&mut running.recording, Recorder::Off) {
            Recorder::Stopped { clocks, runs } => {
                let profiler = cupti()?;
                Ok(recording(&runs, profiler.take()?, &clocks, profiler.version()))
            }
            Recorder::Timed(timing) => Ok(Recording { graphs: timing.graphs().to_vec(), ..Recording::default() }),
            _ => Err(io::Error::other("nothing was recorded; start recording, and stop it")),
        }
    }

    fn calls_ns(&self) -> Option<u64> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.calls_timed()?.last()
    }

    fn watched(&self, on: bool) -> io::Result<()> {
        let mut running = self.enter()?;
        running.watched = on;
        running.queue.note(running.notes());
        self.driver.profiler(on)
    }

    fn launched(&self) -> Vec<Launch> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).last.as_ref().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_opening_is_one_sentence() {
        if let Err(error) = open(4096) {
            let text = error.to_string();
            assert!(text.len() > 20 && !text.contains('\n'), "{text}");
        }
    }
}
