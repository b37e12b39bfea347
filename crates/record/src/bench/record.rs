//! `bench/1`: several arms clocked on one workload in one alternated run, with every sample.
//! Not here: its parts (`arm.rs`, `sample.rs`, `comparison.rs`), and how to run one.

use crate::bench::arm::Arm;
use crate::bench::comparison::{MetricComparison, Noise};
use crate::bench::metric::Metric;
use crate::bench::sample::{Sample, Slot};
use crate::check::Check;
use crate::conditions::{Binary, Host};
use crate::coverage::Coverage;
use crate::known::Known;
use crate::read::{Record, StoredId, alike};
use crate::samples::Samples;
use crate::statistics::of_record::comparisons;
use crate::workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `bench/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchRecord {
    pub schema: String,
    /// UTC, RFC 3339.
    pub created: String,
    pub workload: Workload,
    pub workload_id: String,
    pub protocol: BenchProtocol,
    /// Of the process that ran the comparison.
    pub binary: Binary,
    pub host: Host,
    /// The planned order, all of it.
    pub schedule: Vec<Slot>,
    /// The control first.
    pub arms: Vec<Arm>,
    /// In the order of execution.
    pub samples: Vec<Sample>,
    /// Arm by arm, metric by metric; an arm whose time does not count has none.
    pub comparisons: Vec<MetricComparison>,
    /// One row per metric that could be assessed.
    pub noise: Known<Vec<Noise>>,
    pub coverage: Coverage,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// How the comparison was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchProtocol {
    /// How arms alternate, in words.
    pub design: String,
    /// Fresh processes per arm.
    pub repeats: u64,
    /// Complete requests in each process before the measured one.
    pub warmup: u64,
    /// Pause between processes.
    pub cooldown_s: f64,
    /// A process that takes longer is ended and its sample lost.
    pub time_limit_s: f64,
    /// Of the resampling; the prompt's is the workload's.
    pub seed: u64,
    /// Of every interval, e.g. 0.95.
    pub confidence: f64,
    /// A difference smaller than this is called none where the interval shows it.
    pub practical_percent: f64,
    /// Share of the processors that others may use (and the hypervisor withhold) before a sample is marked.
    pub load_limit: f64,
    /// When a marked sample is left out.
    pub exclusion_rule: String,
}

impl BenchRecord {
    /// Fills in the workload's id, the checks, and whether one of them voids the record.
    pub fn close(&mut self) {
        self.workload_id = self.workload.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }

    /// Samples of an arm, in the order of execution.
    pub fn samples_of(&self, arm: usize) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.arm == arm as u64)
    }

    /// Values of a metric over an arm's samples that count, in the order of execution; a sample without it has none.
    pub fn values(&self, arm: usize, metric: Metric) -> Vec<f64> {
        let counting = self.samples_of(arm).filter_map(Sample::counting);
        counting.filter_map(|measured| metric.of(&measured.clock).value()).collect()
    }

    /// The comparison of an arm with the control in one metric.
    pub fn comparison(&self, arm: usize, metric: Metric) -> Option<&MetricComparison> {
        self.comparisons.iter().find(|row| row.arm == arm as u64 && row.metric == metric)
    }

    /// The arm of this name, as resolved or as given.
    pub fn arm_named(&self, name: &str) -> Option<usize> {
        let exact = self.arms.iter().position(|arm| arm.name == name);
        exact.or_else(|| self.arms.iter().position(|arm| arm.given == name))
    }

    fn order_checks(&self, checks: &mut Vec<Check>) {
        let total = self.samples.len() as u64;
        let in_place = self.samples.iter().enumerate().filter(|(index, sample)| {
            let slot = self.schedule.get(*index);
            sample.order == *index as u64
                && slot.is_some_and(|slot| slot.arm == sample.arm && slot.block == sample.block)
        });
        checks.push(Check::counts("samples stand in the planned order", total, in_place.count() as u64));
        let known = self.schedule.iter().filter(|slot| (slot.arm as usize) < self.arms.len()).count();
        checks.push(Check::counts("every slot names an arm", self.schedule.len() as u64, known as u64));
        if self.coverage.is_complete() {
            checks.push(Check::counts("every planned process ran", self.schedule.len() as u64, total));
            let lost = self.samples.iter().filter(|sample| sample.measured().is_none()).count();
            checks.push(Check::counts("no sample of a complete run is lost", 0, lost as u64));
        }
    }

    fn arm_checks(&self, index: usize, arm: &Arm, checks: &mut Vec<Check>) {
        let name = &arm.name;
        let measured: Vec<_> = self.samples_of(index).filter_map(Sample::measured).collect();
        let timed: Vec<_> = measured.iter().filter(|sample| !sample.clock.token_seconds.is_empty()).collect();
        let whole =
            timed.iter().filter(|sample| sample.clock.token_seconds.len() as u64 == self.workload.output_tokens);
        checks.push(Check::counts(
            format!("{name}: requests with a time per generated token"),
            timed.len() as u64,
            whole.count() as u64,
        ));
        let seconds = |reading: &crate::Reading| reading.value().unwrap_or(0.0);
        let (mut prefill, mut first, mut decode, mut steps) = (0.0, 0.0, 0.0, 0.0);
        for sample in &timed {
            prefill += seconds(&sample.clock.prefill);
            first += sample.clock.token_seconds[0];
            decode += seconds(&sample.clock.decode);
            steps += sample.clock.token_seconds[1..].iter().sum::<f64>();
        }
        // Rounded decimals of other engines' prefill are allowed for by the protocol; ours are the same number.
        if self.is_ours(index) {
            checks.push(Check::sums(format!("{name}: prefill is the first tokens' time"), prefill, first));
        }
        checks.push(Check::sums(format!("{name}: decode is the other tokens' time"), decode, steps));
        let wirings: Vec<_> = measured.iter().flat_map(|sample| &sample.wiring).collect();
        if !wirings.is_empty() {
            let planned = wirings.iter().map(|wiring| wiring.planned).sum();
            let dispatched = wirings.iter().map(|wiring| wiring.dispatched).sum();
            checks.push(Check::counts(format!("{name} wiring: calls x passes"), planned, dispatched));
            let layers = wirings.iter().map(|wiring| wiring.layers).sum();
            let as_planned = wirings.iter().map(|wiring| wiring.layers_as_planned).sum();
            checks.push(Check::counts(format!("{name} wiring: layers dispatched as planned"), layers, as_planned));
        }
        for row in &arm.summary {
            let again = Samples::new(&self.values(index, row.metric)).map(|samples| samples.median());
            if let (Some(stored), Ok(again)) = (row.median.value(), again) {
                checks.push(Check::sums(format!("{name}: median {}", row.metric.name()), again, stored));
            }
        }
    }
}

impl Record for BenchRecord {
    const SCHEMA: &'static str = "bench/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        let mut ids = vec![StoredId { field: "workload_id", stored: &self.workload_id, computed: self.workload.id() }];
        for arm in &self.arms {
            if let (Known::Is(conditions), Known::Is(stored)) = (&arm.conditions, &arm.conditions_id) {
                ids.push(StoredId { field: "arms.conditions_id", stored, computed: conditions.id() });
            }
        }
        ids
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn cross_foot(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        self.order_checks(&mut checks);
        for (index, arm) in self.arms.iter().enumerate() {
            self.arm_checks(index, arm, &mut checks);
        }
        let of_counting = self.comparisons.iter().filter(|row| {
            let counts = |index: u64| self.arms.get(index as usize).is_some_and(|arm| arm.counts);
            row.arm > 0 && counts(row.arm) && counts(0)
        });
        checks.push(Check::counts(
            "only arms whose times count are compared",
            self.comparisons.len() as u64,
            of_counting.count() as u64,
        ));
        checks
    }

    /// Comparisons are what the samples give. Their sentences are words of the build that wrote them.
    fn changed(&self) -> Option<&'static str> {
        let numbers = |rows: &[MetricComparison]| {
            let plain = rows.iter().map(|row| MetricComparison { sentence: String::new(), ..row.clone() });
            serde_json::to_value(plain.collect::<Vec<_>>()).unwrap_or_default()
        };
        let same = comparisons(self).is_ok_and(|again| alike(&numbers(&again), &numbers(&self.comparisons)));
        (!same).then_some("the comparisons")
    }

    fn void(&self) -> bool {
        self.void
    }
}
