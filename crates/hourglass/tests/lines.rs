//! `hourglass reduce` and `hourglass lines` through the binary, on a capture of a tiny model: records, tables, files, refusals.
//! Not here: whether known costs are found on their lines, which the tests of `probe` show.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use record::capture::Place;
use record::capture::lines::Verification;
use record::capture::reduced::counters::CounterOrigin;
use record::{CaptureRecord, Known, LinesRecord, Record, read};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use support::{refusal, root, stdout};

/// The three outputs of one capture, shared by the tests, which copy what they change.
struct Captured {
    _folder: tempfile::TempDir,
    trace: PathBuf,
    metadata: PathBuf,
    manifest: PathBuf,
}

fn captured() -> &'static Captured {
    static CAPTURED: OnceLock<Captured> = OnceLock::new();
    CAPTURED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (trace, metadata, manifest) = (path("t"), path("t.capture.json"), path("t.manifest.sha256"));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (t, m, s) = (text(&trace), text(&metadata), text(&manifest));
        stdout(&[
            "capture",
            "--model",
            "synthetic:tiny",
            "--threads",
            "2",
            "--steps",
            "1000",
            "--frequency",
            "4999",
            "--trace",
            &t,
            "--metadata",
            &m,
            "--manifest",
            &s,
        ]);
        Captured { _folder: folder, trace, metadata, manifest }
    })
}

fn words(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn reduce<'a>(output: &'a Path, rest: &[&'a str]) -> Vec<&'a str> {
    let captured = captured();
    let given = ["reduce", "--capture-metadata", words(&captured.metadata), "--manifest", words(&captured.manifest)];
    [&given[..], &["--output", words(output), "--ceilings", "none"], rest].concat()
}

/// A copy of the capture's directory and files that a test may change.
fn copied(to: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let captured = captured();
    let trace = to.join("t");
    fs::create_dir(&trace).unwrap();
    for entry in fs::read_dir(&captured.trace).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), trace.join(entry.file_name())).unwrap();
    }
    let (metadata, manifest) = (to.join("t.capture.json"), to.join("t.manifest.sha256"));
    fs::copy(&captured.metadata, &metadata).unwrap();
    fs::copy(&captured.manifest, &manifest).unwrap();
    (trace, metadata, manifest)
}

fn fits(text: &str) {
    for line in text.lines().filter(|line| line.trim().contains(' ')) {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn a_reduced_capture_cross_foots_and_its_table_says_what_it_rests_on() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("reduced.json");
    let text = stdout(&reduce(&output, &["--trace", words(&captured().trace)]));
    fits(&text);
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in
        ["never a latency", "[barrier wait]", "[dispatch]", "limited by", "Hot loops", "Counters", "not counted"]
    {
        assert!(flat.contains(words), "{words} is missing:\n{text}");
    }
    let bytes = fs::read(&output).unwrap();
    let record: CaptureRecord = read("reduced", &bytes).unwrap();
    assert!(!record.void, "{:?}", record.checks);
    let kernels = record.kernels.known().unwrap();
    let sum: f64 = kernels.places().iter().map(|(_, cost)| cost.share.value).sum();
    assert!((sum - 1.0).abs() < 1e-9, "shares of kernels, waits and dispatch are the whole: {sum}");
    assert_eq!(kernels.spans, kernels.program_calls * record.stretch.steps * 2);
    assert!(kernels.rows.iter().all(|row| row.limiter.verdict.known().is_none()), "no ceilings, no verdicts on roofs");
    // Lines of what was just compiled from this checkout are verified, and every kernel that was sampled has some.
    let lines = record.lines.known().unwrap();
    assert!(lines.files.iter().any(|file| file.verification == Verification::Verified), "{:?}", lines.files);
    assert!(record.provenance.trace.known().is_some() && record.provenance.source.files.known().unwrap() > &100);
    // Every counter is a number or says how to get one.
    for row in &record.counters.known().unwrap().rows {
        assert!(row.count.known().is_some() || !row.count.missing().unwrap().how_to_get.is_empty(), "{}", row.name);
    }
    // Once more to the same place is refused before any work, and what was there stays.
    assert!(refusal(&reduce(&output, &["--trace", words(&captured().trace)]), 2).contains("never overwritten"));
    assert_eq!(fs::read(&output).unwrap(), bytes);
}

#[test]
fn counters_of_a_machine_with_a_pmu_fill_the_other_branch() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("reduced.json");
    let profile = root().join("crates/hourglass/tests/fixtures/perf-stat.jsonl");
    let text = stdout(&reduce(&output, &["--profile-jsonl", words(&profile), "--json"]));
    let record: CaptureRecord = read("stdout", text.as_bytes()).unwrap();
    assert_eq!(record, read("file", &fs::read(&output).unwrap()).unwrap());
    assert!(record.kernels.missing().unwrap().unavailable.contains("no trace"), "{:?}", record.kernels);
    let tree = record.counters.known().unwrap();
    let rate = |name: &str| tree.rates.iter().find(|rate| rate.name == name).unwrap();
    assert!((rate("instructions per cycle").value - 1.2).abs() < 1e-6);
    assert!((rate("cache misses per 1000 instructions").value - 2.008).abs() < 1e-3);
    assert_eq!(rate("instructions per cycle").origin, CounterOrigin::PerfStat);
    let frontend = tree.rows.iter().find(|row| row.name.starts_with("stalled-cycles-frontend")).unwrap();
    assert_eq!(frontend.count.missing().unwrap().unavailable, "not supported");
    assert_eq!(tree.profile.known().unwrap().skipped_lines, 3, "a banner, another program's line, a broken one");
    // Beside a trace both are there.
    let both = folder.path().join("both.json");
    stdout(&reduce(&both, &["--profile-jsonl", words(&profile), "--trace", words(&captured().trace)]));
    let record: CaptureRecord = read("both", &fs::read(&both).unwrap()).unwrap();
    assert!(record.kernels.known().is_some() && record.provenance.profile_sha256.known().is_some());
}

