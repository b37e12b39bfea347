//! Draws shapes for [`crate::Operator::random_case`]: small ones, and mostly at the edges of what vectors, blocks and workers
//! take. Not here: which shapes an operator has.

use super::{Fill, Random};
use crate::step::SequenceShape;
use crate::weight::{ElementType, WeightFormat};

/// A source of random shapes up to a size; the smaller the size, the smaller everything drawn.
pub struct Draw {
    random: Random,
    size: usize,
}

impl Draw {
    /// The size of ordinary draws.
    pub const SIZE: usize = 16;

    /// Draws of `size` (at least 1); the same seed and size give the same shapes on every machine.
    pub fn new(seed: u64, size: usize) -> Draw {
        Draw { random: Random::new(seed), size: size.max(1) }
    }

    /// Either.
    pub fn flip(&mut self) -> bool {
        self.random.below(2) == 0
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len())]
    }

    /// From 1 to `most`, and no more than the size.
    pub fn count(&mut self, most: usize) -> usize {
        1 + self.random.below(most.min(self.size))
    }

    /// Rows of a step: one half of the time, as in decode; else up to the size, which is more than eight.
    pub fn rows(&mut self) -> usize {
        if self.flip() { 1 } else { self.count(usize::MAX) }
    }

    /// Elements of a row: up to 640 at the ordinary size and fewer than three at size 1; next to a multiple of what vectors
    /// hold, or anything.
    pub fn width(&mut self) -> usize {
        let most = 5 * self.size * self.size / 2;
        let blocks = [1, 8, 16, 32, 64].map(|block| block.min(most));
        let block = self.pick(&blocks);
        let width = block * (1 + self.random.below(most / block));
        match self.random.below(4) {
            0 => width + 1,
            1 => (width - 1).max(1),
            _ => width,
        }
    }

    /// An even head size.
    pub fn head_dim(&mut self) -> usize {
        if self.size < 4 { 2 * self.size } else { self.pick(&[2, 6, 16, 64, 64, 96, 128, 128]) }
    }

    /// Up to three sequences; `cached` ones come after some earlier positions.
    pub fn sequences(&mut self, cached: bool) -> Vec<SequenceShape> {
        let count = self.count(3);
        let sequence = |draw: &mut Draw| {
            let rows = draw.rows();
            let offset = if cached { draw.random.below(12 * draw.size) } else { 0 };
            SequenceShape { rows, offset }
        };
        (0..count).map(|_| sequence(self)).collect()
    }

    /// A weight format and columns that it divides.
    pub fn format(&mut self) -> (WeightFormat, usize) {
        let parameters = self.pick(&[ElementType::BF16, ElementType::F16, ElementType::F32]);
        let format = match self.random.below(8) {
            0 => WeightFormat::F32,
            1 | 2 => WeightFormat::Bf16,
            3 => WeightFormat::Int8 { group: self.pick(&[16, 32]) },
            _ => WeightFormat::Affine4 { group: self.pick(&[32, 64, 128]), parameters },
        };
        let cols = if format.is_packed() { format.group() * self.count(4) } else { self.width() };
        (format, cols)
    }

    /// How values are drawn.
    pub fn fill(&mut self) -> Fill {
        self.pick(&[Fill::Normal(1.0), Fill::Normal(1.0), Fill::Normal(1e-3), Fill::Outliers])
    }
}

#[cfg(test)]
mod tests {
    use crate::operators::ALL;
    use crate::testing::Draw;

    #[test]
    fn every_operator_draws_calls_that_it_takes_itself() {
        for operator in ALL {
            for seed in 0..200 {
                for size in [1, 2, 5, Draw::SIZE] {
                    let case = operator.random_case(&mut Draw::new(seed, size));
                    operator.check(&case.shape()).unwrap_or_else(|problem| {
                        panic!("{} {}: {problem}", operator.name(), case.label);
                    });
                }
            }
        }
    }
}
