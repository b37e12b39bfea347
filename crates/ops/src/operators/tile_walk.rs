//! The walk of the tile unit over all rows of x and two row blocks of weights: on the hardware, and emulated in plain Rust.
//! Not here: what is packed for it and what becomes of its sums (`mod.rs`).

#![allow(
    unsafe_code,
    reason = "tile instructions exist only as assembly; tiles are loaded and stored through pointers"
)]

use crate::amx::{Configuration, EIGHT_TILES, ROW_BYTES, ROWS, TILE_BYTES};
use crate::bits::bf16_to_f32;
use std::arch::asm;
use std::ffi::c_void;
use std::mem::offset_of;

/// One walk: for each pair of tiles of x, sums of both with both tiles of weights over all steps.
#[repr(C)]
pub(super) struct Walk {
    configuration: *const Configuration,
    /// Per pair and step, two tiles of x (16 rows by 32 columns).
    a: *const u8,
    /// Per step, a tile of weights (16 pairs of columns by 16 outputs); the second block's lie `next` bytes behind.
    b: *const u8,
    next: usize,
    steps: u64,
    pairs: u64,
    /// Per pair, four tiles of sums: of the first tile of x with either block, then of the second.
    c: *mut u8,
    between: unsafe extern "C" fn(*mut c_void),
    state: *mut c_void,
}

impl Walk {
    /// `between` is called whenever so many steps, or none, are left of a pair.
    pub(super) const STEPS_BETWEEN: usize = 8;

    pub(super) fn new(
        a: *const u8,
        (b, next): (*const u8, usize),
        steps: usize,
        pairs: usize,
        c: *mut u8,
        between: unsafe extern "C" fn(*mut c_void),
        state: *mut c_void,
    ) -> Walk {
        assert!(steps > 0 && pairs > 0, "a walk has work");
        Walk { configuration: &EIGHT_TILES, a, b, next, steps: steps as u64, pairs: pairs as u64, c, between, state }
    }
}

/// A tile unit.
pub(super) trait Tiles {
    /// Does the walk, and uses it up.
    ///
    /// # Safety
    /// - The machine has what the unit needs; the pointers of the walk are good for its steps and pairs; `between` may be
    ///   called with `state`, and uses no tiles.
    unsafe fn multiply(walk: &mut Walk);
}

/// The processor's own: `tileloadd`, `tdpbf16ps`, `tilestored`.
pub(super) struct Hardware;

impl Tiles for Hardware {
    unsafe fn multiply(walk: &mut Walk) {
        // One block from configuration to release, because the compiler knows nothing of tiles. `between` is called from
        // within, where the stack is as a call wants it; the four registers that live through it are its to preserve.
        // SAFETY: the caller's contract; 64 valid bytes of configuration.
        unsafe {
            asm!(
                "mov rax, [r12 + {CONFIGURATION}]",
                "ldtilecfg [rax]",
                "mov r13, [r12 + {A}]",
                "2:",
                "mov r14, [r12 + {B}]",
                "mov r15, [r12 + {STEPS}]",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "3:",
                "mov eax, {ROW_BYTES}",
                "mov rdx, [r12 + {NEXT}]",
                "add rdx, r14",
                "tileloadd tmm4, [r13 + rax*1]",
                "tileloadd tmm6, [r14 + rax*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [rdx + rax*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [r13 + rax*1 + {TILE_BYTES}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add r13, {TWO_TILES}",
                "add r14, {TILE_BYTES}",
                "dec r15",
                "test r15, {MASK}",
                "jnz 4f",
                "mov rdi, [r12 + {STATE}]",
                "call [r12 + {BETWEEN}]",
                "4:",
                "test r15, r15",
                "jnz 3b",
                "mov eax, {ROW_BYTES}",
                "mov rdx, [r12 + {C}]",
                "tilestored [rdx + rax*1], tmm0",
                "tilestored [rdx + rax*1 + {TILE_BYTES}], tmm1",
                "tilestored [rdx + rax*1 + {TWO_TILES}], tmm2",
                "tilestored [rdx + rax*1 + {THREE_TILES}], tmm3",
                "add rdx, {FOUR_TILES}",
                "mov [r12 + {C}], rdx",
                "dec qword ptr [r12 + {PAIRS}]",
                "jnz 2b",
                "tilerelease",
                CONFIGURATION = const offset_of!(Walk, configuration),
                A = const offset_of!(Walk, a),
                B = const offset_of!(Walk, b),
                NEXT = const offset_of!(Walk, next),
                STEPS = const offset_of!(Walk, steps),
                PAIRS = const offset_of!(Walk, pairs),
                C = const offset_of!(Walk, c),
                BETWEEN = const offset_of!(Walk, between),
                STATE = const offset_of!(Walk, state),
                ROW_BYTES = const ROW_BYTES,
                TILE_BYTES = const TILE_BYTES,
                TWO_TILES = const 2 * TILE_BYTES,
                THREE_TILES = const 3 * TILE_BYTES,
                FOUR_TILES = const 4 * TILE_BYTES,
                MASK = const Walk::STEPS_BETWEEN - 1,
                in("r12") walk,
                out("r13") _,
                out("r14") _,
                out("r15") _,
                clobber_abi("C"),
            );
        }
    }
}

