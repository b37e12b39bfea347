//! Any bytes as a chat template, rendered: an error at worst, never a panic or a huge allocation.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weights::fuzz::fuzz_template(bytes));