#[test]
fn foreign_and_broken_input_is_refused_and_never_a_zero() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("reduced.json");
    assert!(refusal(&reduce(&output, &[]), 2).contains("--trace"), "neither of both");
    let foreign = folder.path().join("foreign.jsonl");
    fs::write(&foreign, "hello\n{\"a\": 1}\n").unwrap();
    let error = refusal(&reduce(&output, &["--profile-jsonl", words(&foreign)]), 2);
    assert!(error.contains("foreign.jsonl") && error.contains("perf stat -j"), "{error}");
    let error = refusal(&reduce(&output, &["--trace", "/nonexistent"]), 2);
    assert!(error.contains("--trace /nonexistent"), "{error}");

    type Change = fn(&Path, &Path);
    let changes: [(Change, &str); 7] = [
        (|_, manifest| alter(manifest, 10), "it was changed, or is of another capture"),
        (|_, manifest| fs::write(manifest, "").unwrap(), "no file is named"),
        (|trace, _| alter(&trace.join("calls.json"), 40), "calls.json: its SHA-256 is"),
        (|trace, _| cut(&trace.join("samples.jsonl")), "samples.jsonl: its SHA-256 is"),
        (|trace, _| fs::remove_file(trace.join("maps.txt")).unwrap(), "maps.txt: in the manifest and not"),
        (|trace, _| fs::write(trace.join("more"), "x").unwrap(), "more: in the directory and not"),
        (
            |trace, _| {
                fs::remove_file(trace.join("maps.txt")).unwrap();
                std::os::unix::fs::symlink("/proc/self/maps", trace.join("maps.txt")).unwrap();
            },
            "is a link",
        ),
    ];
    for (index, (change, expected)) in changes.into_iter().enumerate() {
        let place = folder.path().join(index.to_string());
        fs::create_dir(&place).unwrap();
        let (trace, metadata, manifest) = copied(&place);
        change(&trace, &manifest);
        let error = refusal(
            &[
                "reduce",
                "--capture-metadata",
                words(&metadata),
                "--manifest",
                words(&manifest),
                "--trace",
                words(&trace),
                "--output",
                words(&output),
            ],
            2,
        );
        assert!(error.contains(expected), "{expected}: {error}");
        // The other reader finds out without the manifest.
        if index > 1 {
            let out = place.join("out");
            let error = refusal(&["lines", words(&trace), "--out", words(&out)], 2);
            assert!(error.contains("changed") || error.contains("is a link"), "{expected}: {error}");
        }
    }
    // A trace that was cut with everything around it made to fit is still no trace.
    let place = folder.path().join("cut");
    fs::create_dir(&place).unwrap();
    let (trace, metadata, manifest) = copied(&place);
    cut(&trace.join("samples.jsonl"));
    let (again, _) = record::capture::manifest::Manifest::of_directory(&trace).unwrap();
    fs::write(&manifest, again.text()).unwrap();
    let mut record: record::CaptureMetadata = read("m", &fs::read(&metadata).unwrap()).unwrap();
    record.trace.manifest_sha256 = again.sha256();
    fs::write(&metadata, serde_json::to_vec(&record).unwrap()).unwrap();
    let error = refusal(&["lines", words(&trace), "--out", words(&place.join("out"))], 2);
    assert!(error.contains("samples.jsonl, line") && error.contains("ends within"), "{error}");
    assert!(!output.exists());
}

fn alter(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 7]).unwrap();
}

