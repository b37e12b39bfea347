//! How many bytes are allocated now and at most since the last reset: arenas always, the heap where a binary installs
//! [`CountingAllocator`]; and, while asked for, which large allocations were made. Resident memory is the operating system's to tell.

#![allow(unsafe_code, reason = "a GlobalAlloc implementation")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

static CURRENT: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static HEAP_COUNTED: AtomicBool = AtomicBool::new(false);

/// Bytes allocated now: weights, caches and activations, and the heap if it [is counted](heap_is_counted).
pub fn current_bytes() -> usize {
    CURRENT.load(Relaxed)
}

/// The largest value of [`current_bytes`] since the last [`reset_peak`].
pub fn peak_bytes() -> usize {
    PEAK.load(Relaxed)
}

/// Starts a new peak at what is allocated now.
pub fn reset_peak() {
    PEAK.store(current_bytes(), Relaxed);
}

/// Heap allocations (and arena mappings) since the process began; the difference of two readings counts those between.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// Whether this binary installed [`CountingAllocator`]; if not, heap bytes are missing from the figures above.
pub fn heap_is_counted() -> bool {
    HEAP_COUNTED.load(Relaxed)
}

pub(crate) fn add(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    PEAK.fetch_max(CURRENT.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    if bytes >= NOTED_FROM.load(Relaxed) {
        note(bytes);
    }
}

/// Allocations noted at most between [`note_from`] and [`noted`].
pub const NOTES: usize = 4096;

/// Smaller allocations are not noted.
static NOTED_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Places taken in `NOTED`, those beyond its end counted too.
static NOTED_COUNT: AtomicUsize = AtomicUsize::new(0);
static NOTED: [Note; NOTES] =
    [const { Note { at_ns: AtomicU64::new(0), bytes: AtomicU64::new(0), thread: AtomicU64::new(0) } }; NOTES];

struct Note {
    at_ns: AtomicU64,
    bytes: AtomicU64,
    thread: AtomicU64,
}

/// A large allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Of the monotonic clock.
    pub at_ns: u64,
    pub bytes: u64,
    /// The operating system's number of the thread.
    pub thread: u32,
}

/// From now on notes every allocation of at least `bytes` (heap where it is counted, arenas always), up to [`NOTES`] of them,
/// without a lock; forgets earlier notes. `usize::MAX` ends it.
pub fn note_from(bytes: usize) {
    NOTED_FROM.store(usize::MAX, Relaxed);
    NOTED_COUNT.store(0, Relaxed);
    NOTED_FROM.store(bytes, Relaxed);
}

/// What was noted, in order of time, and how many more found no room. Ends the noting.
pub fn noted() -> (Vec<Allocation>, u64) {
    NOTED_FROM.store(usize::MAX, Relaxed);
    let count = NOTED_COUNT.load(Acquire);
    let allocation = |note: &Note| Allocation {
        at_ns: note.at_ns.load(Relaxed),
        bytes: note.bytes.load(Relaxed),
        thread: note.thread.load(Relaxed) as u32,
    };
    let mut found: Vec<Allocation> = NOTED[..count.min(NOTES)].iter().map(allocation).collect();
    found.sort_by_key(|allocation| allocation.at_ns);
    (found, count.saturating_sub(NOTES) as u64)
}

#[cold]
fn note(bytes: usize) {
    let place = NOTED_COUNT.fetch_add(1, AcqRel);
    let Some(note) = NOTED.get(place) else { return };
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the time; the call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    note.at_ns.store(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64, Relaxed);
    note.bytes.store(bytes as u64, Relaxed);
    // SAFETY: takes nothing and cannot fail.
    note.thread.store(unsafe { libc::gettid() } as u64, Relaxed);
}

pub(crate) fn remove(bytes: usize) {
    CURRENT.fetch_sub(bytes, Relaxed);
}

/// The system allocator, counted. Install with `#[global_allocator]`; costs two or three relaxed atomic operations per
/// call, and nothing in a step, which does not allocate.
pub struct CountingAllocator;

// SAFETY: every call is passed on unchanged to `System`, which upholds the contract; counting touches only atomics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds GlobalAlloc::alloc's contract.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            HEAP_COUNTED.store(true, Relaxed);
            add(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds GlobalAlloc::alloc_zeroed's contract.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            HEAP_COUNTED.store(true, Relaxed);
            add(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds GlobalAlloc::dealloc's contract.
        unsafe { System.dealloc(pointer, layout) };
        remove(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller upholds GlobalAlloc::realloc's contract.
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
        if !moved.is_null() {
            add(new_size);
            remove(layout.size());
        }
        moved
    }
}
