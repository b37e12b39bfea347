//! The kernels without integer tricks: packed weights as 16 lanes of f32, one column after another, in one body per kernel
//! that is compiled for each instruction set. Here: decoding, the vector types, sums over a panel. Not here: the bodies.

#![allow(
    unsafe_code,
    reason = "AVX loads and arithmetic behind a vector type; scratch as rows of lanes; a worker's own outputs"
)]

use super::Operands;
use crate::Invocation;
use crate::bits::{bf16_to_f32, f32_to_bf16};
use crate::operator::CallShape;
use crate::operators::shapes::flat_mut;
use crate::weight::{ElementType, LANES, LINE, WeightFormat};

/// One number per row of a row block.
pub(super) type Lanes = [f32; LANES];

/// A line of a packed weight.
pub(super) type Line = [u8; LINE];

/// Sixteen f32 in registers. A vector type is named only by bodies compiled for its instruction set.
pub(super) trait Vector: Copy {
    /// Whether its instructions include fused multiply-adds.
    const FMA: bool;
    fn splat(value: f32) -> Self;
    fn load(lanes: &Lanes) -> Self;
    /// Four bits of each word of a line, from bit `shift`, as a number.
    fn nibbles(line: &Line, shift: i32) -> Self;
    /// Byte `byte` of each word of a line, as a signed number.
    fn signed_bytes(line: &Line, byte: i32) -> Self;
    /// The lower (0) or upper (1) half of each word of a line, as bfloat16.
    fn bf16_halves(line: &Line, upper: bool) -> Self;
    /// `self + a * b`.
    fn add_product(self, a: Self, b: Self) -> Self;
    fn lanes(self) -> Lanes;
}

/// Plain numbers.
#[derive(Clone, Copy)]
pub(super) struct Plain(Lanes);

impl Vector for Plain {
    const FMA: bool = false;

    #[inline(always)]
    fn splat(value: f32) -> Plain {
        Plain([value; LANES])
    }

    #[inline(always)]
    fn load(lanes: &Lanes) -> Plain {
        Plain(*lanes)
    }

    #[inline(always)]
    fn nibbles(line: &Line, shift: i32) -> Plain {
        Plain(words(line).map(|word| ((word >> shift) & 15) as i32 as f32))
    }

    #[inline(always)]
    fn signed_bytes(line: &Line, byte: i32) -> Plain {
        Plain(words(line).map(|word| ((word << (24 - 8 * byte)) as i32 >> 24) as f32))
    }

    #[inline(always)]
    fn bf16_halves(line: &Line, upper: bool) -> Plain {
        Plain(words(line).map(|word| f32::from_bits(if upper { word & 0xffff_0000 } else { word << 16 })))
    }

    #[inline(always)]
    fn add_product(self, a: Plain, b: Plain) -> Plain {
        let mut sums = self.0;
        for lane in 0..LANES {
            sums[lane] += a.0[lane] * b.0[lane];
        }
        Plain(sums)
    }

    #[inline(always)]
    fn lanes(self) -> Lanes {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Lanes, Line, Vector};
    use std::arch::x86_64::*;

    /// Two vectors of eight.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(__m256, __m256);

    impl Vector for Avx2 {
        const FMA: bool = true;

        #[inline(always)]
        fn splat(value: f32) -> Avx2 {
            // SAFETY: only bodies compiled for AVX2 and FMA, which `bind` checked, name this type.
            unsafe { Avx2(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
        }

        #[inline(always)]
        fn load(lanes: &Lanes) -> Avx2 {
            // SAFETY: as above; both halves lie in the array.
            unsafe { Avx2(_mm256_loadu_ps(lanes.as_ptr()), _mm256_loadu_ps(lanes.as_ptr().add(8))) }
        }

        #[inline(always)]
        fn nibbles(line: &Line, shift: i32) -> Avx2 {
            let part = |words: __m256i| {
                // SAFETY: as above.
                unsafe {
                    let shifted = _mm256_srl_epi32(words, _mm_cvtsi32_si128(shift));
                    _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)))
                }
            };
            let (low, high) = words(line);
            Avx2(part(low), part(high))
        }

