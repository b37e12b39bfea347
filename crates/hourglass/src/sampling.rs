//! The flags that choose how a token is drawn, checked.
//! Not here: the drawing itself (`model::Sampler`).

use anyhow::Result;
use model::SamplingOptions;
use record::Drawing;

use crate::failure::usage;

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 takes the most likely token always
    #[arg(long, value_name = "T", allow_negative_numbers = true, default_value_t = 0.0)]
    temp: f32,
    /// Draw from the K most likely tokens only; 0 for all
    #[arg(long, value_name = "K", allow_negative_numbers = true, default_value_t = 0)]
    top_k: usize,
    /// Draw from the fewest most likely tokens that hold this probability together; 1 for all
    #[arg(long, value_name = "P", allow_negative_numbers = true, default_value_t = 1.0)]
    top_p: f32,
    /// Drop tokens less likely than P times the most likely one; 0 for none
    #[arg(long, value_name = "P", allow_negative_numbers = true, default_value_t = 0.0)]
    min_p: f32,
    /// Make tokens that have appeared less likely by this factor; 1 for not at all
    #[arg(long, value_name = "R", allow_negative_numbers = true, default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Seed of the draws: the same seed, prompt and flags give the same text
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl SamplingArgs {
    /// As a record has them.
    pub(crate) fn recorded(&self) -> Drawing {
        Drawing {
            temp: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        }
    }

    /// # Errors
    /// A number outside its range, by flag.
    pub(crate) fn options(&self) -> Result<SamplingOptions> {
        let check = |flag: &str, value: f32, fits: bool, expected: &str| match fits {
            true => Ok(()),
            false => Err(usage(format!("{flag} {value}: expected {expected}"))),
        };
        check("--temp", self.temp, (0.0..=100.0).contains(&self.temp), "0 (greedy) to 100")?;
        check("--top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "more than 0 and at most 1 (1: off)")?;
        check("--min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 (off) to 1")?;
        let penalty = self.repetition_penalty;
        check("--repetition-penalty", penalty, (0.1..=10.0).contains(&penalty), "0.1 to 10 (1: off)")?;
        Ok(SamplingOptions {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: penalty,
            seed: self.seed,
        })
    }
}
