//! Any bytes as the files that captures bring: counters of perf, a file of callgrind, the raw files of a trace, a profiled pass's among them. An error at
//! worst; what is read as a trace can be attributed.

#![no_main]

use record::capture::{Hints, Roofs, callgrind, kernel_tree, load::RawTrace, perf_stat, placed};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = perf_stat::parse("fuzz", bytes);
    let _ = callgrind::parse("fuzz", bytes);
    // Files one after the other, each behind its name: `calls.json\0...\0steps.jsonl\0...`.
    let mut parts = bytes.split(|byte| *byte == 0);
    let mut files = std::collections::HashMap::new();
    while let (Some(name), Some(content)) = (parts.next(), parts.next()) {
        files.insert(String::from_utf8_lossy(name).into_owned(), content.to_vec());
    }
    let read = |name: &str| files.get(name).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into());
    let plain = |bytes: Vec<u8>| -> Box<dyn std::io::BufRead> { Box::new(std::io::Cursor::new(bytes)) };
    let profiled = match RawTrace::read_profiled(read, plain) {
        Ok(record::Known::Is((trace, _))) => Some(trace),
        _ => None,
    };
    for trace in RawTrace::read(read).ok().into_iter().chain(profiled) {
        let roofs = Roofs { ceilings: None, threads: 1, footprint: 0 };
        let _ = kernel_tree(&trace, &placed(&trace), roofs, &Hints::default());
    }
});
