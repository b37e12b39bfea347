//! Day 8, solved. Not here: what is asked (`../src/day8.rs`).

use crate::day8;
use ops::*;

/// The sum is written, and read back where it is normalised: it is rounded by then.
fn add_rms_norm(call: &Invocation<'_>) {
    let (a, b, w, sum, y) = (call.input(0), call.input(1), call.weight(0).as_f32(), call.output(0), call.output(1));
    for row in call.share(sum.rows) {
        for col in 0..sum.width {
            sum.set(row, col, a.get(row, col) + b.get(row, col));
        }
        let square: f32 = (0..sum.width).map(|col| sum.get(row, col).powi(2)).sum();
        let scale = 1.0 / (square / sum.width as f32 + call.attributes().epsilon).sqrt();
        for col in 0..sum.width {
            y.set(row, col, sum.get(row, col) * scale * w[col]);
        }
    }
}

pub(super) static KERNELS: &[&Kernel] = &[&Kernel { run: add_rms_norm, ..day8::ADD_RMS_NORM }];
