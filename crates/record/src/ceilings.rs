//! `ceilings/1`: what a machine can do at most: bytes per second by footprint, operations per second by instruction, the cost
//! of meeting at a barrier and of starting a walk. Measuring them is `probe`'s; what a kernel reached of them is `replay.rs`'s.

use crate::bench::Surroundings;
use crate::check::Check;
use crate::conditions::Conditions;
use crate::identity::identity;
use crate::known::Known;
use crate::quantity::{Reading, Unit};
use crate::read::{Record, StoredId};
use crate::samples::{Samples, SamplesError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `ceilings/1`. Other records name the one that they used by [`Ceilings::id`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ceilings {
    pub schema: String,
    /// UTC, RFC 3339: when measuring ended.
    pub created: String,
    /// What was done; there is no model in it.
    pub workload: CeilingsWorkload,
    pub workload_id: String,
    /// `threads` is the largest number measured; no operator kernel is bound.
    pub conditions: Conditions,
    pub conditions_id: String,
    /// Part of the processors that this process got while every thread had work. Low: other load was present, and all rates
    /// are lower bounds.
    pub processor_share: Reading,
    /// What went on around this process meanwhile.
    pub surroundings: Surroundings,
    /// One entry per number of threads, ascending.
    pub threads: Vec<ThreadCeilings>,
    pub checks: Vec<Check>,
    /// A check failed: nothing here may be relied on.
    pub void: bool,
}

/// How the ceilings were measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CeilingsWorkload {
    /// Every quantity got one sample per round, in an order that starts one later each round.
    pub rounds: u64,
    /// A sample repeats its kernel until at least so long has passed.
    pub sample_ms: u64,
    /// Numbers of threads, ascending.
    pub threads: Vec<u64>,
    /// Streams that each worker read at once, ascending.
    pub streams: Vec<u64>,
    /// Buffers in huge pages, where the system grants them.
    pub huge_pages: bool,
}

/// What so many threads together can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThreadCeilings {
    pub threads: u64,
    pub bandwidth: Vec<BandwidthRow>,
    pub peaks: Vec<PeakRow>,
    /// All workers meeting once, in microseconds.
    pub barrier: Known<Measured>,
    /// Starting a walk on every worker and waiting for its end, in microseconds, without any work.
    pub dispatch: Known<Measured>,
}

/// Bytes per second of one kind of traffic over one footprint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BandwidthRow {
    pub level: Level,
    pub traffic: Traffic,
    /// Places from which each worker reads in turn.
    pub streams: u64,
    /// Bytes that all workers together go through before any byte comes up again; of a copy, both sides.
    pub footprint_bytes: Known<u64>,
    /// Largest footprint that this row is the ceiling of; absent for memory, which holds any, and where there is no rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_bytes: Option<u64>,
    /// In GB/s (10^9 bytes).
    pub rate: Known<Measured>,
}

/// Where the bytes are when they are read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    L2,
    L3,
    Memory,
}

impl Level {
    pub const fn name(self) -> &'static str {
        match self {
            Level::L2 => "L2",
            Level::L3 => "L3",
            Level::Memory => "memory",
        }
    }
}

/// What is done with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    /// Every byte is read once per pass.
    Read,
    /// Half of the bytes are read and as many written past the caches; both count.
    Copy,
}

impl Traffic {
    pub const fn name(self) -> &'static str {
        match self {
            Traffic::Read => "read",
            Traffic::Copy => "copy",
        }
    }
}

/// Operations per second of one instruction, with one way of feeding it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeakRow {
    pub path: InstructionPath,
    pub operands: Operands,
    /// In GFLOP/s (of integer instructions: 10^9 operations); a multiply-add is two.
    pub rate: Known<Measured>,
}

/// The instruction that multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum InstructionPath {
    /// `vfmadd` on 256-bit float32.
    #[serde(rename = "fp32-avx2")]
    Fp32Avx2,
    /// `vfmadd` on 512-bit float32.
    #[serde(rename = "fp32-avx512")]
    Fp32Avx512,
    /// `vpdpbusd` on 512 bits: unsigned by signed bytes into int32.
    #[serde(rename = "vpdpbusd")]
    Vpdpbusd,
    /// `vdpbf16ps` on 512 bits: pairs of bfloat16 into float32.
    #[serde(rename = "vdpbf16ps")]
    Vdpbf16ps,
    /// `tdpbssd`: tiles of signed bytes into int32.
    #[serde(rename = "amx-int8")]
    AmxInt8,
    /// `tdpbf16ps`: tiles of bfloat16 into float32.
    #[serde(rename = "amx-bf16")]
    AmxBf16,
    /// A GPU's tensor cores: bfloat16 into float32, by the widest instruction that its kernels have.
    #[serde(rename = "tensor-bf16")]
    TensorBf16,
}

