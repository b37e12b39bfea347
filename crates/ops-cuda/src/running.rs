//! What one run at a time uses on a GPU: its queue, the page-locked memory of the step and of its results, and what is noted of runs.
//! Not here: which calls a run is of, and its graphs (`gpu.rs`).

#![allow(unsafe_code, reason = "page-locked memory that the GPU reads and writes, and handles that cross threads")]

use crate::cupti::ClockPair;
use crate::driver::Event;
use crate::memory::Memory;
use crate::queue::Queue;
use crate::recorder::{Clocks, Noted};
use crate::step;
use ops::recording::Launch;
use ops::{DType, Matrix, Step};
use std::io;
use std::sync::Arc;

/// Rows of logits whose largest columns a whole step finds itself.
pub(crate) const ARGMAX_ROWS: usize = 64;
/// Eight columns for each of their threads, at Qwen3's vocabulary.
const ARGMAX_BLOCKS: u32 = 75;
/// No column.
const NOTHING_FOUND: u32 = u32::MAX;
/// Looks at the results between questions to the driver.
const LOOKS: usize = 4096;
/// Words in which kernels count arrivals.
pub(crate) const ARRIVALS: usize = 4096;

/// What one run at a time uses.
pub(crate) struct Running {
    pub(crate) queue: Queue,
    /// Page-locked: the step's data, then the results of argmax.
    pub(crate) host: *mut u8,
    pub(crate) host_there: u64,
    pub(crate) step_there: u64,
    pub(crate) best: u64,
    /// The output whose argmax the last run left in `host`.
    pub(crate) found: Option<(u64, usize)>,
    pub(crate) memory: Memory,
    /// What the last run launched, if it was noted.
    pub(crate) last: Arc<Vec<Launch>>,
    pub(crate) recording: Recorder,
}

/// How long the graphs of runs took.
pub(crate) struct Timing {
    pub(crate) marks: [Event; 2],
    /// What lies between the marks around a graph that does next to nothing.
    pub(crate) around_ns: u64,
    /// Of each run that ran a program; `None` where it was no graph.
    pub(crate) graphs: Vec<Option<u64>>,
}

/// What is noted for [`Device::record`].
pub(crate) enum Recorder {
    Off,
    On {
        start: ClockPair,
        runs: Vec<Noted>,
    },
    Stopped {
        clocks: Clocks,
        runs: Vec<Noted>,
    },
    /// Graphs as wholes, between two marks on the stream.
    Timing(Timing),
    Timed(Timing),
}

// SAFETY: the driver's handles may be used by any thread that entered the context, which every method of `Gpu` does; it is used under
// its lock alone.
unsafe impl Send for Running {}

#[repr(C)]
#[derive(Clone, Copy)]
struct StepIn {
    from: u64,
    to: u64,
    words: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Argmax {
    logits: u64,
    best: u64,
    arrived: u64,
    result: u64,
    width: u32,
    f32: u32,
}

impl Running {
    /// Whether runs are noted.
    pub(crate) fn notes(&self) -> bool {
        matches!(self.recording, Recorder::On { .. })
    }

    pub(crate) fn ran(&mut self, list: Arc<Vec<Launch>>, program: bool, graph: bool) {
        if let Recorder::On { runs, .. } = &mut self.recording {
            runs.push(Noted { list: Arc::clone(&list), program, graph });
        }
        self.last = list;
    }

    /// What was launched beside runs.
    pub(crate) fn between_runs(&mut self) {
        let launches = self.queue.take_launches();
        if let Recorder::On { runs, .. } = &mut self.recording
            && !launches.is_empty()
        {
            runs.push(Noted { list: Arc::new(launches), program: false, graph: false });
        }
    }

    pub(crate) fn write_step(&self, step: &Step<'_>) -> io::Result<usize> {
        // SAFETY: the page-locked block is this long, and no kernel reads it now: every run waits for its end.
        let block = unsafe { std::slice::from_raw_parts_mut(self.host, step::ROOM) };
        step::write(step, block, self.step_there)
    }

    pub(crate) fn step_in(&self, bytes: usize) {
        let words = bytes.div_ceil(4) as u32;
        let arguments = StepIn { from: self.host_there, to: self.step_there, words, unused: 0 };
        self.queue.launch("place.cu", "step_in", ([words.div_ceil(256), 1, 1], [256, 1, 1], 0), &arguments);
    }

    pub(crate) fn argmax(&self, output: &Matrix<'_>) {
        self.argmax_of(output.as_ptr() as u64, output.rows, output.width, output.dtype);
    }

    pub(crate) fn argmax_of(&self, start: u64, rows: usize, width: usize, dtype: DType) {
        let arguments = Argmax {
            logits: start,
            best: self.best,
            arrived: self.queue.arrivals + ARRIVALS as u64 * 4,
            result: self.host_there + step::ROOM as u64,
            width: width as u32,
            f32: u32::from(dtype == DType::F32),
        };
        let grid = [ARGMAX_BLOCKS, rows as u32, 1];
        self.queue.launch("place.cu", "argmax", (grid, [256, 1, 1], 0), &arguments);
    }

    pub(crate) fn forget_results(&self, rows: usize) {
        for row in 0..rows {
            // SAFETY: as for `result`, with at most `ARGMAX_ROWS` rows.
            unsafe { self.host.add(step::ROOM).cast::<u32>().add(row).write_volatile(NOTHING_FOUND) };
        }
    }

    /// Until the last kernel of a whole step has said each row's largest column, into memory that this thread looks at: sooner than the
    /// driver says that the step has ended. Everything else that the step wrote is read through the stream.
    pub(crate) fn wait_for_results(&self, rows: usize) -> io::Result<()> {
        for row in 0..rows {
            let mut looks = 0;
            while self.result(row) == NOTHING_FOUND {
                looks += 1;
                // An error ends this too, or a GPU that is gone.
                if looks % LOOKS == 0 && self.queue.driver.done(self.queue.stream)? {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    pub(crate) fn result(&self, row: usize) -> u32 {
        // SAFETY: inside the page-locked block; a word, which the GPU writes whole.
        unsafe { self.host.add(step::ROOM).cast::<u32>().add(row).read_volatile() }
    }
}
