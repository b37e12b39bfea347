//! `hourglass bench` through the binary, on a tiny model and with engines that are shell scripts.
//! Not here: servers (unit tests of the client), statistics (crate `record`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use record::bench::{ArmKind, BenchRecord, ChildLine, Metric, Outcome, Tolerance};
use record::read;
use support::{hourglass, refusal, run, stdout};

const SHORT: [&str; 11] =
    ["bench", "--model", "synthetic:tiny", "--threads", "2", "--input-len", "8", "--output-len", "5", "--repeats", "2"];

fn short<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    SHORT.iter().copied().chain(rest.iter().copied()).collect()
}

fn record_of(rest: &[&str]) -> BenchRecord {
    let words = [rest, &["--json"]].concat();
    let output = run(&short(&words));
    let name = format!("stdout ({})", String::from_utf8_lossy(&output.stderr));
    read(&name, &output.stdout).unwrap()
}

#[test]
fn a_run_says_its_verdict_first_and_fits_the_page() {
    let text = stdout(&short(&["--variant", "selected", "--variant", "kv-cache", "--variant", "A/A"]));
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("kv-cache against selected: decode"), "{text}");
    for words in [
        "A/A against selected: decode",
        "prefill tok/s",
        "1st token",
        "p99",
        "peak",
        "resident",
        "Noise of decode today",
        "Output: 3 of 3 variants gave the control's tokens",
        "Wiring: 2 of 2 layers dispatched as planned",
        "Next: ",
    ] {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(!text.contains("embedded default"), "a model was named:\n{text}");
}

#[test]
fn every_sample_is_a_fresh_process_in_balanced_order() {
    let record = record_of(&["--variant", "kv-cache", "--variant", "week2-selected"]);
    assert!(record.coverage.is_complete() && !record.void, "{:?} {:?}", record.coverage, record.checks);
    let arms: Vec<u64> = record.samples.iter().map(|sample| sample.arm).collect();
    assert_eq!(arms, [0, 1, 1, 0]);
    let mut processes: Vec<u32> = record.samples.iter().map(|sample| *sample.process_id.known().unwrap()).collect();
    processes.sort_unstable();
    processes.dedup();
    assert_eq!(processes.len(), 4);
    let second = &record.arms[1];
    assert_eq!((second.name.as_str(), second.given.as_str()), ("selected", "week2-selected"));
    assert_eq!(second.subject.known().unwrap().checkpoint, "selected");
    assert!(second.conditions.known().unwrap().kernels.iter().any(|kernel| kernel.operator == "linear"));
    for sample in &record.samples {
        let measured = sample.measured().unwrap();
        assert_eq!(measured.clock.token_seconds.len(), 5);
        assert_eq!(measured.wiring.len(), 2);
        assert!(measured.clock.peak_rss.value().unwrap() > 1e6);
        assert!(sample.surroundings.known().is_some(), "{sample:?}");
    }
    for metric in Metric::ALL {
        assert!(record.comparison(1, metric).is_some(), "{}", metric.name());
    }
}

/// Random weights have near ties: the control says where, once, and arms with the same weights are held to that.
#[test]
fn on_real_files_the_control_says_how_near_its_ties_were() {
    let directory = tempfile::tempdir().unwrap();
    support::stand_in_model(directory.path());
    let model = directory.path().to_str().unwrap();
    let words = ["--input-len", "8", "--output-len", "5", "--repeats", "2", "--threads", "2", "--json"];
    let variants = ["--variant", "kv-cache", "--variant", "capacity-cache", "--variant", "A/A"];
    let output = run(&[&["bench", "--model", model][..], &words, &variants].concat());
    let record: BenchRecord = read("b", &output.stdout).unwrap();
    let margins: Vec<usize> = record
        .samples
        .iter()
        .filter(|sample| sample.measured().unwrap().margins.known().is_some())
        .map(|sample| sample.arm as usize)
        .collect();
    assert_eq!(margins, [0], "one process of the control");
    let tolerances: Vec<Tolerance> = record.arms.iter().map(|arm| arm.output_check.tolerance).collect();
    assert_eq!(tolerances[1..], [Tolerance::NearTie { margin: 0.5 }, Tolerance::Equal]);
    assert!(record.arms.iter().all(|arm| arm.counts), "{:?}", record.arms);
}

