//! Whether a trace will fit: on the disk where it is written, and in the memory where it is held before.
//! Not here: what is in it.

use crate::error::Error;
use record::Known;
use std::path::Path;

/// Bytes on disk of a span, `[call, arrive, start, end]` with fourteen digits each time, and of a sample with a stack of
/// twelve places; of the files that do not grow (maps, sources, executables).
const SPAN_BYTES: u64 = 56;
const STEP_BYTES: u64 = 64;
const SAMPLE_BYTES: u64 = 320;
const FIXED_BYTES: u64 = 4 << 20;
/// Bytes in memory of a span and of a sample with its record as the kernel wrote it.
const SPAN_MEMORY: u64 = size_of::<ops::Span>() as u64;
const STEP_MEMORY: u64 = 32;
const SAMPLE_MEMORY: u64 = 700;

/// What a trace will hold, at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) spans: u64,
    pub(super) steps: u64,
    pub(super) samples: u64,
}

impl Need {
    fn disk_bytes(self) -> u64 {
        let spans = self.spans.saturating_mul(SPAN_BYTES);
        spans.saturating_add(self.steps * STEP_BYTES).saturating_add(self.samples * SAMPLE_BYTES) + FIXED_BYTES
    }

    fn memory_bytes(self) -> u64 {
        let spans = self.spans.saturating_mul(SPAN_MEMORY);
        spans.saturating_add(self.steps * STEP_MEMORY).saturating_add(self.samples * SAMPLE_MEMORY)
    }
}

/// # Errors
/// Too little of either, with both numbers. What cannot be read is no reason to refuse: writing will tell.
pub(super) fn check(need: Need, directory: &Path) -> Result<(), Error> {
    let disk = rustix::fs::statvfs(directory).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    fits(&format!("the disk of {}", directory.display()), need.disk_bytes(), disk)?;
    let memory = match crate::conditions::meminfo("MemAvailable") {
        Known::Is(bytes) => Some(bytes),
        Known::Unavailable(_) => None,
    };
    fits("memory", need.memory_bytes(), memory)
}

fn fits(place: &str, needed: u64, free: Option<u64>) -> Result<(), Error> {
    match free {
        Some(free) if needed > free => Err(Error::NoRoom { place: place.to_owned(), needed, free }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn too_little_room_is_refused_with_both_numbers() {
        let message = fits("the disk of /here", 3 << 20, Some(2 << 20)).unwrap_err().to_string();
        assert!(
            message.contains("the disk of /here") && message.contains("3 MiB") && message.contains("2 MiB"),
            "{message}"
        );
        assert!(fits("memory", 2, Some(2)).is_ok() && fits("memory", 2, None).is_ok());
        let endless = Need { spans: u64::MAX, steps: 1, samples: 1 };
        assert!(check(endless, Path::new("/")).is_err());
        assert!(check(Need { spans: 10, steps: 1, samples: 1 }, Path::new("/nonexistent")).is_ok());
    }
}
