//! Exponentials and fused multiply-adds in a form that compilers vectorise. No loops over operands.

/// `a * b + c`; one rounding with `FMA` (which only bodies compiled for that instruction set), two without.
#[inline(always)]
pub(crate) fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Adding and subtracting this rounds to the nearest integer (|x| < 2^22), which stands in the sum's low bits.
const ROUNDER: f32 = 12_582_912.0;

/// 2^x to 3 in 10^7, for x in -126..=127; clamped outside (so never 0 or infinite).
#[inline(always)]
pub(crate) fn exp2<const FMA: bool>(x: f32) -> f32 {
    let x = x.clamp(-126.0, 127.0);
    let shifted = x + ROUNDER;
    let rest = x - (shifted - ROUNDER);
    scaled::<FMA>(rest * std::f32::consts::LN_2, shifted)
}

/// e^x to 3 in 10^7, for x in -87..=88; clamped outside.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    let shifted = multiply_add::<FMA>(x, std::f32::consts::LOG2_E, ROUNDER);
    let whole = shifted - ROUNDER;
    // ln 2 in two parts, the first of few bits: `whole * LN2_HIGH` is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let rest = multiply_add::<FMA>(whole, -LN2_LOW, multiply_add::<FMA>(whole, -LN2_HIGH, x));
    scaled::<FMA>(rest, shifted)
}

/// e^rest * 2^n for |rest| <= 0.35, where `shifted` is [`ROUNDER`] + n.
#[inline(always)]
fn scaled<const FMA: bool>(rest: f32, shifted: f32) -> f32 {
    // The Taylor series to the sixth power: its remainder is below 0.35^7 / 7! = 1.3e-7.
    let mut sum = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = multiply_add::<FMA>(sum, rest, coefficient);
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127);
    sum * f32::from_bits(exponent << 23)
}

/// Sum of 32 lanes, halves onto halves.
///
/// Lanes that vector code accumulates into must only be indexed by constants (a loop of known length): one index that is
/// not, a remainder's say, keeps them all in memory.
#[inline(always)]
pub(crate) fn total(lanes: &[f32; 32]) -> f32 {
    let mut sixteen = [0.0f32; 16];
    for lane in 0..16 {
        sixteen[lane] = lanes[lane] + lanes[lane + 16];
    }
    let mut eight = [0.0f32; 8];
    for lane in 0..8 {
        eight[lane] = sixteen[lane] + sixteen[lane + 8];
    }
    let mut four = [0.0f32; 4];
    for lane in 0..4 {
        four[lane] = eight[lane] + eight[lane + 4];
    }
    (four[0] + four[2]) + (four[1] + four[3])
}

/// x * sigmoid(x).
#[inline(always)]
pub(crate) fn silu<const FMA: bool>(x: f32) -> f32 {
    x / (1.0 + exp::<FMA>(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_accurate_over_their_range() {
        for step in -87_000..=88_000 {
            let x = step as f32 / 1000.0;
            let want = f64::from(x).exp();
            for got in [exp::<false>(x), exp::<true>(x)] {
                assert!((f64::from(got) / want - 1.0).abs() < 3e-7, "exp({x}) = {got:e}, not {want:e}");
            }
            let want = f64::from(x).exp2();
            for got in [exp2::<false>(x), exp2::<true>(x)] {
                assert!((f64::from(got) / want - 1.0).abs() < 3e-7, "exp2({x}) = {got:e}, not {want:e}");
            }
        }
    }

    #[test]
    fn beyond_the_range_nothing_overflows() {
        assert!(exp::<true>(-1e30) < 1e-37 && exp::<false>(1e30).is_finite());
        assert!(exp2::<true>(f32::MIN) < 1e-37 && exp2::<false>(f32::MAX).is_finite());
        assert_eq!(exp2::<true>(0.0), 1.0);
        for x in [-1e30, -100.0, -20.0, 20.0, 1e30] {
            let got = silu::<false>(x);
            assert!(got.is_finite() && (x > 0.0 || got.abs() < 1e-5), "silu({x}) = {got}");
        }
    }
}
