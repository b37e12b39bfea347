//! Products of many rows on Hopper, whose tiles the tensor memory unit copies: several of one input in one launch, and how it is cut.
//! Not here: their arithmetic (`kernels/linear_tiles.cu`), and turning codes into bfloat16 (`matmul.rs`).

use super::{bf16_buffers, bias, fast_layouts, matmul};
use crate::driver::TensorMap;
use crate::layout::{FRAGMENTS, layout};
use crate::queue::Queue;
use ops::{CallShape, Invocation};

/// Products that one launch holds.
const PARTS: usize = 3;
/// Rows and columns of a tile of x.
const ROWS: u32 = 128;
const DEPTH: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    bias: u64,
    y: u64,
    outputs: u32,
    first: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    x: TensorMap,
    w: [TensorMap; PARTS],
    part: [Part; PARTS],
    rows: u32,
    cols: u32,
    parts: u32,
    ahead: u32,
}

/// Products of one input that become one launch.
#[derive(Clone, Copy)]
pub(crate) struct Together {
    x: u64,
    rows: u32,
    cols: u32,
    /// Whether the weights are there before the launch: they are not where a launch before it makes them from codes, in memory
    /// that the next product uses too.
    ahead: bool,
    count: usize,
    weights: [u64; PARTS],
    part: [Part; PARTS],
}

impl Together {
    /// Adds the products of `other`, if they are of the same input and there is room.
    pub(crate) fn join(&mut self, other: &Together) -> bool {
        let same = (self.x, self.rows, self.cols) == (other.x, other.rows, other.cols) && self.ahead && other.ahead;
        if !same || self.count + other.count > PARTS {
            return false;
        }
        for index in 0..other.count {
            self.weights[self.count] = other.weights[index];
            self.part[self.count] = other.part[index];
            self.count += 1;
        }
        true
    }

    pub(crate) fn launch(&self, queue: &Queue) {
        let outputs = self.part.map(|part| part.outputs);
        let cut = cut(self.rows, self.cols, &outputs[..self.count], queue.multiprocessors);
        let Some(x) = queue.tensor_map(self.x, (self.rows, self.cols), (ROWS, DEPTH)) else { return };
        let mut arguments = Arguments {
            x,
            w: [x; PARTS],
            part: self.part,
            rows: self.rows,
            cols: self.cols,
            parts: self.count as u32,
            ahead: u32::from(self.ahead),
        };
        let mut first = 0;
        for index in 0..self.count {
            let outputs = self.part[index].outputs;
            let map = queue.tensor_map(self.weights[index], (outputs, self.cols), (cut.outputs, DEPTH));
            let Some(map) = map else { return };
            (arguments.w[index], arguments.part[index].first) = (map, first);
            first += outputs.div_ceil(cut.outputs);
        }
        let grid = [self.rows.div_ceil(ROWS), first, cut.splits];
        let shape = (grid, [288, 1, 1], cut.shared_bytes);
        queue.put_clusters("linear_tiles.cu", cut.kernel, shape, [1, 1, cut.splits], &arguments);
    }
}

/// Which kernel, and how much a block does.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cut {
    kernel: &'static str,
    outputs: u32,
    /// Blocks of a cluster that share the columns.
    splits: u32,
    shared_bytes: u32,
}

/// A block's outputs, the stages that its shared memory holds, and how long one takes, in microseconds on an H200.
const KERNELS: [(&str, u32, u32, f64); 4] =
    [("tiles_64", 64, 8, 0.26), ("tiles_128", 128, 6, 0.40), ("tiles_160", 160, 6, 0.48), ("tiles_256", 256, 4, 0.72)];

