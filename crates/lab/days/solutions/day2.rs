//! Day 2, solved. Not here: what is asked (`../src/day2.rs`).

use crate::day2;
use ops::*;

/// One output at a time: its weights are unpacked once, for up to eight rows.
fn matvec(call: &Invocation<'_>) {
    let (x, w, y) = (call.input(0), call.weight(0), call.output(0));
    let bias = (call.weights() > 1).then(|| call.weight(1).as_f32());
    for output in call.share(w.rows) {
        let mut sums = [bias.map_or(0.0, |bias| bias[output]); ladder::MATVEC_MAX_ROWS];
        for col in 0..w.cols {
            let weight = w.value(output, col);
            for (row, sum) in sums.iter_mut().enumerate().take(x.rows) {
                *sum += weight * x.get(row, col);
            }
        }
        for (row, sum) in sums.iter().enumerate().take(x.rows) {
            y.set(row, output, *sum);
        }
    }
}

pub(super) static KERNELS: &[&Kernel] = &[&Kernel { run: matvec, ..day2::MATVEC }];
