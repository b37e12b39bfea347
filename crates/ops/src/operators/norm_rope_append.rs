//! Between the projections of a layer and its attention, in one call: queries and keys are normalised per head (in models that
//! do), turned by their position, and keys and values written to the layer's cache. Each result is rounded once.
//! Not here: the readable form in five calls (`rms_norm` and `rope` of queries and of keys, `cache_append`).
//!
//! Ladder: reference → heads. A worker has whole key/value heads with the query heads that use them, the same ones as in
//! `attention/decode`: it reads from its own cache what it just wrote.

#![allow(unsafe_code, reason = "exclusive heads of the output and rows of caches")]

use crate::operator::{CacheUse, CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::rewrite::HELD_HEAD;
use crate::step::SequenceShape;
use crate::testing::{Case, CaseCache, Draw, bf16, f32, out, weight};
use crate::{DType, Invocation, WeightFormat, bf16_to_f32, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::maths::{multiply_add, total};
use super::rope::turned;
use super::rotate_half::columns;
use super::sequences::{check_heads, sequence_of};
use super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON, flat, flat_mut, rotary, same_shape};

/// Inputs q `(rows, heads * head_dim)`, k and v `(rows, kv_heads * head_dim)`, and the table f32 `(rows, head_dim)`; weights none,
/// or the norms of queries and keys, f32 `(1, head_dim)` each; output as q. The cache's positions `offset..offset + rows` are
/// written. Attributes: `heads`, `kv_heads`, `head_dim`, `interleaved`, and `epsilon` with weights.
pub struct NormRopeAppend;
pub static NORM_ROPE_APPEND: NormRopeAppend = NormRopeAppend;

impl Operator for NormRopeAppend {
    fn name(&self) -> &'static str {
        "norm_rope_append"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        let found = (shape.inputs.len(), shape.weights.len(), shape.outputs.len());
        if !matches!(found, (4, 0 | 2, 1)) {
            return Err(format!("expected 4 inputs, no weights or 2, and 1 output, found {found:?}"));
        }
        check_heads(shape)?;
        same_shape(shape, &[0])?;
        rotary(shape, Some(3))?;
        let Attributes { heads, kv_heads, head_dim, .. } = shape.attributes;
        let rows = shape.outputs[0].rows;
        for (index, heads) in [(0, heads), (1, kv_heads), (2, kv_heads)] {
            let (view, want) = (&shape.inputs[index], (rows, heads * head_dim));
            if (view.rows, view.width) != want {
                return Err(format!("input {index} is {:?}, expected {want:?}", (view.rows, view.width)));
            }
        }
        match shape.weights.iter().find(|w| (w.rows, w.cols, w.format) != (1, head_dim, WeightFormat::F32)) {
            None => Ok(()),
            Some(w) => Err(format!("a norm is {} ({}, {}), expected f32 (1, {head_dim})", w.format, w.rows, w.cols)),
        }
    }

    /// Each operand once, keys and values once more into the cache. Three flops per element of queries and keys for the turn;
    /// four, and three per head, for the norm.
    fn cost(&self, shape: &CallShape) -> Cost {
        let [q, k, v] = [0, 1, 2].map(|index| shape.inputs[index]);
        let elements = (q.rows * (q.width + k.width)) as u64;
        let heads = elements / shape.attributes.head_dim as u64;
        let norm = if shape.weights.is_empty() { 0 } else { 4 * elements + 3 * heads };
        let weights: u64 = shape.weights.iter().map(|weight| weight.bytes()).sum();
        Cost {
            bytes_read: shape.inputs.iter().map(|view| view.bytes()).sum::<u64>() + weights,
            bytes_written: shape.outputs[0].bytes() + (k.rows * (k.width + v.width) * shape.cache_dtype.bytes()) as u64,
            flops: 3 * elements + norm,
        }
    }

    fn touches_cache(&self, _: &Attributes) -> CacheUse {
        CacheUse::Write
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (normed, interleaved) in [(true, false), (false, false), (true, true), (false, true)] {
            cases.push(case((8, 2, 128), normed, interleaved, &[(1, 127)]));
            cases.push(case((3, 3, 64), normed, interleaved, &[(7, 11)]));
            cases.push(case((1, 7, 96), normed, interleaved, &[(2, 30), (5, 0), (1, 7)]));
            cases.push(case((2, 1, 6), normed, interleaved, &[(3, 4)]));
        }
        cases.push(case((1, 1, HELD_HEAD), true, false, &[(2, 0)]));
        cases
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        let sequences: Vec<_> = draw.sequences(true).iter().map(|s| (s.rows, s.offset)).collect();
        case((draw.count(3), draw.count(7), draw.head_dim()), draw.flip(), draw.flip(), &sequences)
    }
}

