//! What stands before the first layer and behind the head of a step of one row: calls that read the step alone are gathered into the
//! launch that brings the step's data, or into the one that ends the step before. Not here: its arithmetic (`kernels/next_step.cu`), and
//! which launch it is (`gpu.rs`, `queue.rs`).

use super::{embed, rope_table};
use crate::layout::DeviceWeight;
use crate::queue::Queue;
use ops::{Bound, BoundCall};

const FILE: &str = "next_step.cu";
const THREADS: u32 = 512;

/// Arguments of both launches, as far as they are known.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NextStep {
    from: u64,
    words: u32,
    f32: u32,
    step: u64,
    next: u64,
    best: u64,
    result: u64,
    table: DeviceWeight,
    y: u64,
    frequencies: u64,
    angles: u64,
    pairs: u32,
    copies: u32,
    advance: u32,
    early: u32,
}

/// How a step ends: where the head has left the key of its largest column, where results go, where the steps to come are and by how many
/// they are moved on, and whether what follows may start meanwhile.
pub(crate) struct End {
    pub(crate) best: u64,
    pub(crate) result: u64,
    pub(crate) next: u64,
    pub(crate) advance: u32,
    pub(crate) early: bool,
}

impl NextStep {
    /// Nothing but where the step is.
    pub(crate) fn new(step: u64) -> NextStep {
        NextStep {
            from: 0,
            words: 0,
            f32: 0,
            step,
            next: 0,
            best: 0,
            result: 0,
            table: DeviceWeight::NONE,
            y: 0,
            frequencies: 0,
            angles: 0,
            pairs: 0,
            copies: 0,
            advance: 0,
            early: 0,
        }
    }

    /// The row of `table` that the step's token names goes to `y`, in float32 or bfloat16.
    pub(super) fn embedding(step: u64, table: DeviceWeight, y: u64, f32: u32) -> NextStep {
        NextStep { table, y, f32, ..NextStep::new(step) }
    }

    /// The step's position times `(pairs)` frequencies.
    pub(super) fn angles(step: u64, frequencies: u64, angles: u64, pairs: u32) -> NextStep {
        NextStep { frequencies, angles, pairs, ..NextStep::new(step) }
    }

    /// Adds what `other` does, if nothing of that kind is there.
    pub(crate) fn join(&mut self, other: &NextStep) -> bool {
        if self.y != 0 && other.y != 0 || self.angles != 0 && other.angles != 0 || other.words != 0 {
            return false;
        }
        if other.y != 0 {
            (self.table, self.y, self.f32) = (other.table, other.y, other.f32);
        }
        if other.angles != 0 {
            (self.frequencies, self.angles, self.pairs) = (other.frequencies, other.angles, other.pairs);
        }
        true
    }

    /// The same with the step's data, `words` at `from`, of which `copies` steps to come are made at `next`.
    pub(crate) fn fed(self, (from, words): (u64, u32), (next, copies): (u64, u32)) -> NextStep {
        NextStep { from, words, next, copies, ..self }
    }

    /// Launches what begins a step.
    pub(crate) fn open(&self, queue: &Queue) {
        queue.put(FILE, "open_step", ([1, 1, 1], [THREADS, 1, 1], 0), self);
    }

    /// Launches what ends one and begins the next.
    pub(crate) fn close(&self, &End { best, result, next, advance, early }: &End, queue: &Queue) {
        let arguments = NextStep { best, result, next, advance, early: u32::from(early), ..*self };
        queue.put(FILE, "close_step", ([1, 1, 1], [THREADS, 1, 1], 0), &arguments);
    }
}

/// The first calls of a program that may run at the end of the step before: they read nothing but the step, and what they write stays
/// until the program's end.
pub(crate) fn calls(bound: &Bound) -> &[BoundCall] {
    let first = &bound.calls()[..bound.program().openings().len()];
    let known =
        |call: &&BoundCall| [&embed::ROWS, &rope_table::ROWS].iter().any(|kernel| std::ptr::eq(*kernel, call.kernel));
    if first.iter().all(|call| known(&call)) { first } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_and_angles_of_one_step_join_and_two_of_a_kind_do_not() {
        let embedding = NextStep::embedding(64, DeviceWeight::NONE, 128, 1);
        let angles = NextStep::angles(64, 256, 512, 32);
        let mut all = NextStep::new(64).fed((4096, 40), (8192, 4));
        assert!(all.join(&embedding) && all.join(&angles));
        assert_eq!((all.words, all.copies, all.y, all.f32, all.angles, all.pairs), (40, 4, 128, 1, 512, 32));
        assert!(!all.join(&embedding) && !all.join(&angles));
        assert!(!NextStep::new(64).join(&all), "the step's data comes first");
    }
}
