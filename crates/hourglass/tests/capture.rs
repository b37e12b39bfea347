//! `hourglass capture` through the binary, on a tiny model: what it writes, what it prints, what it refuses.
//! Not here: whether spans and samples are right, which the tests of `probe` show.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use record::capture::Ended;
use record::capture::manifest::Manifest;
use record::capture::raw::{self, CounterKind, RawCounter};
use record::{CaptureMetadata, LogitsMode, Phase, read};
use std::path::Path;
use std::process::{Command, Stdio};
use support::{hourglass, refusal, root, stdout};

const SHORT: [&str; 7] = ["capture", "--model", "synthetic:tiny", "--threads", "2", "--tokens", "16"];

/// The short capture into `path`, with `rest` behind.
fn with<'a>(path: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&SHORT[..], &["--trace", path], rest].concat()
}

/// Metadata and manifest beside the trace, which must be what they say.
fn check(trace: &Path) -> (CaptureMetadata, Manifest) {
    let beside = |suffix: &str| {
        let mut path = trace.as_os_str().to_owned();
        path.push(suffix);
        std::fs::read(path).unwrap()
    };
    let metadata: CaptureMetadata = read("metadata", &beside(".capture.json")).unwrap();
    let text = beside(".manifest.sha256");
    let manifest = Manifest::parse("manifest", &text).unwrap();
    let contents = manifest.verify_directory(trace).unwrap();
    assert_eq!((contents.files, contents.bytes), (metadata.trace.files, metadata.trace.bytes));
    assert_eq!(metadata.trace.manifest_sha256, manifest.sha256());
    assert_eq!(metadata.trace.basename, trace.file_name().unwrap().to_str().unwrap());
    assert!(!metadata.void, "{:?}", metadata.checks);
    (metadata, manifest)
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn counters(trace: &Path) -> Vec<RawCounter> {
    serde_json::from_slice(&std::fs::read(trace.join(raw::COUNTERS)).unwrap()).unwrap()
}

#[test]
fn a_capture_is_a_directory_its_manifest_and_its_metadata() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("decode");
    let text = stdout(&with(trace.to_str().unwrap(), &["--steps", "20", "--overhead-rounds", "1"]));
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "synthetic:tiny",
        "decode step at context 16, cache of 16 positions: 20 passes",
        "CPU samples: ",
        "A capture is never a latency",
        "Hardware counters: ",
        "Software counters: ",
        "hourglass reduce --capture-metadata",
    ] {
        assert!(flat.contains(words), "{words} is missing:\n{text}");
    }
    for line in text.lines().filter(|line| !line.contains(directory.path().to_str().unwrap())) {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
    assert_eq!(names(directory.path()), ["decode", "decode.capture.json", "decode.manifest.sha256"]);
    let (metadata, manifest) = check(&trace);
    let files: Vec<&str> = manifest.files().map(|(path, _)| path).collect();
    let mut wanted = [
        raw::CALLS,
        raw::COUNTERS,
        raw::EXECUTABLES,
        raw::KERNEL_FUNCTIONS,
        raw::MAPS,
        raw::SAMPLES,
        raw::SOURCES,
        raw::SPANS,
        raw::STEPS,
        raw::THREADS,
    ];
    wanted.sort_unstable();
    assert_eq!(files, wanted);
    assert_eq!((metadata.steps, metadata.ended, metadata.workload.phase), (20, Ended::AsAsked, Phase::Decode));
    assert_eq!((metadata.workload.capacity, metadata.workload.logits), (16, LogitsMode::All), "the chapter's defaults");
    assert_eq!((metadata.workload.new_rows, metadata.workload.output_tokens), (1, 0));
    assert!(metadata.caution.contains("never a latency"));
    assert!(metadata.simulation.missing().unwrap().how_to_get.contains("callgrind"));
    let steps = std::fs::read_to_string(trace.join(raw::STEPS)).unwrap();
    assert_eq!(steps.lines().count(), 20);
}

#[test]
fn the_manifest_finds_what_was_done_to_the_trace() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("t");
    stdout(&with(trace.to_str().unwrap(), &["--steps", "2", "--counters", "none", "--overhead-rounds", "0"]));
    let (_, manifest) = check(&trace);
    assert!(counters(&trace).iter().all(|counter| {
        counter.count.missing().is_some_and(|missing| missing.how_to_get.contains("--counters none"))
    }));
    let refused = |words: &str| {
        let message = manifest.verify_directory(&trace).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    };
    let path = trace.join(raw::STEPS);
    let whole = std::fs::read(&path).unwrap();
    let mut altered = whole.clone();
    altered[10] ^= 1;
    std::fs::write(&path, &altered).unwrap();
    refused("was changed");
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    refused("was changed");
    std::fs::remove_file(&path).unwrap();
    refused("a file was removed");
    std::os::unix::fs::symlink(raw::CALLS, &path).unwrap();
    refused("is a link");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, &whole).unwrap();
    manifest.verify_directory(&trace).unwrap();
    std::fs::write(trace.join("more"), "").unwrap();
    refused("a file was added");
}

