//! The number formats of GGUF: their block layouts, and exact decoding of a row.
//! Not here: the container, and which tensor has which format.
//!
//! The layouts, little-endian, `d`, `m`, `dmin` being 16-bit floats, and the value that each stands for:
//!
//! | type | block | bytes | content | value |
//! | --- | --- | --- | --- | --- |
//! | Q4_0 | 32 | 18 | d, 16 × two nibbles | d (q - 8) |
//! | Q4_1 | 32 | 20 | d, m, 16 × two nibbles | d q + m |
//! | Q8_0 | 32 | 34 | d, 32 × i8 | d q |
//! | Q4_K | 256 | 144 | d, dmin, 8 × (6-bit sc, 6-bit m) in 12 bytes, 128 × two nibbles | (d sc) q - (dmin m) |
//! | Q6_K | 256 | 210 | 128 × two low nibbles, 64 × four high 2-bit parts, 16 × i8 sc, d | (d sc) (q - 32) |
//!
//! In Q4_0 and Q4_1 byte j of a block holds element j (low nibble) and element j + 16 (high nibble).
//! Every product of a scale with its multiplier fits 24 bits, so the f32 scales and biases handed out are exact, and
//! only Q4_1 and Q4_K round at all: once, in the final addition, as the reference decoder does.

use half::{bf16, f16};

use crate::tensor::{DenseType, Encoding};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlockType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q4K,
    Q6K,
}

/// Elements per K-quant block.
const SUPER: usize = 256;

impl BlockType {
    pub(crate) const NAMES: &'static str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K";

