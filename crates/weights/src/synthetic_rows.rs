//! One row of a synthetic tensor from (seed, tensor, row): counter-based, so any row in any order on any thread.
//! Not here: which tensor gets which pattern and width, and why (`synthetic`).
//!
//! Only integers and correctly rounded arithmetic (add, multiply, square root) are used, so every machine makes the same
//! bits. A weight is `(2q - 15) * m * 2^e` with a 4-bit m, which makes scale and bias exact in BF16.

use std::sync::Arc;

use crate::synthetic::key;
use crate::tensor::RowSource;
use crate::{Config, DenseType};

/// Columns per scale.
pub(crate) const GROUP: usize = 128;
/// Columns that one 64-bit word fills, and the step from a token to its successor.
const BLOCK: usize = 16;
/// Standard deviation of `q - 7.5` for a uniform 4-bit q: sqrt(255 / 12).
const CODE_DEVIATION: f64 = 4.609_772_228_646_444;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Flips a stream from codes to signs and scales.
const SCALE_STREAM: u64 = 0x5ca1_e5ca_1e5c_a1e5;

/// A bijection of 64-bit words without visible structure (the finalizer of splitmix64).
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The 16 codes of a block, as a word.
fn word(row_key: u64, block: usize) -> u64 {
    mix(row_key.wrapping_add((block as u64 + 1).wrapping_mul(GOLDEN)))
}

fn row_key(key: u64, row: usize) -> u64 {
    mix(key ^ (row as u64).wrapping_mul(GOLDEN))
}

/// Spreads a word over 16 codes: low nibbles of its bytes first, then the high ones.
fn spread(word: u64, codes: &mut [u8]) {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    codes[..8].copy_from_slice(&(word & LOW).to_le_bytes());
    codes[8..16].copy_from_slice(&((word >> 4) & LOW).to_le_bytes());
}

/// Code `at` of 16, as [`spread`] places it.
fn code(word: u64, at: usize) -> u8 {
    (word >> (8 * (at % 8) + 4 * (at / 8))) as u8 & 15
}

/// The sizes of a group's scales: `m * 2^exponent`, m from 8 to 15.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleRule {
    m: u32,
    exponent: i32,
    /// Half of the groups use m + 1.
    varied: bool,
}

impl ScaleRule {
    /// Every group has the scale nearest to what gives this standard deviation.
    pub(crate) fn fixed(deviation: f64) -> ScaleRule {
        let (m, exponent) = four_bits(deviation / CODE_DEVIATION);
        ScaleRule { m, exponent, varied: false }
    }

    /// Scales differ from group to group, around this standard deviation.
    pub(crate) fn varied(deviation: f64) -> ScaleRule {
        let (m, exponent) = four_bits(deviation / CODE_DEVIATION);
        ScaleRule { m: m.min(14), exponent, varied: true }
    }

    /// The signed scale of one group; the sign comes from the same stream.
    fn scale(self, row_key: u64, group: usize) -> f32 {
        let bits = mix(row_key ^ SCALE_STREAM.wrapping_add(group as u64));
        let m = self.m + u32::from(self.varied && bits & 2 != 0);
        let size = m as f32 * power_of_two(self.exponent);
        if bits & 1 == 0 { size } else { -size }
    }
}

/// The nearest `m * 2^e` with m from 8 to 15.
fn four_bits(value: f64) -> (u32, i32) {
    let (mut m, mut exponent) = (value, 0);
    while m < 8.0 {
        m *= 2.0;
        exponent -= 1;
    }
    while m >= 15.5 {
        m /= 2.0;
        exponent += 1;
    }
    ((m + 0.5) as u32, exponent)
}

fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// What the rows of a matrix hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pattern {
    Random,
    /// Embedding rows in orbits, with the anchor columns.
    Tokens,
    /// Layer 0: answers to the anchor in the fast-turning pairs.
    Query,
    /// The same, turned by the delay.
    Key,
    /// Layer 0: the transposed value projection, moved on by one block.
    Successor,
}

/// What the special patterns share.
pub(crate) struct Circuit {
    anchor_key: u64,
    value_key: u64,
    value_rule: ScaleRule,
    /// Columns from here on are the anchor.
    anchor_start: usize,
    hidden: usize,
    head_dim: usize,
    /// Query heads per key-value head.
    share: usize,
    /// Cosine and sine of the delay's angle for each of the fast-turning pairs.
    turns: Vec<(f64, f64)>,
}

