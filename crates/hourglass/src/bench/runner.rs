//! Walks the planned order: one fresh process per slot, its sample into the record, the record saved as it grows.
//! Not here: starting processes (`process.rs`), what the samples mean (`record::bench`), how it is shown (`table.rs`).

use std::time::{Duration, Instant};

use anyhow::Result;
use record::Known;
use record::bench::{ArmKind, BenchRecord, EngineFacts, Measured, Outcome, Sample, Surroundings, Tolerance};

use super::process::{self, ChildCommand, ChildResult, Execution, Task};
use crate::interrupt;

/// Runs one process of an arm. Real processes in the binary, made-up ones in tests.
pub(crate) trait Executor {
    /// `margins`: the child is to say how near to a tie each of its choices was.
    fn run(&mut self, arm: usize, margins: bool, tick: &mut dyn FnMut()) -> Execution;
}

/// Real processes.
pub(crate) struct Processes {
    /// One per arm; None for an arm that has no slot.
    pub(crate) commands: Vec<Option<ChildCommand>>,
    pub(crate) limit: Duration,
    pub(crate) output_tokens: u64,
}

impl Executor for Processes {
    fn run(&mut self, arm: usize, margins: bool, tick: &mut dyn FnMut()) -> Execution {
        let mut command = self.commands[arm].clone().expect("only arms that can run have slots");
        if margins {
            command.arguments.push("--margins".into());
        }
        process::run(&command, Some(self.limit), Task::Request(self.output_tokens), tick)
    }
}

/// What a person sees meanwhile.
pub(crate) trait Watcher {
    /// About ten times a second, with the slot that runs.
    fn tick(&mut self, record: &BenchRecord, slot: usize, left: Option<Duration>);
    /// A sample has been added and everything that follows from it computed.
    ///
    /// # Errors
    /// The record cannot be saved: the run ends, and what was measured is kept.
    fn sampled(&mut self, record: &BenchRecord) -> Result<()>;
}

/// Runs every slot of the record's schedule; ends early when interrupted, with what was measured in the record.
///
/// # Errors
/// What [`Watcher::sampled`] says.
pub(crate) fn run(record: &mut BenchRecord, executor: &mut dyn Executor, watcher: &mut dyn Watcher) -> Result<()> {
    let cooldown = Duration::from_secs_f64(record.protocol.cooldown_s);
    for index in record.samples.len()..record.schedule.len() {
        if index > 0 && !pause(cooldown) || interrupt::requested() {
            break;
        }
        let slot = record.schedule[index];
        let arm = slot.arm as usize;
        let margins = arm == 0 && wants_margins(record);
        let begun = Instant::now();
        let shown: &BenchRecord = record;
        let mut tick = || watcher.tick(shown, index, time_left(shown, index, begun.elapsed()));
        let execution = executor.run(arm, margins, &mut tick);
        if matches!(execution.result, ChildResult::Interrupted) {
            break;
        }
        let sample = sample(record, index, execution);
        record.samples.push(sample);
        record.conclude()?;
        watcher.sampled(record)?;
    }
    record.conclude()?;
    Ok(())
}

/// Whether an arm may differ at near ties and the control has not yet said where those are.
fn wants_margins(record: &BenchRecord) -> bool {
    let ours = record.arms[0].kind == ArmKind::Checkpoint;
    let allowed = record.arms.iter().any(|arm| matches!(arm.output_check.tolerance, Tolerance::NearTie { .. }));
    let known = record.samples_of(0).filter_map(Sample::measured).any(|sample| sample.margins.known().is_some());
    ours && allowed && !known
}

/// False: interrupted meanwhile.
fn pause(cooldown: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < cooldown {
        if interrupt::requested() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50).min(cooldown.saturating_sub(start.elapsed())));
    }
    true
}

