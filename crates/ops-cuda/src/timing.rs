//! How long replayed graphs take by the GPU's own clock: marks on the stream around each, less what lies between marks around nothing.
//! Not here: which run a graph is of (`gpu.rs`), and the kernels inside (`cupti.rs`).

use crate::ceilings::Bench;
use crate::driver::{Driver, Event, GraphExec, Stream};
use std::cell::Cell;
use std::io;
use std::sync::Arc;

/// Kernels that do nothing, for so long (some 400 microseconds) that what is put behind them waits in the stream.
const LONG: u32 = 1000;
/// Samples of what is subtracted.
const ROUNDS: usize = 16;

/// What is known of the graphs of runs.
pub(crate) struct Timing {
    driver: Arc<Driver>,
    stream: Stream,
    /// Two for the runs of each slot.
    marks: [[Event; 2]; 2],
    /// What lies between the marks around no kernel at all: of a graph that the stream waits for, and of one that waits in it.
    around_ns: [u64; 2],
    /// What holds the stream up, where every graph is to wait in it.
    hold: Option<GraphExec>,
    /// The stream came to the last graph before that was there.
    late: Cell<bool>,
    /// Of each run that ran a program; `None` where it was no graph.
    graphs: Vec<Option<u64>>,
    /// Of the run that was asked for last, if it ran a graph to its end.
    last: Option<u64>,
}

impl Timing {
    /// Measures what is subtracted; `held`: graphs will wait in the stream. The address `data` is given to kernels that do nothing.
    pub(crate) fn new(driver: &Arc<Driver>, bench: &Bench<'_>, data: u64, held: bool) -> io::Result<Timing> {
        // Whatever fails from here on, what was made before it is given back.
        let mut timing = Timing {
            driver: Arc::clone(driver),
            stream: bench.queue.stream,
            marks: [[std::ptr::null_mut(); 2]; 2],
            around_ns: [0; 2],
            hold: None,
            late: Cell::new(false),
            graphs: Vec::new(),
            last: None,
        };
        for mark in timing.marks.iter_mut().flatten() {
            *mark = driver.event()?;
        }
        let long = *timing.hold.insert(bench.chain(data, LONG)?);
        let one = bench.chain(data, 1)?;
        let least_ns = timing.least_ns(one, long);
        driver.drop_graph(one);
        let [waited_for, waits, all] = least_ns?;
        let launch_ns = all.saturating_sub(waited_for) / u64::from(LONG - 1);
        timing.around_ns = [waited_for, waits].map(|around| around.saturating_sub(launch_ns));
        if !held {
            timing.drop_hold();
        }
        Ok(timing)
    }

    /// What lies at least between the marks around a graph of one kernel that the stream waits for, around one that waits in it, and
    /// around the long one.
    fn least_ns(&self, one: GraphExec, long: GraphExec) -> io::Result<[u64; 3]> {
        let mut least_ns = [u64::MAX; 3];
        for round in 0..ROUNDS * least_ns.len() {
            let what = round % least_ns.len();
            if what == 1 {
                self.hold()?;
            }
            self.replay(if what == 2 { long } else { one }, 0)?;
            least_ns[what] = least_ns[what].min(self.between(0)?);
        }
        self.driver.wait(self.stream)?;
        Ok(least_ns)
    }

    /// Whether every graph is to wait in the stream.
    pub(crate) fn holds(&self) -> bool {
        self.hold.is_some()
    }

    /// Keeps the stream busy while the next run is put into it.
    pub(crate) fn hold(&self) -> io::Result<()> {
        self.hold.map_or(Ok(()), |graph| self.driver.replay(graph, self.stream))
    }

    /// Puts a graph into the stream, between the marks of slot `turn`.
    pub(crate) fn replay(&self, graph: GraphExec, turn: u32) -> io::Result<()> {
        let [start, end] = self.marks[turn as usize];
        self.driver.mark(start, self.stream)?;
        self.driver.replay(graph, self.stream)?;
        self.driver.mark(end, self.stream)?;
        // Asked last: a mark behind a short graph that has ended would be as late as the host is.
        self.late.set(self.holds() && self.driver.passed(start)?);
        Ok(())
    }

    /// Whether the last graph and the mark behind it were there before the stream came to them.
    pub(crate) fn in_time(&self) -> bool {
        !self.late.get()
    }

    /// Another run is asked for: what is known of the one before is not of this one.
    pub(crate) fn asked(&mut self) {
        self.last = None;
    }

    /// Notes a run; `graph`: that it was one, and whether it waited in the stream.
    pub(crate) fn ran(&mut self, turn: u32, graph: Option<bool>) -> io::Result<()> {
        let ns = match graph {
            Some(waited) => Some(self.between(turn)?.saturating_sub(self.around_ns[usize::from(waited)])),
            None => None,
        };
        self.graphs.push(ns);
        self.last = ns;
        Ok(())
    }

    /// Of the run that was asked for last; `None` where it ran nothing, no graph, or into an error.
    pub(crate) fn last(&self) -> Option<u64> {
        self.last
    }

    /// Of every run.
    pub(crate) fn graphs(&self) -> &[Option<u64>] {
        &self.graphs
    }

    fn between(&self, turn: u32) -> io::Result<u64> {
        let [start, end] = self.marks[turn as usize];
        self.driver.between(start, end)
    }

    fn drop_hold(&mut self) {
        if let Some(graph) = self.hold.take() {
            self.driver.drop_graph(graph);
        }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        self.drop_hold();
        self.marks.iter().flatten().filter(|mark| !mark.is_null()).for_each(|mark| self.driver.drop_event(*mark));
    }
}