impl InstructionPath {
    /// Those of processors.
    pub const ALL: [InstructionPath; 6] = [
        InstructionPath::Fp32Avx2,
        InstructionPath::Fp32Avx512,
        InstructionPath::Vpdpbusd,
        InstructionPath::Vdpbf16ps,
        InstructionPath::AmxInt8,
        InstructionPath::AmxBf16,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            InstructionPath::Fp32Avx2 => "fp32-avx2",
            InstructionPath::Fp32Avx512 => "fp32-avx512",
            InstructionPath::Vpdpbusd => "vpdpbusd",
            InstructionPath::Vdpbf16ps => "vdpbf16ps",
            InstructionPath::AmxInt8 => "amx-int8",
            InstructionPath::AmxBf16 => "amx-bf16",
            InstructionPath::TensorBf16 => "tensor-bf16",
        }
    }
}

/// Where the instruction's operands come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Operands {
    /// They stay in registers: what the unit does if nothing has to be brought to it.
    Registers,
    /// They are loaded from the first-level cache as a blocked matrix kernel loads them.
    Loads,
}

impl Operands {
    pub const fn name(self) -> &'static str {
        match self {
            Operands::Registers => "registers",
            Operands::Loads => "loads",
        }
    }
}

/// The samples of one quantity, one per round in their order, and what they come to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    pub median: Reading,
    /// Median absolute deviation.
    pub spread: Reading,
    pub samples: Vec<f64>,
}

impl Measured {
    /// # Errors
    /// No samples, or one that is not finite.
    pub fn new(samples: Vec<f64>, unit: Unit) -> Result<Measured, SamplesError> {
        let of = Samples::new(&samples)?;
        let n = of.count() as u64;
        Ok(Measured {
            median: Reading::measured(of.median(), unit, n),
            spread: Reading::measured(of.median_absolute_deviation(), unit, n),
            samples,
        })
    }

    /// The largest sample: what a rate's ceiling is, because other load can only take away from it.
    pub fn highest(&self) -> Reading {
        self.extreme(self.samples.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }

    /// The smallest sample: what a cost's ceiling is.
    pub fn lowest(&self) -> Reading {
        self.extreme(self.samples.iter().copied().fold(f64::INFINITY, f64::min))
    }

    fn extreme(&self, value: f64) -> Reading {
        match &self.median {
            Known::Is(median) => Reading::measured(value, median.unit(), self.samples.len() as u64),
            Known::Unavailable(missing) => Known::Unavailable(missing.clone()),
        }
    }
}

impl Ceilings {
    /// SHA-256 of the record's canonical JSON: no two measurements share it.
    pub fn id(&self) -> String {
        identity(self)
    }

    /// Whether they are of a GPU: then a thread stands for it, a barrier for one more kernel in a graph, and a dispatch for
    /// starting a graph and knowing of its end.
    pub fn is_of_device(&self) -> bool {
        self.conditions.host.device != "cpu"
    }

    /// Most bytes per second that `threads` threads read from a footprint of `footprint_bytes`, in GB/s.
    ///
    /// The footprint is everything that is touched before a byte is used again: the weights of a whole pass, not of the call
    /// at hand, if each pass reads every weight once. The best sample counts, of all numbers of streams and also of fewer
    /// threads: what these do, more can do by leaving the others idle. Samples that other load slowed down are no ceiling.
    pub fn bandwidth(&self, threads: u64, footprint_bytes: u64) -> Reading {
        self.rate(threads, footprint_bytes, Traffic::Read)
    }

    /// Most bytes per second that `threads` threads copy from memory to memory, in GB/s; those read and those written both
    /// count.
    pub fn copy_bandwidth(&self, threads: u64) -> Reading {
        self.rate(threads, u64::MAX, Traffic::Copy)
    }

