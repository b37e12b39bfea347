//! Any text as a gate's condition: a refusal that points into the text at worst.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(error) = record::gate::Gate::parse(text) {
        assert!(error.column >= 1 && error.column <= text.chars().count() + 1, "{error}");
    }
});
