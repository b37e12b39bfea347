//! `callgrind.out` as valgrind writes it, read into each function's own cost.
//! Not here: running valgrind. The format is that of valgrind's manual, "Callgrind Format Specification".
//!
//! ```text
//! events: Ir ...              what the numbers of a cost line are
//! positions: line             or `instr line`; names of a cost line's first fields
//! fl=(1) file                 file, function, object: the number stands for the name from then on
//! fn=(1) function
//! 16 400                      own cost at line 16; `+3`, `-2` and `*` are relative to the line before
//! calls=1 50                  the next cost line is what was called, and not own
//! 16 400
//! ```

use crate::capture::reduced::counters::SimulatedFunction;
use std::collections::{BTreeMap, HashMap};

/// The largest file that is read.
pub const MAX_CALLGRIND_BYTES: usize = 256 << 20;
/// Functions that are listed.
const LISTED: usize = 40;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CallgrindError {
    #[error("{name}: {bytes} bytes is more than the largest size of {MAX_CALLGRIND_BYTES}")]
    TooLarge { name: String, bytes: usize },
    #[error("{name}, line {line}: {why}; expected the format that valgrind's callgrind writes")]
    Line { name: String, line: usize, why: String },
    #[error("{name}: {why}; expected the format that valgrind's callgrind writes")]
    File { name: String, why: &'static str },
}

/// What a file comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Simulated {
    /// The first event's name.
    pub event: String,
    pub total: u64,
    /// Largest first.
    pub functions: Vec<SimulatedFunction>,
    /// Own cost of those that are not listed.
    pub others: u64,
}

/// Reads a file; only the first event is kept.
///
/// # Errors
/// Anything that is not the format; own costs that do not add up to the file's own total.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Simulated, CallgrindError> {
    if bytes.len() > MAX_CALLGRIND_BYTES {
        return Err(CallgrindError::TooLarge { name: name.to_owned(), bytes: bytes.len() });
    }
    let text = String::from_utf8_lossy(bytes);
    let mut names = Names::default();
    let mut own: BTreeMap<(String, String), u64> = BTreeMap::new();
    let (mut file, mut function) = (String::new(), String::new());
    let (mut event, mut positions, mut stated) = (None, 1, None);
    let mut called = false;
    for (index, line) in text.lines().enumerate() {
        let wrong = |why: &str| CallgrindError::Line { name: name.to_owned(), line: index + 1, why: why.to_owned() };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '*')) {
            let cost = line.split_whitespace().nth(positions);
            // Left out, a cost is zero.
            let cost: u64 = cost.map_or(Ok(0), str::parse).map_err(|_| wrong("the cost is no whole number"))?;
            if std::mem::take(&mut called) {
                continue;
            }
            if event.is_none() {
                return Err(wrong("a cost before `events:` says what is counted"));
            }
            let sum = own.entry((file.clone(), function.clone())).or_default();
            *sum = sum.checked_add(cost).ok_or_else(|| wrong("the costs exceed 64 bits"))?;
            continue;
        }
        if let Some((key, value)) = line.split_once('=').filter(|(key, _)| key.bytes().all(|b| b.is_ascii_lowercase()))
        {
            match key {
                "fl" => file = names.of("file", value).ok_or_else(|| wrong("a number without a name"))?,
                // Another file inside the function: an inlined one. The cost stays the function's.
                "fi" | "fe" => {
                    names.of("file", value).ok_or_else(|| wrong("a number without a name"))?;
                }
                "cfi" | "cfl" => {
                    names.of("file", value).ok_or_else(|| wrong("a number without a name"))?;
                }
                "fn" => function = names.of("function", value).ok_or_else(|| wrong("a number without a name"))?,
                "cfn" => {
                    names.of("function", value).ok_or_else(|| wrong("a number without a name"))?;
                }
                "calls" => called = true,
                "ob" | "cob" | "jump" | "jcnd" | "jfi" | "jfn" => {}
                _ => return Err(wrong("an unknown key")),
            }
            continue;
        }
        let Some((key, value)) = line.split_once(':') else { return Err(wrong("neither a cost nor a key")) };
        let mut words = value.split_whitespace();
        match key {
            "events" => event = words.next().map(str::to_owned),
            "positions" => positions = words.count(),
            // One per part of the file; `summary` is 0 where collecting was switched on and off.
            "totals" => {
                let part = words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(|| wrong("no total"))?;
                stated = Some(stated.unwrap_or(0_u64).saturating_add(part));
            }
            _ => {}
        }
    }
    let file_error = |why| CallgrindError::File { name: name.to_owned(), why };
    let event = event.ok_or_else(|| file_error("no `events:` line"))?;
    let total: u64 = own
        .values()
        .try_fold(0_u64, |sum, cost| sum.checked_add(*cost))
        .ok_or_else(|| file_error("costs beyond 64 bits"))?;
    if own.is_empty() {
        return Err(file_error("no cost at all: nothing was counted"));
    }
    if stated.is_some_and(|stated| stated != total) {
        return Err(file_error("the costs do not add up to its own total: the file was cut"));
    }
    let mut functions: Vec<SimulatedFunction> = own
        .into_iter()
        .map(|((file, function), own)| SimulatedFunction { function, file, own })
        .filter(|function| function.own > 0)
        .collect();
    functions.sort_by(|a, b| b.own.cmp(&a.own).then_with(|| a.function.cmp(&b.function)));
    let others = functions.iter().skip(LISTED).map(|function| function.own).sum();
    functions.truncate(LISTED);
    Ok(Simulated { event, total, functions, others })
}

