//! Gates asked of records: they hold exactly where arithmetic says so, and what is missing never passes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bench_fixture;

use bench_fixture::{Takes, arm, finish, run};
use record::Coverage;
use record::bench::{ArmKind, BenchRecord, Metric};
use record::gate::{Gate, GateMissing};

/// Control, and an arm that takes `factor` times as long; jitter small and the same for both in turn.
fn record(factor: f64) -> BenchRecord {
    let arms = vec![arm("selected", ArmKind::Checkpoint), arm("fast", ArmKind::Checkpoint)];
    let mut record = run(arms, 6, |order, row, arm| {
        let jitter = 1.0 + 0.001 * ((order * 5 + row) % 7) as f64;
        Some(Takes::times(if arm == 1 { factor * jitter } else { jitter }))
    });
    finish(&mut record);
    assert!(!record.void, "{:?}", record.checks);
    record
}

fn fails(gate: &str, record: &BenchRecord) -> bool {
    !Gate::parse(gate).unwrap().failures(record).unwrap().is_empty()
}

#[test]
fn a_gate_fails_exactly_where_its_condition_holds() {
    // Decode runs at 50 tok/s over 1.1; the prompt takes 0.275 s.
    let slower = record(1.1);
    for (gate, holds) in [
        ("decode < 0.97 * baseline", true),
        ("decode < 0.85 * baseline", false),
        ("baseline > decode * 1.05", true),
        ("decode < 46 tok/s", true),
        ("decode < 44 tok/s", false),
        ("ttft > 250 ms", true),
        ("ttft > 0.3 s", false),
        ("ttft - baseline > 20 ms", true),
        ("per_token > 21 ms", true),
        ("per_token > 23 ms", false),
        ("peak > 500 MB", true),
        ("peak > 2 GiB", false),
        ("peak != baseline", false),
        ("(request - ttft) / request > 30 %", true),
        ("(request - ttft) / request < 30 %", false),
        ("verdict == slower", true),
        ("verdict == faster", false),
        ("decode.verdict == slower", true),
        ("decode.verdict != slower", false),
        ("peak.verdict == larger", false),
        ("peak.verdict == no_difference", true),
    ] {
        assert_eq!(fails(gate, &slower), holds, "{gate}");
    }
    let faster = record(0.9);
    assert!(!fails("decode < 0.97 * baseline", &faster) && fails("verdict == faster", &faster));
}

#[test]
fn a_failure_shows_the_numbers_or_the_verdict() {
    let failures = Gate::parse("decode < 0.97 * baseline").unwrap().failures(&record(1.1)).unwrap();
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].arm, "fast");
    let sentence = &failures[0].sentence;
    assert!(sentence.starts_with("decode < 0.97 * baseline: fast: 45.") && sentence.ends_with("tok/s"), "{sentence}");
    let failures = Gate::parse("prefill.verdict == slower").unwrap().failures(&record(1.1)).unwrap();
    assert!(failures[0].sentence.contains("prefill: fast is slower than selected"), "{}", failures[0].sentence);
}

#[test]
fn what_is_missing_never_passes() {
    let ask = |gate: &str, record: &BenchRecord| Gate::parse(gate).unwrap().failures(record).unwrap_err();
    let good = record(1.0);
    let message = ask("peak_rss > 1 GB", &good).to_string();
    for part in ["peak_rss > 1 GB", "peak_rss of fast is missing"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(matches!(ask("peak_rss.verdict == larger", &good), GateMissing::Value { .. }));
    assert!(matches!(ask("decode / (decode - decode) * 1 > 2", &good), GateMissing::NotANumber { .. }));

    let mut differs = good.clone();
    differs.arms[1].counts = false;
    differs.arms[1].reason = Some("its tokens differ".into());
    finish(&mut differs);
    assert!(ask("decode < 0.97 * baseline", &differs).to_string().contains("its tokens differ"));

    let mut void = good.clone();
    void.samples[0].order = 5;
    finish(&mut void);
    assert!(void.void && matches!(ask("decode < 0.97 * baseline", &void), GateMissing::Void { .. }));

    let mut alone = run(vec![arm("selected", ArmKind::Checkpoint)], 2, |_, _, _| Some(Takes::times(1.0)));
    finish(&mut alone);
    assert!(matches!(ask("decode < 0.97 * baseline", &alone), GateMissing::NoArm { .. }));

    let arms = vec![arm("selected", ArmKind::Checkpoint), arm("A/A", ArmKind::SameAgain)];
    let mut same = run(arms, 2, |_, _, arm| Some(Takes::times(1.0 + arm as f64)));
    finish(&mut same);
    assert!(matches!(ask("decode < 0.97 * baseline", &same), GateMissing::NoArm { .. }));

    // One pair has no verdict, and that is no pass either.
    let arms = vec![arm("selected", ArmKind::Checkpoint), arm("fast", ArmKind::Checkpoint)];
    let mut cut = run(arms, 2, |order, _, _| (order < 2).then(|| Takes::times(1.0)));
    cut.coverage = Coverage::incomplete("interrupted");
    finish(&mut cut);
    assert!(cut.comparison(1, Metric::Decode).unwrap().verdict.missing().is_some());
    assert!(matches!(ask("verdict == slower", &cut), GateMissing::Value { .. }));
    assert!(!fails("decode < 0.97 * baseline", &cut));
}
