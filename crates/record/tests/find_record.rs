//! A `find/2` record and its ranking, on views made up so that the truth is known: what costs most comes first, by how much,
//! nothing twice. Not here: measuring, and the rows of a climb (`climb_record`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod find_fixture;

use find_fixture::*;
use proptest::prelude::*;
use record::find::{CandidateKind, Ranking, RequestSummary, RungText};
use record::*;
use serde_json::{Value, json};

#[test]
fn what_is_written_reads_back() {
    let record = record_of(&views());
    assert_eq!(read::<FindRecord>("r.json", &text(&record)).unwrap(), record);
    assert_eq!(record.checks, record.cross_foot());
    assert!(record.checks.len() >= 7);
}

/// By hand: a pass costs (alone) and may cost (floor); a prefill comes once, a decode step once per token after the first.
#[test]
fn every_row_is_passes_times_measured_less_floor() {
    let ranking = ranked(&views());
    for (phase, operators, passes) in [(Phase::Prefill, PREFILL, 1.0), (Phase::Decode, DECODE, OUTPUT - 1.0)] {
        for (slot, operator, alone, floor) in operators {
            let name = if slot == operator { slot.to_owned() } else { format!("{slot}: {operator}") };
            let row = named(&ranking, phase, &name);
            assert!((seconds(&row.measured) - passes * alone * 1e-6).abs() < 1e-9, "{name}: {row:?}");
            assert!((seconds(&row.recoverable) - passes * (alone - floor) * 1e-6).abs() < 1e-9, "{name}: {row:?}");
            assert_eq!(row.multiplicity.passes as f64, passes);
            assert_eq!(row.evidence.len(), 1);
        }
        let dispatch = named(&ranking, phase, "dispatch of a pass");
        assert!((seconds(&dispatch.measured) - passes * DISPATCH_US * 1e-6).abs() < 1e-12);
    }
    assert_eq!(ranking.candidates[0].name, "q_proj: linear");
    assert_eq!((ranking.candidates[0].phase, ranking.candidates[0].rank), (Phase::Prefill, 1));
    assert!(
        ranking.verdict.contains("prefill q_proj: linear") && ranking.verdict.contains("30.0 ms"),
        "{}",
        ranking.verdict
    );
    let falsify = ranking.candidates[0].falsify.command.join(" ");
    assert!(falsify.starts_with("hourglass replay --case selected:prefill:128 --sensitivity linear"), "{falsify}");
    assert!(falsify.ends_with("--threads 2"), "the flags of every command: {falsify}");
}

/// The replay met a minute in which everything took a third longer than in the clock's: the requests between its rounds did too.
#[test]
fn rows_are_parts_of_the_requests_that_met_the_same_minutes() {
    const SLOW: f64 = 4.0 / 3.0;
    let slow =
        |operators: [Operator; 3]| operators.map(|(slot, operator, us, floor)| (slot, operator, us * SLOW, floor));
    let calm = views();
    let request = RequestSummary::of(&calm.clock.as_ref().unwrap().record).unwrap();
    let mut drifted = views_of(&slow(PREFILL), &slow(DECODE), 0.001);
    let workload = drifted.clock.as_ref().unwrap().record.workload.clone();
    let parts = [&request.prefill, &request.decode, &request.whole_request].map(|part| seconds(part) * 1e6 * SLOW);
    for view in [&mut drifted.prefill, &mut drifted.decode] {
        let record = &mut view.as_mut().unwrap().record;
        record.requests = vec![RequestsBetween::new(CHECKPOINT, workload.clone(), &[parts; 12]).unwrap()];
        let (case, between) = (record.cases[0].case.clone(), record.requests[0].name());
        record.turns =
            (0..24).map(|turn| Turn { of: if turn % 2 == 0 { &case } else { &between }.clone(), rounds: 1 }).collect();
        record.close();
        assert!(!record.void, "{:?}", record.checks);
    }
    let (calm, drifted) = (ranked(&calm), ranked(&drifted));
    for phase in [Phase::Prefill, Phase::Decode] {
        for name in ["q_proj: linear", "attention"] {
            let (one, other) = (named(&calm, phase, name), named(&drifted, phase, name));
            assert!((seconds(&other.measured) / seconds(&one.measured) - 1.0).abs() < 1e-3, "{name}: {other:?}");
            // What bytes and operations allow is the same in any minute.
            assert!((seconds(&other.floor) / seconds(&one.floor) - 1.0).abs() < 1e-9, "{name}: {other:?}");
        }
    }
    for budget in &drifted.phases {
        assert!((budget.drift.value().unwrap() - 1.0 / SLOW).abs() < 1e-9, "{budget:?}");
        assert!(drifted.doubts.iter().any(|doubt| doubt.contains("25.0 % shorter")), "{:?}", drifted.doubts);
    }
    let (one, other) = (seconds(&calm.unexplained), seconds(&drifted.unexplained));
    assert!((one - other).abs() < 2e-3 * seconds(&calm.request), "{one} {other}");
    assert!(calm.phases[0].drift.missing().is_some(), "no requests between the rounds: taken as they are");
}