#[test]
fn the_sources_are_those_of_this_checkout() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("t");
    stdout(&with(trace.to_str().unwrap(), &["--steps", "1", "--overhead-rounds", "0"]));
    let sources = Manifest::parse("sources", &std::fs::read(trace.join(raw::SOURCES)).unwrap()).unwrap();
    // `sha256sum` is the independent reader of such lists.
    let checked = Command::new("sha256sum")
        .args(["--check", "--quiet", "--strict"])
        .arg(trace.join(raw::SOURCES))
        .current_dir(root())
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    assert!(
        sources.get("crates/hourglass/src/lib.rs").is_some()
            && sources.get("crates/hourglass/tests/capture.rs").is_none()
    );
}

#[test]
fn prefill_and_json_and_other_threads() {
    let directory = tempfile::tempdir().unwrap();
    for (threads, logits) in [("1", "all"), ("3", "last")] {
        let trace = directory.path().join(threads);
        let metadata_path = directory.path().join(format!("{threads}.json"));
        let text = stdout(&[
            "capture",
            "--model",
            "synthetic:tiny",
            "--threads",
            threads,
            "--phase",
            "prefill",
            "--tokens",
            "8",
            "--capacity",
            "12",
            "--prefill-logits",
            logits,
            "--steps",
            "3",
            "--overhead-rounds",
            "0",
            "--checkpoint",
            "selected",
            "--trace",
            trace.to_str().unwrap(),
            "--metadata",
            metadata_path.to_str().unwrap(),
            "--json",
        ]);
        let printed: CaptureMetadata = read("stdout", text.as_bytes()).unwrap();
        let stored: CaptureMetadata = read("metadata", &std::fs::read(&metadata_path).unwrap()).unwrap();
        assert_eq!(printed, stored);
        assert_eq!((stored.workload.new_rows, stored.workload.capacity), (8, 12));
        assert_eq!(stored.workload.logits.name(), logits);
        assert_eq!(
            (stored.subject.checkpoint.as_str(), stored.conditions.threads),
            ("selected", threads.parse().unwrap())
        );
        assert!(stored.conditions.kernels.iter().all(|kernel| kernel.phase == Phase::Prefill));
        // The same case of a replay has the same workload.
        if threads == "1" {
            let replay = support::json(&[
                "replay",
                "--model",
                "synthetic:tiny",
                "--threads",
                "1",
                "--case",
                "selected:prefill:8",
                "--capacity",
                "12",
                "--prefill-logits",
                "all",
                "--iterations",
                "1",
                "--warmup",
                "0",
                "--ceilings",
                "none",
                "--json",
            ]);
            assert_eq!(replay["cases"][0]["replay"]["workload_id"], stored.workload_id);
        }
    }
}

