//! The walk of the tile unit: two by two tiles of sums over all steps of a product, for one pair of tiles of rows after the
//! other; on the hardware, and emulated in plain Rust. Not here: what is laid out for it and what becomes of its sums (`linear/amx`,
//! `attention/amx_tiles.rs`).

#![allow(
    unsafe_code,
    reason = "tile instructions exist only as assembly; tiles are loaded and stored through pointers"
)]

use crate::amx::{Configuration, EIGHT_TILES, ROWS};
use crate::bits::bf16_to_f32;
use std::arch::asm;
use std::ffi::c_void;
use std::mem::offset_of;

/// Elements of a that a step takes: 32 bfloat16 are a row of a tile.
pub(super) const STEP: usize = 32;
/// Rows of a that one pass over b serves: two tiles.
pub(super) const PAIR: usize = 2 * ROWS;
/// Bytes of a row of a pair's sums: 32 of them.
pub(super) const SUMS_ROW: usize = 2 * 64;

/// The left operand: rows of bfloat16, in pairs of tiles.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) start: *const u8,
    /// Bytes from one row to the next.
    pub(super) stride: usize,
}

/// The right operand: two tiles of 16 outputs each a step, a row of a tile being 16 pairs of elements.
#[derive(Clone, Copy)]
pub(super) struct Right {
    pub(super) start: *const u8,
    /// Bytes from one row of a tile to the next, from the first tile to the second, and from step to step.
    pub(super) stride: usize,
    pub(super) second: usize,
    pub(super) step: usize,
}

/// Where sums go: 32 rows of 32 float32 a pair.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) start: *mut u8,
    /// Bytes from one row to the next.
    pub(super) stride: usize,
    /// Bytes from one pair's first row to the next pair's, and from that one's to the one's after it: then the same again.
    pub(super) turns: [isize; 2],
    /// Whether products are added to what is there.
    pub(super) add: bool,
}

/// What is called after the products of each step, while they are still being made.
#[derive(Clone, Copy)]
pub(super) struct Between {
    pub(super) call: unsafe extern "C" fn(*mut c_void),
    pub(super) state: *mut c_void,
}

