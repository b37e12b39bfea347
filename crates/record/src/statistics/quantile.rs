//! Two distributions: Student's t and Wilcoxon's signed-rank sum.
//! Not here: what is done with them (`paired.rs`), and percentiles of samples (`samples.rs`).

use std::f64::consts::PI;

/// P(T <= t) for Student's t with a whole number of degrees of freedom; the finite sums of Abramowitz and Stegun, 26.7.3-4.
///
/// # Panics
/// If `degrees` is 0.
pub fn student_cdf(t: f64, degrees: usize) -> f64 {
    assert!(degrees > 0, "Student's t has at least one degree of freedom");
    let theta = (t / (degrees as f64).sqrt()).atan();
    let (sin, cos) = theta.sin_cos();
    let mut term = if degrees % 2 == 1 { cos } else { 1.0 };
    let mut sum = if degrees == 1 { 0.0 } else { term };
    let mut k = if degrees % 2 == 1 { 3 } else { 2 };
    while k + 1 < degrees {
        term *= cos * cos * (k - 1) as f64 / k as f64;
        sum += term;
        k += 2;
    }
    let central = if degrees % 2 == 1 { 2.0 / PI * (theta + sin * sum) } else { sin * sum };
    0.5 + central / 2.0
}

/// The t that Student's distribution stays below with probability `p`.
///
/// # Panics
/// Unless `0 < p < 1` and `degrees > 0`.
pub fn student_quantile(p: f64, degrees: usize) -> f64 {
    assert!(p > 0.0 && p < 1.0, "a probability strictly between 0 and 1, not {p}");
    if p < 0.5 {
        return -student_quantile(1.0 - p, degrees);
    }
    let (mut low, mut high) = (0.0, 1.0);
    while student_cdf(high, degrees) < p {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if student_cdf(middle, degrees) < p { low = middle } else { high = middle }
    }
    high
}

/// The largest `w` with P(W < w) <= `tail`, W the signed-rank sum of `n` pairs without a difference: a two-sided interval of
/// confidence at least `1 - 2 tail` ends at the `w`-th smallest and the `w`-th largest Walsh average. 0 if there is none.
///
/// Exact up to 60 pairs, the normal approximation beyond.
pub fn signed_rank_depth(n: usize, tail: f64) -> usize {
    if n > 60 {
        let n = n as f64;
        let (mean, deviation) = (n * (n + 1.0) / 4.0, (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt());
        // With so many degrees of freedom it is the normal distribution to four digits.
        let z = student_quantile(1.0 - tail, 10_000);
        return (mean - 0.5 - z * deviation).max(0.0) as usize;
    }
    // Probabilities of the sums of a random subset of 1..=n.
    let mut chances = vec![0.0; n * (n + 1) / 2 + 1];
    chances[0] = 1.0;
    for rank in 1..=n {
        for sum in (0..chances.len()).rev() {
            let with = if sum >= rank { chances[sum - rank] } else { 0.0 };
            chances[sum] = (chances[sum] + with) / 2.0;
        }
    }
    let mut below = 0.0;
    chances
        .iter()
        .take_while(|chance| {
            below += **chance;
            below <= tail
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_quantiles_are_those_of_the_tables() {
        for (p, degrees, expected) in [
            (0.975, 1, 12.706_204_736),
            (0.975, 2, 4.302_652_730),
            (0.975, 3, 3.182_446_305),
            (0.975, 4, 2.776_445_105),
            (0.975, 7, 2.364_624_252),
            (0.975, 10, 2.228_138_852),
            (0.975, 30, 2.042_272_456),
            (0.8, 1, 1.376_381_920),
            (0.8, 6, 0.905_703_285),
            (0.025, 5, -2.570_581_836),
        ] {
            let found = student_quantile(p, degrees);
            assert!((found - expected).abs() < 1e-6, "t({p}, {degrees}) = {found}, the table says {expected}");
        }
    }

    #[test]
    fn signed_rank_depths_are_those_of_the_tables() {
        // Two-sided 5 %: the largest rejected sum of the usual tables is one less.
        for (n, expected) in [(5, 0), (6, 1), (7, 3), (8, 4), (9, 6), (10, 9), (12, 14), (15, 26), (20, 53), (30, 138)]
        {
            assert_eq!(signed_rank_depth(n, 0.025), expected, "{n} pairs");
        }
        // At the border the approximation continues the exact numbers.
        let (exact, beyond) = (signed_rank_depth(60, 0.025), signed_rank_depth(61, 0.025));
        assert!(beyond > exact && beyond - exact < 40, "{exact}, {beyond}");
    }
}
