//! The multiplying instructions that a ceiling is measured for: what each needs, how many operations a round of it makes.
//! Not here: the loops themselves (`vectors.rs`, `amx.rs`).

#![allow(unsafe_code, reason = "calls loops that are compiled for more instructions than the caller")]

use crate::Features;

/// Where the operands of a peak's instructions come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// They stay in registers.
    Registers,
    /// They are loaded from the first-level cache as a blocked matrix kernel loads them.
    Loads,
}

/// A loop of one multiplying instruction.
pub struct Peak {
    /// The instruction's name in records, e.g. `vpdpbusd`.
    pub path: &'static str,
    pub operands: Operands,
    /// What the loop may not run without.
    pub features: Features,
    /// Operations of one round, a multiply-add being two.
    pub operations: u64,
    /// Whether the operating system must first give leave to use the tiles.
    pub(super) tiles: bool,
    pub(super) run: unsafe fn(rounds: u64),
}

impl Peak {
    /// Why the loop cannot run here under `features`; None if it can.
    pub fn unavailable(&self, features: Features) -> Option<String> {
        #[cfg(target_arch = "x86_64")]
        if self.tiles
            && crate::features::processor_has_tiles()
            && let Err(why) = crate::amx::permission()
        {
            return Some(why);
        }
        let missing = self.features.missing_from(Features::detect());
        if !missing.is_empty() {
            return Some(format!("this processor has no {missing}"));
        }
        let masked = self.features.missing_from(features);
        if !masked.is_empty() {
            return Some(format!("{masked} was switched off"));
        }
        None
    }

    /// `rounds` rounds on the calling thread.
    ///
    /// # Panics
    /// If it is [`Peak::unavailable`].
    pub fn run(&self, rounds: u64) {
        assert_eq!(self.unavailable(Features::detect()), None, "{} cannot run here", self.path);
        // SAFETY: the features are those that the loop is compiled for, and were just checked.
        unsafe { (self.run)(rounds) }
    }
}

/// Every peak that this build knows, in the order of tables; which of them run is the machine's to say.
pub fn peaks() -> impl Iterator<Item = &'static Peak> {
    #[cfg(target_arch = "x86_64")]
    return super::vectors::PEAKS.iter().chain(super::amx::PEAKS);
    #[cfg(not(target_arch = "x86_64"))]
    return std::iter::empty();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peak_that_the_machine_has_runs_and_the_others_say_what_is_missing() {
        for peak in peaks() {
            match peak.unavailable(Features::detect()) {
                None => peak.run(2),
                Some(why) => assert!(why.contains("processor has no") || why.contains("refuses"), "{why}"),
            }
            let nothing = peak.unavailable(Features::NONE).unwrap_or_default();
            assert!(nothing.contains("switched off") || nothing.contains("has no"), "{nothing}");
        }
    }
}
