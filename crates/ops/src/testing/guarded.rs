//! Memory for one operand of a tested call, fenced: the bytes beside it belong to nobody, and whoever reads or writes there is
//! noticed, even if nothing comes of what was read. Not here: what operands hold, and which access was wrong in a kernel.
//!
//! The fences are pages without access. A fault there does not end the process: the handler notes the address and opens the
//! fence, the instruction runs again, and [`Guarded::intact`] tells afterwards. Faults elsewhere go to whoever handled them.

#![allow(unsafe_code, reason = "anonymous mappings, slices of them, and a signal handler that opens them")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// What unwritten and foreign bytes hold: NaN, read as either element type.
pub(super) const POISON: u8 = 0xff;

/// Bytes without access on either side; an access farther out may be missed.
const FENCE: usize = 64 << 10;

/// Which end of the operand lies at a fence, to the byte (the end: to its alignment).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    Start,
    End,
}

/// A mapping that the handler knows. `start == 0`: free.
struct Slot {
    start: AtomicUsize,
    bytes: AtomicUsize,
    /// Address of the first fault; 0 if there was none.
    fault: AtomicUsize,
    wrote: AtomicBool,
}

static SLOTS: [Slot; 1024] = [const {
    Slot {
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        fault: AtomicUsize::new(0),
        wrote: AtomicBool::new(false),
    }
}; 1024];

/// The handler that was there before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// One operand's memory.
pub(super) struct Guarded {
    name: String,
    slot: &'static Slot,
    map: *mut u8,
    /// Bytes between the fences.
    room: usize,
    /// Offset of the operand between the fences.
    offset: usize,
    bytes: usize,
}

// SAFETY: a Guarded owns its mapping like a Box<[u8]>; the workers of a tested call share it as they share an arena.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// Poisoned memory for `bytes` bytes, whose start is a multiple of `alignment` (which divides a page).
    ///
    /// # Panics
    /// If the system refuses memory, or more than a thousand are alive.
    pub(super) fn new(name: impl Into<String>, bytes: usize, edge: Edge, alignment: usize) -> Guarded {
        install();
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let room = bytes.max(1).next_multiple_of(page);
        let fence = FENCE.next_multiple_of(page);
        let offset = match edge {
            Edge::Start => 0,
            Edge::End => (room - bytes) / alignment * alignment,
        };
        let total = room + 2 * fence;
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                total,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(map != libc::MAP_FAILED, "a fenced operand of {bytes} bytes: {}", std::io::Error::last_os_error());
        let map = map.cast::<u8>();
        let middle = map.wrapping_add(fence);
        // SAFETY: whole pages within the mapping made above, to which nobody else has an address yet.
        unsafe {
            assert_eq!(libc::mprotect(middle.cast(), room, libc::PROT_READ | libc::PROT_WRITE), 0, "mprotect");
            middle.write_bytes(POISON, room);
        }
        let slot = SLOTS.iter().find(|slot| slot.bytes.compare_exchange(0, total, SeqCst, SeqCst).is_ok());
        let slot = slot.expect("fewer than a thousand fenced operands at a time");
        slot.fault.store(0, SeqCst);
        slot.wrote.store(false, SeqCst);
        slot.start.store(map as usize, SeqCst);
        Guarded { name: name.into(), slot, map, room, offset, bytes }
    }

    fn total(&self) -> usize {
        self.slot.bytes.load(SeqCst)
    }

    fn middle(&self) -> *mut u8 {
        self.map.wrapping_add((self.total() - self.room) / 2)
    }

    /// First byte of the operand.
    pub(super) fn start(&self) -> *mut u8 {
        self.middle().wrapping_add(self.offset)
    }

    /// The operand's bytes, between calls.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: inside the mapping, which lives as long as self; no call runs while a test looks.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }
    }

    /// The operand's bytes, to fill them.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.bytes) }
    }

    /// From now on the operand may only be read: a write is noticed.
    pub(super) fn seal(&self) {
        // SAFETY: whole pages of the mapping; taking a right away invalidates nothing.
        let sealed = unsafe { libc::mprotect(self.middle().cast(), self.room, libc::PROT_READ) };
        assert_eq!(sealed, 0, "mprotect: {}", std::io::Error::last_os_error());
    }

    /// Nobody touched a byte beside the operand, nor wrote a sealed one.
    ///
    /// # Errors
    /// Which byte, from which end.
    pub(super) fn intact(&self) -> Result<(), String> {
        let (start, fault) = (self.start() as usize, self.slot.fault.load(SeqCst));
        let (verb, name) = (if self.slot.wrote.load(SeqCst) { "writes" } else { "reads" }, &self.name);
        if fault >= start + self.bytes {
            return Err(format!("it {verb} past the end of {name}: {} bytes after it", fault - start - self.bytes));
        }
        if fault >= start {
            return Err(format!("it writes {name}, which is an input: byte {}", fault - start));
        }
        if fault != 0 {
            return Err(format!("it {verb} before the start of {name}: {} bytes before it", start - fault));
        }
        // SAFETY: the pages between the fences, readable for as long as self lives.
        let room = unsafe { std::slice::from_raw_parts(self.middle(), self.room) };
        let (before, rest) = room.split_at(self.offset);
        if let Some(at) = before.iter().rposition(|byte| *byte != POISON) {
            return Err(format!("it writes before the start of {name}: {} bytes before it", self.offset - at));
        }
        match rest[self.bytes..].iter().position(|byte| *byte != POISON) {
            Some(at) => Err(format!("it writes past the end of {name}: {at} bytes after it")),
            None => Ok(()),
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let total = self.total();
        self.slot.start.store(0, SeqCst);
        // SAFETY: exactly the mapping that `new` made; nothing refers to it after the drop.
        unsafe { libc::munmap(self.map.cast(), total) };
        self.slot.bytes.store(0, SeqCst);
    }
}

