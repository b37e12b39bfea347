//! Day 7, solved. Not here: what is asked (`../src/day7.rs`).

use crate::day7;
use ops::operators::parts::{columns, sequence_of};
use ops::*;

fn norm_rope_append(call: &Invocation<'_>) {
    let Attributes { heads, kv_heads, .. } = *call.attributes();
    let (y, group) = (call.output(0), heads / kv_heads);
    for part in call.share(y.rows * kv_heads) {
        let (row, kv_head) = (part / kv_heads, part % kv_heads);
        for head in kv_head * group..(kv_head + 1) * group {
            placed(call, 0, row, head, |d, value| y.set(row, head * call.attributes().head_dim + d, value));
        }
        let (sequence, visible) = sequence_of(call.step, row);
        let (keys, values) = (call.cache_mut(sequence, false), call.cache_mut(sequence, true));
        placed(call, 1, row, kv_head, |d, value| keys.set(kv_head, visible - 1, d, value));
        for d in 0..call.attributes().head_dim {
            values.set(kv_head, visible - 1, d, call.input(2).get(row, kv_head * call.attributes().head_dim + d));
        }
    }
}

/// One head of input 0 (queries) or 1 (keys), normalised and turned, element by element to `store`.
fn placed(call: &Invocation<'_>, input: usize, row: usize, head: usize, store: impl Fn(usize, f32)) {
    let (x, table) = (call.input(input), call.input(3));
    let Attributes { head_dim, epsilon, interleaved, .. } = *call.attributes();
    let value = |d: usize| x.get(row, head * head_dim + d);
    let norm = (call.weights() > 0).then(|| call.weight(input).as_f32());
    let scale = match norm {
        Some(_) => 1.0 / ((0..head_dim).map(|d| value(d).powi(2)).sum::<f32>() / head_dim as f32 + epsilon).sqrt(),
        None => 1.0,
    };
    let normed = |d: usize| value(d) * scale * norm.map_or(1.0, |norm| norm[d]);
    for pair in 0..head_dim / 2 {
        let (cos, sin) = (table.get(row, pair), table.get(row, head_dim / 2 + pair));
        let (a, b) = columns(pair, head_dim, interleaved);
        store(a, normed(a) * cos - normed(b) * sin);
        store(b, normed(b) * cos + normed(a) * sin);
    }
}

pub(super) static KERNELS: &[&Kernel] = &[&Kernel { run: norm_rope_append, ..day7::NORM_ROPE_APPEND }];
