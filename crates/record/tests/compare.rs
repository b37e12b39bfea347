//! Comparisons of records with known truths: each of the chapter's outcomes is told from the others, and nothing is paired that
//! was not alternated.

#![allow(clippy::unwrap_used, reason = "tests")]

mod compare_fixture;

use compare_fixture::{add, bench, case, conditions, replays};
use record::bench::Metric;
use record::compare::{
    Asked, Collection, CompareError, ComparisonRecord, DeltaMethod, DifferenceKind, Outcome, SideError, compare,
};
use record::gate::{Answer, Namespace, Rule};
use record::{Known, ReplayRecord, Timing, read};

const GROUPS: [&str; 3] = ["projections", "attention", "cache update"];
const NEW: [&str; 2] = ["matvec/avx2", "matvec-vnni/avx512"];
const SAME: [&str; 2] = ["matvec/avx2", "matvec/avx2"];
/// 20 ms per token in the request: 15 of projections, 4 of attention.
const BEFORE: [f64; 3] = [15_000.0, 4_000.0, 500.0];

fn asked() -> Asked<'static> {
    Asked { created: "2026-03-01T13:00:00Z", ..Asked::default() }
}

fn compared(collection: &Collection, asked: &Asked<'_>) -> ComparisonRecord {
    let before = collection.side("run#before", Some("before")).unwrap();
    let after = collection.side("run#after", Some("after")).unwrap();
    let record = compare(&before, &after, asked).unwrap();
    // Whatever it says, it is a record that reads back.
    let text = serde_json::to_vec(&record).unwrap();
    assert_eq!(read::<ComparisonRecord>("comparison", &text).unwrap(), record);
    record
}

fn of(bench: &record::bench::BenchRecord, replays: &ReplayRecord) -> Collection {
    let mut collection = Collection::default();
    add(&mut collection, "bench.json", bench);
    add(&mut collection, "replay.json", replays);
    collection
}

fn ask(rule: &str, record: &ComparisonRecord) -> Answer {
    let names = Namespace::comparison("--gate", &GROUPS);
    Rule::parse(rule, &names).unwrap().ask(record).answer
}

#[test]
fn the_target_fell_and_most_of_it_arrived() {
    // Replay: 15 ms to 9 ms. Request: 20 ms per token to 15.2 ms, 80 % of the 6 ms.
    let collection = of(&bench(8, 1.0, 0.76, 0.01, NEW), &replays(BEFORE, [9_000.0, 4_000.0, 500.0], NEW));
    let record = compared(&collection, &Asked { phase: Some("decode"), ..asked() });
    assert_eq!(record.outcome.outcome, Outcome::TargetFellRequestFaster, "{:#?}", record.outcome);
    let target = record.target.known().unwrap();
    assert_eq!((target.group.as_str(), target.phase.as_str(), target.named), ("projections", "decode", false));
    let arrived = target.arrived.value().unwrap();
    assert!((arrived - 0.8).abs() < 0.05, "{arrived}");
    let ends = target.arrived_interval.known().unwrap();
    assert!(ends.low < 0.8 && 0.8 < ends.high && ends.high - ends.low < 0.3, "{ends:?}");
    assert!(record.outcome.because[0].contains("arrived in the request"), "{:?}", record.outcome.because);
    assert!(record.request.known().unwrap().paired && record.tokens_equal() == Known::Is(true));
    let wiring = record.wiring.known().unwrap();
    assert_eq!((wiring.changed.len(), wiring.changed[0].operator.as_str(), wiring.reached), (1, "linear", true));
    for (rule, answer) in [
        ("request.verdict == faster", Answer::Holds),
        ("decode.ratio > 1.2", Answer::Holds),
        ("decode > 1.2 * baseline", Answer::Holds),
        ("decode < baseline", Answer::Fails),
        ("decode.ratio > 1.315", Answer::Undecided),
        ("replay.decode.projections < 0.75 * baseline", Answer::Holds),
        ("replay.decode.projections < 12 ms", Answer::Holds),
        ("replay.decode.attention.verdict == slower", Answer::Undecided),
        ("target.ratio < 0.75", Answer::Holds),
        ("arrived > 50 %", Answer::Holds),
        ("arrived > 95 %", Answer::Fails),
        ("tokens_equal", Answer::Holds),
        ("tokens_equal == no", Answer::Fails),
        ("peak <= baseline", Answer::Holds),
        ("peak > 1 GB", Answer::Fails),
        ("replay.prefill.projections < 1 ms", Answer::Missing),
        ("timeline.busy_share > 0.5", Answer::Missing),
        ("peak_rss < 1 GB", Answer::Missing),
    ] {
        assert_eq!(ask(rule, &record), answer, "{rule}");
    }
}

