//! One anonymous mapping in huge pages where the system grants them, or one allocation of a device: weights, caches and activations
//! live in such arenas. Not here: what lies where in one (`plan.rs`, `weight.rs`), and the counting of bytes (`memory.rs`).

#![allow(unsafe_code, reason = "anonymous mappings and raw slices of them")]

use crate::device::Device;
use crate::memory;
use std::sync::Arc;

const HUGE_PAGE: usize = 2 << 20;

/// A zeroed, 64-byte aligned (in fact page aligned) block of memory, counted in [`crate::memory`].
pub struct Arena {
    start: *mut u8,
    bytes: usize,
    mapped: *mut libc::c_void,
    mapped_bytes: usize,
    /// Whose memory it is; None for the host's.
    device: Option<Arc<dyn Device>>,
}

// SAFETY: an Arena owns its mapping like a Box<[u8]>; shared access goes through the methods' own contracts.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes` zeroed bytes. Pages become resident when first touched.
    ///
    /// # Errors
    /// The operating system's error when it refuses the mapping (out of memory or address space).
    pub fn new(bytes: usize) -> std::io::Result<Arena> {
        let large = bytes >= HUGE_PAGE;
        let mapped_bytes = if large { bytes.checked_add(HUGE_PAGE) } else { Some(bytes.max(1)) }
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let mut start = mapped.cast::<u8>();
        if large {
            // Huge pages need 2 MiB alignment; the untouched head and tail of the mapping never become resident.
            start = start.wrapping_add(start.align_offset(HUGE_PAGE));
            // SAFETY: within the mapping made above; advice cannot invalidate it. Refusal only costs speed.
            unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        memory::add(bytes);
        Ok(Arena { start, bytes, mapped, mapped_bytes, device: None })
    }

    /// `bytes` zeroed bytes of this device, or of the host if there is none.
    ///
    /// # Errors
    /// As for [`Arena::new`], or the device's.
    pub fn on(device: Option<&Arc<dyn Device>>, bytes: usize) -> std::io::Result<Arena> {
        let Some(device) = device else { return Arena::new(bytes) };
        let start = device.allocate(bytes.max(1))?;
        memory::add(bytes);
        let (mapped, mapped_bytes) = (std::ptr::null_mut(), 0);
        Ok(Arena { start, bytes, mapped, mapped_bytes, device: Some(Arc::clone(device)) })
    }

    /// Whose memory it is; None for the host's.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.device.as_ref()
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start
    }

    /// # Panics
    /// If it is a device's.
    pub fn as_slice(&self) -> &[u8] {
        assert!(self.device.is_none(), "a device's memory is downloaded, not borrowed");
        // SAFETY: the mapping is `bytes` long, readable, initialised (zeroed by the kernel) and owned by self.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// # Panics
    /// If it is a device's.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.device.is_none(), "a device's memory is uploaded to, not borrowed");
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        memory::remove(self.bytes);
        if let Some(device) = &self.device {
            device.free(self.start);
            return;
        }
        // SAFETY: exactly the mapping that `new` made; nothing can refer to it after the drop.
        unsafe { libc::munmap(self.mapped, self.mapped_bytes) };
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena of {} bytes at {:?}", self.bytes, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_aligned_and_as_long_as_asked() {
        for bytes in [0, 1, 4096, HUGE_PAGE, HUGE_PAGE + 1] {
            let arena = Arena::new(bytes).expect("small mappings succeed");
            assert_eq!((arena.len(), arena.as_ptr().align_offset(64)), (bytes, 0));
            assert!(arena.as_slice().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn refuses_more_than_the_address_space() {
        assert!(Arena::new(usize::MAX - 5).is_err());
    }
}
