//! `hourglass records` over a folder that real verbs have filled: list, show, export, gc, and every way to get them wrong.
//! Not here: what the records hold.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{json, refusal, run, stdout};
use tempfile::TempDir;

/// A folder of records with two runs: a wiring record each, the second's under another name and of another checkpoint.
struct Folder {
    dir: TempDir,
}

impl Folder {
    fn new() -> Folder {
        let folder = Folder { dir: tempfile::tempdir().unwrap() };
        for (run, checkpoint) in [("runs/a", "selected"), ("runs/b", "kv-cache")] {
            fs::create_dir_all(folder.path(run)).unwrap();
            let file = folder.path(run).join("wiring.json");
            let model = ["--model", "synthetic:tiny", "--input-len", "16"];
            stdout(&[&["wiring", checkpoint, "--json-output", file.to_str().unwrap()], &model[..]].concat());
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [&["records"], arguments, &["--dir", self.text()]].concat()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        json(&[&self.arguments(arguments)[..], &["--json"]].concat())
    }

    fn stdout(&self, arguments: &[&str]) -> String {
        stdout(&self.arguments(arguments))
    }

    fn refusal(&self, arguments: &[&str]) -> String {
        refusal(&self.arguments(arguments), 2)
    }

    /// The evidence id of a file, by sha256sum.
    fn id(&self, name: &str) -> String {
        digest(&self.path(name))[..12].to_owned()
    }
}

fn digest(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].to_owned()
}

fn fits(text: &str) {
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(widest <= 100, "{widest} columns:\n{text}");
}

#[test]
fn the_list_has_every_file_and_hides_none() {
    let folder = Folder::new();
    folder.write("runs/b/cut-off.json", &fs::read(folder.path("runs/b/wiring.json")).unwrap()[..400]);
    folder.write("loose.json", r#"{"schema": "later/7", "created": "2031-01-01T00:00:00Z"}"#);
    let mut changed: Value = serde_json::from_slice(&fs::read(folder.path("runs/a/wiring.json")).unwrap()).unwrap();
    changed["conditions"]["threads"] = json!(999);
    folder.write("runs/a/changed.json", changed.to_string());

    let listing = folder.json(&["list"]);
    let records = listing["records"].as_array().unwrap();
    let of = |path: &str| records.iter().find(|record| record["path"] == path).unwrap_or_else(|| panic!("{path}"));
    assert_eq!(records.len(), 5);
    let whole = of("runs/a/wiring.json");
    assert_eq!(whole["id"], folder.id("runs/a/wiring.json"));
    assert_eq!((&whole["schema"], &whole["state"]), (&json!("wiring/1"), &json!("complete")));
    assert_eq!(whole["checkpoints"], json!(["selected"]));
    assert_eq!(whole["work"], "prefill 16");
    assert_eq!(of("runs/b/cut-off.json")["state"], "unreadable");
    assert_eq!(of("loose.json")["state"], "unknown_kind");
    assert_eq!(of("runs/a/changed.json")["state"], "unreadable");
    let reason = of("runs/a/changed.json")["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("changed after it was written"), "{reason}");

    // Shown with its warning, and no success.
    let changed = folder.path("runs/a/changed.json");
    let shown = run(&folder.arguments(&["show", changed.to_str().unwrap()]));
    assert_eq!(shown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&shown.stdout).contains("NOT VERIFIED"));

    let text = folder.stdout(&["list"]);
    fits(&text);
    assert!(text.contains("cut-off.json") && text.contains("CANNOT BE READ") && text.contains("runs/a/"), "{text}");

    // A filter never hides what cannot be read: it might be what is looked for.
    let states = |arguments: &[&str]| -> Vec<String> {
        let listing = folder.json(arguments);
        listing["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["path"].as_str().unwrap().to_owned())
            .collect()
    };
    let mut found = states(&["list", "--checkpoint", "kv-cache"]);
    found.sort();
    assert_eq!(found, ["runs/a/changed.json", "runs/b/cut-off.json", "runs/b/wiring.json"]);
    assert!(states(&["list", "--kind", "later"]).contains(&"loose.json".to_owned()));
    assert!(!states(&["list", "--since", "2030-01-01"]).contains(&"runs/a/wiring.json".to_owned()));
    assert!(states(&["list", "--since", "1d", "--kind", "wiring/1"]).contains(&"runs/a/wiring.json".to_owned()));
    assert!(folder.refusal(&["list", "--since", "soon"]).contains("--since soon"));
}

#[test]
fn an_empty_place_is_no_error_and_a_wrong_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let text = stdout(&["records", "list", "--dir", dir.path().to_str().unwrap()]);
    assert!(text.contains("No records"), "{text}");
    assert!(refusal(&["records", "list", "--dir", "/nonexistent/x"], 2).contains("no such folder"));
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(refusal(&["records", "list", "--dir", file.to_str().unwrap()], 2).contains("found a file"));
}

#[test]
fn a_record_is_shown_by_id_by_digits_and_by_file() {
    let folder = Folder::new();
    let id = folder.id("runs/a/wiring.json");
    let file = folder.path("runs/a/wiring.json");
    let by_id = folder.stdout(&["show", &id]);
    fits(&by_id);
    assert_eq!(by_id, folder.stdout(&["show", &id[..6]]));
    let by_file = folder.stdout(&["show", file.to_str().unwrap()]);
    assert_eq!(by_id, by_file);
    let own = stdout(&["wiring", "selected", "--model", "synthetic:tiny", "--input-len", "16"]);
    let table: Vec<&str> = own.lines().filter(|line| line.contains("matmul") || line.contains("rmsnorm")).collect();
    assert!(!table.is_empty() && table.iter().all(|line| by_id.contains(line)), "{by_id}");
    let whole = folder.json(&["show", &id]);
    assert_eq!(whole["record"], serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).unwrap());
    assert_eq!(whole["entry"]["sha256"], digest(&file));
}

