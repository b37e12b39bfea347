//! Ctrl-C: the first sets a flag that long work looks at, the second ends the process at once, and its children with it.
//! Not here: what a verb does when interrupted.

#![allow(unsafe_code, reason = "installing a signal handler, and waiting for input that a signal may interrupt")]

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};

static REQUESTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The process group that a second Ctrl-C ends, or 0.
static GROUP: AtomicI32 = AtomicI32::new(0);

/// A child with a process group of its own, which Ctrl-C in the terminal does not reach. One at a time.
pub(crate) struct OwnGroup;

impl OwnGroup {
    /// From here until the value is dropped, the second Ctrl-C kills the group of process `leader`. Drop it before the
    /// child is waited for: its number may be another process's afterwards.
    pub(crate) fn of(leader: u32) -> OwnGroup {
        // 0 and 1 as groups would be this process's own and everybody's.
        GROUP.store(i32::try_from(leader).ok().filter(|leader| *leader > 1).unwrap_or(0), SeqCst);
        OwnGroup
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        GROUP.store(0, SeqCst);
    }
}

/// The flag for what takes one: true after the first Ctrl-C (or SIGTERM, or SIGHUP).
pub(crate) fn flag() -> Arc<AtomicBool> {
    Arc::clone(&REQUESTED)
}

pub(crate) fn requested() -> bool {
    REQUESTED.load(SeqCst)
}

/// Takes SIGINT and SIGTERM, and SIGHUP: a terminal that is closed asks as Ctrl-C does, and so does the end of a parent.
/// Without SA_RESTART, so that a wait for input ends too.
pub(crate) fn install() {
    // Made now, so that the handler only ever reads it.
    LazyLock::force(&REQUESTED);
    take(libc::SIGINT, on_signal);
    take(libc::SIGTERM, on_signal);
    // SAFETY: an all-zero sigaction is a valid value, to be written over; no action is set.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `before` is valid for writing.
    unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut before) };
    // Ignored: `nohup` started this.
    if before.sa_sigaction != libc::SIG_IGN {
        take_hangup();
    }
}

/// Takes SIGHUP though `nohup` started the parent.
pub(crate) fn take_hangup() {
    take(libc::SIGHUP, on_hangup);
}

/// `handler` may only do what a signal handler may: atomics, kill, _exit.
fn take(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: an all-zero sigaction is a valid value; its handler is set before it is used.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: `action` is initialised, and the old action is not asked for.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

/// However often it comes, it asks once: the system sends it for every thread of a parent that ends.
extern "C" fn on_hangup(_: libc::c_int) {
    REQUESTED.store(true, SeqCst);
}

extern "C" fn on_signal(_: libc::c_int) {
    if REQUESTED.swap(true, SeqCst) {
        let group = GROUP.load(SeqCst);
        if group > 1 {
            // SAFETY: kill may be called from a signal handler; `OwnGroup` holds the number only while the child is not
            // waited for, so it is no other process's.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        // SAFETY: _exit may be called from a signal handler and does not return.
        unsafe { libc::_exit(crate::failure::INTERRUPTED.into()) }
    }
}

/// Waits until stdin can be read (or has ended); false: interrupted first.
pub(crate) fn wait_for_stdin() -> bool {
    loop {
        if requested() {
            return false;
        }
        let mut stdin = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
        // A signal between the check above and the call would be slept through, so the wait is in short pieces.
        // SAFETY: one valid pollfd is passed, and its count is one.
        if unsafe { libc::poll(&mut stdin, 1, 200) } > 0 {
            return true;
        }
    }
}
