//! The kernel's interface for performance events: opening one, its memory-mapped ring, its count, switching it.
//! Not here: which events are wanted (`perf.rs`, `capture/perf_counters.rs`), and what a ring's records mean (`records.rs`).

#![allow(unsafe_code, reason = "system calls, and a ring that the kernel writes")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// `struct perf_event_attr` up to its 128-byte version.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Attributes {
    pub(crate) kind: u32,
    pub(crate) size: u32,
    pub(crate) config: u64,
    /// Or a frequency, with [`flag::FREQUENCY`].
    pub(crate) period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    /// Bytes in the ring at which a waiting reader wakes, with [`flag::WATERMARK`].
    pub(crate) wakeup: u32,
    pub(crate) breakpoint_type: u32,
    pub(crate) config1: u64,
    pub(crate) config2: u64,
    pub(crate) branch_sample_type: u64,
    pub(crate) user_registers: u64,
    pub(crate) user_stack: u32,
    pub(crate) clock: i32,
    pub(crate) registers_at_interrupt: u64,
    pub(crate) aux_watermark: u32,
    pub(crate) most_frames: u16,
    pub(crate) reserved: u16,
    pub(crate) aux_sample: u32,
    pub(crate) reserved2: u32,
    pub(crate) signal_data: u64,
}

/// Bits of [`Attributes::flags`].
pub(crate) mod flag {
    pub(crate) const DISABLED: u64 = 1 << 0;
    pub(crate) const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub(crate) const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    pub(crate) const FREQUENCY: u64 = 1 << 10;
    pub(crate) const WATERMARK: u64 = 1 << 14;
    pub(crate) const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub(crate) const USE_CLOCK: u64 = 1 << 25;
    pub(crate) const CONTEXT_SWITCH: u64 = 1 << 26;
}

const CLOSE_ON_EXEC: u64 = 8;
const ENABLE: u64 = 0x2400;
const DISABLE: u64 = 0x2401;
/// Argument of the two above: the event's whole group.
const GROUP: usize = 1;
const SET_OUTPUT: u64 = 0x2405;
const ID: u64 = 0x8008_2407;

/// An open event of one thread.
pub(crate) struct Event(OwnedFd);

impl Event {
    /// # Errors
    /// The operating system's: no such event here, or not permitted.
    pub(crate) fn open(attributes: &Attributes, thread: u32) -> io::Result<Event> {
        Event::open_in(attributes, thread, None)
    }

    /// Opens it in the group of `leader`: they are on the processor's counters together or not at all.
    ///
    /// # Errors
    /// As for [`Event::open`].
    pub(crate) fn open_in(attributes: &Attributes, thread: u32, leader: Option<&Event>) -> io::Result<Event> {
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
                leader.map_or(-1, |leader| leader.0.as_raw_fd()),
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
    pub(crate) fn id(&self) -> io::Result<u64> {
        let mut id = 0_u64;
        // SAFETY: the request writes eight bytes there.
        self.control(ID, (&raw mut id) as usize).map(|()| id)
    }

    /// From now on its records go to the ring of `other`, an event of the same thread.
    pub(crate) fn write_to(&self, other: &Event) -> io::Result<()> {
        self.control(SET_OUTPUT, other.0.as_raw_fd() as usize)
    }

    pub(crate) fn enable(&self, on: bool) -> io::Result<()> {
        self.control(if on { ENABLE } else { DISABLE }, 0)
    }

    /// Switches it and the events of its group.
    pub(crate) fn enable_group(&self, on: bool) -> io::Result<()> {
        self.control(if on { ENABLE } else { DISABLE }, GROUP)
    }

    /// What a counting event has counted, in the layout that its attributes' `read_format` asks for: at most `words` of them.
    pub(crate) fn read(&self, words: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; 8 * words];
        let read = rustix::io::read(&self.0, &mut bytes)?;
        let words = bytes[..read].chunks_exact(8);
        Ok(words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))).collect())
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
pub(crate) struct Ring {
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
    pub(crate) fn new(event: &Event, bytes: usize) -> io::Result<Ring> {
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
    pub(crate) fn drain(&mut self, out: &mut Vec<u8>) {
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
