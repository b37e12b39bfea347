//! Loops of the multiplying vector instructions, from registers alone and fed from the first-level cache like the inner loop
//! of a matrix kernel. Not here: tiles (`amx.rs`), and what the loops are counted as (`peaks.rs`).

#![allow(
    unsafe_code,
    reason = "loops compiled for more instructions than the caller, and loads through checked pointers"
)]

use super::peaks::{Operands, Peak};
use crate::{Feature, Features};
use std::arch::x86_64::*;
use std::hint::black_box;
use std::mem::transmute;

/// Steps of a round.
const STEPS: usize = 64;

/// Makes the two loops of one instruction. `$multiply(sum, a, b)` adds products; `$spread(word)` fills a vector with one word
/// of four bytes. The fed loop keeps `$rows` by `$columns` sums, and each step loads `$columns` vectors and `$rows` words.
macro_rules! loops {
    (
        $module:ident, $features:literal, $vector:ty, $lanes:literal, chains: $chains:literal,
        $rows:literal by $columns:literal, $multiply:expr, $spread:expr
    ) => {
        mod $module {
            use super::*;

            /// Operations of a round per product that one lane's instruction makes.
            pub(super) const REGISTERS: u64 = (STEPS * $chains * $lanes * 2) as u64;
            pub(super) const LOADS: u64 = (STEPS * $rows * $columns * $lanes * 2) as u64;

            /// # Safety
            /// The processor has the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn registers(rounds: u64) {
                let multiply = $multiply;
                let spread = $spread;
                // Sums that start alike would be computed once.
                let mut sums: [$vector; $chains] = std::array::from_fn(|chain| spread(black_box(chain as u32)));
                let (a, b) = (spread(black_box(0x0101_0101)), spread(black_box(0x0101_0101)));
                for _ in 0..rounds {
                    for _ in 0..STEPS {
                        for sum in &mut sums {
                            *sum = multiply(*sum, a, b);
                        }
                    }
                }
                black_box(sums);
            }

            /// # Safety
            /// The processor has the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn loads(rounds: u64) {
                let multiply = $multiply;
                let spread = $spread;
                let words: [[u32; $rows]; STEPS] = black_box([[0x0101_0101; $rows]; STEPS]);
                let vectors: [[$vector; $columns]; STEPS] = black_box([[spread(0x0101_0101); $columns]; STEPS]);
                let mut sums: [[$vector; $columns]; $rows] =
                    std::array::from_fn(|row| std::array::from_fn(|col| spread(black_box((row * 8 + col) as u32))));
                for _ in 0..rounds {
                    // The operands may have changed, as far as the compiler knows: each round loads them.
                    let (words, vectors) = (black_box(&words), black_box(&vectors));
                    for step in 0..STEPS {
                        for row in 0..$rows {
                            let word = spread(words[step][row]);
                            for column in 0..$columns {
                                sums[row][column] = multiply(sums[row][column], vectors[step][column], word);
                            }
                        }
                    }
                }
                black_box(sums);
            }
        }
    };
}

// Chains: at least latency times instructions per cycle, within the registers. The fed tiles are those of the engine's own
// kernels for that many registers.
loops!(fp32_avx2, "avx2,fma", __m256, 8, chains: 12, 4 by 2,
    |sum, a, b| _mm256_fmadd_ps(a, b, sum), |word: u32| _mm256_set1_ps(f32::from_bits(word)));
loops!(fp32_avx512, "avx512f", __m512, 16, chains: 16, 12 by 2,
    |sum, a, b| _mm512_fmadd_ps(a, b, sum), |word: u32| _mm512_set1_ps(f32::from_bits(word)));
loops!(vpdpbusd, "avx512f,avx512vnni", __m512i, 64, chains: 16, 12 by 2,
    |sum, a, b| _mm512_dpbusd_epi32(sum, a, b), |word: u32| _mm512_set1_epi32(word as i32));
loops!(vdpbf16ps, "avx512f,avx512bf16", __m512, 32, chains: 16, 12 by 2,
    // SAFETY: vectors of the same size, of which every pattern of bits is valid.
    |sum, a: __m512, b: __m512| unsafe { _mm512_dpbf16_ps(sum, transmute::<__m512, __m512bh>(a), transmute::<__m512, __m512bh>(b)) },
    |word: u32| _mm512_castsi512_ps(_mm512_set1_epi32(word as i32)));

macro_rules! peak {
    ($path:literal, $module:ident, $features:expr) => {
        [
            Peak {
                path: $path,
                operands: Operands::Registers,
                features: Features::of($features),
                operations: $module::REGISTERS,
                tiles: false,
                run: $module::registers,
            },
            Peak {
                path: $path,
                operands: Operands::Loads,
                features: Features::of($features),
                operations: $module::LOADS,
                tiles: false,
                run: $module::loads,
            },
        ]
    };
}

const FP32_AVX2: [Peak; 2] = peak!("fp32-avx2", fp32_avx2, &[Feature::Avx2, Feature::Fma]);
const FP32_AVX512: [Peak; 2] = peak!("fp32-avx512", fp32_avx512, &[Feature::Avx512f]);
const VPDPBUSD: [Peak; 2] = peak!("vpdpbusd", vpdpbusd, &[Feature::Avx512f, Feature::Avx512vnni]);
const VDPBF16PS: [Peak; 2] = peak!("vdpbf16ps", vdpbf16ps, &[Feature::Avx512f, Feature::Avx512bf16]);

pub(super) static PEAKS: &[Peak] = {
    let [a, b] = FP32_AVX2;
    let [c, d] = FP32_AVX512;
    let [e, f] = VPDPBUSD;
    let [g, h] = VDPBF16PS;
    &[a, b, c, d, e, f, g, h]
};
