//! Loops of the tile instructions (AMX), as assembly: registers alone and fed.
//! Not here: leave to use tiles and their shape (`crate::amx`), and kernels that use them (`operators/linear/amx.rs`).

#![allow(unsafe_code, reason = "tile instructions exist only as assembly")]

use super::peaks::{Operands, Peak};
use crate::amx::{EIGHT_TILES, ROW_BYTES, ROWS, TILE_BYTES};
use crate::{Feature, Features};
use std::arch::asm;
use std::hint::black_box;

/// Tile products of a step: two by two sums from two tiles each of a and b.
const PRODUCTS: usize = 4;
/// Steps of a round. The four tiles of each step of the fed loop take 32 KiB, most of a first-level cache.
const STEPS: usize = 8;

/// Operations of a round: each 4-byte sum of a tile gets 16 words of 4 bytes, in each word one product per element.
const fn operations(elements_per_word: usize) -> u64 {
    (STEPS * PRODUCTS * ROWS * (ROW_BYTES / 4) * 16 * elements_per_word * 2) as u64
}

#[repr(C, align(64))]
struct Tiles([u8; 4 * STEPS * TILE_BYTES]);

/// Makes both loops of one tile product. The whole loop is one block, because the compiler knows nothing of tiles and must
/// not come between the configuration and the release.
macro_rules! loops {
    ($module:ident, $product:literal) => {
        mod $module {
            use super::*;

            /// # Safety
            /// The processor has tiles and this product, and `crate::amx::permission` was given.
            pub(super) unsafe fn registers(rounds: u64) {
                if rounds == 0 {
                    return;
                }
                // SAFETY: the configuration is 64 valid bytes; no other memory is touched; every tile is named as changed.
                unsafe {
                    asm!(
                        "ldtilecfg [{configuration}]",
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                        "2:",
                        concat!($product, " tmm0, tmm4, tmm6"),
                        concat!($product, " tmm1, tmm4, tmm7"),
                        concat!($product, " tmm2, tmm5, tmm6"),
                        concat!($product, " tmm3, tmm5, tmm7"),
                        "dec {steps}",
                        "jnz 2b",
                        "tilerelease",
                        configuration = in(reg) &EIGHT_TILES,
                        steps = inout(reg) rounds * STEPS as u64 => _,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, readonly),
                    );
                }
            }

            /// # Safety
            /// As for `registers`.
            pub(super) unsafe fn loads(rounds: u64) {
                if rounds == 0 {
                    return;
                }
                let tiles = black_box(Tiles([1; 4 * STEPS * TILE_BYTES]));
                // SAFETY: the configuration is 64 valid bytes; each step loads four tiles of 1024 bytes, and the steps of a
                // round go through the `4 * STEPS` tiles once before they start again; every tile is named as changed.
                unsafe {
                    asm!(
                        "ldtilecfg [{configuration}]",
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "2:",
                        "mov {at}, {tiles}",
                        "mov {steps:e}, {STEPS}",
                        "3:",
                        "tileloadd tmm4, [{at} + {stride}*1]",
                        "tileloadd tmm6, [{at} + {stride}*1 + 1024]",
                        concat!($product, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm7, [{at} + {stride}*1 + 2048]",
                        concat!($product, " tmm1, tmm4, tmm7"),
                        "tileloadd tmm5, [{at} + {stride}*1 + 3072]",
                        concat!($product, " tmm2, tmm5, tmm6"),
                        concat!($product, " tmm3, tmm5, tmm7"),
                        "add {at}, 4096",
                        "dec {steps:e}",
                        "jnz 3b",
                        "dec {rounds}",
                        "jnz 2b",
                        "tilerelease",
                        configuration = in(reg) &EIGHT_TILES,
                        tiles = in(reg) &tiles,
                        stride = in(reg) ROW_BYTES,
                        rounds = inout(reg) rounds => _,
                        at = out(reg) _,
                        steps = out(reg) _,
                        STEPS = const STEPS,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, readonly),
                    );
                }
            }
        }
    };
}

loops!(int8, "tdpbssd");
loops!(bf16, "tdpbf16ps");

