//! The ledger: any edit of any byte is found and its line named, branches must be merged openly, and nobody's line is lost.

#![allow(clippy::unwrap_used, reason = "tests")]

mod compare_fixture;

use std::sync::OnceLock;

use compare_fixture::{add, bench, bench_fixture, replays};
use proptest::prelude::*;
use record::compare::Collection;
use record::gate::{Answer, Namespace};
use record::ledger::{
    Body, ChainError, Decided, Entry, JudgeError, Ledger, LedgerFile, LedgerFileError, NO_ENTRY, Note, Opening,
    export_json, export_markdown, import, judge, opening_workloads,
};
use record::{EvidenceRef, Known};

const GROUPS: [&str; 3] = ["projections", "attention", "cache update"];
const NEW: [&str; 2] = ["matvec/avx2", "matvec-vnni/avx512"];
const BEFORE: [f64; 3] = [15_000.0, 4_000.0, 500.0];

fn opening(accept: &[&str], reject: &[&str]) -> Opening {
    let mut collection = Collection::default();
    add(&mut collection, "bench.json", &bench(2, 1.0, 1.0, 0.01, NEW));
    let owned = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect();
    Opening {
        dominates: "projections dominate a decode step at 128/9".into(),
        change: "a dot product of bytes".into(),
        expect: Some("decode gets faster by a fifth, with \"equal\" tokens".into()),
        accept: owned(accept),
        reject: owned(reject),
        workloads: opening_workloads(&collection),
        baseline: "before".into(),
        candidate: "after".into(),
        target: Some("projections".into()),
        evidence: vec![EvidenceRef::of("find/1", "find.json", b"{}")],
    }
}

fn open(accept: &[&str], reject: &[&str]) -> Entry {
    Entry::new("2026-02-01T00:00:00Z", NO_ENTRY, Body::Open(Box::new(opening(accept, reject))))
}

fn note(about: &str, text: &str, previous: &str) -> Entry {
    Entry::new("2026-02-02T00:00:00Z", previous, Body::Note(Note { about: about.into(), text: text.into() }))
}

fn text(entries: &[&Entry]) -> Vec<u8> {
    entries.iter().flat_map(|entry| (entry.line() + "\n").into_bytes()).collect()
}

/// An opening, a closing with every number, and two notes.
fn whole() -> &'static (Vec<u8>, Vec<Entry>) {
    static WHOLE: OnceLock<(Vec<u8>, Vec<Entry>)> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let first = open(&["decode.ratio > 1.2", "tokens_equal"], &["decode.verdict == slower"]);
        let Body::Open(opening) = &first.body else { panic!("an opening") };
        let mut records = Collection::default();
        add(&mut records, "bench.json", &bench(8, 1.0, 0.76, 0.01, NEW));
        add(&mut records, "replay.json", &replays(BEFORE, [9_000.0, 4_000.0, 500.0], NEW));
        let names = Namespace::comparison("rule", &GROUPS);
        let (closing, _) = judge(&first, opening, &records, &names, "2026-03-02T00:00:00Z").unwrap();
        let second = Entry::new("2026-03-02T00:00:00Z", &first.hash, Body::Close(Box::new(closing)));
        let third = note(&first.id, "größer ≠ better\u{1F980}", &second.hash);
        let fourth = note(&second.id, "a line\nbreak \"quoted\"", &third.hash);
        let bytes = text(&[&first, &second, &third, &fourth]);
        (bytes, vec![first, second, third, fourth])
    })
}