#[test]
fn the_books_balance() {
    let ranking = ranked(&views());
    let parts = seconds(&ranking.floor) + seconds(&ranking.recoverable) + seconds(&ranking.unexplained);
    assert!((parts - seconds(&ranking.request)).abs() < 1e-12);
    let rows: f64 = ranking.candidates.iter().map(|row| seconds(&row.measured)).sum();
    assert!((rows + seconds(&ranking.unexplained) - seconds(&ranking.request)).abs() < 1e-9);
    for candidate in &ranking.candidates {
        let remaining = seconds(&ranking.request) - seconds(&candidate.recoverable);
        assert!((seconds(&candidate.remaining) - remaining).abs() < 1e-12);
    }
    let phase = &ranking.phases[1];
    let sum =
        seconds(&phase.operators) + seconds(&phase.dispatch) + seconds(&phase.sampling) + seconds(&phase.unexplained);
    assert!((sum - seconds(&phase.clocked)).abs() < 1e-9);
}

/// One operator at its floor is made twice as slow: it comes first, and what undoing it would bring is predicted.
#[test]
fn an_operator_made_twice_as_slow_is_first_and_its_gain_is_predicted() {
    for slow in 0..3 {
        let mut decode = DECODE;
        for operator in &mut decode {
            operator.3 = 0.95 * operator.2;
        }
        decode[slow].2 *= 2.0;
        let ranking = ranked(&views_of(&[("other", "other", 1_000.0, 990.0)], &decode, 0.02));
        let first = &ranking.candidates[0];
        assert!(first.name.starts_with(decode[slow].0) && first.rank == 1, "{slow}: {first:?}");
        let truth = (OUTPUT - 1.0) * DECODE[slow].2 * 1e-6;
        let predicted = seconds(&first.recoverable);
        assert!((predicted / truth - 1.0).abs() < 0.15, "{predicted} for {truth}");
        let interval = first.interval.known().unwrap();
        assert!(interval.low < predicted && predicted < interval.high && interval.confidence >= 0.95);
    }
}

#[test]
fn candidates_that_cannot_be_told_apart_share_a_rank() {
    let alike = [("a", "a", 1e5, 5e4), ("b", "b", 1.01e5, 5e4), ("c", "c", 6e4, 5e4)];
    let ranks = |spread: f64| -> Vec<(String, u64)> {
        let ranking = ranked(&views_of(&[("p", "p", 10.0, 10.0)], &alike, spread));
        let decode =
            ranking.candidates.iter().filter(|row| row.kind == CandidateKind::Operator && row.phase == Phase::Decode);
        decode.map(|row| (row.name.clone(), row.rank)).collect()
    };
    assert_eq!(ranks(0.05), [("b".into(), 1), ("a".into(), 1), ("c".into(), 3)]);
    let apart = ranks(0.001);
    assert_eq!(apart, [("b".into(), 1), ("a".into(), 2), ("c".into(), 3)]);
    let ranking = ranked(&views_of(&[("p", "p", 10.0, 10.0)], &alike, 0.05));
    assert!(ranking.verdict.contains("cannot be told apart"), "{}", ranking.verdict);
}

#[test]
fn without_ceilings_all_time_counts_and_the_ranking_says_so() {
    let mut views = views();
    views.prefill = Some(seen("replay-prefill.json", replay(Phase::Prefill, &PREFILL, false, 0.001)));
    views.decode = Some(seen("replay-decode.json", replay(Phase::Decode, &DECODE, false, 0.001)));
    let ranking = ranked(&views);
    let first = &ranking.candidates[0];
    assert_eq!((first.name.as_str(), first.phase), ("attention", Phase::Prefill), "the longest row");
    assert!(first.floor.known().is_none() && first.recoverable == first.measured);
    assert!(ranking.doubts.iter().any(|doubt| doubt.contains("6 operator rows have no floor")), "{:?}", ranking.doubts);
    assert!(ranking.next.iter().any(|next| next.command == ["hourglass", "ceilings"]));
}

#[test]
fn a_ceiling_that_is_too_low_is_told_and_gives_no_negative_gain() {
    let mut decode = DECODE;
    decode[1].3 = 2.0 * decode[1].2;
    let ranking = ranked(&views_of(&PREFILL, &decode, 0.001));
    let row = named(&ranking, Phase::Decode, "attention");
    assert_eq!((seconds(&row.recoverable), &row.floor), (0.0, &row.measured));
    assert!(ranking.doubts.iter().any(|doubt| doubt.contains("ran faster than the floor")), "{:?}", ranking.doubts);
}

