//! Loops of the tile instructions (AMX), as assembly: registers alone and fed.
//! Not here: leave to use tiles and their shape (`crate::amx`), and kernels that use them (`operators/tile_walk.rs`).

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

/// Tiles, each of one word throughout.
#[repr(C, align(64))]
struct Tiles<const COUNT: usize>([[u32; TILE_BYTES / 4]; COUNT]);

/// What the tiles of a loop are made of: every word of sums at first, of a and of b. The products of a word of a and one of b
/// cancel, so that sums stay what they were however many rounds are made.
struct Words {
    sum: u32,
    a: u32,
    b: u32,
}

impl Words {
    /// In the order in which a step loads them: a, b, b, a.
    fn operands<const COUNT: usize>(&self) -> Tiles<COUNT> {
        let words = [self.a, self.b, self.b, self.a];
        Tiles(std::array::from_fn(|tile| [words[tile % 4]; TILE_BYTES / 4]))
    }
}

const INT8_WORDS: Words = Words { sum: 1, a: 0x0101_0101, b: 0xff01_ff01 };
/// One and one; one and minus one.
const BF16_WORDS: Words = Words { sum: 0x3f80_0000, a: 0x3f80_3f80, b: 0xbf80_3f80 };

/// Makes both loops of one tile product; they give the first tile of sums back. The whole loop is one block, because the compiler
/// knows nothing of tiles and must not come between the configuration and the release.
macro_rules! loops {
    ($module:ident, $product:literal, $words:expr) => {
        mod $module {
            use super::*;

            /// # Safety
            /// The processor has tiles and this product, and `crate::amx::permission` was given.
            pub(super) unsafe fn registers(rounds: u64) -> [u32; TILE_BYTES / 4] {
                let mut sums = Tiles([[$words.sum; TILE_BYTES / 4]]);
                if rounds == 0 {
                    return sums.0[0];
                }
                let tiles = black_box($words.operands::<4>());
                // SAFETY: the configuration is 64 valid bytes; four tiles of operands are read, one of sums is read and
                // written; every tile is named as changed.
                unsafe {
                    asm!(
                        "ldtilecfg [{configuration}]",
                        "tileloadd tmm0, [{sums} + {stride}*1]", "tileloadd tmm1, [{sums} + {stride}*1]",
                        "tileloadd tmm2, [{sums} + {stride}*1]", "tileloadd tmm3, [{sums} + {stride}*1]",
                        "tileloadd tmm4, [{tiles} + {stride}*1]", "tileloadd tmm6, [{tiles} + {stride}*1 + 1024]",
                        "tileloadd tmm7, [{tiles} + {stride}*1 + 2048]", "tileloadd tmm5, [{tiles} + {stride}*1 + 3072]",
                        "2:",
                        concat!($product, " tmm0, tmm4, tmm6"),
                        concat!($product, " tmm1, tmm4, tmm7"),
                        concat!($product, " tmm2, tmm5, tmm6"),
                        concat!($product, " tmm3, tmm5, tmm7"),
                        "dec {steps}",
                        "jnz 2b",
                        "tilestored [{sums} + {stride}*1], tmm0",
                        "tilerelease",
                        configuration = in(reg) &EIGHT_TILES,
                        sums = in(reg) &mut sums,
                        tiles = in(reg) &tiles,
                        stride = in(reg) ROW_BYTES,
                        steps = inout(reg) rounds * STEPS as u64 => _,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
                sums.0[0]
            }

            /// # Safety
            /// As for `registers`.
            pub(super) unsafe fn loads(rounds: u64) -> [u32; TILE_BYTES / 4] {
                let mut sums = Tiles([[$words.sum; TILE_BYTES / 4]]);
                if rounds == 0 {
                    return sums.0[0];
                }
                let tiles = black_box($words.operands::<{ 4 * STEPS }>());
                // SAFETY: the configuration is 64 valid bytes; each step loads four tiles of 1024 bytes, and the steps of a
                // round go through the `4 * STEPS` tiles once before they start again; a tile of sums is read and written;
                // every tile is named as changed.
                unsafe {
                    asm!(
                        "ldtilecfg [{configuration}]",
                        "tileloadd tmm0, [{sums} + {stride}*1]", "tileloadd tmm1, [{sums} + {stride}*1]",
                        "tileloadd tmm2, [{sums} + {stride}*1]", "tileloadd tmm3, [{sums} + {stride}*1]",
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
                        "tilestored [{sums} + {stride}*1], tmm0",
                        "tilerelease",
                        configuration = in(reg) &EIGHT_TILES,
                        sums = in(reg) &mut sums,
                        tiles = in(reg) &tiles,
                        stride = in(reg) ROW_BYTES,
                        rounds = inout(reg) rounds => _,
                        at = out(reg) _,
                        steps = out(reg) _,
                        STEPS = const STEPS,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
                sums.0[0]
            }

            /// # Safety
            /// As for `registers`.
            pub(super) unsafe fn time_registers(rounds: u64) {
                // SAFETY: the caller's contract.
                let sums = unsafe { registers(rounds) };
                black_box(sums);
            }

            /// # Safety
            /// As for `registers`.
            pub(super) unsafe fn time_loads(rounds: u64) {
                // SAFETY: the caller's contract.
                let sums = unsafe { loads(rounds) };
                black_box(sums);
            }
        }
    };
}

loops!(int8, "tdpbssd", INT8_WORDS);
loops!(bf16, "tdpbf16ps", BF16_WORDS);

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
    peak("amx-int8", Operands::Registers, INT8, 4, int8::time_registers),
    peak("amx-int8", Operands::Loads, INT8, 4, int8::time_loads),
    peak("amx-bf16", Operands::Registers, BF16, 2, bf16::time_registers),
    peak("amx-bf16", Operands::Loads, BF16, 2, bf16::time_loads),
];

#[cfg(test)]
mod tests {
    use super::*;

    type Loop = unsafe fn(u64) -> [u32; TILE_BYTES / 4];

    /// Whether the first bytes of a function hold this instruction.
    fn holds(function: Loop, instruction: &[u8]) -> bool {
        // SAFETY: code is readable, and more of the same section follows these short functions.
        let code = unsafe { std::slice::from_raw_parts(function as *const u8, 4096) };
        code.windows(instruction.len()).any(|window| window == instruction)
    }

    /// The encodings are Intel's, from the instruction set reference: a machine without tiles can check no more.
    #[test]
    fn the_assembler_wrote_what_the_reference_says() {
        for (name, function, product) in [
            ("tdpbssd tmm0, tmm4, tmm6", int8::registers as Loop, [0xc4, 0xe2, 0x4b, 0x5e, 0xc4]),
            ("tdpbssd tmm0, tmm4, tmm6", int8::loads, [0xc4, 0xe2, 0x4b, 0x5e, 0xc4]),
            ("tdpbf16ps tmm0, tmm4, tmm6", bf16::registers, [0xc4, 0xe2, 0x4a, 0x5c, 0xc4]),
            ("tdpbf16ps tmm0, tmm4, tmm6", bf16::loads, [0xc4, 0xe2, 0x4a, 0x5c, 0xc4]),
        ] {
            assert!(holds(function, &product), "{name}");
            assert!(holds(function, &[0xc4, 0xe2, 0x78, 0x49, 0xc0]), "tilerelease");
        }
    }

    /// Operands that are normal numbers, whose products cancel: on any machine.
    #[test]
    fn sums_stay_what_they_were() {
        let halves = |word: u32| [word & 0xffff, word >> 16].map(|half| f32::from_bits(half << 16));
        let (a, b) = (halves(BF16_WORDS.a), halves(BF16_WORDS.b));
        assert!(a.iter().chain(&b).chain(&[f32::from_bits(BF16_WORDS.sum)]).all(|number| number.is_normal()));
        assert_eq!(a[0] * b[0] + a[1] * b[1], 0.0);
        let bytes = |word: u32| word.to_le_bytes().map(|byte| i32::from(byte as i8));
        let products = bytes(INT8_WORDS.a).into_iter().zip(bytes(INT8_WORDS.b)).map(|(a, b)| a * b);
        assert_eq!(products.sum::<i32>(), 0);
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
        // However many rounds a sample takes, sums are what they were at first.
        for (function, words) in [(int8::registers as Loop, INT8_WORDS), (int8::loads, INT8_WORDS)] {
            // SAFETY: as above.
            assert_eq!(unsafe { function(1000) }, [words.sum; TILE_BYTES / 4]);
        }
        if Features::of(BF16).missing_from(Features::detect()).is_empty() {
            for function in [bf16::registers as Loop, bf16::loads] {
                // SAFETY: as above, and the feature was checked.
                assert_eq!(unsafe { function(1000) }, [BF16_WORDS.sum; TILE_BYTES / 4]);
            }
        }
    }
}