        #[inline(always)]
        fn signed_bytes(line: &Line, byte: i32) -> Avx2 {
            let part = |words: __m256i| {
                // SAFETY: as above.
                unsafe {
                    let top = _mm256_sll_epi32(words, _mm_cvtsi32_si128(24 - 8 * byte));
                    _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(top))
                }
            };
            let (low, high) = words(line);
            Avx2(part(low), part(high))
        }

        #[inline(always)]
        fn bf16_halves(line: &Line, upper: bool) -> Avx2 {
            let part = |words: __m256i| {
                // SAFETY: as above.
                unsafe {
                    let upper_bits = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                    let bits = if upper { _mm256_and_si256(words, upper_bits) } else { _mm256_slli_epi32::<16>(words) };
                    _mm256_castsi256_ps(bits)
                }
            };
            let (low, high) = words(line);
            Avx2(part(low), part(high))
        }

        #[inline(always)]
        fn add_product(self, a: Avx2, b: Avx2) -> Avx2 {
            // SAFETY: as above.
            unsafe { Avx2(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1)) }
        }

        #[inline(always)]
        fn lanes(self) -> Lanes {
            // SAFETY: 64 bytes of numbers either way.
            unsafe { std::mem::transmute::<Avx2, Lanes>(self) }
        }
    }

    /// The words of a line, in two halves.
    #[inline(always)]
    fn words(line: &Line) -> (__m256i, __m256i) {
        // SAFETY: called for `Avx2` only (see there); both halves lie in the line.
        unsafe { (_mm256_loadu_si256(line.as_ptr().cast()), _mm256_loadu_si256(line[32..].as_ptr().cast())) }
    }

    /// One vector of sixteen.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(__m512);

    impl Vector for Avx512 {
        const FMA: bool = true;

        #[inline(always)]
        fn splat(value: f32) -> Avx512 {
            // SAFETY: only bodies compiled for AVX-512, which `bind` checked, name this type.
            unsafe { Avx512(_mm512_set1_ps(value)) }
        }

        #[inline(always)]
        fn load(lanes: &Lanes) -> Avx512 {
            // SAFETY: as above.
            unsafe { Avx512(_mm512_loadu_ps(lanes.as_ptr())) }
        }

        #[inline(always)]
        fn nibbles(line: &Line, shift: i32) -> Avx512 {
            // SAFETY: as above; a line is 64 bytes.
            unsafe {
                let words = _mm512_loadu_si512(line.as_ptr().cast());
                let shifted = _mm512_srl_epi32(words, _mm_cvtsi32_si128(shift));
                Avx512(_mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(15))))
            }
        }

        #[inline(always)]
        fn signed_bytes(line: &Line, byte: i32) -> Avx512 {
            // SAFETY: as above; a line is 64 bytes.
            unsafe {
                let words = _mm512_loadu_si512(line.as_ptr().cast());
                let top = _mm512_sll_epi32(words, _mm_cvtsi32_si128(24 - 8 * byte));
                Avx512(_mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top)))
            }
        }

        #[inline(always)]
        fn bf16_halves(line: &Line, upper: bool) -> Avx512 {
            // SAFETY: as above; a line is 64 bytes.
            unsafe {
                let words = _mm512_loadu_si512(line.as_ptr().cast());
                let upper_bits = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                let bits = if upper { _mm512_and_si512(words, upper_bits) } else { _mm512_slli_epi32::<16>(words) };
                Avx512(_mm512_castsi512_ps(bits))
            }
        }

        #[inline(always)]
        fn add_product(self, a: Avx512, b: Avx512) -> Avx512 {
            // SAFETY: as above.
            unsafe { Avx512(_mm512_fmadd_ps(a.0, b.0, self.0)) }
        }

        #[inline(always)]
        fn lanes(self) -> Lanes {
            // SAFETY: 64 bytes of numbers either way.
            unsafe { std::mem::transmute::<Avx512, Lanes>(self) }
        }
    }
}

/// The bytes of row block `block`.
#[inline(always)]
pub(super) fn row_block<'a>(operands: &Operands<'a>, block: usize) -> &'a [u8] {
    let bytes = operands.w.format.row_block_bytes(operands.w.cols);
    &operands.w.bytes[block * bytes..(block + 1) * bytes]
}