    /// Most operations per second of `threads` threads through one instruction, in GFLOP/s, however it was fed. As for
    /// [`Ceilings::bandwidth`] the best sample of so many threads or fewer.
    pub fn peak(&self, path: InstructionPath, threads: u64) -> Reading {
        let entries = match self.up_to(threads) {
            Ok(entries) => entries,
            Err(missing) => return missing,
        };
        let what = format!("{} on {threads} threads", path.name());
        let rows = entries.flat_map(|entry| &entry.peaks).filter(|row| row.path == path);
        best(rows.map(|row| &row.rate), &what)
    }

    /// All of `threads` workers meeting once at the quickest, in microseconds.
    pub fn barrier(&self, threads: u64) -> Reading {
        self.cost(threads, |entry| &entry.barrier)
    }

    /// Starting a walk on `threads` workers and waiting for its end at the quickest, in microseconds.
    pub fn dispatch(&self, threads: u64) -> Reading {
        self.cost(threads, |entry| &entry.dispatch)
    }

    /// Fills in the ids, the checks and whether one of them voids the record.
    pub fn close(&mut self) {
        self.workload_id = identity(&self.workload);
        self.conditions_id = self.conditions.id();
        self.checks = self.cross_foot();
        self.void = self.checks.iter().any(|check| !check.passed);
    }

    fn rate(&self, threads: u64, footprint: u64, traffic: Traffic) -> Reading {
        let entries = match self.up_to(threads) {
            Ok(entries) => entries,
            Err(missing) => return missing,
        };
        // The innermost level that holds the footprint; its rows are those with the smallest bound.
        let fits = |row: &&BandwidthRow| {
            let measured = row.level == Level::Memory || row.up_to_bytes.is_some();
            row.traffic == traffic && measured && row.up_to_bytes.is_none_or(|most| footprint <= most)
        };
        let bound = |row: &BandwidthRow| row.up_to_bytes.unwrap_or(u64::MAX);
        let innermost = |entry: &'_ ThreadCeilings| entry.bandwidth.iter().filter(fits).map(bound).min();
        let rows = entries.flat_map(|entry| {
            let innermost = innermost(entry);
            entry.bandwidth.iter().filter(fits).filter(move |row| Some(bound(row)) == innermost)
        });
        let what = format!("{} of {footprint} bytes on {threads} threads", traffic.name());
        best(rows.map(|row| &row.rate), &what)
    }

    fn cost(&self, threads: u64, pick: fn(&ThreadCeilings) -> &Known<Measured>) -> Reading {
        match self.entry(threads).map(pick) {
            Ok(Known::Is(measured)) => measured.lowest(),
            Ok(Known::Unavailable(missing)) => Known::Unavailable(missing.clone()),
            Err(missing) => missing,
        }
    }

    /// The entry of `threads` threads first, then those of fewer.
    fn up_to(&self, threads: u64) -> Result<impl Iterator<Item = &ThreadCeilings>, Reading> {
        let own = self.entry(threads)?;
        Ok(std::iter::once(own).chain(self.threads.iter().filter(move |entry| entry.threads < threads)))
    }

    fn entry(&self, threads: u64) -> Result<&ThreadCeilings, Reading> {
        self.threads.iter().find(|entry| entry.threads == threads).ok_or_else(|| {
            Known::unavailable(
                format!("no ceiling was measured for {threads} threads"),
                format!("`hourglass ceilings --refresh --threads {threads}`"),
            )
        })
    }

    fn measured(&self) -> impl Iterator<Item = &Measured> {
        self.threads.iter().flat_map(|entry| {
            let bandwidth = entry.bandwidth.iter().map(|row| &row.rate);
            let peaks = entry.peaks.iter().map(|row| &row.rate);
            bandwidth.chain(peaks).chain([&entry.barrier, &entry.dispatch]).filter_map(Known::known)
        })
    }
}

/// The largest sample; if there is none, why not.
fn best<'a>(rates: impl Iterator<Item = &'a Known<Measured>>, what: &str) -> Reading {
    let mut best = Known::unavailable(format!("{what}: not measured"), "`hourglass ceilings --refresh`");
    for rate in rates {
        match rate {
            Known::Is(measured) if measured.highest().value() > best.value() => best = measured.highest(),
            Known::Unavailable(missing) if best.value().is_none() => best = Known::Unavailable(missing.clone()),
            _ => {}
        }
    }
    best
}