#[test]
fn a_missing_view_is_a_doubt_and_never_a_zero() {
    let mut without = views();
    without.decode = None;
    let ranking = ranked(&without);
    assert!(ranking.candidates.iter().all(|row| row.phase != Phase::Decode));
    assert!(ranking.phases[1].operators.missing().is_some());
    assert!(ranking.doubts.iter().any(|doubt| doubt.contains("decode was not replayed")));
    assert!(ranking.doubts.iter().any(|doubt| doubt.contains("are in no row")), "{:?}", ranking.doubts);
    without.clock = None;
    assert!(Ranking::of(&without, CHECKPOINT).unwrap_err().contains("not clocked"));
}

/// Two of eight steps are a tenth of a second late in every request: the rows, which are medians, cannot hold it.
#[test]
fn time_in_no_row_is_split_into_late_steps_and_the_rest() {
    let mut views = views();
    views.decode = None;
    let doubt = |views: &record::find::Views| {
        let doubts = ranked(views).doubts;
        doubts.into_iter().find(|doubt| doubt.contains("%) are in no row")).unwrap()
    };
    assert!(!doubt(&views).contains("longer than the median one"), "{}", doubt(&views));
    for sample in &mut views.clock.as_mut().unwrap().record.samples {
        let record::bench::Outcome::Measured(measured) = &mut sample.outcome else { panic!("{sample:?}") };
        for late in &mut measured.clock.token_seconds[2..4] {
            *late += 0.1;
        }
    }
    assert!(doubt(&views).contains("longer than the median one account for 200 ms"), "{}", doubt(&views));
}

#[test]
fn a_ranking_that_was_changed_is_refused() {
    let original: Value = serde_json::from_slice(&text(&record_of(&views()))).unwrap();
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 6] = [
        (|r| r["workload"]["seed"] = json!(5), "workload_id"),
        (|r| r["ranking"]["candidates"][0]["recoverable"]["value"] = json!(0.001), "checks"),
        (|r| r["ranking"]["candidates"][1]["rank"] = json!(1), "checks"),
        (|r| r["ranking"]["unexplained"]["value"] = json!(0.0), "checks"),
        (|r| r["request"]["samples_s"][0] = json!(9.0), "checks"),
        (|r| r["checks"] = json!([]), "checks"),
    ];
    for (change, word) in changes {
        let mut changed = original.clone();
        change(&mut changed);
        assert_ne!(changed, original);
        // A median may not notice one sample; two that are far off it does.
        if word == "checks" && changed["request"] != original["request"] {
            for sample in changed["request"]["samples_s"].as_array_mut().unwrap() {
                *sample = json!(9.0);
            }
        }
        let error = read::<FindRecord>("r.json", changed.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains(word) && error.starts_with("r.json: "), "{error}");
    }
}

/// A rung that packs the projections to a quarter of the bytes addresses their row and nothing else, and is predicted to take
/// three quarters of its time off.
#[test]
fn a_rung_is_held_against_the_rows_that_it_changes() {
    let mut views = views();
    let own = [
        ("q_proj", "linear", "dense", 4_000_000),
        ("attention", "attention", "rows", 500),
        ("norm", "rms_norm", "n", 9),
    ];
    let mut packed = own;
    packed[0] = ("q_proj", "linear", "matvec", 1_000_000);
    views.wiring = Some(seen("wiring.json", plan(&own)));
    let text = RungText { name: "packed".into(), change: "four bits".into(), hypothesis: "weights dominate".into() };
    views.rungs = vec![(text, seen("wiring-packed.json", plan(&packed)))];
    let ranking = ranked(&views);
    let [rung] = &ranking.rungs[..] else { panic!("one rung") };
    assert_eq!(rung.addresses, ["decode q_proj: linear"]);
    let row = named(&ranking, Phase::Decode, "q_proj: linear");
    assert!((seconds(&rung.by_bytes) - 0.75 * seconds(&row.measured)).abs() < 1e-9, "{rung:?}");
    assert!((seconds(&rung.addressed) - seconds(&row.measured)).abs() < 1e-9);
    let tries = row.tries.known().unwrap();
    assert!(tries[0].command.join(" ").contains("--variant selected --variant packed"), "{tries:?}");
    assert!(named(&ranking, Phase::Decode, "attention").tries.missing().is_some());
}

