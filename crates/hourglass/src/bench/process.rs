//! Runs one child process to its end: its lines, its time limit, its group, and the machine around it.
//! Not here: in which order processes run (`runner.rs`), and what their lines mean (`record::bench`).

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use probe::{Before, Watch, Watched};
use record::Known;
use record::bench::{ChildHeader, ChildLine, ChildRequest, MAX_LINE_BYTES, Reason, Surroundings, UNAVAILABLE_EXIT};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::child::tie;
use crate::interrupt;

/// How often a wait looks at the clock and at Ctrl-C.
const TICK: Duration = Duration::from_millis(100);
/// After its request a child has nothing left to do.
const TO_END: Duration = Duration::from_secs(20);
/// How long after its end a child's last lines may take to be read.
const TO_BE_READ: Duration = Duration::from_secs(2);
/// What is kept of a child's stderr.
const TAIL_BYTES: usize = 4096;

/// How a child is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChildCommand {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
}

/// What a child is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// A header and a request of so many generated tokens.
    Request(u64),
    /// Convert its model, and say nothing.
    Prepare,
}

/// What became of a process.
pub(crate) enum ChildResult {
    Prepared,
    Ran(Box<(ChildHeader, ChildRequest)>),
    /// The engine cannot run here, and says why.
    Unavailable(Reason),
    /// No numbers, and why.
    Lost(String),
    /// Ctrl-C ended it.
    Interrupted,
}

/// One process, run.
pub(crate) struct Execution {
    pub(crate) process_id: Known<u32>,
    pub(crate) started: String,
    pub(crate) seconds: f64,
    pub(crate) result: ChildResult,
    pub(crate) surroundings: Known<Surroundings>,
}

/// Runs `command`; `limit` None waits for ever. `tick` is called about ten times a second.
pub(crate) fn run(command: &ChildCommand, limit: Option<Duration>, task: Task, tick: &mut dyn FnMut()) -> Execution {
    let before = Before::now();
    let (started, start) = (probe::now(), Instant::now());
    let spawned = tie(&mut Command::new(&command.program))
        .args(&command.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own: Ctrl-C reaches this process alone, and the group is ended whole.
        .process_group(0)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            let why = format!("{} cannot be started: {error}", command.program.display());
            return Execution {
                process_id: Known::unavailable(why.as_str(), "see the reason"),
                started,
                seconds: start.elapsed().as_secs_f64(),
                result: ChildResult::Lost(why),
                surroundings: Known::unavailable("no process was started", "see the reason"),
            };
        }
    };
    let process = child.id();
    let group = interrupt::OwnGroup::of(process);
    let tail = tail_of(&mut child);
    let lines = lines_of(&mut child);
    let mut talk = Talk { before: Some(before), watch: None, watched: None, header: None, request: None, reason: None };
    let ended = listen(&mut talk, &lines, process, start, limit, tick)
        .and_then(|()| wait_for_end(process, start, limit, tick))
        .err();
    // The child is not waited for yet, so that its number still is its own; whatever it started ends with it.
    if let Some(leader) = Pid::from_raw(process as i32) {
        let _ = rustix::process::kill_process_group(leader, Signal::KILL);
    }
    drop(group);
    let status = child.wait();
    let seconds = start.elapsed().as_secs_f64();
    let switches = match talk.request.as_ref().and_then(|request| request.involuntary_switches) {
        Some(count) => Known::Is(count),
        None => Known::unavailable("the child does not say", "only some engines' adapters count them"),
    };
    let surroundings = match talk.watched.take() {
        Some(watched) => Known::Is(watched.finish(switches)),
        None => Known::unavailable("no request came to its end", "see the reason of the loss"),
    };
    let result = match ended {
        Some(End::Interrupted) => ChildResult::Interrupted,
        Some(End::Lost(why)) => ChildResult::Lost(with_tail(why, &tail)),
        None => talk.verdict(status, task, seconds, &tail),
    };
    Execution { process_id: Known::Is(process), started, seconds, result, surroundings }
}

/// Why listening or waiting stopped before the child ended by itself.
enum End {
    Interrupted,
    Lost(String),
}

/// What has been heard.
struct Talk {
    before: Option<Before>,
    watch: Option<Watch>,
    watched: Option<Watched>,
    header: Option<ChildHeader>,
    request: Option<ChildRequest>,
    reason: Option<Reason>,
}

impl Talk {
    fn hear(&mut self, line: &str, process: u32) -> Result<(), End> {
        let line = ChildLine::parse(line).map_err(|error| End::Lost(error.to_string()))?;
        if self.reason.is_some() || self.request.is_some() {
            return Err(End::Lost("it went on talking after its last line".to_owned()));
        }
        match line {
            ChildLine::Header(_) if self.header.is_some() => Err(End::Lost("it sent two headers".to_owned())),
            ChildLine::Header(header) => {
                self.header = Some(*header);
                self.watch = self.before.take().map(|before| before.watch(process));
                Ok(())
            }
            ChildLine::Request(_) if self.header.is_none() => {
                Err(End::Lost("it sent a request before its header".to_owned()))
            }
            ChildLine::Request(request) => {
                self.watched = self.watch.take().map(Watch::stop);
                self.request = Some(*request);
                Ok(())
            }
            ChildLine::Unavailable(reason) => {
                self.reason = Some(reason);
                Ok(())
            }
        }
    }

