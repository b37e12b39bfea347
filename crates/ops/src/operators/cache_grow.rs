//! A cache that grows by concatenation: copies what the previous storage held to the step's new, larger storage.
//! Not here: the new tokens, which `cache_append` writes, and allocating the new storage.
//!
//! Ladder: reference → runs. Bounded caches have no previous storage; programs for them do not contain this call.

#![allow(unsafe_code, reason = "exclusive runs of caches")]

use crate::operator::{CacheUse, CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::step::SequenceShape;
use crate::testing::{Case, CaseCache, Draw};
use crate::{DType, Invocation, kernel};

use super::shapes::expect;

/// No inputs or outputs: positions `0..offset` of every head are copied, keys and values. Attributes: `kv_heads`, `head_dim`.
pub struct CacheGrow;
pub static CACHE_GROW: CacheGrow = CacheGrow;

impl Operator for CacheGrow {
    fn name(&self) -> &'static str {
        "cache_grow"
    }

    fn group(&self) -> Group {
        Group::CacheUpdate
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 0, 0, 0)
    }

    /// Every cached key and value read once and written once; no flops.
    fn cost(&self, shape: &CallShape) -> Cost {
        let positions: usize = shape.sequences.iter().map(|s| s.offset).sum();
        let Attributes { kv_heads, head_dim, .. } = shape.attributes;
        let bytes = (2 * positions * kv_heads * head_dim * shape.cache_dtype.bytes()) as u64;
        Cost { bytes_read: bytes, bytes_written: bytes, flops: 0 }
    }

    fn touches_cache(&self, _: &Attributes) -> CacheUse {
        CacheUse::Write
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            case(8, 128, true, &[(1, 40)]),
            case(3, 64, true, &[(7, 700)]),
            case(1, 5, true, &[(2, 3)]),
            case(2, 32, true, &[(1, 30), (5, 0), (1, 7)]),
            case(2, 32, false, &[(1, 30)]),
        ]
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let sequences: Vec<_> = draw.sequences(true).iter().map(|s| (s.rows, s.offset)).collect();
        case(draw.count(4), draw.width().min(130), draw.flip(), &sequences)
    }
}

fn case(kv_heads: usize, head_dim: usize, grows: bool, sequences: &[(usize, usize)]) -> Case {
    Case {
        label: format!("{kv_heads}x{head_dim} grows {grows} {sequences:?}"),
        inputs: Vec::new(),
        outputs: Vec::new(),
        weights: Vec::new(),
        attributes: Attributes { kv_heads, head_dim, ..Attributes::default() },
        sequences: sequences.iter().map(|(rows, offset)| SequenceShape { rows: *rows, offset: *offset }).collect(),
        cache: Some(CaseCache { kv_heads, head_dim, dtype: DType::BF16, spare: 3, grows }),
        vocabulary: 2,
    }
}

fn reference(i: &Invocation<'_>) {
    let Attributes { kv_heads, head_dim, .. } = *i.attributes();
    for sequence in i.step.sequences {
        for value in [false, true] {
            let Some(previous) = i.previous(sequence, value) else { continue };
            let cache = i.cache_mut(sequence, value);
            for position in i.share(sequence.offset) {
                for head in 0..kv_heads {
                    for d in 0..head_dim {
                        cache.set(head, position, d, previous.get(head, position, d));
                    }
                }
            }
        }
    }
}

fn runs(i: &Invocation<'_>) {
    let kv_heads = i.attributes().kv_heads;
    for sequence in i.step.sequences {
        let offset = sequence.offset;
        // A worker's share of all heads' positions, head by head, is at most one run per head.
        let part = i.share(kv_heads * offset);
        for value in [false, true] {
            let Some(previous) = i.previous(sequence, value) else { continue };
            let cache = i.cache_mut(sequence, value);
            for head in 0..kv_heads {
                let start = part.start.max(head * offset);
                let end = part.end.min((head + 1) * offset);
                if start < end {
                    let (position, count) = (start - head * offset, end - start);
                    // SAFETY: positions of heads are shared out, so no other worker has this run.
                    let to = unsafe { cache.bf16_mut(head, position, count) };
                    to.copy_from_slice(previous.bf16_run(head, position, count));
                }
            }
        }
    }
}

fn bf16_cache(shape: &CallShape) -> Result<(), String> {
    if shape.cache_dtype == DType::BF16 { Ok(()) } else { Err("needs a bfloat16 cache".to_owned()) }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "cache_grow", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Each worker copies a run of positions per head.
pub static PORTABLE: Kernel = kernel! {
    operator: "cache_grow", name: "runs", isa: "portable", features: &[], supports: bf16_cache,
    nmse: 0.0, because: "a copy", run: runs,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE];
