//! Kernels of `attention_parts`: decode's walk over each part of what a row sees, whose running softmax is written where decode
//! divides. Not here: the walk (`decode.rs`), and how positions are parted (`attention_parts.rs`).

#![allow(unsafe_code, reason = "scratch, exclusive rows of the outputs")]

use crate::operator::Kernel;
use crate::program::Attributes;
use crate::{Invocation, kernel};

use super::super::attention_parts::{TILE, part_of};
use super::super::isa::{AVX2, AVX512, for_isa};
use super::super::sequences::units;
#[cfg(target_arch = "x86_64")]
use super::bf16_decode::Bf16;
use super::decode::{Arithmetic, F32, KEYS, Running, few_rows, scratch};
#[cfg(target_arch = "x86_64")]
use crate::operators::isa::AVX512_BF16;

const _: () = assert!(TILE == KEYS, "parts begin where tiles do");

const STATE: f64 = 1e-10;
const BECAUSE: &str = "f32 sums, and exponentials to 3 in 10^7 (at most 2e-13 in the mean)";

/// A worker has whole (row, key/value head, part) triples, so each key and value is read once. Floor: those bytes at the read
/// bandwidth, and `heads * (head_dim + 2)` floats per part, which stay in the caches: 67 KB for a row of Qwen3-0.6B, 0.8 % of its
/// keys and values at 2,048 positions.
#[inline(always)]
fn split<A: Arithmetic>(i: &Invocation<'_>) {
    let (q, sums, peaks) = (i.input(0), i.output(0), i.output(1));
    let Attributes { heads, kv_heads, head_dim, .. } = *i.attributes();
    let (group, parts) = (heads / kv_heads, sums.rows / (q.rows * heads));
    // SAFETY: nothing else here uses the scratch.
    let mut running = unsafe { Running::of(i, group) };
    for unit in units(i, q.rows, kv_heads, parts) {
        let positions = part_of(unit.visible, unit.unit, parts);
        if positions.is_empty() {
            continue;
        }
        let first = unit.head * group;
        let queries = &q.bf16(unit.row)[first * head_dim..(first + group) * head_dim];
        running.see::<A>(i, &unit, positions, queries);
        for head in 0..group {
            let at = (unit.row * heads + first + head) * parts + unit.unit;
            // SAFETY: triples are shared out among the workers, and this row is of one.
            let (sums, peak) = unsafe { (sums.f32_mut(at), peaks.f32_mut(at)) };
            A::finish(running.sums_of(head), sums, |sum| sum);
            peak.copy_from_slice(&[running.largest[head], running.totals[head]]);
        }
    }
}

for_isa!(avx2, split_avx2, split::<F32<true>>);
for_isa!(avx512, split_avx512, split::<F32<true>>);
#[cfg(target_arch = "x86_64")]
for_isa!(avx512_bf16, split_bf16, split::<Bf16>);

pub static PORTABLE: Kernel = kernel! {
    operator: "attention_parts", name: "decode", isa: "portable", features: &[], supports: few_rows, scratch: scratch,
    nmse: STATE, because: BECAUSE, run: split::<F32<false>>,
};

pub static NARROW: Kernel = kernel! {
    operator: "attention_parts", name: "decode", isa: "avx2", features: AVX2, supports: few_rows, scratch: scratch,
    nmse: STATE, because: BECAUSE, run: split_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "attention_parts", name: "decode", isa: "avx512", features: AVX512, supports: few_rows, scratch: scratch,
    nmse: STATE, because: BECAUSE, run: split_avx512,
};

#[cfg(target_arch = "x86_64")]
pub static VECTOR: Kernel = kernel! {
    operator: "attention_parts", name: "decode", isa: "avx512-bf16", features: AVX512_BF16, supports: few_rows,
    scratch: scratch,
    nmse: STATE, because: BECAUSE, run: split_bf16,
};