#[test]
fn what_was_written_is_read_and_ends_are_known() {
    let (bytes, entries) = whole();
    let ledger = Ledger::read(bytes).unwrap();
    assert_eq!(ledger.entries(), &entries[..]);
    assert_eq!((ledger.verified().entries, ledger.head()), (4, entries[3].hash.as_str()));
    assert!(ledger.has_hash(&entries[1].hash[..12]) && !ledger.has_hash(&entries[1].hash[..3]));
    let id = &entries[0].id;
    assert_eq!(ledger.closing(id).unwrap().1.verdict, Decided::Keep);
    assert_eq!(ledger.notes(id).count(), 1);
    assert_eq!(ledger.opening(&id[..6]).unwrap().0, &entries[0]);
    assert_eq!(Ledger::read(b"").unwrap().head(), NO_ENTRY);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// One byte changed to any other, anywhere.
    #[test]
    fn an_edit_of_any_byte_is_found(place in any::<prop::sample::Index>(), other in any::<u8>()) {
        let (bytes, _) = whole();
        let at = place.index(bytes.len());
        let mut edited = bytes.clone();
        edited[at] = other;
        if edited != *bytes {
            let error = Ledger::read(&edited).expect_err("an edit was not seen").to_string();
            let line = 1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count();
            // The last line's end gone makes it torn; every message names the line.
            prop_assert!(error.contains(&format!("line {line}")), "{error}, changed in line {line}");
        }
    }

    /// A byte taken out or put in.
    #[test]
    fn a_byte_more_or_less_is_found(place in any::<prop::sample::Index>(), more in prop::option::of(any::<u8>())) {
        let (bytes, _) = whole();
        let at = place.index(bytes.len());
        let mut edited = bytes.clone();
        match more {
            Some(byte) => edited.insert(at, byte),
            None => { edited.remove(at); }
        }
        prop_assert!(Ledger::read(&edited).is_err());
    }

    /// Lines taken out of the beginning or the middle, doubled, or put in another order.
    #[test]
    fn lines_cannot_be_moved(order in prop::collection::vec(0..4usize, 1..6)) {
        let (_, entries) = whole();
        let moved = text(&order.iter().map(|index| &entries[*index]).collect::<Vec<_>>());
        let is_head = order.iter().enumerate().all(|(place, index)| place == *index);
        // Only a ledger whose end was cut off is one: the last hash, kept elsewhere, shows that.
        prop_assert_eq!(Ledger::read(&moved).is_ok(), is_head);
    }

    /// Whatever bytes: an answer, never a panic.
    #[test]
    fn no_file_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Ledger::read(&bytes);
    }
}

#[test]
fn a_changed_entry_with_a_new_hash_breaks_the_next() {
    let (_, entries) = whole();
    let Body::Open(opening) = &entries[0].body else { panic!("an opening") };
    let mut edited = opening.clone();
    edited.accept = vec!["decode.ratio > 0.5".into()];
    let forged = Entry::new(&entries[0].created, NO_ENTRY, Body::Open(edited));
    let error = Ledger::read(&text(&[&forged, &entries[1], &entries[2], &entries[3]])).unwrap_err();
    assert!(matches!(error, ChainError::Broken { line: 2, .. }), "{error}");
}

