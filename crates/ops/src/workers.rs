//! The CPU workers: threads that walk a bound program together, and the barrier they meet at. Spin first, then park.
//! Not here: what they run; they know no program.

#![allow(unsafe_code, reason = "a borrowed job crosses to threads that outlive the borrow's syntax")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

/// Polls before a waiting worker sleeps in the kernel: some tens of microseconds, more than any barrier of a healthy walk.
const SPINS: u32 = 2000;

/// A fixed set of workers; the calling thread is worker 0.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    pinned: bool,
    /// One walk at a time.
    busy: Mutex<()>,
}

type Job<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    count: usize,
    /// Number of the current job; a change starts the workers.
    job_number: Gate,
    job: Mutex<Option<Job<'static>>>,
    /// Workers that have not finished the current job.
    running: Gate,
    stop: AtomicBool,
    barrier: Barrier,
    panicked: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// Processors that this process may use, as they were when it was first asked, or first made [`Workers`]: pinning its own thread
/// changes what the system says.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// A sense-reversing barrier; every arrival spins, then parks on the generation word.
struct Barrier {
    arrived: AtomicUsize,
    generation: Gate,
    poisoned: AtomicBool,
}

/// A word that threads wait on: they spin, then sleep in the kernel; a change costs a system call only if someone sleeps.
struct Gate {
    word: AtomicU32,
    sleepers: AtomicU32,
}

impl Workers {
    /// `count` workers, this thread among them. With `pin`, worker n runs on the n-th processor that the process may use.
    ///
    /// # Errors
    /// The operating system's error when a thread cannot be made, or pinned.
    pub fn new(count: usize, pin: bool) -> std::io::Result<Workers> {
        let count = count.max(1);
        let shared = Arc::new(Shared {
            count,
            job_number: Gate::new(0),
            job: Mutex::new(None),
            running: Gate::new(0),
            stop: AtomicBool::new(false),
            barrier: Barrier {
                arrived: AtomicUsize::new(0),
                generation: Gate::new(0),
                poisoned: AtomicBool::new(false),
            },
            panicked: Mutex::new(None),
        });
        let mut workers = Workers { shared, threads: Vec::new(), pinned: pin, busy: Mutex::new(()) };
        // Known before this thread is pinned, after which the system says one.
        processors();
        let processors = if pin { affinity::allowed()? } else { Vec::new() };
        if pin {
            affinity::pin(processors[0])?;
        }
        for worker in 1..count {
            let shared = Arc::clone(&workers.shared);
            let processor = pin.then(|| processors[worker % processors.len()]);
            let body = move || {
                if let Some(processor) = processor {
                    // The caller's own pinning succeeded; a processor that vanished since only costs speed.
                    let _ = affinity::pin(processor);
                }
                shared.serve(worker);
            };
            workers.threads.push(std::thread::Builder::new().name(format!("worker {worker}")).spawn(body)?);
        }
        Ok(workers)
    }

    pub fn count(&self) -> usize {
        self.shared.count
    }

    pub fn pinned(&self) -> bool {
        self.pinned
    }

    /// Runs `job(worker)` on every worker and returns when all have finished.
    ///
    /// # Panics
    /// With the first worker's panic, after all have stopped.
    pub fn run(&self, job: Job<'_>) {
        let _busy = self.busy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let shared = &*self.shared;
        shared.running.set(shared.count as u32 - 1);
        // SAFETY: only the lifetime changes. Workers call the job between the two points below, and this function returns
        // only after `running` reached zero, so the borrow outlives every call.
        let job_for_workers: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        *shared.job.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(job_for_workers);
        shared.job_number.advance();
        shared.guarded(|| job(0));
        shared.running.wait_until(|left| left == 0);
        *shared.job.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
        let panicked = shared.panicked.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(panic) = panicked {
            shared.barrier.arrived.store(0, Ordering::Relaxed);
            shared.barrier.poisoned.store(false, Ordering::Relaxed);
            resume_unwind(panic);
        }
    }