/// The same walk on eight tiles in memory.
pub(super) struct Emulated;

/// 16 rows of 16 words.
type Tile = [[u32; 16]; ROWS];

impl Tiles for Emulated {
    unsafe fn multiply(walk: &mut Walk) {
        // SAFETY: the kernels that name this unit need AVX-512, and the rest is the caller's contract.
        unsafe { emulate(walk) }
    }
}

/// # Safety
/// - As for [`Tiles::multiply`].
#[target_feature(enable = "avx512f,fma")]
unsafe fn emulate(walk: &Walk) {
    let (mut a, mut c) = (walk.a, walk.c);
    for _ in 0..walk.pairs {
        let mut b = walk.b;
        let mut sums: [Tile; 4] = [[[0; 16]; ROWS]; 4];
        for step in 0..walk.steps {
            // SAFETY: the walk's pointers are good for its steps and pairs.
            let [x0, x1, w0, w1] =
                [a, a.wrapping_add(TILE_BYTES), b, b.wrapping_add(walk.next)].map(|from| unsafe { load(from) });
            for (sums, (x, w)) in sums.iter_mut().zip([(&x0, &w0), (&x0, &w1), (&x1, &w0), (&x1, &w1)]) {
                dot(sums, x, w);
            }
            a = a.wrapping_add(2 * TILE_BYTES);
            b = b.wrapping_add(TILE_BYTES);
            if (walk.steps - 1 - step).is_multiple_of(Walk::STEPS_BETWEEN as u64) {
                // SAFETY: the caller's contract.
                unsafe { (walk.between)(walk.state) };
            }
        }
        for sums in &sums {
            // SAFETY: room for the pair's four tiles.
            unsafe { store(c, sums) };
            c = c.wrapping_add(TILE_BYTES);
        }
    }
}

/// `tileloadd` of a tile whose rows follow each other.
///
/// # Safety
/// - A tile's bytes can be read.
unsafe fn load(from: *const u8) -> Tile {
    // SAFETY: the caller's contract; any bytes are words.
    unsafe { from.cast::<Tile>().read_unaligned() }
}

/// `tilestored`, likewise.
///
/// # Safety
/// - A tile's bytes can be written.
unsafe fn store(to: *mut u8, tile: &Tile) {
    // SAFETY: the caller's contract.
    unsafe { to.cast::<Tile>().write_unaligned(*tile) }
}

/// `tdpbf16ps`, as Intel's reference has it: per sum, the lower and the upper halves of the words are two chains of fused
/// multiply-adds from zero; the two are added, then that is added to the sum. Each step rounds to nearest even, and subnormal
/// operands and results are zeros.
#[inline]
#[target_feature(enable = "avx512f,fma")]
fn dot(sums: &mut Tile, a: &Tile, b: &Tile) {
    for (sums, a) in sums.iter_mut().zip(a) {
        let mut chains = [[0f32; 16]; 2];
        for (a, b) in a.iter().zip(b) {
            for (half, chain) in chains.iter_mut().enumerate() {
                let number = |word: u32| flush(bf16_to_f32((word >> (16 * half)) as u16));
                let a = number(*a);
                for (sum, b) in chain.iter_mut().zip(b) {
                    *sum = flush(a.mul_add(number(*b), *sum));
                }
            }
        }
        for ((sum, low), high) in sums.iter_mut().zip(chains[0]).zip(chains[1]) {
            *sum = flush(flush(f32::from_bits(*sum)) + flush(low + high)).to_bits();
        }
    }
}

