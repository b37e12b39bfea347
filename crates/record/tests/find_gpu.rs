//! A ranking of a request that a GPU ran: its sentences speak of kernels, and captured layers weigh as much as those they stand for.
//! Not here: the ranking itself (`find_record.rs`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod capture_fixture;
mod find_fixture;

use find_fixture::*;
use record::capture::{Hints, Roofs, kernel_tree, placed};
use record::find::{CandidateKind, Views};
use record::*;

/// The views of `find_fixture`, of a GPU, whose short calls are limited by their number.
fn on_gpu() -> Views {
    let mut views = views();
    let clock = views.clock.as_mut().unwrap();
    for arm in &mut clock.record.arms {
        let mut conditions = capture_fixture::conditions();
        conditions.host.device = "cuda:0 (a GPU)".to_owned();
        arm.conditions = Known::Is(conditions);
    }
    let decode = views.decode.as_mut().unwrap();
    let Known::Is(operators) = &mut decode.record.cases[0].replay.operators else { panic!() };
    for row in operators {
        let Known::Is(floor) = &mut row.row.floor else { panic!() };
        (floor.dispatch, floor.memory, floor.arithmetic) = (us(0.9 * floor.least.value().unwrap()), us(1.0), us(0.5));
        floor.least = floor.dispatch.clone();
    }
    views.flags = vec!["--device".to_owned(), "cuda:0".to_owned()];
    views
}

/// A traced request of a GPU that is idle for a fiftieth of its steps.
fn traced() -> TimelineRecord {
    let mut traced = timeline(0, 400_000_000);
    traced.device = Known::Is(record::timeline::DeviceTrace {
        profiler: "a profiler".into(),
        launched: 9,
        recorded: 9,
        in_graphs: 9,
        dropped: 0,
        outside_dispatch: 0,
        unserved_calls: 0,
        overlapped_ns: 0,
        gaps_in_graph_ns: 0,
        pauses: Known::Is(record::timeline::DevicePauses {
            step: Reading::measured(0.01, Unit::Seconds, 9),
            idle_share: Reading::measured(0.02, Unit::Share, 9),
        }),
        clock_error_ns: 1,
        clock_drift_ns: 0,
        peak_allocation: Reading::measured(1e9, Unit::Bytes, 1),
    });
    traced.close();
    traced
}

/// The same views with rows by the GPU's own clock.
fn by_device() -> Views {
    let mut views = on_gpu();
    for seen in [&mut views.prefill, &mut views.decode].into_iter().flatten() {
        for case in &mut seen.record.cases {
            case.replay.dispatch_floor = Known::unavailable("the GPU times its calls itself", "the timeline");
        }
    }
    views
}

#[test]
fn sentences_of_a_gpu_are_about_kernels_and_their_tests_run_there() {
    let (gpu, cpu) = (ranked(&on_gpu()), ranked(&views()));
    let row = named(&gpu, Phase::Decode, "q_proj: linear");
    assert!(
        row.mechanism.contains("starting 28 kernels, each after the one before, is the least"),
        "{}",
        row.mechanism
    );
    let mut words: Vec<&str> = gpu.candidates.iter().map(|row| row.mechanism.as_str()).collect();
    words.extend(gpu.doubts.iter().map(String::as_str));
    for words in words {
        assert!(!words.contains("worker") && !words.contains("meeting"), "{words}");
    }
    // Time cannot be added between the calls of a graph, so that no test asks for it.
    for row in gpu.candidates.iter().filter(|row| row.kind == CandidateKind::Operator) {
        let command = row.falsify.command.join(" ");
        assert!(!command.contains("--sensitivity") && command.ends_with("--device cuda:0"), "{command}");
        assert!(row.falsify.says.starts_with("wrong if "), "{}", row.falsify.says);
    }
    let of_cpu: Vec<&str> = cpu.candidates.iter().map(|row| row.mechanism.as_str()).collect();
    assert!(of_cpu.iter().any(|words| words.contains("starts the workers")), "{of_cpu:?}");
}