impl Circuit {
    pub(crate) fn new(config: &Config, seed: u64, delay: u32) -> Circuit {
        let hidden = config.hidden_size;
        // head_dim / 2 is a power of two, so its root is a chain of square roots, which are the same everywhere.
        let mut step = config.rope_theta;
        let mut pairs = config.head_dim / 2;
        while pairs > 1 {
            step = step.sqrt();
            pairs /= 2;
        }
        let mut angle = f64::from(delay);
        let turns = (0..(config.head_dim / 16).max(6))
            .map(|_| {
                let turn = cos_sin(angle);
                angle /= step;
                turn
            })
            .collect();
        Circuit {
            anchor_key: key(seed, "anchor"),
            value_key: key(seed, "model.layers.0.self_attn.v_proj.weight"),
            value_rule: ScaleRule::fixed(1.0 / (hidden as f64).sqrt()),
            anchor_start: hidden - GROUP.min(hidden / 8),
            hidden,
            head_dim: config.head_dim,
            share: config.heads / config.kv_heads,
            turns,
        }
    }

    /// The sign of an anchor column.
    fn positive(&self, col: usize) -> bool {
        mix(self.anchor_key.wrapping_add(col as u64)) & 1 == 0
    }

    /// How strongly a query or key row of a head answers to the anchor: None for rows that do not.
    fn answer(&self, row: usize, pattern: Pattern) -> Option<f64> {
        let (half, dim) = (self.head_dim / 2, row % self.head_dim);
        let (pair, second) = (dim % half, dim >= half);
        let (cos, sin) = *self.turns.get(pair)?;
        match (pattern, second) {
            (Pattern::Query, false) => Some(1.0),
            (Pattern::Key, false) => Some(cos),
            (Pattern::Key, true) => Some(sin),
            _ => None,
        }
    }

    /// Scale of the anchor's group in a row that answers with this strength: about six standard deviations of the rest.
    fn answer_scale(&self, strength: f64) -> f32 {
        // Anchor inputs are 7.5 / CODE_DEVIATION = 1.63 wide after normalization, anchor weights 7.5 scales.
        let columns = (self.hidden - self.anchor_start) as f64;
        let size = (strength.abs() * 6.0 / (columns * 7.5 * 7.5 / CODE_DEVIATION)).max(1e-6);
        let (m, exponent) = four_bits(size);
        m as f32 * power_of_two(exponent)
    }
}

/// Cosine and sine by their series: enough terms for |x| < 4, and the same bits on every machine.
fn cos_sin(x: f64) -> (f64, f64) {
    let (mut cos, mut sin, mut term) = (0.0, 0.0, 1.0);
    for n in 0..32 {
        match n % 4 {
            0 => cos += term,
            1 => sin += term,
            2 => cos -= term,
            _ => sin -= term,
        }
        term *= x / f64::from(n + 1);
    }
    (cos, sin)
}

/// Rows of a coded matrix.
pub(crate) struct CodeRows {
    pub(crate) key: u64,
    pub(crate) cols: usize,
    pub(crate) rule: ScaleRule,
    pub(crate) pattern: Pattern,
    pub(crate) circuit: Arc<Circuit>,
}

impl CodeRows {
    fn fill_random(row_key: u64, codes: &mut [u8]) {
        for (block, codes) in codes.chunks_exact_mut(BLOCK).enumerate() {
            spread(word(row_key, block), codes);
        }
    }

    /// Token `row`: block j is block j - k of its orbit's base. Where a scale is negative the codes are mirrored, so the
    /// value does not depend on the sign.
    fn fill_token(&self, row: usize, codes: &mut [u8], scales: &[f32]) {
        let circuit = &self.circuit;
        let moving = circuit.anchor_start / BLOCK;
        let (orbit, turn) = (row / moving, row % moving);
        let base = row_key(self.key ^ 1, orbit);
        let (head, anchor) = codes.split_at_mut(circuit.anchor_start);
        for (block, codes) in head.chunks_exact_mut(BLOCK).enumerate() {
            let mirror = if scales[block * BLOCK / GROUP] < 0.0 { u64::MAX } else { 0 };
            spread(word(base, (block + moving - turn) % moving) ^ mirror, codes);
        }
        for (at, code) in anchor.iter_mut().enumerate() {
            let col = circuit.anchor_start + at;
            *code = if circuit.positive(col) == (scales[col / GROUP] > 0.0) { 15 } else { 0 };
        }
    }

