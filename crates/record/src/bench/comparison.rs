//! How an arm compares with the control, metric by metric, and how much the machine's noise lets a comparison see.
//! Not here: the statistics that give these (`statistics/`).

use crate::bench::metric::Metric;
use crate::known::Known;
use crate::quantity::Reading;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One metric of one arm beside the control's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricComparison {
    /// Index into the record's arms; never 0, which is the control.
    pub arm: u64,
    pub metric: Metric,
    /// Blocks in which both have what is compared.
    pub pairs: u64,
    /// The arm's value divided by the control's, block by block: the centre of the paired ratios.
    pub ratio: Reading,
    /// Where the true ratio lies, at the protocol's confidence.
    pub interval: Known<Interval>,
    pub verdict: Known<Verdict>,
    /// The verdict in words.
    pub sentence: String,
}

/// A confidence interval of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// What may be said about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// In the metric's own direction: more tokens per second, fewer seconds or bytes.
    Better,
    Worse,
    /// Whatever difference there is lies within so many percent.
    NoDifference {
        within_percent: f64,
    },
    /// About so many more repeats are needed.
    Inconclusive {
        more_repeats: u64,
    },
}

/// What the machine's noise allowed, from arms that were the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    pub metric: Metric,
    /// Where the same-against-same data came from.
    pub source: String,
    /// Samples per arm that the two numbers below are for.
    pub repeats: u64,
    /// How often the verdict's rule sees a difference where there is none.
    pub false_positives: Reading,
    /// The smallest true difference, in percent, that is found four times out of five.
    pub detectable_percent: Known<f64>,
}
