//! Sampling by a timer per thread: it counts the thread's processor time and interrupts it with SIGPROF; the handler walks the
//! stack by frame pointers. For systems that refuse perf events. Not here: kernel functions, switches and faults, which it cannot see.

#![allow(unsafe_code, reason = "timers, a signal handler, and reading the interrupted thread's registers and stack")]

use super::{Address, RawSample};
use std::io;
use std::mem::zeroed;
use std::sync::atomic::{
    AtomicPtr, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst,
};

/// Frames kept of a stack.
const FRAMES: usize = 24;
/// Words of a sample: time, the thread's processor time, number of frames, frames.
const WORDS: usize = 3 + FRAMES;
/// Samples per thread: a minute at 997 Hz.
const ROOM: usize = 60_000;

/// Where the handler writes; null while nothing is sampled.
static RINGS: AtomicPtr<Rings> = AtomicPtr::new(std::ptr::null_mut());
/// Handlers that are using `RINGS`.
static USERS: AtomicUsize = AtomicUsize::new(0);

struct Rings {
    process: libc::pid_t,
    threads: Vec<Ring>,
}

struct Ring {
    words: Vec<AtomicU64>,
    /// Samples written, those without room counted too.
    taken: AtomicUsize,
}

/// Running timers.
pub(super) struct Timers {
    rings: *mut Rings,
    threads: Vec<u32>,
    timers: Vec<libc::timer_t>,
    weight_ns: u64,
}