    /// A query or key row: random, but the anchor's group answers to the anchor.
    fn fill_answer(&self, row: usize, codes: &mut [u8], scales: &mut [f32]) {
        let circuit = &self.circuit;
        Self::fill_random(row_key(self.key, row), codes);
        let Some(strength) = circuit.answer(row, self.pattern) else { return };
        let group = circuit.anchor_start / GROUP;
        let negative = scales[group] < 0.0;
        let size = circuit.answer_scale(strength);
        scales[group] = if negative { -size } else { size };
        for col in group * GROUP..codes.len() {
            codes[col] = if col < circuit.anchor_start {
                // Beside the anchor: as near to zero as codes allow.
                7 + (codes[col] & 1)
            } else if circuit.positive(col) == ((strength < 0.0) == negative) {
                15
            } else {
                0
            };
        }
    }

    /// Output row i holds column i - 16 of the value projection, for every query head that shares its rows.
    fn fill_successor(&self, row: usize, codes: &mut [u8], scales: &[f32]) {
        let circuit = &self.circuit;
        if row >= circuit.anchor_start {
            return Self::fill_random(row_key(self.key, row), codes);
        }
        let col = (row + circuit.anchor_start - BLOCK) % circuit.anchor_start;
        for (at, out) in codes.iter_mut().enumerate() {
            let (head, dim) = (at / circuit.head_dim, at % circuit.head_dim);
            let value_row = row_key(circuit.value_key, head / circuit.share * circuit.head_dim + dim);
            let value = code(word(value_row, col / BLOCK), col % BLOCK);
            let value_negative = circuit.value_rule.scale(value_row, col / GROUP) < 0.0;
            *out = if value_negative == (scales[at / GROUP] < 0.0) { value } else { 15 - value };
        }
    }
}

impl RowSource for CodeRows {
    fn parameter_type(&self) -> DenseType {
        DenseType::BF16
    }

    fn read_f32(&self, row: usize, out: &mut [f32]) {
        let groups = self.cols / GROUP;
        let (mut codes, mut scales, mut biases) = (vec![0; self.cols], vec![0.0; groups], vec![0.0; groups]);
        self.read_codes(row, &mut codes, &mut scales, &mut biases);
        for (at, value) in out.iter_mut().enumerate() {
            *value = f32::from(codes[at]) * scales[at / GROUP] + biases[at / GROUP];
        }
    }

    fn read_codes(&self, row: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        let row_key = row_key(self.key, row);
        for (group, scale) in scales.iter_mut().enumerate() {
            *scale = self.rule.scale(row_key, group);
        }
        match self.pattern {
            Pattern::Random => Self::fill_random(row_key, codes),
            Pattern::Tokens => self.fill_token(row, codes, scales),
            Pattern::Query | Pattern::Key => self.fill_answer(row, codes, scales),
            Pattern::Successor => self.fill_successor(row, codes, scales),
        }
        for (bias, scale) in biases.iter_mut().zip(scales) {
            *bias = -7.5 * *scale;
        }
    }

    fn non_finite_at(&self, _row: usize, _cols: usize) -> Option<usize> {
        None
    }
}

/// A norm vector near 1 (or 2): `1 - 8/256` to `1 + 8/128`, exact in BF16.
pub(crate) struct NormRows {
    pub(crate) key: u64,
    pub(crate) double: bool,
}

impl RowSource for NormRows {
    fn read_f32(&self, row: usize, out: &mut [f32]) {
        let mut bits = vec![0; out.len()];
        self.read_raw16(row, &mut bits);
        for (value, bits) in out.iter_mut().zip(bits) {
            *value = f32::from_bits(u32::from(bits) << 16);
        }
    }

