//! A progress line on stderr, only where stderr is a terminal.
//! Not here: messages that a person must see; those are printed whatever stderr is.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::output;

/// One line, rewritten in place at most ten times a second and wiped when dropped.
pub(crate) struct Progress {
    what: &'static str,
    /// None: stderr is not a terminal. Else when the line was last written.
    drawn: Option<Mutex<Option<Instant>>>,
}

impl Progress {
    pub(crate) fn new(what: &'static str) -> Progress {
        Progress { what, drawn: std::io::stderr().is_terminal().then(|| Mutex::new(None)) }
    }

    /// `done` bytes of `total` (if known) of `name`.
    pub(crate) fn bytes(&self, done: u64, total: Option<u64>, name: &str) {
        let done_mib = done as f64 / (1 << 20) as f64;
        self.draw(|| match total {
            Some(total) if total > 0 => {
                let total_mib = total as f64 / (1 << 20) as f64;
                format!("{name}: {done_mib:.1} of {total_mib:.1} MiB ({:.0} %)", 100.0 * done_mib / total_mib)
            }
            _ => format!("{name}: {done_mib:.1} MiB"),
        });
    }

    /// `done` steps of `total`, now at `name`.
    pub(crate) fn steps(&self, done: usize, total: usize, name: &str) {
        self.draw(|| format!("{done} of {total}, {name}"));
    }

    /// Removes the line, so that something else can be printed there.
    pub(crate) fn wipe(&self) {
        if let Some(drawn) = &self.drawn
            && drawn.lock().is_ok_and(|mut last| last.take().is_some())
        {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }

    fn draw(&self, text: impl FnOnce() -> String) {
        let Some(drawn) = &self.drawn else { return };
        let Ok(mut last) = drawn.lock() else { return };
        if last.is_some_and(|at| at.elapsed() < Duration::from_millis(100)) {
            return;
        }
        *last = Some(Instant::now());
        // A terminal that went away is no reason to stop the work.
        let _ = write!(std::io::stderr(), "\r\x1b[2K{}: {}", self.what, output::plain(&text()));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
    }
}
