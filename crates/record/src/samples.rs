//! Statistics of a set of samples: median, spread, nearest-rank percentiles.
//! Comparison of two sets is not here.

/// Finite samples, at least one, kept sorted.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<f64>);

/// Why a set of numbers has no statistics.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplesError {
    #[error("there are no samples; take at least one")]
    Empty,
    #[error("sample number {index} is {value}, not a finite number")]
    NotFinite { index: usize, value: f64 },
}

impl Samples {
    /// # Errors
    /// No samples, or one that is not finite.
    pub fn new(samples: &[f64]) -> Result<Samples, SamplesError> {
        if samples.is_empty() {
            return Err(SamplesError::Empty);
        }
        if let Some(index) = samples.iter().position(|sample| !sample.is_finite()) {
            return Err(SamplesError::NotFinite { index, value: samples[index] });
        }
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Ok(Samples(sorted))
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn min(&self) -> f64 {
        self.0[0]
    }

    pub fn max(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    pub fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// The middle sample, or the mean of the two middle ones.
    pub fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        if self.0.len() % 2 == 1 { self.0[middle] } else { (self.0[middle - 1] + self.0[middle]) / 2.0 }
    }

    /// Median absolute deviation from the median: a spread that one outlier does not move.
    pub fn median_absolute_deviation(&self) -> f64 {
        let median = self.median();
        let mut deviations: Vec<f64> = self.0.iter().map(|sample| (sample - median).abs()).collect();
        deviations.sort_unstable_by(f64::total_cmp);
        Samples(deviations).median()
    }

    /// The smallest sample that at least `percent` of all samples do not exceed: `sorted[ceil(percent/100 * n) - 1]`.
    ///
    /// # Panics
    /// Unless `0 < percent <= 100`.
    pub fn percentile(&self, percent: f64) -> f64 {
        assert!(percent > 0.0 && percent <= 100.0, "a percentile is above 0 and at most 100, not {percent}");
        // 95 % of 20 is 19 and not 19.000000000000004: products are rounded to what the inputs can mean.
        let rank = (percent * self.0.len() as f64 / 100.0 - 1e-9).ceil().max(1.0) as usize;
        self.0[rank.min(self.0.len()) - 1]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn medians_and_spread_are_the_textbook_ones() {
        let odd = Samples::new(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((odd.median(), odd.median_absolute_deviation()), (3.0, 2.0));
        let even = Samples::new(&[1.0, 2.0, 4.0, 100.0]).unwrap();
        assert_eq!((even.median(), even.median_absolute_deviation()), (3.0, 1.5));
        assert_eq!((even.min(), even.max(), even.sum(), even.count()), (1.0, 100.0, 107.0, 4));
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let hundred = Samples::new(&(1..=100).map(f64::from).collect::<Vec<_>>()).unwrap();
        assert_eq!(hundred.percentile(95.0), 95.0);
        assert_eq!(hundred.percentile(100.0), 100.0);
        assert_eq!(hundred.percentile(0.5), 1.0);
        let twenty = Samples::new(&(1..=20).map(f64::from).collect::<Vec<_>>()).unwrap();
        assert_eq!(twenty.percentile(95.0), 19.0);
        let five = Samples::new(&[15.0, 20.0, 35.0, 40.0, 50.0]).unwrap();
        assert_eq!([30.0, 40.0, 50.0].map(|p| five.percentile(p)), [20.0, 20.0, 35.0]);
        assert_eq!(Samples::new(&[7.0]).unwrap().percentile(95.0), 7.0);
    }

    #[test]
    fn nan_is_refused() {
        assert!(matches!(Samples::new(&[1.0, f64::NAN]), Err(SamplesError::NotFinite { index: 1, .. })));
        assert_eq!(Samples::new(&[]), Err(SamplesError::Empty));
    }
}
