//! Any bytes as a ledger, or as decisions that somebody wrote down elsewhere: an error at worst. A ledger that is read is, line
//! by line, what it would be written as.

#![no_main]

use record::ledger::{Ledger, import};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok((ledger, _)) = Ledger::read_with_ends(bytes) {
        let again: Vec<u8> = ledger.entries().iter().flat_map(|entry| (entry.line() + "\n").into_bytes()).collect();
        assert_eq!(again, bytes, "a byte of a ledger that verifies is not accounted for");
    }
    let _ = import("fuzz", bytes);
});
