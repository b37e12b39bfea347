//! Two captures of one workload with known truths: shares, times of calls, the target, and which outcomes follow from them alone.
//! Not here: reducing a capture (`capture_reduce.rs`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod capture_fixture;

use capture_fixture::{conditions, lines_record, metadata, missing, trace};
use record::capture::{Hints, Roofs, kernel_tree, placed};
use record::compare::{Asked, Collection, ComparisonRecord, Outcome, compare};
use record::{BoundKernel, CaptureRecord, EvidenceRef, Known, Phase, Reading, Record, Unit, read};

/// The fixture's capture, reduced; every pass of `linear` takes `factor` of its time.
fn capture(checkpoint: &str, kernel: &str, factor: f64) -> CaptureRecord {
    let (trace, metadata, lines) = (trace(), metadata(), lines_record());
    let roofs = Roofs { ceilings: None, threads: 2, footprint: 0 };
    let mut tree = kernel_tree(&trace, &placed(&trace), roofs, &Hints::default()).known().unwrap().clone();
    for row in tree.rows.iter_mut().filter(|row| row.operator == "linear") {
        let us = row.per_pass.value().unwrap();
        row.per_pass = Reading::measured(us * factor, Unit::Microseconds, 200);
        row.per_pass_spread = Reading::measured(0.01 * us, Unit::Microseconds, 200);
        row.kernel = kernel.to_owned();
    }
    let mut subject = metadata.subject.clone();
    subject.checkpoint = checkpoint.to_owned();
    let mut conditions = conditions();
    conditions.kernels = vec![BoundKernel {
        phase: Phase::Decode,
        operator: "linear".to_owned(),
        kernel: kernel.to_owned(),
        calls: 2,
        source: "kernels.rs:1".to_owned(),
    }];
    conditions.binary.build_id = Known::Is("be".repeat(32));
    let mut record = CaptureRecord {
        schema: CaptureRecord::SCHEMA.to_owned(),
        created: metadata.created.clone(),
        workload: metadata.workload.clone(),
        workload_id: String::new(),
        conditions,
        conditions_id: String::new(),
        subject,
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
    assert!(!record.void, "{:?}", record.checks);
    record
}

fn compared(before: &CaptureRecord, after: &CaptureRecord, target: Option<&str>) -> ComparisonRecord {
    let mut collection = Collection::default();
    for (file, record) in [("before.json", before), ("after.json", after)] {
        let bytes = serde_json::to_vec(record).unwrap();
        collection.add(EvidenceRef::of(CaptureRecord::SCHEMA, file, &bytes), &bytes).unwrap();
    }
    let side = |name: &str| collection.side(name, Some(name)).unwrap();
    let asked = Asked { created: "2026-03-01T13:00:00Z", target, ..Asked::default() };
    let record = compare(&side("before"), &side("after"), &asked).unwrap();
    let text = serde_json::to_vec(&record).unwrap();
    assert_eq!(read::<ComparisonRecord>("comparison", &text).unwrap(), record);
    record
}

#[test]
fn a_fallen_target_is_said_and_no_request_is_concluded_from_it() {
    let record = compared(&capture("before", "q4/avx512", 1.0), &capture("after", "q8/avx512", 0.5), None);
    let [view] = record.captures.known().unwrap().as_slice() else { panic!("one workload") };
    let row = view.operator("linear").unwrap();
    assert_eq!(
        (row.kernels_before.as_slice(), row.kernels_after.as_slice()),
        (&["q4/avx512".into()][..], &["q8/avx512".into()][..])
    );
    assert!((row.per_pass.ratio.value().unwrap() - 0.5).abs() < 1e-9 && row.per_pass.is_better());
    let calls = row.call_before.value().unwrap() / row.call_after.value().unwrap();
    assert!((calls - 2.0).abs() < 1e-9, "{row:?}");
    assert!(row.share_before.value().unwrap() > 0.0);
    assert_eq!(record.row(&format!("capture.{}.linear", view.phase)), Some(&row.per_pass));
    let target = record.target.known().unwrap();
    assert!(target.arrived.missing().unwrap().unavailable.contains("no latency"));
    assert_eq!(record.outcome.outcome, Outcome::Inconclusive);
    assert!(record.outcome.because.iter().any(|line| line.contains("fell in the capture")), "{:?}", record.outcome);
}

#[test]
fn a_target_that_rose_is_an_outcome_and_a_change_without_a_call_is_void() {
    let slower = compared(&capture("before", "q4/avx512", 1.0), &capture("after", "q8/avx512", 2.0), Some("linear"));
    assert_eq!(slower.outcome.outcome, Outcome::TargetDidNotFall, "{:?}", slower.outcome);
    let same = compared(&capture("before", "q4/avx512", 1.0), &capture("after", "q4/avx512", 0.5), Some("linear"));
    assert_eq!(same.outcome.outcome, Outcome::Void, "{:?}", same.outcome);
}