#[test]
fn a_torn_line_and_a_conflict_say_what_to_do() {
    let (bytes, _) = whole();
    let torn = &bytes[..bytes.len() - 20];
    let error = Ledger::read(torn).unwrap_err();
    assert!(matches!(error, ChainError::Torn { line: 4 }) && error.to_string().contains("sed"), "{error}");
    let conflict = [b"<<<<<<< HEAD\n", &bytes[..]].concat();
    let error = Ledger::read(&conflict).unwrap_err();
    assert!(matches!(error, ChainError::Conflict { line: 1 }) && error.to_string().contains("decide merge"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = LedgerFile::new(dir.path().join("ledger.jsonl"));
    std::fs::write(file.path(), torn).unwrap();
    let refused = file.append::<()>("2026-04-01T00:00:00Z", |_| panic!("nothing is appended to a torn ledger"));
    assert!(matches!(refused, Err(LedgerFileError::Chain { why: ChainError::Torn { .. }, .. })));
    assert_eq!(std::fs::read(file.path()).unwrap(), torn, "nothing is repaired silently");
}

#[test]
fn branches_are_one_again_only_by_a_merge_entry() {
    let first = open(&["decode.ratio > 1"], &["decode.ratio < 1"]);
    let ours = note(&first.id, "ours", &first.hash);
    let theirs = note(&first.id, "theirs", &first.hash);
    let bytes = text(&[&first, &ours, &theirs]);
    let error = Ledger::read(&bytes).unwrap_err();
    assert!(matches!(&error, ChainError::Forked { line: 3, other: 2, fork, ends: 2 } if fork == "1"), "{error}");
    assert!(error.to_string().contains("decide merge"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = LedgerFile::new(dir.path().join("ledger.jsonl"));
    std::fs::write(file.path(), &bytes).unwrap();
    let refused = file.append::<()>("2026-04-01T00:00:00Z", |_| panic!("nothing is appended to a fork"));
    assert!(matches!(refused, Err(LedgerFileError::Chain { why: ChainError::Forked { .. }, .. })));
    let merged = file.merge("2026-04-01T00:00:00Z").unwrap().unwrap();
    assert!(matches!(&merged.body, Body::Merge(merge) if merge.heads == [ours.hash.clone()]));
    assert_eq!(merged.previous, theirs.hash);
    assert_eq!(file.read().unwrap().entries().len(), 4);
    assert!(file.merge("2026-04-01T00:00:00Z").unwrap().is_none(), "there is nothing left to merge");
    // Without one branch the merge entry itself shows that it is missing.
    let without = text(&[&first, &theirs, &merged]);
    assert!(matches!(Ledger::read(&without).unwrap_err(), ChainError::MissingBranch { line: 3, .. }));
}

#[test]
fn everybody_who_writes_at_once_gets_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = LedgerFile::new(dir.path().join("ledger.jsonl"));
    let first = file.append::<()>("2026-01-01T00:00:00Z", |_| {
        Ok(Body::Open(Box::new(opening(&["decode.ratio > 1"], &["decode.ratio < 1"]))))
    });
    let about = first.unwrap().unwrap().id;
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let (file, about) = (file.clone(), about.clone());
            scope.spawn(move || {
                for number in 0..10 {
                    let body = Body::Note(Note { about: about.clone(), text: format!("{writer}:{number}") });
                    file.append::<()>("2026-01-02T00:00:00Z", |_| Ok(body)).unwrap().unwrap();
                }
            });
        }
    });
    let ledger = file.read().unwrap();
    assert_eq!(ledger.entries().len(), 81, "one chain, and nobody's line lost");
    let mut texts: Vec<&str> = ledger.notes(&about).map(|(_, text)| text).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 80);
}

#[test]
fn a_decision_is_closed_once_and_only_if_opened() {
    let (_, entries) = whole();
    let again = Entry::new("2026-05-01T00:00:00Z", &entries[3].hash, entries[1].body.clone());
    let bytes = text(&[&entries[0], &entries[1], &entries[2], &entries[3], &again]);
    assert!(matches!(Ledger::read(&bytes).unwrap_err(), ChainError::ClosedTwice { line: 5, first: 2, .. }));
    let alone = Entry::new("2026-05-01T00:00:00Z", NO_ENTRY, entries[1].body.clone());
    assert!(matches!(Ledger::read(&text(&[&alone])).unwrap_err(), ChainError::Unopened { line: 1, .. }));
}

fn judged(accept: &[&str], reject: &[&str], records: &Collection) -> Result<Decided, JudgeError> {
    let entry = open(accept, reject);
    let Body::Open(opening) = &entry.body else { panic!("an opening") };
    let names = Namespace::comparison("rule", &GROUPS);
    judge(&entry, opening, records, &names, "2026-03-02T00:00:00Z").map(|(closing, _)| closing.verdict)
}