    fn read_raw16(&self, _row: usize, out: &mut [u16]) {
        let one = if self.double { 0x4000 } else { 0x3f80 };
        for (col, bits) in out.iter_mut().enumerate() {
            *bits = one - 8 + (mix(self.key.wrapping_add(col as u64)) % 17) as u16;
        }
    }

    fn non_finite_at(&self, _row: usize, _cols: usize) -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::synthetic;
    use half::bf16;

    #[test]
    fn series_and_nearest_four_bits() {
        for i in 0..40 {
            let x = f64::from(i) * 0.1;
            let (cos, sin) = cos_sin(x);
            assert!((cos - x.cos()).abs() < 1e-12 && (sin - x.sin()).abs() < 1e-12, "{x}");
        }
        for value in [1e-6, 0.003, 0.7, 1.0, 15.4, 15.6, 1000.0] {
            let (m, e) = four_bits(value);
            assert!((8..=15).contains(&m));
            let made = f64::from(m) * 2f64.powi(e);
            assert!((made / value - 1.0).abs() < 0.07, "{value} {made}");
        }
    }

    #[test]
    fn every_parameter_is_exact_in_bf16_and_both_signs_occur() {
        let parts = synthetic::open("tiny", 7).unwrap();
        let (mut positive, mut negative) = (0, 0);
        for tensor in parts.tensors.values().filter(|t| t.rows() > 1) {
            let groups = tensor.cols() / GROUP;
            let (mut codes, mut scales, mut biases) = (vec![0; tensor.cols()], vec![0.0; groups], vec![0.0; groups]);
            let mut values = vec![0.0; tensor.cols()];
            for row in 0..tensor.rows() {
                tensor.read_codes(row, &mut codes, &mut scales, &mut biases);
                tensor.read_f32(row, &mut values);
                assert!(codes.iter().all(|c| *c < 16));
                for v in scales.iter().chain(&biases) {
                    assert_eq!(bf16::from_f32(*v).to_f32(), *v, "{tensor:?}");
                }
                for (at, value) in values.iter().enumerate() {
                    let exact = f64::from(codes[at]) * f64::from(scales[at / GROUP]) + f64::from(biases[at / GROUP]);
                    assert_eq!(f64::from(*value), exact);
                }
                positive += scales.iter().filter(|s| **s > 0.0).count();
                negative += scales.iter().filter(|s| **s < 0.0).count();
            }
        }
        assert!(positive > 1000 && negative > 1000, "{positive} {negative}");
    }

    #[test]
    fn the_successor_is_the_token_moved_on_by_a_block() {
        let parts = synthetic::open("qwen3-0.6b", 3).unwrap();
        let embedding = &parts.tensors["model.embed_tokens.weight"];
        let row = |at: usize| {
            let mut values = vec![0.0; embedding.cols()];
            embedding.read_f32(at, &mut values);
            values
        };
        let (moving, first) = (1024 - 128, 56 * 1000);
        for at in [first, first + 7, first + 54] {
            let (mut moved, next) = (row(at), row(at + 1));
            moved[..moving].rotate_right(BLOCK);
            assert_eq!(moved, next);
        }
        // The orbit closes, and another orbit shares nothing but the anchor.
        let (mut last, other) = (row(first + 55), row(first + 56));
        last[..moving].rotate_right(BLOCK);
        assert_eq!(last, row(first));
        let dot: f32 = last[..moving].iter().zip(&other).map(|(a, b)| a * b).sum();
        let own: f32 = last[..moving].iter().map(|a| a * a).sum();
        assert!(dot.abs() < 0.2 * own);
        assert_eq!(last[moving..], other[moving..]);
    }

    /// Pins the generator: a changed value is a new generator version.
    #[test]
    fn the_bits_are_pinned() {
        let files = |name: &str| synthetic::open(name, 0).unwrap().tensors;
        let mut sum = 0u64;
        for (name, tensor) in files("tiny") {
            let mut values = vec![0.0; tensor.cols()];
            for row in 0..tensor.rows() {
                tensor.read_f32(row, &mut values);
                for value in &values {
                    sum = mix(sum ^ u64::from(value.to_bits()) ^ name.len() as u64);
                }
            }
        }
        assert_eq!(sum, PINNED, "the generator changed: raise GENERATOR_VERSION and this number");
    }
    const PINNED: u64 = 15_019_192_244_064_024_012;
}
