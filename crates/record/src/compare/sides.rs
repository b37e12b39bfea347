//! Which records make a side of a comparison: those of one checkpoint (or arm, or build) among files that somebody gave.
//! Not here: what is compared (`request.rs`, `replays.rs`, `around.rs`), and finding files (the binary).

use crate::bench::{ArmKind, BenchRecord, Metric, Sample};
use crate::capture::reduced::CaptureRecord;
use crate::ceilings::Ceilings;
use crate::conditions::Conditions;
use crate::evidence::EvidenceRef;
use crate::read::{ReadError, Record, read, schema_in};
use crate::replay::Replay;
use crate::replay::cases::ReplayRecord;
use crate::request::RequestClock;
use crate::subject::Subject;
use crate::timeline::TimelineRecord;
use crate::workload::Workload;

/// Records that were read, of the kinds that can be compared.
#[derive(Debug, Default)]
pub struct Collection {
    records: Vec<(EvidenceRef, Loaded)>,
    /// Files of other kinds.
    pub others: Vec<EvidenceRef>,
}

#[derive(Debug)]
enum Loaded {
    Bench(Box<BenchRecord>),
    Replay(Box<ReplayRecord>),
    Timeline(Box<TimelineRecord>),
    Capture(Box<CaptureRecord>),
    Ceilings(Box<Ceilings>),
}

/// What of a side was measured.
#[derive(Debug)]
pub struct Side<'a> {
    /// As given.
    pub name: String,
    pub requests: Vec<Clocked<'a>>,
    pub replays: Vec<Replayed<'a>>,
    pub timelines: Vec<(&'a EvidenceRef, &'a TimelineRecord)>,
    pub captures: Vec<(&'a EvidenceRef, &'a CaptureRecord)>,
    pub ceilings: Vec<(&'a EvidenceRef, &'a Ceilings)>,
}

/// The clocked requests of one arm.
#[derive(Clone, Debug)]
pub struct Clocked<'a> {
    pub evidence: &'a EvidenceRef,
    pub created: &'a str,
    /// What messages call it: the arm's or the checkpoint's name.
    pub name: &'a str,
    pub workload: &'a Workload,
    pub subject: Option<&'a Subject>,
    pub conditions: Option<&'a Conditions>,
    /// The run that it is an arm of, and which.
    pub run: &'a BenchRecord,
    pub arm: usize,
}

/// A replayed pass.
#[derive(Clone, Debug)]
pub struct Replayed<'a> {
    pub evidence: &'a EvidenceRef,
    pub created: &'a str,
    pub subject: Option<&'a Subject>,
    pub conditions: Option<&'a Conditions>,
    /// The record that it is a case of, and the case's name.
    pub run: &'a ReplayRecord,
    pub case: &'a str,
    pub replay: &'a Replay,
}

/// Why records make no side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SideError {
    #[error("{side}: its records hold {found}; say which by {side}#NAME")]
    Several { side: String, found: String },
    #[error("{side}: nothing in it is of '{wanted}'; it holds {found}")]
    Nobody { side: String, wanted: String, found: String },
    #[error(
        "{side}: holds nothing that can be compared{others}; give records of bench, replay, timeline, reduce or ceilings, or a \
         folder of them, such as a run of find"
    )]
    Nothing { side: String, others: String },
}

impl Collection {
    /// Reads a record and takes it in, if it is of a kind that can be compared.
    ///
    /// # Errors
    /// What is no record, or was changed after it was written.
    pub fn add(&mut self, evidence: EvidenceRef, bytes: &[u8]) -> Result<(), ReadError> {
        let name = evidence.file.clone();
        let loaded = match schema_in(&name, bytes)?.as_str() {
            BenchRecord::SCHEMA => Loaded::Bench(Box::new(read(&name, bytes)?)),
            ReplayRecord::SCHEMA => Loaded::Replay(Box::new(read(&name, bytes)?)),
            TimelineRecord::SCHEMA => Loaded::Timeline(Box::new(read(&name, bytes)?)),
            CaptureRecord::SCHEMA => Loaded::Capture(Box::new(read(&name, bytes)?)),
            Ceilings::SCHEMA => Loaded::Ceilings(Box::new(read(&name, bytes)?)),
            _ => {
                self.others.push(evidence);
                return Ok(());
            }
        };
        self.records.push((evidence, loaded));
        Ok(())
    }

    /// Files that were taken in, with when each was measured.
    pub fn records(&self) -> impl Iterator<Item = (&EvidenceRef, &str)> {
        self.records.iter().map(|(evidence, loaded)| {
            let created = match loaded {
                Loaded::Bench(record) => &record.created,
                Loaded::Replay(record) => &record.created,
                Loaded::Timeline(record) => &record.created,
                Loaded::Capture(record) => &record.created,
                Loaded::Ceilings(record) => &record.created,
            };
            (evidence, created.as_str())
        })
    }