#[test]
fn every_refusal_comes_before_the_work_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("file"), "mine").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
    let before = names(directory.path());
    let new = at("new");
    let cases: &[(&[&str], &str)] = &[
        (&["--trace", &at("file")], "never overwritten"),
        (&["--trace", &at("folder")], "never overwritten"),
        (&["--trace", &at("dangling")], "never overwritten"),
        (&["--trace", &at("no/trace")], "the directory does not exist"),
        (&["--trace", &new, "--metadata", &at("file")], "--metadata"),
        (&["--trace", &new, "--manifest", &at("file")], "--manifest"),
        (&["--trace", &new, "--metadata", &new], "both name"),
        (&["--trace", &new, "--metadata", &at("m"), "--manifest", &at("m")], "both name"),
        (&["--trace", &new, "--tokens", "0"], "--tokens 0"),
        (&["--trace", &new, "--capacity", "0"], "--capacity 0"),
        (&["--trace", &new, "--steps", "0"], "--steps 0"),
        (&["--trace", &new, "--seconds", "0"], "--seconds"),
        (&["--trace", &new, "--seconds", "nan"], "--seconds"),
        (&["--trace", &new, "--precision", "0"], "--precision 0"),
        (&["--trace", &new, "--frequency", "0"], "--frequency 0"),
        (&["--trace", &new, "--warmup", "0"], "--warmup 0"),
        (&["--trace", &new, "--steps", "1", "--seconds", "1"], "cannot be used with"),
        (&["--trace", &new, "--steps", "1", "--precision", "1"], "cannot be used with"),
        (&["--trace", &new, "--tokens", "100000000"], "positions"),
        (&["--trace", &new, "--tokens", "8", "--capacity", "4"], "--capacity 4: expected at least 8"),
        (&["--trace", &new, "--checkpoint", "nonesuch"], "nonesuch"),
        (&["--trace", &new, "--seconds", "80000"], "lower frequency"),
        (&["--tokens", "8"], "--trace"),
        (&["--simulated-pass"], "--counters callgrind"),
    ];
    for (rest, words) in cases {
        let message =
            refusal(&[&["capture", "--model", "synthetic:tiny", "--threads", "1", "--json"], *rest].concat(), 2);
        assert!(message.contains(words), "{rest:?}: {message}");
        assert_eq!(names(directory.path()), before, "{rest:?}");
    }
    // What the disk lacks is no fault of the command line.
    let huge = ["--trace", &new, "--seconds", "40000", "--frequency", "1"];
    let message =
        refusal(&[&["capture", "--model", "synthetic:tiny", "--threads", "1", "--json"], &huge[..]].concat(), 1);
    assert!(message.contains("MiB free"), "{message}");
    assert_eq!(names(directory.path()), before);
    assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "mine");
}

#[test]
fn ctrl_c_keeps_a_whole_capture_or_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("t");
    let words = with(trace.to_str().unwrap(), &["--seconds", "20", "--frequency", "500"]);
    let mut child = hourglass(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first line tells that the model is loaded.
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut String::new()).unwrap();
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    std::io::Read::read_to_string(&mut out, &mut String::new()).unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("interrupted"), "{message}");
    if names(directory.path()).is_empty() {
        assert!(message.contains("nothing was written"), "{message}");
    } else {
        let (metadata, _) = check(&trace);
        assert_eq!(metadata.ended, Ended::Interrupted);
        assert!(metadata.steps > 0);
    }
}

#[test]
fn without_valgrind_the_capture_stands_and_says_how_to_get_it() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("t");
    let words = with(trace.to_str().unwrap(), &["--steps", "2", "--counters", "callgrind", "--overhead-rounds", "0"]);
    let output = hourglass(&words).env("PATH", "/nonexistent").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Simulation: unavailable") && text.contains("install valgrind"), "{text}");
    let (metadata, manifest) = check(&trace);
    assert!(metadata.simulation.missing().unwrap().unavailable.contains("valgrind cannot be started"));
    assert!(manifest.get(raw::CALLGRIND).is_none());
}

#[test]
fn valgrind_counts_one_pass_on_the_path_that_it_can_run() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: needs valgrind; install it (apt-get install valgrind)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("100% t");
    let words = with(
        trace.to_str().unwrap(),
        &["--steps", "2", "--counters", "callgrind", "--checkpoint", "selected", "--overhead-rounds", "0"],
    );
    stdout(&words);
    let (metadata, manifest) = check(&trace);
    let Some(simulation) = metadata.simulation.known() else {
        panic!("{:?}", metadata.simulation);
    };
    assert!(simulation.tool.starts_with("valgrind-") && simulation.threads == 1);
    assert!(simulation.features.iter().all(|feature| !feature.contains("avx512") && !feature.contains("amx")));
    assert!(simulation.kernels.iter().all(|kernel| !kernel.kernel.contains("avx512")), "{:?}", simulation.kernels);
    assert!(manifest.get(raw::CALLGRIND).is_some());
    let counters = counters(&trace);
    let simulated = |name: &str| {
        let found = counters.iter().find(|counter| counter.kind == CounterKind::Simulated && counter.name == name);
        *found.unwrap().count.known().unwrap()
    };
    // A pass does at least its multiply-adds, 32 at a time at best; loading the model would be a hundred times more.
    let flops: u64 = serde_json::from_slice::<Vec<raw::RawCall>>(&std::fs::read(trace.join(raw::CALLS)).unwrap())
        .unwrap()
        .iter()
        .map(|call| call.flops)
        .sum();
    let instructions = simulated("Ir");
    assert!(instructions > flops as f64 / 64.0 && instructions < 4.0 * flops as f64, "{instructions} of {flops}");
    assert!(simulated("Dr") < instructions && simulated("D1mr") <= simulated("Dr"));
}