#[test]
fn the_target_fell_and_the_request_did_not_move() {
    // Attention in decode becomes five times as fast and saves 3.2 of 19.5 ms in the replay; the request is the same.
    let collection = of(&bench(16, 1.0, 1.0, 0.005, NEW), &replays(BEFORE, [15_000.0, 800.0, 500.0], NEW));
    let record = compared(&collection, &Asked { target: Some("attention"), ..asked() });
    assert_eq!(record.outcome.outcome, Outcome::TargetFellRequestUnmoved, "{:#?}", record.outcome);
    let because = record.outcome.because.join("\n");
    assert!(because.contains("largest group that remains in decode is projections"), "{because}");
    assert!(because.contains("% of the request is prefill: look there"), "{because}");
    assert!(record.outcome.sentence.contains("no difference seen within"), "{}", record.outcome.sentence);
}

#[test]
fn the_request_got_slower_and_what_grew_is_named() {
    let collection = of(&bench(8, 1.0, 1.3, 0.01, NEW), &replays(BEFORE, [9_000.0, 16_000.0, 500.0], NEW));
    let record = compared(&collection, &Asked { target: Some("projections"), ..asked() });
    assert_eq!(record.outcome.outcome, Outcome::RequestSlower, "{:#?}", record.outcome);
    let because = record.outcome.because.join("\n");
    assert!(because.contains("decode: after is slower than before"), "{because}");
    assert!(because.contains("what grew in the replay: replay.decode.attention 4000.0 to 16000.0 us"), "{because}");
}

#[test]
fn a_change_that_no_call_reaches_is_void() {
    let collection = of(&bench(8, 1.0, 0.5, 0.01, SAME), &replays(BEFORE, [9_000.0, 4_000.0, 500.0], SAME));
    let record = compared(&collection, &asked());
    assert_eq!(record.outcome.outcome, Outcome::Void, "however fast it seems: {:#?}", record.outcome);
    assert!(record.void && record.outcome.sentence.contains("reached no call"), "{}", record.outcome.sentence);
    assert_eq!(ask("request.verdict == faster", &record), Answer::Missing, "nothing passes on a void comparison");
}

#[test]
fn a_change_inside_the_noise_is_no_finding() {
    // No pair of 4 shows 1 % in 4 % of noise; 16 quiet pairs show that there is none.
    let noisy = of(&bench(4, 1.0, 0.99, 0.04, NEW), &replays(BEFORE, BEFORE, NEW));
    let record = compared(&noisy, &asked());
    assert_eq!(record.outcome.outcome, Outcome::Inconclusive, "{:#?}", record.outcome);
    assert!(
        record.outcome.next.contains("more --repeats") || record.outcome.next.contains("quieter"),
        "{}",
        record.outcome.next
    );
    let quiet = of(&bench(16, 1.0, 0.998, 0.004, NEW), &replays(BEFORE, BEFORE, NEW));
    let record = compared(&quiet, &asked());
    assert_eq!(record.outcome.outcome, Outcome::NoDifference, "{:#?}", record.outcome);
}

#[test]
fn a_request_that_got_faster_by_something_else_says_so() {
    let grown = [22_000.0, 1_000.0, 500.0];
    let collection = of(&bench(8, 1.0, 0.8, 0.01, NEW), &replays(BEFORE, grown, NEW));
    let record = compared(&collection, &Asked { target: Some("projections"), ..asked() });
    assert_eq!(record.outcome.outcome, Outcome::RequestFasterTargetDidNotFall, "{:#?}", record.outcome);
    assert!(record.outcome.because.iter().any(|line| line.contains("replay.decode.attention fell")));
}

