//! Runs the commands of a plan one after the other, each in its own process; one that fails stops none of the others.
//! Not here: which commands (`plan.rs`), and what their records say (`folder.rs`).

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use record::Known;
use record::bench::BenchRecord;
use record::find::{FindStep, StepOutcome};

use super::folder;
use super::plan::{Pace, Plan, Planned};
use crate::child::{self, Ended};
use crate::progress::Progress;
use crate::store::Store;
use crate::{interrupt, output};

/// Before anything is known: about how long the steps after the first look take, as parts of the whole.
const REST: f64 = 0.85;

/// Walks the plan to its end, or to Ctrl-C.
///
/// # Errors
/// The ceilings given cannot be copied. What a command does is no error.
pub(super) fn walk(plan: &Plan<'_>) -> Result<Vec<FindStep>> {
    let start = Instant::now();
    let budget = plan.protocol.budget_s;
    if let Some(given) = plan.ceilings.filter(|path| *path != Path::new("none")) {
        let copy = plan.directory.join("ceilings.json");
        std::fs::copy(given, copy).with_context(|| format!("--ceilings {}: cannot be copied", given.display()))?;
    }
    let mut steps = Vec::new();
    let mut queue = plan.first();
    let total = queue.len() + 8;
    let mut planned_rest = false;
    while !queue.is_empty() {
        for (index, planned) in queue.iter().enumerate() {
            let to_come: f64 = queue[index + 1..].iter().map(|step| step.seconds).sum();
            let later = if planned_rest { to_come } else { to_come + REST * budget };
            steps.push(step(plan, planned, (steps.len(), total), later));
        }
        queue = Vec::new();
        if !planned_rest {
            planned_rest = true;
            let pace = pace(plan.directory, plan.parts.1);
            queue = plan.rest(pace, (budget - start.elapsed().as_secs_f64()).max(0.3 * budget));
        }
    }
    Ok(steps)
}

fn step(plan: &Plan<'_>, planned: &Planned, (number, total): (usize, usize), later: f64) -> FindStep {
    let directory = plan.directory.to_string_lossy();
    let words: Vec<String> = planned.words.iter().map(|word| word.replace("@/", &format!("{directory}/"))).collect();
    let relative = planned.words.iter().map(|word| word.replace("@/", ""));
    let command = std::iter::once("hourglass".to_owned()).chain(relative).collect();
    let verb = &planned.words[0];
    let left_out = if interrupt::requested() {
        Some(StepOutcome::Interrupted)
    } else if !crate::has_verb(verb) {
        Some(StepOutcome::LeftOut(format!("this build has no verb '{verb}'")))
    } else {
        planned.left_out.clone().map(StepOutcome::LeftOut)
    };
    let (outcome, seconds) = match left_out {
        Some(outcome) => (outcome, None),
        None => {
            let progress = Progress::new("find");
            let begun = Instant::now();
            let mut tick = || {
                let left = (planned.seconds - begun.elapsed().as_secs_f64()).max(0.0) + later;
                progress.steps(number, total, &format!("{}; about {left:.0} s left", planned.name));
            };
            match child::run(&words, None, &mut tick) {
                Ok(ended) => (outcome(&ended, &plan.directory.join(&planned.record)), Some(ended.seconds)),
                Err(error) => (StepOutcome::Failed(format!("it cannot be started: {error}")), None),
            }
        }
    };
    let record = match folder::evidence(plan.directory, &planned.record) {
        Some(evidence) => Known::Is(evidence),
        None => Known::unavailable(why(&outcome), "run the command"),
    };
    let seconds = match seconds {
        Some(seconds) => Known::Is(seconds),
        None => Known::unavailable("it was not started", "run the command"),
    };
    FindStep { name: planned.name.clone(), command, outcome, record, seconds }
}

fn outcome(ended: &Ended, record: &Path) -> StepOutcome {
    let there = record.is_file();
    match (ended.code, ended.interrupted) {
        (_, true) => StepOutcome::Interrupted,
        (Some(0), _) if there => StepOutcome::Done,
        (code, _) => {
            let code = code.map_or_else(|| "no exit code".to_owned(), |code| format!("exit code {code}"));
            let words = if ended.last_words.is_empty() { "no words" } else { ended.last_words.as_str() };
            StepOutcome::Failed(format!("{code}: {words}"))
        }
    }
}

fn why(outcome: &StepOutcome) -> String {
    match outcome {
        StepOutcome::Done => "it left no record".to_owned(),
        StepOutcome::Failed(why) | StepOutcome::LeftOut(why) => why.clone(),
        StepOutcome::Interrupted => "interrupted".to_owned(),
    }
}

/// What the first look says of the machine's pace; without one a guess, which only decides how often things repeat.
fn pace(directory: &Path, output_tokens: u64) -> Pace {
    let guess = Pace { load: 2.0, request: 5.0, prefill: 1.0, step: 4.0 / output_tokens.max(1) as f64 };
    let Some(seen) = folder::read::<BenchRecord>(directory, "first-look.json") else { return guess };
    let measured = seen.record.samples.iter().find_map(|sample| Some((sample.process_s, sample.measured()?)));
    let Some((process, measured)) = measured else { return guess };
    let clock = &measured.clock;
    match (clock.whole_request.value(), clock.prefill.value(), clock.decode.value()) {
        (Some(request), Some(prefill), Some(decode)) => Pace {
            load: (process - request).max(0.0),
            request,
            prefill,
            step: decode / output_tokens.saturating_sub(1).max(1) as f64,
        },
        _ => guess,
    }
}

/// Makes `report.html` in the folder of these records and of the ledger's decisions, if this build can. A report that fails takes
/// nothing from the records.
pub(super) fn report(directory: &Path, records: &[PathBuf]) {
    let out = directory.join("report.html");
    if !crate::has_verb("report") || interrupt::requested() {
        return;
    }
    // Made again after a resumed climb: it is this folder's own, and made of its records.
    let _ = std::fs::remove_file(&out);
    let ledger = Store::at(None).ok().map(|store| store.ledger()).filter(|ledger| ledger.is_file());
    let make = |ledger: Option<&PathBuf>| {
        let files = records.iter().chain(ledger).map(|path| path.to_string_lossy().into_owned());
        let words: Vec<String> = std::iter::once("report".to_owned())
            .chain(files)
            .chain(["--out".to_owned(), out.to_string_lossy().into_owned()])
            .collect();
        match child::run(&words, None, &mut || {}) {
            Ok(Ended { code: Some(0), .. }) => Ok(()),
            Ok(ended) => Err(ended.last_words),
            Err(error) => Err(error.to_string()),
        }
    };
    let mut made = make(ledger.as_ref());
    if let (Err(why), Some(ledger)) = (&made, &ledger) {
        output::note(format_args!(
            "hourglass: {} is without the decisions in {}: {why}",
            out.display(),
            ledger.display()
        ));
        made = make(None);
    }
    if let Err(why) = made {
        output::note(format_args!("hourglass: {} was not made: {why}", out.display()));
    }
}
