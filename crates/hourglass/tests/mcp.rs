//! `hourglass mcp` over its pipes: the handshake, every tool, wrong and hostile arguments, large records, runs, cancellation
//! and sudden ends. Not here: the protocol's library; what the analyses answer is tested with their verbs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use support::{hourglass, json, root, stdout};
use tempfile::TempDir;

/// Nothing here takes a minute; whoever waits so long waits for something that does not come.
const PATIENCE: Duration = Duration::from_secs(120);

/// A repository with records, of which `wiring.json` is a real one.
struct Repository(TempDir);

impl Repository {
    fn new() -> Repository {
        let repository = Repository(tempfile::tempdir().unwrap());
        fs::create_dir_all(repository.path(".git")).unwrap();
        fs::create_dir_all(repository.path(".hourglass/runs/a")).unwrap();
        let file = repository.path(".hourglass/runs/a/wiring.json");
        let flags = ["--model", "synthetic:tiny", "--input-len", "16", "--json-output"];
        stdout(&[&["wiring", "selected"], &flags[..], &[file.to_str().unwrap()]].concat());
        repository
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    fn digest(&self, name: &str) -> String {
        let output = Command::new("sha256sum").arg(self.path(name)).output().unwrap();
        String::from_utf8(output.stdout).unwrap()[..64].to_owned()
    }

    /// Processes that were told about this repository and are still there.
    fn processes(&self) -> Vec<String> {
        let named = |entry: fs::DirEntry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(self.0.path().to_str().unwrap()).then_some(line)
        };
        fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter_map(named).collect()
    }
}

/// A client that looks at every line.
struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    notifications: Vec<Value>,
    next: u64,
}

