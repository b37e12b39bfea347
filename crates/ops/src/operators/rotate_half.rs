//! Readable rotary position, first half: each pair (a, b) becomes (-b, a). Exact: nothing is rounded.
//! Not here: cosines and sines, which `rope_combine` applies.
//!
//! Ladder: reference → rows; fused with `rope_combine` into `rope` from that rung on.

use crate::operator::{CallShape, Cost, Group, Kernel, Operator};
use crate::program::Attributes;
use crate::testing::{Case, Draw, bf16, out};
use crate::{DType, Invocation, kernel};

use super::isa::{AVX2, AVX512, for_isa};
use super::shapes::{all_bf16, elementwise_cost, expect, rotary, same_shape, segments};

/// Input x `(rows, heads * head_dim)`; output of the same shape. Attributes: `head_dim`, `interleaved`.
pub struct RotateHalf;
pub static ROTATE_HALF: RotateHalf = RotateHalf;

impl Operator for RotateHalf {
    fn name(&self) -> &'static str {
        "rotate_half"
    }

    fn group(&self) -> Group {
        Group::Pointwise
    }

    fn check(&self, shape: &CallShape) -> Result<(), String> {
        expect(shape, 1, 0, 1)?;
        same_shape(shape, &[0])?;
        rotary(shape, None)
    }

    /// No flops: a sign is not counted.
    fn cost(&self, shape: &CallShape) -> Cost {
        elementwise_cost(shape, 0)
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

/// The columns of pair `pair` within its head.
#[inline(always)]
pub fn columns(pair: usize, head_dim: usize, interleaved: bool) -> (usize, usize) {
    if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + head_dim / 2) }
}

fn case(rows: usize, heads: usize, head_dim: usize, interleaved: bool) -> Case {
    let width = heads * head_dim;
    let label = format!("{rows}x{heads}x{head_dim} interleaved {interleaved}");
    let attributes = Attributes { head_dim, interleaved, ..Attributes::default() };
    Case { attributes, ..Case::new(label, vec![bf16(rows, width)], vec![out(rows, width, DType::BF16)]) }
}

fn reference(i: &Invocation<'_>) {
    let (x, y) = (i.input(0), i.output(0));
    let Attributes { head_dim, interleaved, .. } = *i.attributes();
    for row in i.share(y.rows) {
        for head in (0..y.width).step_by(head_dim) {
            for pair in 0..head_dim / 2 {
                let (a, b) = columns(pair, head_dim, interleaved);
                y.set(row, head + a, -x.get(row, head + b));
                y.set(row, head + b, x.get(row, head + a));
            }
        }
    }
}

/// The sign bit of a bfloat16.
const SIGN: u16 = 0x8000;

#[inline(always)]
fn rows(i: &Invocation<'_>) {
    if i.attributes().interleaved {
        for (_, x, y) in segments(i) {
            for (y, x) in y.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0) {
                *y = [x[1] ^ SIGN, x[0]];
            }
        }
    } else {
        for (_, x, y) in segments(i) {
            let (a, b) = x.split_at(x.len() / 2);
            let (first, second) = y.split_at_mut(a.len());
            for (y, b) in first.iter_mut().zip(b) {
                *y = b ^ SIGN;
            }
            second.copy_from_slice(a);
        }
    }
}

for_isa!(avx2, rows_avx2, rows);
for_isa!(avx512, rows_avx512, rows);

pub static REFERENCE: Kernel = kernel! {
    operator: "rotate_half", name: "reference", isa: "portable", features: &[],
    nmse: 0.0, because: "the reference", run: reference,
};

/// Heads shared among the workers, vectorised by the compiler.
pub static PORTABLE: Kernel = kernel! {
    operator: "rotate_half", name: "rows", isa: "portable", features: &[], supports: all_bf16,
    nmse: 0.0, because: "nothing is rounded", run: rows,
};

pub static NARROW: Kernel = kernel! {
    operator: "rotate_half", name: "rows", isa: "avx2", features: AVX2, supports: all_bf16,
    nmse: 0.0, because: "nothing is rounded", run: rows_avx2,
};

pub static WIDE: Kernel = kernel! {
    operator: "rotate_half", name: "rows", isa: "avx512", features: AVX512, supports: all_bf16,
    nmse: 0.0, because: "nothing is rounded", run: rows_avx512,
};

/// The list.
pub static CPU: &[&Kernel] = &[&REFERENCE, &PORTABLE, &NARROW, &WIDE];