const fn peak(
    path: &'static str,
    operands: Operands,
    features: &[Feature],
    per_word: usize,
    run: unsafe fn(u64),
) -> Peak {
    Peak { path, operands, features: Features::of(features), operations: operations(per_word), tiles: true, run }
}

const INT8: &[Feature] = &[Feature::AmxTile, Feature::AmxInt8];
const BF16: &[Feature] = &[Feature::AmxTile, Feature::AmxBf16];

pub(super) static PEAKS: &[Peak] = &[
    peak("amx-int8", Operands::Registers, INT8, 4, int8::registers),
    peak("amx-int8", Operands::Loads, INT8, 4, int8::loads),
    peak("amx-bf16", Operands::Registers, BF16, 2, bf16::registers),
    peak("amx-bf16", Operands::Loads, BF16, 2, bf16::loads),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the first bytes of a function hold this instruction.
    fn holds(function: unsafe fn(u64), instruction: &[u8]) -> bool {
        // SAFETY: code is readable, and more of the same section follows these short functions.
        let code = unsafe { std::slice::from_raw_parts(function as *const u8, 1024) };
        code.windows(instruction.len()).any(|window| window == instruction)
    }

    /// The encodings are Intel's, from the instruction set reference: a machine without tiles can check no more.
    #[test]
    fn the_assembler_wrote_what_the_reference_says() {
        for (name, function, product) in [
            ("tdpbssd tmm0, tmm4, tmm6", int8::registers as unsafe fn(u64), [0xc4, 0xe2, 0x4b, 0x5e, 0xc4]),
            ("tdpbssd tmm0, tmm4, tmm6", int8::loads, [0xc4, 0xe2, 0x4b, 0x5e, 0xc4]),
            ("tdpbf16ps tmm0, tmm4, tmm6", bf16::registers, [0xc4, 0xe2, 0x4a, 0x5c, 0xc4]),
            ("tdpbf16ps tmm0, tmm4, tmm6", bf16::loads, [0xc4, 0xe2, 0x4a, 0x5c, 0xc4]),
        ] {
            assert!(holds(function, &product), "{name}");
            assert!(holds(function, &[0xc4, 0xe2, 0x78, 0x49, 0xc0]), "tilerelease");
        }
    }

    /// One product of known tiles, where there are tiles: c[m][n] is the sum over k of a[m][k] b[k / 4][4 n + k % 4].
    #[test]
    fn a_tile_product_is_the_sum_of_products() {
        let features = Features::of(INT8);
        let lacking = features.missing_from(Features::detect());
        if !lacking.is_empty() {
            println!(
                "skipped: this processor has no {lacking}; run on an Intel Xeon of the fourth generation or later"
            );
            return;
        }
        if let Err(why) = crate::amx::permission() {
            println!("skipped: {why}");
            return;
        }
        let a: [i8; TILE_BYTES] = std::array::from_fn(|at| (at * 7 % 251) as u8 as i8);
        let b: [i8; TILE_BYTES] = std::array::from_fn(|at| (at * 5 % 241) as u8 as i8);
        let mut c = [0i32; TILE_BYTES / 4];
        // SAFETY: the features and the leave were checked above; tiles of 1024 bytes are read and one is written.
        unsafe {
            asm!(
                "ldtilecfg [{configuration}]",
                "tilezero tmm0",
                "tileloadd tmm1, [{a} + {stride}*1]",
                "tileloadd tmm2, [{b} + {stride}*1]",
                "tdpbssd tmm0, tmm1, tmm2",
                "tilestored [{c} + {stride}*1], tmm0",
                "tilerelease",
                configuration = in(reg) &EIGHT_TILES,
                a = in(reg) &a,
                b = in(reg) &b,
                c = in(reg) &mut c,
                stride = in(reg) ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _,
                options(nostack),
            );
        }
        for m in 0..ROWS {
            for n in 0..16 {
                let product = |k: usize| i32::from(a[m * 64 + k]) * i32::from(b[k / 4 * 64 + 4 * n + k % 4]);
                assert_eq!(c[m * 16 + n], (0..64).map(product).sum(), "({m}, {n})");
            }
        }
        for peak in PEAKS {
            if peak.unavailable(Features::detect()).is_none() {
                peak.run(3);
            }
        }
    }
}
