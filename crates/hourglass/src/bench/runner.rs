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
        record.conclude_so_far()?;
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
            let engine = &mut record.arms[slot.arm as usize].engine;
            if engine.known().is_none() {
                *engine = Known::unavailable(reason.why.as_str(), reason.how_to_get.as_str());
            }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use clap::Parser;
    use record::bench::{ChildHeader, ChildLine, ChildRequest, Metric, Reason, Verified};

    /// Makes processes up: `answer(arm, nth of the arm)`.
    struct MadeUp<'a> {
        answer: &'a dyn Fn(usize, usize) -> ChildResult,
        /// Arms in the order in which they ran, and whether margins were asked for.
        ran: Vec<(usize, bool)>,
    }

    impl Executor for MadeUp<'_> {
        fn run(&mut self, arm: usize, margins: bool, tick: &mut dyn FnMut()) -> Execution {
            tick();
            let nth = self.ran.iter().filter(|(other, _)| *other == arm).count();
            self.ran.push((arm, margins));
            Execution {
                process_id: Known::Is(self.ran.len() as u32),
                started: "2026-01-01T00:00:00Z".to_owned(),
                seconds: 2.0,
                result: (self.answer)(arm, nth),
                surroundings: Known::unavailable("made up", "measure"),
            }
        }
    }

    #[derive(Default)]
    struct Nobody {
        sampled: usize,
        /// Fails to save from here on.
        full_at: Option<usize>,
    }

    impl Watcher for Nobody {
        fn tick(&mut self, _: &BenchRecord, _: usize, _: Option<Duration>) {}

        fn sampled(&mut self, _: &BenchRecord) -> Result<()> {
            self.sampled += 1;
            anyhow::ensure!(self.full_at.is_none_or(|at| self.sampled < at), "the disk is full");
            Ok(())
        }
    }

    fn lines(version: &str, tokens: [u32; 2], seconds: f64) -> ChildResult {
        let header = format!(
            r#"{{"kind":"header","protocol":"bench-child/1","engine":"e","version":"{version}","settings":{{}},"weights_form":"Q4","conversions":[]}}"#
        );
        let ChildLine::Header(header) = ChildLine::parse(&header).unwrap() else { panic!("a header") };
        let missing = || Known::unavailable("made up", "measure");
        let wiring = record::Wiring {
            phase: record::Phase::Decode,
            layers: 2,
            layers_as_planned: 2,
            passes: 1,
            calls_per_pass: 9,
            planned: 9,
            dispatched: 9,
            deviations: Vec::new(),
        };
        let request = ChildRequest {
            prefill_s: Known::Is(seconds),
            token_s: Known::Is(vec![seconds, seconds]),
            to_first_token_s: seconds,
            request_s: seconds * 2.5,
            tokens: Known::Is(tokens.to_vec()),
            peak_allocation_bytes: missing(),
            peak_rss_bytes: missing(),
            involuntary_switches: None,
            conditions: None,
            wiring: vec![wiring],
            processor_share: None,
            device: None,
            margins: Some(vec![0.1, 0.1]),
            endpoint: None,
        };
        let header: ChildHeader = *header;
        ChildResult::Ran(Box::new((header, request)))
    }

    /// A planned run over these variants on the tiny model: two repeats of two tokens.
    fn planned(repeats: &str, variants: &[&str]) -> BenchRecord {
        let mut words =
            vec!["hourglass", "bench", "--model", "synthetic:tiny", "--input-len", "4", "--output-len", "2"];
        words.extend(["--repeats", repeats]);
        words.extend(variants.iter().flat_map(|name| ["--variant", *name]));
        let crate::Verb::Bench(args) = crate::CommandLine::try_parse_from(words).unwrap().verb else { panic!("bench") };
        let files = args.model.open(None).unwrap();
        let variants =
            super::super::variants::resolve(&args.variants, None, &args.machine.solution.registry()).unwrap();
        let command = ChildCommand { program: "none".into(), arguments: Vec::new() };
        let commands = vec![Ok(command); variants.len()];
        args.plan(&variants, &commands, &files, &crate::request::prompt(args.input_len, &files, args.seed)).unwrap()
    }

    fn walk(record: &mut BenchRecord, answer: &dyn Fn(usize, usize) -> ChildResult) -> Vec<(usize, bool)> {
        let mut executor = MadeUp { answer, ran: Vec::new() };
        run(record, &mut executor, &mut Nobody::default()).unwrap();
        executor.ran
    }

    #[test]
    fn two_arms_run_in_a_balanced_order_and_are_compared() {
        let mut record = planned("4", &["selected", "A/A"]);
        let ran = walk(&mut record, &|_, _| lines("1", [5, 6], 0.5));
        let arms: Vec<usize> = ran.iter().map(|(arm, _)| *arm).collect();
        assert_eq!(arms, [0, 1, 1, 0, 1, 0, 0, 1]);
        assert!(ran.iter().all(|(_, margins)| !margins), "synthetic weights leave no ties");
        assert!(record.coverage.is_complete() && !record.void, "{:?} {:?}", record.coverage, record.checks);
        assert_eq!(record.comparison(1, Metric::Decode).unwrap().pairs, 4);
        assert_eq!(record.arms[0].median(Metric::Prefill).value(), Some(8.0));
    }

    #[test]
    fn what_goes_wrong_costs_one_sample_each() {
        let mut record = planned("4", &["selected", "llama.cpp", "A/A"]);
        walk(&mut record, &|arm, nth| match (arm, nth) {
            (1, 0) => ChildResult::Lost("it crashed".to_owned()),
            (1, 1) => {
                ChildResult::Unavailable(Reason { why: "no model".to_owned(), how_to_get: "make one".to_owned() })
            }
            (1, 3) => lines("2", [5, 6], 0.5),
            _ => lines("1", [5, 6], 0.5),
        });
        let lost: Vec<&str> = record
            .samples_of(1)
            .filter_map(|sample| match &sample.outcome {
                Outcome::Lost(why) => Some(why.as_str()),
                Outcome::Measured(_) => None,
            })
            .collect();
        assert_eq!(lost.len(), 3, "{lost:?}");
        for (why, words) in lost.iter().zip(["it crashed", "make one", "first process was e 1"]) {
            assert!(why.contains(words), "{why}");
        }
        assert!(record.arms.iter().all(|arm| arm.counts) && !record.coverage.is_complete());
        assert!(matches!(record.arms[1].wiring_check, Verified::NotChecked(_)));
    }

    #[test]
    fn an_arm_with_another_output_does_not_count() {
        let mut record = planned("2", &["selected", "kv-cache"]);
        walk(&mut record, &|arm, _| lines("1", [5, 6 + arm as u32], 0.5));
        assert!(record.arms[0].counts && !record.arms[1].counts && record.comparisons.is_empty());
    }

    #[test]
    fn margins_are_asked_of_the_control_until_it_gives_them() {
        let mut record = planned("2", &["selected", "kv-cache"]);
        record.arms[1].output_check.tolerance = Tolerance::NearTie { margin: 0.5 };
        let ran = walk(&mut record, &|arm, nth| match (arm, nth) {
            (0, 0) => ChildResult::Lost("it crashed".to_owned()),
            _ => lines("1", [5, 6 + arm as u32], 0.5),
        });
        assert_eq!(ran, [(0, true), (1, false), (1, false), (0, true)]);
        assert!(record.arms[1].counts, "the tie was near: {:?}", record.arms[1].reason);
    }

    #[test]
    fn ctrl_c_and_a_full_disk_keep_what_was_measured() {
        let mut record = planned("2", &["selected", "A/A"]);
        walk(&mut record, &|arm, nth| {
            if (arm, nth) == (1, 1) { ChildResult::Interrupted } else { lines("1", [5, 6], 0.5) }
        });
        assert_eq!(record.samples.len(), 2);
        assert!(record.coverage.reason().unwrap().contains("2 of 4 planned processes ran"), "{:?}", record.coverage);
        assert!(!record.void);
        let mut record = planned("2", &["selected", "A/A"]);
        let mut executor = MadeUp { answer: &|_, _| lines("1", [5, 6], 0.5), ran: Vec::new() };
        let mut watcher = Nobody { sampled: 0, full_at: Some(3) };
        let error = run(&mut record, &mut executor, &mut watcher).unwrap_err();
        assert!(error.to_string().contains("full"));
        assert_eq!((record.samples.len(), record.comparison(1, Metric::Decode).unwrap().pairs), (3, 1));
    }

    #[test]
    fn the_time_left_follows_each_arms_own_pace() {
        let mut record = planned("2", &["selected", "A/A"]);
        assert_eq!(time_left(&record, 0, Duration::ZERO), None);
        walk(&mut record, &|_, _| lines("1", [5, 6], 0.5));
        for sample in &mut record.samples {
            sample.process_s = if sample.arm == 0 { 1.0 } else { 10.0 };
        }
        record.samples.truncate(2);
        // A B were run; B A are left, and the B that runs is 4 s old.
        assert_eq!(time_left(&record, 2, Duration::from_secs(4)), Some(Duration::from_secs(7)));
        assert_eq!(time_left(&record, 2, Duration::from_secs(60)), Some(Duration::ZERO));
    }
}
