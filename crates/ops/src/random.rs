//! Seeded random numbers and weights, the same on every machine, for tests and made-up models. Not for sampling.

use crate::DType;
use crate::bits::{bf16_to_f32, f32_to_bf16};
use crate::testing::{Fill, WeightFill};
use crate::weight::{ElementType, Encoding, RowSource, WeightFormat, half_to_f32};

/// A small seeded generator (SplitMix64): operands must be the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below `bound` (which is small against 2^64).
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Close to standard normal: a sum of eight uniform numbers, which reaches 4.9 and costs no transcendental function.
    pub fn normal(&mut self) -> f32 {
        let mut sum = 0;
        for _ in 0..2 {
            let bits = self.next_u64();
            sum += (0..4).map(|part| (bits >> (16 * part) & 0xffff) as i32).sum::<i32>();
        }
        // Mean 8 * 65535 / 2, variance 8 * 65536² / 12.
        (sum - 262_140) as f32 * (1.0 / 53_509.98)
    }

    /// `count` values that `dtype` holds exactly.
    pub fn values(&mut self, count: usize, fill: Fill, dtype: DType) -> Vec<f32> {
        let mut draw = || {
            let value = match fill {
                Fill::Normal(deviation) => self.normal() * deviation,
                Fill::Outliers => self.normal() * if self.below(100) == 0 { 50.0 } else { 1.0 },
                Fill::Uniform(low, high) => low + (high - low) * self.unit(),
            };
            if dtype == DType::BF16 { half_to_f32(ElementType::BF16, f32_to_bf16(value)) } else { value }
        };
        (0..count).map(|_| draw()).collect()
    }
}

/// A random weight that its format holds exactly: Gaussian rows over the square root of the columns, both signs of scale.
pub struct RandomWeight {
    cols: usize,
    rows: usize,
    encoding: Encoding,
    values: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl RandomWeight {
    pub fn new(random: &mut Random, rows: usize, cols: usize, format: WeightFormat) -> RandomWeight {
        RandomWeight::filled(random, rows, cols, format, WeightFill::Random)
    }

    /// As [`RandomWeight::new`], with other codes or values.
    ///
    /// # Panics
    /// If the format cannot be filled so: codes for a dense format, frequencies for a packed one.
    pub fn filled(
        random: &mut Random,
        rows: usize,
        cols: usize,
        format: WeightFormat,
        fill: WeightFill,
    ) -> RandomWeight {
        let mut weight = RandomWeight::drawn(random, rows, cols, format);
        match fill {
            WeightFill::Random => {}
            WeightFill::Codes(code) => {
                assert!(format.is_packed(), "{format} has no codes");
                weight.codes.fill(code);
            }
            WeightFill::Frequencies { theta } => {
                assert!(!format.is_packed(), "{format} holds no frequencies");
                for (index, value) in weight.values.iter_mut().enumerate() {
                    let frequency = theta.powf(-((index % cols) as f32 / cols as f32));
                    *value = if format == WeightFormat::Bf16 { bf16_to_f32(f32_to_bf16(frequency)) } else { frequency };
                }
            }
        }
        weight
    }

    fn drawn(random: &mut Random, rows: usize, cols: usize, format: WeightFormat) -> RandomWeight {
        let deviation = 1.0 / (cols as f32).sqrt();
        let mut weight = RandomWeight {
            cols,
            rows,
            encoding: Encoding::Dense(ElementType::F32),
            values: Vec::new(),
            codes: Vec::new(),
            scales: Vec::new(),
            biases: Vec::new(),
        };
        let exact = |element: ElementType, value: f32| match element {
            ElementType::F32 => value,
            ElementType::F16 => half::f16::from_f32(value).to_f32(),
            ElementType::BF16 => half_to_f32(ElementType::BF16, f32_to_bf16(value)),
        };
        match format {
            WeightFormat::F32 => weight.values = random.values(rows * cols, Fill::Normal(deviation), DType::F32),
            WeightFormat::Bf16 => {
                weight.encoding = Encoding::Dense(ElementType::BF16);
                weight.values = random.values(rows * cols, Fill::Normal(deviation), DType::BF16);
            }
            WeightFormat::Affine4 { group, parameters } => {
                weight.encoding = Encoding::Affine4 { group, parameters };
                weight.codes = (0..rows * cols).map(|_| (random.next_u64() >> 60) as u8).collect();
                for _ in 0..rows * cols / group {
                    let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
                    let scale = exact(parameters, sign * deviation * (0.1 + 0.3 * random.unit()));
                    weight.scales.push(scale);
                    weight.biases.push(exact(parameters, -7.5 * scale + deviation * 0.2 * random.normal()));
                }
            }
            WeightFormat::Int8 { group } => {
                weight.encoding = Encoding::Int8 { group };
                weight.codes = (0..rows * cols).map(|_| (random.next_u64() >> 56) as u8).collect();
                weight.scales = (0..rows * cols / group).map(|_| deviation * 0.02 * (0.5 + random.unit())).collect();
                weight.biases = vec![0.0; rows * cols / group];
            }
        }
        weight
    }
}

impl RowSource for RandomWeight {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn encoding(&self) -> Encoding {
        self.encoding
    }

    fn read_f32(&self, row: usize, out: &mut [f32]) {
        let at = row * self.cols;
        let group = match self.encoding {
            Encoding::Dense(_) => return out.copy_from_slice(&self.values[at..at + self.cols]),
            Encoding::Affine4 { group, .. } | Encoding::Int8 { group } => group,
        };
        for (col, value) in out.iter_mut().enumerate() {
            let (code, index) = (self.codes[at + col], (at + col) / group);
            *value = match self.encoding {
                Encoding::Int8 { .. } => f32::from(code as i8) * self.scales[index],
                _ => f32::from(code) * self.scales[index] + self.biases[index],
            };
        }
    }

    fn read_codes(&self, row: usize, codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        let groups = scales.len();
        codes.copy_from_slice(&self.codes[row * self.cols..][..self.cols]);
        scales.copy_from_slice(&self.scales[row * groups..][..groups]);
        biases.copy_from_slice(&self.biases[row * groups..][..groups]);
    }
}
