//! Traces as the tools read them that they are written for: Perfetto's trace processor, Holistic Trace Analysis, speedscope,
//! the Firefox Profiler. They come with `peers/viewers/setup.sh`; without it these tests say so, and fail where CI is true.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{HELPER, MAIN, everything, moved, request};
use record::trace::{Lane, Trace, write_chrome, write_firefox, write_perfetto, write_speedscope};
use serde_json::{Value, json};
use std::collections::BTreeMap;
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
    // Beside the lanes' slices, what threads lost: 30 us of the helper's page fault are the other thread's that had its processor.
    let mut expected = expected_slices(&trace);
    for (lane, why, start, wall) in [
        ("worker 0", "page fault", 100, 100),
        ("worker 1", "page fault", 120, 30),
        ("worker 1", "descheduled", 150, 30),
        ("worker 1", "page fault", 180, 120),
        ("worker 1", "steal", 1100, 100),
    ] {
        expected.push(json!([why, "lost", day_ns + 1000 * start, 1000 * wall, format!("{lane}: lost time")]));
    }
    expected.sort_by_key(Value::to_string);
    assert_eq!(slices(&found), expected);
    // The lanes are the process's, each once.
    let tracks: Vec<_> = rows(&found, "tracks").iter().map(|row| json!([row["name"], row["parent"]])).collect();
    let wanted = [
        json!(["main", null]),
        json!(["stream 7", null]),
        json!(["worker 0", null]),
        json!(["worker 0: lost time", null]),
        json!(["worker 1", null]),
        json!(["worker 1: lost time", null]),
    ];
    assert_eq!(tracks, wanted);
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

/// A trace whose samples weigh differently, and are of two threads.
fn sampled() -> Trace {
    let mut trace = moved(everything(), 1000, 5_000_000);
    for (index, sample) in trace.samples.samples.iter_mut().enumerate() {
        sample.weight_ns += 1000 * index as u64;
    }
    trace
}

#[test]
fn speedscopes_schema_fits_and_its_importer_finds_every_stack_with_its_time() {
    let trace = sampled();
    let mut file = Vec::new();
    write_speedscope(&trace, &mut file).unwrap();
    let Some(text) = read_by("speedscope.py", "trace.speedscope.json", &file) else { return };
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["name"], "hour;glass");
    let profiles = found["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 2, "the stream has no samples");
    for (profile, (name, thread)) in profiles.iter().zip([("main", MAIN), ("worker 1", HELPER)]) {
        assert_eq!((&profile["name"], &profile["unit"]), (&json!(name), &json!("nanoseconds")));
        let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
        for sample in trace.samples.samples.iter().filter(|sample| sample.thread == thread) {
            let names = trace.samples.frames_of(sample.stack).map(|frame| {
                let inlined = if frame.inlined { " [inlined]" } else { "" };
                format!("{}{inlined}", trace.names.text(frame.function))
            });
            let names: Vec<String> = names.collect();
            // The tool gives a function its callees' time too.
            for depth in 1..=names.len() {
                *stacks.entry(names[..depth].join(";")).or_default() += sample.weight_ns;
            }
        }
        assert_eq!(profile["stacks"], json!(stacks), "{name}");
    }
}

#[test]
fn the_firefox_profiler_finds_threads_functions_and_markers_with_their_times() {
    let trace = sampled();
    let mut file = Vec::new();
    write_firefox(&trace, &mut file).unwrap();
    let Some(text) = read_by("firefox.py", "profile.json", &file) else { return };
    let found: Value = serde_json::from_str(&text).unwrap();
    let ms = |ns: u64| ns as f64 / 1e6;
    let near = |found: &Value, ns: u64| (found.as_f64().unwrap() - ms(ns)).abs() < 1e-9;
    assert!(near(&found["range"]["start"], 0) && near(&found["range"]["end"], trace.wall_ns()), "{}", found["range"]);
    let threads = found["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 3);
    for (name, thread) in [("main", Some(MAIN)), ("worker 1", Some(HELPER)), ("stream 7", None)] {
        let found = threads.iter().find(|thread| thread["name"] == name).unwrap();
        if let Some(thread) = thread {
            assert_eq!(found["tid"], thread.to_string());
        }
        let mut own: BTreeMap<&str, u64> = BTreeMap::new();
        for sample in trace.samples.samples.iter().filter(|sample| Some(sample.thread) == thread) {
            let innermost = trace.samples.frames_of(sample.stack).next_back().unwrap();
            *own.entry(trace.names.text(innermost.function)).or_default() += sample.weight_ns;
        }
        let functions = found["functions"].as_array().unwrap();
        for (function, ns) in &own {
            let found = functions.iter().find(|row| row["name"] == *function).unwrap();
            assert!(near(&found["selfSamples"], *ns), "{name}: {found}, expected {ns}");
        }
        let mut markers: Vec<(String, u64, u64)> = Vec::new();
        for lane in trace.lanes.iter().filter(|lane| lane.kind.thread() == thread) {
            let marker = |slice: &record::trace::Slice| {
                (
                    trace.names.text(slice.name).to_owned(),
                    slice.start_ns - trace.start_ns,
                    slice.end_ns - slice.start_ns,
                )
            };
            markers.extend(lane.slices.iter().map(marker));
        }
        if let Some(thread) = thread {
            let lost = trace.lost_by(thread).into_iter();
            markers.extend(
                lost.map(|lost| {
                    (lost.why.name().to_owned(), lost.start_ns - trace.start_ns, lost.end_ns - lost.start_ns)
                }),
            );
        }
        markers.sort();
        let ns = |value: &Value| (value.as_f64().unwrap_or(0.0) * 1e6).round() as u64;
        let row = |row: &Value| (row["name"].as_str().unwrap().to_owned(), ns(&row["start"]), ns(&row["duration"]));
        let mut seen: Vec<_> = found["markers"]["flatMarkers"].as_array().unwrap().iter().map(row).collect();
        seen.sort();
        assert_eq!(seen, markers, "{name}");
    }
}
