//! Readable attention, last of three calls: `y[r, h] = Σ_p probability[r * heads + h, p] * v[p, h / group]` over the positions
//! that row r sees, in f32, rounded once. Not here: making probabilities.
//!
//! Ladder: reference → rows.

#![allow(unsafe_code, reason = "exclusive parts of the output and of scratch")]

use crate::operator::{CacheUse, CallShape, Cost, Group, Kernel, Operator};
use crate::program::{Attributes, Keys};
use crate::testing::{Case, CaseBuffer, Draw, Fill, f32, out};
use crate::{DType, Invocation, KvView, bf16_to_f32, f32_to_bf16, kernel};

use super::attention_scores::{AttentionCase, attention_cases};
use super::isa::{AVX2, AVX512, for_isa};
use super::maths::multiply_add;
use super::sequences::{Unit, check_heads, check_step_keys, kv_bytes, kv_inputs, sequence_of, units, visible_pairs};
use super::shapes::{ONE_ROUNDING, ONE_ROUNDING_REASON, expect};

/// Input probabilities f32 `(rows * heads, context)` and, with [`Keys::Step`], v `(rows, kv_heads * head_dim)`; output
/// `(rows, heads * head_dim)`. Attributes: `heads`, `kv_heads`, `head_dim`, `keys`.
pub struct AttentionMix;
pub static ATTENTION_MIX: AttentionMix = AttentionMix;

impl Operator for AttentionMix {
    fn name(&self) -> &'static str {
        "attention_mix"
    }

    fn group(&self) -> Group {
        Group::Attention
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1 + kv_inputs(shape, 1), 0, 1)?;
        check_heads(shape)?;
        let Attributes { heads, head_dim, .. } = shape.attributes;
        let (probabilities, output) = (&shape.inputs[0], &shape.outputs[0]);
        if output.width != heads * head_dim {
            return Err(format!("the output is {} wide, expected {heads} heads of {head_dim}", output.width));
        }
        if (probabilities.rows, probabilities.dtype) != (output.rows * heads, DType::F32) {
            let found = (probabilities.rows, probabilities.dtype);
            return Err(format!("probabilities are {found:?} rows, expected {:?}", (output.rows * heads, DType::F32)));
        }
        check_step_keys(shape, 1, output.rows)
    }

    /// Two flops per element of a head for each (row, visible position, head); visible probabilities read once, each value
    /// position once per key/value head.
    fn cost(&self, shape: &CallShape) -> Cost {
        let pairs = visible_pairs(&shape.sequences) * shape.attributes.heads as u64;
        Cost {
            bytes_read: pairs * DType::F32.bytes() as u64 + kv_bytes(shape),
            bytes_written: shape.outputs[0].bytes(),
            flops: pairs * 2 * shape.attributes.head_dim as u64,
        }
    }

    fn touches_cache(&self, attributes: &Attributes) -> CacheUse {
        if attributes.keys == Keys::Cache { CacheUse::Read } else { CacheUse::None }
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        attention_cases().into_iter().map(case).collect()
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        case(AttentionCase::random(draw))
    }
}

fn case(shape: AttentionCase) -> Case {
    let Attributes { heads, head_dim, .. } = shape.attributes();
    let rows = shape.rows();
    let probabilities =
        CaseBuffer { fill: Fill::Uniform(0.0, 2.0 / shape.context() as f32), ..f32(rows * heads, shape.context()) };
    let mut inputs = vec![probabilities];
    inputs.extend(shape.kv_buffer());
    let mut case = Case::new(format!("{shape:?}"), inputs, vec![out(rows, heads * head_dim, DType::BF16)]);
    (case.attributes, case.sequences, case.cache) = (shape.attributes(), shape.shapes(), shape.cache());
    case
}

fn reference(i: &Invocation<'_>) {
    let (probabilities, y) = (i.input(0), i.output(0));
    let Attributes { heads, kv_heads, head_dim, .. } = *i.attributes();
    for part in i.share(y.rows * heads) {
        let (row, head) = (part / heads, part % heads);
        let (sequence, visible) = sequence_of(i.step, row);
        let values = i.kv(sequence, true);
        for d in 0..head_dim {
            let mut sum = 0.0f64;
            for position in 0..visible {
                let value = values.get(head / (heads / kv_heads), position, d);
                sum += f64::from(probabilities.get(part, position)) * f64::from(value);
            }
            y.set(row, head * head_dim + d, sum as f32);
        }
    }
}

/// Elements of a head that one unit of work accumulates, at most.
const COLUMNS: usize = 64;
/// Positions whose values stay in the first-level cache while all heads of a group use them.
const BLOCK: usize = 64;

/// f32 accumulators of a group's heads.
fn scratch(shape: &CallShape) -> usize {
    shape.attributes.heads / shape.attributes.kv_heads * COLUMNS * DType::F32.bytes()
}