/// Subnormal numbers become zeros of their sign.
#[inline(always)]
fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0f32.copysign(value) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::f32_to_bf16;
    use crate::{Feature, Features};
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    /// The instructions of a function, up to its return.
    fn instructions(function: *const u8) -> Vec<Mnemonic> {
        // SAFETY: code is readable, and more of the same section follows this short function.
        let code = unsafe { std::slice::from_raw_parts(function, 2048) };
        let all = Decoder::new(64, code, DecoderOptions::NONE).into_iter().map(|instruction| instruction.mnemonic());
        all.take_while(|mnemonic| *mnemonic != Mnemonic::Ret).collect()
    }

    #[test]
    fn the_walk_is_four_products_for_four_loads() {
        let found = instructions(<Hardware as Tiles>::multiply as *const u8);
        for (mnemonic, times) in [
            (Mnemonic::Ldtilecfg, 1),
            (Mnemonic::Tilezero, 4),
            (Mnemonic::Tileloadd, 4),
            (Mnemonic::Tdpbf16ps, 4),
            (Mnemonic::Tilestored, 4),
            (Mnemonic::Tilerelease, 1),
            (Mnemonic::Call, 1),
            (Mnemonic::INVALID, 0),
        ] {
            let count = found.iter().filter(|other| **other == mnemonic).count();
            assert_eq!(count, times, "{mnemonic:?} in {found:?}");
        }
        let first = |mnemonic| found.iter().position(|other| *other == mnemonic);
        assert!(first(Mnemonic::Ldtilecfg) < first(Mnemonic::Tilezero), "{found:?}");
        assert!(first(Mnemonic::Tilestored) < first(Mnemonic::Tilerelease), "{found:?}");
    }

    /// Known tiles: x and weights as numbers, `(rows, columns)` and `(outputs, columns)`, in the layouts of a walk.
    fn tiles(numbers: impl Fn(usize, usize) -> f32, weights: bool) -> Vec<u8> {
        let mut tile = vec![0; TILE_BYTES];
        for row in 0..16 {
            for column in 0..32 {
                let at = if weights { column / 2 * 64 + row * 4 + column % 2 * 2 } else { row * 64 + column * 2 };
                tile[at..at + 2].copy_from_slice(&f32_to_bf16(numbers(row, column)).to_le_bytes());
            }
        }
        tile
    }

    unsafe extern "C" fn count(state: *mut c_void) {
        // SAFETY: the tests pass a counter.
        unsafe { *state.cast::<u32>() += 1 };
    }

    /// Sums of a walk of two pairs and nine steps, and how often it called back.
    fn walked<T: Tiles>() -> (Vec<f32>, u32) {
        const STEPS: usize = 9;
        let mut a = Vec::new();
        for pair in 0..2 {
            for step in 0..STEPS {
                for half in 0..2 {
                    a.extend(tiles(|row, k| ((row * 3 + k + step + 2 * half + 5 * pair) % 7) as f32 - 3.0, false));
                }
            }
        }
        let block = |which: usize| {
            (0..STEPS).flat_map(move |step| tiles(move |out, k| ((out + 2 * k + step + which) % 5) as f32 - 2.0, true))
        };
        let b: Vec<u8> = block(0).chain(block(1)).collect();
        let mut c = vec![0f32; 2 * 4 * 256];
        let mut calls = 0u32;
        let state = std::ptr::from_mut(&mut calls).cast();
        let next = STEPS * TILE_BYTES;
        let mut walk = Walk::new(a.as_ptr(), (b.as_ptr(), next), STEPS, 2, c.as_mut_ptr().cast(), count, state);
        // SAFETY: the callers checked the features; the vectors have the sizes that the walk says.
        unsafe { T::multiply(&mut walk) };
        (c, calls)
    }

    fn has(features: &[Feature]) -> bool {
        let missing = Features::of(features).missing_from(Features::detect());
        if !missing.is_empty() {
            println!(
                "skipped: this processor has no {missing}; AMX needs an Intel Xeon of the fourth generation or later"
            );
        }
        missing.is_empty()
    }

    fn check((sums, calls): (Vec<f32>, u32)) {
        // Small whole numbers: every order of summing gives the same.
        for (index, sum) in sums.iter().enumerate() {
            let (pair, tile, row, out) = (index / 1024, index / 256 % 4, index / 16 % 16, index % 16);
            let (half, which) = (tile / 2, tile % 2);
            let mut want = 0.0;
            for step in 0..9 {
                for k in 0..32 {
                    let x = ((row * 3 + k + step + 2 * half + 5 * pair) % 7) as f32 - 3.0;
                    want += x * (((out + 2 * k + step + which) % 5) as f32 - 2.0);
                }
            }
            assert_eq!(*sum, want, "pair {pair}, tile {tile}, row {row}, output {out}");
        }
        // With eight steps and with none left, for each of two pairs.
        assert_eq!(calls, 4);
    }

    #[test]
    fn an_emulated_walk_sums_products() {
        if has(&[Feature::Avx512f, Feature::Fma]) {
            check(walked::<Emulated>());
        }
    }

    #[test]
    fn the_hardware_walks_as_the_emulation_does() {
        if has(&[Feature::AmxTile, Feature::AmxBf16, Feature::Avx512f, Feature::Fma]) {
            check(walked::<Hardware>());
        }
    }

    /// Words of a and of b that meet, as (lower, upper) half.
    type Words = [(f32, f32); 2];

    /// What the reference's rounding makes of cases where the order, the fusing or a subnormal shows.
    #[test]
    fn products_round_as_the_reference_says() {
        if !has(&[Feature::Avx512f, Feature::Fma]) {
            return;
        }
        let word = |low: f32, high: f32| u32::from(f32_to_bf16(low)) | u32::from(f32_to_bf16(high)) << 16;
        let product = |sum: f32, pairs: &[Words]| {
            let (mut a, mut b, mut c) = ([[0; 16]; ROWS], [[0; 16]; ROWS], [[0; 16]; ROWS]);
            c[0][0] = sum.to_bits();
            for (k, [x, w]) in pairs.iter().enumerate() {
                (a[0][k], b[k][0]) = (word(x.0, x.1), word(w.0, w.1));
            }
            // SAFETY: the features were checked.
            unsafe { dot(&mut c, &a, &b) };
            f32::from_bits(c[0][0])
        };
        let tiny = 2f32.powi(-24);
        // The halves are chains of their own: 1 - 1 in one of them leaves the other's 2^-24 whole.
        assert_eq!(product(0.0, &[[(1.0, tiny), (1.0, 1.0)], [(-1.0, 0.0), (1.0, 1.0)]]), tiny);
        // Within a chain each step rounds: 1 + 2^-24 is 1 (to even), then 0.
        assert_eq!(
            product(0.0, &[[(1.0, 0.0), (1.0, 0.0)], [(tiny, 0.0), (1.0, 0.0)], [(-1.0, 0.0), (1.0, 0.0)]]),
            0.0
        );
        // The old sum comes last: (2^-24 + 2^-24) + 1 keeps what 1 + 2^-24 + 2^-24 would lose.
        assert_eq!(product(1.0, &[[(tiny, tiny), (1.0, 1.0)]]), 1.0 + 2.0 * tiny);
        // Subnormal operands, results and old sums are zeros.
        let (least, small) = (f32::from_bits(0x0001_0000), 2f32.powi(-70));
        assert_eq!(product(0.0, &[[(least, 0.0), (2f32.powi(100), 0.0)]]), 0.0);
        assert_eq!(product(0.0, &[[(small, 0.0), (small, 0.0)]]), 0.0);
        assert_eq!(product(f32::from_bits(1), &[]), 0.0);
    }
}
