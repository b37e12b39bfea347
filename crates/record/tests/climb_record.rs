//! A `climb/1` record: its rows out of made-up records of both sides, and that they join.
//! Not here: climbing.

#![allow(clippy::unwrap_used, reason = "tests")]

mod find_fixture;

use find_fixture::bench_fixture::{self, Takes, arm, run};
use find_fixture::*;
use record::bench::{ArmKind, Verdict, Verified};
use record::find::RungText;
use record::*;

/// The rung is clocked at four fifths of its parent's time.
#[test]
fn a_row_of_the_route_holds_prediction_and_observation() {
    let mut views = views();
    views.wiring = Some(seen("wiring.json", plan(&[("q_proj", "linear", "dense", 4_000_000)])));
    let text = RungText { name: "packed".into(), change: "four bits".into(), hypothesis: "weights dominate".into() };
    let packed = plan(&[("q_proj", "linear", "matvec", 1_000_000)]);
    views.rungs = vec![(text.clone(), seen("wiring-packed.json", packed))];
    let find = seen("find.json", record_of(&views));
    let clock_both = |counts: bool| {
        let arms = vec![arm(CHECKPOINT, ArmKind::Checkpoint), arm("packed", ArmKind::Checkpoint)];
        let noise = |order: usize| 1.0 + 0.001 * (order % 3) as f64;
        let mut record =
            run(arms, 4, |order, _, arm| Some(Takes::times(noise(order) * if arm == 1 { 0.8 } else { 1.0 })));
        record.arms[1].counts = counts;
        bench_fixture::finish(&mut record);
        record
    };
    let row = climb_row(CHECKPOINT, &text, &find, &seen("bench.json", clock_both(true))).unwrap();
    assert_eq!((row.finding, row.verdict.known()), (Finding::Confirmed, Some(&Verdict::Better)));
    let gained = seconds(&row.gained);
    assert!((gained - 0.2 * seconds(&row.before)).abs() < 0.01 * seconds(&row.before), "{row:?}");
    let decode = named(find.record.ranking.known().unwrap(), Phase::Decode, "q_proj: linear");
    assert!((seconds(&row.predicted.by_bytes) - 0.75 * seconds(&decode.measured)).abs() < 1e-9);
    assert_eq!(row.hits_the_first, Known::Is(false), "the first is the prefill's, which this rung leaves alone");
    assert!(row.sentence.starts_with("confirmed: faster; the request takes 0.8"), "{}", row.sentence);
    let void = climb_row(CHECKPOINT, &text, &find, &seen("bench.json", clock_both(false))).unwrap();
    assert_eq!((void.finding, void.gained.known()), (Finding::Void, None));
    let error = climb_row("rope", &text, &find, &seen("bench.json", clock_both(true))).unwrap_err();
    assert!(error.contains("find.json is about 'selected'"), "{error}");
    let mut other = clock_both(true);
    other.workload.seed = 1;
    let error = climb_row(CHECKPOINT, &text, &find, &seen("bench.json", other)).unwrap_err();
    assert!(error.contains("seed differ"), "{error}");
}

/// The rung takes its parent's time, the clock is off by four tenths now and then, and the profile promises less.
#[test]
fn an_undecided_row_says_that_its_clock_could_not_have_decided() {
    let mut views = views();
    let own = [("q_proj", "linear", "dense", 4_000_000), ("norm", "rms_norm", "n", 9)];
    views.wiring = Some(seen("wiring.json", plan(&own)));
    let text = RungText { name: "norms".into(), change: "fewer".into(), hypothesis: "norms dominate".into() };
    let mut other = own;
    other[1].2 = "m";
    views.rungs = vec![(text.clone(), seen("wiring-norms.json", plan(&other)))];
    let find = seen("find.json", record_of(&views));
    let arms = vec![arm(CHECKPOINT, ArmKind::Checkpoint), arm("norms", ArmKind::Checkpoint)];
    let mut clock = run(arms, 4, |order, _, _| Some(Takes::times(1.0 + 0.4 * (order % 3) as f64)));
    bench_fixture::finish(&mut clock);
    let row = climb_row(CHECKPOINT, &text, &find, &seen("bench.json", clock)).unwrap();
    assert_eq!(row.finding, Finding::Inconclusive, "{row:?}");
    let promised = 100.0 * seconds(&row.predicted.at_most) / seconds(&row.before);
    assert!(promised > 0.0, "{promised}");
    let words = format!("where the profile promised at most {promised:.1} %");
    assert!(row.sentence.contains(&words), "{}", row.sentence);
}

#[test]
fn a_climb_reads_back_and_its_rows_join() {
    let seconds = |value| Reading::measured(value, Unit::Seconds, 4);
    let row = |from: &str, to: &str, verdict: Verdict| {
        let (before, ratio) = (seconds(2.0), Reading::measured(0.75, Unit::Ratio, 4));
        ClimbRow {
            start_from: from.into(),
            checkpoint: to.into(),
            hypothesis: "h".into(),
            change: "c".into(),
            dominates: Known::Is("decode q_proj: linear".into()),
            addresses: vec!["decode q_proj: linear".into()],
            hits_the_first: Known::Is(true),
            predicted: Prediction { at_most: seconds(0.7), by_bytes: seconds(0.6) },
            output: Verified::Passed("all tokens".into()),
            gained: ClimbRow::gain(&before, &ratio),
            before,
            after: seconds(1.5),
            ratio,
            interval: Known::unavailable("too few", "more"),
            finding: Finding::of(true, &Known::Is(verdict)),
            verdict: Known::Is(verdict),
            sentence: "s".into(),
            decision: Known::Is("keep".into()),
            decision_id: Known::unavailable("no ledger", "decide"),
            find: EvidenceRef::of("find/2", "find.json", b"x"),
            bench: EvidenceRef::of("bench/1", "bench.json", b"y"),
        }
    };
    let bench = clock();
    let mut climb = ClimbRecord {
        schema: ClimbRecord::SCHEMA.into(),
        created: "2026-01-01T00:00:00Z".into(),
        workload: bench.workload,
        workload_id: String::new(),
        binary: bench.binary,
        host: bench.host,
        solution: "hourglass".into(),
        from: "a".into(),
        to: "c".into(),
        flags: Vec::new(),
        rows: vec![row("a", "b", Verdict::Better), row("b", "c", Verdict::NoDifference { within_percent: 2.0 })],
        coverage: Coverage::complete(),
        checks: Vec::new(),
        void: false,
    };
    climb.close();
    assert!(!climb.void, "{:?}", climb.checks);
    assert_eq!(climb.rows.iter().map(|row| row.finding).collect::<Vec<_>>(), [Finding::Confirmed, Finding::Refuted]);
    assert_eq!(climb.rows[0].gained.value(), Some(0.5));
    let again: ClimbRecord = read("c.json", &serde_json::to_vec(&climb).unwrap()).unwrap();
    assert_eq!(again, climb);
    climb.rows.remove(0);
    climb.close();
    assert!(climb.void, "a row that starts where none ended");
}
