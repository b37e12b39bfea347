//! Day 5, solved. Not here: what is asked (`../src/day5.rs`).

use crate::day5;
use ops::operators::parts::sequence_of;
use ops::*;

/// Positions of a tile.
const TILE: usize = 16;
/// Elements of a head that are mixed at a time.
const COLUMNS: usize = 128;

fn attention(call: &Invocation<'_>) {
    let (q, y) = (call.input(0), call.output(0));
    let Attributes { heads, kv_heads, head_dim, scale, .. } = *call.attributes();
    for part in call.share(q.rows * heads) {
        let (row, head) = (part / heads, part % heads);
        let (sequence, visible) = sequence_of(call.step, row);
        let (keys, values) = (call.kv(sequence, false), call.kv(sequence, true));
        let kv_head = head / (heads / kv_heads);
        for column in (0..head_dim).step_by(COLUMNS) {
            let columns = COLUMNS.min(head_dim - column);
            let (mut largest, mut sum, mut mixed) = (f32::NEG_INFINITY, 0.0f32, [0.0f32; COLUMNS]);
            for first in (0..visible).step_by(TILE) {
                let positions = TILE.min(visible - first);
                let mut scores = [f32::NEG_INFINITY; TILE];
                for (position, score) in scores.iter_mut().enumerate().take(positions) {
                    let product = |d| q.get(row, head * head_dim + d) * keys.get(kv_head, first + position, d);
                    *score = (0..head_dim).map(product).sum::<f32>() * scale;
                }
                let larger = scores.iter().fold(largest, |a, b| a.max(*b));
                let shrink = (largest - larger).exp();
                largest = larger;
                sum *= shrink;
                mixed.iter_mut().for_each(|mixed| *mixed *= shrink);
                for (position, score) in scores.iter().enumerate().take(positions) {
                    let weight = (score - largest).exp();
                    sum += weight;
                    for (d, mixed) in mixed.iter_mut().enumerate().take(columns) {
                        *mixed += weight * values.get(kv_head, first + position, column + d);
                    }
                }
            }
            for (d, mixed) in mixed.iter().enumerate().take(columns) {
                y.set(row, head * head_dim + column + d, mixed / sum);
            }
        }
    }
}

pub(super) static KERNELS: &[&Kernel] = &[&Kernel { run: attention, ..day5::ATTENTION }];