/// `(number) name` gives a name its number, `(number)` means it from then on; each kind counts for itself.
#[derive(Default)]
struct Names(HashMap<(&'static str, u64), String>);

impl Names {
    fn of(&mut self, kind: &'static str, value: &str) -> Option<String> {
        let value = value.trim();
        let Some(rest) = value.strip_prefix('(') else { return Some(value.to_owned()) };
        // Some names begin like this themselves: `(below main)`.
        let Some((Ok(number), name)) = rest.split_once(')').map(|(number, name)| (number.parse(), name)) else {
            return Some(value.to_owned());
        };
        let key = (kind, number);
        let name = name.trim();
        if name.is_empty() {
            return self.0.get(&key).cloned();
        }
        self.0.insert(key, name.to_owned());
        Some(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use proptest::prelude::*;

    // The manual's own example ("Extended Example"), with its names compressed, and its totals.
    const MANUAL: &str = "version: 1\ncreator: callgrind\npositions: line\nevents: Instructions\nsummary: 820\n\n\
        fl=(1) file1.c\nfn=(1) main\n16 20\ncfn=(2) func1\ncalls=1 50\n16 400\ncfi=(2) file2.c\ncfn=(3) func2\n\
        calls=3 20\n16 400\n\nfn=(2)\n51 100\ncfi=(2)\ncfn=(3)\ncalls=2 20\n51 300\n\nfl=(2)\nfn=(3)\n20 700\n\ntotals: 820\n";

    #[test]
    fn the_manuals_example_has_its_own_costs() {
        let found = parse("x", MANUAL.as_bytes()).unwrap();
        let own: Vec<(&str, &str, u64)> =
            found.functions.iter().map(|f| (f.function.as_str(), f.file.as_str(), f.own)).collect();
        assert_eq!(own, [("func2", "file2.c", 700), ("func1", "file1.c", 100), ("main", "file1.c", 20)]);
        assert_eq!((found.event.as_str(), found.total, found.others), ("Instructions", 820, 0));
    }

    #[test]
    fn relative_positions_instruction_addresses_and_inlined_files_are_read() {
        let text = "positions: instr line\nevents: Ir Dr\nfl=(1) a.rs\nfn=(1) f\n0x40 10 5 1\n+4 * 6\nfi=(2) b.h\n+3 +1 7\n\
                    fe=(1)\n* -2 8\njump=3 0x40 10\n* *\n";
        let found = parse("x", text.as_bytes()).unwrap();
        assert_eq!(found.functions, [SimulatedFunction { function: "f".into(), file: "a.rs".into(), own: 26 }]);
    }

    #[test]
    fn what_is_not_the_format_is_refused_with_its_line() {
        let cut = MANUAL.replace("20 700\n", "");
        for (text, words) in [
            ("", "no `events:`"),
            ("events: Ir\n", "nothing was counted"),
            ("fn=f\n1 2\n", "line 2: a cost before"),
            ("events: Ir\nfn=(7)\n1 2\n", "line 2: a number without a name"),
            ("events: Ir\nfn=f\n1 x\n", "line 3: the cost"),
            ("events: Ir\nfn=f\nwhat\n", "line 3: neither"),
            ("events: Ir\nzz=f\n", "line 2: an unknown key"),
            ("{\"schema\": 1}\n", "no `events:`"),
            (cut.as_str(), "do not add up"),
        ] {
            let message = parse("cg", text.as_bytes()).map_or_else(|e| e.to_string(), |found| format!("{found:?}"));
            assert!(message.starts_with("cg") && message.contains(words), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_file_or_a_message(text in "([a-z]{0,3}[=:(]?[0-9 +*()-]{0,6}\n){0,8}") {
            let _ = parse("x", text.as_bytes());
        }
    }
}