#[test]
fn without_a_variant_the_newest_rung_meets_selected() {
    let record = record_of(&[]);
    assert_eq!(record.arms[0].name, "selected");
    assert_eq!(record.arms[1].given, "fast");
    assert!(record.arms[1].name == "A/A" || record.arms[1].kind == ArmKind::Checkpoint, "{:?}", record.arms[1]);
}

#[test]
fn every_rung_of_the_ladder_counts() {
    let record = record_of(&["--suite", "ladder", "--warmup", "0"]);
    assert!(record.arms.len() >= 10);
    for arm in &record.arms {
        assert!(arm.counts, "{}: {:?}", arm.name, arm.reason);
    }
}

#[test]
fn a_child_alone_speaks_the_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let ids = directory.path().join("ids.json");
    std::fs::write(&ids, "[3, 4, 5, 6]").unwrap();
    let ids = ids.to_str().unwrap();
    let child = ["bench", "child", "--model", "synthetic:tiny", "--ids-file", ids, "--output-len", "4", "--margins"];
    let text = stdout(&child);
    let lines: Vec<ChildLine> = text.lines().map(|line| ChildLine::parse(line).unwrap()).collect();
    let [ChildLine::Header(header), ChildLine::Request(request)] = &lines[..] else { panic!("{text}") };
    assert_eq!(header.engine, "hourglass");
    request.check(4).unwrap();
    let margins = request.margins.as_ref().unwrap();
    assert!(margins.len() == 4 && margins.iter().all(|margin| *margin > 0.0), "{margins:?}");
    for (content, expected) in [("", "EOF"), ("[]", "empty"), ("[1, -2]", "-2"), ("{}", "array"), ("[99999]", "99999")]
    {
        std::fs::write(ids, content).unwrap();
        let output = run(&child);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{content}: {message}");
        assert!(message.contains(expected) || message.contains("sequence"), "{content}: {message}");
    }
}

#[test]
fn outputs_are_written_once_and_never_over_something() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (json, csv) = (path("b.json"), path("b.csv"));
    let exports =
        [format!("csv={csv}"), format!("markdown={}", path("b.md")), format!("llama-bench={}", path("l.json"))];
    let mut words = short(&["--variant", "selected", "--json-output", &json]);
    words.extend(exports.iter().flat_map(|export| ["--export", export]));
    stdout(&words);
    let record: BenchRecord = read("b", &std::fs::read(&json).unwrap()).unwrap();
    assert!(record.coverage.is_complete());
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 3, "a head and two samples");
    let mut names: Vec<String> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["b.csv", "b.json", "b.md", "l.json"]);
    let before = std::fs::read(&json).unwrap();
    for rest in [&["--json-output", &json][..], &["--export", &exports[0]]] {
        let message = refusal(&short(rest), 2);
        assert!(message.contains("never overwritten") && message.contains(rest[0]), "{message}");
    }
    assert_eq!(std::fs::read(&json).unwrap(), before);
}