    /// Files that are void by their own checks, and the first check that failed.
    pub fn void(&self) -> Vec<(&EvidenceRef, &str)> {
        self.records
            .iter()
            .filter_map(|(evidence, loaded)| {
                let checks = match loaded {
                    Loaded::Bench(record) => record.checks(),
                    Loaded::Replay(record) => record.checks(),
                    Loaded::Timeline(record) => record.checks(),
                    Loaded::Capture(record) => record.checks(),
                    Loaded::Ceilings(record) => record.checks(),
                };
                let check = checks.iter().find(|check| !check.passed)?;
                Some((evidence, check.name.as_str()))
            })
            .collect()
    }

    /// Everything, whoever it is of.
    pub fn all(&self) -> Side<'_> {
        let mut side = Side {
            name: String::new(),
            requests: Vec::new(),
            replays: Vec::new(),
            timelines: Vec::new(),
            captures: Vec::new(),
            ceilings: Vec::new(),
        };
        for (evidence, loaded) in &self.records {
            match loaded {
                Loaded::Bench(record) => side.take_bench(evidence, record),
                Loaded::Replay(record) => side.take_replay(evidence, record),
                Loaded::Timeline(record) => side.timelines.push((evidence, record)),
                Loaded::Capture(record) => side.captures.push((evidence, record)),
                Loaded::Ceilings(record) => side.ceilings.push((evidence, record)),
            }
        }
        side
    }

    /// The side called `name`: what is of `wanted` (an arm's or a checkpoint's name, or solution and checkpoint as
    /// `lab/selected`), or everything where that is of one checkpoint.
    ///
    /// # Errors
    /// Nothing there, nothing of `wanted`, or several that it might be.
    pub fn side(&self, name: &str, wanted: Option<&str>) -> Result<Side<'_>, SideError> {
        let mut side = self.all();
        name.clone_into(&mut side.name);
        if side.is_empty() && side.ceilings.is_empty() {
            let kinds: Vec<&str> = self.others.iter().map(|other| other.schema.as_str()).collect();
            let others = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
            return Err(SideError::Nothing { side: name.to_owned(), others });
        }
        let found = side.checkpoints();
        match wanted {
            Some(wanted) => {
                side.keep_named(wanted);
                if side.is_empty() {
                    let (wanted, found) = (wanted.to_owned(), found.join(", "));
                    return Err(SideError::Nobody { side: name.to_owned(), wanted, found });
                }
            }
            None if found.len() > 1 => {
                return Err(SideError::Several { side: name.to_owned(), found: found.join(", ") });
            }
            None => side.requests.retain(|clocked| !clocked.is_again()),
        }
        Ok(side)
    }
}

impl<'a> Side<'a> {
    fn take_bench(&mut self, evidence: &'a EvidenceRef, record: &'a BenchRecord) {
        for (index, arm) in record.arms.iter().enumerate() {
            self.requests.push(Clocked {
                evidence,
                created: &record.created,
                name: &arm.name,
                workload: &record.workload,
                subject: arm.subject.known(),
                conditions: arm.conditions.known(),
                run: record,
                arm: index,
            });
        }
    }

    fn take_replay(&mut self, evidence: &'a EvidenceRef, record: &'a ReplayRecord) {
        for case in &record.cases {
            let (subject, conditions) = (case.subject.known(), case.conditions.known());
            self.replays.push(Replayed {
                evidence,
                created: &record.created,
                subject,
                conditions,
                run: record,
                case: &case.case,
                replay: &case.replay,
            });
        }
    }

