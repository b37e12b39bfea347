//! The decision flags: all or none, about two replayed cases of one shape, checked before a model is loaded.
//! Not here: what a decision record holds (`record::DecisionRecord`).

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use record::{Outcome, ReplayCase, ReplayRecord, Words, decide};

use super::cases::CaseName;
use super::files;
use crate::failure::usage;
use crate::figures::{show, thousands};
use crate::load::MachineArgs;
use crate::output::{self, OutputFile};
use crate::prose::paragraph;

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Decision {
    Keep,
    Reject,
    Inconclusive,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Decision (all of these or none)")]
pub(crate) struct DecisionArgs {
    /// Write what was decided, with the two replays that it is about
    #[arg(long, value_name = "FILE")]
    decision_output: Option<PathBuf>,
    /// The checkpoint before the change
    #[arg(long, value_name = "NAME")]
    baseline_checkpoint: Option<String>,
    /// The checkpoint after it
    #[arg(long, value_name = "NAME")]
    candidate_checkpoint: Option<String>,
    /// The group that the change was aimed at, as the tables call it
    #[arg(long, value_name = "GROUP")]
    dominant_category: Option<String>,
    /// What should be true if the change is to pay
    #[arg(long, value_name = "TEXT")]
    hypothesis: Option<String>,
    /// What was seen
    #[arg(long, value_name = "TEXT")]
    observed_effect: Option<String>,
    /// What follows
    #[arg(long, value_enum)]
    decision: Option<Decision>,
    /// What to try next
    #[arg(long, value_name = "TEXT")]
    next_experiment: Option<String>,
    /// Optional: an earlier replay record with a case that the decision is about; repeatable
    #[arg(long = "decision-record", value_name = "FILE")]
    records: Vec<PathBuf>,
}

/// A decision whose words are complete and whose cases are known to come.
pub(crate) struct Plan {
    words: Words,
    baseline: String,
    candidate: String,
    /// Cases from earlier records.
    earlier: Vec<ReplayCase>,
}

impl DecisionArgs {
    pub(crate) fn output(&self) -> Option<&Path> {
        self.decision_output.as_deref()
    }

    pub(crate) fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    /// Every flag of a decision, and whether it is there.
    fn given(&self) -> [(&'static str, bool); 8] {
        [
            ("--decision-output", self.decision_output.is_some()),
            ("--baseline-checkpoint", self.baseline_checkpoint.is_some()),
            ("--candidate-checkpoint", self.candidate_checkpoint.is_some()),
            ("--dominant-category", self.dominant_category.is_some()),
            ("--hypothesis", self.hypothesis.is_some()),
            ("--observed-effect", self.observed_effect.is_some()),
            ("--decision", self.decision.is_some()),
            ("--next-experiment", self.next_experiment.is_some()),
        ]
    }

    /// # Errors
    /// A flag of a decision beside `flag`, which replays nothing.
    pub(crate) fn refuse_beside(&self, flag: &str) -> Result<()> {
        let records = ("--decision-record", self.has_records());
        let Some((own, _)) = self.given().into_iter().chain([records]).find(|(_, is)| *is) else { return Ok(()) };
        Err(usage(format!(
            "{own} beside {flag}, which replays nothing to decide about: replay the cases, or give records of them by \
             --decision-record, without {flag}"
        )))
    }

    /// The decision that these flags ask for, given the cases of this run. Reads the earlier records.
    ///
    /// # Errors
    /// Some flags without the others, empty words, a checkpoint without a case or with several shapes in common.
    pub(crate) fn plan(&self, cases: &[CaseName], machine: &MachineArgs) -> Result<Option<Plan>> {
        let given = self.given();
        let flags = |present: bool| -> Vec<&str> {
            given.iter().filter(|(_, is)| *is == present).map(|(flag, _)| *flag).collect()
        };
        let (there, missing) = (flags(true), flags(false));
        if there.is_empty() && self.records.is_empty() {
            return Ok(None);
        }
        let (
            Some(baseline),
            Some(candidate),
            Some(category),
            Some(hypothesis),
            Some(effect),
            Some(decision),
            Some(next),
            Some(_),
        ) = (
            &self.baseline_checkpoint,
            &self.candidate_checkpoint,
            &self.dominant_category,
            &self.hypothesis,
            &self.observed_effect,
            self.decision,
            &self.next_experiment,
            &self.decision_output,
        )
        else {
            let there = if there.is_empty() { "--decision-record".to_owned() } else { there.join(", ") };
            return Err(usage(format!(
                "{there} without {}: a decision takes all of these flags or none of them",
                missing.join(", ")
            )));
        };
        for (flag, text) in [("--hypothesis", hypothesis), ("--observed-effect", effect), ("--next-experiment", next)] {
            if text.trim().is_empty() {
                return Err(usage(format!("{flag} is empty: expected a sentence")));
            }
        }
        let baseline = machine.options("--baseline-checkpoint", baseline)?.checkpoint.name;
        let candidate = machine.options("--candidate-checkpoint", candidate)?.checkpoint.name;
        if baseline == candidate {
            return Err(usage(format!(
                "--baseline-checkpoint and --candidate-checkpoint are both '{baseline}': expected two checkpoints that \
                 differ by one change"
            )));
        }
        let known: Vec<&str> = ops::Group::ALL.iter().map(|group| group.name()).chain(["sampling"]).collect();
        if !known.contains(&category.as_str()) {
            let known = known.join("; ");
            return Err(usage(format!("--dominant-category '{category}': expected one of: {known}")));
        }
        let mut earlier = Vec::new();
        for path in &self.records {
            earlier.extend(files::read::<ReplayRecord>("--decision-record", path)?.cases);
        }
        let words = Words {
            dominant_category: category.clone(),
            hypothesis: hypothesis.clone(),
            observed_effect: effect.clone(),
            decision: match decision {
                Decision::Keep => Outcome::Keep,
                Decision::Reject => Outcome::Reject,
                Decision::Inconclusive => Outcome::Inconclusive,
            },
            next_experiment: next.clone(),
        };
        let plan = Plan { words, baseline: baseline.to_owned(), candidate: candidate.to_owned(), earlier };
        plan.check_cases(cases)?;
        Ok(Some(plan))
    }
}

impl Plan {
    /// Both checkpoints will have exactly one case in common.
    fn check_cases(&self, cases: &[CaseName]) -> Result<()> {
        let shapes = |checkpoint: &str| -> Vec<String> {
            let now = cases.iter().filter(|case| case.checkpoint == checkpoint).map(|case| case.to_string());
            let before = self.earlier.iter().filter(|case| case.replay.checkpoint == checkpoint);
            let all = now.chain(before.map(|case| case.case.clone()));
            let shape = |case: String| case.split_once(':').map(|(_, shape)| shape.to_owned());
            let mut all: Vec<String> = all.filter_map(shape).collect();
            all.sort();
            all.dedup();
            all
        };
        let (before, after) = (shapes(&self.baseline), shapes(&self.candidate));
        for (flag, name, shapes) in
            [("--baseline-checkpoint", &self.baseline, &before), ("--candidate-checkpoint", &self.candidate, &after)]
        {
            if shapes.is_empty() {
                return Err(usage(format!(
                    "{flag} {name}: no case of this run or of a --decision-record is of it; add --case \
                     {name}:PHASE:TOKENS"
                )));
            }
        }
        let common: Vec<&String> = before.iter().filter(|shape| after.contains(shape)).collect();
        match common[..] {
            [shape] => self.check_sides(cases, shape),
            [] => Err(usage(format!(
                "the decision's checkpoints have no shape in common: {} has {}, {} has {}; replay both at the same one",
                self.baseline,
                before.join(", "),
                self.candidate,
                after.join(", ")
            ))),
            _ => Err(usage(format!(
                "the decision's checkpoints have several shapes in common ({}); give the cases of one",
                common.iter().map(|shape| shape.as_str()).collect::<Vec<_>>().join(", ")
            ))),
        }
    }

    /// Each side is one case; an earlier one is complete and, where the other is yet to come, of what will be replayed.
    fn check_sides(&self, cases: &[CaseName], shape: &str) -> Result<()> {
        let mut found = Vec::new();
        for (flag, name) in [("--baseline-checkpoint", &self.baseline), ("--candidate-checkpoint", &self.candidate)] {
            let wanted = format!("{name}:{shape}");
            let coming = cases.iter().filter(|case| case.to_string() == wanted).count();
            let earlier: Vec<&ReplayCase> = self.earlier.iter().filter(|case| case.case == wanted).collect();
            if coming + earlier.len() != 1 {
                return Err(usage(format!(
                    "{flag} {name}: {wanted} is there {} times, in this run and by --decision-record; give it once",
                    coming + earlier.len()
                )));
            }
            if let Some(reason) = earlier.first().and_then(|case| case.replay.coverage.reason()) {
                return Err(usage(format!(
                    "--decision-record: its case {wanted} is incomplete ({reason}), so nothing can be decided about it; \
                     replay it again"
                )));
            }
            found.extend(earlier);
        }
        // Alone, what was recorded will be held against what is replayed here.
        if let [case] = found[..] {
            let here = probe::binary();
            if case.conditions.known().is_some_and(|conditions| conditions.binary != here) {
                return Err(usage(format!(
                    "--decision-record: {} was replayed by another build than this one; replay both in one run, so that only \
                     the checkpoint differs",
                    case.case
                )));
            }
        }
        Ok(())
    }

    /// Writes the decision about the cases of `record` and of the earlier ones.
    ///
    /// # Errors
    /// A case that is incomplete, or two that cannot be compared.
    pub(crate) fn write(&self, record: &ReplayRecord, file: OutputFile, json: bool) -> Result<()> {
        let all: Vec<&ReplayCase> = record.cases.iter().chain(&self.earlier).collect();
        let shape = |case: &ReplayCase| case.case.split_once(':').map(|(_, shape)| shape.to_owned());
        let is = |case: &&&ReplayCase, checkpoint: &String| case.replay.checkpoint == *checkpoint;
        let pair = all.iter().filter(|case| is(case, &self.baseline)).find_map(|before| {
            let same = |after: &&&ReplayCase| is(after, &self.candidate) && shape(after) == shape(before);
            Some((*before, *all.iter().find(same)?))
        });
        let Some((before, after)) = pair else {
            anyhow::bail!(
                "--decision-output: the cases of {} and {} were not replayed; no decision was written",
                self.baseline,
                self.candidate
            );
        };
        anyhow::ensure!(!record.void, "--decision-output: a check of this replay failed; no decision was written");
        let decision = decide(&self.words, &probe::now(), before, after)
            .map_err(|error| anyhow::anyhow!("--decision-output: {error}; no decision was written"))?;
        file.finish_with_json(&decision)?;
        if !json {
            let evidence = &decision.evidence;
            let us = |reading: &record::Reading| show(reading, thousands);
            let text = format!(
                "{} -> {}: {} took {} µs in the replay and takes {}. The largest group was {} and is {}.",
                decision.baseline_checkpoint,
                decision.candidate_checkpoint,
                decision.dominant_category,
                us(&evidence.category.before),
                us(&evidence.category.after),
                evidence.largest_before,
                evidence.largest_after
            );
            output::print(paragraph("Decision written. ", &text, "  ").as_bytes())?;
        }
        Ok(())
    }
}
