//! Any bytes as a record or as a line of a bench child: an error at worst, and what is read is written and read again to the same.

#![no_main]

use record::Record;
use record::bench::{BenchRecord, ChildLine};

fn both_ways<R: Record + serde::Serialize>(bytes: &[u8]) {
    if let Ok(record) = record::read::<R>("fuzz", bytes) {
        let text = serde_json::to_vec(&record).expect("a record that was read can be written");
        record::read::<R>("fuzz, again", &text).expect("a record that was written can be read");
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    both_ways::<record::ClimbRecord>(bytes);
    both_ways::<record::FindRecord>(bytes);
    both_ways::<BenchRecord>(bytes);
    both_ways::<record::Ceilings>(bytes);
    both_ways::<record::ReplayRecord>(bytes);
    both_ways::<record::ReplayComparison>(bytes);
    both_ways::<record::ComparisonRecord>(bytes);
    both_ways::<record::DecisionRecord>(bytes);
    both_ways::<record::ShapeStudy>(bytes);
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(ChildLine::Request(request)) = ChildLine::parse(text)
        && request.check(4).is_ok()
    {
        let _ = request.clock(4, 4);
    }
});