/// A GPU's replay times kernels by the GPU's own clock. Its pauses are a row of their own, of the request without a profiler; those of the
/// recorded request are none.
#[test]
fn a_gpus_pauses_are_those_of_a_request_that_nobody_recorded() {
    let mut views = by_device();
    let without = ranked(&views);
    let median = |slot: &str| {
        let replay = &views.decode.as_ref().unwrap().record.cases[0].replay;
        let own = replay.operators.known().unwrap().iter().find(|row| row.slot == slot).unwrap();
        own.row.timing.median.value().unwrap()
    };
    let row = named(&without, Phase::Decode, "q_proj: linear");
    let passes = row.multiplicity.passes as f64;
    let drift = without.phases.iter().find(|phase| phase.phase == Phase::Decode).unwrap().drift.value().unwrap_or(1.0);
    assert!((seconds(&row.measured) - median("q_proj") * passes * drift * 1e-6).abs() < 1e-9, "nothing is taken off");

    views.timeline = Some(seen("timeline.json", traced()));
    let with = ranked(&views);
    let decode = with.phases.iter().find(|phase| phase.phase == Phase::Decode).unwrap();
    let pauses = named(&with, Phase::Decode, "pauses of the GPU");
    let idle = 0.02 * seconds(&decode.clocked);
    assert!(seconds(&decode.sampling) > 1e-4, "or the next line could not fail");
    let both = seconds(&pauses.measured) + seconds(&decode.sampling);
    assert!((both - idle).abs() < 1e-9, "choosing a token is in one row: {both} of {idle}");
    assert!((seconds(&decode.dispatch) - seconds(&pauses.measured)).abs() < 1e-12);
    let taken =
        |ranking: &find::Ranking| ranking.candidates.iter().filter(|row| row.kind == CandidateKind::Machine).count();
    assert_eq!(taken(&with), 0, "the recorded request's own stretches are its profiler's too");
}

/// A phase is what its parts are and what no view explains, whether or not a view has its pauses; a part that none has says why.
#[test]
fn a_phase_without_pauses_has_its_books_and_says_what_is_missing() {
    let mut views = by_device();
    views.timeline = Some(seen("timeline.json", traced()));
    let ranking = ranked(&views);
    for phase in &ranking.phases {
        let known = seconds(&phase.operators) + phase.dispatch.value().unwrap_or(0.0) + seconds(&phase.sampling);
        assert!((seconds(&phase.clocked) - known - seconds(&phase.unexplained)).abs() < 1e-9, "{phase:?}");
        let missing = phase.dispatch.missing().map(|missing| missing.unavailable.as_str());
        match phase.phase {
            Phase::Decode => assert_eq!(missing, None),
            _ => assert!(missing.is_some_and(|why| why.contains("no view says what it paused for")), "{missing:?}"),
        }
    }
    views.prefill = None;
    let prefill = ranked(&views).phases.into_iter().find(|phase| phase.phase == Phase::Prefill).unwrap();
    for part in [&prefill.operators, &prefill.dispatch, &prefill.unexplained] {
        assert_eq!(part.missing().unwrap().unavailable, "this phase was not replayed");
    }
}

/// A replay has no pauses: only another trace can show other ones. A record whose replay the host timed has a start of each pass.
#[test]
fn what_is_said_of_pauses_is_of_the_view_that_has_them() {
    let mut views = by_device();
    views.timeline = Some(seen("timeline.json", traced()));
    let own = ranked(&views);
    let pauses = named(&own, Phase::Decode, "pauses of the GPU");
    assert_eq!(pauses.falsify.command[1], "timeline", "{:?}", pauses.falsify);
    assert!(pauses.mechanism.contains("no kernel ran"), "{}", pauses.mechanism);
    let mut old = on_gpu();
    old.timeline = Some(seen("timeline.json", timeline(0, 400_000_000)));
    let old = ranked(&old);
    let start = named(&old, Phase::Decode, "dispatch of a pass");
    assert!(start.mechanism.contains("put into the GPU's queue"), "{}", start.mechanism);
    assert_eq!(start.falsify.command[1], "replay");
    assert!(old.candidates.iter().all(|row| row.name != "pauses of the GPU"), "it is in the other row already");
    assert!(
        old.candidates.iter().all(|row| !matches!(row.kind, CandidateKind::Idle | CandidateKind::Machine)),
        "a trace without kernels shows the GPU idle while it computes"
    );
}