#[test]
fn bad_input_is_refused_before_any_work() {
    let directory = tempfile::tempdir().unwrap();
    let inside = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let left = inside("left.json");
    std::fs::write(format!("{left}.partial"), "{}").unwrap();
    let (x, csv) = (inside("x"), format!("csv={}", inside("x")));
    let nowhere = directory.path().join("no/such/x.json");
    for (rest, expected) in [
        (&["--variant", "nonsense"][..], &["--variant nonsense", "kv-cache", "openvino"][..]),
        (&["--variant", "split-k"], &["split-k", "retired"]),
        (&["--variant", "A/A"], &["A/A", "control"]),
        (&["--variant", "selected", "--variant", "selected"], &["--variant selected", "A/A"]),
        (&["--variant", "selected", "--variant", "endpoint:nowhere"], &["endpoint:http"]),
        (&["--variant", "selected", "--variant", "kv-cache", "--repeats", "3"], &["--repeats", "3", "even", "2 or 4"]),
        (&["--repeats", "0"], &["--repeats", "0"]),
        (&["--input-len", "0"], &["--input-len 0", "at least 1"]),
        (&["--output-len", "1"], &["--output-len 1", "at least 2"]),
        (&["--output-len", "1000000"], &["--output-len 1000000", "positions"]),
        (&["--cooldown-seconds", "-1"], &["--cooldown-seconds"]),
        (&["--cooldown-seconds", "NaN"], &["--cooldown-seconds NaN"]),
        (&["--time-limit-seconds", "0"], &["--time-limit-seconds 0"]),
        (&["--load-limit", "2"], &["--load-limit 2"]),
        (&["--threads", "0"], &["--threads 0"]),
        (&["--w4-group", "48"], &["--w4-group 48"]),
        (&["--features-without", "sse9"], &["--features-without", "sse9"]),
        (&["--fail-if", "decode <"], &["--fail-if"]),
        (&["--fail-if", "speed < 3"], &["--fail-if", "speed"]),
        (&["--peers", "/nonexistent", "--variant", "selected", "--variant", "mlx"], &["--peers /nonexistent"]),
        (&["--json-output", nowhere.to_str().unwrap()], &["--json-output", "directory does not exist"]),
        (&["--json-output", &left], &["left.json.partial", "did not end"]),
        (&["--json-output", "/proc/x.json"], &["--json-output", "/proc/x.json"]),
        (&["--export", "csv"], &["--export csv", "FORMAT=FILE"]),
        (&["--export", "xml=x"], &["xml", "llama-bench"]),
        (&["--json-output", &x, "--export", &csv], &["--json-output", "--export", "both name"]),
        (&["--suite", "all"], &["--suite", "ladder"]),
        (&["--checkpoint", "selected"], &["--checkpoint"]),
    ] {
        let base = ["bench", "--model", "synthetic:tiny"];
        let message = refusal(&[&base[..], rest].concat(), 2);
        for words in expected {
            assert!(message.contains(words), "{rest:?}: {words} in {message}");
        }
    }
    // A device has no end to be read to.
    for ids in ["/dev/zero", directory.path().to_str().unwrap(), "/nonexistent"] {
        let message = refusal(&["bench", "child", "--model", "synthetic:tiny", "--ids-file", ids], 2);
        assert!(message.contains(&format!("--ids-file {ids}: expected one JSON array")), "{message}");
    }
    let message = refusal(&["bench", "--offline", "--model", "qwen3-0.6b"], 2);
    assert!(message.contains("Qwen3-0.6B") && message.contains("--offline"), "{message}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing was left behind");
}

#[test]
fn a_gate_fails_the_command_and_says_which_arm() {
    let words = ["--variant", "selected", "--variant", "kv-cache", "--fail-if"];
    let fails = run(&short(&[&words[..], &["decode < 1000 * baseline"]].concat()));
    let message = String::from_utf8_lossy(&fails.stderr).into_owned();
    assert_eq!(fails.status.code(), Some(1), "{message}");
    assert!(message.contains("--fail-if") && message.contains("kv-cache"), "{message}");
    assert!(!fails.stdout.is_empty(), "the tables are printed all the same");
    stdout(&short(&[&words[..], &["decode < 0.0001 * baseline"]].concat()));
    // What cannot be answered is no pass.
    let alone = run(&short(&["--variant", "selected", "--fail-if", "decode.verdict == slower"]));
    assert_eq!(alone.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&alone.stderr).matches("--fail-if").count(), 1, "said once");
}

#[test]
fn a_process_that_takes_too_long_is_one_lost_sample() {
    let output = run(&short(&["--variant", "selected", "--time-limit-seconds", "0.001", "--json"]));
    assert_eq!(output.status.code(), Some(1));
    let record: BenchRecord = read("b", &output.stdout).unwrap();
    assert_eq!(record.samples.len(), 2);
    for sample in &record.samples {
        let Outcome::Lost(why) = &sample.outcome else { panic!("{sample:?}") };
        assert!(why.contains("--time-limit-seconds 0.001"), "{why}");
    }
    assert!(record.arms[0].summary.is_empty() && !record.arms[0].counts && !record.void);
}

/// A folder of adapters whose Python is a shell script.
struct FakePeers {
    directory: tempfile::TempDir,
}

impl FakePeers {
    fn new(script: &str) -> FakePeers {
        let directory = tempfile::tempdir().unwrap();
        let (peers, bin) = (directory.path().join("peers"), directory.path().join(".venv/bin"));
        std::fs::create_dir_all(&peers).unwrap();
        std::fs::create_dir_all(&bin).unwrap();
        for name in ["protocol.py", "llama_cpp.py"] {
            std::fs::write(peers.join(name), "").unwrap();
        }
        let python = bin.join("python");
        let head = "#!/bin/sh\ncase \"$*\" in *--prepare*) exit 0;; esac\n";
        std::fs::write(&python, format!("{head}{script}")).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        FakePeers { directory }
    }

    fn folder(&self) -> PathBuf {
        self.directory.path().join("peers")
    }

