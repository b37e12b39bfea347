//! MLX's 4-bit rule: the codes, scale and bias of a group, exactly as mlx's CPU kernel makes them.
//! Not here: reading packed matrices (`mlx`), writing a packed checkpoint (`quantize_checkpoint`).
//!
//! All arithmetic is f32, as there. The scale is negative unless the smallest value is the one furthest from zero, so that
//! the furthest value (the edge) and zero are both met exactly. Codes are computed with the unrounded scale and bias;
//! only then are these rounded to BF16.

use half::bf16;

/// Group sizes that the format knows.
pub const GROUPS: [usize; 3] = [32, 64, 128];

/// Quantizes one row.
///
/// `values`: `(cols)`, finite; `group`: 32, 64 or 128 and a divisor of cols; `codes`: `(cols)`, one code 0..=15 per byte;
/// `scales`, `biases`: `(cols / group)`, rounded to BF16. `q * scale + bias` approximates the value. Other lengths panic.
/// A NaN is not detected here (its group becomes meaningless); loaders check rows with [`crate::Tensor::non_finite_at`].
pub fn quantize_row(values: &[f32], group: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    assert!(GROUPS.contains(&group), "groups of 32, 64 and 128 exist, not {group}");
    assert!(values.len().is_multiple_of(group), "{} columns are not groups of {group}", values.len());
    assert_eq!(codes.len(), values.len(), "one code per column");
    assert_eq!((scales.len(), biases.len()), (values.len() / group, values.len() / group), "one per group");
    let groups = values.chunks_exact(group).zip(codes.chunks_exact_mut(group));
    for ((values, codes), (scale, bias)) in groups.zip(scales.iter_mut().zip(biases)) {
        (*scale, *bias) = quantize_group(values, codes);
    }
}

/// Quantizes one group (32, 64 or 128 values) into as many codes; returns scale and bias rounded to BF16.
pub fn quantize_group(values: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let (low, high) = range(values);
    let low_is_edge = low.abs() > high.abs();
    let size = ((high - low) / 15.0).max(1e-7);
    let mut scale = if low_is_edge { size } else { -size };
    let edge = if low_is_edge { low } else { high };
    let steps = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if steps != 0.0 {
        scale = edge / steps;
        bias = edge;
    }
    for (code, value) in codes.iter_mut().zip(values) {
        let x = (value - bias) / scale;
        let x = if x > 0.0 { x } else { 0.0 };
        let x = if x < 15.0 { x } else { 15.0 };
        // Adding 2^23 leaves no room for a fraction, so the addition itself rounds to nearest even.
        *code = (x + 8_388_608.0).to_bits() as u8;
    }
    (bf16::from_f32(scale).to_f32(), bf16::from_f32(bias).to_f32())
}

