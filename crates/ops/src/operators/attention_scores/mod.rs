//! Readable attention, first of three calls: `s[r * heads + h, p] = scale * q[r, h] · k[p, h / group]` for every position p
//! that row r sees, in f32. Positions beyond are left as they are. Not here: the softmax, and values.
//! Unsafe code is in `rows` and in `bf16.rs` alone.
//!
//! Ladder: reference → rows (`bf16.rs`: with the bfloat16 dot-product instruction). Writes (and the next two calls read) a
//! score for every row, head and position: at long prompts that matrix is larger than everything else, which is what
//! `attention` avoids.

#[cfg(target_arch = "x86_64")]
pub(crate) mod bf16;

use crate::operator::{CacheUse, CallShape, Cost, Group, Kernel, Operator};
use crate::program::{Attributes, Keys};
use crate::step::SequenceShape;
use crate::testing::{Case, CaseCache, Draw, bf16, out};
use crate::{DType, Invocation, bf16_to_f32, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::maths::{multiply_add, total};
use super::sequences::{Span, check_heads, check_step_keys, kv_bytes, kv_inputs, sequence_of, spans, visible_pairs};
use super::shapes::expect;

/// Input q `(rows, heads * head_dim)` and, with [`Keys::Step`], k `(rows, kv_heads * head_dim)`; output f32
/// `(rows * heads, context)`. Attributes: `heads`, `kv_heads`, `head_dim`, `scale`, `keys`.
pub struct AttentionScores;
pub static ATTENTION_SCORES: AttentionScores = AttentionScores;

impl Operator for AttentionScores {
    fn name(&self) -> &'static str {
        "attention_scores"
    }

    fn group(&self) -> Group {
        Group::Attention
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1 + kv_inputs(shape, 1), 0, 1)?;
        check_heads(shape)?;
        let Attributes { heads, head_dim, .. } = shape.attributes;
        let (q, scores) = (&shape.inputs[0], &shape.outputs[0]);
        if q.width != heads * head_dim {
            return Err(format!("queries are {} wide, expected {heads} heads of {head_dim}", q.width));
        }
        if (scores.rows, scores.dtype) != (q.rows * heads, DType::F32) {
            let found = (scores.rows, scores.dtype);
            return Err(format!("scores are {found:?} rows, expected {:?}", (q.rows * heads, DType::F32)));
        }
        check_step_keys(shape, 1, q.rows)
    }

    /// Two flops per element of a head for each (row, visible position, head); queries and each key position read once per
    /// key/value head, visible scores written once.
    fn cost(&self, shape: &CallShape) -> Cost {
        let pairs = visible_pairs(&shape.sequences) * shape.attributes.heads as u64;
        Cost {
            bytes_read: shape.inputs[0].bytes() + kv_bytes(shape),
            bytes_written: pairs * DType::F32.bytes() as u64,
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

/// Shapes on which the readable attention's calls are tested.
#[derive(Clone, Debug)]
pub(crate) struct AttentionCase {
    pub(crate) kv_heads: usize,
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
    pub(crate) keys: Keys,
    /// (rows, offset) each.
    pub(crate) sequences: Vec<(usize, usize)>,
}

impl AttentionCase {
    pub(crate) fn random(draw: &mut Draw) -> AttentionCase {
        let keys = draw.pick(&[Keys::Cache, Keys::Cache, Keys::Step]);
        let sequences = draw.sequences(keys == Keys::Cache).iter().map(|s| (s.rows, s.offset)).collect();
        AttentionCase { kv_heads: draw.count(3), group: draw.count(7), head_dim: draw.head_dim(), keys, sequences }
    }

    pub(crate) fn rows(&self) -> usize {
        self.sequences.iter().map(|(rows, _)| rows).sum()
    }

    pub(crate) fn context(&self) -> usize {
        self.sequences.iter().map(|(rows, offset)| rows + offset).max().unwrap_or(1)
    }

    pub(crate) fn shapes(&self) -> Vec<SequenceShape> {
        self.sequences.iter().map(|(rows, offset)| SequenceShape { rows: *rows, offset: *offset }).collect()
    }

    pub(crate) fn attributes(&self) -> Attributes {
        let AttentionCase { kv_heads, group, head_dim, keys, .. } = *self;
        let scale = 1.0 / (head_dim as f32).sqrt();
        Attributes { heads: kv_heads * group, kv_heads, head_dim, scale, keys, ..Attributes::default() }
    }

    pub(crate) fn cache(&self) -> Option<CaseCache> {
        let AttentionCase { kv_heads, head_dim, keys, .. } = *self;
        let spare = self.context() % 7;
        (keys == Keys::Cache).then_some(CaseCache { kv_heads, head_dim, dtype: DType::BF16, spare, grows: false })
    }

    /// The step's keys or values, where they are inputs.
    pub(crate) fn kv_buffer(&self) -> Option<crate::testing::CaseBuffer> {
        (self.keys == Keys::Step).then(|| bf16(self.rows(), self.kv_heads * self.head_dim))
    }
}

pub(crate) fn attention_cases() -> Vec<AttentionCase> {
    let case = |kv_heads, group, head_dim, keys, sequences: &[(usize, usize)]| AttentionCase {
        kv_heads,
        group,
        head_dim,
        keys,
        sequences: sequences.to_vec(),
    };
    let mut cases = Vec::new();
    for (index, context) in [31, 32, 127, 128, 129, 255, 256].into_iter().enumerate() {
        for (rows, group) in [(1, [1, 2, 4, 7][index % 4]), (8, [4, 7, 1, 2][index % 4])] {
            let head_dim = if (index + rows) % 2 == 0 { 64 } else { 128 };
            cases.push(case(1 + index % 3, group, head_dim, Keys::Cache, &[(rows, context - rows)]));
        }
    }
    cases.push(case(8, 2, 128, Keys::Cache, &[(1, 700)]));
    // Decode after a long prompt: 8,192 positions in all.
    cases.push(case(1, 2, 128, Keys::Cache, &[(1, 8191)]));
    cases.push(case(2, 3, 5, Keys::Cache, &[(3, 4)]));
    cases.push(case(2, 2, 64, Keys::Step, &[(1, 0)]));
    cases.push(case(3, 3, 64, Keys::Step, &[(33, 0)]));
    cases.push(case(1, 4, 128, Keys::Step, &[(5, 0), (1, 0), (12, 0)]));
    cases.push(case(2, 2, 128, Keys::Cache, &[(1, 40), (5, 0), (1, 200), (3, 17)]));
    cases
}

fn case(shape: AttentionCase) -> Case {
    let Attributes { heads, head_dim, .. } = shape.attributes();
    let rows = shape.rows();
    let mut inputs = vec![bf16(rows, heads * head_dim)];
    inputs.extend(shape.kv_buffer());
    let outputs = vec![out(rows * heads, shape.context(), DType::F32)];
    let mut case = Case::new(format!("{shape:?}"), inputs, outputs);
    (case.attributes, case.sequences, case.cache) = (shape.attributes(), shape.shapes(), shape.cache());
    case
}

fn reference(i: &Invocation<'_>) {
    let (q, scores) = (i.input(0), i.output(0));
    let Attributes { heads, kv_heads, head_dim, scale, .. } = *i.attributes();
    for part in i.share(q.rows * heads) {
        let (row, head) = (part / heads, part % heads);
        let (sequence, visible) = sequence_of(i.step, row);
        let keys = i.kv(sequence, false);
        for position in 0..visible {
            let mut dot = 0.0f64;
            for d in 0..head_dim {
                let key = keys.get(head / (heads / kv_heads), position, d);
                dot += f64::from(q.get(row, head * head_dim + d)) * f64::from(key);
            }
            scores.set(part, position, (dot * f64::from(scale)) as f32);
        }
    }
}

#[inline(always)]
fn rows<const FMA: bool>(i: &Invocation<'_>) {
    #![allow(unsafe_code, reason = "exclusive parts of the scores")]
    let (q, scores) = (i.input(0), i.output(0));
    let Attributes { heads, kv_heads, head_dim, scale, .. } = *i.attributes();
    let group = heads / kv_heads;
    for Span { row, head: kv_head, positions, sequence } in spans(i, q.rows, kv_heads) {
        let (q, keys) = (q.bf16(row), i.kv(sequence, false));
        assert!(positions.end <= scores.width, "scores are wide enough for the context");
        for position in positions {
            let key = keys.bf16(kv_head, position);
            for head in kv_head * group..(kv_head + 1) * group {
                let score = dot::<FMA>(&q[head * head_dim..][..head_dim], key) * scale;
                let at = (row * heads + head) * scores.width + position;
                assert!(at < scores.rows * scores.width, "one row of scores per row and head");
                // SAFETY: inside the output (asserted); (row, head, position) triples are shared out among the workers.
                unsafe { *scores.as_mut_ptr().cast::<f32>().add(at) = score };
            }
        }
    }
}

/// Sum of products in 32 lanes; as long as each other.
#[inline(always)]
pub(crate) fn dot<const FMA: bool>(a: &[u16], b: &[u16]) -> f32 {
    let mut sums = [0.0f32; 32];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<32>(), b.as_chunks::<32>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..32 {
            sums[lane] = multiply_add::<FMA>(bf16_to_f32(a[lane]), bf16_to_f32(b[lane]), sums[lane]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| bf16_to_f32(*a) * bf16_to_f32(*b)).sum();
    total(&sums) + rest
}

for_isa!(avx2, rows_avx2, rows::<true>);
for_isa!(avx512, rows_avx512, rows::<true>);

/// bfloat16 queries and keys.
pub(crate) fn bf16_inputs(shape: &CallShape) -> Result<(), String> {
    let bf16 = shape.inputs.iter().all(|view| view.dtype == DType::BF16);
    let cached = shape.attributes.keys == Keys::Step || shape.cache_dtype == DType::BF16;
    if bf16 && cached { Ok(()) } else { Err("needs bfloat16 queries, keys and values".to_owned()) }
}

pub static REFERENCE: Kernel = kernel! {
    operator: "attention_scores", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// All (row, head, position) triples shared evenly, vectorised by the compiler over the elements of a head.
pub static PORTABLE: Kernel = kernel! {
    operator: "attention_scores", name: "rows", isa: "portable", features: &[], supports: bf16_inputs,
    nmse: 1e-12, because: "f32 sums of exact products", run: rows::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "attention_scores", name: "rows", isa: "avx2", features: AVX2, supports: bf16_inputs,
    nmse: 1e-12, because: "f32 sums of exact products", run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "attention_scores", name: "rows", isa: "avx512", features: AVX512, supports: bf16_inputs,
    nmse: 1e-12, because: "f32 sums of exact products", run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[
    &REFERENCE,
    &PORTABLE,
    &NARROW,
    &WIDE,
    #[cfg(target_arch = "x86_64")]
    &bf16::VECTOR,
];
