//! Where each activation buffer lies: offsets in one arena, from the buffers' lifetimes, known before anything runs.
//! Not here: the arena itself, scratch, caches and weights.

use crate::program::Program;

/// Offsets of every buffer and the bytes of the arena that holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Byte offset per buffer, 64-byte aligned.
    pub offsets: Vec<usize>,
    /// Size of the arena: the exact activation bytes of a step.
    pub bytes: usize,
}

const ALIGNMENT: usize = 64;

impl MemoryPlan {
    /// Places the largest buffers first, each at the lowest offset that no buffer alive at the same time takes.
    pub fn new(program: &Program) -> MemoryPlan {
        let lifetimes = lifetimes(program);
        let bytes = |index: usize| {
            let buffer = &program.buffers[index];
            (buffer.rows * buffer.width * buffer.dtype.bytes()).next_multiple_of(ALIGNMENT)
        };
        let mut order: Vec<usize> = (0..program.buffers.len()).collect();
        order.sort_by_key(|index| (std::cmp::Reverse(bytes(*index)), *index));
        let mut offsets = vec![0; program.buffers.len()];
        let mut placed: Vec<usize> = Vec::new();
        let mut total = 0;
        for index in order {
            let mut taken: Vec<(usize, usize)> = placed
                .iter()
                .filter(|other| {
                    lifetimes[**other].0 <= lifetimes[index].1 && lifetimes[index].0 <= lifetimes[**other].1
                })
                .map(|other| (offsets[*other], offsets[*other] + bytes(*other)))
                .collect();
            taken.sort_unstable();
            let mut offset = 0;
            for (start, end) in taken {
                if offset + bytes(index) <= start {
                    break;
                }
                offset = offset.max(end);
            }
            offsets[index] = offset;
            total = total.max(offset + bytes(index));
            placed.push(index);
        }
        MemoryPlan { offsets, bytes: total }
    }
}

/// First and last call (inclusive) that touches each buffer; the result lives to the end, and so does what of the next step may be made
/// before that is read ([`Program::openings`]).
fn lifetimes(program: &Program) -> Vec<(usize, usize)> {
    let mut lifetimes = vec![(usize::MAX, 0); program.buffers.len()];
    for (index, call) in program.calls.iter().enumerate() {
        for view in call.inputs.iter().chain(&call.outputs) {
            let (first, last) = &mut lifetimes[view.buffer.index()];
            *first = (*first).min(index);
            *last = index;
        }
    }
    lifetimes[program.output.buffer.index()].1 = program.calls.len();
    for view in program.openings().iter().flat_map(|call| &call.outputs) {
        lifetimes[view.buffer.index()].1 = program.calls.len();
    }
    lifetimes
}