/// Whoever takes the host's processors takes nothing from the GPU's own times.
#[test]
fn a_host_that_was_busy_is_no_doubt_of_a_gpus_own_times() {
    let doubts = |mut views: Views| {
        let replay = &mut views.decode.as_mut().unwrap().record.cases[0].replay;
        replay.processor_share = Reading::measured(0.5, Unit::Share, 1);
        ranked(&views).doubts.iter().any(|doubt| doubt.contains("replay had its processors"))
    };
    assert!(doubts(on_gpu()) && !doubts(by_device()));
}

/// A GPU serves several calls by one launch, in one phase and not in the other: replayed rows are held against it together.
#[test]
fn calls_of_one_launch_are_held_against_the_timeline_together() {
    let disagreement = |launches: &[(&str, f64)]| {
        let mut views = by_device();
        let mut traced = traced();
        let row = traced.summary.operators[0].clone();
        let of = |(name, ns): &(&str, f64)| record::timeline::OperatorRow {
            operator: (*name).to_owned(),
            wall_ns: vec![*ns as u64],
            imbalance: missing(),
            ..row.clone()
        };
        traced.summary.operators = launches.iter().map(of).collect();
        traced.close();
        views.timeline = Some(seen("timeline.json", traced));
        ranked(&views).doubts.into_iter().find(|doubt| doubt.contains("the views disagree on"))
    };
    // A request of the fixture by its replays: one prefill and eight steps.
    let [q, attention, norm] = [0, 1, 2].map(|place| 1e3 * (PREFILL[place].2 + (OUTPUT - 1.0) * DECODE[place].2));
    let (alone, rest) = (1e3 * PREFILL[0].2, 1e3 * (OUTPUT - 1.0) * DECODE[0].2);
    let both = "q_proj (linear) + norm (rms_norm)";
    let same = [("q_proj (linear)", alone), (both, rest + norm), ("attention", attention)];
    assert_eq!(disagreement(&same), None);
    let turned: Vec<_> = same.iter().rev().copied().collect();
    assert_eq!(disagreement(&turned), None, "in whatever order they are met");
    let other = disagreement(&[("q_proj (linear)", alone), (both, rest + norm), ("attention", 4.0 * (q + attention))]);
    assert!(other.as_ref().is_some_and(|doubt| doubt.contains(both) || doubt.contains("attention")), "{other:?}");
}

/// Rows that miss a part of the request: what the groups take more is of it where the GPU timed both, and is a part worth a sentence.
#[test]
fn groups_that_take_more_than_operators_are_an_answer_to_what_is_missed() {
    let said = |longer: f64, mut views: Views| {
        let replay = &mut views.decode.as_mut().unwrap().record.cases[0].replay;
        let Known::Is(operators) = &mut replay.operators else { panic!() };
        for row in operators {
            row.row.timing = Timing::new(samples(0.5 * row.row.timing.median.value().unwrap(), 0.0)).unwrap();
        }
        for row in &mut replay.groups {
            row.timing = Timing::new(samples(0.5 * longer * row.timing.median.value().unwrap(), 0.0)).unwrap();
        }
        ranked(&views).doubts.into_iter().find(|doubt| doubt.contains(" of the request (")).unwrap()
    };
    assert!(said(1.2, by_device()).contains("than by operators"), "{}", said(1.2, by_device()));
    assert!(!said(1.0001, by_device()).contains("than by operators"), "a thousandth explains nothing");
    assert!(!said(1.2, on_gpu()).contains("than by operators"), "the host timed both");
    let mut more = by_device();
    let Known::Is(operators) = &mut more.decode.as_mut().unwrap().record.cases[0].replay.operators else { panic!() };
    for row in operators {
        row.row.timing = Timing::new(samples(2.0 * row.row.timing.median.value().unwrap(), 0.0)).unwrap();
    }
    let doubts = ranked(&more).doubts;
    assert!(doubts.iter().any(|doubt| doubt.contains("more than the request takes") && doubt.contains("weights")));
}

