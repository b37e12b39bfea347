//! How much of a GPU's memory is given out, by its addresses. Not here: giving it out (`gpu.rs`).

use std::collections::HashMap;

/// Bytes given out and not given back.
#[derive(Default)]
pub(crate) struct Memory {
    sizes: HashMap<u64, usize>,
    bytes: usize,
    peak: usize,
}

impl Memory {
    pub(crate) fn took(&mut self, at: u64, bytes: usize) {
        self.sizes.insert(at, bytes);
        self.bytes += bytes;
        self.peak = self.peak.max(self.bytes);
    }

    /// The bytes that were there.
    pub(crate) fn gave_back(&mut self, at: u64) -> usize {
        let bytes = self.sizes.remove(&at).unwrap_or(0);
        self.bytes -= bytes;
        bytes
    }

    /// The most bytes at once since [`Memory::reset_peak`].
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_of_what_was_held_at_once() {
        let mut memory = Memory::default();
        memory.took(256, 100);
        memory.took(512, 50);
        memory.gave_back(256);
        memory.took(1024, 30);
        assert_eq!(memory.peak(), 150);
        memory.reset_peak();
        assert_eq!(memory.peak(), 80);
        memory.took(256, 10);
        // Twice, or of an address that was never given out.
        for at in [512, 512, 9] {
            memory.gave_back(at);
        }
        memory.took(2048, 35);
        assert_eq!(memory.peak(), 90);
    }
}