/// What the rest should take: each arm as long as its processes took so far, an arm that has not run as long as the others.
/// None before the first.
pub(crate) fn time_left(record: &BenchRecord, at: usize, elapsed: Duration) -> Option<Duration> {
    let mean = |samples: Vec<f64>| (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64);
    let any = mean(record.samples.iter().map(|sample| sample.process_s).collect())?;
    let of = |arm: u64| mean(record.samples_of(arm as usize).map(|sample| sample.process_s).collect()).unwrap_or(any);
    let rest = record.schedule.get(at..)?;
    let pauses = record.protocol.cooldown_s * rest.len().saturating_sub(1) as f64;
    let seconds: f64 = rest.iter().map(|slot| of(slot.arm)).sum::<f64>() + pauses;
    // The one that runs may take longer than its like; it is never less than nothing.
    Some(Duration::try_from_secs_f64((seconds - elapsed.as_secs_f64()).max(0.0)).unwrap_or_default())
}

fn sample(record: &mut BenchRecord, index: usize, execution: Execution) -> Sample {
    let slot = record.schedule[index];
    let marks = match &execution.surroundings {
        Known::Is(surroundings) => marks(surroundings, record.protocol.load_limit),
        Known::Unavailable(_) => Vec::new(),
    };
    let outcome = match execution.result {
        ChildResult::Ran(lines) => {
            let (header, request) = *lines;
            let (prompt, output) = (record.workload.context_tokens, record.workload.output_tokens);
            let clock = request.clock(prompt, output);
            let arm = &mut record.arms[slot.arm as usize];
            let facts = EngineFacts {
                engine: header.engine,
                version: header.version,
                settings: header.settings,
                weights_form: header.weights_form,
                conversions: header.conversions,
            };
            let changed = arm.engine.known().filter(|first| {
                (&first.engine, &first.version, &first.weights_form)
                    != (&facts.engine, &facts.version, &facts.weights_form)
            });
            if let Some(first) = changed {
                Outcome::Lost(format!(
                    "it is {} {} with {} weights, and the arm's first process was {} {} with {}",
                    facts.engine, facts.version, facts.weights_form, first.engine, first.version, first.weights_form
                ))
            } else {
                if arm.engine.known().is_none() {
                    arm.engine = Known::Is(facts);
                }
                if let (Some(subject), None) = (header.subject, arm.subject.known()) {
                    arm.subject = Known::Is(subject);
                }
                if let (Some(conditions), None) = (request.conditions, arm.conditions.known()) {
                    arm.conditions_id = Known::Is(conditions.id());
                    arm.conditions = Known::Is(conditions);
                }
                let margins = request.margins.map_or_else(
                    || Known::unavailable("not asked of this process", "the control's first process has them"),
                    Known::Is,
                );
                Outcome::Measured(Box::new(Measured {
                    clock,
                    tokens: request.tokens,
                    margins,
                    wiring: request.wiring,
                    endpoint: request.endpoint,
                }))
            }
        }
        ChildResult::Unavailable(reason) => {
            Outcome::Lost(format!("it cannot run here: {}; to get it: {}", reason.why, reason.how_to_get))
        }
        ChildResult::Lost(why) => Outcome::Lost(why),
        ChildResult::Prepared => Outcome::Lost("it converted its model and measured nothing".to_owned()),
        ChildResult::Interrupted => Outcome::Lost("interrupted".to_owned()),
    };
    Sample {
        order: index as u64,
        arm: slot.arm,
        block: slot.block,
        process_id: execution.process_id,
        started: execution.started,
        process_s: execution.seconds,
        outcome,
        surroundings: execution.surroundings,
        marks,
        excluded: None,
    }
}

/// Which limits the machine was above.
fn marks(surroundings: &Surroundings, limit: f64) -> Vec<String> {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let (others, steal) = (surroundings.others.value(), surroundings.steal.value());
    let mut marks = Vec::new();
    let taken = others.unwrap_or(0.0) + steal.unwrap_or(0.0);
    if taken > limit {
        marks.push(format!(
            "others took {} of the processors ({} of it the hypervisor), above the limit of {}",
            percent(taken),
            percent(steal.unwrap_or(0.0)),
            percent(limit)
        ));
    }
    if let Some(waiting) = surroundings.memory_pressure.value().filter(|share| *share > limit) {
        marks.push(format!(
            "tasks waited for memory {} of the time, above the limit of {}",
            percent(waiting),
            percent(limit)
        ));
    }
    marks
}