#[test]
fn names_that_mean_nothing_or_too_much_are_refused() {
    let folder = Folder::new();
    assert!(folder.refusal(&["show", "0000000000000000"]).contains("no record"));
    assert!(folder.refusal(&["show", "ab"]).contains("at least 4"));
    assert!(folder.refusal(&["show", "no/such/file.json"]).contains("evidence id"));
    let bad = folder.write("runs/a/bad.json", "{");
    assert!(folder.refusal(&["show", bad.to_str().unwrap()]).contains("not JSON"));
    // Two contents whose digests begin alike: found by trying numbers.
    let begin = |number: u32| record_digest(number)[..4].to_owned();
    let (mut seen, mut twins) = (std::collections::HashMap::new(), None);
    for number in 0.. {
        if let Some(other) = seen.insert(begin(number), number) {
            twins = Some((other, number));
            break;
        }
    }
    let (one, other) = twins.unwrap();
    folder.write("one.json", twin(one));
    folder.write("other.json", twin(other));
    let error = folder.refusal(&["show", &begin(one)]);
    assert!(error.contains("one.json") && error.contains("other.json") && error.contains("more digits"), "{error}");
    // The same bytes in two places are one record.
    folder.write("again.json", twin(one));
    folder.stdout(&["show", &record_digest(one)[..12]]);
}

fn twin(number: u32) -> String {
    json!({"schema": "later/1", "number": number}).to_string()
}

fn record_digest(number: u32) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(twin(number)).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn one_record_is_exported_in_a_form() {
    let folder = Folder::new();
    let id = folder.id("runs/a/wiring.json");
    let json_form = folder.stdout(&["export", &id, "--format", "json"]);
    assert_eq!(json_form.as_bytes(), fs::read(folder.path("runs/a/wiring.json")).unwrap());
    let csv = folder.stdout(&["export", &id, "--format", "csv"]);
    assert!(csv.starts_with("name,value,unit\n\"passes"), "{csv}");
    assert!(folder.stdout(&["export", &id, "--format", "markdown"]).contains("| what | value | unit |"));
    let error = folder.refusal(&["export", &id, "--format", "bmf"]);
    assert!(error.contains("bench/1") && error.contains("wiring/1"), "{error}");
    assert!(folder.refusal(&["export", &id, "--format", "xml"]).contains("llama-bench"));
    assert!(folder.refusal(&["export", &id, &id, "--format", "csv"]).contains("expected one record"));
    assert!(run(&folder.arguments(&["export", &id])).status.code() == Some(2));
}