    /// Waits until every worker has come here. Only within a job.
    ///
    /// # Panics
    /// When another worker panicked, so that none waits forever.
    #[inline]
    pub fn barrier(&self) {
        self.shared.barrier.wait(self.shared.count, || false);
    }

    /// The same; until the last one comes, the others call `meanwhile` again and again, as long as it returns true.
    ///
    /// # Panics
    /// As [`Workers::barrier`].
    #[inline]
    pub fn barrier_while(&self, meanwhile: impl FnMut() -> bool) {
        self.shared.barrier.wait(self.shared.count, meanwhile);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.job_number.advance();
        for thread in self.threads.drain(..) {
            // A worker's panic was already passed on by `run`.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self, worker: usize) {
        let mut done = 0;
        loop {
            done = self.job_number.wait_until(|number| number != done);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let job = *self.job.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(job) = job {
                self.guarded(|| job(worker));
            }
            self.running.decrease();
        }
    }

    fn guarded(&self, body: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            let mut first = self.panicked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            first.get_or_insert(panic);
            drop(first);
            self.barrier.poisoned.store(true, Ordering::Release);
            self.barrier.generation.advance();
        }
    }
}

impl Barrier {
    #[inline]
    fn wait(&self, count: usize, mut meanwhile: impl FnMut() -> bool) {
        if count == 1 {
            return;
        }
        // The generation is read before `poisoned`: a poisoning thread sets the flag and then advances the generation, so
        // either the flag is seen here or the advance ends the wait below.
        let generation = self.generation.get();
        if !self.poisoned.load(Ordering::Acquire) {
            if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == count {
                self.arrived.store(0, Ordering::Relaxed);
                self.generation.advance();
            } else {
                while self.generation.get() == generation && meanwhile() {}
                self.generation.wait_until(|now| now != generation);
            }
        }
        if self.poisoned.load(Ordering::Acquire) {
            panic!("another worker panicked");
        }
    }
}

impl Gate {
    const fn new(value: u32) -> Gate {
        Gate { word: AtomicU32::new(value), sleepers: AtomicU32::new(0) }
    }

    #[inline]
    fn get(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Sets the word while nobody waits on it.
    fn set(&self, value: u32) {
        self.word.store(value, Ordering::Release);
    }

    #[inline]
    fn advance(&self) {
        self.word.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    #[inline]
    fn decrease(&self) {
        self.word.fetch_sub(1, Ordering::SeqCst);
        self.wake();
    }

    /// A sleeper announces itself before the kernel compares the word, and the word changes before the announcement is
    /// looked for, both in one total order: one of the two sides sees the other.
    #[inline]
    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.word);
        }
    }

    /// Spins, then sleeps, until `ready` holds of the word; returns the word.
    #[inline]
    fn wait_until(&self, ready: impl Fn(u32) -> bool) -> u32 {
        for _ in 0..SPINS {
            let now = self.get();
            if ready(now) {
                return now;
            }
            std::hint::spin_loop();
        }
        self.sleep_until(ready)
    }

    #[cold]
    fn sleep_until(&self, ready: impl Fn(u32) -> bool) -> u32 {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let word = loop {
            let now = self.word.load(Ordering::SeqCst);
            if ready(now) {
                break now;
            }
            futex::wait(&self.word, now);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        word
    }
}

/// Sleeping on a word and waking its sleepers.
mod futex {
    use std::sync::atomic::AtomicU32;

    pub(super) fn wait(word: &AtomicU32, seen: u32) {
        // SAFETY: the word outlives the call; a wake-up without cause is allowed for by the caller's loop.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                seen,
                std::ptr::null::<libc::timespec>(),
            )
        };
    }

    pub(super) fn wake_all(word: &AtomicU32) {
        // SAFETY: the kernel only uses the address as a key.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
    }
}

