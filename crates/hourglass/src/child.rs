//! Verbs of this same binary as child processes: how one is started, waited for, interrupted, and what its last words were.
//! Not here: the children of `bench`, which speak a protocol (`bench/process.rs`), and which verbs are run (`find`).

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::interrupt;

const TICK: Duration = Duration::from_millis(100);
/// What an interrupted child may take to write what it has.
const TO_END: Duration = Duration::from_secs(20);
/// What is kept of a child's stderr.
const TAIL_BYTES: usize = 4096;

/// A verb that has ended.
pub(crate) struct Ended {
    pub(crate) seconds: f64,
    /// None: a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) interrupted: bool,
    /// The last lines of its stderr, in one.
    pub(crate) last_words: String,
}

/// This very program, even if its file has been replaced since it was started.
pub(crate) fn own_program() -> PathBuf {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() { own } else { std::env::current_exe().unwrap_or_else(|_| PathBuf::from("hourglass")) }
}

/// Names the process that started a verb, for [`end_with_parent`].
const PARENT: &str = "HOURGLASS_PARENT";

/// Lets a child of this program be interrupted when this process ends, however it ends: nobody measures for nobody. To be
/// spawned by a thread that waits for it, because the system counts the end of that thread.
pub(crate) fn tie(command: &mut Command) -> &mut Command {
    command.env(PARENT, std::process::id().to_string())
}

/// In a child that was tied: asks the system for the interrupt. Any other process is left as it is, a verb started by an
/// adapter that a `bench` started among them.
pub(crate) fn end_with_parent() {
    let named: Option<i32> = std::env::var(PARENT).ok().and_then(|pid| pid.parse().ok());
    let parent = || rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if named.is_none() || named != parent() {
        return;
    }
    interrupt::take_hangup();
    // A system that cannot has none of this, and loses nothing else.
    let asked = rustix::process::set_parent_process_death_signal(Some(Signal::HUP));
    if asked.is_ok() && named != parent() {
        // It ended between the two.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::HUP);
    }
}

/// Runs `words` (without the program's name) to their end; stdout goes to a new file, or nowhere. `tick` is called about ten
/// times a second.
///
/// # Errors
/// It cannot be started, or the file made.
pub(crate) fn run(words: &[String], stdout: Option<&Path>, tick: &mut dyn FnMut()) -> std::io::Result<Ended> {
    let start = Instant::now();
    let answer = match stdout {
        Some(path) => Stdio::from(std::fs::File::create_new(path)?),
        None => Stdio::null(),
    };
    // A group of its own: Ctrl-C reaches this process, which passes it on once; what the child started ends with it.
    let mut child = tie(&mut Command::new(own_program()))
        .args(words)
        .stdin(Stdio::null())
        .stdout(answer)
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let group = interrupt::OwnGroup::of(child.id());
    let tail = tail_of(&mut child);
    let pid = Pid::from_raw(child.id() as i32);
    let mut told = None;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        match told {
            None if interrupt::requested() => {
                told = Some(Instant::now());
                signal(pid, Signal::INT);
            }
            Some(at) if at.elapsed() > TO_END => {
                signal(pid, Signal::KILL);
            }
            _ => {}
        }
        tick();
        std::thread::sleep(TICK);
    };
    drop(group);
    let text = tail.join().unwrap_or_default();
    let words: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = words[words.len().saturating_sub(3)..].join(" | ");
    let last: String = last.chars().filter(|letter| !record::is_obeyed(*letter)).collect();
    let last_words = match status.signal() {
        Some(signal) => format!("ended by signal {signal}; {last}"),
        None => last.strip_prefix("hourglass: ").unwrap_or(&last).to_owned(),
    };
    Ok(Ended { seconds: start.elapsed().as_secs_f64(), code: status.code(), interrupted: told.is_some(), last_words })
}

fn signal(group: Option<Pid>, signal: Signal) {
    // One that has just ended needs no signal.
    if let Some(group) = group {
        let _ = rustix::process::kill_process_group(group, signal);
    }
}

/// The end of its stderr, read while it runs, so that it never waits for a reader.
fn tail_of(child: &mut Child) -> std::thread::JoinHandle<String> {
    let stderr = child.stderr.take();
    std::thread::spawn(move || {
        let Some(mut stderr) = stderr else { return String::new() };
        let (mut tail, mut block) = (Vec::new(), [0; TAIL_BYTES]);
        while let Ok(read @ 1..) = stderr.read(&mut block) {
            tail.extend_from_slice(&block[..read]);
            let surplus = tail.len().saturating_sub(TAIL_BYTES);
            tail.drain(..surplus);
        }
        String::from_utf8_lossy(&tail).into_owned()
    })
}
