//! Samples as a pprof profile (github.com/google/pprof, proto/profile.proto), not yet compressed.
//! Not here: compression; pprof files are gzipped.

use crate::capture::lines::LinesRecord;
use crate::trace::protobuf::Message;
use std::collections::HashMap;

/// Texts by number; 0 is the empty one, as the format wants it.
struct Strings {
    texts: Vec<String>,
    numbers: HashMap<String, i64>,
}

impl Strings {
    fn of(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as i64;
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

/// The bytes of a `Profile` with two values per sample: `samples/count` and `cpu/nanoseconds`. An inline chain is one
/// location with several lines, innermost first, so nothing counts twice; the place is the label `place`. `time_ns` is the
/// capture's time since 1970, 0 if it is not known.
pub fn pprof(record: &LinesRecord, time_ns: i64) -> Vec<u8> {
    let mut strings = Strings { texts: Vec::new(), numbers: HashMap::new() };
    strings.of("");
    let mut profile = Message::default();
    for (kind, unit) in [("samples", "count"), ("cpu", "nanoseconds")] {
        let (kind, unit) = (strings.of(kind), strings.of(unit));
        profile.message(1, |value| {
            value.int(1, kind).int(2, unit);
        });
    }
    // Each inline chain is a location, each function with its file a function.
    let mut locations: HashMap<Vec<u32>, u64> = HashMap::new();
    let mut chains: Vec<Vec<u32>> = Vec::new();
    let label = strings.of("place");
    for stack in &record.stacks {
        let mut of_stack = Vec::new();
        for chain in inline_chains(record, &stack.frames) {
            let next = locations.len() as u64 + 1;
            let id = *locations.entry(chain.to_vec()).or_insert_with(|| {
                chains.push(chain.to_vec());
                next
            });
            of_stack.push(id);
        }
        let place = strings.of(&stack.place.to_string());
        profile.message(2, |sample| {
            for id in &of_stack {
                sample.uint(1, *id);
            }
            sample.uint(2, stack.samples).uint(2, stack.weight_ns);
            sample.message(3, |message| {
                message.int(1, label).int(2, place);
            });
        });
    }
    let mut functions: HashMap<(i64, i64), u64> = HashMap::new();
    let mut in_order: Vec<(i64, i64)> = Vec::new();
    for (index, chain) in chains.iter().enumerate() {
        profile.message(4, |location| {
            location.uint(1, index as u64 + 1);
            for id in chain {
                let frame = &record.frames[*id as usize];
                let key = (strings.of(&frame.function), strings.of(&frame.file));
                let next = functions.len() as u64 + 1;
                let function = *functions.entry(key).or_insert_with(|| {
                    in_order.push(key);
                    next
                });
                location.message(4, |line| {
                    line.uint(1, function).int(2, i64::from(frame.line));
                });
            }
        });
    }
    for (index, (name, file)) in in_order.iter().enumerate() {
        profile.message(5, |function| {
            function.uint(1, index as u64 + 1).int(2, *name).int(3, *name).int(4, *file);
        });
    }
    let (cpu, nanoseconds) = (strings.of("cpu"), strings.of("nanoseconds"));
    let comment = strings.of("a capture is never a latency: sampling and tracing are inside every time");
    for text in &strings.texts {
        profile.text(6, text);
    }
    profile.int(9, time_ns).uint(10, record.stretch.wall_ns);
    profile.message(11, |value| {
        value.int(1, cpu).int(2, nanoseconds);
    });
    if let Some(frequency) = record.stretch.sampling.frequency_hz.known().filter(|frequency| **frequency > 0) {
        profile.uint(12, 1_000_000_000 / frequency);
    }
    profile.int(13, comment).int(14, cpu);
    profile.bytes().to_vec()
}

/// The stack cut behind every frame that is not inlined into the next.
fn inline_chains<'a>(record: &'a LinesRecord, stack: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
    stack.split_inclusive(|id| !record.frames[*id as usize].inlined)
}