    /// `seconds`: how long the process ran, by our clock.
    fn verdict(self, status: std::io::Result<ExitStatus>, task: Task, seconds: f64, tail: &Tail) -> ChildResult {
        let status = match status {
            Ok(status) => status,
            Err(error) => return ChildResult::Lost(format!("its end could not be waited for: {error}")),
        };
        if let Some(reason) = self.reason
            && status.code() == Some(UNAVAILABLE_EXIT)
        {
            return ChildResult::Unavailable(reason);
        }
        let ended = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended in an unknown way".to_owned(),
        };
        match (self.header, self.request, task) {
            (None, None, Task::Prepare) if status.success() => ChildResult::Prepared,
            (_, _, Task::Prepare) => ChildResult::Lost(with_tail(format!("converting the model: {ended}"), tail)),
            (Some(header), Some(request), Task::Request(tokens)) if status.success() => match request.check(tokens) {
                Ok(()) if request.request_s > seconds => ChildResult::Lost(format!(
                    "its request says that it took {} s, and the whole process ran for {seconds:.3} s",
                    request.request_s
                )),
                Ok(()) => ChildResult::Ran(Box::new((header, request))),
                Err(error) => ChildResult::Lost(error.to_string()),
            },
            (_, Some(_), _) => ChildResult::Lost(with_tail(format!("{ended} after its request"), tail)),
            (Some(_), None, _) => ChildResult::Lost(with_tail(format!("{ended} before its request was done"), tail)),
            (None, None, _) => ChildResult::Lost(with_tail(format!("{ended} before its header"), tail)),
        }
    }
}

type Line = Result<String, String>;

/// Until the child closes its stdout, or has sent its last line.
fn listen(
    talk: &mut Talk,
    lines: &Receiver<Line>,
    process: u32,
    start: Instant,
    limit: Option<Duration>,
    tick: &mut dyn FnMut(),
) -> Result<(), End> {
    let mut ended: Option<Instant> = None;
    loop {
        check(start, limit)?;
        tick();
        match lines.recv_timeout(TICK) {
            Ok(Ok(line)) => talk.hear(&line, process)?,
            Ok(Err(why)) => return Err(End::Lost(why)),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            // What it started may hold its stdout open for ever; on a busy machine its last lines may be read late.
            Err(RecvTimeoutError::Timeout) if has_ended(process) => {
                if ended.get_or_insert_with(Instant::now).elapsed() > TO_BE_READ {
                    return Ok(());
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn wait_for_end(process: u32, start: Instant, limit: Option<Duration>, tick: &mut dyn FnMut()) -> Result<(), End> {
    let closed = Instant::now();
    while !has_ended(process) {
        check(start, limit)?;
        if closed.elapsed() > TO_END {
            return Err(End::Lost(format!("it closed its stdout and did not end within {} s", TO_END.as_secs())));
        }
        tick();
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn check(start: Instant, limit: Option<Duration>) -> Result<(), End> {
    if interrupt::requested() {
        return Err(End::Interrupted);
    }
    match limit {
        Some(limit) if start.elapsed() > limit => {
            Err(End::Lost(format!("it took longer than --time-limit-seconds {} and was ended", limit.as_secs_f64())))
        }
        _ => Ok(()),
    }
}

/// Whether it has ended, leaving it to be waited for.
fn has_ended(process: u32) -> bool {
    let Some(pid) = Pid::from_raw(process as i32) else { return true };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // An error means that there is no such child any more.
    rustix::process::waitid(WaitId::Pid(pid), options).map_or(true, |status| status.is_some())
}

/// Lines of its stdout, a few at a time, so that one that never stops is held up.
fn lines_of(child: &mut Child) -> Receiver<Line> {
    let (send, receive) = sync_channel(4);
    let Some(stdout) = child.stdout.take() else { return receive };
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        loop {
            let mut bytes = Vec::new();
            let line = match reader.by_ref().take(MAX_LINE_BYTES as u64 + 2).read_until(b'\n', &mut bytes) {
                Ok(0) => return,
                Ok(_) if bytes.len() > MAX_LINE_BYTES + 1 => {
                    Err(format!("a line of its output is longer than {MAX_LINE_BYTES} bytes"))
                }
                Ok(_) => String::from_utf8(bytes)
                    .map(|line| line.trim_end_matches(['\n', '\r']).to_owned())
                    .map_err(|_| "a line of its output is not UTF-8".to_owned()),
                Err(error) => Err(format!("its output cannot be read: {error}")),
            };
            let last = line.is_err();
            if send.send(line).is_err() || last {
                return;
            }
        }
    });
    receive
}

/// The end of its stderr, filled while it talks.
type Tail = Arc<Mutex<Vec<u8>>>;

fn tail_of(child: &mut Child) -> Tail {
    let tail = Tail::default();
    let Some(mut stderr) = child.stderr.take() else { return tail };
    let filled = Arc::clone(&tail);
    std::thread::spawn(move || {
        let mut block = [0; TAIL_BYTES];
        while let Ok(read) = stderr.read(&mut block) {
            let Ok(mut tail) = filled.lock() else { return };
            if read == 0 {
                return;
            }
            tail.extend_from_slice(&block[..read]);
            let surplus = tail.len().saturating_sub(TAIL_BYTES);
            tail.drain(..surplus);
        }
    });
    tail
}

/// The reason with the last lines that the child wrote to stderr.
fn with_tail(why: String, tail: &Tail) -> String {
    // Its last words may still be on their way.
    std::thread::sleep(Duration::from_millis(20));
    let Ok(tail) = tail.lock() else { return why };
    let text: String = String::from_utf8_lossy(&tail)
        .chars()
        .map(|letter| if record::is_obeyed(letter) && letter != '\n' { ' ' } else { letter })
        .collect();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].join(" | ");
    if last.is_empty() {
        return why;
    }
    let length = last.chars().count();
    let short: String = last.chars().skip(length.saturating_sub(500)).collect();
    format!("{why}; its last words: {short}")
}
