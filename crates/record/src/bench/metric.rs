//! What of a request is compared: the metrics, which way is better, and where a clock holds them.
//! Not here: comparing (`statistics/`).

use crate::quantity::{Reading, Unit};
use crate::request::RequestClock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number of a request that two arms are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Prompt tokens per second of prefill.
    Prefill,
    /// Tokens after the first per second of decode.
    Decode,
    /// Generated tokens per second of the whole request.
    Output,
    /// Seconds to the first token.
    Ttft,
    /// Seconds of the whole request.
    Request,
    /// Microseconds per token after the first, on average.
    PerToken,
    /// Microseconds between tokens: median.
    TokenMedian,
    TokenP95,
    TokenP99,
    /// Peak allocation in bytes.
    Peak,
    /// Peak physical memory in bytes.
    PeakRss,
}

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    Higher,
    Lower,
}

impl Metric {
    pub const ALL: [Metric; 11] = [
        Metric::Prefill,
        Metric::Decode,
        Metric::Output,
        Metric::Ttft,
        Metric::Request,
        Metric::PerToken,
        Metric::TokenMedian,
        Metric::TokenP95,
        Metric::TokenP99,
        Metric::Peak,
        Metric::PeakRss,
    ];

    /// The spelling in records and gates.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::Prefill => "prefill",
            Metric::Decode => "decode",
            Metric::Output => "output",
            Metric::Ttft => "ttft",
            Metric::Request => "request",
            Metric::PerToken => "per_token",
            Metric::TokenMedian => "token_median",
            Metric::TokenP95 => "token_p95",
            Metric::TokenP99 => "token_p99",
            Metric::Peak => "peak",
            Metric::PeakRss => "peak_rss",
        }
    }

    pub fn parse(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.name() == name)
    }

    pub const fn unit(self) -> Unit {
        match self {
            Metric::Prefill | Metric::Decode | Metric::Output => Unit::TokensPerSecond,
            Metric::Ttft | Metric::Request => Unit::Seconds,
            Metric::PerToken | Metric::TokenMedian | Metric::TokenP95 | Metric::TokenP99 => Unit::Microseconds,
            Metric::Peak | Metric::PeakRss => Unit::Bytes,
        }
    }

    pub const fn better(self) -> Better {
        match self {
            Metric::Prefill | Metric::Decode | Metric::Output => Better::Higher,
            _ => Better::Lower,
        }
    }

    /// The clock's reading of it.
    pub fn of(self, clock: &RequestClock) -> &Reading {
        match self {
            Metric::Prefill => &clock.prefill_rate,
            Metric::Decode => &clock.decode_rate,
            Metric::Output => &clock.output_rate,
            Metric::Ttft => &clock.time_to_first_token,
            Metric::Request => &clock.whole_request,
            Metric::PerToken => &clock.time_per_output_token,
            Metric::TokenMedian => &clock.inter_token_median,
            Metric::TokenP95 => &clock.inter_token_p95,
            Metric::TokenP99 => &clock.inter_token_p99,
            Metric::Peak => &clock.peak_allocation,
            Metric::PeakRss => &clock.peak_rss,
        }
    }
}
