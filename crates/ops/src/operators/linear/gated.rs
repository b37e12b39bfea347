//! `gated_linear`'s kernels without integer tricks: two matrices, 16 outputs of each at a time, in one body for each instruction set.
//! Not here: the operator (`gated_linear.rs`), and the versions on exact integers (`streams.rs`, `maddubs.rs`).

#![allow(unsafe_code, reason = "calls of the body compiled for other instruction sets")]

use super::Operands;
use super::ahead::ahead;
use super::lanes::{self, Vector, compiled, store};
use super::matvec::{LEAST, block_sums, few_rows, prepared, scratch};
use crate::operators::maths::silu;
use crate::weight::LANES;
use crate::{Invocation, Kernel, kernel};

pub(super) const GATED: f64 = 2e-5;
pub(super) const GATED_REASON: &str = "one bfloat16 rounding of the output; activations are exact to 2^-16 of their group's \
                                       largest, or sums are in f32";

pub(in super::super) static PORTABLE: Kernel = kernel! {
    operator: "gated_linear", name: "matvec", isa: "portable", features: &[], supports: few_rows, scratch: scratch,
    ahead: |i, piece| ahead(i, 1, piece),
    nmse: GATED, because: GATED_REASON, run: run_plain,
};

#[cfg(target_arch = "x86_64")]
pub(in super::super) static AVX2: Kernel = kernel! {
    operator: "gated_linear", name: "matvec", isa: "avx2", features: lanes::AVX2, supports: few_rows, scratch: scratch,
    ahead: |i, piece| ahead(i, 1, piece),
    nmse: GATED, because: GATED_REASON, run: run_avx2,
};

#[cfg(target_arch = "x86_64")]
pub(in super::super) use super::maddubs::GATED_AVX2 as AVX2_MADDUBS;

#[cfg(target_arch = "x86_64")]
pub(in super::super) static AVX512F: Kernel = kernel! {
    operator: "gated_linear", name: "matvec", isa: "avx512f", features: lanes::AVX512F, supports: few_rows,
    scratch: scratch, ahead: |i, piece| ahead(i, 1, piece),
    nmse: GATED, because: GATED_REASON, run: run_avx512f,
};

#[cfg(target_arch = "x86_64")]
pub(in super::super) use super::streams::GATED_AVX512_VNNI as AVX512_VNNI;

compiled!(body, 2, 4, 8);

/// Moves both matrices once; the floor and its distance are `matvec`'s.
#[inline(always)]
fn body<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    if i.input(0).rows == 1 { tiles::<V, 1>(i) } else { tiles::<V, ROWS>(i) }
}

#[inline(always)]
fn tiles<V: Vector, const ROWS: usize>(i: &Invocation<'_>) {
    let [gate, up] = Operands::gated(i);
    // SAFETY: once in this call.
    let (columns, totals) = unsafe { prepared(i, &gate) };
    for block in i.portions(gate.w.rows.div_ceil(LANES), LEAST).flatten() {
        let gates = block_sums::<V, ROWS>(&gate, block, columns, totals);
        let ups = block_sums::<V, ROWS>(&up, block, columns, totals);
        for row in 0..gate.x.rows {
            let (mut y, up) = (gates[row].lanes(), ups[row].lanes());
            for lane in 0..LANES {
                y[lane] = silu_of::<V>(y[lane]) * up[lane];
            }
            store(&gate, row, block, &y);
        }
    }
}

#[inline(always)]
fn silu_of<V: Vector>(x: f32) -> f32 {
    if V::FMA { silu::<true>(x) } else { silu::<false>(x) }
}
