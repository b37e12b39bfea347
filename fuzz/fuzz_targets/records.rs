//! Any bytes as a record: an error at worst, and what is read is written and read again to the same.

#![no_main]

fn there_and_back<R: record::Record>(bytes: &[u8]) {
    if let Ok(record) = record::read::<R>("fuzz", bytes) {
        let text = serde_json::to_vec(&record).expect("a record that was read can be written");
        record::read::<R>("fuzz, again", &text).expect("a record that was written can be read");
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    there_and_back::<record::FindRecord>(bytes);
    there_and_back::<record::Ceilings>(bytes);
    there_and_back::<record::ReplayRecord>(bytes);
    there_and_back::<record::ReplayComparison>(bytes);
    there_and_back::<record::DecisionRecord>(bytes);
    there_and_back::<record::ShapeStudy>(bytes);
});
