//! The folder of a walk: reading its records as views, naming them, and the record that follows.
//! Not here: how any of them was made.

use std::path::Path;

use anyhow::Result;
use ops::Registry;
use record::bench::BenchRecord;
use record::find::{FindProtocol, FindStep, Ranking, RequestSummary, RungText, Seen, Views};
use record::{EvidenceRef, FindRecord, Known, Record, TimelineRecord, Workload};

use crate::failure::usage;
use crate::load::Solution;
use crate::store;

/// What a folder holds.
pub(super) struct Folder {
    checkpoint: String,
    views: Views,
}

/// A record of the folder, if it is there, of this kind, whole and not void.
pub(super) fn read<R: Record>(directory: &Path, file: &str) -> Option<Seen<R>> {
    let path = directory.join(file);
    let bytes = store::found(path).1?;
    let record: R = record::read(file, &bytes).ok()?;
    let evidence = EvidenceRef::of(R::SCHEMA, file, &bytes);
    (!record.void()).then_some(Seen { record, evidence })
}

/// What a file of the folder is called, if it is a record.
pub(super) fn evidence(directory: &Path, file: &str) -> Option<EvidenceRef> {
    let (found, _) = store::found(directory.join(file));
    EvidenceRef::by_digest(found.schema.ok()?, file, &found.sha256).ok()
}

/// The rungs whose parent is this one, in the ladder's words; not what stands beside the ladder.
pub(super) fn following(registry: &Registry, checkpoint: &str) -> Vec<RungText> {
    let child = |rung: &&'static ops::Checkpoint| rung.parent.is_some_and(|parent| parent.name == checkpoint);
    let text = |rung: &'static ops::Checkpoint| RungText {
        name: rung.name.to_owned(),
        change: rung.change.to_owned(),
        hypothesis: rung.hypothesis.to_owned(),
    };
    registry.checkpoints().filter(child).filter(|rung| !ops::ladder::beside::has(rung.name)).map(text).collect()
}

/// The registry that a walk with these flags used.
pub(super) fn registry_of(flags: &[String]) -> Registry {
    let lab = flags.windows(2).any(|pair| pair[0] == "--solution" && pair[1] == Solution::Lab.name());
    let registry = if lab { Solution::Lab.registry() } else { Solution::Hourglass.registry() };
    // Its checkpoints are what is asked for: no GPU is needed to rank what one has measured.
    if flags.iter().any(|flag| flag == "--device") { registry.on_device(&[]) } else { registry }
}

/// What a folder's `find.json` says of the walk; of a folder without one what its clock says.
///
/// # Errors
/// Neither is there.
pub(super) fn said(directory: &Path) -> Result<(Workload, FindProtocol, Vec<FindStep>)> {
    let name = "find.json";
    let path = directory.join(name);
    if path.is_file() {
        let bytes = crate::replay::files::bytes("--from", &path)?;
        let record: FindRecord =
            record::read(&path.display().to_string(), &bytes).map_err(|error| usage(error.to_string()))?;
        return Ok((record.workload, record.protocol, record.steps));
    }
    let Some(clock) = read::<BenchRecord>(directory, "clock.json") else {
        return Err(usage(format!(
            "--from {}: expected a folder that `hourglass find` made, found neither find.json nor a whole clock.json",
            directory.display()
        )));
    };
    let (workload, arm) = (clock.record.workload, clock.record.arms.first());
    let mut flags = vec!["--model".to_owned(), workload.model.clone()];
    // A GPU is called by its flag's value and, in brackets, its name.
    let host = arm.and_then(|arm| arm.conditions.known()).map(|conditions| &conditions.host);
    let device = host.and_then(|host| host.device.split(' ').next()).filter(|device| *device != "cpu");
    flags.extend(device.into_iter().flat_map(|device| ["--device", device]).map(str::to_owned));
    let checkpoint = arm.map_or_else(String::new, |arm| arm.name.clone());
    let protocol = FindProtocol { checkpoint, quick: false, budget_s: 0.0, flags };
    Ok((workload, protocol, Vec::new()))
}

/// # Errors
/// The file is about another checkpoint. One that does not say which is believed.
fn one_checkpoint(file: &str, found: Option<&str>, expected: &str) -> Result<()> {
    match found.filter(|found| *found != expected) {
        None => Ok(()),
        Some(found) => {
            Err(usage(format!("{file} is of '{found}', expected '{expected}'; rank a folder that one walk made")))
        }
    }
}