#[test]
fn the_verdict_is_what_the_rules_say() {
    let run = |decode: f64, jitter: f64, kernels| {
        let mut records = Collection::default();
        add(&mut records, "bench.json", &bench(8, 1.0, decode, jitter, kernels));
        records
    };
    // 20 ms per token become 15.2: a ratio of 1.316.
    let faster = run(0.76, 0.01, NEW);
    for (accept, reject, verdict) in [
        ("decode.ratio > 1.2", "decode.ratio < 1", Decided::Keep),
        ("decode.ratio > 1.2", "decode.ratio > 1.1", Decided::Reject),
        ("decode.ratio > 1.316", "decode.ratio < 1", Decided::Inconclusive),
        ("decode.ratio > 1.5", "decode.ratio < 1.1", Decided::Inconclusive),
        ("decode.ratio > 1.2", "decode.ratio < 1.316", Decided::Inconclusive),
        ("replay.decode.projections < 10 ms", "decode.ratio < 1", Decided::Inconclusive),
        ("tokens_equal", "decode.verdict == slower", Decided::Keep),
    ] {
        assert_eq!(judged(&[accept], &[reject], &faster).unwrap(), verdict, "accept {accept}, reject {reject}");
    }
    let slower = run(1.2, 0.01, NEW);
    assert_eq!(judged(&["decode.ratio > 1.2"], &["decode.ratio < 1"], &slower).unwrap(), Decided::Reject);
    let noise = run(0.99, 0.06, NEW);
    assert_eq!(judged(&["decode.ratio > 1.05"], &["decode.ratio < 1"], &noise).unwrap(), Decided::Inconclusive);
    let unreached = run(0.5, 0.01, ["matvec/avx2", "matvec/avx2"]);
    let entry = open(&["decode.ratio > 1.2"], &["decode.ratio < 1"]);
    let Body::Open(opening) = &entry.body else { panic!("an opening") };
    let names = Namespace::comparison("rule", &GROUPS);
    let (closing, _) = judge(&entry, opening, &unreached, &names, "2026-03-02T00:00:00Z").unwrap();
    assert_eq!(closing.verdict, Decided::Inconclusive);
    assert!(closing.sentence.contains("reached no call"), "{}", closing.sentence);
    assert!(closing.shapes[0].accept.iter().all(|answer| answer.answer == Answer::Missing));
}

#[test]
fn records_from_before_or_of_another_workload_close_nothing() {
    let mut early = bench(8, 1.0, 0.5, 0.01, NEW);
    early.created = "2026-01-31T23:59:59Z".into();
    let mut records = Collection::default();
    add(&mut records, "early.json", &early);
    let error = judged(&["decode.ratio > 1.2"], &["decode.ratio < 1"], &records).unwrap_err();
    assert!(matches!(&error, JudgeError::Earlier { file, .. } if file == "early.json"), "{error}");
    let mut other = bench(8, 1.0, 0.5, 0.01, NEW);
    other.workload.context_tokens = 64;
    other.close();
    let mut records = Collection::default();
    add(&mut records, "other.json", &other);
    let error = judged(&["decode.ratio > 1.2"], &["decode.ratio < 1"], &records).unwrap_err();
    assert!(matches!(&error, JudgeError::Workload { fields, .. } if fields.contains("context_tokens")), "{error}");
}

#[test]
fn shapes_that_disagree_make_it_conditional() {
    let long = |decode: f64| {
        let mut record = bench(8, 1.0, decode, 0.01, NEW);
        record.workload.context_tokens = 1024;
        record.close();
        record
    };
    let mut records = Collection::default();
    add(&mut records, "short.json", &bench(8, 1.0, 0.76, 0.01, NEW));
    add(&mut records, "long.json", &long(1.1));
    let mut opening = opening(&["decode.ratio > 1.2"], &["decode.ratio < 1"]);
    opening.workloads = opening_workloads(&records);
    assert_eq!(opening.workloads.len(), 2);
    let entry = Entry::new("2026-02-01T00:00:00Z", NO_ENTRY, Body::Open(Box::new(opening.clone())));
    let names = Namespace::comparison("rule", &GROUPS);
    let (closing, _) = judge(&entry, &opening, &records, &names, "2026-03-02T00:00:00Z").unwrap();
    assert_eq!(closing.verdict, Decided::Conditional);
    assert!(closing.sentence.contains("1024 prompt tokens, 9 generated: reject"), "{}", closing.sentence);
    // One shape alone leaves the decision open.
    let mut one = Collection::default();
    add(&mut one, "short.json", &bench(8, 1.0, 0.76, 0.01, NEW));
    let error = judge(&entry, &opening, &one, &names, "2026-03-02T00:00:00Z").unwrap_err();
    assert!(error.to_string().contains("1024 prompt tokens"), "{error}");
}