fn install() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: both structures are plain data for which zero is valid; the handler has the signature that SA_SIGINFO asks
        // for and does only what a handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let mut previous: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, &mut previous), 0, "sigaction");
            previous
        }
    });
}

/// Loads, stores and one system call: nothing here allocates or locks.
extern "C" fn on_fault(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a filled structure.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &SLOTS {
        let (start, bytes) = (slot.start.load(SeqCst), slot.bytes.load(SeqCst));
        if start == 0 || !(start..start + bytes).contains(&address) {
            continue;
        }
        if slot.fault.compare_exchange(0, address, SeqCst, SeqCst).is_ok() {
            slot.wrote.store(is_write(context), SeqCst);
        }
        // SAFETY: a mapping of a living `Guarded`; giving rights invalidates nothing.
        if unsafe { libc::mprotect(start as *mut libc::c_void, bytes, libc::PROT_READ | libc::PROT_WRITE) } == 0 {
            return;
        }
    }
    // Not ours: the former handler gets it when the instruction runs again.
    let previous = PREVIOUS.get();
    // SAFETY: zero is the default action; otherwise what the system itself gave.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, previous.unwrap_or(&default), std::ptr::null_mut());
    }
}

/// Bit 1 of the processor's page fault code.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn is_write(context: *mut libc::c_void) -> bool {
    // SAFETY: with SA_SIGINFO the third argument is the interrupted context.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
}

/// Not told apart here.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn is_write(_context: *mut libc::c_void) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_beside_an_operand_are_noticed_and_survived() {
        for (edge, step, expected) in [
            (Edge::End, 100isize, "reads past the end of x: 0 bytes"),
            (Edge::End, 107, "reads past the end of x: 7 bytes"),
            (Edge::Start, -3, "reads before the start of x: 3 bytes"),
        ] {
            let memory = Guarded::new("x", 100, edge, 4);
            assert_eq!(memory.intact(), Ok(()));
            // SAFETY: inside the mapping, fences included; that is what the test is about.
            unsafe { memory.start().offset(step).read_volatile() };
            let problem = memory.intact().expect_err("noticed");
            assert!(problem.contains(expected), "{problem}");
        }
    }

    #[test]
    fn writes_beside_an_operand_and_into_a_sealed_one_are_noticed() {
        for (edge, step, expected) in [
            (Edge::End, -1isize, "writes before the start of x: 1 bytes"),
            (Edge::Start, 102, "writes past the end of x: 2 bytes"),
            (Edge::End, 5, "writes x, which is an input: byte 5"),
        ] {
            let memory = Guarded::new("x", 100, edge, 4);
            if step == 5 {
                memory.seal();
            }
            // SAFETY: as above.
            unsafe { memory.start().offset(step).write_volatile(1) };
            let problem = memory.intact().expect_err("noticed");
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