fn case(
    (kv_heads, group, head_dim): (usize, usize, usize),
    normed: bool,
    interleaved: bool,
    sequences: &[(usize, usize)],
) -> Case {
    let rows = sequences.iter().map(|(rows, _)| rows).sum();
    let (heads, kv) = (kv_heads * group, bf16(rows, kv_heads * head_dim));
    let label = format!("{kv_heads}x{group}x{head_dim} normed {normed} interleaved {interleaved} {sequences:?}");
    let inputs = vec![bf16(rows, heads * head_dim), kv, kv, f32(rows, head_dim)];
    let mut case = Case::new(label, inputs, vec![out(rows, heads * head_dim, DType::BF16)]);
    case.attributes = Attributes { heads, kv_heads, head_dim, epsilon: 1e-6, interleaved, ..Attributes::default() };
    if normed {
        case.weights = vec![weight(1, head_dim, WeightFormat::F32); 2];
    }
    case.sequences = sequences.iter().map(|(rows, offset)| SequenceShape { rows: *rows, offset: *offset }).collect();
    case.cache = Some(CaseCache { kv_heads, head_dim, dtype: DType::BF16, spare: 3, grows: false });
    case
}

fn reference(i: &Invocation<'_>) {
    let Attributes { heads, kv_heads, head_dim, epsilon, interleaved, .. } = *i.attributes();
    let (y, table) = (i.output(0), i.input(3));
    for row in i.share(y.rows) {
        let (sequence, visible) = sequence_of(i.step, row);
        for (input, count) in [(0, heads), (1, kv_heads)] {
            let x = i.input(input);
            for head in 0..count {
                let value = |d: usize| f64::from(x.get(row, head * head_dim + d));
                let square = (0..head_dim).map(|d| value(d).powi(2)).sum::<f64>() / head_dim as f64;
                let scale = 1.0 / (square + f64::from(epsilon)).sqrt();
                let normed = |d: usize| {
                    if i.weights() == 0 { value(d) } else { value(d) * scale * f64::from(i.weight(input).as_f32()[d]) }
                };
                let store = |d: usize, value: f64| match input {
                    0 => y.set(row, head * head_dim + d, value as f32),
                    _ => i.cache_mut(sequence, false).set(head, visible - 1, d, value as f32),
                };
                for pair in 0..head_dim / 2 {
                    let (a, b) = columns(pair, head_dim, interleaved);
                    let cos = f64::from(table.get(row, pair));
                    let sin = f64::from(table.get(row, head_dim / 2 + pair));
                    store(a, normed(a) * cos - normed(b) * sin);
                    store(b, normed(b) * cos + normed(a) * sin);
                }
            }
        }
        for head in 0..kv_heads {
            for d in 0..head_dim {
                i.cache_mut(sequence, true).set(head, visible - 1, d, i.input(2).get(row, head * head_dim + d));
            }
        }
    }
}

/// (row, key/value head) pairs shared among the workers.
#[inline(always)]
fn heads<const FMA: bool>(i: &Invocation<'_>) {
    let Attributes { heads, kv_heads, head_dim: dim, epsilon, interleaved, .. } = *i.attributes();
    let (q, k, v, table, y) = (i.input(0), i.input(1), i.input(2), i.input(3), i.output(0));
    let (q_norm, k_norm) =
        if i.weights() == 0 { (None, None) } else { (Some(i.weight(0).as_f32()), Some(i.weight(1).as_f32())) };
    let group = heads / kv_heads;
    for part in i.share(y.rows * kv_heads) {
        let (row, kv_head) = (part / kv_heads, part % kv_heads);
        let angles = table.f32(row);
        for head in kv_head * group..(kv_head + 1) * group {
            let at = row * y.width + head * dim..row * y.width + (head + 1) * dim;
            // SAFETY: (row, key/value head) pairs are shared out, and a query head belongs to one key/value head.
            let out = unsafe { flat_mut(&y, at.clone()) };
            sized::<FMA>(flat(&q, at), q_norm, epsilon, angles, interleaved, out);
        }
        let at = part * dim..(part + 1) * dim;
        let (sequence, visible) = sequence_of(i.step, row);
        // SAFETY: each pair is one position of one head of one sequence's storage.
        let (key, value) = unsafe {
            let [key, value] =
                [false, true].map(|value| i.cache_mut(sequence, value).bf16_mut(kv_head, visible - 1, 1));
            (key, value)
        };
        sized::<FMA>(flat(&k, at.clone()), k_norm, epsilon, angles, interleaved, key);
        value.copy_from_slice(flat(&v, at));
    }
}

