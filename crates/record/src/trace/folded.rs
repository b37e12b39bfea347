//! CPU samples as folded stacks: one line per stack and thread, for flame graph tools.
//! Not here: drawing.

use crate::trace::{StackId, Trace, WriteError, verify};
use std::collections::HashMap;
use std::io::Write;

/// Writes `thread;outermost;...;innermost_[i] MICROSECONDS` for each stack of each thread, by thread and then by weight.
///
/// The number is the sum of the samples' weights, rounded. An inlined frame ends in `_[i]`.
///
/// # Errors
/// A trace that breaks its rules, before anything is written; what `out` reports, which is given many small pieces: let it buffer.
pub fn write_folded(trace: &Trace, out: &mut impl Write) -> Result<(), WriteError> {
    verify(trace)?;
    let mut weights: HashMap<(u32, StackId), u64> = HashMap::new();
    for sample in &trace.samples.samples {
        let weight = weights.entry((sample.thread, sample.stack)).or_default();
        *weight = weight.saturating_add(sample.weight_ns);
    }
    for (thread, name) in trace.threads() {
        let mut stacks: Vec<(StackId, u64)> =
            weights.iter().filter(|((of, _), _)| *of == thread).map(|((_, stack), weight)| (*stack, *weight)).collect();
        stacks.sort_by_key(|&(stack, weight)| (std::cmp::Reverse(weight), stack));
        for (stack, weight) in stacks {
            write!(out, "{}", one_word(&name))?;
            for frame in trace.samples.frames_of(stack) {
                let inlined = if frame.inlined { "_[i]" } else { "" };
                write!(out, ";{}{inlined}", one_word(trace.names.text(frame.function)))?;
            }
            writeln!(out, " {}", weight.saturating_add(500) / 1000)?;
        }
    }
    Ok(())
}

/// The format's own separators do not appear in a name.
fn one_word(name: &str) -> String {
    name.replace(';', ":").replace(crate::is_obeyed, " ")
}
