//! A small seeded generator for resampling: SplitMix64 (Steele, Lea, Flood, 2014). Its numbers are the same everywhere.
//! Not here: anything secret, and the engine's generators for weights and prompts, which this crate does not know.

/// The state; equal seeds give equal sequences.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "there is no number below 0");
        // The bias of the multiplication is below bound / 2^64.
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// -1 or 1.
    pub fn sign(&mut self) -> f64 {
        if self.next_u64() >> 63 == 0 { 1.0 } else { -1.0 }
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_generator() {
        // The first outputs for seed 1234567 of the authors' C code.
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423u64];
        assert_eq!(expected.map(|_| random.next_u64()), expected);
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut random = Random::new(7);
        let n = 200_000;
        let (mut sum, mut squares, mut signs, mut small) = (0.0, 0.0, 0.0, 0usize);
        for _ in 0..n {
            let normal = random.normal();
            sum += normal;
            squares += normal * normal;
            signs += random.sign();
            small += usize::from(random.below(10) == 3);
        }
        // Six standard errors.
        assert!((sum / f64::from(n)).abs() < 0.0135);
        assert!((squares / f64::from(n) - 1.0).abs() < 0.019);
        assert!((signs / f64::from(n)).abs() < 0.0135);
        assert!((small as f64 / f64::from(n) - 0.1).abs() < 0.004);
    }
}