/// The cut that a model of the launch's time finds quickest: the stages of the busiest processor; what starting a block and writing its
/// result take; adding up what the blocks of a cluster found; and the room that the blocks leave no others. Within a tenth of the
/// quickest of all cuts at the shapes of Qwen3-0.6B and 4B, of 128 and 2,048 rows; `docs/gpu.md` has these times.
fn cut(rows: u32, cols: u32, outputs: &[u32], multiprocessors: u32) -> Cut {
    let stages = cols.div_ceil(DEPTH);
    let mut best = (Cut { kernel: "", outputs: 0, splits: 1, shared_bytes: 0 }, f64::INFINITY);
    for (kernel, across, deep, each) in KERNELS {
        let tiles: u32 = outputs.iter().map(|outputs| outputs.div_ceil(across)).sum();
        for splits in [1, 2, 4, 5, 8].into_iter().filter(|splits| *splits <= stages) {
            let blocks = rows.div_ceil(ROWS) * tiles * splits;
            // Clusters lie within groups of at least 16 processors.
            let usable = (multiprocessors * (16 / splits * splits) / 16).max(splits);
            let waves = f64::from(blocks.div_ceil(usable));
            let adding = if splits == 1 { 0.0 } else { (0.8 + 0.4 * f64::from(splits)) * f64::from(across) / 64.0 };
            let crowding = 1.5 * (f64::from(blocks) / f64::from(multiprocessors)).min(1.0);
            let time = waves * (f64::from(stages.div_ceil(splits)) * each + 2.5) + adding + crowding;
            if time < best.1 {
                // The stages, and room to align them.
                let shared_bytes = deep * (ROWS + across) * DEPTH * 2 + 1024;
                best = (Cut { kernel, outputs: across, splits, shared_bytes }, time);
            }
        }
    }
    best.0
}

/// What a line of x or of a weight divides by, so that the tensor memory unit can address lines.
const COLUMNS: usize = 8;

pub(super) fn takes(shape: &CallShape) -> Result<(), String> {
    bf16_buffers(shape)?;
    fast_layouts(&shape.weights[..1], COLUMNS)
}

pub(super) fn run(i: &Invocation<'_>) {
    let queue: &Queue = i.queue();
    let (x, y) = (i.input(0), i.output(0));
    let part = Part { bias: bias(i), y: y.as_ptr() as u64, outputs: y.width as u32, first: 0 };
    let shape = i.weight_at(0).1;
    queue.matmul(Together {
        x: x.as_ptr() as u64,
        rows: x.rows as u32,
        cols: x.width as u32,
        ahead: layout(&shape) != FRAGMENTS,
        count: 1,
        weights: [matmul::plain_weight(i, queue); PARTS],
        part: [part; PARTS],
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_fit_a_processor_and_share_columns_only_where_processors_would_be_idle() {
        for (rows, cols, outputs) in [
            (9, 8, &[1][..]),
            (128, 1024, &[2048, 1024, 1024]),
            (512, 2560, &[9728, 9728]),
            (2048, 9728, &[2560]),
            (100_000, 4096, &[151_936]),
        ] {
            let cut = cut(rows, cols, outputs, 132);
            assert!(cut.shared_bytes <= 227 << 10 && cut.splits <= 8, "{cut:?}");
            // What a block adds up lies where its stages were.
            assert!(128 * (cut.outputs + 4) * 4 < cut.shared_bytes, "{cut:?}");
        }
        let quickest = |rows, cols, outputs: &[u32]| {
            let cut = cut(rows, cols, outputs, 132);
            (cut.outputs, cut.splits)
        };
        assert_eq!(quickest(128, 3072, &[1024]), (64, 4));
        assert_eq!(quickest(128, 9728, &[2560]), (128, 5));
        assert_eq!(quickest(2048, 4096, &[2560]), (160, 1));
        assert_eq!(quickest(2048, 2560, &[9728, 9728]), (256, 1));
    }

    #[test]
    fn products_of_one_input_join_and_those_of_codes_do_not() {
        let part = Part { bias: 0, y: 64, outputs: 100, first: 0 };
        let of =
            |x, ahead| Together { x, rows: 9, cols: 64, ahead, count: 1, weights: [0; PARTS], part: [part; PARTS] };
        let mut all = of(4096, true);
        assert!(all.join(&of(4096, true)) && all.join(&of(4096, true)));
        assert!(!all.join(&of(4096, true)), "no room");
        assert!(!of(4096, true).join(&of(8192, true)), "another input");
        assert!(
            !of(4096, true).join(&of(4096, false)) && !of(4096, false).join(&of(4096, true)),
            "one weight's memory"
        );
    }
}
