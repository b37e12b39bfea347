//! The captured graphs of one bound program: one per set of calls that an observer wanted, number of requests, range
//! of positions and way in which the step's data comes.
//! A program that runs once is never captured; from its second run on its launches are replayed as one graph.

#![allow(unsafe_code, reason = "a graph's handle crosses threads")]

use crate::driver::{Driver, GraphExec};
use ops::recording::Launch;
use std::sync::{Arc, Mutex, PoisonError};

/// Graphs kept per program: the whole step, and what a replay of groups or operators picks.
const KEPT: usize = 64;

pub(crate) struct Graphs {
    driver: Arc<Driver>,
    known: Mutex<Vec<Entry>>,
}

struct Entry {
    key: Key,
    graph: Option<Captured>,
}

/// A graph, and the launches in it.
#[derive(Clone)]
pub(crate) struct Captured {
    pub(crate) graph: GraphExec,
    pub(crate) launches: Arc<Vec<Launch>>,
    /// Whether it ends with what begins the next step.
    pub(crate) begins_next: bool,
}

/// How a step's data comes to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fed {
    /// It is copied from the host.
    Host,
    /// It is there from the step before.
    Device,
    /// So, and that step has done what the first calls do.
    Begun,
}

/// What a graph depends on beside its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Digest of which calls run.
    pub(crate) calls: u64,
    /// Requests of the step and rows of the longest, which the launches' shapes depend on, and bytes of the step's data.
    pub(crate) sequences: usize,
    pub(crate) longest: usize,
    pub(crate) step_bytes: usize,
    /// Of positions, by which attention shares a single row's among blocks.
    pub(crate) range: u32,
    pub(crate) fed: Fed,
}

// SAFETY: a graph's handle is the driver's, which may be used by any thread; the lock orders uses.
unsafe impl Send for Entry {}

/// What to do for a run.
pub(crate) enum Next {
    /// Launch one by one.
    Launch,
    /// Capture, hand in, and replay.
    Capture,
    Replay(Captured),
}

impl Graphs {
    pub(crate) fn new(driver: &Arc<Driver>) -> Graphs {
        Graphs { driver: Arc::clone(driver), known: Mutex::default() }
    }

    pub(crate) fn next(&self, key: Key) -> Next {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.iter().find(|entry| entry.key == key) {
            Some(Entry { graph: Some(graph), .. }) => Next::Replay(graph.clone()),
            Some(_) => Next::Capture,
            None => {
                if known.len() == KEPT {
                    drop_entry(&self.driver, &known.remove(0));
                }
                known.push(Entry { key, graph: None });
                Next::Launch
            }
        }
    }

    pub(crate) fn keep(&self, key: Key, graph: Captured) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.iter_mut().find(|entry| entry.key == key) {
            Some(entry) => entry.graph = Some(graph),
            None => known.push(Entry { key, graph: Some(graph) }),
        }
    }
}

fn drop_entry(driver: &Driver, entry: &Entry) {
    if let Some(captured) = &entry.graph {
        driver.drop_graph(captured.graph);
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        for entry in self.known.get_mut().unwrap_or_else(PoisonError::into_inner) {
            drop_entry(&self.driver, entry);
        }
    }
}