/// What uneven shares cost is taken out of the operator's rows, by their time, and is a row of its own; nothing is in both.
#[test]
fn waits_leave_their_operators_and_are_counted_once() {
    let plain = ranked(&views());
    let mut with = views();
    with.timeline = Some(seen("timeline.json", timeline(20_000_000, 0)));
    let ranking = ranked(&with);
    let request = seconds(&ranking.request);
    // 20 of 1000 ms of the traced window.
    let lost = 0.02 * request;
    let waits = ranking.candidates.iter().find(|row| row.kind == CandidateKind::Waits).unwrap();
    let rows = [Phase::Prefill, Phase::Decode].map(|phase| named(&ranking, phase, "q_proj: linear"));
    let all: f64 = rows.iter().map(|row| seconds(&row.measured)).sum();
    for row in rows {
        let above = seconds(&named(&plain, row.phase, &row.name).recoverable);
        let expected = (lost * seconds(&row.measured) / all).min(above);
        assert!((seconds(&row.waits) - expected).abs() < 1e-9, "{row:?}");
        assert!((seconds(&row.recoverable) - (above - expected)).abs() < 1e-9);
        assert_eq!(row.evidence.len(), 2);
    }
    let moved: f64 = rows.iter().map(|row| seconds(&row.waits)).sum();
    assert!((seconds(&waits.recoverable) - moved).abs() < 1e-12);
    assert!((seconds(&ranking.recoverable) - seconds(&plain.recoverable)).abs() < 1e-9, "moved, not added");
}

#[test]
fn what_the_machine_took_is_ranked_and_never_what_to_change() {
    let mut views = views();
    views.timeline = Some(seen("timeline.json", timeline(0, 600_000_000)));
    let ranking = ranked(&views);
    let taken = &ranking.candidates[0];
    assert_eq!(taken.kind, CandidateKind::Machine);
    assert!((seconds(&taken.share) - 0.6).abs() < 1e-9);
    assert_eq!(ranking.first().unwrap().name, "q_proj: linear");
    assert!(ranking.verdict.contains("q_proj"), "{}", ranking.verdict);
    assert!(ranking.doubts.iter().any(|doubt| doubt.contains("processors were taken away")), "{:?}", ranking.doubts);
    let names: Vec<&str> = ranking.memory.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["weights and scratch", "keys and values"], "600 MB less 80 MB, and 80 MB");
}

#[test]
fn foreign_files_get_a_reason() {
    let deep = "[".repeat(100_000);
    type Expected = fn(&ReadError) -> bool;
    let cases: [(&[u8], Expected); 9] = [
        (b"", |e| matches!(e, ReadError::NotJson { .. })),
        (b"\xff\xfe", |e| matches!(e, ReadError::NotJson { .. })),
        (deep.as_bytes(), |e| matches!(e, ReadError::NotJson { .. })),
        (b"[1, 2]", |e| matches!(e, ReadError::NotARecord { .. })),
        (b"null", |e| matches!(e, ReadError::NotARecord { .. })),
        (b"{\"schema\": 1}", |e| matches!(e, ReadError::NotARecord { .. })),
        (b"{\"schema\": \"find/1\"}", |e| matches!(e, ReadError::UnknownSchema { .. })),
        (b"{\"schema\": \"find/2\"}", |e| matches!(e, ReadError::Invalid { .. })),
        (b"{\"schema_version\": 1, \"profiles\": []}", |e| matches!(e, ReadError::NotARecord { .. })),
    ];
    for (bytes, expected) in cases {
        let error = read::<FindRecord>("x.json", bytes).unwrap_err();
        assert!(expected(&error), "{error}");
    }
}

#[test]
fn the_schema_names_every_part() {
    let schema = record::schema::<FindRecord>().to_string();
    for word in ["workload_id", "recoverable", "mechanism", "falsify", "unexplained", "unavailable", "how_to_get"] {
        assert!(schema.contains(word), "{word}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read::<FindRecord>("x", &bytes);
        let _ = read::<ClimbRecord>("x", &bytes);
    }

    /// A valid record with one stretch overwritten or cut.
    #[test]
    fn damaged_records_never_panic(at in any::<prop::sample::Index>(), junk in "[0-9eE{}\\[\\]\",:.a-z-]{0,12}", cut in any::<bool>()) {
        let mut bytes = text(&record_of(&views()));
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            let end = (at + junk.len()).min(bytes.len());
            bytes.splice(at..end, junk.bytes());
        }
        let _ = read::<FindRecord>("x", &bytes);
    }

    /// Whatever the operators take and whatever the ceilings say, nothing is counted twice.
    #[test]
    fn books_balance_whatever_was_measured(
        times in proptest::collection::vec((0.0f64..50_000.0, 0.0f64..2.0), 1..6), spread in 0.0f64..0.3,
    ) {
        const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
        let operators: Vec<Operator> =
            times.iter().zip(NAMES).map(|((us, part), name)| (name, name, *us + 1.0, (*us + 1.0) * part)).collect();
        let record = record_of(&views_of(&PREFILL, &operators, spread));
        prop_assert!(!record.void, "{:?}", record.checks.iter().filter(|check| !check.passed).collect::<Vec<_>>());
        let back = read::<FindRecord>("x", &text(&record)).unwrap();
        prop_assert_eq!(back, record);
    }
}
