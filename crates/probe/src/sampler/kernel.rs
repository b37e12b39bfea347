//! The kernel's interface for performance events: opening one, its memory-mapped ring, switching it.
//! Not here: which events are wanted (`perf.rs`), and what the records in a ring mean (`records.rs`).

#![allow(unsafe_code, reason = "system calls, and a ring that the kernel writes")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// `struct perf_event_attr` up to its 128-byte version.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Attributes {
    pub(super) kind: u32,
    pub(super) size: u32,
    pub(super) config: u64,
    /// Or a frequency, with [`flag::FREQUENCY`].
    pub(super) period: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) flags: u64,
    /// Bytes in the ring at which a waiting reader wakes, with [`flag::WATERMARK`].
    pub(super) wakeup: u32,
    pub(super) breakpoint_type: u32,
    pub(super) config1: u64,
    pub(super) config2: u64,
    pub(super) branch_sample_type: u64,
    pub(super) user_registers: u64,
    pub(super) user_stack: u32,
    pub(super) clock: i32,
    pub(super) registers_at_interrupt: u64,
    pub(super) aux_watermark: u32,
    pub(super) most_frames: u16,
    pub(super) reserved: u16,
    pub(super) aux_sample: u32,
    pub(super) reserved2: u32,
    pub(super) signal_data: u64,
}

/// Bits of [`Attributes::flags`].
pub(super) mod flag {
    pub(in crate::sampler) const DISABLED: u64 = 1 << 0;
    pub(in crate::sampler) const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub(in crate::sampler) const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    pub(in crate::sampler) const FREQUENCY: u64 = 1 << 10;
    pub(in crate::sampler) const WATERMARK: u64 = 1 << 14;
    pub(in crate::sampler) const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub(in crate::sampler) const USE_CLOCK: u64 = 1 << 25;
    pub(in crate::sampler) const CONTEXT_SWITCH: u64 = 1 << 26;
}

const CLOSE_ON_EXEC: u64 = 8;
const ENABLE: u64 = 0x2400;
const DISABLE: u64 = 0x2401;
const SET_OUTPUT: u64 = 0x2405;
const ID: u64 = 0x8008_2407;

/// An open event of one thread.
pub(super) struct Event(OwnedFd);

impl Event {
    /// # Errors
    /// The operating system's: no such event here, or not permitted.
    pub(super) fn open(attributes: &Attributes, thread: u32) -> io::Result<Event> {
        let mut attributes = *attributes;
        attributes.size = size_of::<Attributes>() as u32;
        attributes.clock = libc::CLOCK_MONOTONIC;
        // SAFETY: the attributes are as large as they say; the kernel only reads them.
        let number = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                thread as libc::pid_t,
                -1,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above returned a new descriptor that nobody else owns.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(number as i32) }))
    }

    /// What the event's records carry.
    pub(super) fn id(&self) -> io::Result<u64> {
        let mut id = 0_u64;
        // SAFETY: the request writes eight bytes there.
        self.control(ID, (&raw mut id) as usize).map(|()| id)
    }

    /// From now on its records go to the ring of `other`, an event of the same thread.
    pub(super) fn write_to(&self, other: &Event) -> io::Result<()> {
        self.control(SET_OUTPUT, other.0.as_raw_fd() as usize)
    }

    pub(super) fn enable(&self, on: bool) -> io::Result<()> {
        self.control(if on { ENABLE } else { DISABLE }, 0)
    }

    fn control(&self, request: u64, argument: usize) -> io::Result<()> {
        // SAFETY: the requests of this file take a number, or the address of a live u64 (`id`).
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, argument) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// Waits for events to have something to read.
pub(super) struct Waiter(Vec<libc::pollfd>);

impl Waiter {
    /// For `events`, until the other end of `stop` is closed.
    pub(super) fn new<'a>(stop: &impl AsFd, events: impl Iterator<Item = &'a Event>) -> Waiter {
        let watched = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let stop = watched(stop.as_fd().as_raw_fd());
        Waiter(std::iter::once(stop).chain(events.map(|event| watched(event.0.as_raw_fd()))).collect())
    }

    /// Returns when a ring is filled to its mark, or with false when it is time to stop.
    pub(super) fn wait(&mut self) -> bool {
        // SAFETY: the list is as long as it says; the kernel writes into its entries alone.
        let ready = unsafe { libc::poll(self.0.as_mut_ptr(), self.0.len() as libc::nfds_t, -1) };
        if ready < 0 {
            // A signal; anything else would come back at once for ever.
            return io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        }
        let [stop, events @ ..] = &mut self.0[..] else { return false };
        for event in events.iter_mut().filter(|event| event.revents & (libc::POLLHUP | libc::POLLERR) != 0) {
            // Its thread has ended: it would be ready for ever. A negative number is passed over.
            event.fd = -1;
        }
        stop.revents == 0
    }
}

/// The ring into which the kernel writes an event's records.
pub(super) struct Ring {
    start: *mut u8,
    /// Of the data: a power of two.
    bytes: usize,
    page: usize,
}

// SAFETY: the mapping belongs to this value alone, and positions in it change through atomics.
unsafe impl Send for Ring {}

/// Where the header has the positions, and the data begins.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

impl Ring {
    /// A ring of at most `bytes` (a power of two of at least a page): less where less may be locked in memory.
    ///
    /// # Errors
    /// Not even one page.
    pub(super) fn new(event: &Event, bytes: usize) -> io::Result<Ring> {
        // SAFETY: takes a constant.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let mut bytes = bytes.next_power_of_two().max(page);
        loop {
            // SAFETY: a new mapping at an address of the kernel's choice.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    page + bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    event.0.as_raw_fd(),
                    0,
                )
            };
            if start != libc::MAP_FAILED {
                return Ok(Ring { start: start.cast(), bytes, page });
            }
            let error = io::Error::last_os_error();
            if bytes == page {
                return Err(error);
            }
            bytes /= 2;
        }
    }

    /// Moves whole records into `out`, as many as its reserved room takes; what does not fit is left.
    pub(super) fn drain(&mut self, out: &mut Vec<u8>) {
        // SAFETY: the header is mapped and its two positions are aligned u64 that the kernel accesses atomically too.
        let (head, tail) =
            unsafe { (&*self.start.add(HEAD).cast::<AtomicU64>(), &*self.start.add(TAIL).cast::<AtomicU64>()) };
        let (until, mut from) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        while from < until {
            let size = usize::from(u16::from_le_bytes([self.byte(from + 6), self.byte(from + 7)]));
            if size < 8 || from + size as u64 > until || out.len() + size > out.capacity() {
                break;
            }
            let first = (from as usize) % self.bytes;
            let straight = size.min(self.bytes - first);
            for (at, length) in [(first, straight), (0, size - straight)] {
                // SAFETY: the range lies in the mapped data, and the kernel leaves it alone until the tail moves on.
                out.extend_from_slice(unsafe { std::slice::from_raw_parts(self.start.add(self.page + at), length) });
            }
            from += size as u64;
        }
        tail.store(from, Ordering::Release);
    }

    fn byte(&self, position: u64) -> u8 {
        // SAFETY: the index is below the mapped data's size.
        unsafe { *self.start.add(self.page + (position as usize) % self.bytes) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, which nothing refers to any more.
        unsafe { libc::munmap(self.start.cast(), self.page + self.bytes) };
    }
}
