//! Day 3, solved. Not here: what is asked (`../src/day3.rs`).

use crate::day3;
use ops::*;

const ROWS: usize = 32;
const COLS: usize = 32;

/// Per output, tiles of 32 columns unpacked once for 32 rows.
fn matmul(call: &Invocation<'_>) {
    let (x, w, y) = (call.input(0), call.weight(0), call.output(0));
    let bias = (call.weights() > 1).then(|| call.weight(1).as_f32());
    for output in call.share(w.rows) {
        for first_row in (0..x.rows).step_by(ROWS) {
            let rows = ROWS.min(x.rows - first_row);
            let mut sums = [bias.map_or(0.0, |bias| bias[output]); ROWS];
            for first_col in (0..w.cols).step_by(COLS) {
                let cols = COLS.min(w.cols - first_col);
                let mut tile = [0.0f32; COLS];
                for (col, weight) in tile.iter_mut().enumerate().take(cols) {
                    *weight = w.value(output, first_col + col);
                }
                for (row, sum) in sums.iter_mut().enumerate().take(rows) {
                    let x = &x.bf16(first_row + row)[first_col..first_col + cols];
                    *sum += x.iter().zip(&tile).map(|(x, weight)| bf16_to_f32(*x) * weight).sum::<f32>();
                }
            }
            for (row, sum) in sums.iter().enumerate().take(rows) {
                y.set(first_row + row, output, *sum);
            }
        }
    }
}

pub(super) static KERNELS: &[&Kernel] = &[&Kernel { run: matmul, ..day3::MATMUL }];
