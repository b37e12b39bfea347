//! rope_table on the device. A single row's joins what else begins a step. Not here: its arithmetic (`kernels/rope_table.cu`).

use super::next_step::NextStep;
use crate::queue::Queue;
use ops::{Invocation, Kernel, kernel};

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    step: u64,
    frequencies: u64,
    table: u64,
    pairs: u32,
    unused: u32,
}

pub(crate) static ROWS: Kernel = kernel! {
    operator: "rope_table", name: "rows", isa: "cuda", features: &[],
    nmse: 1e-14, because: "the same float32 angle; cosine and sine are rounded once to float32", run: rows,
};

fn rows(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let ((start, shape), table) = (i.weight_at(0), i.output(0));
    if table.rows == 1 {
        let (frequencies, angles) = (start as u64, table.as_ptr() as u64);
        return queue.begin(NextStep::angles(queue.step, frequencies, angles, shape.cols as u32));
    }
    let arguments = Arguments {
        step: queue.step,
        frequencies: start as u64,
        table: table.as_ptr() as u64,
        pairs: shape.cols as u32,
        unused: 0,
    };
    queue.launch("rope_table.cu", "rope_table_rows", ([table.rows as u32, 1, 1], [128, 1, 1], 0), &arguments);
}
