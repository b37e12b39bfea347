//! Compiling one kernel body for several instruction sets. No intrinsics: the compiler vectorises the body.

use crate::Feature;

/// What [`for_avx512`] bodies may be compiled to, and so what their kernels need.
pub(crate) const AVX512: &[Feature] =
    &[Feature::Avx2, Feature::Fma, Feature::Avx512f, Feature::Avx512bw, Feature::Avx512vl, Feature::Avx512dq];

/// Defines the kernel function `$name`: the body (an `#[inline(always)]` function of an invocation) compiled with the
/// instructions of [`AVX512`].
macro_rules! for_avx512 {
    ($name:ident, $body:path) => {
        fn $name(i: &$crate::Invocation<'_>) {
            #![allow(unsafe_code, reason = "calls a function that is compiled for more instructions than this one")]
            #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq"))]
            fn compiled(i: &$crate::Invocation<'_>) {
                $body(i);
            }
            #[allow(unused_unsafe, reason = "safe where the attribute above is absent")]
            // SAFETY: kernels of this function list `AVX512` as their features, which `bind` checks against the machine.
            unsafe {
                compiled(i);
            }
        }
    };
}
pub(crate) use for_avx512;
