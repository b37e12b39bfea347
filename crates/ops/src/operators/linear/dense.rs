//! `dense`: bfloat16 weights, any number of rows. The ladder's baseline, and no straw man.
//! Here: the list of versions. Not here: the portable body, which is `matmul`'s, and the AVX-512 BF16 version (`tiles.rs`).

#![allow(unsafe_code, reason = "calls of the body compiled for other instruction sets")]

use super::lanes::{self, compiled};
use super::matmul::{body, panel_bytes};
use crate::{Kernel, kernel};

const REASON: &str = "one bfloat16 rounding of the output; sums in f32";

pub(super) static PORTABLE: Kernel = kernel! {
    operator: "linear", name: "dense", isa: "portable", features: &[], supports: super::dense, scratch: panel_bytes,
    nmse: 6e-6, because: REASON, run: run_plain,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX2: Kernel = kernel! {
    operator: "linear", name: "dense", isa: "avx2", features: lanes::AVX2, supports: super::dense, scratch: panel_bytes,
    nmse: 6e-6, because: REASON, run: run_avx2,
};

#[cfg(target_arch = "x86_64")]
pub(super) static AVX512F: Kernel = kernel! {
    operator: "linear", name: "dense", isa: "avx512f", features: lanes::AVX512F, supports: super::dense,
    scratch: panel_bytes,
    nmse: 6e-6, because: REASON, run: run_avx512f,
};

#[cfg(target_arch = "x86_64")]
pub(super) use super::tiles::DENSE_AVX512_BF16 as AVX512_BF16;

compiled!(body, 2, 6, 12);