#[test]
fn a_group_whose_calls_are_gone_is_judged_by_the_total() {
    let fused = |total: f64| {
        let mut record = replays(BEFORE, [15_000.0, total - 15_000.0, 500.0], NEW);
        let replay = &mut record.cases[1].replay;
        replay.groups.retain(|row| row.group != "cache update");
        replay.absent = vec![record::AbsentGroup { group: "cache update".into(), why: "attention does it".into() }];
        replay.total();
        record.close();
        record
    };
    for (total, outcome) in
        [(15_800.0, Outcome::TargetFellRequestFaster), (24_000.0, Outcome::RequestFasterTargetDidNotFall)]
    {
        let collection = of(&bench(8, 1.0, 0.8, 0.01, NEW), &fused(total));
        let record = compared(&collection, &Asked { target: Some("cache update"), ..asked() });
        assert_eq!(record.outcome.outcome, outcome, "{:#?}", record.outcome);
        let gone = record.row("replay.decode.cache_update").unwrap();
        assert!(gone.after.missing().unwrap().unavailable.contains("attention does it"), "missing, not zero");
    }
}

#[test]
fn two_runs_are_never_paired() {
    let (mut a, mut b) = (Collection::default(), Collection::default());
    add(&mut a, "a.json", &bench(8, 1.0, 1.0, 0.005, NEW));
    let mut later = bench(8, 1.0, 0.93, 0.005, NEW);
    later.created = "2026-03-02T12:00:00Z".into();
    add(&mut b, "b.json", &later);
    let compare_sides = |after: &str| {
        compare(&a.side("a", Some("before")).unwrap(), &b.side("b", Some(after)).unwrap(), &asked()).unwrap()
    };
    let record = compare_sides("after");
    let view = record.request.known().unwrap();
    assert!(!view.paired && view.design.contains("not alternated"), "{}", view.design);
    let decode = view.row(Metric::Decode).unwrap();
    assert_eq!(decode.method, DeltaMethod::Unpaired);
    // 7 % between runs may be the machine's mood; in one run it was certain.
    assert_eq!(record.outcome.outcome, Outcome::Inconclusive, "{:#?}", record.outcome);
    assert!(record.outcome.next.contains("one alternated run"), "{}", record.outcome.next);
    let mut one = Collection::default();
    add(&mut one, "b.json", &later);
    assert_eq!(compared(&one, &asked()).row("decode").unwrap().method, DeltaMethod::OrderAdjustedT);
    assert!(compared(&one, &asked()).row("decode").unwrap().is_better());
    // Bytes are counted: they differ by what they differ.
    assert_eq!(view.row(Metric::Peak).unwrap().ratio.value(), Some(1.0));
    assert!(view.row(Metric::Peak).unwrap().is_same());
}

#[test]
fn other_workloads_are_refused_by_field() {
    let (mut a, mut b) = (Collection::default(), Collection::default());
    add(&mut a, "a.json", &bench(2, 1.0, 1.0, 0.01, NEW));
    let mut other = bench(2, 1.0, 1.0, 0.01, NEW);
    other.workload.seed = 3;
    other.close();
    add(&mut b, "b.json", &other);
    let error =
        compare(&a.side("a", Some("before")).unwrap(), &b.side("b", Some("after")).unwrap(), &asked()).unwrap_err();
    assert!(matches!(&error, CompareError::Workloads { fields, .. } if fields == "seed (0 and 3)"), "{error}");
    // A replay and a request have nothing in common.
    let mut c = Collection::default();
    add(&mut c, "c.json", &replays(BEFORE, BEFORE, NEW));
    let error =
        compare(&a.side("a", Some("before")).unwrap(), &c.side("c", Some("after")).unwrap(), &asked()).unwrap_err();
    assert!(matches!(error, CompareError::NoView { .. }), "{error}");
    let error = compare(
        &c.side("c", Some("before")).unwrap(),
        &c.side("c", Some("after")).unwrap(),
        &Asked { target: Some("attenton"), ..asked() },
    );
    assert!(error.unwrap_err().to_string().contains("replay.decode.attention"));
}

#[test]
fn a_side_must_be_one() {
    let collection = of(&bench(2, 1.0, 1.0, 0.01, NEW), &replays(BEFORE, BEFORE, NEW));
    let error = collection.side("run", None).unwrap_err();
    assert!(matches!(&error, SideError::Several { found, .. } if found == "before, after"), "{error}");
    assert!(error.to_string().contains("run#NAME"));
    assert!(matches!(collection.side("run", Some("other")).unwrap_err(), SideError::Nobody { .. }));
    assert!(matches!(Collection::default().side("run", None).unwrap_err(), SideError::Nothing { .. }));
    assert_eq!(collection.side("run", Some("hourglass/after")).unwrap().replays.len(), 1);
}

