//! Traces as the tools read them that they are written for: Perfetto's trace processor, Holistic Trace Analysis, speedscope's
//! schema. They come with `peers/viewers/setup.sh`; without it these tests say so, and fail where CI is true.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{everything, moved, request};
use record::trace::{Lane, Trace, write_chrome, write_perfetto, write_speedscope};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `peers/viewers/SCRIPT FILE` prints, with the trace in FILE; `None` if the tools are not here.
fn read_by(script: &str, file: &str, contents: &[u8]) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".venv-viewers/bin/python");
    if !python.exists() {
        let how = "run peers/viewers/setup.sh, which makes .venv-viewers/";
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "the tools that read traces are not here: {how}");
        eprintln!("not checked: the tools that read traces are not here; {how}");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join(file);
    std::fs::write(&path, contents).unwrap();
    let output = Command::new(python).arg(root.join("peers/viewers").join(script)).arg(&path).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn rows<'a>(found: &'a Value, query: &str) -> &'a Vec<Value> {
    found[query].as_array().unwrap()
}

/// Slices as Perfetto has them: (name, category, start, duration, whether the track has a name of its own), sorted.
fn slices(found: &Value) -> Vec<Value> {
    let row = |row: &Value| json!([row["name"], row["category"], row["ts"], row["dur"], row["lane"]]);
    let mut rows: Vec<Value> = rows(found, "slices").iter().map(row).collect();
    rows.sort_by_key(Value::to_string);
    rows
}

fn expected_slices(trace: &Trace) -> Vec<Value> {
    let of = |lane: &Lane| {
        let row = |slice: &record::trace::Slice| {
            let (start, wall) = (slice.start_ns, slice.end_ns - slice.start_ns);
            json!([trace.names.text(slice.name), slice.category.name(), start, wall, lane.name])
        };
        // Perfetto keeps an instant as a slice of no duration.
        let instant = |instant: &record::trace::Instant| {
            json!([trace.names.text(instant.name), instant.category.name(), instant.at_ns, 0, lane.name])
        };
        lane.slices.iter().map(row).chain(lane.instants.iter().map(instant)).collect::<Vec<_>>()
    };
    let mut rows: Vec<Value> = trace.lanes.iter().flat_map(of).collect();
    rows.sort_by_key(Value::to_string);
    rows
}

#[test]
fn perfettos_trace_processor_finds_everything_and_complains_of_nothing() {
    let day_ns = 86_400_000_000_000;
    let trace = moved(everything(), 1000, day_ns);
    let mut file = Vec::new();
    write_perfetto(&trace, &mut file).unwrap();
    let Some(text) = read_by("trace_processor.py", "trace.pftrace", &file) else { return };
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["problems"], json!([]), "what the import complains about");
    assert_eq!(found["processes"], json!([{"pid": 100, "name": "hour;glass"}]));
    assert_eq!(found["threads"], json!([{"tid": 100, "name": "main"}, {"tid": 101, "name": "worker 1"}]));
    assert_eq!(slices(&found), expected_slices(&trace));
    // Nesting is as written: the request, in it a step, in it the dispatch.
    let depth = |name: &str| rows(&found, "slices").iter().find(|row| row["name"] == name).unwrap()["depth"].clone();
    assert_eq!([depth("request"), depth("decode"), depth("dispatch")], [json!(0), json!(1), json!(2)]);
    let expected: Vec<Value> = trace
        .flows
        .iter()
        .map(|flow| {
            let [from, to] = [flow.from, flow.to].map(|place| &trace.lanes[place.lane].slices[place.slice]);
            let name = |slice: &record::trace::Slice| trace.names.text(slice.name).to_owned();
            json!({"from_name": name(from), "from_ts": from.start_ns, "to_name": name(to), "to_ts": to.start_ns})
        })
        .collect();
    assert_eq!(found["flows"], json!(expected));
    for counter in &trace.counters {
        let of_name = rows(&found, "counters").iter().filter(|row| row["name"] == counter.name.as_str());
        let points: Vec<(u64, f64)> =
            of_name.map(|row| (row["ts"].as_u64().unwrap(), row["value"].as_f64().unwrap())).collect();
        assert_eq!(points, counter.points, "{}", counter.name);
    }
    let arguments = |name: &str| {
        let rows = rows(&found, "arguments").iter().filter(|row| row["name"] == name);
        rows.map(|row| (row["key"].as_str().unwrap(), row["value"].as_str().unwrap())).collect::<Vec<_>>()
    };
    let awkward = "a \"quoted\"\n\u{1}; name \u{e9}";
    assert_eq!(arguments("note"), [("debug.bytes", "-5"), ("debug.share", "0.25"), ("debug.why", awkward)]);
    assert_eq!(arguments("matvec")[..2], [("debug.layer", "0"), ("debug.layer", "0")]);
    // Samples, with the names of their stacks from the innermost function out.
    let frames = rows(&found, "frames");
    let names = |mut id: Value| {
        let mut names = Vec::new();
        while !id.is_null() {
            let frame = frames.iter().find(|frame| frame["id"] == id).unwrap();
            names.push(frame["name"].as_str().unwrap().to_owned());
            id = frame["parent"].clone();
        }
        names
    };
    let samples: Vec<_> = rows(&found, "samples")
        .iter()
        .map(|row| (row["ts"].as_u64().unwrap(), row["tid"].as_u64().unwrap(), names(row["callsite_id"].clone())))
        .collect();
    let written = trace.samples.samples.iter().map(|sample| {
        let frames = trace.samples.frames_of(sample.stack).rev().map(|frame| {
            let inlined = if frame.inlined { " [inlined]" } else { "" };
            format!("{}{inlined}", trace.names.text(frame.function))
        });
        (sample.at_ns, u64::from(sample.thread), frames.collect::<Vec<_>>())
    });
    assert_eq!(samples, written.collect::<Vec<_>>());
}

