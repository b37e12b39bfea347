//! The adapters in peers/: what they refuse, what they say where their engine is missing, that their lines are the
//! protocol's, and, where an engine is installed, that it continues as ours does.
//! Not here: `hourglass bench`, which starts them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use record::bench::{ChildLine, ChildRequest, UNAVAILABLE_EXIT};
use serde_json::{Value, json};
use support::root;

/// Script and the name that `cargo xtask peers` knows.
const ADAPTERS: [(&str, &str); 5] = [
    ("llama_cpp.py", "llama.cpp"),
    ("openvino.py", "openvino"),
    ("transformers.py", "transformers"),
    ("transformers_bf16.py", "transformers"),
    ("mlx.py", "mlx"),
];

/// A Python without packages. None where there is no Python at all.
fn bare_python(script: &Path, arguments: &[&str]) -> Option<Output> {
    let output =
        Command::new("python3").arg("-S").arg("-B").arg(script).args(arguments).env_remove("PYTHONPATH").output();
    match output {
        Ok(output) => Some(output),
        Err(error) => {
            let message = format!("skipped: the adapters need python3 ({error})");
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{message}");
            println!("{message}");
            None
        }
    }
}

fn adapter(script: &str) -> PathBuf {
    root().join("peers").join(script)
}

/// A directory that looks like a model of this type as far as arguments are checked.
fn looks_like_a_model(directory: &Path, model_type: &str) {
    std::fs::create_dir_all(directory).unwrap();
    let config = json!({"model_type": model_type, "vocab_size": 512});
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
    std::fs::write(directory.join("model.safetensors"), "").unwrap();
}

