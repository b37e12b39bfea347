//! Day 1, solved. Not here: what is asked (`../src/day1.rs`).

use crate::day1;
use ops::operators::parts::sequence_of;
use ops::*;

fn append(call: &Invocation<'_>) {
    let Attributes { kv_heads, head_dim, .. } = *call.attributes();
    for value in [false, true] {
        let new = call.input(usize::from(value));
        for row in call.share(new.rows) {
            let (sequence, visible) = sequence_of(call.step, row);
            let cache = call.cache_mut(sequence, value);
            for col in 0..kv_heads * head_dim {
                cache.set(col / head_dim, visible - 1, col % head_dim, new.get(row, col));
            }
        }
    }
}

fn grow(call: &Invocation<'_>) {
    let heads = call.attributes().kv_heads;
    for sequence in call.step.sequences {
        for value in [false, true] {
            let Some(old) = call.previous(sequence, value) else { continue };
            let new = call.cache_mut(sequence, value);
            for part in call.share(heads * old.positions) {
                let (head, position) = (part / old.positions, part % old.positions);
                for d in 0..old.head_dim {
                    new.set(head, position, d, old.get(head, position, d));
                }
            }
        }
    }
}

pub(super) static KERNELS: &[&Kernel] = &[&Kernel { run: append, ..day1::APPEND }, &Kernel { run: grow, ..day1::GROW }];
