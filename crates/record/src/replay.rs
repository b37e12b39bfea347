//! The operator replay: the real pass with one group's calls at a time, at one fixed shape.
//! It says which group costs most there; not what a request costs, and not what a request dispatches. Here is one case; the
//! record of several is in `replay/cases.rs`, requests between them in `replay/between.rs`, the floors in `replay/floor.rs`, the
//! comparison of two in `replay/compare.rs`.

pub(crate) mod between;
pub(crate) mod cases;
pub(crate) mod clocked;
pub(crate) mod compare;
pub(crate) mod floor;

use crate::check::Check;
use crate::coverage::Coverage;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::samples::Samples;
use crate::workload::Workload;
use floor::Floor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One case: a checkpoint's pass of one phase and shape, group by group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    pub checkpoint: String,
    pub workload: Workload,
    pub workload_id: String,
    pub coverage: Coverage,
    /// Operator groups in program order.
    pub groups: Vec<GroupRow>,
    /// Groups that this checkpoint's pass has no calls of, and why: neither zero nor a missing measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<AbsentGroup>,
    /// The same pass by operator and place in the layer, each timed alone in a rotation of its own.
    #[serde(default = "not_by_operator")]
    pub operators: Known<Vec<OperatorRow>>,
    /// Choice of the next token from the logits.
    pub sampling: Known<Timing>,
    /// Sum of the medians of the groups and of sampling: what the shares are of. Not the time of a real pass.
    pub replay_total_us: Reading,
    /// Starting the workers and walking the program without running a call; every group's samples contain it once. Unavailable on a
    /// GPU, whose samples are its own time and contain none.
    pub dispatch_floor: Known<Timing>,
    /// The same pass with all its calls.
    pub whole_pass: Known<Timing>,
    /// `whole_pass` less the groups' medians: negative where calls overlap or share caches in a real pass.
    pub unexplained_us: Reading,
    pub cache: Known<CacheBlock>,
    /// Part of the rounds that the workers spent on a processor; far below 1, other processes ran and every time is too long.
    #[serde(default = "no_processor_share")]
    pub processor_share: Reading,
    /// The order within each timed round; samples are in round order.
    pub round_order: Vec<Vec<String>>,
}

/// A group without calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AbsentGroup {
    pub group: String,
    /// Where its work is done instead, or that there is none.
    pub why: String,
}

/// One group of operators over a whole pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupRow {
    pub group: String,
    /// `operator: kernel/isa`, each once.
    pub kernels: Vec<String>,
    /// Calls per pass.
    pub calls: u64,
    /// Exact bytes that the group's calls must read and write, and its floating-point operations, at this shape.
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub flops: u64,
    pub timing: Timing,
    /// Bytes read and written per second.
    pub bandwidth: Reading,
    pub arithmetic: Reading,
    /// The least time at the measured ceilings.
    #[serde(default = "Floor::not_recorded")]
    pub floor: Known<Floor>,
}

/// The calls of one operator at one place of every layer (or outside the layers), e.g. all `q_proj`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorRow {
    /// What the call is for, e.g. `q_proj`.
    pub slot: String,
    pub operator: String,
    /// Its shapes, each once: `(1, 1024) bf16, weight (2048, 1024) W4 g128 -> (1, 2048) bf16`.
    pub shapes: Vec<String>,
    /// Its share is of `replay_total_us`. Operators timed alone contain the dispatch floor once each, so that their sum is
    /// larger than the groups'; a GPU's contain none, and may sum to less.
    pub row: GroupRow,
}

impl OperatorRow {
    /// `slot: operator`, or the one word that both are.
    pub fn name(&self) -> String {
        if self.slot == self.operator { self.slot.clone() } else { format!("{}: {}", self.slot, self.operator) }
    }
}

fn no_processor_share() -> Reading {
    Known::unavailable("the record does not say", "replay again with this build")
}

fn not_by_operator() -> Known<Vec<OperatorRow>> {
    Known::unavailable("operators were not timed one by one", "`hourglass replay`")
}

/// Samples of one thing, and what they come to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    pub median: Reading,
    /// Median absolute deviation.
    pub spread: Reading,
    /// The median's part of `replay_total_us`.
    pub share: Reading,
    pub samples_us: Vec<f64>,
}

/// The cache that the pass was replayed on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheBlock {
    /// Cached tokens before the pass, and after it if it is committed.
    pub offset_before: u64,
    pub offset_after: u64,
    pub capacity: u64,
    /// What the real prefill that seeded the cache added to its counters.
    pub seeding: CacheCounters,
    /// What one committed pass adds to them.
    pub per_pass: CacheCounters,
}

/// Byte counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheCounters {
    pub logical_copy_bytes: u64,
    pub physical_growth_copy_bytes: u64,
    pub growth_copy_bytes: u64,
    pub slice_write_bytes: u64,
}

impl Timing {
    /// Median and spread of `samples_us`; `share` is left to [`Replay::total`].
    ///
    /// # Errors
    /// No samples, or one that is not finite.
    pub fn new(samples_us: Vec<f64>) -> Result<Timing, crate::SamplesError> {
        let samples = Samples::new(&samples_us)?;
        let n = samples.count() as u64;
        Ok(Timing {
            median: Reading::measured(samples.median(), Unit::Microseconds, n),
            spread: Reading::measured(samples.median_absolute_deviation(), Unit::Microseconds, n),
            share: Known::unavailable("it is not part of the replay total", "read the rows that are"),
            samples_us,
        })
    }