    /// The run of `selected` and `llama.cpp`.
    fn bench(&self, rest: &[&str]) -> BenchRecord {
        let folder = self.folder();
        let words = ["--variant", "selected", "--variant", "llama.cpp", "--json", "--peers", folder.to_str().unwrap()];
        let output = hourglass(&short(&[&words[..], rest].concat()))
            .env("XDG_CACHE_HOME", self.directory.path().join("cache"))
            .output()
            .unwrap();
        let name = format!("stdout ({})", String::from_utf8_lossy(&output.stderr));
        read(&name, &output.stdout).unwrap()
    }
}

const HEADER: &str = r#"{"kind":"header","protocol":"bench-child/1","engine":"llama.cpp","version":"b1","settings":{"threads":2},"weights_form":"Q4_0","conversions":["rounded"]}"#;

/// The request of an engine that gives these tokens, in times that any process lives longer than.
fn answer(tokens: &[u32]) -> String {
    format!(
        r#"{{"kind":"request","prefill_s":5e-6,"token_s":[5e-6,1e-6,1e-6,1e-6,1e-6],"to_first_token_s":5e-6,"request_s":1e-5,"tokens":{tokens:?},"peak_allocation_bytes":{{"unavailable":"it does not say","how_to_get":"ask it"}},"peak_rss_bytes":5000}}"#
    )
}

/// The tokens that our engine gives.
fn right() -> Vec<u32> {
    record_of(&["--variant", "selected"]).samples[0].measured().unwrap().tokens.known().unwrap().clone()
}

#[test]
fn another_engine_is_an_arm_like_any_other() {
    let script = format!("echo '{HEADER}'\necho '{}'\n", answer(&right()));
    let record = FakePeers::new(&script).bench(&[]);
    assert!(record.coverage.is_complete() && !record.void, "{:?} {:?}", record.coverage, record.checks);
    let arm = &record.arms[1];
    assert!(arm.counts, "{arm:?}");
    let engine = arm.engine.known().unwrap();
    assert_eq!((engine.version.as_str(), engine.weights_form.as_str()), ("b1", "Q4_0"));
    let prefill = arm.median(Metric::Prefill).value().unwrap();
    assert!((prefill - 1.6e6).abs() < 1.0, "8 tokens in 5 microseconds: {prefill}");
    assert_eq!(arm.median(Metric::PeakRss).value(), Some(5000.0));
    assert!(arm.median(Metric::Peak).known().is_none(), "it does not say");
    assert!(record.comparison(1, Metric::Decode).is_some() && record.comparison(1, Metric::Peak).is_none());
}

#[test]
fn an_engine_that_computes_something_else_is_shown_and_does_not_count() {
    let mut wrong = right();
    wrong[2] = (wrong[2] + 1) % 64;
    let script = format!("echo '{HEADER}'\necho '{}'\n", answer(&wrong));
    let record = FakePeers::new(&script).bench(&[]);
    let arm = &record.arms[1];
    assert!(!arm.counts && arm.reason.as_ref().unwrap().contains("token 3 of 5"), "{arm:?}");
    assert!(arm.median(Metric::Decode).known().is_some() && record.comparisons.is_empty());
}

#[test]
fn whatever_a_child_does_costs_its_own_sample() {
    let good = answer(&[1, 2, 3, 4, 5]);
    let endless = "while :; do echo garbage; done".to_owned();
    for (script, expected) in [
        (
            "echo 'out of memory' >&2; exit 7".to_owned(),
            "exited with 7 before its header; its last words: out of memory",
        ),
        ("kill -SEGV $$".to_owned(), "signal 11"),
        ("echo 'Loading model...'".to_owned(), "Loading model..."),
        (endless, "garbage"),
        ("printf 'x%.0s' $(seq 1 2000)".to_owned(), "not of bench-child/1"),
        (format!("echo '{HEADER}'; exit 0"), "before its request"),
        (format!("echo '{good}'"), "before its header"),
        (format!("echo '{HEADER}'; echo '{good}'; echo '{good}'"), "went on talking"),
        (format!("echo '{HEADER}'; echo '{good}'; exit 4"), "exited with 4 after its request"),
        (format!("echo '{HEADER}'; echo '{}'", answer(&[1])), "1 tokens; 5 were expected"),
        (
            format!("echo '{HEADER}'; echo '{}'", good.replace("\"request_s\":1e-5", "\"request_s\":9e9")),
            "9000000000 s, and the whole process ran for",
        ),
        (format!("echo '{HEADER}'; echo '{}'", good.replace("1e-6]", "0]")), "token_s is 0 s"),
        (format!("echo '{HEADER}' | sed s/child.1/child\\\\/9/; sleep 9"), "bench-child/9"),
        ("echo '{\"kind\":\"unavailable\",\"why\":\"no AVX\",\"how_to_get\":\"buy it\"}'; exit 3".to_owned(), "buy it"),
    ] {
        let record = FakePeers::new(&script).bench(&[]);
        for sample in record.samples_of(1) {
            let Outcome::Lost(why) = &sample.outcome else { panic!("{script}: {sample:?}") };
            assert!(why.contains(expected), "{script}: {why}");
        }
        assert_eq!(record.samples.len(), 4, "{script}");
        assert!(record.arms[0].counts && !record.void, "{script}: the control goes on");
        assert!(record.coverage.reason().unwrap().contains("llama.cpp lost 2 samples"), "{:?}", record.coverage);
    }
}