impl Between {
    /// For units that call nothing.
    pub(super) const NOTHING: Between = Between { call: nothing, state: std::ptr::null_mut() };
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

/// One walk: for each pair of tiles of a, sums of both with both tiles of b over all steps.
#[repr(C)]
pub(super) struct Walk {
    configuration: *const Configuration,
    a: *const u8,
    a_stride: usize,
    a_second: usize,
    a_pair: usize,
    b: *const u8,
    b_stride: usize,
    b_second: usize,
    b_step: usize,
    c: *mut u8,
    c_stride: usize,
    c_turns: [isize; 2],
    add: u64,
    steps: u64,
    pairs: u64,
    between: unsafe extern "C" fn(*mut c_void),
    state: *mut c_void,
}

impl Walk {
    pub(super) fn new(a: Left, b: Right, c: Sums, steps: usize, pairs: usize, between: Between) -> Walk {
        assert!(steps > 0 && pairs > 0, "a walk has work");
        Walk {
            configuration: &EIGHT_TILES,
            a: a.start,
            a_stride: a.stride,
            a_second: ROWS * a.stride,
            a_pair: PAIR * a.stride,
            b: b.start,
            b_stride: b.stride,
            b_second: b.second,
            b_step: b.step,
            c: c.start,
            c_stride: c.stride,
            c_turns: c.turns,
            add: u64::from(c.add),
            steps: steps as u64,
            pairs: pairs as u64,
            between: between.call,
            state: between.state,
        }
    }
}

/// A tile unit.
pub(super) trait Tiles {
    /// Does the walk, and uses it up.
    ///
    /// # Safety
    /// - The machine has what the unit needs; the pointers of the walk are good for its steps and pairs; `between` may be
    ///   called with its state, and uses no tiles.
    unsafe fn multiply(walk: &mut Walk);
}

/// The processor's own: `tileloadd` of b, `tileloaddt1` of a, which is larger than the first-level cache, `tdpbf16ps`, `tilestored`.
pub(super) struct Hardware;

/// The same without anything between products, for operands in the first-level cache.
pub(super) struct Quiet;

/// The walk as one block of assembly, with the instructions that load tiles of a and of b, and what follows the products of a step.
macro_rules! walk {
    ($walk:ident, $load_a:literal, $load_b:literal, $($after:literal),*) => {
            asm!(
                // A comment of the assembler: not every unit uses them.
                "# {BETWEEN} {STATE}",
                "mov rax, [r12 + {CONFIGURATION}]",
                "ldtilecfg [rax]",
                "2:",
                "mov r13, [r12 + {A}]",
                "mov r14, [r12 + {B}]",
                "mov r15, [r12 + {STEPS}]",
                "cmp qword ptr [r12 + {ADD}], 0",
                "jne 3f",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "jmp 4f",
                "3:",
                "mov rdx, [r12 + {C}]",
                "mov rax, [r12 + {C_STRIDE}]",
                "mov rcx, rax",
                "shl rcx, {LOG_ROWS}",
                "add rcx, rdx",
                "tileloadd tmm0, [rdx + rax*1]",
                "tileloadd tmm1, [rdx + rax*1 + {SECOND_SUMS}]",
                "tileloadd tmm2, [rcx + rax*1]",
                "tileloadd tmm3, [rcx + rax*1 + {SECOND_SUMS}]",
                "4:",
                "mov rax, [r12 + {A_STRIDE}]",
                "mov rcx, [r12 + {B_STRIDE}]",
                concat!($load_a, " tmm4, [r13 + rax*1]"),
                concat!($load_b, " tmm6, [r14 + rcx*1]"),
                "tdpbf16ps tmm0, tmm4, tmm6",
                "mov rdx, [r12 + {B_SECOND}]",
                "add rdx, r14",
                concat!($load_b, " tmm7, [rdx + rcx*1]"),
                "tdpbf16ps tmm1, tmm4, tmm7",
                "mov rsi, [r12 + {A_SECOND}]",
                "add rsi, r13",
                concat!($load_a, " tmm5, [rsi + rax*1]"),
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                $($after,)*
                "add r13, {STEP_BYTES}",
                "add r14, [r12 + {B_STEP}]",
                "dec r15",
                "jnz 4b",
                "mov rdx, [r12 + {C}]",
                "mov rax, [r12 + {C_STRIDE}]",
                "mov rcx, rax",
                "shl rcx, {LOG_ROWS}",
                "add rcx, rdx",
                "tilestored [rdx + rax*1], tmm0",
                "tilestored [rdx + rax*1 + {SECOND_SUMS}], tmm1",
                "tilestored [rcx + rax*1], tmm2",
                "tilestored [rcx + rax*1 + {SECOND_SUMS}], tmm3",
                "mov rax, [r12 + {C_NOW}]",
                "mov rcx, [r12 + {C_THEN}]",
                "mov [r12 + {C_NOW}], rcx",
                "mov [r12 + {C_THEN}], rax",
                "add [r12 + {C}], rax",
                "mov rax, [r12 + {A_PAIR}]",
                "add [r12 + {A}], rax",
                "dec qword ptr [r12 + {PAIRS}]",
                "jnz 2b",
                "tilerelease",
                CONFIGURATION = const offset_of!(Walk, configuration),
                A = const offset_of!(Walk, a),
                A_STRIDE = const offset_of!(Walk, a_stride),
                A_SECOND = const offset_of!(Walk, a_second),
                A_PAIR = const offset_of!(Walk, a_pair),
                B = const offset_of!(Walk, b),
                B_STRIDE = const offset_of!(Walk, b_stride),
                B_SECOND = const offset_of!(Walk, b_second),
                B_STEP = const offset_of!(Walk, b_step),
                C = const offset_of!(Walk, c),
                C_STRIDE = const offset_of!(Walk, c_stride),
                C_NOW = const offset_of!(Walk, c_turns),
                C_THEN = const offset_of!(Walk, c_turns) + size_of::<isize>(),
                ADD = const offset_of!(Walk, add),
                STEPS = const offset_of!(Walk, steps),
                PAIRS = const offset_of!(Walk, pairs),
                BETWEEN = const offset_of!(Walk, between),
                STATE = const offset_of!(Walk, state),
                STEP_BYTES = const 2 * STEP,
                SECOND_SUMS = const SUMS_ROW / 2,
                LOG_ROWS = const ROWS.ilog2(),
                in("r12") $walk,
                out("r13") _,
                out("r14") _,
                out("r15") _,
                clobber_abi("C"),
            )
    };
}

impl Tiles for Hardware {
    unsafe fn multiply(walk: &mut Walk) {
        // One block from configuration to release, because the compiler knows nothing of tiles. `between` is called from
        // within, where the stack is as a call wants it; the four registers that live through it are its to preserve.
        // SAFETY: the caller's contract; 64 valid bytes of configuration.
        unsafe { walk!(walk, "tileloaddt1", "tileloadd", "mov rdi, [r12 + {STATE}]", "call [r12 + {BETWEEN}]") }
    }
}

impl Tiles for Quiet {
    unsafe fn multiply(walk: &mut Walk) {
        // SAFETY: as above.
        unsafe { walk!(walk, "tileloadd", "tileloadd",) }
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
unsafe fn emulate(walk: &mut Walk) {
    for _ in 0..walk.pairs {
        let (mut a, mut b) = (walk.a, walk.b);
        let second = walk.c.wrapping_add(ROWS * walk.c_stride);
        let out = [walk.c, walk.c.wrapping_add(SUMS_ROW / 2), second, second.wrapping_add(SUMS_ROW / 2)];
        let mut sums: [Tile; 4] = [[[0; 16]; ROWS]; 4];
        if walk.add != 0 {
            // SAFETY: the walk's pointers are good for its steps and pairs, here and below.
            sums = out.map(|from| unsafe { load(from, walk.c_stride) });
        }
        for _ in 0..walk.steps {
            // SAFETY: as above.
            let [x0, x1] = [a, a.wrapping_add(walk.a_second)].map(|from| unsafe { load(from, walk.a_stride) });
            // SAFETY: as above.
            let [w0, w1] = [b, b.wrapping_add(walk.b_second)].map(|from| unsafe { load(from, walk.b_stride) });
            for (sums, (x, w)) in sums.iter_mut().zip([(&x0, &w0), (&x0, &w1), (&x1, &w0), (&x1, &w1)]) {
                dot(sums, x, w);
            }
            a = a.wrapping_add(2 * STEP);
            b = b.wrapping_add(walk.b_step);
            // SAFETY: the caller's contract.
            unsafe { (walk.between)(walk.state) };
        }
        for (sums, to) in sums.iter().zip(out) {
            // SAFETY: room for the pair's sums.
            unsafe { store(to, walk.c_stride, sums) };
        }
        walk.a = walk.a.wrapping_add(walk.a_pair);
        walk.c = walk.c.wrapping_offset(walk.c_turns[0]);
        walk.c_turns.swap(0, 1);
    }
}

/// `tileloadd`.
///
/// # Safety
/// - 16 rows of 64 bytes, `stride` apart, can be read.
unsafe fn load(from: *const u8, stride: usize) -> Tile {
    // SAFETY: the caller's contract; any bytes are words.
    std::array::from_fn(|row| unsafe { from.wrapping_add(row * stride).cast::<[u32; 16]>().read_unaligned() })
}

/// `tilestored`, likewise.
///
/// # Safety
/// - 16 rows of 64 bytes, `stride` apart, can be written.
unsafe fn store(to: *mut u8, stride: usize, tile: &Tile) {
    for (row, words) in tile.iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe { to.wrapping_add(row * stride).cast::<[u32; 16]>().write_unaligned(*words) };
    }
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
            // Four of operands, four of sums.
            (Mnemonic::Tileloadd, 6),
            (Mnemonic::Tileloaddt1, 2),
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

    unsafe extern "C" fn count(state: *mut c_void) {
        // SAFETY: the tests pass a counter.
        unsafe { *state.cast::<usize>() += 1 };
    }

    /// Sums of a walk of two pairs and nine steps, which go to two places in turn and begin with what is there, and how often
    /// it called back. Operands have gaps between rows and steps.
    fn walked<T: Tiles>() -> (Vec<f32>, usize) {
        const STEPS: usize = 9;
        const STRIDE: usize = 2 * STEP * STEPS + 64;
        const APART: usize = 128;
        let mut a = vec![0u8; 2 * PAIR * STRIDE];
        for row in 0..2 * PAIR {
            for k in 0..STEP * STEPS {
                a[row * STRIDE + 2 * k..][..2].copy_from_slice(&f32_to_bf16(left(row, k)).to_le_bytes());
            }
        }
        // Rows of a tile are pairs of elements; the second tile's lie between the first's.
        let mut b = vec![0u8; STEPS * 16 * APART];
        for k in 0..STEP * STEPS {
            for out in 0..32 {
                let at = k / 2 * APART + out / 16 * 64 + out % 16 * 4 + k % 2 * 2;
                b[at..at + 2].copy_from_slice(&f32_to_bf16(right(k, out)).to_le_bytes());
            }
        }
        let mut c = vec![1f32; 2 * PAIR * 32];
        let mut calls = 0usize;
        let between = Between { call: count, state: std::ptr::from_mut(&mut calls).cast() };
        let (pair, before) = ((PAIR * SUMS_ROW) as isize, c.as_mut_ptr().wrapping_add(PAIR * 32));
        let sums = Sums { start: before.cast(), stride: SUMS_ROW, turns: [-pair, pair], add: true };
        let left = Left { start: a.as_ptr(), stride: STRIDE };
        let right = Right { start: b.as_ptr(), stride: APART, second: 64, step: 16 * APART };
        let mut walk = Walk::new(left, right, sums, STEPS, 2, between);
        // SAFETY: the callers checked the features; the vectors have the sizes that the walk says.
        unsafe { T::multiply(&mut walk) };
        (c, calls)
    }

    fn left(row: usize, k: usize) -> f32 {
        ((row * 3 + k) % 7) as f32 - 3.0
    }

    fn right(k: usize, out: usize) -> f32 {
        ((out + 2 * k) % 5) as f32 - 2.0
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

    fn check<T: Tiles>() {
        let (sums, calls) = walked::<T>();
        // Small whole numbers: every order of summing gives the same. The first pair's sums lie behind the second's.
        for (index, sum) in sums.iter().enumerate() {
            let (row, out) = ((index / 32 + PAIR) % (2 * PAIR), index % 32);
            let want = 1.0 + (0..STEP * 9).map(|k| left(row, k) * right(k, out)).sum::<f32>();
            assert_eq!(*sum, want, "row {row}, output {out}");
        }
        assert_eq!(calls, 2 * 9);
    }

    #[test]
    fn an_emulated_walk_sums_products() {
        if has(&[Feature::Avx512f, Feature::Fma]) {
            check::<Emulated>();
        }
    }

    #[test]
    fn the_hardware_walks_as_the_emulation_does() {
        if has(&[Feature::AmxTile, Feature::AmxBf16, Feature::Avx512f, Feature::Fma]) {
            check::<Hardware>();
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
