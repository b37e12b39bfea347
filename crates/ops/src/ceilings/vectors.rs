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
/// of four bytes; `$first(n)` is the word that sum n begins with, `$operand` that of both factors. The fed loop keeps `$rows`
/// by `$columns` sums, and each step loads `$columns` vectors and `$rows` words. Both give their sums back.
macro_rules! loops {
    (
        $module:ident, $features:literal, $vector:ty, $lanes:literal, chains: $chains:literal,
        $rows:literal by $columns:literal, words: $first:expr, $operand:expr, $multiply:expr, $spread:expr
    ) => {
        mod $module {
            use super::*;

            /// Operations of a round per product that one lane's instruction makes.
            pub(super) const REGISTERS: u64 = (STEPS * $chains * $lanes * 2) as u64;
            pub(super) const LOADS: u64 = (STEPS * $rows * $columns * $lanes * 2) as u64;

            /// # Safety
            /// The processor has the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn registers(rounds: u64) -> [$vector; $chains] {
                let multiply = $multiply;
                let spread = $spread;
                // Sums that start alike would be computed once.
                let mut sums: [$vector; $chains] = std::array::from_fn(|chain| spread(black_box($first(chain as u32))));
                let (a, b) = (spread(black_box($operand)), spread(black_box($operand)));
                for _ in 0..rounds {
                    for _ in 0..STEPS {
                        for sum in &mut sums {
                            *sum = multiply(*sum, a, b);
                        }
                    }
                }
                sums
            }

            /// # Safety
            /// The processor has the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn loads(rounds: u64) -> [[$vector; $columns]; $rows] {
                let multiply = $multiply;
                let spread = $spread;
                let words: [[u32; $rows]; STEPS] = black_box([[$operand; $rows]; STEPS]);
                let vectors: [[$vector; $columns]; STEPS] = black_box([[spread($operand); $columns]; STEPS]);
                let mut sums: [[$vector; $columns]; $rows] = std::array::from_fn(|row| {
                    std::array::from_fn(|col| spread(black_box($first((row * $columns + col) as u32))))
                });
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
                // Written through the result's address, sums would be kept there all the while and stored at each product.
                black_box(sums)
            }
        }
    };
}

/// Products of floats are 2^-40, which rounding takes off sums between one and two: however many rounds, a sum stays what it was.
/// Sums or products below the normal numbers are slow on some processors, hundreds of times.
const FLOAT: u32 = f32::to_bits(1.0 / (1 << 20) as f32);
const PAIR: u32 = FLOAT | FLOAT >> 16;

/// What float sum `n` begins with: 1 and a little.
const fn float(n: u32) -> u32 {
    (1.0 + n as f32 / 32.0).to_bits()
}

/// Whole numbers wrap.
const BYTES: u32 = 0x0101_0101;

const fn whole(n: u32) -> u32 {
    n
}

// Chains: at least latency times instructions per cycle, within the registers. The fed tiles are those of the engine's own
// kernels for that many registers.
loops!(fp32_avx2, "avx2,fma", __m256, 8, chains: 12, 4 by 2, words: float, FLOAT,
    |sum, a, b| _mm256_fmadd_ps(a, b, sum), |word: u32| _mm256_set1_ps(f32::from_bits(word)));
loops!(fp32_avx512, "avx512f", __m512, 16, chains: 16, 12 by 2, words: float, FLOAT,
    |sum, a, b| _mm512_fmadd_ps(a, b, sum), |word: u32| _mm512_set1_ps(f32::from_bits(word)));
loops!(vpdpbusd, "avx512f,avx512vnni", __m512i, 64, chains: 16, 12 by 2, words: whole, BYTES,
    |sum, a, b| _mm512_dpbusd_epi32(sum, a, b), |word: u32| _mm512_set1_epi32(word as i32));
loops!(vdpbf16ps, "avx512f,avx512bf16", __m512, 32, chains: 16, 12 by 2, words: float, PAIR,
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
                run: |rounds| {
                    // SAFETY: whoever runs a peak has checked that the processor has the features.
                    let sums = unsafe { $module::registers(rounds) };
                    black_box(sums);
                },
            },
            Peak {
                path: $path,
                operands: Operands::Loads,
                features: Features::of($features),
                operations: $module::LOADS,
                tiles: false,
                run: |rounds| {
                    // SAFETY: whoever runs a peak has checked that the processor has the features.
                    let sums = unsafe { $module::loads(rounds) };
                    black_box(sums);
                },
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of vectors.
    fn numbers<T: Copy>(sums: T) -> Vec<f32> {
        assert_eq!(size_of::<T>() % 4, 0);
        let start = std::ptr::from_ref(&sums).cast::<f32>();
        (0..size_of::<T>() / 4)
            // SAFETY: vectors are floats without gaps.
            .map(|n| unsafe { start.add(n).read_unaligned() })
            .collect()
    }

    /// However many rounds a sample takes, sums are between one and two, and so neither slow nor infinite.
    #[test]
    fn sums_of_floats_stay_near_one() {
        let has = |features: &[Feature]| Features::of(features).missing_from(Features::detect()).is_empty();
        let mut sums: Vec<(&str, Vec<f32>)> = Vec::new();
        for rounds in [1, 200_000] {
            // SAFETY: the features were detected.
            unsafe {
                if has(&[Feature::Avx2, Feature::Fma]) {
                    sums.push(("fp32-avx2, registers", numbers(fp32_avx2::registers(rounds))));
                    sums.push(("fp32-avx2, loads", numbers(fp32_avx2::loads(rounds))));
                }
                if has(&[Feature::Avx512f]) {
                    sums.push(("fp32-avx512, registers", numbers(fp32_avx512::registers(rounds))));
                    sums.push(("fp32-avx512, loads", numbers(fp32_avx512::loads(rounds))));
                }
                if has(&[Feature::Avx512f, Feature::Avx512bf16]) {
                    sums.push(("vdpbf16ps, registers", numbers(vdpbf16ps::registers(rounds))));
                    sums.push(("vdpbf16ps, loads", numbers(vdpbf16ps::loads(rounds))));
                }
            }
        }
        for (name, sums) in sums {
            let far = sums.iter().find(|sum| !(1.0..2.0).contains(*sum));
            assert_eq!(far, None, "{name}: a sum far from one");
        }
        for operand in [f32::from_bits(FLOAT), f32::from_bits(PAIR << 16), f32::from_bits(PAIR & 0xffff_0000)] {
            assert!(operand.is_normal() && (operand * operand).is_normal(), "{operand:e}");
        }
    }
}