/// [`placed`] with the usual head sizes known to the compiler, so that such a head stays in registers.
#[inline(always)]
fn sized<const FMA: bool>(
    x: &[u16],
    norm: Option<&[f32]>,
    epsilon: f32,
    angles: &[f32],
    interleaved: bool,
    y: &mut [u16],
) {
    match x.len() {
        64 => placed::<FMA>(&x[..64], norm.map(|norm| &norm[..64]), epsilon, &angles[..64], interleaved, &mut y[..64]),
        128 => {
            placed::<FMA>(&x[..128], norm.map(|norm| &norm[..128]), epsilon, &angles[..128], interleaved, &mut y[..128])
        }
        _ => placed::<FMA>(x, norm, epsilon, angles, interleaved, y),
    }
}

/// One head, normalised if there is a norm, and turned by the angles: cosines, then sines.
#[inline(always)]
fn placed<const FMA: bool>(
    x: &[u16],
    norm: Option<&[f32]>,
    epsilon: f32,
    angles: &[f32],
    interleaved: bool,
    y: &mut [u16],
) {
    let mut kept = [0.0f32; HELD_HEAD];
    let kept = &mut kept[..x.len()];
    for (kept, x) in kept.iter_mut().zip(x) {
        *kept = bf16_to_f32(*x);
    }
    if let Some(norm) = norm {
        let mut sums = [0.0f32; 32];
        let (blocks, rest) = kept.as_chunks::<32>();
        for block in blocks {
            for lane in 0..32 {
                sums[lane] = multiply_add::<FMA>(block[lane], block[lane], sums[lane]);
            }
        }
        let square = total(&sums) + rest.iter().map(|x| x * x).sum::<f32>();
        let scale = 1.0 / (square / x.len() as f32 + epsilon).sqrt();
        for (kept, norm) in kept.iter_mut().zip(norm) {
            *kept *= scale * norm;
        }
    }
    let half = x.len() / 2;
    let (cos, sin) = angles.split_at(half);
    if interleaved {
        let pairs = y.as_chunks_mut::<2>().0.iter_mut().zip(kept.as_chunks::<2>().0);
        for (((y, x), cos), sin) in pairs.zip(cos).zip(sin) {
            (y[0], y[1]) = turned::<FMA>(x[0], x[1], *cos, *sin);
        }
    } else {
        let (a, b) = kept.split_at(half);
        let (first, second) = y.split_at_mut(half);
        let pairs = first.iter_mut().zip(second).zip(a.iter().zip(b));
        for ((((first, second), (a, b)), cos), sin) in pairs.zip(cos).zip(sin) {
            (*first, *second) = turned::<FMA>(*a, *b, *cos, *sin);
        }
    }
}

for_isa!(avx2, heads_avx2, heads::<true>);
for_isa!(avx512, heads_avx512, heads::<true>);

fn supported(shape: &CallShape) -> Result<(), String> {
    let dim = shape.attributes.head_dim;
    if dim > HELD_HEAD {
        return Err(format!("keeps heads of up to {HELD_HEAD} elements, these have {dim}"));
    }
    let bf16 = shape.inputs[..3].iter().chain(&shape.outputs).all(|view| view.dtype == DType::BF16);
    if bf16 && shape.cache_dtype == DType::BF16 { Ok(()) } else { Err("needs bfloat16 buffers and cache".to_owned()) }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "norm_rope_append", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Each head is read once, kept as f32, and written once; vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "norm_rope_append", name: "heads", isa: "portable", features: &[], supports: supported,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: heads::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "norm_rope_append", name: "heads", isa: "avx2", features: AVX2, supports: supported,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: heads_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "norm_rope_append", name: "heads", isa: "avx512", features: AVX512, supports: supported,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: heads_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
