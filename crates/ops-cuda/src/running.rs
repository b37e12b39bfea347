//! What one run at a time uses on a GPU: its queue, the page-locked memory of the step and of its results, and what is noted of runs.
//! Not here: which calls a run is of, and its graphs (`gpu.rs`).

#![allow(unsafe_code, reason = "page-locked memory that the GPU reads and writes, and handles that cross threads")]

use crate::ahead::{Ahead, Overwritten, Put, What};
use crate::cupti::ClockPair;
use crate::memory::Memory;
use crate::operators::next_step::NextStep;
use crate::queue::Queue;
use crate::recorder::{Clocks, Noted};
use crate::step;
use crate::timing::Timing;
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
/// The largest logit is infinite or no number; twin of `NOT_FINITE`.
const NOT_FINITE: u32 = u32::MAX - 1;
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
    /// The output whose argmax the last run left in `host`, in slot `turn`.
    pub(crate) found: Option<(u64, usize)>,
    /// Slot of the last run that was asked for: the next one's results go to the other, so that a step ahead overwrites none.
    pub(crate) turn: u32,
    pub(crate) ahead: Ahead,
    pub(crate) overwritten: Overwritten,
    pub(crate) memory: Memory,
    /// What the last run launched, if it was noted.
    pub(crate) last: Arc<Vec<Launch>>,
    pub(crate) recording: Recorder,
    /// Whether a profiler that this process runs under looks.
    pub(crate) watched: bool,
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
    /// Graphs as wholes, or calls alone.
    Timing(Timing),
    Timed(Timing),
}

impl Recorder {
    /// Another run is asked for.
    pub(crate) fn asked(&mut self) {
        if let Recorder::Timing(timing) = self {
            timing.asked();
        }
    }
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
    step: u64,
    width: u32,
    f32: u32,
    advances: u32,
    unused: u32,
}

impl Running {
    /// Whether launches are noted.
    pub(crate) fn notes(&self) -> bool {
        self.watched || matches!(self.recording, Recorder::On { .. })
    }

    /// Whether a step may be put ahead: one that nobody asks for would be in a profiler's records, or beside calls that are timed alone.
    pub(crate) fn may_look_ahead(&self) -> bool {
        !self.notes() && self.calls_timed().is_none()
    }

    /// What the calls of each run are timed alone with, if they are.
    pub(crate) fn calls_timed(&self) -> Option<&Timing> {
        match &self.recording {
            Recorder::Timing(timing) if timing.holds() => Some(timing),
            _ => None,
        }
    }

