//! The request clock: how long one warmed request took, and the most memory it had allocated.
//! Which operator the time went to is the replay's to say.

use crate::coverage::Coverage;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::samples::Samples;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestClock {
    pub coverage: Coverage,
    /// Forward pass over the prompt and choice of token 1; input and cache exist before it starts.
    pub prefill: Reading,
    /// Sum over the remaining tokens, each a forward pass and a choice.
    pub decode: Reading,
    /// Prompt tokens per second of prefill.
    pub prefill_rate: Reading,
    /// Tokens after the first per second of decode.
    pub decode_rate: Reading,
    /// From the start of the request, input and cache set-up included, to token 1.
    pub time_to_first_token: Reading,
    /// The whole request, including set-up and release of input and cache.
    pub whole_request: Reading,
    /// Generated tokens per second of the whole request.
    pub output_rate: Reading,
    /// Decode divided by its tokens: the mean, as serving tools define it.
    #[serde(default = "before_the_field")]
    pub time_per_output_token: Reading,
    /// Nearest rank, like all percentiles here.
    pub inter_token_median: Reading,
    pub inter_token_p95: Reading,
    #[serde(default = "before_the_field")]
    pub inter_token_p99: Reading,
    /// The most bytes allocated at once during the request, resident weights included; not the process's physical memory.
    pub peak_allocation: Reading,
    /// The most physical memory that the process had at once, file pages among it; what it covers is said where it is taken.
    #[serde(default = "before_the_field")]
    pub peak_rss: Reading,
    /// Part of the request that its workers spent on a processor; far below 1, other processes ran and every time is too long.
    pub processor_share: Reading,
    /// Seconds of each generated token in order: the first is the prefill's.
    pub token_seconds: Vec<f64>,
    /// Token-trace hash of the generated ids.
    pub output_hash: String,
    /// The GPU that the request ran on.
    #[serde(default = "no_device")]
    pub device: Known<DeviceUse>,
}

/// A GPU during a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceUse {
    /// The most bytes of its memory that were allocated at once, resident weights included; without the code of kernels and what its
    /// driver keeps.
    pub peak_allocation: Reading,
    /// By its own sensors, just before and just after.
    pub before: Known<DeviceState>,
    pub after: Known<DeviceState>,
}

/// A GPU at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceState {
    pub clock_mhz: u64,
    pub memory_clock_mhz: u64,
    pub celsius: u64,
    pub watts: f64,
    /// Why its clocks are lower than they could be, in words.
    pub held_back: Vec<String>,
}

impl DeviceUse {
    /// Of a request that ran on the CPU.
    pub fn none() -> Known<DeviceUse> {
        Known::unavailable("the kernels ran on the CPU", "`--device cuda`")
    }
}

fn no_device() -> Known<DeviceUse> {
    Known::unavailable("the record is older than this field, or of the CPU", "measure again with this build")
}

/// What a record that is older than the field says about it.
fn before_the_field() -> Reading {
    Reading::unavailable("the record is older than this field", "measure again with this build")
}

/// What a clock measured, before anything is computed from it.
#[derive(Clone, Debug)]
pub struct RequestTimes {
    pub prompt_tokens: u64,
    /// How many tokens the request was to generate.
    pub asked_tokens: u64,
    /// Seconds of each generated token; the first is the prefill's. At least one.
    pub token_seconds: Vec<f64>,
    /// From set-up to token 1.
    pub to_first_token: f64,
    /// From set-up to the release of input and cache.
    pub whole: f64,
    pub peak_allocation: Reading,
    pub peak_rss: Reading,
    pub processor_share: Reading,
    /// [`crate::token_trace_hash`] of the generated ids.
    pub output_hash: String,
    pub device: Known<DeviceUse>,
}

