//! `hourglass compare` and `hourglass decide` through the binary, on a tiny model; and the walk of docs/first-decision.md.
//! Not here: the statistics and the rules (crate `record`). No test depends on how long anything took: where an outcome is
//! expected, the times in the records are made up and everything else is what the binary wrote.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Output;

use record::bench::{BenchRecord, Outcome as Sampled};
use record::compare::Outcome;
use record::ledger::{Decided, Ledger};
use record::{ComparisonRecord, Known, Reading, ReplayRecord, RequestClock, RequestTimes, Timing, Unit, read};
use serde_json::Value;
use support::{hourglass, quoted_words, root};

/// A folder with a ledger of its own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        hourglass(arguments).current_dir(self.0.path()).stdin(std::process::Stdio::null()).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {}: {error}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(!error.contains("panicked"), "{error}");
        error
    }

    /// Two checkpoints in one alternated run.
    fn bench(&self, before: &str, after: &str, file: &str) {
        self.ok(&[
            "bench",
            "--model",
            "synthetic:tiny",
            "--threads",
            "1",
            "--input-len",
            "12",
            "--output-len",
            "4",
            "--repeats",
            "4",
            "--warmup",
            "0",
            "--variant",
            before,
            "--variant",
            after,
            "--json-output",
            file,
        ]);
    }

    fn replay(&self, before: &str, after: &str, file: &str) {
        let case = |name: &str| format!("{name}:decode:16");
        self.ok(&[
            "replay",
            "--model",
            "synthetic:tiny",
            "--threads",
            "1",
            "--iterations",
            "4",
            "--ceilings",
            "none",
            "--case",
            &case(before),
            "--case",
            &case(after),
            "--json-output",
            file,
        ]);
    }

    fn comparison(&self, arguments: &[&str], code: i32) -> ComparisonRecord {
        let output = self.run(&[&["compare"], arguments, &["--json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        read("stdout", &output.stdout).unwrap_or_else(|why| panic!("{why}: {error}"))
    }
}

/// Sets every request's times: 0.25 s of prefill and 0.02 s a token, the second arm's times `after`; and writes it elsewhere.
fn with_times(place: &Place, from: &str, to: &str, after: f64) {
    let mut record: BenchRecord = read(from, &std::fs::read(place.path(from)).unwrap()).unwrap();
    let tokens = record.workload.output_tokens;
    let prompt_tokens = record.workload.context_tokens;
    for sample in &mut record.samples {
        // Half a percent of noise that is the same every time.
        let jitter = 1.0 + 0.001 * ((sample.order * 5 + sample.block) % 5) as f64;
        let factor = jitter * if sample.arm == 1 { after } else { 1.0 };
        sample.marks.clear();
        sample.process_s = 60.0;
        let Sampled::Measured(measured) = &mut sample.outcome else { panic!("a lost sample") };
        let mut token_seconds = vec![0.02 * factor; tokens as usize];
        token_seconds[0] = 0.25 * factor;
        let whole = token_seconds.iter().sum::<f64>() + 0.001;
        measured.clock = RequestClock::from_times(RequestTimes {
            prompt_tokens,
            asked_tokens: tokens,
            to_first_token: token_seconds[0] + 0.0005,
            token_seconds,
            whole,
            peak_allocation: Reading::measured(1e6, Unit::Bytes, 1),
            peak_rss: Reading::measured(2e6, Unit::Bytes, 1),
            processor_share: Reading::measured(1.0, Unit::Share, 1),
            output_hash: measured.clock.output_hash.clone(),
            device: record::DeviceUse::none(),
        });
    }
    record.conclude().unwrap();
    assert!(!record.void, "{:?}", record.checks);
    std::fs::write(place.path(to), serde_json::to_vec(&record).unwrap()).unwrap();
}

/// Sets every group of every case to 1 ms, but for the projections of the second, which take `after` of it.
fn with_groups(place: &Place, from: &str, to: &str, after: f64) {
    let mut record: ReplayRecord = read(from, &std::fs::read(place.path(from)).unwrap()).unwrap();
    for (index, case) in record.cases.iter_mut().enumerate() {
        let set = |timing: &mut Timing, us: f64| {
            let samples = (0..timing.samples_us.len()).map(|round| us * (1.0 + 0.001 * round as f64)).collect();
            *timing = Timing::new(samples).unwrap();
        };
        for row in &mut case.replay.groups {
            set(&mut row.timing, if row.group == "projections" && index == 1 { 1000.0 * after } else { 1000.0 });
        }
        if let Known::Is(timing) = &mut case.replay.sampling {
            set(timing, 10.0);
        }
        case.replay.total();
    }
    record.close();
    assert!(!record.void, "{:?}", record.checks);
    std::fs::write(place.path(to), serde_json::to_vec(&record).unwrap()).unwrap();
}

#[test]
fn outcomes_are_told_apart_on_records_of_this_build() {
    let place = Place::new();
    let (before, after) = ("capacity-cache", "quantized-matvec");
    place.bench(before, after, "bench.json");
    place.replay(before, after, "replay.json");
    for (name, request, group, target, outcome) in [
        ("arrived", 0.7, 0.3, "projections", Outcome::TargetFellRequestFaster),
        ("unmoved", 1.0, 0.3, "projections", Outcome::TargetFellRequestUnmoved),
        ("slower", 1.2, 0.3, "projections", Outcome::RequestSlower),
        ("elsewhere", 0.7, 1.0, "attention", Outcome::RequestFasterTargetDidNotFall),
    ] {
        std::fs::create_dir(place.path(name)).unwrap();
        with_times(&place, "bench.json", &format!("{name}/bench.json"), request);
        with_groups(&place, "replay.json", &format!("{name}/replay.json"), group);
        let sides = [format!("{name}#{before}"), format!("{name}#{after}")];
        let arguments = [sides[0].as_str(), &sides[1], "--target", target, "--phase", "decode"];
        let record = place.comparison(&arguments, 0);
        assert_eq!(record.outcome.outcome, outcome, "{name}: {:#?}", record.outcome);
        assert!(record.request.known().unwrap().paired);
        let text = place.ok(&[&["compare"], &arguments[..]].concat());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        for words in [
            "Request clock",
            "decode, tok/s",
            "memory: peak allocation",
            "Decode replay at 16",
            "Kernels: decode linear",
            "Next: ",
        ] {
            assert!(text.contains(words), "{words} is missing:\n{text}");
        }
    }
    // A gate that holds passes, one that does not or is not known fails and says why.
    let sides = ["arrived#capacity-cache", "arrived#quantized-matvec", "--gate"];
    place.ok(&[&["compare"], &sides[..], &["decode.ratio > 97 %", "--gate", "tokens_equal"]].concat());
    let error = place.refused(&[&["compare"], &sides[..], &["peak < 0.9 * baseline"]].concat(), 1);
    assert!(error.contains("peak < 0.9 * baseline: fails"), "{error}");
    let error = place.refused(&[&["compare"], &sides[..], &["timeline.busy_share > 0.9"]].concat(), 1);
    assert!(error.contains("missing"), "{error}");
    let error = place.refused(&[&["compare"], &sides[..], &["decode.ratio > 3 ms"]].concat(), 2);
    assert!(error.contains("--gate") && error.contains("column 16"), "{error}");
}

#[test]
fn a_change_that_reaches_no_call_is_void_and_said_so() {
    let place = Place::new();
    // 'selected' is the name of the finished route: it changes nothing.
    place.bench("tiled-prefill", "selected", "bench.json");
    let record = place.comparison(&["bench.json#tiled-prefill", "bench.json#selected"], 1);
    assert_eq!(record.outcome.outcome, Outcome::Void);
    assert!(record.outcome.sentence.contains("the change reached no call"), "{}", record.outcome.sentence);
    let opened = open(&place, "bench.json", "tiled-prefill", "selected");
    place.bench("tiled-prefill", "selected", "after.json");
    let closed = place.ok(&["decide", "close", &opened, "after.json"]);
    assert!(closed.starts_with("Inconclusive: void: the change reached no call"), "{closed}");
}

fn open(place: &Place, record: &str, before: &str, after: &str) -> String {
    let text = place.ok(&[
        "decide",
        "open",
        "--dominates",
        "projections dominate a decode step",
        "--change",
        "keep weights packed",
        "--accept",
        "decode.ratio > 1.05",
        "--reject",
        "request.verdict == slower",
        "--reject",
        "tokens_equal == no",
        "--workload-of",
        record,
        "--baseline",
        before,
        "--candidate",
        after,
        "--target",
        "projections",
        "--json",
    ]);
    serde_json::from_str::<Value>(&text).unwrap()["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_decision_is_opened_judged_and_kept() {
    let place = Place::new();
    let (before, after) = ("capacity-cache", "quantized-matvec");
    place.bench(before, after, "first.json");
    assert!(place.refused(&["decide", "list"], 2).contains("decide open"));
    let kept = open(&place, "first.json", before, after);
    let rejected = open(&place, "first.json", before, after);
    assert_ne!(kept, rejected, "{kept}");
    // The record that it was opened with is no test of the candidate.
    let error = place.refused(&["decide", "close", &kept, "first.json"], 2);
    assert!(error.contains(&format!("decide close {kept}")), "{error}");
    place.bench(before, after, "after.json");
    with_times(&place, "after.json", "faster.json", 0.7);
    with_times(&place, "after.json", "slower.json", 1.2);
    let text = place.ok(&["decide", "close", &kept, "faster.json", "--reason", "as the profile said"]);
    assert!(text.starts_with("Keep: every accept rule holds"), "{text}");
    assert!(text.contains("decode.ratio > 1.05: holds: ") && text.contains("Reason: as the profile said"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(place.refused(&["decide", "close", &kept, "slower.json"], 2).contains("was closed"));
    let text = place.ok(&["decide", "close", &rejected, "slower.json"]);
    assert!(text.starts_with("Reject: a reject rule holds: request.verdict == slower"), "{text}");
    // A regression is kept like everything else.
    let list = place.ok(&["decide", "list"]);
    assert!(list.contains(&kept) && list.contains("keep") && list.contains("reject"), "{list}");
    place.ok(&["decide", "note", &rejected, "the matvec reads each row twice"]);
    let shown = place.ok(&["decide", "show", &rejected[..6]]);
    assert!(shown.contains("Reject if: tokens_equal == no") && shown.contains("reads each row twice"), "{shown}");
    let verified = place.ok(&["decide", "verify", "--evidence"]);
    assert!(verified.contains("5 entries, every line as it was written"), "{verified}");
    let head = verified.split("head ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    place.ok(&["decide", "verify", "--head", &head[..16]]);

    let path = place.path(".hourglass/ledger.jsonl");
    let bytes = std::fs::read(&path).unwrap();
    let ledger = Ledger::read(&bytes).unwrap();
    assert_eq!(ledger.closing(&kept).unwrap().1.verdict, Decided::Keep);
    // Evidence that was changed, then the ledger.
    std::fs::write(place.path("slower.json"), "{}").unwrap();
    assert!(place.refused(&["decide", "verify", "--evidence"], 1).contains("slower.json: was changed"));
    let edited = String::from_utf8(bytes.clone()).unwrap().replacen("1.05", "0.55", 1);
    std::fs::write(&path, edited).unwrap();
    let error = place.refused(&["decide", "verify"], 1);
    assert!(error.contains("line 1 was changed"), "{error}");
    let told = place.run(&["decide", "verify", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert!(told["error"].as_str().unwrap().contains("line 1 was changed"), "{told}");
    assert!(place.refused(&["decide", "note", &kept, "more"], 1).contains("line 1"), "nothing is added to it either");
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    std::fs::write(&path, lines[..4].concat()).unwrap();
    place.ok(&["decide", "verify"]);
    assert!(place.refused(&["decide", "verify", "--head", &head], 1).contains("cut off"));
}

#[test]
fn branches_of_a_ledger_are_merged_openly() {
    let place = Place::new();
    place.bench("capacity-cache", "quantized-matvec", "first.json");
    let id = open(&place, "first.json", "capacity-cache", "quantized-matvec");
    let path = place.path(".hourglass/ledger.jsonl");
    let common = std::fs::read(&path).unwrap();
    place.ok(&["decide", "note", &id, "ours"]);
    let ours = std::fs::read(&path).unwrap();
    std::fs::write(&path, &common).unwrap();
    place.ok(&["decide", "note", &id, "theirs"]);
    let theirs = std::fs::read(&path).unwrap();
    // As a union merge leaves it.
    std::fs::write(&path, [&ours[..], &theirs[common.len()..]].concat()).unwrap();
    let error = place.refused(&["decide", "verify"], 1);
    assert!(error.contains("line 3 follows line 1, as line 2 does") && error.contains("decide merge"), "{error}");
    place.ok(&["decide", "merge"]);
    assert!(place.ok(&["decide", "verify"]).starts_with("4 entries"));
}

#[test]
fn decisions_come_in_and_go_out_in_the_short_form() {
    let place = Place::new();
    std::fs::write(
        place.path("theirs.json"),
        r#"{"decisions": [{"change": "paged attention", "dominated_before": "attention", "evidence": ["+2.9 %"], "kept": false}]}"#,
    )
    .unwrap();
    place.ok(&["decide", "import", "theirs.json"]);
    assert!(place.refused(&["decide", "import", "theirs.json"], 2).contains("already"));
    let markdown = place.ok(&["decide", "export"]);
    assert!(markdown.contains("rejected") && markdown.contains("- Change: paged attention"), "{markdown}");
    place.ok(&["decide", "export", "--format", "json", "--output", "out.json"]);
    let out: Value = serde_json::from_slice(&std::fs::read(place.path("out.json")).unwrap()).unwrap();
    assert_eq!(out["decisions"][0]["dominated_before"], "attention");
    assert!(place.refused(&["decide", "export", "--output", "out.json"], 2).contains("never overwritten"));
    // What replay writes down is taken in too.
    place.ok(&[
        "replay",
        "--model",
        "synthetic:tiny",
        "--iterations",
        "1",
        "--ceilings",
        "none",
        "--case",
        "capacity-cache:decode:16",
        "--case",
        "quantized-matvec:decode:16",
        "--decision-output",
        "decision.json",
        "--baseline-checkpoint",
        "capacity-cache",
        "--candidate-checkpoint",
        "quantized-matvec",
        "--dominant-category",
        "projections",
        "--hypothesis",
        "bytes",
        "--observed-effect",
        "fell",
        "--decision",
        "keep",
        "--next-experiment",
        "prefill",
    ]);
    place.ok(&["decide", "import", "decision.json"]);
    assert!(place.ok(&["decide", "list"]).contains("capacity-cache to quantized-matvec: bytes"));
}

#[test]
fn bad_input_is_refused_before_anything_is_written() {
    let place = Place::new();
    std::fs::write(place.path("none.json"), r#"{"schema": "none/1"}"#).unwrap();
    for (arguments, code, words) in [
        (&["compare", "a.json", "b.json"][..], 2, "a.json: expected a record or a folder"),
        (&["compare", "none.json", "none.json"], 2, "holds nothing that can be compared"),
        (&["compare", "none.json", "none.json", "--target", "attenton"], 2, "'attention'"),
        (&["decide", "open"], 2, "--dominates, --change, --accept"),
        (&["decide", "open", "--accept", "decod > 1"], 2, "--accept \"decod > 1\": column 1"),
        (&["decide", "open", "--accept", "decode > 1"], 2, "expected a rate"),
        (&["decide", "open", "--file", "none.toml"], 2, "cannot be read"),
        (&["decide", "show", "abc"], 2, "there is no ledger yet"),
        (&["decide", "verify"], 2, "there is no ledger yet"),
        (&["decide", "import", "none.json"], 2, "dominated_before"),
    ] {
        let error = place.refused(arguments, code);
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
    assert!(!place.path(".hourglass/ledger.jsonl").exists(), "nothing was written");
    let metrics = place.ok(&["decide", "metrics"]);
    assert!(metrics.contains("replay.decode.projections") && metrics.contains("tokens_equal"), "{metrics}");
    assert!(metrics.lines().all(|line| line.chars().count() <= 100), "{metrics}");
}

#[test]
fn a_decision_may_come_from_a_file() {
    let place = Place::new();
    place.bench("capacity-cache", "quantized-matvec", "first.json");
    let toml = "dominates = \"projections\"\nchange = \"packed weights\"\naccept = [\"decode.ratio > 1.05\"]\n\
                reject = [\"decode.ratio < 1\"]\nworkload_of = [\"first.json\"]\nbaseline = \"capacity-cache\"\n\
                candidate = \"quantized-matvec\"\n";
    std::fs::write(place.path("decision.toml"), toml).unwrap();
    let text = place.ok(&["decide", "open", "--file", "decision.toml"]);
    assert!(
        text.contains("Kept only if decode.ratio > 1.05") && text.contains("Rejected if decode.ratio < 1"),
        "{text}"
    );
}

/// The fenced blocks of a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("```{language}\n");
    text.split(opening.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Runs every `sh` block of a document in order, in one folder, on the tiny model. `mine`, the reader's own checkpoint, is
/// stood in for by a rung that reaches calls there; `ID` is the decision that was opened last.
fn follow(document: &Path, mine: &str) -> usize {
    let text = std::fs::read_to_string(document).unwrap();
    let place = Place::new();
    copy_lab(&place);
    let mut id = String::new();
    let mut count = 0;
    for block in blocks(&text, "sh") {
        let joined = block.replace("\\\n", " ");
        for command in joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(folder) = command.strip_prefix("mkdir ") {
                std::fs::create_dir(place.path(folder)).unwrap();
                continue;
            }
            let programs = ["cargo run --release -- ", "target/release/hourglass ", "hourglass "];
            let rest = programs.iter().find_map(|program| command.strip_prefix(program));
            let Some(rest) = rest else {
                assert_eq!(command, "cargo test --release -p hourglass-lab");
                continue;
            };
            let mut arguments = quoted_words(rest);
            // The stub of the user's checkpoint is written, and not built into the program under test.
            let written = arguments[0] == "new";
            for word in &mut arguments {
                *word = word.replace("ID", &id);
                if written {
                    continue;
                }
                if word == "mine" || word.ends_with("#mine") || word.starts_with("mine:") {
                    *word = word.replace("mine", mine);
                }
            }
            if ["bench", "replay", "wiring"].contains(&arguments[0].as_str()) {
                assert!(!arguments.iter().any(|word| word == "--model"), "{command}: the test chooses the model");
                arguments.extend(["--model", "synthetic:tiny"].map(str::to_owned));
                if arguments[0] == "bench" && !arguments.iter().any(|word| word == "--repeats") {
                    arguments.extend(["--repeats", "2"].map(str::to_owned));
                }
                if arguments[0] == "replay" {
                    arguments.extend(["--ceilings", "none"].map(str::to_owned));
                }
            }
            let output = place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            let error = String::from_utf8_lossy(&output.stderr);
            let shown = String::from_utf8_lossy(&output.stdout);
            // A comparison whose gate does not hold has done its work; on a tiny model times are what they are.
            let gated = arguments.iter().any(|word| word == "--gate") && output.status.code() == Some(1);
            assert!(output.status.success() || gated, "{command}: {}: {error}{shown}", output.status);
            assert!(!shown.is_empty() || command.contains(" --output "), "{command} said nothing");
            if arguments[..2] == ["decide", "open"] {
                id = shown.split(':').next().unwrap().to_owned();
            }
            count += 1;
        }
    }
    count
}

#[test]
fn the_documents_can_be_followed_word_by_word() {
    for (document, least) in [("docs/compare.md", 5), ("docs/decide.md", 8), ("docs/first-decision.md", 7)] {
        let count = follow(&root().join(document), "quantized-matvec");
        assert!(count >= least, "{document}: only {count} commands were found");
    }
}

/// The user's file, where `hourglass new` looks for it.
fn copy_lab(place: &Place) -> PathBuf {
    let file = place.path("crates/lab/src/lib.rs");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::copy(root().join("crates/lab/src/lib.rs"), &file).unwrap();
    file
}

/// What the walk shows of the reader's file is what its commands put there.
#[test]
fn the_walks_code_is_what_its_commands_write() {
    let document = std::fs::read_to_string(root().join("docs/first-decision.md")).unwrap();
    let place = Place::new();
    let file = copy_lab(&place);
    let commands = blocks(&document, "sh").into_iter().flat_map(str::lines);
    let new: Vec<_> = commands.filter_map(|line| line.strip_prefix("target/release/hourglass new ")).collect();
    assert_eq!(new.len(), 2);
    for command in new {
        let words = quoted_words(command);
        place.ok(&[&["new"], &words.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    }
    let text = std::fs::read_to_string(file).unwrap();
    let shown = blocks(&document, "rust");
    assert_eq!(shown.len(), 2);
    for block in shown {
        assert!(text.contains(block), "docs/first-decision.md shows what is not written:\n{block}");
    }
}