    /// Nothing was measured of anybody; the machine's ceilings are nobody's.
    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.replays.is_empty() && self.timelines.is_empty() && self.captures.is_empty()
    }

    /// Every checkpoint (of another engine: every arm) that something here is of, each once.
    pub fn checkpoints(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let requests = self.requests.iter().filter(|clocked| !clocked.is_again()).map(|clocked| clocked.checkpoint());
        let replays = self.replays.iter().map(|replayed| replayed.replay.checkpoint.as_str());
        let timelines = self.timelines.iter().map(|(_, record)| record.subject.checkpoint.as_str());
        let captures = self.captures.iter().map(|(_, record)| record.subject.checkpoint.as_str());
        for name in requests.chain(replays).chain(timelines).chain(captures) {
            if !found.iter().any(|known| known == name) {
                found.push(name.to_owned());
            }
        }
        found
    }

    /// Leaves what is of an arm or a checkpoint of this name. The machine's ceilings are of nobody.
    fn keep_named(&mut self, wanted: &str) {
        let named = |subject: Option<&Subject>, name: &str| {
            name == wanted
                || subject.is_some_and(|subject| format!("{}/{}", subject.solution, subject.checkpoint) == wanted)
        };
        let exact = self.requests.iter().any(|clocked| clocked.name == wanted);
        self.requests.retain(|clocked| {
            // An arm of this very name before the arms of that checkpoint, such as A/A.
            if exact {
                clocked.name == wanted
            } else {
                clocked.is_named(wanted) || named(clocked.subject, clocked.checkpoint())
            }
        });
        // `A/A` of a run is the control's checkpoint once more: nothing but its request is of it.
        self.replays.retain(|replayed| named(replayed.subject, &replayed.replay.checkpoint));
        self.timelines.retain(|(_, record)| named(Some(&record.subject), &record.subject.checkpoint));
        self.captures.retain(|(_, record)| named(Some(&record.subject), &record.subject.checkpoint));
    }

    /// Leaves what a build measured; `None` keeps the others.
    pub fn keep_build(&mut self, wanted: impl Fn(Option<&str>) -> bool) {
        let build = |conditions: Option<&'a Conditions>| {
            wanted(conditions.and_then(|conditions| conditions.binary.build_id.known()).map(String::as_str))
        };
        self.requests.retain(|clocked| build(clocked.conditions));
        self.replays.retain(|replayed| build(replayed.conditions));
        self.timelines.retain(|(_, record)| build(Some(&record.conditions)));
        self.captures.retain(|(_, record)| build(Some(&record.conditions)));
        self.ceilings.retain(|(_, record)| build(Some(&record.conditions)));
    }

    /// The conditions of the first thing that has them.
    pub fn conditions(&self) -> Option<&'a Conditions> {
        let requests = self.requests.iter().map(|clocked| clocked.conditions);
        let replays = self.replays.iter().map(|replayed| replayed.conditions);
        let timelines = self.timelines.iter().map(|(_, record)| Some(&record.conditions));
        let captures = self.captures.iter().map(|(_, record)| Some(&record.conditions));
        requests.chain(replays).chain(timelines).chain(captures).flatten().next()
    }

    /// The subject of the first thing that has one.
    pub fn subject(&self) -> Option<&'a Subject> {
        let requests = self.requests.iter().map(|clocked| clocked.subject);
        let replays = self.replays.iter().map(|replayed| replayed.subject);
        let timelines = self.timelines.iter().map(|(_, record)| Some(&record.subject));
        let captures = self.captures.iter().map(|(_, record)| Some(&record.subject));
        requests.chain(replays).chain(timelines).chain(captures).flatten().next()
    }

    /// Every file that something here is of, each once.
    pub fn evidence(&self) -> Vec<EvidenceRef> {
        let requests = self.requests.iter().map(|clocked| clocked.evidence);
        let replays = self.replays.iter().map(|replayed| replayed.evidence);
        let timelines = self.timelines.iter().map(|(evidence, _)| *evidence);
        let captures = self.captures.iter().map(|(evidence, _)| *evidence);
        let ceilings = self.ceilings.iter().map(|(evidence, _)| *evidence);
        let mut found: Vec<EvidenceRef> = Vec::new();
        for evidence in requests.chain(replays).chain(timelines).chain(captures).chain(ceilings) {
            if !found.iter().any(|known| known.sha256() == evidence.sha256()) {
                found.push(evidence.clone());
            }
        }
        found
    }

    /// Every workload here, each once: of requests first.
    pub fn workloads(&self) -> Vec<&'a Workload> {
        let requests = self.requests.iter().map(|clocked| clocked.workload);
        let timelines = self.timelines.iter().map(|(_, record)| &record.workload);
        let replays = self.replays.iter().map(|replayed| &replayed.replay.workload);
        let mut found: Vec<&'a Workload> = Vec::new();
        for workload in requests.chain(timelines).chain(replays) {
            if !found.contains(&workload) {
                found.push(workload);
            }
        }
        found
    }
}

impl<'a> Clocked<'a> {
    /// The checkpoint, or the arm's name where it is another engine's.
    fn checkpoint(&self) -> &'a str {
        self.subject.map_or(self.name, |subject| &subject.checkpoint)
    }

    fn is_named(&self, wanted: &str) -> bool {
        self.name == wanted
            || self.run.arms[self.arm].given == wanted
            || (self.checkpoint() == wanted && !self.is_again())
    }

    /// Whether it is the control of a run once more.
    fn is_again(&self) -> bool {
        self.run.arms[self.arm].kind == ArmKind::SameAgain
    }

    /// Clocks of the samples that count.
    pub fn clocks(&self) -> Vec<&'a RequestClock> {
        self.run.samples_of(self.arm).filter_map(Sample::counting).map(|measured| &measured.clock).collect()
    }

    /// Values of a metric, in the order of execution.
    pub fn values(&self, metric: Metric) -> Vec<f64> {
        self.clocks().into_iter().filter_map(|clock| metric.of(clock).value()).collect()
    }

    /// Why its time does not count.
    pub fn fault(&self) -> Option<String> {
        let arm = &self.run.arms[self.arm];
        (!arm.counts).then(|| format!("{}: {}", self.name, arm.reason.as_deref().unwrap_or("it does not count")))
    }

    /// The smallest difference that matters, as its run was told; a part of the control's value.
    pub fn band(&self) -> f64 {
        self.run.protocol.practical_percent / 100.0
    }
}
