//! The reference: plain sums in f64, any element types and weight formats. It never gets faster.
//! Not here: anything fast.

use crate::weight::LANES;
use crate::{Invocation, Kernel, kernel};

pub(super) static REFERENCE: Kernel = kernel! {
    operator: "linear", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Sixteen outputs at a time, so that their weights are decoded once for all rows; each sum runs over k in order.
fn reference(i: &Invocation<'_>) {
    let (x, w, y) = (i.input(0), i.weight(0), i.output(0));
    let bias = (i.weights() > 1).then(|| i.weight(1).as_f32());
    let mut weights = vec![[0.0f64; LANES]; w.cols]; // (in, 16)
    for block in i.share(w.rows.div_ceil(LANES)) {
        let outputs = block * LANES..w.rows.min((block + 1) * LANES);
        for (lane, output) in outputs.clone().enumerate() {
            for (col, weights) in weights.iter_mut().enumerate() {
                weights[lane] = f64::from(w.value(output, col));
            }
        }
        for row in 0..x.rows {
            let mut sums = [0.0f64; LANES];
            for (col, weights) in weights.iter().enumerate() {
                let x = f64::from(x.get(row, col));
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum += weight * x;
                }
            }
            for (output, sum) in outputs.clone().zip(sums) {
                y.set(row, output, (sum + bias.map_or(0.0, |bias| f64::from(bias[output]))) as f32);
            }
        }
    }
}
