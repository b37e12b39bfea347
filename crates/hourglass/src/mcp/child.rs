//! A child process of this same binary: bounded in time and output, ended when it is no longer wanted.
//! Not here: which verbs are started, what becomes of their output, and the children of a person's commands
//! (`crate::child`), which end by Ctrl-C and have no limit.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use super::tool::{Job, Progress};
use crate::child::{own_program, tie};

/// Bytes of an output that are kept; a record is never larger.
const MAX_OUTPUT: usize = record::MAX_RECORD_BYTES;
/// What a message needs.
const MAX_MESSAGES: usize = 64 << 10;
/// After an interrupt, and again after the second one.
const GRACE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    ByItself,
    TimeLimit,
    Unwanted,
}

/// A child that is gone.
pub(super) struct Finished {
    /// None: a signal ended it.
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) ended: Ended,
}

impl Finished {
    /// What it said on stderr, or how it ended if it said nothing.
    pub(super) fn complaint(&self) -> String {
        let said = self.stderr.trim().strip_prefix("hourglass: ").unwrap_or(self.stderr.trim());
        match (said.is_empty(), self.code) {
            (false, _) => said.to_owned(),
            (true, Some(code)) => format!("it ended with exit code {code} and said nothing"),
            (true, None) => "a signal ended it; was memory short?".to_owned(),
        }
    }
}

/// Runs this binary with `arguments` until it ends, the time is over or the job is cancelled. Tells how far it is once a
/// second, as `what`.
///
/// # Errors
/// It cannot be started.
pub(super) fn run(arguments: &[String], what: &str, limit: Duration, job: &Job) -> Result<Finished> {
    let mut child = tie(&mut Command::new(own_program()))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own: Ctrl-C in a terminal reaches this process alone, which then ends the child in its own way.
        .process_group(0)
        .spawn()
        .with_context(|| format!("{what} could not be started"))?;
    let stdout = reader(child.stdout.take(), MAX_OUTPUT);
    let stderr = reader(child.stderr.take(), MAX_MESSAGES);
    let begun = Instant::now();
    let mut told = 0;
    let (code, ended) = loop {
        if let Some(status) = child.try_wait().context("a child process is lost")? {
            break (status.code(), Ended::ByItself);
        }
        let elapsed = begun.elapsed();
        let over = if job.is_unwanted() {
            Some(Ended::Unwanted)
        } else if elapsed >= limit {
            Some(Ended::TimeLimit)
        } else {
            None
        };
        if let Some(ended) = over {
            break (end(&mut child)?, ended);
        }
        if elapsed.as_secs() > told {
            told = elapsed.as_secs();
            job.tell(Progress { elapsed, limit, words: format!("{what} is running, {told} s") });
        }
        std::thread::sleep(LOOK);
    };
    let text = |thread: JoinHandle<Vec<u8>>| {
        let bytes = thread.join().unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Finished { code, stdout: text(stdout), stderr: text(stderr), ended })
}

/// Ends a child as a person would: Ctrl-C, Ctrl-C again, then by force.
fn end(child: &mut Child) -> Result<Option<i32>> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    for signal in [Signal::INT, Signal::INT, Signal::KILL] {
        if let Some(group) = group {
            // It may be gone already.
            let _ = kill_process_group(group, signal);
        }
        let asked = Instant::now();
        while asked.elapsed() < GRACE {
            if let Some(status) = child.try_wait().context("a child process is lost")? {
                return Ok(status.code());
            }
            std::thread::sleep(LOOK);
        }
    }
    Ok(child.wait().context("a child process is lost")?.code())
}

/// Reads everything and keeps the first `most` bytes, so that the child never waits for room.
fn reader(from: Option<impl Read + Send + 'static>, most: usize) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut from) = from {
            // A pipe that breaks has nothing more to say.
            let _ = from.by_ref().take(most as u64).read_to_end(&mut kept);
            let _ = std::io::copy(&mut from, &mut std::io::sink());
        }
        kept
    })
}
