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
    /// How ratio and interval were made; `docs/methods.md` has the formulas.
    pub method: Method,
    /// What it cost to run second in a pair: the later sample over the earlier, whichever arm it is.
    pub second_over_first: Known<f64>,
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

/// How a ratio and its interval were made from pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Student's interval on the mean log-ratio.
    PairedT,
    /// The same after the effect of the order within pairs is taken out.
    OrderAdjustedT,
    /// Hodges and Lehmann's estimate and the signed-rank interval, after the same step.
    OrderAdjustedSignedRank,
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
    /// About so many more repeats of both arms are needed, if the noise stays what it was.
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
    /// Log-ratios of the same against itself that it was made from.
    pub differences: u64,
    /// Samples per arm that rate and detectable difference are for.
    pub repeats: u64,
    /// Standard deviation of a pair's log-ratio: about the relative difference of two samples of one block.
    pub pair_spread: Reading,
    /// How often the verdict's rule sees a difference where there is none.
    pub false_positives: Reading,
    /// The smallest true difference, in percent, that is found four times out of five.
    pub detectable_percent: Known<f64>,
    /// About how many samples per arm it takes to find a true difference of 3 % four times out of five.
    pub repeats_for_3_percent: Known<u64>,
}
