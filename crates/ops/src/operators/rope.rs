//! Rotary position: each pair (a, b) becomes (a * cos - b * sin, b * cos + a * sin), in f32, rounded once.
//! Not here: the readable form in two calls (`rotate_half`, `rope_combine`).
//!
//! Ladder: reference → rows. One pass where `rotate_half` and `rope_combine` make two; the trigonometry comes from the
//! step's table, which all layers share.

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, Draw, bf16, f32, out};
use crate::{DType, Invocation, bf16_to_f32, f32_to_bf16, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::maths::multiply_add;
use super::rotate_half::columns;
use super::shapes::{
    ONE_ROUNDING, ONE_ROUNDING_REASON, data_bf16, elementwise_cost, expect, rotary, same_shape, segments,
};

/// Inputs x `(rows, heads * head_dim)` and the table f32 `(rows, head_dim)`; output as x. Attributes: `head_dim`,
/// `interleaved`.
pub struct Rope;
pub static ROPE: Rope = Rope;

impl Operator for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 2, 0, 1)?;
        same_shape(shape, &[0])?;
        rotary(shape, Some(1))
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
    let inputs = vec![bf16(rows, width), f32(rows, head_dim)];
    Case { attributes, ..Case::new(label, inputs, vec![out(rows, width, DType::BF16)]) }
}

fn reference(i: &Invocation<'_>) {
    let (x, table, y) = (i.input(0), i.input(1), i.output(0));
    let Attributes { head_dim, interleaved, .. } = *i.attributes();
    for row in i.share(y.rows) {
        for head in (0..y.width).step_by(head_dim) {
            for pair in 0..head_dim / 2 {
                let (cos, sin) = (f64::from(table.get(row, pair)), f64::from(table.get(row, head_dim / 2 + pair)));
                let (a, b) = columns(pair, head_dim, interleaved);
                let (xa, xb) = (f64::from(x.get(row, head + a)), f64::from(x.get(row, head + b)));
                y.set(row, head + a, (xa * cos - xb * sin) as f32);
                y.set(row, head + b, (xb * cos + xa * sin) as f32);
            }
        }
    }
}

/// The pair (a, b), rotated.
#[inline(always)]
fn rotated<const FMA: bool>(a: u16, b: u16, cos: f32, sin: f32) -> (u16, u16) {
    turned::<FMA>(bf16_to_f32(a), bf16_to_f32(b), cos, sin)
}

/// The same of a pair that is widened already.
#[inline(always)]
pub(super) fn turned<const FMA: bool>(a: f32, b: f32, cos: f32, sin: f32) -> (u16, u16) {
    let (first, second) = (multiply_add::<FMA>(-b, sin, a * cos), multiply_add::<FMA>(a, sin, b * cos));
    (f32_to_bf16(first), f32_to_bf16(second))
}

#[inline(always)]
fn rows<const FMA: bool>(i: &Invocation<'_>) {
    let table = i.input(1);
    let Attributes { head_dim, interleaved, .. } = *i.attributes();
    for (row, x, y) in segments(i) {
        let (cos, sin) = table.f32(row).split_at(head_dim / 2);
        if interleaved {
            let pairs = y.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0);
            for (((y, x), c), s) in pairs.zip(cos).zip(sin) {
                (y[0], y[1]) = rotated::<FMA>(x[0], x[1], *c, *s);
            }
        } else {
            let (a, b) = x.split_at(head_dim / 2);
            let (first, second) = y.split_at_mut(head_dim / 2);
            let pairs = first.iter_mut().zip(second).zip(a.iter().zip(b));
            for ((((first, second), (a, b)), c), s) in pairs.zip(cos).zip(sin) {
                (*first, *second) = rotated::<FMA>(*a, *b, *c, *s);
            }
        }
    }
}

for_isa!(avx2, rows_avx2, rows::<true>);
for_isa!(avx512, rows_avx512, rows::<true>);

pub static REFERENCE: Kernel = kernel! {
    operator: "rope", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Heads shared among the workers, vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "rope", name: "rows", isa: "portable", features: &[], supports: data_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows::<false>,
};

pub static NARROW: Kernel = kernel! {
    operator: "rope", name: "rows", isa: "avx2", features: AVX2, supports: data_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "rope", name: "rows", isa: "avx512", features: AVX512, supports: data_bf16,
    nmse: ONE_ROUNDING, because: ONE_ROUNDING_REASON, run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