#[inline(always)]
fn rows<const FMA: bool>(i: &Invocation<'_>) {
    let y = i.output(0);
    let Attributes { heads, kv_heads, head_dim, .. } = *i.attributes();
    let group = heads / kv_heads;
    // A unit is half a cache line wide at least: with few heads, all workers still have some.
    let width = if y.rows * kv_heads * head_dim.div_ceil(COLUMNS) < 4 * i.workers { COLUMNS / 2 } else { COLUMNS };
    // SAFETY: the only slice of this worker's scratch.
    let (head_bytes, sums, tail_bytes) = unsafe { i.scratch().align_to_mut::<f32>() };
    debug_assert!(head_bytes.is_empty() && tail_bytes.is_empty());
    for Unit { row, head: kv_head, unit, sequence, visible } in units(i, y.rows, kv_heads, head_dim.div_ceil(width)) {
        let values = i.kv(sequence, true);
        let columns = unit * width..head_dim.min((unit + 1) * width);
        sums[..group * COLUMNS].fill(0.0);
        for start in (0..visible).step_by(BLOCK) {
            let positions = start..visible.min(start + BLOCK);
            let mut head = 0;
            while head < group {
                let first = row * heads + kv_head * group + head;
                let (columns, positions, sums) = (columns.clone(), positions.clone(), &mut sums[head * COLUMNS..]);
                head += match group - head {
                    1 => accumulate::<FMA, 1>(i, &values, kv_head, columns, positions, first, sums),
                    2 | 3 => accumulate::<FMA, 2>(i, &values, kv_head, columns, positions, first, sums),
                    _ => accumulate::<FMA, 4>(i, &values, kv_head, columns, positions, first, sums),
                };
            }
        }
        for head in 0..group {
            let from = row * y.width + (kv_head * group + head) * head_dim + columns.start;
            // SAFETY: (row, key/value head, unit) triples are shared out; each is these columns of the group's heads.
            let out = unsafe { super::shapes::flat_mut(&y, from..from + columns.len()) };
            for (y, sum) in out.iter_mut().zip(&sums[head * COLUMNS..]) {
                *y = f32_to_bf16(*sum);
            }
        }
    }
}

/// Adds `positions` to the sums of `HEADS` heads, whose probabilities are rows `first..`; returns `HEADS`.
#[inline(always)]
fn accumulate<const FMA: bool, const HEADS: usize>(
    i: &Invocation<'_>,
    values: &KvView<'_>,
    kv_head: usize,
    columns: std::ops::Range<usize>,
    positions: std::ops::Range<usize>,
    first: usize,
    sums: &mut [f32],
) -> usize {
    let rows: [&[f32]; HEADS] = std::array::from_fn(|h| i.input(0).f32(first + h));
    if columns.len() == COLUMNS {
        let mut wide: [[f32; COLUMNS]; HEADS] = [[0.0; COLUMNS]; HEADS];
        for (wide, sums) in wide.iter_mut().zip(sums.as_chunks::<COLUMNS>().0) {
            *wide = *sums;
        }
        for position in positions {
            let Some(value) = values.bf16(kv_head, position)[columns.start..].first_chunk::<COLUMNS>() else {
                unreachable!("columns lie within the head")
            };
            for (wide, row) in wide.iter_mut().zip(rows) {
                let probability = row[position];
                for d in 0..COLUMNS {
                    wide[d] = multiply_add::<FMA>(probability, bf16_to_f32(value[d]), wide[d]);
                }
            }
        }
        for (wide, sums) in wide.iter().zip(sums.as_chunks_mut::<COLUMNS>().0) {
            *sums = *wide;
        }
    } else {
        for position in positions {
            let value = &values.bf16(kv_head, position)[columns.clone()];
            for (sums, row) in sums.as_chunks_mut::<COLUMNS>().0.iter_mut().zip(rows) {
                for (sum, value) in sums.iter_mut().zip(value) {
                    *sum = multiply_add::<FMA>(row[position], bf16_to_f32(*value), *sum);
                }
            }
        }
    }
    HEADS
}

for_isa!(avx2, rows_avx2, rows::<true>);
for_isa!(avx512, rows_avx512, rows::<true>);

fn supported(shape: &CallShape) -> Result<(), String> {
    let step_values = shape.inputs.iter().skip(1).all(|view| view.dtype == DType::BF16);
    let cached = shape.attributes.keys == Keys::Step || shape.cache_dtype == DType::BF16;
    let output = shape.outputs[0].dtype == DType::BF16;
    if step_values && cached && output { Ok(()) } else { Err("needs bfloat16 values and output".to_owned()) }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "attention_mix", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// (row, head, columns) shared by how much each row sees; up to four heads of a group share each value's conversion.
pub static PORTABLE: Kernel = kernel! {
    operator: "attention_mix", name: "rows", isa: "portable", features: &[], supports: supported, scratch: scratch,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "attention_mix", name: "rows", isa: "avx2", features: AVX2, supports: supported, scratch: scratch,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "attention_mix", name: "rows", isa: "avx512", features: AVX512, supports: supported, scratch: scratch,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