impl Folder {
    /// What is there and cannot be used is told: a view that is left out makes a ranking poorer without anybody seeing why.
    pub(super) fn look(directory: &Path, checkpoint: &str, flags: Vec<String>, registry: &Registry) -> Folder {
        let of_views = ["clock", "replay", "timeline", "ceilings", "wiring", "capture-prefill", "capture-decode"];
        for file in of_views.map(|view| format!("{view}.json")) {
            let found = store::found(directory.join(&file)).1;
            let unusable = found.and_then(|bytes| record::verify(&file, &bytes).err());
            if let Some(why) = unusable {
                crate::output::note(format_args!("hourglass: {}: left out: {why}", directory.display()));
            }
        }
        Folder::read(directory, checkpoint, flags, registry)
    }

    pub(super) fn read(directory: &Path, checkpoint: &str, flags: Vec<String>, registry: &Registry) -> Folder {
        let rungs = following(registry, checkpoint).into_iter().filter_map(|text| {
            let plan = read(directory, &format!("wiring-{}.json", text.name))?;
            Some((text, plan))
        });
        let views = Views {
            clock: read(directory, "clock.json"),
            // Walks of earlier builds replayed each phase apart.
            prefill: read(directory, "replay.json").or_else(|| read(directory, "replay-prefill.json")),
            decode: read(directory, "replay.json").or_else(|| read(directory, "replay-decode.json")),
            timeline: read::<TimelineRecord>(directory, "timeline.json"),
            ceilings: read(directory, "ceilings.json"),
            wiring: read(directory, "wiring.json"),
            captures: ["capture-prefill.json", "capture-decode.json"]
                .iter()
                .filter_map(|file| read(directory, file))
                .collect(),
            rungs: rungs.collect(),
            flags,
        };
        Folder { checkpoint: checkpoint.to_owned(), views }
    }

    /// The closed record of the walk.
    ///
    /// # Errors
    /// The clock's workload is another request's.
    pub(super) fn record(self, workload: Workload, protocol: FindProtocol, steps: Vec<FindStep>) -> Result<FindRecord> {
        let clock = self.views.clock.as_ref().map(|seen| &seen.record);
        if let Some(clock) = clock {
            let differing = clock.workload.differences(&workload);
            if !differing.is_empty() {
                return Err(usage(format!(
                    "clock.json is of another request than find.json: {} differ; rank a folder that one walk made",
                    differing.join(", ")
                )));
            }
            one_checkpoint("clock.json", clock.arms.first().map(|arm| arm.name.as_str()), &self.checkpoint)?;
        }
        if let Some(timeline) = self.views.timeline.as_ref() {
            let traced = Some(timeline.record.subject.checkpoint.as_str());
            one_checkpoint("timeline.json", traced, &self.checkpoint)?;
        }
        let arm = clock.and_then(|clock| clock.arms.first());
        let (why, how) = ("the request was not clocked", "see the steps");
        let missing = || Known::unavailable(why, how);
        let request = match clock.map(RequestSummary::of) {
            Some(Ok(summary)) => Known::Is(summary),
            Some(Err(why)) => Known::unavailable(why, how),
            None => Known::unavailable(why, how),
        };
        let wiring = clock.and_then(|clock| {
            let sample = clock.samples_of(0).find_map(record::bench::Sample::counting)?;
            Some(sample.wiring.clone())
        });
        let mut record = FindRecord {
            schema: FindRecord::SCHEMA.to_owned(),
            created: probe::now(),
            workload,
            workload_id: String::new(),
            subject: arm.map_or_else(|| Known::unavailable(why, how), |arm| arm.subject.clone()),
            conditions: arm.map_or_else(|| Known::unavailable(why, how), |arm| arm.conditions.clone()),
            conditions_id: missing(),
            protocol,
            steps,
            request,
            wiring: wiring.unwrap_or_default(),
            ranking: match Ranking::of(&self.views, &self.checkpoint) {
                Ok(ranking) => Known::Is(ranking),
                Err(why) => Known::unavailable(why, how),
            },
            coverage: record::Coverage::complete(),
            checks: Vec::new(),
            void: false,
        };
        record.close();
        Ok(record)
    }
}