/// A shell starts it, and is killed once it is ready.
#[test]
#[cfg(target_os = "linux")]
fn an_adapter_ends_with_the_process_that_started_it() {
    let python = "import sys, time; sys.path.insert(0, sys.argv[1]); import protocol; protocol.end_with_parent(); \
                  print('ready', flush=True); time.sleep(15); print('late', flush=True)";
    if bare_python(Path::new("-c"), &["pass"]).is_none() {
        return;
    }
    let mut shell = Command::new("sh")
        .args(["-c", "python3 -S -B -c \"$1\" \"$2\" & wait", "sh", python])
        .arg(root().join("peers"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    shell.kill().unwrap();
    shell.wait().unwrap();
    // The pipe ends when nobody holds it any more.
    assert!(lines.next().is_none(), "it lived on");
}

#[test]
fn wrong_arguments_are_named() {
    let here = tempfile::tempdir().unwrap();
    let path = |name: &str| here.path().join(name).to_str().unwrap().to_owned();
    looks_like_a_model(&here.path().join("model"), "qwen3");
    for (name, text) in [("good", "[1, 2]"), ("text", "one"), ("empty", "[]"), ("flag", "[true]"), ("far", "[512]")] {
        std::fs::write(here.path().join(name), text).unwrap();
    }
    let (model, cache, good) = (path("model"), path("cache"), path("good"));
    let with = |more: &[&str]| {
        [&["--model", &model, "--cache", &cache, "--ids-file", &good][..], more]
            .concat()
            .iter()
            .map(|w| (*w).to_owned())
            .collect::<Vec<String>>()
    };
    let ids =
        |name: &str| ["--model", &model, "--cache", &cache, "--ids-file", &path(name)].map(str::to_owned).to_vec();
    let cases: Vec<(Vec<String>, &str)> = vec![
        (vec![], "--model"),
        (vec!["--model".into(), path("nowhere"), "--cache".into(), cache.clone()], "config.json"),
        (vec!["--model".into(), model.clone(), "--cache".into(), cache.clone()], "--ids-file: needed"),
        (with(&["--output-len", "0"]), "--output-len 0"),
        (with(&["--warmup", "-1"]), "--warmup -1"),
        (with(&["--threads", "0"]), "--threads 0"),
        (with(&["--prefill-logits", "some"]), "--prefill-logits"),
        (with(&["--frobnicate"]), "--frobnicate"),
        (ids("absent"), "--ids-file"),
        (ids("text"), "JSON array"),
        (ids("empty"), "not empty"),
        (ids("flag"), "token ids"),
        (ids("far"), "0 to 511"),
    ];
    for (script, _) in ADAPTERS {
        for (arguments, expected) in &cases {
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let Some(output) = bare_python(&adapter(script), &words) else { return };
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{script} {words:?}: {error}");
            assert!(output.stdout.is_empty() && error.contains(expected), "{script} {words:?}: {error}");
            assert!(!error.contains("Traceback"), "{script}: {error}");
        }
    }
}

#[test]
fn a_missing_engine_is_one_unavailable_line() {
    let here = tempfile::tempdir().unwrap();
    let (model, cache) = (here.path().join("model"), here.path().join("cache"));
    for model_type in ["qwen3", "llama"] {
        looks_like_a_model(&model, model_type);
        for (script, name) in ADAPTERS {
            let words = ["--model", model.to_str().unwrap(), "--cache", cache.to_str().unwrap(), "--prepare"];
            let Some(output) = bare_python(&adapter(script), &words) else { return };
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(UNAVAILABLE_EXIT), "{script}: {error}");
            let text = String::from_utf8(output.stdout).unwrap();
            let ChildLine::Unavailable(reason) = ChildLine::parse(text.trim()).unwrap() else { panic!("{text}") };
            // These two convert Qwen3 themselves, and say so before anything else.
            if model_type == "llama" && ["llama.cpp", "openvino"].contains(&name) {
                assert!(reason.why.contains("model_type qwen3, found 'llama'"), "{reason:?}");
            } else {
                assert_eq!(reason.how_to_get, format!("cargo xtask peers {name}"));
            }
        }
    }
}

#[test]
fn a_package_that_does_not_load_is_no_crash() {
    let here = tempfile::tempdir().unwrap();
    looks_like_a_model(&here.path().join("model"), "qwen3");
    let half = here.path().join("packages");
    std::fs::create_dir(&half).unwrap();
    std::fs::write(half.join("numpy.py"), "raise ValueError('libsomething.so not found')").unwrap();
    let mut command = Command::new("python3");
    command.args(["-S", "-B"]).arg(adapter("openvino.py")).env("PYTHONPATH", &half).arg("--prepare");
    let command = command.arg("--model").arg(here.path().join("model")).arg("--cache").arg(here.path().join("cache"));
    let Ok(output) = command.output() else {
        println!("skipped: the adapters need python3");
        return;
    };
    assert_eq!(output.status.code(), Some(UNAVAILABLE_EXIT), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let ChildLine::Unavailable(reason) = ChildLine::parse(text.trim()).unwrap() else { panic!("{text}") };
    assert!(reason.why.contains("libsomething.so not found"), "{reason:?}");
}

#[test]
fn the_shared_part_speaks_the_protocol() {
    let here = tempfile::tempdir().unwrap();
    looks_like_a_model(&here.path().join("model"), "qwen3");
    std::fs::write(here.path().join("ids"), "[300, 301, 302]").unwrap();
    // An engine that prints, counts up, and writes down what it was asked.
    let script = format!(
        r#"import os, sys
sys.path.insert(0, {peers:?})
import protocol
given = protocol.arguments("counts")
asked = []
class Request:
    def prefill(self, ids):
        asked.append(list(ids))
        print("chatter")
        os.write(1, b"chatter from below\n")
        return ids[-1] + 1
    def step(self, token):
        return token + 1
    def close(self):
        pass
def make(path):
    path.write_text("converted")
    print("converting")
for _ in range(2):
    made = protocol.converted(given.cache, "form", make)
assert [entry.name for entry in given.cache.iterdir()] == ["form"]
head = protocol.header("counter", "1", {{"a": 1, "b": True, "c": "x", "d": 0.5}}, "none", ["nothing"])
protocol.run(given, head, Request)
assert len(asked) == 3 and all(len(ids) == 3 for ids in asked), asked
assert all(ids[0] != asked[-1][0] for ids in asked[:-1]), asked
assert asked[-1] == [300, 301, 302]
"#,
        peers = root().join("peers").to_str().unwrap()
    );
    let path = here.path().join("counter.py");
    std::fs::write(&path, script).unwrap();
    let place = |name: &str| here.path().join(name).to_str().unwrap().to_owned();
    let (model, cache, ids) = (place("model"), place("cache"), place("ids"));
    let words = ["--model", &model, "--cache", &cache, "--ids-file", &ids, "--output-len", "4", "--warmup", "2"];
    let Some(output) = bare_python(&path, &words) else { return };
    let (text, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{error}");
    assert!(error.contains("chatter from below") && error.contains("converting"), "{error}");
    let lines: Vec<ChildLine> = text.lines().map(|line| ChildLine::parse(line).unwrap()).collect();
    let [ChildLine::Header(header), ChildLine::Request(request)] = &lines[..] else { panic!("{text}") };
    assert_eq!((header.engine.as_str(), header.settings.len()), ("counter", 7));
    request.check(4).unwrap();
    assert_eq!(request.tokens.known().unwrap(), &[303, 304, 305, 306]);
    assert!(*request.peak_rss_bytes.known().unwrap() > 1 << 20);
}

#[test]
fn installed_engines_continue_as_ours_does() {
    let python = root().join(".venv/bin/python");
    if !python.exists() {
        println!("skipped: no engine is installed; get some with `cargo xtask peers`");
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let options = weights::OpenOptions::default();
    let files = weights::open(&weights::ModelSource::parse("synthetic:tiny").unwrap(), &options).unwrap();
    let dense = weights::dense_in_cache(&files, here.path(), &options).unwrap();
    let prompt = [17, 401, 233, 90, 310, 5, 128, 77];
    let ids = here.path().join("ids");
    std::fs::write(&ids, json!(prompt).to_string()).unwrap();
    let list = prompt.map(|id| id.to_string()).join(",");
    let ours: Value =
        support::json(&["run", "--model", "synthetic:tiny", "--ids", &list, "--max-tokens", "8", "--json"]);
    let ours: Vec<u32> = serde_json::from_value(ours["token_ids"].clone()).unwrap();
    for (script, name) in ADAPTERS {
        for logits in ["last", "all"] {
            let mut command = Command::new(&python);
            command
                .arg("-B")
                .arg(adapter(script))
                .arg("--model")
                .arg(&dense.model)
                .arg("--cache")
                .arg(&dense.conversions);
            command.arg("--ids-file").arg(&ids).args(["--output-len", "8", "--warmup", "1", "--threads", "2"]);
            let output = command.args(["--prefill-logits", logits]).output().unwrap();
            let (text, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
            if output.status.code() == Some(UNAVAILABLE_EXIT) {
                println!("skipped: {name} is not installed; get it with `cargo xtask peers {name}`");
                break;
            }
            assert!(output.status.success(), "{name}: {error}");
            let lines: Vec<ChildLine> = text.lines().map(|line| ChildLine::parse(line).unwrap()).collect();
            let [ChildLine::Header(header), ChildLine::Request(request)] = &lines[..] else { panic!("{name}: {text}") };
            assert!(!header.version.is_empty() && !header.conversions.is_empty(), "{name}");
            let request: &ChildRequest = request;
            request.check(8).unwrap();
            assert_eq!(request.tokens.known().unwrap(), &ours, "{name}, logits {logits}");
        }
    }
}
