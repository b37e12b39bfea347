//! Inverse frequencies of the rotary position, with the llama3 scaling.
//! Not here: angles and rotations, which the `rope` operators compute from these.

use weights::{Config, RopeScaling};

/// One inverse frequency per rotated pair, `(head_dim / 2)`, in radians per position.
///
/// Without scaling `theta^(-2i / head_dim)`. The llama3 scaling divides those whose wavelength is long against the original
/// context by `factor`, keeps the short ones, and interpolates between.
pub(crate) fn inverse_frequencies(config: &Config) -> Vec<f32> {
    let half = config.head_dim / 2;
    (0..half)
        .map(|pair| {
            let plain = config.rope_theta.powf(-(2.0 * pair as f64) / config.head_dim as f64);
            scaled(plain, &config.rope_scaling) as f32
        })
        .collect()
}

fn scaled(frequency: f64, scaling: &RopeScaling) -> f64 {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } = *scaling else {
        return frequency;
    };
    let context = original_max_position as f64;
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    if wavelength < context / high_freq_factor {
        frequency
    } else if wavelength > context / low_freq_factor {
        frequency / factor
    } else {
        let smooth = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_keeps_short_wavelengths_and_divides_long_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position: 8192,
        };
        assert_eq!(scaled(1.0, &scaling), 1.0);
        assert_eq!(scaled(1e-5, &scaling), 1e-5 / 8.0);
        let middle = scaled(2.0 * std::f64::consts::PI / 4000.0, &scaling);
        let plain = 2.0 * std::f64::consts::PI / 4000.0;
        assert!(middle < plain && middle > plain / 8.0);
    }
}