#[test]
fn holistic_trace_analysis_computes_the_times_that_were_put_in() {
    // Worker 1 is 30 us slower in each call; times in whole microseconds, which is what the tool keeps.
    let trace = moved(request(3, |_, worker, _| worker as u64 * 30), 1000, 5_000_000);
    let mut file = Vec::new();
    write_chrome(&trace, &mut file).unwrap();
    let Some(text) = read_by("holistic.py", "trace.json", &file) else { return };
    let found: Value = serde_json::from_str(&text).unwrap();
    // From the first kernel to the last: three steps of 860 us, two pauses of 150 us between them.
    let temporal = &found["temporal"][0];
    assert_eq!((&temporal["compute_time(us)"], &temporal["idle_time(us)"]), (&json!(2580.0), &json!(300.0)));
    let kernel = &found["kernels"][0];
    let times = ["name", "sum (us)", "max (us)", "min (us)"].map(|key| kernel[key].clone());
    assert_eq!(times, [json!("matvec"), json!(4980.0), json!(430.0), json!(400.0)]);
    // Worker 1 is linked to its dispatches: its pauses are for the host. Worker 0 also waits for worker 1.
    let idle = |stream: u64| {
        let own = found["idle"].as_array().unwrap().iter().filter(move |row| row["stream"] == stream);
        own.map(|row| row["idle_time"].as_f64().unwrap()).sum::<f64>()
    };
    assert_eq!((idle(0), idle(1)), (2.0 * 150.0 + 5.0 * 30.0, 2.0 * 150.0));
    let host = found["idle"].as_array().unwrap().iter().find(|row| row["idle_category"] == "host_wait").unwrap();
    assert_eq!((&host["stream"], &host["idle_time"]), (&json!(1), &json!(300.0)));
}

#[test]
fn perfetto_also_opens_the_chrome_file() {
    let trace = moved(request(3, |_, worker, _| worker as u64 * 30), 1000, 0);
    let mut file = Vec::new();
    write_chrome(&trace, &mut file).unwrap();
    let Some(text) = read_by("trace_processor.py", "trace.json", &file) else { return };
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["problems"], json!([]));
    let names = |rows: Vec<Value>| rows.iter().map(|row| json!([row[0], row[2], row[3], row[4]])).collect::<Vec<_>>();
    let sorted = |mut rows: Vec<Value>| {
        rows.sort_by_key(Value::to_string);
        rows
    };
    assert_eq!(sorted(names(slices(&found))), sorted(names(expected_slices(&trace))), "all but the categories");
    assert_eq!(rows(&found, "flows").len(), trace.flows.len());
}

#[test]
fn speedscopes_schema_fits() {
    let mut file = Vec::new();
    write_speedscope(&everything(), &mut file).unwrap();
    if let Some(text) = read_by("speedscope.py", "trace.speedscope.json", &file) {
        assert_eq!(text, "");
    }
}