/// Smallest and largest value, in 16 independent lanes so that the compiler can keep them in vector registers.
fn range(values: &[f32]) -> (f32, f32) {
    let mut low = [f32::INFINITY; 16];
    let mut high = [f32::NEG_INFINITY; 16];
    for part in values.as_chunks::<16>().0 {
        for lane in 0..16 {
            low[lane] = if part[lane] < low[lane] { part[lane] } else { low[lane] };
            high[lane] = if part[lane] > high[lane] { part[lane] } else { high[lane] };
        }
    }
    (low.into_iter().fold(f32::INFINITY, f32::min), high.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    /// The rule in its plainest form.
    fn plain(values: &[f32]) -> (Vec<u8>, f32, f32) {
        let low = values.iter().copied().fold(f32::INFINITY, f32::min);
        let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut scale = ((high - low) / 15.0).max(1e-7);
        let edge = if low.abs() > high.abs() {
            low
        } else {
            scale = -scale;
            high
        };
        let q0 = (edge / scale).round_ties_even();
        let bias = if q0 == 0.0 {
            0.0
        } else {
            scale = edge / q0;
            edge
        };
        let codes = values.iter().map(|v| ((v - bias) / scale).round_ties_even().clamp(0.0, 15.0) as u8).collect();
        (codes, bf16::from_f32(scale).to_f32(), bf16::from_f32(bias).to_f32())
    }

    fn fast(values: &[f32]) -> (Vec<u8>, f32, f32) {
        let mut codes = vec![255; values.len()];
        let (scale, bias) = quantize_group(values, &mut codes);
        (codes, scale, bias)
    }

    #[test]
    fn edge_groups_by_hand() {
        // All zero: the smallest scale, every code 0.
        let (codes, scale, bias) = fast(&[0.0; 32]);
        assert!(codes.iter().all(|c| *c == 0) && bias == 0.0 && scale == -bf16::from_f32(1e-7).to_f32());
        // A constant: many tiny steps, met exactly by code 0.
        let (codes, _, bias) = fast(&[2.5; 32]);
        assert!(codes.iter().all(|c| *c == 0) && bias == 2.5);
        // -15..0 in whole steps: the low end is the edge, so the scale is positive.
        let steps: Vec<f32> = (0..32).map(|i| -((i % 16) as f32)).collect();
        let (codes, scale, bias) = fast(&steps);
        assert_eq!((scale, bias), (1.0, -15.0));
        assert!(codes.iter().enumerate().all(|(i, c)| usize::from(*c) == 15 - i % 16));
        // The mirror image: the scale is negative.
        let up: Vec<f32> = steps.iter().map(|v| -v).collect();
        let (codes, scale, bias) = fast(&up);
        assert_eq!((scale, bias), (-1.0, 15.0));
        assert!(codes.iter().enumerate().all(|(i, c)| usize::from(*c) == 15 - i % 16));
        // One outlier takes the range: the rest becomes zero exactly.
        let mut outlier = [0.001; 64];
        outlier[17] = 30.0;
        let (codes, scale, bias) = fast(&outlier);
        assert_eq!((codes[17], bias), (0, 30.0));
        assert!(codes.iter().enumerate().all(|(i, c)| i == 17 || f32::from(*c) * scale + bias == 0.0));
    }

    /// Against mlx's own output (tests/fixtures/make_mlx_quantize.py), bit for bit.
    #[test]
    fn equals_mlx() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mlx_quantize.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let table = crate::safetensors::parse(&bytes, bytes.len() as u64, &path).unwrap();
        let floats = |name: &str| {
            let entry = &table[name];
            let mut values = vec![0.0; entry.len as usize / 2];
            let raw = &bytes[entry.start as usize..][..entry.len as usize];
            crate::safetensors::read_dense(crate::DenseType::BF16, raw, &mut values);
            values
        };
        for group in GROUPS {
            let input = floats(&format!("g{group}.input"));
            let (scales, biases) = (floats(&format!("g{group}.scales")), floats(&format!("g{group}.biases")));
            let entry = &table[&format!("g{group}.codes")];
            let words = &bytes[entry.start as usize..][..entry.len as usize];
            assert!(scales.iter().any(|s| *s > 0.0) && scales.iter().any(|s| *s < 0.0));
            for (row, values) in input.chunks_exact(256).enumerate() {
                let groups = 256 / group;
                let (mut codes, mut own_scales, mut own_biases) = (vec![0; 256], vec![0.0; groups], vec![0.0; groups]);
                quantize_row(values, group, &mut codes, &mut own_scales, &mut own_biases);
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let at = row * groups..(row + 1) * groups;
                assert_eq!(bits(&own_scales), bits(&scales[at.clone()]), "scales, group {group}, row {row}");
                assert_eq!(bits(&own_biases), bits(&biases[at]), "biases, group {group}, row {row}");
                let packed: Vec<u8> = codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4).collect();
                assert_eq!(packed, words[row * 128..][..128], "codes, group {group}, row {row}");
            }
        }
    }

    proptest! {
        #[test]
        fn equals_the_plain_rule(values in prop::collection::vec(-2f32..2.0, 64), shift in -4f32..4.0, power in -20i32..20) {
            let values: Vec<f32> = values.iter().map(|v| bf16::from_f32((v + shift) * 2f32.powi(power)).to_f32()).collect();
            prop_assert_eq!(fast(&values), plain(&values));
        }

        #[test]
        fn error_is_at_most_one_step(values in prop::collection::vec(-1f32..1.0, 128)) {
            let (codes, scale, bias) = fast(&values);
            for (code, value) in codes.iter().zip(&values) {
                let made = f32::from(*code) * scale + bias;
                // Half a step; the refitted scale may leave the far end short by as much again; and BF16 rounding.
                prop_assert!((made - value).abs() <= scale.abs() * 1.1 + 0.02 * value.abs().max(bias.abs()));
            }
        }
    }
}
