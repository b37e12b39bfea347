//! Day 6, solved. Not here: what is asked (`../src/day6.rs`).

use crate::day6::{self, DIM, GROUP};
use ops::operators::parts::sequence_of;
use ops::*;

/// One position after the other, for all heads of a group at once.
fn attention(call: &Invocation<'_>) {
    let (q, y) = (call.input(0), call.output(0));
    let Attributes { heads, kv_heads, head_dim, scale, .. } = *call.attributes();
    let group = heads / kv_heads;
    for part in call.share(q.rows * kv_heads) {
        let (row, kv_head) = (part / kv_heads, part % kv_heads);
        let (sequence, visible) = sequence_of(call.step, row);
        let (keys, values) = (call.kv(sequence, false), call.kv(sequence, true));
        let queries = q.bf16(row)[kv_head * group * head_dim..].chunks(head_dim);
        let mut largest = [f32::NEG_INFINITY; GROUP];
        let mut sums = [0.0f32; GROUP];
        let mut mixed = [[0.0f32; DIM]; GROUP];
        for position in 0..visible {
            let (key, value) = (keys.bf16(kv_head, position), values.bf16(kv_head, position));
            for (head, query) in queries.clone().take(group).enumerate() {
                let product: f32 = query.iter().zip(key).map(|(q, k)| bf16_to_f32(*q) * bf16_to_f32(*k)).sum();
                let larger = largest[head].max(product * scale);
                let shrink = (largest[head] - larger).exp();
                let weight = (product * scale - larger).exp();
                largest[head] = larger;
                sums[head] = sums[head] * shrink + weight;
                for (mixed, value) in mixed[head].iter_mut().zip(value) {
                    *mixed = *mixed * shrink + weight * bf16_to_f32(*value);
                }
            }
        }
        for head in 0..group {
            for (d, mixed) in mixed[head].iter().enumerate().take(head_dim) {
                y.set(row, (kv_head * group + head) * head_dim + d, mixed / sums[head]);
            }
        }
    }
}

pub(super) static KERNELS: &[&Kernel] = &[&Kernel { run: attention, ..day6::ATTENTION }];
