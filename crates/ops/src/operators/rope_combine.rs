//! Readable rotary position, second half: `y = x * cos + rotated * sin` in f32, rounded once.
//! Not here: the rotation, which is `rotate_half`'s, and any trigonometry.
//!
//! Ladder: reference → rows; fused with `rotate_half` into `rope` from that rung on.

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, Draw, bf16, f32, out};
use crate::{DType, Invocation, bf16_to_f32, f32_to_bf16, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::maths::multiply_add;
use super::rotate_half::columns;
use super::shapes::{
    ONE_ROUNDING, ONE_ROUNDING_REASON, data_bf16, elementwise_cost, expect, flat, rotary, same_shape, segments,
};

/// Inputs x, rotated x `(rows, heads * head_dim)` and the table f32 `(rows, head_dim)`; output as x. Attributes: `head_dim`,
/// `interleaved`.
pub struct RopeCombine;
pub static ROPE_COMBINE: RopeCombine = RopeCombine;

impl Operator for RopeCombine {
    fn name(&self) -> &'static str {
        "rope_combine"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 3, 0, 1)?;
        same_shape(shape, &[0, 1])?;
        rotary(shape, Some(2))
    }

    /// Three flops per element: two products and their sum.
    fn cost(&self, shape: &CallShape) -> Cost {
        elementwise_cost(shape, 3)
    }

    fn kernels(&self) -> &'static [&'static Kernel] {
        CPU
    }

    fn cases(&self) -> Vec<Case> {
        [false, true].into_iter().flat_map(|i| [case(1, 16, 128, i), case(10, 8, 4, i), case(3, 9, 64, i)]).collect()
    }

    fn random_case(&self, draw: &mut Draw) -> Case {
        case(draw.rows(), draw.count(5), draw.head_dim(), draw.flip())
    }
}

fn case(rows: usize, heads: usize, head_dim: usize, interleaved: bool) -> Case {
    let width = heads * head_dim;
    let label = format!("{rows}x{heads}x{head_dim} interleaved {interleaved}");
    let attributes = Attributes { head_dim, interleaved, ..Attributes::default() };
    let inputs = vec![bf16(rows, width), bf16(rows, width), f32(rows, head_dim)];
    Case { attributes, ..Case::new(label, inputs, vec![out(rows, width, DType::BF16)]) }
}

fn reference(i: &Invocation<'_>) {
    let (x, rotated, table, y) = (i.input(0), i.input(1), i.input(2), i.output(0));
    let Attributes { head_dim, interleaved, .. } = *i.attributes();
    for row in i.share(y.rows) {
        for head in (0..y.width).step_by(head_dim) {
            for pair in 0..head_dim / 2 {
                let (cos, sin) = (f64::from(table.get(row, pair)), f64::from(table.get(row, head_dim / 2 + pair)));
                let (a, b) = columns(pair, head_dim, interleaved);
                for col in [head + a, head + b] {
                    let sum = f64::from(x.get(row, col)) * cos + f64::from(rotated.get(row, col)) * sin;
                    y.set(row, col, sum as f32);
                }
            }
        }
    }
}

#[inline(always)]
fn combined<const FMA: bool>(x: u16, rotated: u16, cos: f32, sin: f32) -> u16 {
    f32_to_bf16(multiply_add::<FMA>(bf16_to_f32(rotated), sin, bf16_to_f32(x) * cos))
}

#[inline(always)]
fn rows<const FMA: bool>(i: &Invocation<'_>) {
    let (rotated, table) = (i.input(1), i.input(2));
    let Attributes { head_dim, interleaved, .. } = *i.attributes();
    let mut at = i.share(i.output(0).rows * rotated.width / head_dim).start * head_dim;
    for (row, x, y) in segments(i) {
        let rotated = flat(&rotated, at..at + head_dim);
        at += head_dim;
        let (cos, sin) = table.f32(row).split_at(head_dim / 2);
        if interleaved {
            let pairs = x.as_chunks::<2>().0.iter().zip(rotated.as_chunks::<2>().0);
            for (((y, (x, r)), c), s) in y.as_chunks_mut::<2>().0.iter_mut().zip(pairs).zip(cos).zip(sin) {
                *y = [combined::<FMA>(x[0], r[0], *c, *s), combined::<FMA>(x[1], r[1], *c, *s)];
            }
        } else {
            let half = head_dim / 2;
            for ((y, x), rotated) in y.chunks_exact_mut(half).zip(x.chunks_exact(half)).zip(rotated.chunks_exact(half))
            {
                for ((((y, x), r), c), s) in y.iter_mut().zip(x).zip(rotated).zip(cos).zip(sin) {
                    *y = combined::<FMA>(*x, *r, *c, *s);
                }
            }
        }
    }
}

for_isa!(avx2, rows_avx2, rows::<true>);
for_isa!(avx512, rows_avx512, rows::<true>);

pub static REFERENCE: Kernel = kernel! {
    operator: "rope_combine", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Heads shared among the workers, vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "rope_combine", name: "rows", isa: "portable", features: &[], supports: data_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "rope_combine", name: "rows", isa: "avx2", features: AVX2, supports: data_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "rope_combine", name: "rows", isa: "avx512", features: AVX512, supports: data_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