#[test]
fn other_conditions_leave_everything_open() {
    let mut run = bench(8, 1.0, 0.5, 0.01, NEW);
    let mut other = conditions(NEW[1], "b1");
    other.threads = 4;
    run.arms[1].conditions_id = Known::Is(other.id());
    run.arms[1].conditions = Known::Is(other);
    let mut collection = Collection::default();
    add(&mut collection, "bench.json", &run);
    let record = compared(&collection, &asked());
    assert_eq!(record.outcome.outcome, Outcome::Inconclusive, "{:#?}", record.outcome);
    assert!(record.outcome.sentence.contains("threads was 2 before and 4 after"), "{}", record.outcome.sentence);
    let kinds: Vec<_> = record.different.iter().map(|different| (different.what.as_str(), different.kind)).collect();
    assert_eq!(kinds, [("checkpoint", DifferenceKind::Intended), ("threads", DifferenceKind::Suspicious)]);
}

/// A GPU's replays of builds that timed them by the host hold the start of a pass in every row.
#[test]
fn replays_by_two_clocks_leave_everything_open() {
    let mut replayed = replays(BEFORE, [9_000.0, 4_000.0, 500.0], NEW);
    for case in &mut replayed.cases {
        case.replay.dispatch_floor = Known::Is(Timing::new(vec![5.0; 4]).unwrap());
    }
    let outcome = |replayed: &ReplayRecord| compared(&of(&bench(8, 1.0, 0.76, 0.01, NEW), replayed), &asked()).outcome;
    assert_ne!(outcome(&replayed).outcome, Outcome::Inconclusive, "{:#?}", outcome(&replayed));
    replayed.cases[1].replay.dispatch_floor = Known::unavailable("the GPU times its calls itself", "the timeline");
    let (found, words) =
        (outcome(&replayed), "the clock of replayed rows was the host's before and the GPU's own after");
    assert_eq!(found.outcome, Outcome::Inconclusive, "{found:#?}");
    assert!(found.sentence.contains(words), "{}", found.sentence);
}

#[test]
fn an_arm_that_does_not_count_voids() {
    let mut run = bench(4, 1.0, 0.5, 0.01, NEW);
    run.arms[1].counts = false;
    run.arms[1].reason = Some("its output differs: token 3".into());
    run.comparisons.clear();
    run.close();
    let mut collection = Collection::default();
    add(&mut collection, "bench.json", &run);
    let record = compared(&collection, &asked());
    assert_eq!(record.outcome.outcome, Outcome::Void);
    assert!(record.outcome.sentence.contains("its output differs: token 3"), "{}", record.outcome.sentence);
}

#[test]
fn replays_alone_do_not_say_that_the_request_moved() {
    let mut collection = Collection::default();
    add(&mut collection, "replay.json", &replays(BEFORE, [9_000.0, 4_000.0, 500.0], NEW));
    let record = compared(&collection, &asked());
    assert_eq!(record.outcome.outcome, Outcome::Inconclusive);
    assert!(record.outcome.because[0].contains("the target fell in the replay"), "{:?}", record.outcome.because);
    assert!(record.request.missing().is_some() && record.outcome.next.contains("alternated"));
    // What is incomplete is left out and said so.
    let incomplete =
        record::Replay::not_measured("before", compare_fixture::replay_workload(), "the cache is too small");
    let mut cases = replays(BEFORE, BEFORE, NEW);
    cases.cases[0] = record::ReplayCase::not_measured("before:decode:128", incomplete);
    cases.cases.push(case("after", NEW[1], BEFORE));
    cases.close();
    let collection = of(&bench(2, 1.0, 1.0, 0.01, NEW), &cases);
    let record = compared(&collection, &asked());
    assert!(record.left_out.iter().any(|line| line.contains("the cache is too small")), "{:?}", record.left_out);
    assert!(record.left_out.iter().any(|line| line.contains("another replay")), "{:?}", record.left_out);
}