#[test]
fn an_arm_that_does_not_count_is_a_failed_check() {
    let script = format!("echo '{HEADER}'\necho '{}'\n", answer(&[1, 2, 3, 4, 5]));
    let fake = FakePeers::new(&script);
    let folder = fake.folder();
    let words = ["--variant", "selected", "--variant", "llama.cpp", "--peers", folder.to_str().unwrap()];
    let output = hourglass(&short(&words)).env("XDG_CACHE_HOME", fake.directory.path().join("cache")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("its output differs: token 1 of 5"), "{text}");
}

/// A folder that vanishes is as good as a full disk, and can be made without one.
#[test]
fn one_export_that_cannot_be_written_hides_nothing_else() {
    let gone = tempfile::tempdir().unwrap();
    let script = format!("rm -rf {}\necho '{HEADER}'\necho '{}'\n", gone.path().display(), answer(&right()));
    let fake = FakePeers::new(&script);
    let (folder, kept) = (fake.folder(), fake.directory.path().join("kept.csv"));
    let exports = [format!("csv={}", gone.path().join("gone.csv").display()), format!("csv={}", kept.display())];
    let words = ["--variant", "selected", "--variant", "llama.cpp", "--peers", folder.to_str().unwrap()];
    let output = hourglass(&short(&[&words[..], &["--export", &exports[0], "--export", &exports[1]]].concat()))
        .env("XDG_CACHE_HOME", fake.directory.path().join("cache"))
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("gone.csv: cannot write"), "{message}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("llama.cpp against selected: decode"), "the tables");
    assert_eq!(std::fs::read_to_string(&kept).unwrap().lines().count(), 5, "a head and four samples");
}

