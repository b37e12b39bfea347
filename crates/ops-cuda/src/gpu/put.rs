//! Putting steps into a GPU's stream: their launches, one by one or as a graph, and those of steps that nobody has asked for yet.
//! Not here: what is asked, and waiting for it (`gpu.rs`); which steps can be told before they are asked for (`ahead.rs`).

use super::Gpu;
use crate::ahead::{Put, What, after};
use crate::driver::GraphExec;
use crate::graphs::{Captured, Graphs, Key, Next};
use crate::running::{Recorder, Running, Timing};
use crate::{operators, step};
use ops::{Bound, BoundCall, Sequence, Step};
use std::io;
use std::sync::Arc;

/// What is asked of one run.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) bound: &'a Bound,
    pub(super) step: &'a Step<'a>,
    pub(super) wants: &'a dyn Fn(&BoundCall) -> bool,
    /// It ends with the search for the largest column.
    pub(super) whole: bool,
    pub(super) key: Key,
}

impl Gpu {
    /// Puts steps into the stream: launch by launch the first time, as a graph from then on.
    pub(super) fn put(&self, running: &mut Running, run: &Run<'_>) -> io::Result<Put> {
        let Run { bound, key, .. } = *run;
        let graphs = bound.kept(|| Graphs::new(&self.driver));
        let steps = key.ahead.max(1);
        let launch_all = |running: &mut Running| {
            for number in 0..steps {
                if key.ahead > 0 {
                    running.queue.step = running.next_there(number);
                }
                launch_step(running, run, graphs, number);
            }
            running.queue.step = running.step_there;
            running.queue.finish()
        };
        running.marks ^= 1;
        let (launches, graph) = match graphs.next(key) {
            Next::Launch => {
                launch_all(running)?;
                (Arc::new(running.queue.take_launches()), false)
            }
            Next::Capture => {
                // Once per graph: every replay is of these launches.
                running.queue.note(true);
                self.driver.begin_capture(running.queue.stream)?;
                let captured = launch_all(running);
                let graph = self.driver.end_capture(running.queue.stream);
                let launches = Arc::new(running.queue.take_launches());
                running.queue.note(running.notes());
                captured?;
                let graph = graph?;
                graphs.keep(key, Captured { graph, launches: Arc::clone(&launches) });
                self.replay(running, graph)?;
                (launches, true)
            }
            Next::Replay(Captured { graph, launches }) => {
                self.replay(running, graph)?;
                (launches, true)
            }
        };
        Ok(Put { launches, graph, marks: running.marks, steps, ahead: key.ahead > 0 })
    }

    /// Puts steps that follow `run` into the stream, at most `ahead`, if they are certain but for their tokens: several where they are alike
    /// and each begins the next.
    pub(super) fn put_next(&self, running: &mut Running, run: &Run<'_>, ahead: usize) -> io::Result<()> {
        if run.key.step_bytes > step::AHEAD_ROOM {
            return Ok(());
        }
        let range = |sequence: Sequence<'_>| {
            operators::attention::range_of(&Step { tokens: run.step.tokens, sequences: &[sequence] })
        };
        let many = step::MOST_AHEAD as usize;
        let alike =
            |first: &Sequence<'_>| range(*first) == range(Sequence { offset: first.offset + many - 1, ..*first });
        let begins_next = run.bound.kept(|| Graphs::new(&self.driver)).begins_next();
        let together = after(run.step, many).filter(|first| ahead >= many && begins_next && alike(first));
        let steps = if together.is_some() { step::MOST_AHEAD } else { 1 };
        let Some(first) = together.or_else(|| after(run.step, 1)) else { return Ok(()) };
        let step = Step { tokens: run.step.tokens, sequences: &[first] };
        let key = Key { range: range(first), ahead: steps, ..run.key };
        for number in 1..=steps {
            running.forget_results((running.turn + number) % step::SLOTS, 1);
        }
        let put = self.put(running, &Run { step: &step, key, ..*run })?;
        let output = run.bound.output();
        let start = output.as_ptr() as u64;
        // They are asked for as steps that the host feeds.
        running.put_ahead(What { output: start, key: Key { ahead: 0, ..key } }, put, key.step_bytes);
        running.overwritten = Some(start..start + (output.rows * output.row_bytes()) as u64);
        Ok(())
    }

    /// Puts a graph into the stream, between two marks if graphs are timed.
    fn replay(&self, running: &Running, graph: GraphExec) -> io::Result<()> {
        let stream = running.queue.stream;
        let Recorder::Timing(Timing { marks, .. }) = &running.recording else {
            return self.driver.replay(graph, stream);
        };
        let [start, end] = marks[running.marks];
        self.driver.mark(start, stream)?;
        self.driver.replay(graph, stream)?;
        self.driver.mark(end, stream)
    }
}

/// Puts the launches of one step into the queue, the `number`th of those of a run.
fn launch_step(running: &Running, run: &Run<'_>, graphs: &Graphs, number: u32) {
    let Run { bound, step, wants, whole, key } = *run;
    let queue = &running.queue;
    let one_row = step.tokens.len() == 1 && step.sequences.len() == 1;
    queue.serve(None);
    if key.ahead == 0 {
        running.step_in(key.step_bytes, one_row);
    }
    // What the step before has begun of this one.
    let begun = if key.ahead > 0 && graphs.begins_next() { operators::next_step::calls(bound).len() } else { 0 };
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
    // The steps to come are those behind the host's, or behind the last of these.
    let ends = number + 1 >= key.ahead;
    let advance = if ends { key.ahead } else { 0 };
    if wanted && !queue.largest_is_missing() {
        graphs.set_begins_next();
        for index in 0..operators::next_step::calls(bound).len() {
            bound.enqueue(index, step, queue);
        }
        running.close(advance, !ends);
    } else if whole {
        running.argmax(&bound.output(), (one_row && key.step_bytes <= step::AHEAD_ROOM).then_some(advance));
    }
}
