//! The step that is put into the stream before it is asked for: which one it is, and whether what is asked then is it.
//! Not here: putting it there and waiting for it (`gpu.rs`), and where its result goes (`running.rs`).

use crate::graphs::Key;
use crate::step;
use ops::recording::Launch;
use ops::{Sequence, Step};
use std::ops::Range;
use std::sync::Arc;

/// What a run is of, but for the step's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct What {
    /// Where its program's result lies: no two programs share that.
    pub(crate) output: u64,
    pub(crate) key: Key,
}

/// A run that is in the stream.
pub(crate) struct Put {
    pub(crate) launches: Arc<Vec<Launch>>,
    /// Whether it is replayed as one graph.
    pub(crate) graph: bool,
    /// Whether it was there before it was asked for.
    pub(crate) ahead: bool,
    /// Whether it ends with what begins the next step.
    pub(crate) begins_next: bool,
}

/// Outputs that steps ahead write over, each with the largest column of the step that was asked for: what of it can still be told, whoever
/// runs in between.
#[derive(Default)]
pub(crate) struct Overwritten(Vec<(Range<u64>, Option<u32>)>);

impl Overwritten {
    /// From now on a step ahead writes there.
    pub(crate) fn put(&mut self, output: Range<u64>) {
        self.forget(&output);
        self.0.push((output, None));
    }

    /// The step that was asked for ended with this.
    pub(crate) fn found(&mut self, start: u64, token: u32) {
        if let Some((_, known)) = self.0.iter_mut().find(|(output, _)| output.start == start) {
            *known = Some(token);
        }
    }

    pub(crate) fn largest(&self, start: u64) -> Option<u32> {
        self.0.iter().find(|(output, _)| output.start == start)?.1
    }

    pub(crate) fn touches(&self, bytes: &Range<u64>) -> bool {
        self.0.iter().any(|(output, _)| output.start < bytes.end && bytes.start < output.end)
    }

    /// What lies here is written anew, or no longer there.
    pub(crate) fn forget(&mut self, bytes: &Range<u64>) {
        self.0.retain(|(output, _)| output.end <= bytes.start || bytes.end <= output.start);
    }
}

/// The step that nobody has asked for yet.
#[derive(Default)]
pub(crate) struct Ahead {
    put: Option<(What, Put)>,
    /// The step's data as the host would write it; the token is known when the step before has ended.
    expected: Vec<u8>,
    /// Runs that nothing is put behind after a step that nobody asked for, and how many of them are left.
    pause: u32,
    left: u32,
}

/// Requests that take turns ask for each other's steps: at most so many runs go by between two attempts.
const LONGEST_PAUSE: u32 = 31;

impl Ahead {
    /// Notes what was put behind the step whose data is `block`.
    pub(crate) fn put(&mut self, block: &[u8], what: What, put: Put) {
        self.expected.clear();
        self.expected.extend_from_slice(block);
        step::advance(&mut self.expected);
        self.put = Some((what, put));
    }

    /// What was put, if a run of `what` with the data `block` is that, where the step before ended with `token`.
    pub(crate) fn claim(&mut self, what: &What, block: &[u8], token: u32) -> Option<Put> {
        if self.put.as_ref().is_none_or(|(known, _)| known != what) {
            return None;
        }
        step::set_token(&mut self.expected, token);
        if self.expected != block {
            return None;
        }
        self.pause = 0;
        self.put.take().map(|(_, put)| put)
    }

    /// Forgets it; whether there was any. Each in a row doubles the runs that nothing is put behind.
    pub(crate) fn give_up(&mut self) -> bool {
        let any = self.put.take().is_some();
        if any {
            self.pause = (2 * self.pause + 1).min(LONGEST_PAUSE);
            self.left = self.pause;
        }
        any
    }

    /// Whether one is to be put behind this run.
    pub(crate) fn pays(&mut self) -> bool {
        let pays = self.left == 0;
        self.left = self.left.saturating_sub(1);
        pays
    }
}

