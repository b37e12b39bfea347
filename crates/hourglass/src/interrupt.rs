//! Ctrl-C: the first sets a flag that long work looks at, the second ends the process at once.
//! Not here: what a verb does when interrupted.

#![allow(unsafe_code, reason = "installing a signal handler, and waiting for input that a signal may interrupt")]

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};

static REQUESTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The flag for what takes one: true after the first Ctrl-C (or SIGTERM).
pub(crate) fn flag() -> Arc<AtomicBool> {
    Arc::clone(&REQUESTED)
}

pub(crate) fn requested() -> bool {
    REQUESTED.load(SeqCst)
}

/// Takes SIGINT and SIGTERM. Without SA_RESTART, so that a wait for input ends too.
pub(crate) fn install() {
    // Made now, so that the handler only ever reads it.
    LazyLock::force(&REQUESTED);
    let handler: extern "C" fn(libc::c_int) = on_signal;
    // SAFETY: an all-zero sigaction is a valid value; its handler and flags are set before it is used.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: `action` is initialised, the old action is not asked for, and `on_signal` calls only what a signal
        // handler may: an atomic swap and _exit.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

extern "C" fn on_signal(_: libc::c_int) {
    if REQUESTED.swap(true, SeqCst) {
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
