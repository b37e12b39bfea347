//! `hourglass find --climb`: the ladder walked rung by rung: find, predict, take the rung, clock both, decide, next.
//! Not here: what a row of the route says (`record::climb`), the decisions' commands (`climb/decision.rs`), the table
//! (`climb/table.rs`).

mod decision;
pub(crate) mod table;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use ops::Checkpoint;
use record::bench::BenchRecord;
use record::find::{RungText, Seen, StepOutcome};
use record::{ClimbRecord, ClimbRow, Coverage, FindRecord, Record, Workload, climb_row};

use super::{Args, folder};
use crate::failure::{INTERRUPTED, usage};
use crate::progress::Progress;
use crate::store::Store;
use crate::{child, interrupt, output};

/// Seconds that the clock of two rungs may take, if that is enough for the fewest repeats.
const CLOCK_S: f64 = 45.0;
const REPEATS: std::ops::RangeInclusive<f64> = 4.0..=12.0;

/// A climb that is going on.
struct Climb<'a> {
    directory: PathBuf,
    /// The request as flags, and what every command takes.
    request: Vec<String>,
    flags: Vec<String>,
    /// Flags of `find` alone.
    find: Vec<String>,
    record: ClimbRecord,
    args: &'a Args,
}

/// What [`run`] is told beside the arguments.
pub(super) struct Asked<'a> {
    pub(super) args: &'a Args,
    pub(super) shape: &'a super::shape::Shape,
    pub(super) flags: Vec<String>,
    pub(super) workload: Workload,
}