/// The blocks of a row block, one per group (for bf16, per two columns).
#[inline(always)]
pub(super) fn groups(format: WeightFormat, row_block: &[u8]) -> std::slice::ChunksExact<'_, u8> {
    row_block.chunks_exact(format.block_lines() * LINE)
}

#[inline(always)]
fn words(line: &Line) -> [u32; LANES] {
    let mut words = [0; LANES];
    for (word, bytes) in words.iter_mut().zip(line.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

/// Scales and biases (zero for Int8) of a group's block.
#[inline(always)]
pub(super) fn header(format: WeightFormat, block: &[u8]) -> (Lanes, Lanes) {
    let (lines, _) = block.as_chunks::<LINE>();
    let first = words(&lines[0]);
    match format {
        WeightFormat::Affine4 { parameters: ElementType::BF16, .. } => {
            (first.map(|word| f32::from_bits(word & 0xffff_0000)), first.map(|word| f32::from_bits(word << 16)))
        }
        WeightFormat::Affine4 { parameters: ElementType::F16, .. } => {
            (first.map(|word| finite_f16(word >> 16)), first.map(|word| finite_f16(word & 0xffff)))
        }
        WeightFormat::Affine4 { parameters: ElementType::F32, .. } => {
            (first.map(f32::from_bits), words(&lines[1]).map(f32::from_bits))
        }
        _ => (first.map(f32::from_bits), [0.0; LANES]),
    }
}

/// The value of f16 bits that are neither infinite nor NaN (packing refuses those), without a branch.
#[inline(always)]
fn finite_f16(bits: u32) -> f32 {
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}

/// Writes the codes of a group's block as numbers, `(columns of the group, 16)`; for bf16, the weights of two columns.
#[inline(always)]
pub(super) fn decode<V: Vector>(format: WeightFormat, block: &[u8], columns: &mut [Lanes]) {
    let (lines, _) = block[format.header_lines() * LINE..].as_chunks::<LINE>();
    match format {
        WeightFormat::Affine4 { group, .. } => {
            let (low, high) = columns.split_at_mut(group / 2);
            for ((line, low), high) in lines.iter().zip(low.chunks_exact_mut(4)).zip(high.chunks_exact_mut(4)) {
                for byte in 0..4 {
                    low[byte] = V::nibbles(line, 8 * byte as i32).lanes();
                    high[byte] = V::nibbles(line, 8 * byte as i32 + 4).lanes();
                }
            }
        }
        WeightFormat::Int8 { .. } => {
            for (line, columns) in lines.iter().zip(columns.chunks_exact_mut(4)) {
                for byte in 0..4 {
                    columns[byte] = V::signed_bytes(line, byte as i32).lanes();
                }
            }
        }
        WeightFormat::Bf16 => {
            for (line, columns) in lines.iter().zip(columns.chunks_exact_mut(2)) {
                columns[0] = V::bf16_halves(line, false).lanes();
                columns[1] = V::bf16_halves(line, true).lanes();
            }
        }
        WeightFormat::F32 => unreachable!("plain f32 matrices have no lanes; `supports` refuses them"),
    }
}

/// `Σ panel[k] * x[r][k]` for `ROWS` rows of x over a panel `(k, 16)`.
#[inline(always)]
pub(super) fn products<V: Vector, const ROWS: usize>(panel: &[Lanes], x: [&[u16]; ROWS]) -> [V; ROWS] {
    let x = x.map(|x| &x[..panel.len()]);
    let mut sums = [V::splat(0.0); ROWS];
    if ROWS == 1 {
        return [product(panel, x[0]); ROWS];
    }
    for (column, weights) in panel.iter().enumerate() {
        let weights = V::load(weights);
        for row in 0..ROWS {
            sums[row] = sums[row].add_product(weights, V::splat(bf16_to_f32(x[row][column])));
        }
    }
    sums
}

/// One row of x: four partial sums, so that no addition waits for the one before.
#[inline(always)]
fn product<V: Vector>(panel: &[Lanes], x: &[u16]) -> V {
    let mut parts = [V::splat(0.0); 4];
    let (fours, x_fours) = (panel.chunks_exact(4), x.chunks_exact(4));
    for (weights, x) in fours.remainder().iter().zip(x_fours.remainder()) {
        parts[0] = parts[0].add_product(V::load(weights), V::splat(bf16_to_f32(*x)));
    }
    for (weights, x) in fours.zip(x_fours) {
        for n in 0..4 {
            parts[n] = parts[n].add_product(V::load(&weights[n]), V::splat(bf16_to_f32(x[n])));
        }
    }
    let one = V::splat(1.0);
    parts[0].add_product(parts[1], one).add_product(parts[2].add_product(parts[3], one), one)
}

/// `ROWS` rows of x from `first`; beyond the last row, the last one again.
#[inline(always)]
pub(super) fn rows_from<'a, const ROWS: usize>(operands: &Operands<'a>, first: usize) -> [&'a [u16]; ROWS] {
    let mut rows = [operands.x.bf16(operands.x.rows - 1); ROWS];
    for (row, x) in rows.iter_mut().enumerate().take(operands.x.rows - first) {
        *x = operands.x.bf16(first + row);
    }
    rows
}

/// Writes 16 sums of one row, plus the bias, to the outputs of row block `block` that exist; the block is the worker's own.
#[inline(always)]
pub(super) fn store(operands: &Operands<'_>, row: usize, block: usize, sums: &Lanes) {
    let first = block * LANES;
    let count = LANES.min(operands.w.rows - first);
    let mut sums = *sums;
    if let Some(bias) = operands.bias {
        for (sum, bias) in sums.iter_mut().zip(&bias[first..first + count]) {
            *sum += bias;
        }
    }
    let at = row * operands.y.width + first;
    // SAFETY: row blocks are shared out, so these outputs are this worker's, and no other slice of them is alive.
    let out = unsafe { flat_mut(&operands.y, at..at + count) };
    out.copy_from_slice(&sums.map(f32_to_bf16)[..count]);
}

/// Scratch for the decoded columns of one group.
pub(super) fn group_bytes(shape: &CallShape) -> usize {
    shape.weights[0].format.group() * size_of::<Lanes>()
}

/// The worker's scratch as decoded columns.
///
/// # Safety
/// - At most one slice of the scratch is alive at a time.
#[inline(always)]
#[expect(clippy::mut_from_ref, reason = "scratch is private to the worker; the contract forbids two slices")]
pub(super) unsafe fn scratch_columns<'a>(i: &'a Invocation<'_>, columns: usize) -> &'a mut [Lanes] {
    // SAFETY: the caller's contract; every bit pattern is a valid f32, and align_to checks alignment.
    let (head, lanes, _) = unsafe { i.scratch().align_to_mut::<Lanes>() };
    assert!(head.is_empty(), "scratch is aligned");
    &mut lanes[..columns]
}

/// Declares `run_plain`, `run_avx2` and `run_avx512f`: one body with so many rows of sums in registers, compiled for each.
macro_rules! compiled {
    ($body:ident, $plain:literal, $avx2:literal, $avx512:literal) => {
        fn run_plain(i: &crate::Invocation<'_>) {
            $body::<crate::operators::linear::lanes::Plain, $plain>(i);
        }

        #[cfg(target_arch = "x86_64")]
        fn run_avx2(i: &crate::Invocation<'_>) {
            #[target_feature(enable = "avx2,fma")]
            fn compiled(i: &crate::Invocation<'_>) {
                $body::<crate::operators::linear::lanes::Avx2, $avx2>(i);
            }
            // SAFETY: `bind` checked that the processor has the features that the kernel names.
            unsafe { compiled(i) }
        }

        #[cfg(target_arch = "x86_64")]
        fn run_avx512f(i: &crate::Invocation<'_>) {
            #[target_feature(enable = "avx512f")]
            fn compiled(i: &crate::Invocation<'_>) {
                $body::<crate::operators::linear::lanes::Avx512, $avx512>(i);
            }
            // SAFETY: as above.
            unsafe { compiled(i) }
        }
    };
}
pub(super) use compiled;

/// What `run_avx2` needs.
#[cfg(target_arch = "x86_64")]
pub(super) const AVX2: &[crate::Feature] = &[crate::Feature::Avx2, crate::Feature::Fma];

/// What `run_avx512f` needs.
#[cfg(target_arch = "x86_64")]
pub(super) const AVX512F: &[crate::Feature] = &[crate::Feature::Avx512f];
