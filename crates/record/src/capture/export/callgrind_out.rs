//! Samples in callgrind's format, for KCachegrind and callgrind_annotate: lines, inlined files, and who called whom.
//! Not here: counts of calls, which samples do not know: every call is given as made once.

use crate::capture::lines::{LinesRecord, StackFrame};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

/// A compiled function: file, name.
type Function<'a> = (&'a str, &'a str);
/// Samples and nanoseconds.
type Sum = (u64, u64);

#[derive(Default)]
struct Own<'a> {
    /// By (file, line) of the innermost, inlined line.
    lines: BTreeMap<(&'a str, u32), Sum>,
    /// By (line of the call, callee).
    calls: BTreeMap<(u32, Function<'a>), Sum>,
}

/// Writes the own cost of every line under the compiled function that it was inlined into, and inclusive costs on calls, over
/// all places together: the format has no room for them.
///
/// # Errors
/// What `out` reports.
pub fn write_callgrind(record: &LinesRecord, out: &mut impl Write) -> io::Result<()> {
    let mut functions: BTreeMap<Function<'_>, Own<'_>> = BTreeMap::new();
    let mut total: Sum = (0, 0);
    for stack in &record.stacks {
        let cost = (stack.samples, stack.weight_ns);
        total = plus(total, cost);
        let frames: Vec<&StackFrame> = stack.frames.iter().map(|id| &record.frames[*id as usize]).collect();
        // Compiled functions, innermost first; each with the line at which it is, where one of its calls was made or inlined.
        let compiled: Vec<&StackFrame> = frames.iter().copied().filter(|frame| !frame.inlined).collect();
        let Some((first, innermost)) = compiled.first().zip(frames.first()) else { continue };
        let own = functions.entry((&first.file, &first.function)).or_default();
        let sum = own.lines.entry((&innermost.file, innermost.line)).or_default();
        *sum = plus(*sum, cost);
        let mut seen = BTreeSet::new();
        for pair in compiled.windows(2) {
            let [callee, caller] = pair else { continue };
            let callee = (callee.file.as_str(), callee.function.as_str());
            let from = (caller.file.as_str(), caller.function.as_str());
            // A recursion's edge counts once per sample.
            if seen.insert((from, caller.line, callee)) {
                let sum = functions.entry(from).or_default().calls.entry((caller.line, callee)).or_default();
                *sum = plus(*sum, cost);
            }
        }
    }
    writeln!(out, "# callgrind format\nversion: 1\ncreator: hourglass\npositions: line")?;
    writeln!(out, "event: Samples : CPU samples\nevent: Ns : nanoseconds that the samples stand for")?;
    writeln!(out, "events: Samples Ns\nsummary: {} {}", total.0, total.1)?;
    for ((file, function), own) in &functions {
        writeln!(out, "\nfl={}\nfn={}", word(file), word(function))?;
        let mut current: &str = file;
        for ((file, line), (samples, ns)) in &own.lines {
            if *file != current {
                writeln!(out, "fi={}", word(file))?;
                current = file;
            }
            writeln!(out, "{line} {samples} {ns}")?;
        }
        if current != *file {
            writeln!(out, "fe={}", word(file))?;
        }
        for ((line, (file, callee)), (samples, ns)) in &own.calls {
            writeln!(out, "cfi={}\ncfn={}\ncalls=1 0\n{line} {samples} {ns}", word(file), word(callee))?;
        }
    }
    writeln!(out, "\ntotals: {} {}", total.0, total.1)
}

fn plus(a: Sum, b: Sum) -> Sum {
    (a.0 + b.0, a.1 + b.1)
}

/// The format's names end with their line, and one in parentheses would be a number.
fn word(name: &str) -> String {
    let plain = name.replace(crate::is_obeyed, " ");
    if plain.starts_with('(') { format!("_{plain}") } else { plain }
}
