//! Order, comparison, noise and verdict of a run with several arms: numbers in, sentences out.
//! Not here: taking samples, and statistics of one arm (`samples.rs`). The formulas' reasons are in `docs/methods.md`.

pub mod median;
pub mod noise;
pub mod of_record;
pub mod order;
pub mod paired;
pub mod quantile;
pub mod random;
pub mod unpaired;
pub mod verdict;

/// How often an interval is meant to hold the true ratio; all of this module's intervals state it.
pub const CONFIDENCE: f64 = 0.95;

/// How often a difference should be found when a number of repeats is promised to find it.
pub const POWER: f64 = 0.8;
