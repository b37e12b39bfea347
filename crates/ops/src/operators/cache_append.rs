//! Writes the step's keys and values to its layer's caches, at each row's position.
//! Not here: making room, which is the cache's owner's part.
//!
//! Ladder: reference → rows. Copies; a growing cache has been copied to its new storage by `cache_grow` before.

#![allow(unsafe_code, reason = "exclusive rows of caches")]

use crate::operator::{CacheUse, CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::step::SequenceShape;
use crate::testing::{Case, CaseCache, Draw, bf16};
use crate::{DType, Invocation, kernel};

use super::sequences::{check_step_keys, sequence_of};
use super::shapes::{all_bf16, expect};

/// Inputs k, v `(rows, kv_heads * head_dim)`; no outputs: the cache's positions `offset..offset + rows` are written.
/// Attributes: `kv_heads`, `head_dim`.
pub struct CacheAppend;
pub static CACHE_APPEND: CacheAppend = CacheAppend;

impl Operator for CacheAppend {
    fn name(&self) -> &'static str {
        "cache_append"
    }

    fn group(&self) -> Group {
        Group::CacheUpdate
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 2, 0, 0)?;
        check_step_keys(shape, 0, shape.inputs[0].rows)
    }

    /// Each key and value read once and written once; no flops.
    fn cost(&self, shape: &CallShape) -> Cost {
        let elements: usize = shape.inputs.iter().map(|view| view.rows * view.width).sum();
        Cost {
            bytes_read: shape.inputs.iter().map(|view| view.bytes()).sum(),
            bytes_written: (elements * shape.cache_dtype.bytes()) as u64,
            flops: 0,
        }
    }

    fn touches_cache(&self, _: &Attributes) -> CacheUse {
        CacheUse::Write
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            case(8, 128, 0, &[(1, 0)]),
            case(3, 64, 5, &[(7, 11)]),
            case(1, 5, 1, &[(2, 3)]),
            case(2, 32, 9, &[(1, 30), (5, 0), (1, 7)]),
        ]
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let sequences: Vec<_> = draw.sequences(true).iter().map(|s| (s.rows, s.offset)).collect();
        case(draw.count(4), draw.width().min(130), draw.count(9) - 1, &sequences)
    }
}

fn case(kv_heads: usize, head_dim: usize, spare: usize, sequences: &[(usize, usize)]) -> Case {
    let rows = sequences.iter().map(|(rows, _)| rows).sum();
    let input = bf16(rows, kv_heads * head_dim);
    Case {
        label: format!("{kv_heads}x{head_dim} spare {spare} {sequences:?}"),
        inputs: vec![input, input],
        outputs: Vec::new(),
        weights: Vec::new(),
        attributes: Attributes { kv_heads, head_dim, ..Attributes::default() },
        sequences: sequences.iter().map(|(rows, offset)| SequenceShape { rows: *rows, offset: *offset }).collect(),
        cache: Some(CaseCache { kv_heads, head_dim, dtype: DType::BF16, spare, grows: false }),
        vocabulary: 2,
    }
}

fn reference(i: &Invocation<'_>) {
    let Attributes { kv_heads, head_dim, .. } = *i.attributes();
    for value in [false, true] {
        let input = i.input(usize::from(value));
        for row in i.share(input.rows) {
            let (sequence, visible) = sequence_of(i.step, row);
            let cache = i.cache_mut(sequence, value);
            for head in 0..kv_heads {
                for d in 0..head_dim {
                    cache.set(head, visible - 1, d, input.get(row, head * head_dim + d));
                }
            }
        }
    }
}

fn rows(i: &Invocation<'_>) {
    let Attributes { kv_heads, head_dim, .. } = *i.attributes();
    for value in [false, true] {
        let input = i.input(usize::from(value));
        for part in i.share(input.rows * kv_heads) {
            let (row, head) = (part / kv_heads, part % kv_heads);
            let (sequence, visible) = sequence_of(i.step, row);
            // SAFETY: (row, head) pairs are shared out and each is one position of one head of one sequence's storage.
            let slot = unsafe { i.cache_mut(sequence, value).bf16_mut(head, visible - 1, 1) };
            slot.copy_from_slice(&input.bf16(row)[head * head_dim..(head + 1) * head_dim]);
        }
    }
}

fn bf16_cache(shape: &CallShape) -> Result<(), String> {
    if shape.cache_dtype != DType::BF16 {
        return Err("needs a bfloat16 cache".to_owned());
    }
    all_bf16(shape)
}

pub static REFERENCE: Kernel = kernel! {
    operator: "cache_append", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// (row, head) pairs shared among the workers, copied.
pub static PORTABLE: Kernel = kernel! {
    operator: "cache_append", name: "rows", isa: "portable", features: &[], supports: bf16_cache,
    nmse: 0.0, because: "a copy", run: rows,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE];
