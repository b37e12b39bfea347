//! What follows from a run's samples: which are left out, whose output and wiring let their times count, and the summaries.
//! Not here: the comparison of two arms (`statistics/of_record.rs`), and taking samples.

use crate::bench::arm::{Arm, ArmKind, MetricSummary, Tolerance, Verified};
use crate::bench::metric::Metric;
use crate::bench::record::BenchRecord;
use crate::bench::sample::{Measured, Outcome, Sample};
use crate::coverage::Coverage;
use crate::known::Known;
use crate::quantity::Reading;
use crate::samples::Samples;
use crate::statistics::of_record;
use crate::statistics::verdict::BandError;
use std::collections::BTreeSet;

/// When a marked sample is left out, in the words of the record.
pub const EXCLUSION_RULE: &str = "a block in which a measured sample is marked is left out whole, for every arm alike, if \
                                  at least two blocks and at least half of all planned blocks are then left; otherwise \
                                  nothing is left out";

impl BenchRecord {
    /// Computes everything that follows from schedule and samples, and closes the record.
    ///
    /// # Errors
    /// The protocol's smallest difference that matters is no part of a whole.
    pub fn conclude(&mut self) -> Result<(), BandError> {
        self.conclude_so_far()?;
        self.noise = of_record::noise(self);
        Ok(())
    }

    /// The same without the noise, whose resampling takes longer than a state that is soon replaced is worth.
    ///
    /// # Errors
    /// As for [`BenchRecord::conclude`].
    pub fn conclude_so_far(&mut self) -> Result<(), BandError> {
        self.exclude();
        let reference = self.reference();
        for index in 0..self.arms.len() {
            let output = self.output_of(index, reference.as_ref());
            let wiring = self.wiring_of(index);
            let summary = self.summary_of(index);
            let samples = self.samples_of(index).filter(|sample| sample.counting().is_some()).count();
            let lost = self.samples_of(index).find_map(|sample| match &sample.outcome {
                Outcome::Lost(why) => Some(why.clone()),
                Outcome::Measured(_) => None,
            });
            let arm = &mut self.arms[index];
            arm.reason = if let Some(why) = wiring.failed() {
                Some(format!("its wiring is not as planned, so the comparison is void: {why}"))
            } else if let Some(why) = output.failed() {
                Some(format!("its output differs: {why}"))
            } else if samples == 0 {
                Some(match (arm.engine.missing(), lost) {
                    (Some(_), Some(why)) => format!("every sample of it was lost: {why}"),
                    (Some(missing), None) => format!("it has no sample: {}", missing.unavailable),
                    (None, _) => "it has no sample that counts".to_owned(),
                })
            } else {
                None
            };
            arm.counts = arm.reason.is_none();
            arm.output_check.result = output;
            arm.wiring_check = wiring;
            arm.summary = summary;
        }
        self.coverage = self.covered();
        self.comparisons = of_record::comparisons(self)?;
        self.noise = Known::unavailable("it is assessed when a run ends, and this one goes on", "let it go on");
        self.close();
        Ok(())
    }

    /// [`EXCLUSION_RULE`].
    fn exclude(&mut self) {
        let blocks: BTreeSet<u64> = self.schedule.iter().map(|slot| slot.block).collect();
        let marked: BTreeSet<u64> = self
            .samples
            .iter()
            .filter(|sample| sample.measured().is_some() && !sample.marks.is_empty())
            .map(|sample| sample.block)
            .collect();
        let left = blocks.len() - marked.len().min(blocks.len());
        let excluded = left >= 2 && left * 2 >= blocks.len();
        for sample in &mut self.samples {
            let out = excluded && marked.contains(&sample.block) && sample.measured().is_some();
            sample.excluded = out.then(|| {
                if sample.marks.is_empty() {
                    "another sample of its block was marked".to_owned()
                } else {
                    sample.marks.join("; ")
                }
            });
        }
    }

    /// The control's tokens, and how near to a tie each choice was, from its first sample that has them.
    fn reference(&self) -> Option<Reference> {
        let measured: Vec<&Measured> = self.samples_of(0).filter_map(Sample::measured).collect();
        let tokens = measured.iter().find_map(|sample| sample.tokens.known())?.clone();
        let margins = measured.iter().find_map(|sample| sample.margins.known()).cloned();
        Some(Reference { tokens, margins })
    }

    fn output_of(&self, index: usize, reference: Option<&Reference>) -> Verified {
        let arm = &self.arms[index];
        let measured: Vec<&Measured> = self.samples_of(index).filter_map(Sample::measured).collect();
        let Some(reference) = reference else {
            return Verified::NotChecked("the control has no sample with token ids to compare with".to_owned());
        };
        let Some(first) = measured.first() else {
            return Verified::NotChecked("the arm has no measured sample".to_owned());
        };
        let mut near = None;
        for sample in &measured {
            let tokens = match &sample.tokens {
                Known::Is(tokens) => tokens,
                Known::Unavailable(missing) => {
                    let same = measured.iter().all(|other| other.clock.output_hash == first.clock.output_hash);
                    let note = if same { "its answers are the same each time" } else { "its answers vary" };
                    return Verified::NotChecked(format!("no token ids: {}; {note}", missing.unavailable));
                }
            };
            // The control against itself allows no tie: the same kernels on the same numbers choose the same.
            let tolerance = if index == 0 { Tolerance::Equal } else { arm.output_check.tolerance };
            match reference.judge(tokens, tolerance) {
                Ok(tie) => near = near.or(tie),
                Err(why) => return Verified::Failed(why),
            }
        }
        let of = match index {
            0 => "the first of them",
            _ => "the control's",
        };
        let samples = measured.len();
        Verified::Passed(match near {
            Some(tie) => format!("{samples} outputs: {of} up to {tie}"),
            None => format!("{samples} outputs equal to {of}, {} tokens each", reference.tokens.len()),
        })
    }

