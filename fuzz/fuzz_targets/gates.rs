//! Any text as a gate's or a rule's condition: a refusal that points into the text at worst.

#![no_main]

use record::gate::{Gate, GateError, Namespace, Rule};

fn points_into(text: &str, error: &GateError) {
    assert!(error.column >= 1 && error.column <= text.chars().count() + 1, "{error}");
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(error) = Gate::parse(text) {
        points_into(text, &error);
    }
    if let Err(error) = Rule::parse(text, &Namespace::comparison("--accept", &["projections", "cache update"])) {
        points_into(text, &error);
    }
});