impl RequestClock {
    /// The readings that follow from the times. Sums over all tokens exist only for a request that was not cut short.
    ///
    /// # Panics
    /// No token at all: such a request has no clock.
    pub fn from_times(times: RequestTimes) -> RequestClock {
        let (prefill, steps) = times.token_seconds.split_first().expect("a request has at least its first token");
        let decode: f64 = steps.iter().sum();
        let n = steps.len() as u64;
        let tokens = times.token_seconds.len() as u64;
        let complete = tokens == times.asked_tokens;
        let cut = format!("interrupted after {tokens} of {} tokens", times.asked_tokens);
        let missing = || Known::unavailable(cut.as_str(), "run again and let it finish");
        let of_all = |reading: Reading| if complete { reading } else { missing() };
        let between = Samples::new(steps).ok();
        let of_steps = |pick: fn(&Samples) -> f64| match &between {
            Some(samples) => Reading::measured(pick(samples) * 1e6, Unit::Microseconds, n),
            None => missing(),
        };
        RequestClock {
            coverage: if complete { Coverage::complete() } else { Coverage::incomplete(cut.as_str()) },
            prefill: Reading::measured(*prefill, Unit::Seconds, 1),
            decode: of_all(Reading::measured(decode, Unit::Seconds, n)),
            prefill_rate: Reading::ratio(times.prompt_tokens as f64, *prefill, Unit::TokensPerSecond, 1),
            decode_rate: if n == 0 { missing() } else { Reading::ratio(n as f64, decode, Unit::TokensPerSecond, n) },
            time_to_first_token: Reading::measured(times.to_first_token, Unit::Seconds, 1),
            whole_request: of_all(Reading::measured(times.whole, Unit::Seconds, 1)),
            output_rate: of_all(Reading::ratio(tokens as f64, times.whole, Unit::TokensPerSecond, 1)),
            time_per_output_token: of_steps(|samples| samples.sum() / samples.count() as f64),
            inter_token_median: of_steps(Samples::median),
            inter_token_p95: of_steps(|samples| samples.percentile(95.0)),
            inter_token_p99: of_steps(|samples| samples.percentile(99.0)),
            peak_allocation: times.peak_allocation,
            peak_rss: times.peak_rss,
            processor_share: times.processor_share,
            token_seconds: times.token_seconds,
            output_hash: times.output_hash,
            device: times.device,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn times(token_seconds: Vec<f64>) -> RequestTimes {
        let bytes = |bytes| Reading::measured(bytes, Unit::Bytes, 1);
        RequestTimes {
            prompt_tokens: 8,
            asked_tokens: 5,
            token_seconds,
            to_first_token: 2.5,
            whole: 10.0,
            peak_allocation: bytes(1e6),
            peak_rss: bytes(2e6),
            processor_share: Reading::unavailable("not here", "elsewhere"),
            output_hash: crate::token_trace_hash(&[1]),
            device: DeviceUse::none(),
        }
    }

    /// Against arithmetic by hand.
    #[test]
    fn readings_follow_from_the_times() {
        let clock = RequestClock::from_times(times(vec![2.0, 1.0, 1.0, 1.0, 3.0]));
        let value = |reading: &Reading| reading.value().unwrap();
        assert_eq!((value(&clock.prefill_rate), value(&clock.decode)), (4.0, 6.0));
        assert_eq!((value(&clock.decode_rate), value(&clock.output_rate)), (4.0 / 6.0, 0.5));
        assert_eq!((value(&clock.time_per_output_token), value(&clock.inter_token_median)), (1.5e6, 1e6));
        assert_eq!((value(&clock.inter_token_p95), value(&clock.inter_token_p99)), (3e6, 3e6));
    }

    #[test]
    fn a_request_that_was_cut_short_has_no_totals() {
        let clock = RequestClock::from_times(times(vec![2.0, 1.0]));
        assert!(clock.coverage.reason().unwrap().contains("2 of 5"));
        for reading in [&clock.decode, &clock.whole_request, &clock.output_rate] {
            assert!(reading.known().is_none());
        }
        assert_eq!(clock.prefill.value(), Some(2.0));
        assert!(RequestClock::from_times(times(vec![2.0])).inter_token_median.known().is_none());
    }

    #[test]
    fn a_record_without_a_later_field_reads_as_missing() {
        let clock = RequestClock::from_times(times(vec![1.0; 5]));
        let mut value = serde_json::to_value(&clock).unwrap();
        for field in ["peak_rss", "time_per_output_token", "inter_token_p99", "device"] {
            value.as_object_mut().unwrap().remove(field).unwrap();
        }
        let old: RequestClock = serde_json::from_value(value).unwrap();
        assert!(old.peak_rss.missing().unwrap().unavailable.contains("older"));
        assert!(old.inter_token_p99.known().is_none() && old.time_per_output_token.known().is_none());
        assert!(old.device.missing().unwrap().unavailable.contains("older"));
    }
}
