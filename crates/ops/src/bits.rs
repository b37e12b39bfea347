//! bfloat16 bits to f32 and back, round to nearest even. No vector code: kernels use their own instructions.

/// The f32 with the same value as these bfloat16 bits.
#[inline(always)]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Rounds to the nearest bfloat16, ties to even; a NaN stays a (quiet) NaN.
#[inline(always)]
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return ((bits >> 16) | 0x0040) as u16;
    }
    let rounding = 0x7fff + ((bits >> 16) & 1);
    (bits.wrapping_add(rounding) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_half_on_every_upper_pattern_and_on_ties() {
        for upper in 0..=u16::MAX {
            for lower in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits((u32::from(upper) << 16) | lower);
                let (ours, theirs) = (f32_to_bf16(value), half::bf16::from_f32(value).to_bits());
                assert!(ours == theirs || value.is_nan() && bf16_to_f32(ours).is_nan(), "{value:e}");
            }
            assert_eq!(f32_to_bf16(bf16_to_f32(upper)), if bf16_to_f32(upper).is_nan() { upper | 0x40 } else { upper });
        }
    }
}
