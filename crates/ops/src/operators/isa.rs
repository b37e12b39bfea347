//! Compiling one kernel body for several instruction sets. No intrinsics here: the compiler vectorises the body.
//! Unsafe code is in the functions that `for_isa` makes alone: the call of the body compiled for more instructions.
//!
//! A body must be `#[inline(always)]` all the way down, without callbacks: what is not inlined is compiled for the least
//! processor, where a fused multiply-add is a library call.

use crate::Feature;

/// What [`for_isa`] compiles for as `avx2`, and so what those kernels need.
pub const AVX2: &[Feature] = &[Feature::Avx2, Feature::Fma];

/// The same for `avx512`.
pub const AVX512: &[Feature] =
    &[Feature::Avx2, Feature::Fma, Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl, Feature::Avx512dq];

/// The same for `avx512_bf16`.
pub const AVX512_BF16: &[Feature] = &[
    Feature::Avx2,
    Feature::Fma,
    Feature::Avx512f,
    Feature::Avx512bw,
    Feature::Avx512vl,
    Feature::Avx512dq,
    Feature::Avx512bf16,
];

/// Defines the kernel function `$name`: the body (an `#[inline(always)]` function of an invocation) compiled with the
/// instructions of [`AVX2`], [`AVX512`] or [`AVX512_BF16`]. A [`Kernel`](crate::Kernel) that runs it must list the same as its
/// `features`: a processor that lacks them stops at an illegal instruction.
#[macro_export]
macro_rules! for_isa {
    (avx2, $name:ident, $body:path) => {
        $crate::for_isa!("avx2,fma", $name, $body);
    };
    (avx512, $name:ident, $body:path) => {
        $crate::for_isa!("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq", $name, $body);
    };
    (avx512_bf16, $name:ident, $body:path) => {
        $crate::for_isa!("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16", $name, $body);
    };
    ($features:literal, $name:ident, $body:path) => {
        fn $name(i: &$crate::Invocation<'_>) {
            #![allow(unsafe_code, reason = "calls a function that is compiled for more instructions than this one")]
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = $features))]
            fn compiled(i: &$crate::Invocation<'_>) {
                $body(i);
            }
            #[allow(unused_unsafe, reason = "safe where the attribute above is absent")]
            // SAFETY: kernels of this function list these instructions as their features, which `bind` checks against the
            // machine.
            unsafe {
                compiled(i);
            }
        }
    };
}
pub(crate) use for_isa;