/// The step after `step` as far as launches depend on it, if that is certain but for its token: a single row whose cache has room for one more.
/// The token in it is the one of `step`.
pub(crate) fn after<'a>(step: &Step<'a>) -> Option<Sequence<'a>> {
    let [only] = step.sequences else { return None };
    let room = |cache: &ops::LayerCache| cache.previous.is_none() && only.offset + 1 < cache.capacity;
    let certain = step.tokens.len() == 1 && only.rows == 1 && !only.caches.is_empty() && only.caches.iter().all(room);
    certain.then_some(Sequence { offset: only.offset + 1, ..*only })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::graphs::Fed;
    use ops::{LayerCache, PreviousCache};

    const CAPACITY: usize = 300;

    fn cache(at: usize) -> LayerCache {
        LayerCache { keys: at as *mut u8, values: (at + 1) as *mut u8, capacity: CAPACITY, previous: None }
    }

    fn what(output: u64, range: u32) -> What {
        What { output, key: Key { calls: 7, sequences: 1, longest: 1, step_bytes: 176, range, fed: Fed::Device } }
    }

    /// The data of a step of `token` at `offset`, whose result goes to slot `turn`.
    fn block(token: u32, offset: usize, at: usize, turn: u32) -> Vec<u8> {
        let caches = [cache(at), cache(at + 64)];
        let sequences = [Sequence { first_row: 0, rows: 1, offset, caches: &caches }];
        let mut block = vec![0; 4096];
        let end = step::write(&Step { tokens: &[token], sequences: &sequences }, turn, &mut block, 1 << 32).unwrap();
        block.truncate(end);
        block
    }

    fn put() -> Put {
        Put { launches: Arc::default(), graph: true, ahead: true, begins_next: true }
    }

    #[test]
    fn of_an_overwritten_output_the_largest_column_alone_can_be_told_until_it_is_written_anew() {
        let mut all = Overwritten::default();
        all.put(100..200);
        assert_eq!((all.largest(100), all.touches(&(199..300)), all.touches(&(200..300))), (None, true, false));
        all.found(100, 7);
        all.put(300..400);
        all.found(300, 9);
        assert_eq!((all.largest(100), all.largest(300), all.largest(101)), (Some(7), Some(9), None));
        all.forget(&(100..101));
        assert_eq!((all.largest(100), all.largest(300), all.touches(&(0..300))), (None, Some(9), false));
        all.put(300..400);
        assert_eq!(all.largest(300), None, "another step");
        all.forget(&(0..1000));
        assert!(!all.touches(&(0..1000)));
    }

    #[test]
    fn steps_that_nobody_asks_for_become_rare_and_one_that_is_asked_for_ends_that() {
        let mut ahead = Ahead::default();
        let block = |offset| self::block(11, offset, 256, 0);
        let mut put = Vec::new();
        for run in 0..100 {
            if ahead.pays() {
                ahead.put(&block(7), what(1, 0), self::put());
                assert!(ahead.give_up());
                put.push(run);
            }
        }
        assert_eq!(put, [0, 2, 6, 14, 30, 62, 94]);
        while !ahead.pays() {}
        ahead.put(&block(7), what(1, 0), self::put());
        assert!(ahead.claim(&what(1, 0), &self::block(42, 8, 256, 1), 42).is_some() && ahead.pays());
        assert!(!ahead.give_up() && ahead.pays(), "nothing was there");
    }

    #[test]
    fn only_the_largest_column_at_the_next_position_of_the_same_caches_is_what_was_put() {
        let mut ahead = Ahead::default();
        let mut claims = |what: What, asked: &[u8]| {
            ahead.put(&block(11, 254, 256, 0), self::what(1, 0), put());
            ahead.claim(&what, asked, 42).is_some()
        };
        assert!(claims(what(1, 0), &block(42, 255, 256, 1)));
        assert!(!claims(what(1, 0), &block(43, 255, 256, 1)), "another token");
        assert!(!claims(what(1, 0), &block(42, 254, 256, 1)), "the same position");
        assert!(!claims(what(1, 0), &block(42, 256, 256, 1)), "one position further");
        assert!(!claims(what(1, 0), &block(42, 255, 512, 1)), "another cache");
        assert!(!claims(what(1, 0), &block(42, 255, 256, 0)), "the slot of the step before");
        assert!(!claims(what(2, 0), &block(42, 255, 256, 1)), "another program");
        assert!(!claims(what(1, 1), &block(42, 255, 256, 1)), "another range of positions");
        assert!(ahead.give_up() && !ahead.give_up());
        assert!(ahead.claim(&what(1, 0), &block(42, 255, 256, 1), 42).is_none(), "it was given up");
    }

    #[test]
    fn the_step_after_is_certain_for_one_row_with_room() {
        let caches = [cache(16), cache(32)];
        let growing = [LayerCache {
            previous: Some(PreviousCache { keys: 16 as *const u8, values: 32 as *const u8, capacity: 4 }),
            ..cache(16)
        }];
        let of = |tokens: &[u32], sequences: &[Sequence<'_>]| {
            after(&Step { tokens, sequences }).map(|sequence| (sequence.offset, sequence.caches.len()))
        };
        let one = |offset, caches| Sequence { first_row: 0, rows: 1, offset, caches };
        assert_eq!(of(&[5], &[one(255, &caches)]), Some((256, 2)));
        assert_eq!(of(&[5], &[one(CAPACITY - 2, &caches)]), Some((CAPACITY - 1, 2)), "the last position");
        assert_eq!(of(&[5], &[one(CAPACITY - 1, &caches)]), None, "no room");
        assert_eq!(of(&[5], &[one(7, &[])]), None, "no cache");
        assert_eq!(of(&[5], &[one(7, &growing)]), None, "a cache that is allocated anew for each step");
        assert_eq!(of(&[5, 6], &[Sequence { rows: 2, ..one(7, &caches) }]), None, "two rows");
        assert_eq!(of(&[5, 6], &[one(7, &caches), Sequence { first_row: 1, ..one(7, &caches) }]), None, "two requests");
    }
}