impl Record for Ceilings {
    const SCHEMA: &'static str = "ceilings/1";

    fn identities(&self) -> Vec<StoredId<'_>> {
        vec![
            StoredId { field: "workload_id", stored: &self.workload_id, computed: identity(&self.workload) },
            StoredId { field: "conditions_id", stored: &self.conditions_id, computed: self.conditions.id() },
        ]
    }

    /// Medians are those of the samples, none of which is negative, every quantity has a sample per round, and every number of
    /// threads has an entry.
    fn cross_foot(&self) -> Vec<Check> {
        let stated: f64 = self.measured().filter_map(|measured| measured.median.value()).sum();
        let again: f64 =
            self.measured().filter_map(|measured| Samples::new(&measured.samples).ok()).map(|all| all.median()).sum();
        let samples = self.measured().map(|measured| measured.samples.len() as u64).sum();
        let agree = self.threads.iter().zip(&self.workload.threads).filter(|(entry, n)| entry.threads == **n).count();
        let negative = self.measured().flat_map(|measured| &measured.samples).filter(|sample| **sample < 0.0).count();
        vec![
            Check::sums("medians are those of the samples", again, stated),
            Check::counts("samples below zero", 0, negative as u64),
            Check::counts(
                "one sample per quantity and round",
                self.measured().count() as u64 * self.workload.rounds,
                samples,
            ),
            Check::counts("an entry per number of threads", self.workload.threads.len() as u64, agree as u64),
        ]
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }

    fn void(&self) -> bool {
        self.void
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::conditions::{Binary, Host};
    use crate::read::read;

    fn rate(samples: &[f64]) -> Known<Measured> {
        Known::Is(Measured::new(samples.to_vec(), Unit::GigabytesPerSecond).unwrap())
    }

    fn row(level: Level, streams: u64, up_to_bytes: Option<u64>, samples: &[f64]) -> BandwidthRow {
        let (traffic, footprint_bytes) = (Traffic::Read, Known::Is(up_to_bytes.unwrap_or(1 << 29) / 2));
        BandwidthRow { level, traffic, streams, footprint_bytes, up_to_bytes, rate: rate(samples) }
    }

    fn missing_reading() -> Reading {
        Known::unavailable("a test", "nothing")
    }

    fn example() -> Ceilings {
        let missing = || Known::unavailable("a test", "nothing");
        let text = || Known::unavailable("a test", "nothing");
        let conditions = Conditions {
            binary: Binary { version: "0".into(), build_id: text(), commit: text(), dirty: Known::Is(false) },
            host: Host {
                device: "cpu".into(),
                cpu_model: text(),
                processors: 2,
                memory_bytes: Known::Is(1 << 30),
                operating_system: text(),
                kernel_release: text(),
                huge_pages: text(),
                driver: text(),
            },
            threads: 2,
            pinned: true,
            features: vec!["avx2".into()],
            kernels: Vec::new(),
        };
        let peak = |path, operands, rate| PeakRow { path, operands, rate };
        let entry = |threads: u64| ThreadCeilings {
            threads,
            bandwidth: vec![
                row(Level::Memory, 4, None, &[10.0 * threads as f64, 12.0 * threads as f64]),
                row(Level::Memory, 8, None, &[13.0 * threads as f64; 2]),
                row(Level::L2, 4, Some(threads << 20), &[100.0; 2]),
                row(Level::L2, 8, Some(threads << 20), &[90.0; 2]),
                row(Level::L3, 4, Some(32 << 20), &[50.0; 2]),
                row(Level::L3, 8, Some(32 << 20), &[40.0; 2]),
            ],
            peaks: vec![
                peak(InstructionPath::Fp32Avx2, Operands::Registers, rate(&[70.0; 2])),
                peak(InstructionPath::Fp32Avx2, Operands::Loads, rate(&[60.0; 2])),
                peak(InstructionPath::AmxInt8, Operands::Registers, Known::unavailable("no AMX", "another machine")),
            ],
            barrier: Known::Is(Measured::new(vec![0.2, 0.4], Unit::Microseconds).unwrap()),
            dispatch: missing(),
        };
        let mut ceilings = Ceilings {
            schema: Ceilings::SCHEMA.into(),
            created: "2026-01-01T00:00:00Z".into(),
            workload: CeilingsWorkload {
                rounds: 2,
                sample_ms: 5,
                threads: vec![1, 2],
                streams: vec![4, 8],
                huge_pages: true,
            },
            workload_id: String::new(),
            conditions,
            conditions_id: String::new(),
            processor_share: missing_reading(),
            surroundings: Surroundings {
                seconds: 1.0,
                steal: missing_reading(),
                others: missing_reading(),
                cpu_pressure: missing_reading(),
                memory_pressure: missing_reading(),
                involuntary_switches: Known::Is(0),
                frequency_before: Known::Is(3.0),
                frequency_after: Known::Is(3.0),
                load_before: Known::Is(0.5),
            },
            threads: vec![entry(1), entry(2)],
            checks: Vec::new(),
            void: false,
        };
        ceilings.close();
        ceilings
    }

    #[test]
    fn the_innermost_level_that_holds_the_footprint_is_the_ceiling_and_its_best_streams_count() {
        let ceilings = example();
        let at = |threads, bytes| ceilings.bandwidth(threads, bytes).value().unwrap();
        assert_eq!((at(1, 1 << 20), at(1, (1 << 20) + 1), at(2, (1 << 20) + 1)), (100.0, 50.0, 100.0));
        assert_eq!((at(2, 32 << 20), at(2, (32 << 20) + 1), at(2, u64::MAX)), (50.0, 26.0, 26.0));
        assert_eq!(ceilings.peak(InstructionPath::Fp32Avx2, 1).value(), Some(70.0));
        assert_eq!(ceilings.barrier(2).value(), Some(0.2), "the quickest");
    }

    #[test]
    fn what_other_load_took_away_is_no_ceiling() {
        let mut ceilings = example();
        // Two threads that hardly got a processor, but for one sample: the best of them counts, or what one thread did.
        let two = &mut ceilings.threads[1];
        for row in &mut two.bandwidth {
            row.rate = rate(&[0.5, 0.7]);
        }
        two.bandwidth[1].rate = rate(&[0.5, 25.0]);
        for row in two.peaks.iter_mut().filter(|row| row.path == InstructionPath::Fp32Avx2) {
            row.rate = rate(&[0.1, 0.2]);
        }
        assert_eq!(ceilings.bandwidth(2, u64::MAX).value(), Some(25.0));
        assert_eq!(ceilings.bandwidth(2, 1 << 20).value(), Some(100.0), "one thread's");
        assert_eq!(ceilings.peak(InstructionPath::Fp32Avx2, 2).value(), Some(70.0), "one thread's");
        assert_eq!(ceilings.bandwidth(1, u64::MAX).value(), Some(13.0), "fewer threads do not get more threads' rates");
        assert_eq!(ceilings.bandwidth(1, 1 << 20).value(), Some(100.0));
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let ceilings = example();
        let why = |reading: Reading| reading.missing().unwrap().unavailable.clone();
        assert!(why(ceilings.bandwidth(3, 1)).contains("3 threads"));
        assert_eq!(why(ceilings.peak(InstructionPath::AmxInt8, 2)), "no AMX");
        assert!(why(ceilings.peak(InstructionPath::Vdpbf16ps, 2)).contains("vdpbf16ps"));
        assert!(why(ceilings.copy_bandwidth(1)).contains("copy"));
        assert_eq!(why(ceilings.dispatch(1)), "a test");
    }

    #[test]
    fn a_record_comes_back_and_a_changed_one_does_not() {
        let ceilings = example();
        assert!(!ceilings.void, "{:?}", ceilings.checks);
        let text = serde_json::to_string(&ceilings).unwrap();
        let again: Ceilings = read("x", text.as_bytes()).unwrap();
        assert_eq!((again.id(), again), (ceilings.id(), ceilings.clone()));
        let mut changed = ceilings.clone();
        changed.workload.rounds = 3;
        let text = serde_json::to_string(&changed).unwrap();
        let error = read::<Ceilings>("x", text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("workload_id"), "{error}");
        let mut changed = ceilings;
        let Known::Is(measured) = &mut changed.threads[0].bandwidth[0].rate else { panic!("measured") };
        measured.samples[0] = 99.0;
        let text = serde_json::to_string(&changed).unwrap();
        let error = read::<Ceilings>("x", text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("medians"), "{error}");
    }
}
