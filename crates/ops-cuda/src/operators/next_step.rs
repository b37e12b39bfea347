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
    best: u64,
    result: u64,
    table: DeviceWeight,
    y: u64,
    frequencies: u64,
    angles: u64,
    pairs: u32,
    unused: u32,
}

impl NextStep {
    /// Nothing but where the step is.
    pub(crate) fn new(step: u64) -> NextStep {
        NextStep {
            from: 0,
            words: 0,
            f32: 0,
            step,
            best: 0,
            result: 0,
            table: DeviceWeight::NONE,
            y: 0,
            frequencies: 0,
            angles: 0,
            pairs: 0,
            unused: 0,
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

    /// The same with the step's data, `words` at `from`.
    pub(crate) fn fed(self, from: u64, words: u32) -> NextStep {
        NextStep { from, words, ..self }
    }

    /// Launches what begins a step.
    pub(crate) fn open(&self, queue: &Queue) {
        queue.put(FILE, "open_step", ([1, 1, 1], [THREADS, 1, 1], 0), self);
    }

    /// Launches what ends one, whose largest column the head has left at `best`, and begins the next.
    pub(crate) fn close(&self, best: u64, result: u64, queue: &Queue) {
        let arguments = NextStep { best, result, ..*self };
        queue.put(FILE, "close_step", ([1, 1, 1], [THREADS, 1, 1], 0), &arguments);
    }
}

/// The first calls of a program that may run at the end of the step before: they read nothing but the step, and what they write stays
/// until the program's end.
pub(crate) fn calls(bound: &Bound) -> &[BoundCall] {
    let first = &bound.calls()[..bound.program().openings().len()];
    let known =
        |call: &&BoundCall| [&embed::ROWS, &rope_table::ROWS].iter().any(|kernel| std::ptr::eq(*kernel, call.kernel));
    // One launch does one of each.
    let twice = first
        .iter()
        .enumerate()
        .any(|(index, call)| first[..index].iter().any(|other| std::ptr::eq(other.kernel, call.kernel)));
    if first.iter().all(|call| known(&call)) && !twice { first } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_and_angles_of_one_step_join_and_two_of_a_kind_do_not() {
        let embedding = NextStep::embedding(64, DeviceWeight::NONE, 128, 1);
        let angles = NextStep::angles(64, 256, 512, 32);
        let mut all = NextStep::new(64).fed(4096, 40);
        assert!(all.join(&embedding) && all.join(&angles));
        assert_eq!((all.words, all.y, all.f32, all.angles, all.pairs), (40, 128, 1, 512, 32));
        assert!(!all.join(&embedding) && !all.join(&angles));
        assert!(!NextStep::new(64).join(&all), "the step's data comes first");
    }
}