    /// # Errors
    /// These bytes are of logits that a step ahead has written since.
    pub(crate) fn readable(&self, start: u64, bytes: usize) -> io::Result<()> {
        if self.overwritten.touches(&(start..start + bytes as u64)) {
            return Err(io::Error::other(
                "the step after the one that these logits are of was begun ahead and has overwritten them; only their largest column can be \
                 asked for",
            ));
        }
        Ok(())
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

    /// Writes a step whose results go to the other slot than those of the last one; the bytes that it takes.
    pub(crate) fn write_step(&mut self, step: &Step<'_>) -> io::Result<usize> {
        // SAFETY: the page-locked block is this long, and no kernel reads it now: every run that does was waited for, and a step ahead
        // has its data from the one before it.
        let block = unsafe { std::slice::from_raw_parts_mut(self.host, step::ROOM) };
        step::write(step, self.turn ^ 1, block, self.step_there)
    }

    /// The run that is in the stream already, if a run of `what` with the data that was written last is that.
    pub(crate) fn claim(&mut self, what: &What, step_bytes: usize) -> Option<Put> {
        let token = self.result(0);
        // SAFETY: `write_step` wrote so many bytes of the block, and only the holder of the lock writes there.
        let block = unsafe { std::slice::from_raw_parts(self.host, step_bytes) };
        self.ahead.claim(what, block, token)
    }

    /// Notes a run that was put behind the step that was written last.
    pub(crate) fn put_ahead(&mut self, what: What, put: Put, step_bytes: usize) {
        // SAFETY: as in `claim`.
        let block = unsafe { std::slice::from_raw_parts(self.host, step_bytes) };
        self.ahead.put(block, what, put);
    }

    /// Puts the copy of the step's data at the beginning of a run; that of one row is joined by what else begins it.
    pub(crate) fn step_in(&self, bytes: usize, one_row: bool) {
        let words = bytes.div_ceil(4) as u32;
        if one_row {
            return self.queue.begin(NextStep::new(self.step_there).fed(self.host_there, words));
        }
        let arguments = StepIn { from: self.host_there, to: self.step_there, words, unused: 0 };
        self.queue.launch("place.cu", "step_in", ([words.div_ceil(256), 1, 1], [256, 1, 1], 0), &arguments);
    }

    /// What makes the logits of a step of one row is to find the largest, if it can; false if that is out of the question.
    pub(crate) fn want_largest(&self, output: &Matrix<'_>) -> bool {
        let one = output.dtype == DType::BF16 && output.rows == 1;
        if one {
            self.queue.want_largest(output.as_ptr() as u64, self.best);
        }
        one
    }

    /// Puts the end of a whole step of one row whose logits' largest was found, with what was held back of the next one's beginning.
    pub(crate) fn close(&self) {
        self.queue.close(self.best, self.host_there + step::ROOM as u64);
    }

    /// Puts the search of every row's largest column at the end of a whole step, which goes to the step's slot. A step of one row becomes
    /// the next one then, `advances`.
    pub(crate) fn argmax(&self, output: &Matrix<'_>, advances: bool) {
        let result = self.host_there + step::ROOM as u64;
        self.search(
            output.as_ptr() as u64,
            (output.rows, output.width),
            output.dtype,
            (result, self.step_there, advances),
        );
    }

    /// The same of any rows `(rows, width)`, whose results go to slot `turn`.
    pub(crate) fn argmax_of(&self, start: u64, shape: (usize, usize), dtype: DType) {
        let result = self.host_there + step::ROOM as u64 + u64::from(self.turn) * ARGMAX_ROWS as u64 * 4;
        self.search(start, shape, dtype, (result, 0, false));
    }

    fn search(
        &self,
        logits: u64,
        (rows, width): (usize, usize),
        dtype: DType,
        (result, step, advances): (u64, u64, bool),
    ) {
        let arguments = Argmax {
            logits,
            best: self.best,
            arrived: self.queue.arrivals + ARRIVALS as u64 * 4,
            result,
            step,
            width: width as u32,
            f32: u32::from(dtype == DType::F32),
            advances: u32::from(advances),
            unused: 0,
        };
        self.queue.launch("place.cu", "argmax", ([ARGMAX_BLOCKS, rows as u32, 1], [256, 1, 1], 0), &arguments);
    }

    /// Empties a slot, so that it shows when results have come.
    pub(crate) fn forget_results(&self, turn: u32, rows: usize) {
        for row in 0..rows {
            // SAFETY: as for `result`, with at most `ARGMAX_ROWS` rows.
            unsafe { self.slot(turn).add(row).write_volatile(NOTHING_FOUND) };
        }
    }

    fn slot(&self, turn: u32) -> *mut u32 {
        // SAFETY: two slots of `ARGMAX_ROWS` words are inside the page-locked block, behind the step's data.
        unsafe { self.host.add(step::ROOM).cast::<u32>().add(turn as usize * ARGMAX_ROWS) }
    }

    /// Until the last kernel of a whole step has said each row's largest column, into memory that this thread looks at: sooner than the
    /// driver says that the step has ended. Everything else that the step wrote is read through the stream.
    pub(crate) fn wait_for_results(&self, rows: usize) -> io::Result<()> {
        for row in 0..rows {
            let mut looks = 0;
            while self.result(row) == NOTHING_FOUND {
                looks += 1;
                // An error ends this too, or a GPU that is gone.
                if looks % LOOKS == 0 && self.queue.driver.done(self.queue.stream)? && self.result(row) == NOTHING_FOUND
                {
                    return Err(io::Error::other("the GPU ended a step without its result"));
                }
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// The column of row `row` that the last run found.
    ///
    /// # Errors
    /// The row's logits are not finite (`InvalidData`).
    pub(crate) fn column(&self, row: usize) -> io::Result<u32> {
        finite(self.result(row))
    }

    /// A result of the last run that was asked for.
    pub(crate) fn result(&self, row: usize) -> u32 {
        // SAFETY: inside the slot; a word, which the GPU writes whole.
        unsafe { self.slot(self.turn).add(row).read_volatile() }
    }
}

/// A result that is a column.
pub(crate) fn finite(result: u32) -> io::Result<u32> {
    match result {
        NOT_FINITE => Err(io::Error::new(io::ErrorKind::InvalidData, "the largest logit is infinite or no number")),
        column => Ok(column),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_say_in_the_same_word_that_logits_are_not_finite() {
        assert!(include_str!("../kernels/prelude.cuh").contains(&format!("#define NOT_FINITE {NOT_FINITE:#x}u\n")));
        assert_eq!(finite(NOT_FINITE).map_err(|error| error.kind()), Err(io::ErrorKind::InvalidData));
        assert!(matches!(finite(151_935), Ok(151_935)));
    }

    #[test]
    fn kernels_know_how_long_a_slot_is() {
        assert!(include_str!("../kernels/prelude.cuh").contains(&format!("#define RESULT_ROWS {ARGMAX_ROWS}\n")));
    }
}