#[test]
fn a_bundle_holds_what_a_record_rests_on_and_can_be_checked() {
    let folder = Folder::new();
    let rests = json!({"schema": "later/1", "evidence": [
        {"schema": "wiring/1", "file": "wiring.json", "sha256": digest(&folder.path("runs/a/wiring.json"))},
        {"schema": "wiring/1", "file": "gone.json", "sha256": "0".repeat(64)},
    ]});
    folder.write("later.json", rests.to_string());
    let id = folder.id("later.json");
    let (out, tar) = (folder.path("bundle"), folder.path("bundle.tar"));
    let bundle = folder.json(&["export", &id, "--out", out.to_str().unwrap()]);
    assert_eq!(bundle["missing"], json!(["0".repeat(64)]));
    assert_eq!(bundle["files"].as_array().unwrap().len(), 2);
    let check =
        Command::new("sha256sum").args(["--check", "--strict", "manifest.sha256"]).current_dir(&out).output().unwrap();
    assert!(check.status.success(), "{check:?}");
    folder.stdout(&["export", &id, "--out", tar.to_str().unwrap()]);
    let unpacked = folder.path("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let status =
        Command::new("tar").args(["-xf", tar.to_str().unwrap(), "-C", unpacked.to_str().unwrap()]).status().unwrap();
    assert!(status.success());
    for file in fs::read_dir(&out).unwrap() {
        let file = file.unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), fs::read(unpacked.join(file.file_name())).unwrap());
    }
    for taken in [&out, &tar] {
        assert!(folder.refusal(&["export", &id, "--out", taken.to_str().unwrap()]).contains("never overwritten"));
    }
    // A name that fails leaves nothing behind.
    let fresh = folder.path("fresh");
    folder.refusal(&["export", "ffffffffffff", "--out", fresh.to_str().unwrap()]);
    assert!(
        !fresh.exists()
            && fs::read_dir(folder.dir.path())
                .unwrap()
                .all(|entry| { !entry.unwrap().file_name().to_string_lossy().ends_with(".partial") })
    );
}

#[test]
fn gc_takes_only_what_nothing_rests_on() {
    let folder = Folder::new();
    let trace = |run: &str| {
        folder.write(&format!("runs/{run}/capture.trace/samples.jsonl"), "x".repeat(4096));
        folder.write(&format!("runs/{run}/capture.trace/calls.json"), "[]");
    };
    trace("a");
    trace("b");
    // The ledger rests on a record of run c, which rests on run a.
    let evidence =
        |file: &str| json!({"schema": "wiring/1", "file": "wiring.json", "sha256": digest(&folder.path(file))});
    let mut later = json!({"schema": "sensitivity/1", "evidence": [evidence("runs/a/wiring.json")]});
    later["file"] = json!("x");
    folder.write("runs/c/note.json", later.to_string());
    folder.write(
        "ledger.jsonl",
        format!("{}\n", json!({"schema": "ledger/1", "evidence": [evidence("runs/c/note.json")]})),
    );
    folder.write("runs/d/half.json", "{");
    let link = folder.path("runs/link");
    std::os::unix::fs::symlink(folder.path("runs/a"), &link).unwrap();

    let young = folder.json(&["gc"]);
    assert_eq!(young["removable"], json!([]), "nothing is thirty days old");
    let plan = folder.json(&["gc", "--older-than", "0d"]);
    let paths = |sweep: &Value, key: &str| -> Vec<String> {
        sweep[key].as_array().unwrap().iter().map(|item| item["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(paths(&plan, "removable"), ["runs/b"], "{plan}");
    assert_eq!(paths(&plan, "kept"), ["runs/a", "runs/c", "runs/d"]);
    assert!(folder.path("runs/b").exists() && plan["removed"] == false);
    fits(&folder.stdout(&["gc", "--older-than", "0d"]));

    // Without the ledger run c is still not understood, so it stays, and so does a; a's raw trace may go.
    fs::remove_file(folder.path("ledger.jsonl")).unwrap();
    let swept = folder.json(&["gc", "--older-than", "0d", "--yes"]);
    assert_eq!(paths(&swept, "removable"), ["runs/a/capture.trace", "runs/b"]);
    assert!(
        swept["removed"] == true && !folder.path("runs/b").exists() && !folder.path("runs/a/capture.trace").exists()
    );
    assert!(folder.path("runs/a/wiring.json").exists() && link.symlink_metadata().is_ok());

    folder.write("ledger.jsonl", "{half\n");
    let error = refusal(&folder.arguments(&["gc", "--older-than", "0d"]), 1);
    assert!(error.contains("ledger.jsonl, line 1"), "{error}");
    assert!(folder.refusal(&["gc", "--older-than", "old"]).contains("--older-than old"));
}