#[test]
fn lines_are_written_for_every_tool_and_shown_without_being_stored() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("lines");
    let text = stdout(&["lines", words(&captured().trace), "--out", words(&out), "--annotate"]);
    fits(&text);
    for words in ["self, in repo", "inclusive", "annotated", "never a latency"] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    let record: LinesRecord = read("lines.json", &fs::read(out.join("lines.json")).unwrap()).unwrap();
    assert!(!record.void, "{:?}", record.checks);
    assert!(record.checks.len() > 6 && record.checks() == record.cross_foot());
    let mut names: Vec<String> =
        fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let wanted = ["callgrind.out", "folded.txt", "lines.csv", "lines.json", "profile.pb.gz", "speedscope.json"];
    assert_eq!(names, wanted);
    // The dearest line of a kernel that is verified is shown with its text, and no file holds that text.
    let kernels = record.places.iter().filter(|place| matches!(place.place, Place::Kernel { .. }));
    let dear = kernels.flat_map(|place| &place.rows);
    let dear =
        dear.filter(|row| row.verified && row.line > 0).max_by_key(|row| row.self_in_repository.samples).unwrap();
    let source = fs::read_to_string(root().join(&dear.file)).unwrap();
    let content = source.lines().nth(dear.line as usize - 1).unwrap().trim();
    assert!(content.len() > 8, "{content}");
    let start: String = content.chars().take(30).collect();
    assert!(text.contains(&start), "{}:{} {content}:\n{text}", dear.file, dear.line);
    for name in ["callgrind.out", "folded.txt", "lines.csv", "lines.json", "speedscope.json"] {
        let written = fs::read_to_string(out.join(name)).unwrap();
        assert!(!written.contains(content), "{name} holds source text");
        assert!(!written.contains(words(&root())), "{name} holds a path of this machine");
    }
    assert!(fs::read(out.join("profile.pb.gz")).unwrap().starts_with(&[0x1f, 0x8b]));
    assert!(refusal(&["lines", words(&captured().trace), "--out", words(&out)], 2).contains("never overwritten"));
    // One kernel alone, and one that is not there.
    let some = record.places[0].place.to_string();
    let other = folder.path().join("other");
    let one = stdout(&["lines", words(&captured().trace), "--out", words(&other), "--kernel", &some]);
    assert!(one.contains(&some));
    let none = folder.path().join("none");
    let error = refusal(&["lines", words(&captured().trace), "--out", words(&none), "--kernel", "nosuch"], 2);
    assert!(error.contains("--kernel nosuch") && error.contains(&some), "{error}");
    assert!(!none.exists());
}

#[test]
fn another_checkout_or_executable_marks_or_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name);
    let elsewhere = out("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let moved = out("moved");
    let arguments =
        ["lines", words(&captured().trace), "--out", words(&moved), "--annotate", "--sources", words(&elsewhere)];
    let text = stdout(&arguments);
    fits(&text);
    assert!(text.contains("numbers without text") && text.contains("moved, removed"), "{text}");
    let record: LinesRecord = read("lines", &fs::read(moved.join("lines.json")).unwrap()).unwrap();
    assert!(record.places.iter().flat_map(|place| &place.rows).all(|row| !row.verified));
    // One file that differs by a byte.
    let dear = record.places[0].rows.iter().find(|row| row.in_repository).unwrap();
    let copy = elsewhere.join(&dear.file);
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::copy(root().join(&dear.file), &copy).unwrap();
    alter(&copy, 3);
    let changed = out("changed");
    let text = stdout(&["lines", words(&captured().trace), "--out", words(&changed), "--sources", words(&elsewhere)]);
    assert!(text.contains("was changed after"), "{text}");

    let binary = env!("CARGO_BIN_EXE_hourglass");
    let none = out("none");
    let with = |binary: &Path| {
        refusal(&["lines", words(&captured().trace), "--out", words(&none), "--binary", words(binary)], 2)
    };
    let foreign = out("foreign");
    fs::write(&foreign, "no executable").unwrap();
    assert!(with(&foreign).contains("no executable file"));
    assert!(with(Path::new("/nonexistent")).contains("cannot be read"));
    assert!(!none.exists());
    let stripped = out("stripped");
    let done = std::process::Command::new("strip").arg("-o").arg(&stripped).arg(binary).status();
    if !done.is_ok_and(|status| status.success()) {
        println!("not checked: strip is not here; it comes with binutils");
        return;
    }
    let error = with(&stripped);
    assert!(error.contains("stripped") && error.contains("--binary"), "{error}");
    // What needs no lines is reduced all the same, and says what is missing.
    let output = out("reduced.json");
    stdout(&reduce(&output, &["--trace", words(&captured().trace), "--binary", words(&stripped)]));
    let record: CaptureRecord = read("reduced", &fs::read(&output).unwrap()).unwrap();
    assert!(record.kernels.known().is_some());
    assert!(record.lines.missing().unwrap().unavailable.contains("stripped"));
    let renamed = out("renamed");
    fs::create_dir(&renamed).unwrap();
    let (trace, metadata, _) = copied(&renamed);
    fs::rename(&metadata, renamed.join("hidden")).unwrap();
    let error = refusal(&["lines", words(&trace), "--out", words(&none)], 2);
    assert!(error.contains("--capture-metadata"), "{error}");
    let named = out("named");
    stdout(&[
        "lines",
        words(&trace),
        "--out",
        words(&named),
        "--json",
        "--capture-metadata",
        words(&renamed.join("hidden")),
    ]);
    assert!(matches!(record.provenance.trace, Known::Is(_)));
}