impl Client {
    /// Starts the server in the repository, without a handshake.
    fn start(repository: &Repository, flags: &[&str]) -> Client {
        let mut command = hourglass(&[&["mcp"], flags].concat());
        command.current_dir(repository.0.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines() {
                let line = line.unwrap();
                let value: Value =
                    serde_json::from_str(&line).unwrap_or_else(|_| panic!("stdout is for the protocol: {line}"));
                assert_eq!(value["jsonrpc"], "2.0", "{line}");
                if sender.send(value).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Client { child, stdin, lines, notifications: Vec::new(), next: 1 }
    }

    fn new(repository: &Repository, flags: &[&str]) -> Client {
        let mut client = Client::start(repository, flags);
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        let answer = client.request("initialize", hello);
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18", "{answer}");
        assert_eq!(answer["result"]["serverInfo"]["name"], "hourglass");
        assert!(answer["result"]["instructions"].as_str().unwrap().contains("evidence id"));
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    /// Sends a request and does not wait.
    fn begin(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// The next message, which is kept if it is a notification.
    fn receive(&mut self) -> Value {
        let value = self.lines.recv_timeout(PATIENCE).unwrap();
        if value.get("id").is_none() {
            self.notifications.push(value.clone());
        }
        value
    }

    fn answer(&mut self, id: u64) -> Value {
        loop {
            let value = self.receive();
            if value["id"] == id {
                return value;
            }
        }
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(answer.get("error").is_none(), "{tool}: {answer}");
        answer["result"].clone()
    }

    /// The structured content of a success.
    fn good(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        assert!(!result["content"][0]["text"].as_str().unwrap().is_empty(), "{tool}");
        result["structuredContent"].clone()
    }

    /// The words of an error of the tool.
    fn bad(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool}: {result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Ends the input, and gives the exit code and stderr.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.stdin.take());
        let mut error = String::new();
        std::io::Read::read_to_string(self.child.stderr.as_mut().unwrap(), &mut error).unwrap();
        (self.child.wait().unwrap().code(), error)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Work that would take minutes.
fn long_bench() -> Value {
    json!({"variants": ["selected", "fast"], "model": "synthetic:tiny", "input_len": 64, "output_len": 400, "warmup": 1000,
        "repeats": 40})
}

#[test]
fn what_is_offered_is_typed_and_marked() {
    let repository = Repository::new();
    let mut client = Client::new(&repository, &[]);
    let listed = client.request("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    assert!(tools.len() >= 6);
    for tool in tools {
        assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
        assert_eq!(tool["annotations"]["openWorldHint"], false);
        assert_eq!(tool["inputSchema"]["type"], "object");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
    }
    assert!(client.bad("run_find", json!({})).contains("--allow-run"));
    let (code, error) = client.end();
    assert_eq!((code, error.as_str()), (Some(0), ""));

    let mut client = Client::new(&repository, &["--allow-run"]);
    let listed = client.request("tools/list", json!({}));
    let runs: Vec<_> = listed["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|tool| tool["name"].as_str().unwrap().starts_with("run_"))
        .cloned()
        .collect();
    assert!(runs.len() >= 4);
    for tool in runs {
        let hints = &tool["annotations"];
        assert_eq!((&hints["readOnlyHint"], &hints["destructiveHint"]), (&json!(false), &json!(false)), "{tool}");
        assert_eq!(hints["idempotentHint"], false);
    }
    assert_eq!(json(&["mcp", "--json"]).as_array().unwrap().len(), tools.len());
}

#[test]
fn every_reading_tool_answers_and_names_its_evidence() {
    let repository = Repository::new();
    let mut client = Client::new(&repository, &[]);
    let digest = repository.digest(".hourglass/runs/a/wiring.json");
    let listed = client.good("list_records", json!({}));
    assert_eq!(listed["records"][0]["id"], digest[..12]);
    for name in [&digest[..8], ".hourglass/runs/a/wiring.json", "runs/a/wiring.json"] {
        let shown = client.good("show_record", json!({"record": name}));
        assert_eq!(shown["evidence"][0]["sha256"], digest, "{name}");
        assert_eq!(shown["record"]["schema"], "wiring/1");
    }
    let calls =
        client.good("show_record", json!({"record": digest, "pointer": "/passes/0/calls", "page": {"limit": 3}}));
    assert_eq!((&calls["from"], calls["items"].as_array().unwrap().len()), (&json!(0), 3));
    let next =
        json!({"record": digest, "pointer": "/passes/0/calls", "page": {"limit": 3, "cursor": calls["next_cursor"]}});
    assert_eq!(client.good("show_record", next)["from"], 3);
    let ladder = client.good("ladder", json!({}));
    assert!(ladder["answer"]["checkpoints"].as_array().unwrap().len() > 5 && ladder["evidence"].is_object());
    assert!(
        client.good("ladder", json!({"diff": "selected"}))["command"].as_str().unwrap().contains("--diff=selected")
    );
    let wiring = client
        .good("wiring", json!({"model": "synthetic:tiny", "checkpoint": "selected", "pointer": "/passes/0/calls"}));
    assert!(wiring["total"].as_u64().unwrap() > 3);
    assert!(client.good("explain", json!({}))["titles"].as_array().unwrap().len() > 10);
    let about = client.good("explain", json!({"topic": "sensitivity"}));
    assert!(about["titles"][0].as_str().unwrap().starts_with("sensitivity.md"), "{about}");
    let (before, after) = (json!(digest), json!("runs/a/wiring.json#selected"));
    let words = client.bad("compare", json!({"before": before, "after": after}));
    assert!(words.contains("wiring"), "{words}");
    assert!(client.bad("ledger_list", json!({})).contains("ledger.jsonl"));
    assert!(client.bad("find_result", json!({})).contains("no find record"));
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn wrong_and_hostile_arguments_are_errors_of_the_tool_with_a_remedy() {
    let repository = Repository::new();
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.json");
    fs::write(&secret, r#"{"schema": "secret/1"}"#).unwrap();
    std::os::unix::fs::symlink(&secret, repository.path("link.json")).unwrap();
    std::os::unix::fs::symlink(outside.path(), repository.path(".hourglass/runs/out")).unwrap();
    repository.write("no-record.json", "{}");
    let id = repository.digest(".hourglass/runs/a/wiring.json");
    let mut client = Client::new(&repository, &["--allow-run"]);
    let cases = [
        ("list_records", json!({"kinds": "x"}), "unknown field"),
        ("list_records", json!({"since": "soon"}), "7d"),
        ("list_records", json!({"page": {"limit": 0}}), "1 to 200"),
        ("list_records", json!({"page": {"limit": -1}}), "inputSchema"),
        ("list_records", json!({"page": {"max_bytes": 1_000_000_000}}), "262144"),
        ("list_records", json!({"page": {"cursor": "0.ffffffff"}}), "without it"),
        ("show_record", json!({}), "missing field"),
        ("show_record", json!({"record": ["x"]}), "inputSchema"),
        ("show_record", json!({"record": ""}), "expected"),
        ("show_record", json!({"record": "ab"}), "at least 4"),
        ("show_record", json!({"record": "../../../etc/passwd"}), "without '..'"),
        ("show_record", json!({"record": "/etc/passwd"}), "outside"),
        ("show_record", json!({"record": secret}), "outside"),
        ("show_record", json!({"record": "link.json"}), "outside"),
        ("show_record", json!({"record": "runs/out/secret.json"}), "outside"),
        ("show_record", json!({"record": "no-record.json"}), "no record"),
        ("show_record", json!({"record": "runs\u{0}/a"}), "without '..'"),
        ("show_record", json!({"record": "x".repeat(100_000)}), "nothing of that name"),
        ("show_record", json!({"record": id, "pointer": "passes"}), "begins with '/'"),
        ("show_record", json!({"record": id, "pointer": "/passes/99/calls"}), "/passes has 2 items"),
        ("compare", json!({"before": "../x", "after": id}), "without '..'"),
        ("compare", json!({"before": "/etc", "after": id}), "outside"),
        ("compare", json!({"before": id, "after": id, "gates": ["decode.ratio >"]}), "--gate"),
        ("ledger_show", json!({"id": "--json"}), "ledger"),
        ("ladder", json!({"diff": "--help"}), "--help"),
        ("ladder", json!({"diff": "nothing"}), "nothing"),
        ("wiring", json!({"checkpoint": "--json"}), "--json"),
        ("wiring", json!({"model": "/etc"}), "outside"),
        ("wiring", json!({"model": "synthetic:tiny", "input_len": 4_000_000_000u32}), "positions"),
        ("explain", json!({"topic": "qqqq zzzz"}), "headings"),
        ("run_bench", json!({"variants": ["endpoint:http://localhost:1"]}), "no network"),
        ("run_bench", json!({"model": "synthetic:tiny", "repeats": 0}), "--repeats"),
        ("run_bench", json!({"model": "synthetic:tiny", "time_limit_s": 0}), "at least 1"),
        ("run_replay", json!({"cases": ["--json-output=/tmp/x"]}), "--case"),
        ("run_find", json!({"checkpoint": "nothing", "model": "synthetic:tiny"}), "nothing"),
    ];
    for (tool, arguments, expected) in cases {
        let shown: String = arguments.to_string().chars().take(200).collect();
        let words = client.bad(tool, arguments);
        assert!(words.contains(expected) && !words.contains("secret/1"), "{tool} {shown}: {words}");
        assert!(words.len() < 4096, "{tool} {shown}: {} bytes", words.len());
    }
    let unknown = client.request("tools/call", json!({"name": "remove_everything"}));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    assert!(unknown["error"]["message"].as_str().unwrap().contains("list_records"));
    // Nothing came of the runs that were refused.
    let runs: Vec<_> =
        fs::read_dir(repository.path(".hourglass/runs")).unwrap().map(|run| run.unwrap().file_name()).collect();
    assert_eq!(runs.len(), 2, "{runs:?}");
    // What is no request is no reason to end.
    for garbage in ["", "{", "[]", "null", r#"{"jsonrpc": "2.0"}"#, &"x".repeat(1 << 20)] {
        writeln!(client.stdin.as_mut().unwrap(), "{garbage}").unwrap();
    }
    assert!(client.good("list_records", json!({}))["total"].as_u64().unwrap() >= 1);
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn a_large_record_is_shown_in_parts() {
    let repository = Repository::new();
    let rows: Vec<Value> = (0..60_000).map(|index| json!({"index": index, "text": "x".repeat(200)})).collect();
    let record = json!({"schema": "later/1", "samples": rows, "wide": "y".repeat(5_000_000)});
    repository.write(".hourglass/large.json", record.to_string());
    repository.write(".hourglass/too-large.json", vec![b' '; (64 << 20) + 1]);
    let mut client = Client::new(&repository, &[]);
    let listed = client.good("list_records", json!({}));
    let too_large =
        listed["records"].as_array().unwrap().iter().find(|record| record["path"] == "too-large.json").unwrap();
    assert_eq!(too_large["state"], "unreadable");
    let answer = client.call("show_record", json!({"record": "large.json"}));
    assert!(answer.to_string().len() < 100_000, "{} bytes", answer.to_string().len());
    let shown = &answer["structuredContent"]["record"];
    let pointer = shown["samples"].as_array().unwrap().last().unwrap()["pointer"].clone();
    assert_eq!(pointer, "/samples");
    assert!(shown["wide"]["not_shown"].as_str().unwrap().contains("5000000 bytes"), "{}", shown["wide"]);
    let page = json!({"record": "large.json", "pointer": pointer, "page": {"limit": 200, "max_bytes": 10_000}});
    let answer = client.call("show_record", page);
    assert!(answer.to_string().len() < 40_000);
    assert_eq!(answer["structuredContent"]["total"], 60_000);
    assert!(answer["structuredContent"]["next_cursor"].is_string());
}

#[test]
fn a_run_leaves_a_record_that_can_be_named() {
    let repository = Repository::new();
    let mut client = Client::new(&repository, &["--allow-run"]);
    let arguments = json!({"cases": ["selected:decode:16"], "model": "synthetic:tiny", "iterations": 1});
    let result = client.call("run_replay", arguments);
    let answer = &result["structuredContent"];
    assert_eq!(result["isError"], false, "{result}");
    let evidence = &answer["evidence"][0];
    assert_eq!((&evidence["schema"], &answer["exit_code"]), (&json!("replay/1"), &json!(0)));
    assert!(result["content"][0]["text"].as_str().unwrap().contains(evidence["id"].as_str().unwrap()));
    let shown = client.good("show_record", json!({"record": evidence["id"]}));
    assert_eq!(shown["entry"]["checkpoints"], json!(["selected"]));
    assert_eq!(fs::read_to_string(repository.path(".hourglass/.gitignore")).unwrap(), "runs/\n");
}

#[test]
fn a_run_can_be_cancelled_and_no_two_run_at_once() {
    let repository = Repository::new();
    let mut client = Client::new(&repository, &["--allow-run"]);
    let params = json!({"name": "run_bench", "arguments": long_bench(), "_meta": {"progressToken": "p"}});
    let run = client.begin("tools/call", params);
    let progress = loop {
        let message = client.receive();
        assert_ne!(message["id"], run, "it was to take minutes: {message}");
        if message["method"] == "notifications/progress" {
            break message;
        }
    };
    assert_eq!(progress["params"]["progressToken"], "p");
    assert!(
        progress["params"]["total"].as_f64() == Some(900.0) && progress["params"]["progress"].as_f64() >= Some(1.0)
    );
    let small = json!({"cases": ["selected:decode:16"], "model": "synthetic:tiny", "iterations": 1});
    assert!(client.bad("run_replay", small.clone()).contains("bench is being measured"));
    // Reading goes on meanwhile.
    client.good("list_records", json!({}));
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": run}}));
    // The machine is free again as soon as the run has ended.
    let mut tries = 0;
    loop {
        let result = client.call("run_replay", small.clone());
        if result["isError"] == false {
            break;
        }
        assert!(result["content"][0]["text"].as_str().unwrap().contains("is being measured"), "{result}");
        tries += 1;
        assert!(tries < 600, "a cancelled run does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(repository.processes().is_empty(), "{:?}", repository.processes());
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn a_run_ends_at_its_time_limit() {
    let repository = Repository::new();
    let mut client = Client::new(&repository, &["--allow-run", "--time-limit-seconds", "1"]);
    let words = client.bad("run_bench", long_bench());
    assert!(words.contains("ended after 1 s") && words.contains("--time-limit-seconds"), "{words}");
    assert!(repository.processes().is_empty(), "{:?}", repository.processes());
}

#[test]
fn a_client_that_goes_away_leaves_nothing_running() {
    let repository = Repository::new();
    // Before the handshake.
    assert_eq!(Client::start(&repository, &[]).end().0, Some(0));
    let mut client = Client::new(&repository, &["--allow-run"]);
    client.begin("tools/call", json!({"name": "run_bench", "arguments": long_bench(), "_meta": {"progressToken": 1}}));
    while client.receive()["method"] != "notifications/progress" {}
    // In the middle of a message.
    client.stdin.as_mut().unwrap().write_all(br#"{"jsonrpc": "2.0", "id"#).unwrap();
    assert_eq!(client.end().0, Some(0));
    assert!(repository.processes().is_empty(), "{:?}", repository.processes());
}

#[test]
fn a_signal_ends_it_and_the_run() {
    let repository = Repository::new();
    let mut client = Client::new(&repository, &["--allow-run"]);
    client.begin("tools/call", json!({"name": "run_bench", "arguments": long_bench(), "_meta": {"progressToken": 1}}));
    while client.receive()["method"] != "notifications/progress" {}
    let status = Command::new("kill").args(["-TERM", &client.child.id().to_string()]).status().unwrap();
    assert!(status.success());
    // Its input is still open.
    assert_eq!(client.child.wait().unwrap().code(), Some(130));
    assert!(repository.processes().is_empty(), "{:?}", repository.processes());
}

/// The protocol's own client, which this project has no part in.
#[test]
fn the_official_client_can_use_it() {
    let python = root().join(".venv-viewers/bin/python");
    let has_it = |python: &Path| {
        Command::new(python).args(["-c", "import mcp"]).output().is_ok_and(|output| output.status.success())
    };
    if !has_it(&python) {
        let how = "run peers/viewers/setup.sh, which puts it into .venv-viewers/";
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "the protocol's client is not here: {how}");
        println!("skipped: the protocol's client is not here; {how}");
        return;
    }
    let repository = Repository::new();
    let output = Command::new(python)
        .args([root().join("peers/viewers/mcp_client.py").as_os_str(), env!("CARGO_BIN_EXE_hourglass").as_ref()])
        .current_dir(repository.0.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(seen["server"], "hourglass");
    assert_eq!(seen["record"], repository.digest(".hourglass/runs/a/wiring.json"));
    assert_eq!(seen["error"], true);
    assert_eq!(seen["evidence_of_run"], "replay/1");
}