pub(crate) mod affinity {
    use std::io;

    /// The processors that the calling thread may use.
    pub(crate) fn allowed() -> io::Result<Vec<usize>> {
        // SAFETY: cpu_set_t is plain data for which zero is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: a set of the right size for the calling thread (0).
        if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the index is below CPU_SETSIZE.
        Ok((0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
    }

    /// Pins the calling thread to one processor of [`allowed`].
    pub(crate) fn pin(processor: usize) -> io::Result<()> {
        // SAFETY: as above.
        let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the index came from `allowed`, so it is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(processor, &mut one) };
        // SAFETY: a valid set of the right size for the calling thread (0).
        if unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_worker_runs_and_barriers_order_their_writes() {
        for count in 1..=8 {
            let workers = Workers::new(count, false).expect("threads");
            let cells: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
            for round in 1..=50u64 {
                let sum = AtomicU64::new(0);
                workers.run(&|worker| {
                    cells[worker].store(round * (worker as u64 + 1), Ordering::Relaxed);
                    workers.barrier();
                    let neighbour = cells[(worker + 1) % count].load(Ordering::Relaxed);
                    sum.fetch_add(neighbour, Ordering::Relaxed);
                    workers.barrier();
                });
                assert_eq!(sum.into_inner(), round * (count * (count + 1) / 2) as u64);
            }
        }
    }

    #[test]
    fn a_pinned_thread_still_knows_how_many_processors_there_are() {
        let pinned = std::thread::spawn(|| {
            let _workers = Workers::new(1, true).expect("one thread");
            processors()
        });
        assert_eq!(pinned.join().expect("no panic"), std::thread::available_parallelism().map_or(1, usize::from));
    }

    #[test]
    fn who_waits_can_do_something_meanwhile_and_goes_on_when_the_last_has_come() {
        for count in [1, 2, 3, 12] {
            let workers = Workers::new(count, false).expect("threads");
            let (busy, before, after) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
            for _ in 0..20 {
                workers.run(&|worker| {
                    // The last worker comes when every other has begun to do something else, which none of them ends by itself.
                    while worker == count - 1 && busy.load(Ordering::Acquire) < count as u64 - 1 {
                        std::thread::yield_now();
                    }
                    before.fetch_add(1, Ordering::Relaxed);
                    let mut calls = 0u64;
                    workers.barrier_while(|| {
                        calls += 1;
                        if calls == 1 {
                            busy.fetch_add(1, Ordering::Release);
                        }
                        std::thread::yield_now();
                        true
                    });
                    assert_eq!(calls > 0, worker < count - 1, "only who waits");
                    after.fetch_add(u64::from(before.load(Ordering::Relaxed) == count as u64), Ordering::Relaxed);
                    workers.barrier();
                });
                assert_eq!(after.swap(0, Ordering::Relaxed), count as u64, "nobody went on before all had come");
                busy.store(0, Ordering::Relaxed);
                before.store(0, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn more_workers_than_processors_beside_threads_that_never_rest() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..processors {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let workers = Workers::new(2 * processors + 1, false).expect("threads");
            let met = AtomicU64::new(0);
            workers.run(&|worker| {
                for round in 0..100u64 {
                    if round % workers.count() as u64 == worker as u64 {
                        met.fetch_add(1, Ordering::Relaxed);
                    }
                    workers.barrier();
                    assert_eq!(met.load(Ordering::Relaxed), round + 1, "a round is counted once, before all go on");
                    workers.barrier();
                }
            });
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_workers_usable() {
        let workers = Workers::new(3, false).expect("threads");
        let caught = catch_unwind(AssertUnwindSafe(|| {
            workers.run(&|worker| {
                assert!(worker != 2, "worker two gives up");
                workers.barrier();
            });
        }));
        assert!(caught.is_err());
        let ran = AtomicU64::new(0);
        workers.run(&|_| {
            workers.barrier();
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 3);
    }
}