    /// The type of a tensor table's number, or the name of what it is instead.
    pub(crate) fn from_id(id: u32) -> Result<BlockType, String> {
        let name = match id {
            0 => return Ok(BlockType::F32),
            1 => return Ok(BlockType::F16),
            2 => return Ok(BlockType::Q4_0),
            3 => return Ok(BlockType::Q4_1),
            8 => return Ok(BlockType::Q8_0),
            12 => return Ok(BlockType::Q4K),
            14 => return Ok(BlockType::Q6K),
            30 => return Ok(BlockType::BF16),
            6 => "Q5_0",
            7 => "Q5_1",
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
            13 => "Q5_K",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            20 => "IQ4_NL",
            21 => "IQ3_S",
            22 => "IQ2_S",
            23 => "IQ4_XS",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            34 => "TQ1_0",
            35 => "TQ2_0",
            39 => "MXFP4",
            40 => "NVFP4",
            41 => "Q1_0",
            _ => return Err(format!("unknown type {id}")),
        };
        Err(name.into())
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            BlockType::F32 => "F32",
            BlockType::F16 => "F16",
            BlockType::BF16 => "BF16",
            BlockType::Q8_0 => "Q8_0",
            BlockType::Q4_0 => "Q4_0",
            BlockType::Q4_1 => "Q4_1",
            BlockType::Q4K => "Q4_K",
            BlockType::Q6K => "Q6_K",
        }
    }

    /// Elements per block.
    pub(crate) fn block_len(self) -> usize {
        match self {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => 1,
            BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q4_1 => 32,
            BlockType::Q4K | BlockType::Q6K => SUPER,
        }
    }

    /// Bytes per block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            BlockType::F32 => 4,
            BlockType::F16 | BlockType::BF16 => 2,
            BlockType::Q8_0 => 34,
            BlockType::Q4_0 => 18,
            BlockType::Q4_1 => 20,
            BlockType::Q4K => 144,
            BlockType::Q6K => 210,
        }
    }

    pub(crate) fn encoding(self) -> Encoding {
        match self {
            BlockType::F32 => Encoding::Dense(DenseType::F32),
            BlockType::F16 => Encoding::Dense(DenseType::F16),
            BlockType::BF16 => Encoding::Dense(DenseType::BF16),
            BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4K => Encoding::Affine4 { group: 32 },
            BlockType::Q8_0 => Encoding::Int8 { group: 32 },
            BlockType::Q6K => Encoding::Int8 { group: 16 },
        }
    }

    /// The narrowest type that holds each scale and bias exactly. A Q4_0 bias is eight times its scale, which stays an F16
    /// as long as it does not overflow; [`BlockType::non_finite_at`] reports the rows where it does.
    pub(crate) fn parameter_type(self) -> DenseType {
        match self {
            BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q4_1 => DenseType::F16,
            BlockType::F32 | BlockType::F16 | BlockType::BF16 | BlockType::Q4K | BlockType::Q6K => DenseType::F32,
        }
    }

    /// The first column of a row that is NaN, infinite, or (Q4_0) in a block whose bias overflows F16.
    pub(crate) fn non_finite_at(self, row: &[u8], cols: usize) -> Option<usize> {
        let mut values = vec![0.0; cols];
        self.read_f32(row, &mut values);
        let not_finite = values.iter().position(|v| !v.is_finite());
        let overflows = |block: &[u8]| float16(block).abs() > f16::MAX.to_f32() / 8.0;
        let overflow = match self {
            BlockType::Q4_0 => row.chunks_exact(self.block_bytes()).position(overflows).map(|b| b * self.block_len()),
            _ => None,
        };
        not_finite.into_iter().chain(overflow).min()
    }

    /// Bytes of a row of `cols` elements; `cols` is a multiple of [`BlockType::block_len`].
    pub(crate) fn row_bytes(self, cols: usize) -> usize {
        cols / self.block_len() * self.block_bytes()
    }

    /// Decodes a row: `row` has `row_bytes(out.len())` bytes. Bit for bit what the format's reference decoder gives;
    /// this is `q * scale + bias` in f32, except that a Q4_0 zero keeps the sign of `d * 0`.
    pub(crate) fn read_f32(self, row: &[u8], out: &mut [f32]) {
        let blocks = row.chunks_exact(self.block_bytes()).zip(out.chunks_exact_mut(self.block_len()));
        match self {
            BlockType::F32 => {
                for (bytes, value) in row.chunks_exact(4).zip(out) {
                    *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            BlockType::F16 => {
                for (bytes, value) in row.chunks_exact(2).zip(out) {
                    *value = float16(bytes);
                }
            }
            BlockType::BF16 => {
                for (bytes, value) in row.chunks_exact(2).zip(out) {
                    *value = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                }
            }
            BlockType::Q4_0 => blocks.for_each(|(block, out)| {
                let d = float16(block);
                nibble_pairs(&block[2..], |i, q| out[i] = d * (f32::from(q) - 8.0));
            }),
            BlockType::Q4_1 => blocks.for_each(|(block, out)| {
                let (d, m) = (float16(block), float16(&block[2..]));
                nibble_pairs(&block[4..], |i, q| out[i] = d * f32::from(q) + m);
            }),
            BlockType::Q8_0 => blocks.for_each(|(block, out)| {
                let d = float16(block);
                for (value, &q) in out.iter_mut().zip(&block[2..]) {
                    *value = d * f32::from(q as i8);
                }
            }),
            BlockType::Q4K => blocks.for_each(|(block, out)| {
                let (scales, biases) = scales_q4k(block);
                codes_q4k(block, |i, q| out[i] = scales[i / 32] * f32::from(q) + biases[i / 32]);
            }),
            BlockType::Q6K => blocks.for_each(|(block, out)| {
                let scales = scales_q6k(block);
                codes_q6k(block, |i, q| out[i] = scales[i / 16] * f32::from(q));
            }),
        }
    }

    /// The 16-bit patterns of an F16 or BF16 row.
    pub(crate) fn read_raw16(self, row: &[u8], out: &mut [u16]) {
        for (bytes, value) in row.chunks_exact(2).zip(out) {
            *value = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
    }

    /// The codes of a coded row, one per byte, and each group's scale and bias (see [`Encoding`]).
    pub(crate) fn read_codes(self, row: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        let blocks = row.chunks_exact(self.block_bytes()).zip(codes.chunks_exact_mut(self.block_len())).enumerate();
        match self {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => unreachable!("dense rows have no codes"),
            BlockType::Q4_0 => blocks.for_each(|(b, (block, out))| {
                let d = float16(block);
                scales[b] = d;
                biases[b] = -8.0 * d;
                nibble_pairs(&block[2..], |i, q| out[i] = q);
            }),
            BlockType::Q4_1 => blocks.for_each(|(b, (block, out))| {
                scales[b] = float16(block);
                biases[b] = float16(&block[2..]);
                nibble_pairs(&block[4..], |i, q| out[i] = q);
            }),
            BlockType::Q8_0 => blocks.for_each(|(b, (block, out))| {
                scales[b] = float16(block);
                out.copy_from_slice(&block[2..]);
            }),
            BlockType::Q4K => blocks.for_each(|(b, (block, out))| {
                let (s, m) = scales_q4k(block);
                scales[b * 8..b * 8 + 8].copy_from_slice(&s);
                biases[b * 8..b * 8 + 8].copy_from_slice(&m);
                codes_q4k(block, |i, q| out[i] = q);
            }),
            BlockType::Q6K => blocks.for_each(|(b, (block, out))| {
                scales[b * 16..b * 16 + 16].copy_from_slice(&scales_q6k(block));
                codes_q6k(block, |i, q| out[i] = q as u8);
            }),
        }
    }
}

fn float16(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Low nibbles are the first half of the elements, high nibbles the second.
fn nibble_pairs(bytes: &[u8], mut each: impl FnMut(usize, u8)) {
    for (i, &byte) in bytes.iter().enumerate() {
        each(i, byte & 15);
        each(i + bytes.len(), byte >> 4);
    }
}

/// The eight scales `d * sc` and biases `-(dmin * m)` of a Q4_K block.
fn scales_q4k(block: &[u8]) -> ([f32; 8], [f32; 8]) {
    let (d, dmin) = (float16(block), float16(&block[2..]));
    let packed = &block[4..16];
    let (mut scales, mut biases) = ([0.0; 8], [0.0; 8]);
    for i in 0..4 {
        // Groups 0..4: six bits in one byte. Groups 4..8: four bits from bytes 8..12, the top two from bytes 0..8.
        let low = (packed[i] & 63, packed[i + 4] & 63);
        let both = packed[i + 8];
        let high = ((both & 15) | ((packed[i] >> 6) << 4), (both >> 4) | ((packed[i + 4] >> 6) << 4));
        for (g, (sc, m)) in [(i, low), (i + 4, high)] {
            scales[g] = d * f32::from(sc);
            biases[g] = -(dmin * f32::from(m));
        }
    }
    (scales, biases)
}

/// Each 32 bytes hold 64 elements: the low nibbles are one group of 32, the high nibbles the next.
fn codes_q4k(block: &[u8], mut each: impl FnMut(usize, u8)) {
    for (j, bytes) in block[16..].chunks_exact(32).enumerate() {
        nibble_pairs(bytes, |i, q| each(j * 64 + i, q));
    }
}

/// The sixteen scales `d * sc` of a Q6_K block.
fn scales_q6k(block: &[u8]) -> [f32; 16] {
    let d = float16(&block[208..]);
    std::array::from_fn(|i| d * f32::from(block[192 + i] as i8))
}

/// Each half block of 128 elements: 64 bytes of low nibbles (byte i: elements i and i + 64) and 32 bytes of high parts
/// (byte i: elements i, i + 32, i + 64, i + 96, lowest bits first). The code is the six bits minus 32.
fn codes_q6k(block: &[u8], mut each: impl FnMut(usize, i8)) {
    for h in 0..2 {
        let low = &block[h * 64..h * 64 + 64];
        let high = &block[128 + h * 32..128 + h * 32 + 32];
        for i in 0..128 {
            let l = (low[i % 64] >> (i / 64 * 4)) & 15;
            let u = (high[i % 32] >> (i / 32 * 2)) & 3;
            each(h * 128 + i, (l | (u << 4)) as i8 - 32);
        }
    }
}
