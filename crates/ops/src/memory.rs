//! How many bytes are allocated now and at most since the last reset: arenas always, the heap where a binary installs
//! [`CountingAllocator`]. Resident memory of the process is the operating system's to tell and is not here.

#![allow(unsafe_code, reason = "a GlobalAlloc implementation")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

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
