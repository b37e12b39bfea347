//! Day 4, solved. Not here: what is asked (`../src/day4.rs`).

use crate::day4;
use ops::operators::parts::columns;
use ops::*;

fn rms_norm(call: &Invocation<'_>) {
    let (x, w, y) = (call.input(0), call.weight(0).as_f32(), call.output(0));
    let Attributes { head_dim, epsilon, .. } = *call.attributes();
    let segments = y.width / head_dim;
    for segment in call.share(y.rows * segments) {
        let (row, first) = (segment / segments, segment % segments * head_dim);
        let square: f32 = (0..head_dim).map(|col| x.get(row, first + col).powi(2)).sum();
        let scale = 1.0 / (square / head_dim as f32 + epsilon).sqrt();
        for col in 0..head_dim {
            y.set(row, first + col, x.get(row, first + col) * scale * w[col]);
        }
    }
}

fn rope(call: &Invocation<'_>) {
    let (x, table, y) = (call.input(0), call.input(1), call.output(0));
    let Attributes { head_dim, interleaved, .. } = *call.attributes();
    let heads = y.width / head_dim;
    for part in call.share(y.rows * heads) {
        let (row, first) = (part / heads, part % heads * head_dim);
        for pair in 0..head_dim / 2 {
            let (cos, sin) = (table.get(row, pair), table.get(row, head_dim / 2 + pair));
            let (a, b) = columns(pair, head_dim, interleaved);
            let (xa, xb) = (x.get(row, first + a), x.get(row, first + b));
            y.set(row, first + a, xa * cos - xb * sin);
            y.set(row, first + b, xb * cos + xa * sin);
        }
    }
}

fn swiglu(call: &Invocation<'_>) {
    let (gate, up, y) = (call.input(0), call.input(1), call.output(0));
    for at in call.share(y.rows * y.width) {
        let (row, col) = (at / y.width, at % y.width);
        let value = gate.get(row, col);
        y.set(row, col, value / (1.0 + (-value).exp()) * up.get(row, col));
    }
}

pub(super) static KERNELS: &[&Kernel] = &[
    &Kernel { run: rms_norm, ..day4::RMS_NORM },
    &Kernel { run: rope, ..day4::ROPE },
    &Kernel { run: swiglu, ..day4::SWIGLU },
];
