//! x
#![allow(clippy::unwrap_used, reason = "tests")]
mod common;
#[test]
fn w() {
    let trace = common::request(3, |_, worker, _| worker as u64 * 30);
    let mut out = Vec::new();
    record::trace::write_perfetto(&trace, &mut out).unwrap();
    std::fs::write("/tmp/t.pftrace", &out).unwrap();
}