impl Timers {
    /// # Errors
    /// Another sampler of this kind runs, or the operating system's, for the first timer that it refuses.
    pub(super) fn start(threads: &[u32], frequency_hz: u64) -> io::Result<Timers> {
        if !cfg!(target_arch = "x86_64") {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "registers are known on x86-64 only"));
        }
        let ring = || {
            // Not zero, so that every page is there before the first signal.
            let words = (0..ROOM * WORDS).map(|_| AtomicU64::new(1)).collect();
            Ring { words, taken: AtomicUsize::new(0) }
        };
        let rings = Box::new(Rings {
            process: std::process::id() as libc::pid_t,
            threads: threads.iter().map(|_| ring()).collect(),
        });
        let rings = Box::into_raw(rings);
        if RINGS.compare_exchange(std::ptr::null_mut(), rings, AcqRel, Acquire).is_err() {
            // SAFETY: made above and given to nobody.
            drop(unsafe { Box::from_raw(rings) });
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another sampler runs in this process"));
        }
        let weight_ns = 1_000_000_000 / frequency_hz.max(1);
        let mut started = Timers { rings, threads: Vec::new(), timers: Vec::new(), weight_ns };
        install()?;
        for (index, &thread) in threads.iter().enumerate() {
            started.timers.push(timer(index, thread, weight_ns)?);
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// Whether anything is sampled from now on.
    pub(super) fn switch(&self, on: bool) {
        for &timer in &self.timers {
            // It was set before with such times: it does not fail.
            let _ = beat(timer, if on { self.weight_ns } else { 0 });
        }
    }

    /// The samples, and how many found no room.
    pub(super) fn stop(mut self) -> (Vec<RawSample>, u64) {
        self.silence();
        // SAFETY: made in `start`; handlers no longer use it, and `drop` sees that it is gone.
        let rings = unsafe { Box::from_raw(std::mem::replace(&mut self.rings, std::ptr::null_mut())) };
        let (mut samples, mut lost) = (Vec::new(), 0);
        for (ring, &thread) in rings.threads.iter().zip(&self.threads) {
            let taken = ring.taken.load(Acquire);
            lost += taken.saturating_sub(ROOM) as u64;
            // The kernel looks at such timers at its ticks, so that a period may be longer than was asked for: a sample stands
            // for the processor time since the one before.
            let mut before = None;
            for words in ring.words.chunks_exact(WORDS).take(taken) {
                let used = words[1].load(Relaxed);
                let weight_ns = before.replace(used).map_or(self.weight_ns, |before| used.saturating_sub(before));
                let frames = words[3..].iter().take(words[2].load(Relaxed) as usize).enumerate();
                let stack = frames
                    .map(|(depth, at)| Address { at: at.load(Relaxed), kernel: false, returns: depth > 0 })
                    .collect();
                samples.push(RawSample { at_ns: words[0].load(Relaxed), thread, weight_ns, stack });
            }
        }
        (samples, lost)
    }

    /// After this no handler uses the rings.
    fn silence(&mut self) {
        for timer in self.timers.drain(..) {
            // SAFETY: made by `timer` and deleted once.
            unsafe { libc::timer_delete(timer) };
        }
        RINGS.store(std::ptr::null_mut(), SeqCst);
        while USERS.load(SeqCst) > 0 {
            std::hint::spin_loop();
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        if !self.rings.is_null() {
            self.silence();
            // SAFETY: as in `stop`.
            drop(unsafe { Box::from_raw(self.rings) });
        }
    }
}

fn install() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
    // SAFETY: an all-zero sigaction is a valid value; handler and flags are set before it is used.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `on_signal` calls only what a signal handler may: atomics and a few system calls. It stays installed, because a
    // signal may still be on its way after the last timer is gone, and finds nothing to do then.
    match unsafe { libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn timer(index: usize, thread: u32, period_ns: u64) -> io::Result<libc::timer_t> {
    // SAFETY: an all-zero sigevent is a valid value.
    let mut event: libc::sigevent = unsafe { zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGPROF;
    event.sigev_notify_thread_id = thread as libc::c_int;
    event.sigev_value.sival_ptr = index as *mut libc::c_void;
    // The clock of a thread's processor time, as the kernel numbers it: the thread's number, inverted, and per-thread scheduler.
    let clock = (!(thread as libc::clockid_t) << 3) | 6;
    let mut timer: libc::timer_t = std::ptr::null_mut();
    // SAFETY: both pointers are valid for the call.
    if unsafe { libc::timer_create(clock, &mut event, &mut timer) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if let Err(error) = beat(timer, period_ns) {
        // SAFETY: made above.
        unsafe { libc::timer_delete(timer) };
        return Err(error);
    }
    Ok(timer)
}

/// From now on a timer's period; 0 holds it.
fn beat(timer: libc::timer_t, period_ns: u64) -> io::Result<()> {
    let period = libc::timespec {
        tv_sec: (period_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (period_ns % 1_000_000_000) as libc::c_long,
    };
    let rhythm = libc::itimerspec { it_interval: period, it_value: period };
    // SAFETY: callers pass timers that were made and not deleted; the times are valid.
    if unsafe { libc::timer_settime(timer, 0, &rhythm, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_signal(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    USERS.fetch_add(1, SeqCst);
    let rings = RINGS.load(SeqCst);
    if !rings.is_null() {
        // SAFETY: the address is this thread's own.
        let errno = unsafe { *libc::__errno_location() };
        // SAFETY: `silence` waits for USERS before the rings go away; the kernel passed valid pointers.
        unsafe {
            let index = (*info).si_value().sival_ptr as usize;
            let rings = &*rings;
            if let Some(ring) = rings.threads.get(index) {
                note(ring, rings.process, context.cast());
            }
            *libc::__errno_location() = errno;
        }
    }
    USERS.fetch_sub(1, SeqCst);
}

/// Writes one sample.
///
/// # Safety
/// `context` is what the kernel gave the handler.
unsafe fn note(ring: &Ring, process: libc::pid_t, context: *const libc::ucontext_t) {
    let place = ring.taken.fetch_add(1, AcqRel);
    if place >= ROOM {
        return;
    }
    let words = &ring.words[place * WORDS..(place + 1) * WORDS];
    for (word, clock) in words.iter().zip([libc::CLOCK_MONOTONIC, libc::CLOCK_THREAD_CPUTIME_ID]) {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a valid place for the time.
        unsafe { libc::clock_gettime(clock, &mut now) };
        word.store(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64, Relaxed);
    }
    // SAFETY: the caller's promise.
    let (instruction, mut frame) = unsafe { registers(context) };
    words[3].store(instruction, Relaxed);
    let mut depth = 1;
    while depth < FRAMES {
        let Some([caller, address]) = pair(process, frame) else { break };
        if address == 0 {
            break;
        }
        words[3 + depth].store(address, Relaxed);
        depth += 1;
        // Stacks grow downwards, so callers' frames are above; anything else is no frame pointer.
        if caller <= frame || caller % 8 != 0 {
            break;
        }
        frame = caller;
    }
    words[2].store(depth as u64, Relaxed);
}

/// Instruction and frame pointer.
///
/// # Safety
/// As for [`note`].
#[cfg(target_arch = "x86_64")]
unsafe fn registers(context: *const libc::ucontext_t) -> (u64, u64) {
    // SAFETY: the caller's promise.
    let registers = unsafe { &(*context).uc_mcontext.gregs };
    (registers[libc::REG_RIP as usize] as u64, registers[libc::REG_RBP as usize] as u64)
}

/// # Safety
/// None needed; `start` refuses on other machines.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn registers(_: *const libc::ucontext_t) -> (u64, u64) {
    (0, 0)
}

/// The two words at an address of this process, through the kernel: an address that is none is no crash.
fn pair(process: libc::pid_t, address: u64) -> Option<[u64; 2]> {
    let mut words = [0_u64; 2];
    let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: 16 };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 16 };
    // SAFETY: the local range is ours and writable; the remote one is checked by the kernel.
    let read = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
    (read == 16).then_some(words)
}