    /// The smallest sample.
    pub fn lowest(&self) -> Reading {
        let lowest = self.samples_us.iter().copied().fold(f64::INFINITY, f64::min);
        Reading::measured(lowest, Unit::Microseconds, self.samples_us.len() as u64)
    }
}

impl Replay {
    /// A case that was not measured: no rows, no total, and why.
    pub fn not_measured(checkpoint: &str, workload: Workload, reason: &str) -> Replay {
        let how = "remove the cause and replay again";
        let workload_id = workload.id();
        Replay {
            checkpoint: checkpoint.to_owned(),
            workload,
            workload_id,
            coverage: Coverage::incomplete(reason),
            groups: Vec::new(),
            absent: Vec::new(),
            operators: Known::unavailable(reason, how),
            sampling: Known::unavailable(reason, how),
            replay_total_us: Known::unavailable(reason, how),
            dispatch_floor: Known::unavailable(reason, how),
            whole_pass: Known::unavailable(reason, how),
            unexplained_us: Known::unavailable(reason, how),
            cache: Known::unavailable(reason, how),
            processor_share: Known::unavailable(reason, how),
            round_order: Vec::new(),
        }
    }

    /// Whether its rows are a device's own time, which nothing of the host is in.
    pub fn is_by_device(&self) -> bool {
        self.coverage.is_complete() && self.dispatch_floor.known().is_none()
    }

    /// Whose clock its rows are by.
    pub(crate) fn clock(&self) -> &'static str {
        if self.is_by_device() { "the GPU's own" } else { "the host's" }
    }

    /// Fills in the total, the shares, each group's rates and the unexplained part from the rows' medians.
    pub fn total(&mut self) {
        let groups = self.groups_us();
        let sampling = self.sampling.known().and_then(|timing| timing.median.value()).unwrap_or(0.0);
        let total = groups + sampling;
        let n = self.round_order.len() as u64;
        self.replay_total_us = Reading::measured(total, Unit::Microseconds, n);
        let operators = match &mut self.operators {
            Known::Is(operators) => operators.as_mut_slice(),
            Known::Unavailable(_) => &mut [],
        };
        for row in self.groups.iter_mut().chain(operators.iter_mut().map(|operator| &mut operator.row)) {
            let Some(median) = row.timing.median.value() else { continue };
            row.timing.share = Reading::ratio(median, total, Unit::Share, n);
            let bytes = (row.bytes_read + row.bytes_written) as f64;
            row.bandwidth = Reading::ratio(bytes / 1e3, median, Unit::GigabytesPerSecond, n);
            row.arithmetic = Reading::ratio(row.flops as f64 / 1e3, median, Unit::GigaflopsPerSecond, n);
        }
        if let Known::Is(timing) = &mut self.sampling {
            timing.share = Reading::ratio(sampling, total, Unit::Share, n);
        }
        if let Some(whole) = self.whole_pass.known().and_then(|timing| timing.median.value()) {
            self.unexplained_us = Reading::measured(whole - groups, Unit::Microseconds, n);
        }
    }

    /// The group with the largest median.
    pub fn largest(&self) -> Option<&GroupRow> {
        let measured = self.groups.iter().filter_map(|row| Some((row, row.timing.median.value()?)));
        measured.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(row, _)| row)
    }

    /// The checks of a complete case: shares sum to 1, medians to the total, and medians are those of the samples.
    pub fn checks(&self) -> Vec<Check> {
        if !self.coverage.is_complete() {
            return Vec::new();
        }
        let phase = self.workload.phase.name();
        let timings = || self.groups.iter().map(|row| &row.timing).chain(self.sampling.known());
        let shares: f64 = timings().filter_map(|timing| timing.share.value()).sum();
        let medians: f64 = timings().filter_map(|timing| timing.median.value()).sum();
        let again: f64 =
            timings().filter_map(|timing| Samples::new(&timing.samples_us).ok()).map(|samples| samples.median()).sum();
        let mut checks = vec![
            Check::sums(format!("{phase} replay: shares sum to 1"), 1.0, shares),
            Check::sums(
                format!("{phase} replay: medians sum to the total"),
                self.replay_total_us.value().unwrap_or(0.0),
                medians,
            ),
            Check::sums(format!("{phase} replay: medians are those of the samples"), medians, again),
            Check::counts(
                format!("{phase} replay: one sample per row and round"),
                (self.round_order.len() * timings().count()) as u64,
                timings().map(|timing| timing.samples_us.len() as u64).sum(),
            ),
        ];
        if let Known::Is(operators) = &self.operators {
            type Count = (&'static str, fn(&GroupRow) -> u64);
            let counts: [Count; 4] = [
                ("calls", |row| row.calls),
                ("bytes read", |row| row.bytes_read),
                ("bytes written", |row| row.bytes_written),
                ("flops", |row| row.flops),
            ];
            for (what, count) in counts {
                checks.push(Check::counts(
                    format!("{phase} replay: the operators' {what} sum to the groups'"),
                    self.groups.iter().map(count).sum(),
                    operators.iter().map(|operator| count(&operator.row)).sum(),
                ));
            }
            checks.push(Check::counts(
                format!("{phase} replay: one sample per operator and round"),
                (self.round_order.len() * operators.len()) as u64,
                operators.iter().map(|operator| operator.row.timing.samples_us.len() as u64).sum(),
            ));
        }
        checks
    }

    /// `unexplained_us` as a part of the whole pass.
    pub fn unexplained_share(&self) -> Option<f64> {
        let whole = self.whole_pass.known()?.median.value()?;
        Some(self.unexplained_us.value()? / whole)
    }

    fn groups_us(&self) -> f64 {
        self.groups.iter().filter_map(|row| row.timing.median.value()).sum()
    }
}
