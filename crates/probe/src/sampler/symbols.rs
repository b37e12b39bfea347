//! From addresses to functions, files and lines, with inlined functions expanded; after the measurement, in this process.
//! Not here: which process the addresses are of: always this one.

use super::Address;
use record::trace::{CpuSamples, Frame, FrameId, Names, StackId};
use std::collections::HashMap;

/// Looks addresses up, each once.
pub struct Symbols {
    /// Start and name of the kernel's functions, rising; empty where it does not tell.
    kernel: Vec<(u64, String)>,
    /// Frames of an address, outermost first.
    known: HashMap<Address, Vec<FrameId>>,
}

impl Symbols {
    /// Reads the kernel's list of functions.
    pub fn new() -> Symbols {
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        Symbols { kernel: kernel_functions(&text), known: HashMap::new() }
    }

    /// Start and name of the kernel's function that an address is in; `None` where the kernel does not tell.
    pub(crate) fn kernel_function(&self, address: Address) -> Option<(u64, &str)> {
        let at = address.at - u64::from(address.returns);
        let before = self.kernel.partition_point(|(start, _)| *start <= at);
        before.checked_sub(1).map(|index| (self.kernel[index].0, self.kernel[index].1.as_str()))
    }

    /// The stack of `addresses` (innermost first) in `samples`.
    pub fn stack(&mut self, addresses: &[Address], names: &mut Names, samples: &mut CpuSamples) -> StackId {
        let mut frames = Vec::with_capacity(addresses.len());
        for address in addresses.iter().rev() {
            if !self.known.contains_key(address) {
                let found = self.look_up(*address, names, samples);
                self.known.insert(*address, found);
            }
            frames.extend_from_slice(&self.known[address]);
        }
        samples.stack(&frames)
    }

    fn look_up(&self, address: Address, names: &mut Names, samples: &mut CpuSamples) -> Vec<FrameId> {
        let plain = |function| Frame { function, file: None, line: None, inlined: false };
        if address.kernel {
            let name = self.kernel_function(address).map_or("[kernel]", |(_, name)| name);
            return vec![samples.frame(plain(names.intern(name)))];
        }
        let mut found: Vec<Frame> = Vec::new();
        // The library looks up the byte before, because most addresses are where a call returns to.
        let at = address.at.wrapping_add(u64::from(!address.returns));
        backtrace::resolve(at as *mut std::ffi::c_void, |symbol| {
            let name = symbol.name().map_or_else(|| "?".to_owned(), |name| format!("{name:#}"));
            found.push(Frame {
                function: names.intern(&name),
                file: symbol.filename().map(|file| names.intern(&file.to_string_lossy())),
                line: symbol.lineno().filter(|line| *line > 0),
                inlined: true,
            });
        });
        // Innermost first; the last one is the function itself.
        match found.last_mut() {
            Some(outermost) => outermost.inlined = false,
            None => found.push(plain(names.intern("[unknown]"))),
        }
        found.into_iter().rev().map(|frame| samples.frame(frame)).collect()
    }
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols::new()
    }
}

/// `ffffffff81000000 T name [module]` per line. Addresses are all zero for who may not see them.
fn kernel_functions(text: &str) -> Vec<(u64, String)> {
    let mut functions: Vec<(u64, String)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let start = u64::from_str_radix(words.next()?, 16).ok().filter(|start| *start > 0)?;
            let kind = words.next()?;
            matches!(kind, "t" | "T" | "w" | "W").then_some(())?;
            Some((start, words.next()?.to_owned()))
        })
        .collect();
    functions.sort();
    functions.dedup_by_key(|function| function.0);
    functions
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn kernel_functions_are_found_by_their_start() {
        let text = "0000000000000000 T hidden\nffffffff81000010 T exc_page_fault\nffffffff81000000 t first\nffffffff81000004 D data\n";
        let symbols = Symbols { kernel: kernel_functions(text), known: HashMap::new() };
        assert_eq!(symbols.kernel.len(), 2);
        let (mut names, mut samples) = (Names::default(), CpuSamples::default());
        let mut name = |at, returns| {
            let frames = symbols.look_up(Address { at, kernel: true, returns }, &mut names, &mut samples);
            names.text(samples.frames()[frames[0].0 as usize].function).to_owned()
        };
        assert_eq!(name(0xffff_ffff_8100_0012, false), "exc_page_fault");
        assert_eq!(
            name(0xffff_ffff_8100_0010, true),
            "first",
            "a call at the very end of a function returns behind it"
        );
        assert_eq!(name(5, false), "[kernel]");
    }

    #[inline(never)]
    fn landmark() -> u64 {
        std::hint::black_box(41) + 1
    }

    #[test]
    fn a_function_of_this_binary_is_named_with_its_file() {
        landmark();
        let (mut names, mut samples) = (Names::default(), CpuSamples::default());
        let at = landmark as fn() -> u64 as usize as u64;
        let stack = Symbols::new().stack(&[Address { at, kernel: false, returns: false }], &mut names, &mut samples);
        let frame = *samples.frames_of(stack).next().unwrap();
        assert!(names.text(frame.function).ends_with("landmark"), "{}", names.text(frame.function));
        assert!(names.text(frame.file.unwrap()).ends_with("symbols.rs"));
        assert!(!frame.inlined && frame.line.is_some());
    }
}