pub(super) fn run(asked: Asked<'_>) -> Result<ExitCode> {
    let args = asked.args;
    let registry = args.machine.registry()?;
    let rungs = route(&registry, args.from.as_deref(), args.to.as_deref())?;
    let mut host = probe::host();
    for rung in &rungs {
        host = probe::conditions_of(&args.machine.options("--from/--to", rung.name)?, Vec::new()).host;
    }
    let record_file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    let ceilings = args.ceilings.iter().flat_map(|path| ["--ceilings".to_owned(), path.to_string_lossy().into_owned()]);
    let ceilings: Vec<String> = ceilings.collect();
    let mut record = ClimbRecord {
        schema: ClimbRecord::SCHEMA.to_owned(),
        created: probe::now(),
        workload: asked.workload,
        workload_id: String::new(),
        binary: probe::binary(),
        host,
        solution: args.machine.solution.name().to_owned(),
        from: rungs[0].name.to_owned(),
        to: rungs[rungs.len() - 1].name.to_owned(),
        flags: asked.flags.iter().chain(&ceilings).cloned().collect(),
        rows: Vec::new(),
        coverage: Coverage::incomplete("nothing has run"),
        checks: Vec::new(),
        void: false,
    };
    record.close();
    let directory = match &args.resume {
        Some(directory) => {
            same(&record, directory)?;
            directory.clone()
        }
        None => match &args.out {
            Some(_) => super::directory(args.out.as_deref())?,
            None => Store::open_or_create(None)?.new_run("climb")?,
        },
    };
    let _claim = claim(&directory)?;
    let shape = asked.shape;
    let request = [
        ("--input-len", shape.input_len.to_string()),
        ("--output-len", shape.output_len.to_string()),
        ("--prefill-logits", shape.logits.mode().name().to_owned()),
        ("--seed", shape.seed.to_string()),
    ];
    let mut climb = Climb {
        directory,
        request: request.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect(),
        flags: asked.flags,
        find: ceilings,
        record,
        args,
    };
    if !args.json {
        let line =
            format!("Climb from '{}' to '{}', into {}", rungs[0].name, climb.record.to, climb.directory.display());
        output::print(super::table::opening(&line, shape.model.is_none()).as_bytes())?;
    }
    let ended = climb.walk(&rungs);
    let record = &climb.record;
    if let Some(file) = record_file {
        file.finish_with_json(record)?;
    }
    if args.json {
        output::print_json(record)?;
    } else {
        output::print(table::text(record, &climb.directory).as_bytes())?;
    }
    super::walk::report(&climb.directory, &climb.shown());
    if interrupt::requested() {
        let directory = climb.directory.display();
        output::note(format_args!(
            "hourglass: interrupted after {} of {} steps; go on with --resume {directory}",
            record.rows.len(),
            rungs.len() - 1
        ));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    ended?;
    Ok(if crate::void::said(record) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The rungs from one to another, both among them.
///
/// # Errors
/// A name that is no rung; two that are not on one line.
fn route(registry: &ops::Registry, from: Option<&str>, to: Option<&str>) -> Result<Vec<&'static Checkpoint>> {
    let named = |flag: &str, name: &str| registry.checkpoint(name).map_err(|why| usage(format!("{flag}: {why}")));
    let to = named("--to", to.unwrap_or(ops::ladder::FAST))?;
    let line: Vec<&'static Checkpoint> = to.lineage();
    let from = match from {
        Some(name) => named("--from", name)?.name,
        None => "kv-cache",
    };
    match line.iter().position(|rung| rung.name == from) {
        Some(at) if at + 1 < line.len() => Ok(line[at..].to_vec()),
        Some(_) => Err(usage(format!("--from {from} --to {}: expected two rungs with a step between them", to.name))),
        None => {
            let known: Vec<&str> = line.iter().map(|rung| rung.name).collect();
            Err(usage(format!(
                "--from {from}: '{}' does not descend from it; its line is {}",
                to.name,
                known.join(", ")
            )))
        }
    }
}

/// Keeps the folder to this process, until what is returned is dropped.
///
/// # Errors
/// Another climb works in it.
fn claim(directory: &Path) -> Result<File> {
    let folder = File::open(directory).with_context(|| directory.display().to_string())?;
    match folder.try_lock() {
        Err(TryLockError::WouldBlock) => Err(usage(format!(
            "{}: another climb is at work in this folder; let it end, or begin one elsewhere with --out",
            directory.display()
        ))),
        // A file system without locks: nobody can be kept out.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(folder),
    }
}

/// # Errors
/// The folder is of another climb: which field differs.
fn same(wanted: &ClimbRecord, directory: &Path) -> Result<()> {
    let name = format!("--resume {}", directory.display());
    let Some(Seen { record: begun, .. }) = folder::read::<ClimbRecord>(directory, "climb.json") else {
        return Err(usage(format!("{name}: expected the folder of a climb, found no whole climb.json in it")));
    };
    let route = |record: &ClimbRecord| format!("{} to {}", record.from, record.to);
    let flags = |record: &ClimbRecord| record.flags.join(" ");
    let build = |record: &ClimbRecord| serde_json::to_string(&record.binary).unwrap_or_default();
    let host = |record: &ClimbRecord| serde_json::to_string(&record.host).unwrap_or_default();
    let fields: [(&str, String, String); 6] = [
        ("workload", begun.workload.differences(&wanted.workload).join(", "), String::new()),
        ("binary", build(&begun), build(wanted)),
        ("machine", host(&begun), host(wanted)),
        ("route", route(&begun), route(wanted)),
        ("flags", flags(&begun), flags(wanted)),
        ("solution", begun.solution.clone(), wanted.solution.clone()),
    ];
    match fields.into_iter().find(|(_, begun, wanted)| begun != wanted) {
        None => Ok(()),
        Some((field, begun, wanted)) => Err(usage(format!(
            "{name}: it was begun with another {field}: {begun}{}; begin a new climb with --out",
            if wanted.is_empty() { String::new() } else { format!(", and this is {wanted}") }
        ))),
    }
}

impl Climb<'_> {
    /// Every step that is not finished; the record holds the rows so far, whatever happens.
    fn walk(&mut self, rungs: &[&'static Checkpoint]) -> Result<()> {
        let steps = rungs.len() - 1;
        self.save()?;
        for (index, pair) in rungs.windows(2).enumerate() {
            let text = RungText {
                name: pair[1].name.to_owned(),
                change: pair[1].change.to_owned(),
                hypothesis: pair[1].hypothesis.to_owned(),
            };
            let row = self.step(index, steps, pair[0].name, &text);
            if interrupt::requested() {
                return Ok(());
            }
            self.record.rows.push(row?);
            self.record.coverage = if index + 1 == steps {
                Coverage::complete()
            } else {
                Coverage::incomplete(format!("{} of {steps} steps are finished", index + 1))
            };
            self.save()?;
        }
        Ok(())
    }

    /// What the report is made of: the route, the clock of every step, and all views of the last one. The views of every step
    /// would make it many times as long, and each step's folder has them.
    fn shown(&self) -> Vec<PathBuf> {
        let at = |file: &str| self.directory.join(file);
        let clocks = self.record.rows.iter().map(|row| at(&row.bench.file));
        let last = self.record.rows.last().and_then(|row| at(&row.find.file).parent().map(Path::to_path_buf));
        std::iter::once(at("climb.json")).chain(clocks).chain(last).collect()
    }

    /// Replaces `climb.json`, which says what was begun and how far it came.
    fn save(&mut self) -> Result<()> {
        self.record.close();
        let path = self.directory.join("climb.json");
        let cannot = || format!("{}: cannot be written", path.display());
        let file = output::whole(&path, &self.record).with_context(cannot)?;
        file.persist(&path).map_err(|error| error.error).with_context(cannot)?;
        Ok(())
    }

    fn step(&self, index: usize, steps: usize, parent: &str, rung: &RungText) -> Result<ClimbRow> {
        let stem = format!("{:02}-{parent}", index + 1);
        let say = |what: &str| format!("step {} of {steps}, '{parent}' to '{}': {what}", index + 1, rung.name);
        let find = self.find(&stem, parent, &say)?;
        if self.clocked(&stem, rung).is_none() {
            decision::forget_closed(&self.directory, &stem);
        }
        let opened = decision::open(&self.directory, &stem, parent, rung, &find);
        let bench = self.clock(&stem, parent, rung, &find, &say)?;
        let mut row = climb_row(parent, rung, &find, &bench).map_err(anyhow::Error::msg)?;
        decision::close(&self.directory, &stem, opened, &mut row);
        if !self.args.json {
            output::print(format!("{}\n", table::line(&row)).as_bytes())?;
        }
        Ok(row)
    }

    /// The parent's `find/2`, from its folder if it is whole.
    fn find(&self, stem: &str, parent: &str, say: &dyn Fn(&str) -> String) -> Result<Seen<FindRecord>> {
        let file = format!("{stem}/find.json");
        let interrupted = |find: &FindRecord| find.steps.iter().any(|step| step.outcome == StepOutcome::Interrupted);
        let whole = || {
            let seen = folder::read::<FindRecord>(&self.directory, &file)?;
            (seen.record.ranking.known().is_some() && !interrupted(&seen.record)).then_some(seen)
        };
        if let Some(seen) = whole() {
            return Ok(seen);
        }
        let place = self.directory.join(stem);
        if place.exists() {
            // Of an earlier climb that was interrupted here: half of a walk is none.
            std::fs::remove_dir_all(&place)
                .with_context(|| format!("{}: half a step that cannot be removed", place.display()))?;
        }
        let place_name = place.to_string_lossy();
        let own = ["find", "--quick", "--no-report", "--checkpoint", parent, "--out", &place_name].map(str::to_owned);
        let words = [&own[..], &self.request, &self.find, &self.flags].concat();
        self.run(&words, &say("finding"))?;
        whole().with_context(|| format!("'{parent}' has no ranking; see {}", place.display()))
    }

    /// The clock of both that is there already, if it is whole: a sample that was lost is in the record and leaves its pair
    /// out; a run that was cut short is half a clock.
    fn clocked(&self, stem: &str, rung: &RungText) -> Option<Seen<BenchRecord>> {
        let seen = folder::read::<BenchRecord>(&self.directory, &format!("{stem}-to-{}.json", rung.name));
        seen.filter(|seen| seen.record.samples.len() == seen.record.schedule.len())
    }

    /// The `bench/1` of both, parent first.
    fn clock(
        &self,
        stem: &str,
        parent: &str,
        rung: &RungText,
        find: &Seen<FindRecord>,
        say: &dyn Fn(&str) -> String,
    ) -> Result<Seen<BenchRecord>> {
        let file = format!("{stem}-to-{}.json", rung.name);
        if let Some(seen) = self.clocked(stem, rung) {
            return Ok(seen);
        }
        let path = self.directory.join(&file);
        // What a run that was ended in the middle left; a run that is killed leaves its growing file.
        for half in [path.clone(), self.directory.join(format!("{file}.partial"))] {
            if half.exists() {
                std::fs::remove_file(&half).with_context(|| format!("{}: half a record", half.display()))?;
            }
        }
        let request = find.record.request.known().and_then(|request| request.whole_request.value()).unwrap_or(5.0);
        let repeats = (CLOCK_S / (4.0 * request)).clamp(*REPEATS.start(), *REPEATS.end());
        let repeats = ((repeats / 2.0).floor() as usize * 2).to_string();
        let own = ["bench", "--variant", parent, "--variant", &rung.name, "--repeats", &repeats, "--warmup", "1"];
        let output = ["--json-output", &path.to_string_lossy()].map(str::to_owned);
        let words = [&own.map(str::to_owned)[..], &output, &self.request, &self.flags].concat();
        let ended = self.run(&words, &say("clocking both"))?;
        self.clocked(stem, rung)
            .with_context(|| format!("the clock of both left no whole record: {}", ended.last_words))
    }

    fn run(&self, words: &[String], what: &str) -> Result<child::Ended> {
        if interrupt::requested() {
            bail!("interrupted before {what}");
        }
        let progress = Progress::new("climb");
        let start = std::time::Instant::now();
        let mut tick = || {
            progress.steps(self.record.rows.len(), self.record.rows.len() + 1, &{
                format!("{what} ({:.0} s)", start.elapsed().as_secs_f64())
            })
        };
        child::run(words, None, &mut tick).with_context(|| format!("{what}: hourglass {} cannot be started", words[0]))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_route_of_a_gpu_ends_with_the_rungs_that_run_there_alone() {
        let names = |registry: &ops::Registry, from, to| -> Vec<&str> {
            route(registry, from, to).unwrap().iter().map(|rung| rung.name).collect()
        };
        let (cpu, gpu) = (ops::Registry::standard(), ops::Registry::standard().on_device(&[]));
        let whole = names(&gpu, None, None);
        assert!(whole.starts_with(&names(&cpu, None, None)), "{whole:?}");
        assert_eq!(
            names(&gpu, Some("added-norm"), None),
            ["added-norm", "added-residuals", "normed-projections", "placed-attention"]
        );
        let refused = route(&cpu, None, Some("placed-attention")).unwrap_err().to_string();
        assert!(refused.contains("--to: ") && refused.contains("needs a GPU"), "{refused}");
    }
}