/// A kernel that only a GPU has is compared on one.
#[test]
fn what_to_try_on_a_gpu_is_tried_there() {
    let compare = |mut views: Views| {
        let mut wiring = plan(&[("q_proj", "linear", "dense", 9)]);
        wiring.unreached = vec![UnreachedKernel {
            operator: "linear".into(),
            kernel: "other/x".into(),
            source: "x.rs:1".into(),
            reason: Unreached::NoCheckpoint,
            why: "no checkpoint".into(),
        }];
        views.wiring = Some(seen("wiring.json", wiring));
        let ranking = ranked(&views);
        let tries = named(&ranking, Phase::Decode, "q_proj: linear").tries.known().unwrap().clone();
        let of_kernels = |one: &&record::find::Experiment| one.command.contains(&"--compare".to_owned());
        tries.iter().find(of_kernels).unwrap().command.join(" ")
    };
    let (gpu, cpu) = (compare(on_gpu()), compare(views()));
    assert!(gpu.contains("linear:other/x") && gpu.ends_with(" --device cuda:0"), "{gpu}");
    assert!(!cpu.contains("--device"), "{cpu}");
}

/// One profiled layer of 27: its operator has few samples that stand for much time.
#[test]
fn views_are_held_against_each_other_by_time_and_not_by_samples() {
    let with = |weights: &[u64]| {
        let (trace, metadata, lines) =
            (capture_fixture::trace(), capture_fixture::metadata(), capture_fixture::lines_record());
        let roofs = Roofs { ceilings: None, threads: 2, footprint: 0 };
        let mut tree = kernel_tree(&trace, &placed(&trace), roofs, &Hints::default()).known().unwrap().clone();
        let row = tree.rows[0].clone();
        tree.rows = DECODE
            .iter()
            .zip(weights)
            .map(|((_, operator, ..), weight)| {
                let mut row = row.clone();
                row.operator = (*operator).to_owned();
                (row.cost.samples, row.cost.weight_ns) = (1000 - weight / 1000, *weight);
                row
            })
            .collect();
        let workload = Workload { phase: Phase::Decode, ..metadata.workload.clone() };
        let mut record = CaptureRecord {
            schema: CaptureRecord::SCHEMA.to_owned(),
            created: metadata.created.clone(),
            workload,
            workload_id: String::new(),
            conditions: metadata.conditions.clone(),
            conditions_id: String::new(),
            subject: metadata.subject.clone(),
            provenance: lines.provenance.clone(),
            stretch: lines.stretch.clone(),
            ceilings: missing(),
            kernels: Known::Is(tree),
            counters: missing(),
            lines: missing(),
            instructions: missing(),
            device: CaptureRecord::without_device(),
            checks: Vec::new(),
            void: false,
        };
        record.close();
        let mut views = on_gpu();
        views.captures = vec![seen("capture-decode.json", record)];
        ranked(&views).doubts
    };
    let disagree = |doubts: &[String]| doubts.iter().any(|doubt| doubt.contains("the views disagree on"));
    let replayed: Vec<u64> = DECODE.iter().map(|(_, _, alone, _)| *alone as u64).collect();
    assert!(!disagree(&with(&replayed)), "as much time in both: {:?}", with(&replayed));
    let mut other = replayed;
    other.reverse();
    assert!(disagree(&with(&other)), "{:?}", with(&other));
}