/// Two Ctrl-C before the process looks at the first: the child's group, which the terminal does not reach, ends too.
#[test]
fn a_second_ctrl_c_leaves_no_child_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (began, late) = (directory.path().join("began"), directory.path().join("late"));
    let script = format!("touch {}\nsleep 8\necho late > {}\n", began.display(), late.display());
    let fake = FakePeers::new(&script);
    let folder = fake.folder();
    let child = hourglass(&short(&["--variant", "llama.cpp", "--peers", folder.to_str().unwrap()]))
        .env("XDG_CACHE_HOME", directory.path().join("cache"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(&began);
    // Stopped, it sees both at once when it goes on; two signals of one kind would be one.
    let process = child.id().to_string();
    for signal in ["-STOP", "-INT", "-TERM", "-CONT"] {
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    std::thread::sleep(Duration::from_secs(9));
    assert!(!late.exists(), "the child lived on");
}

#[test]
fn a_child_that_hangs_is_ended_with_what_it_started() {
    let mark = tempfile::NamedTempFile::new().unwrap();
    // A grandchild that would write after a while, and holds stdout open.
    let script = format!("(sleep 6; echo late > {}) &\necho '{HEADER}'\nsleep 60\n", mark.path().display());
    let start = Instant::now();
    let record = FakePeers::new(&script).bench(&["--time-limit-seconds", "2"]);
    let lost = record.samples_of(1).filter(|sample| sample.measured().is_none()).count();
    assert_eq!(lost, 2);
    std::thread::sleep(Duration::from_secs(8).saturating_sub(start.elapsed()));
    assert_eq!(std::fs::read_to_string(mark.path()).unwrap(), "", "the grandchild lived on");
}

#[test]
fn an_engine_that_is_not_here_is_named_with_how_to_get_it() {
    let fake = FakePeers::new("exit 1");
    std::fs::remove_file(fake.directory.path().join(".venv/bin/python")).unwrap();
    let record = fake.bench(&[]);
    let missing = record.arms[1].engine.missing().unwrap();
    assert!(missing.unavailable.contains(".venv/bin/python"), "{missing:?}");
    assert_eq!(missing.how_to_get, "cargo xtask peers llama.cpp");
    assert_eq!(record.samples.len(), 2, "the control runs all the same");
    assert!(record.coverage.reason().unwrap().contains("llama.cpp did not run"), "{:?}", record.coverage);
}

/// An adapter may find out only when it runs, and a server that is not started is the same.
#[test]
fn an_engine_that_says_it_cannot_run_is_unavailable_with_how_to_get_it() {
    let script = "echo '{\"kind\":\"unavailable\",\"why\":\"no AVX\",\"how_to_get\":\"buy it\"}'; exit 3";
    let record = FakePeers::new(script).bench(&[]);
    let arm = &record.arms[1];
    let missing = arm.engine.missing().unwrap();
    assert_eq!((missing.unavailable.as_str(), missing.how_to_get.as_str()), ("no AVX", "buy it"));
    let reason = arm.reason.as_ref().unwrap();
    assert!(reason.starts_with("every sample of it was lost") && reason.contains("no AVX"), "{reason}");
    let words = ["--variant", "selected", "--variant", "endpoint:http://127.0.0.1:1", "--json"];
    let record: BenchRecord = read("b", &run(&short(&words)).stdout).unwrap();
    let missing = record.arms[1].engine.missing().unwrap();
    assert!(missing.how_to_get.contains("start a server"), "{missing:?}");
}

/// Waits until the file is there.
fn wait_for(path: &Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < Duration::from_secs(300), "{} did not appear", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("b.json");
    let partial = directory.path().join("b.json.partial");
    // So many repeats that it would take hours by itself.
    let words = ["--variant", "selected", "--variant", "A/A", "--json-output", path.to_str().unwrap()];
    let mut words = short(&words);
    let at = words.iter().position(|word| *word == "--repeats").unwrap();
    words[at + 1] = "10000";
    let child = hourglass(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&partial);
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("interrupted") && message.contains("of 20000 planned processes"), "{message}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Incomplete"), "the tables are printed");
    let record: BenchRecord = read("b", &std::fs::read(&path).unwrap()).unwrap();
    assert!(!record.coverage.is_complete() && !record.void && !record.samples.is_empty());
    assert!(!partial.exists());
}

#[test]
fn ctrl_c_before_the_first_sample_is_a_record_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("b.json");
    let began = directory.path().join("began");
    let script = format!("touch {}\nsleep 60\n", began.display());
    let fake = FakePeers::new(&script);
    let folder = fake.folder();
    let words =
        ["--variant", "llama.cpp", "--peers", folder.to_str().unwrap(), "--json-output", path.to_str().unwrap()];
    let child = hourglass(&short(&words))
        .env("XDG_CACHE_HOME", directory.path().join("cache"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&began);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let record: BenchRecord = read("b", &std::fs::read(&path).unwrap()).unwrap();
    assert!(record.samples.is_empty() && !record.coverage.is_complete() && !record.void);
}

/// A file system of its own that is too small for the third state of the record.
#[test]
fn a_full_disk_is_said_and_the_last_whole_state_kept() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let state = directory.path().join("state.json");
    let script = format!(
        "mount -t tmpfs -o size=48k tmpfs {disk} || exit 77\n\"$@\" --json-output {disk}/b.json\ncode=$?\n\
         cp {disk}/b.json.partial {state}\nls {disk} >&2\nexit $code\n",
        disk = disk.display(),
        state = state.display()
    );
    let mut bench =
        vec!["bench", "--model", "synthetic:tiny", "--threads", "2", "--input-len", "8", "--output-len", "5"];
    bench.extend(["--repeats", "40", "--variant", "selected", "--variant", "A/A"]);
    let mut child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_hourglass")])
        .args(&bench)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    let code = child.wait().unwrap().code();
    if code == Some(77) || message.contains("unshare") {
        println!("skipped: this system does not allow a mount of one's own: {message}");
        return;
    }
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("the disk is full") && message.contains("b.json.partial"), "{message}");
    let kept: BenchRecord = read("state", &std::fs::read(&state).unwrap()).unwrap();
    assert!(!kept.samples.is_empty() && !kept.coverage.is_complete());
}