    fn wiring_of(&self, index: usize) -> Verified {
        if !self.is_ours(index) {
            return Verified::NotChecked("other engines do not say what they dispatched".to_owned());
        }
        let (mut samples, mut layers) = (0, 0);
        for sample in self.samples_of(index).filter_map(Sample::measured) {
            samples += 1;
            if sample.wiring.is_empty() {
                return Verified::Failed("a clocked request did not say what it dispatched".to_owned());
            }
            for wiring in &sample.wiring {
                layers = wiring.layers;
                if wiring.layers_as_planned != wiring.layers || wiring.planned != wiring.dispatched {
                    let deviation = wiring.deviations.first().map_or("", String::as_str);
                    return Verified::Failed(format!(
                        "{}: {} of {} layers and {} of {} calls as planned ({deviation})",
                        wiring.phase.name(),
                        wiring.layers_as_planned,
                        wiring.layers,
                        wiring.dispatched,
                        wiring.planned,
                    ));
                }
            }
        }
        if samples == 0 {
            return Verified::NotChecked("the arm has no measured sample".to_owned());
        }
        Verified::Passed(format!("{layers} of {layers} layers dispatched as planned in every clocked request"))
    }

    /// Whether an arm's processes run our engine; the control again is what the control is.
    pub(crate) fn is_ours(&self, index: usize) -> bool {
        let kind = self.arms[index].kind;
        let kind = if kind == ArmKind::SameAgain { self.arms[0].kind } else { kind };
        kind == ArmKind::Checkpoint
    }

    fn summary_of(&self, index: usize) -> Vec<MetricSummary> {
        let rows = Metric::ALL.into_iter().filter_map(|metric| {
            let samples = Samples::new(&self.values(index, metric)).ok()?;
            let reading = |value| Reading::measured(value, metric.unit(), samples.count() as u64);
            Some(MetricSummary {
                metric,
                median: reading(samples.median()),
                spread: reading(samples.median_absolute_deviation()),
                smallest: reading(samples.min()),
                largest: reading(samples.max()),
            })
        });
        rows.collect()
    }

    fn covered(&self) -> Coverage {
        let mut reasons = Vec::new();
        let (planned, ran) = (self.schedule.len(), self.samples.len());
        if ran < planned {
            reasons.push(format!("{ran} of {planned} planned processes ran"));
        }
        for (index, arm) in self.arms.iter().enumerate() {
            let planned = self.schedule.iter().any(|slot| slot.arm == index as u64);
            if !planned {
                let why = arm.engine.missing().map_or("it was not planned", |missing| &missing.unavailable);
                reasons.push(format!("{} did not run: {why}", arm.name));
            }
            let lost: Vec<&String> = self
                .samples_of(index)
                .filter_map(|sample| match &sample.outcome {
                    Outcome::Lost(why) => Some(why),
                    Outcome::Measured(_) => None,
                })
                .collect();
            if let Some(why) = lost.first() {
                let s = if lost.len() == 1 { "" } else { "s" };
                reasons.push(format!("{} lost {} sample{s}: {why}", arm.name, lost.len()));
            }
        }
        if reasons.is_empty() { Coverage::complete() } else { Coverage::incomplete(reasons.join("; ")) }
    }
}

struct Reference {
    tokens: Vec<u32>,
    margins: Option<Vec<f64>>,
}

impl Reference {
    /// Equal (nothing to say), or different where the tolerance allows it (which tie).
    ///
    /// # Errors
    /// A difference that is not allowed, in words.
    fn judge(&self, tokens: &[u32], tolerance: Tolerance) -> Result<Option<String>, String> {
        if tokens.len() != self.tokens.len() {
            return Err(format!("{} tokens where the control has {}", tokens.len(), self.tokens.len()));
        }
        let Some(at) = tokens.iter().zip(&self.tokens).position(|(a, b)| a != b) else { return Ok(None) };
        let place = format!("token {} of {}", at + 1, tokens.len());
        let what = format!("{place} is {} where the control has {}", tokens[at], self.tokens[at]);
        let Tolerance::NearTie { margin: allowed } = tolerance else { return Err(what) };
        match self.margins.as_ref().and_then(|margins| margins.get(at)) {
            None => Err(format!("{what}, and the control does not say how near a tie that was")),
            Some(margin) if *margin <= allowed => Ok(Some(format!(
                "{place}, where the control's best two logits are {margin:.3} apart (at most {allowed})"
            ))),
            Some(margin) => Err(format!(
                "{what}, where the control's best two logits are {margin:.3} apart; only below {allowed} may another \
                 kernel choose otherwise"
            )),
        }
    }
}

impl Arm {
    /// An arm before anything has run.
    pub fn planned(name: &str, given: &str, kind: ArmKind, tolerance: Tolerance) -> Arm {
        let not_run = || "it has not run";
        let how = "let the run go on";
        let nothing = || Verified::NotChecked("nothing has run".to_owned());
        let ours = matches!(kind, ArmKind::Checkpoint | ArmKind::SameAgain);
        let why = if ours { not_run() } else { "only hourglass's own arms have it" };
        Arm {
            name: name.to_owned(),
            given: given.to_owned(),
            kind,
            subject: Known::unavailable(why, how),
            engine: Known::unavailable(not_run(), how),
            conditions: Known::unavailable(why, how),
            conditions_id: Known::unavailable(why, how),
            output_check: crate::bench::OutputCheck { tolerance, result: nothing() },
            wiring_check: nothing(),
            counts: false,
            reason: Some("it has not run".to_owned()),
            summary: Vec::new(),
        }
    }
}