/// A change inside a checkpoint: two builds tell the sides apart, and the older one may have been measured before.
#[test]
fn two_builds_of_one_checkpoint_are_two_sides() {
    let of_build = |build: &str, created: &str, decode: f64| {
        let mut record = bench(8, 1.0, decode, 0.01, NEW);
        let conditions = compare_fixture::conditions(NEW[1], build);
        record.arms[1].conditions_id = Known::Is(conditions.id());
        record.arms[1].conditions = Known::Is(conditions);
        record.created = created.into();
        bench_fixture::finish(&mut record);
        record
    };
    let mut records = Collection::default();
    let old = add(&mut records, "old.json", &of_build("b1", "2026-01-01T00:00:00Z", 1.0));
    let mut opening = opening(&["decode.ratio > 1.2"], &["decode.ratio < 1"]);
    (opening.baseline, opening.candidate) = ("after".into(), "after".into());
    opening.evidence = vec![old];
    let entry = Entry::new("2026-02-01T00:00:00Z", NO_ENTRY, Body::Open(Box::new(opening.clone())));
    let names = Namespace::comparison("rule", &GROUPS);
    let error = judge(&entry, &opening, &records, &names, "2026-03-02T00:00:00Z").unwrap_err();
    assert!(matches!(error, JudgeError::Builds { builds: 1, .. }), "{error}");
    add(&mut records, "new.json", &of_build("b2", "2026-03-01T00:00:00Z", 0.5));
    let (closing, shapes) = judge(&entry, &opening, &records, &names, "2026-03-02T00:00:00Z").unwrap();
    assert_eq!(closing.verdict, Decided::Keep, "{}", closing.sentence);
    assert!(!shapes[0].comparison.request.known().unwrap().paired, "two runs are never paired");
}

#[test]
fn decisions_come_and_go_in_the_short_form() {
    let (bytes, entries) = whole();
    let ledger = Ledger::read(bytes).unwrap();
    let exported = export_json(&ledger, None);
    let back = import("export.json", exported.to_string().as_bytes()).unwrap();
    assert_eq!(back.len(), 1);
    assert_eq!((back[0].change.as_str(), back[0].kept.as_str()), ("a dot product of bytes", "kept"));
    assert_eq!(back[0].dominated_before, "projections dominate a decode step at 128/9");
    let markdown = export_markdown(&ledger, Some(&entries[0].id));
    assert!(markdown.contains("kept") && markdown.contains("accept if decode.ratio > 1.2: holds"), "{markdown}");
    let theirs = br#"[{"change": "x", "what_dominated_before": "y", "evidence": ["a", "b"], "kept": false}]"#;
    assert_eq!(import("theirs.json", theirs).unwrap()[0].kept, "rejected");
    for (bad, word) in [
        (&b"{"[..], "not JSON"),
        (b"3", "no decisions"),
        (b"{\"decisions\": []}", "no decisions"),
        (br#"{"change": "x", "evidence": "e", "kept": true}"#, "dominated_before"),
        (br#"{"change": "x", "dominated_before": "y", "evidence": "e", "kept": "perhaps"}"#, "perhaps"),
        (br#"{"change": " ", "dominated_before": "y", "evidence": "e", "kept": true}"#, "change"),
    ] {
        let error = import("bad.json", bad).unwrap_err().to_string();
        assert!(error.contains(word) && error.starts_with("bad.json"), "{error}");
    }
}
