//! Nothing is allocated in a decode step of the bounded rungs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use model::Keep;
use weights::{ModelSource, OpenOptions};

#[global_allocator]
static COUNTING: ops::memory::CountingAllocator = ops::memory::CountingAllocator;

#[test]
fn a_decode_step_of_a_bounded_rung_allocates_nothing() {
    assert!(ops::memory::heap_is_counted());
    let source = ModelSource::parse("synthetic:tiny").unwrap();
    let files = weights::open(&source, &OpenOptions::default()).unwrap();
    for rung in rungs() {
        let mut engine = engine(&files, rung);
        let bounded = engine.checkpoint().cache == ops::CachePolicy::Bounded;
        let mut cache = engine.new_cache(64);
        let mut token = engine.forward(&mut cache, &[1, 2, 3], Keep::Last).unwrap().argmax(0);
        token = engine.forward(&mut cache, &[token], Keep::Last).unwrap().argmax(0);
        let before = ops::memory::allocations();
        for _ in 0..20 {
            token = engine.forward(&mut cache, &[token], Keep::Last).unwrap().argmax(0);
        }
        let allocations = ops::memory::allocations() - before;
        assert!(!bounded || allocations == 0, "{rung}: {allocations} allocations in 20 decode steps");
        assert!(bounded || allocations > 0, "{rung} grows: the counter must see it");
    }
}
