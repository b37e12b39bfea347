//! Traces written in each format and read back by independent means: a reader written from the format's description, always;
//! and the tools that the formats are for (see `trace_viewers.rs`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{everything, moved, request, traces};
use proptest::prelude::*;
use record::trace::{Category, Lane, MAX_CHROME_EVENTS, Trace, WriteError};
use record::trace::{write_chrome, write_firefox, write_folded, write_perfetto, write_speedscope};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};

type Write = fn(&Trace, &mut Vec<u8>) -> Result<(), WriteError>;

/// A slice as (lane's name, name, category, start, end).
type Row = (String, String, String, u64, u64);

fn expected_slices(trace: &Trace) -> Vec<Row> {
    let row = |lane: &Lane, slice: &record::trace::Slice| {
        let name = trace.names.text(slice.name).to_owned();
        (lane.name.clone(), name, slice.category.name().to_owned(), slice.start_ns, slice.end_ns)
    };
    let mut rows: Vec<Row> =
        trace.lanes.iter().flat_map(|lane| lane.slices.iter().map(move |slice| row(lane, slice))).collect();
    rows.sort();
    rows
}

/// Lost time as slices of a track below the last lane of its thread: what covers each nanosecond, the first kind where several do.
fn expected_losses(trace: &Trace) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let threads: BTreeMap<u32, &str> =
        trace.lanes.iter().filter_map(|lane| Some((lane.kind.thread()?, lane.name.as_str()))).collect();
    for (thread, lane) in threads {
        let mut before: Option<Row> = None;
        let own: Vec<_> = trace.lost.iter().filter(|lost| lost.thread == thread).collect();
        let times = own.iter().flat_map(|lost| [lost.start_ns, lost.end_ns]).chain([trace.start_ns, trace.end_ns]);
        let times: BTreeSet<u64> = times.filter(|at| (trace.start_ns..=trace.end_ns).contains(at)).collect();
        for (&from, &to) in times.iter().zip(times.iter().skip(1)) {
            let covers = own.iter().filter(|lost| lost.start_ns <= from && to <= lost.end_ns);
            let Some(why) = covers.map(|lost| lost.why).min() else {
                rows.extend(before.take());
                continue;
            };
            match &mut before {
                Some(row) if row.1 == why.name() => row.4 = to,
                _ => {
                    let row = (format!("{lane}: lost time"), why.name().to_owned(), "lost".to_owned(), from, to);
                    rows.extend(before.replace(row));
                }
            }
        }
        rows.extend(before);
    }
    rows
}

/// What Perfetto and Firefox show.
fn with_losses(trace: &Trace) -> Vec<Row> {
    let mut rows = expected_slices(trace);
    rows.extend(expected_losses(trace));
    rows.sort();
    rows
}

/// The fields of a protocol buffer message: number, and a varint, eight bytes or bytes.
#[derive(Debug)]
enum Field<'a> {
    Number(u64),
    Eight([u8; 8]),
    Bytes(&'a [u8]),
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&first, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (eight, rest) = bytes.split_first_chunk().unwrap();
                bytes = rest;
                Field::Eight(*eight)
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (inner, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(inner)
            }
            other => panic!("wire type {other}"),
        };
        found.push((tag >> 3, field));
    }
    found
}

struct Message<'a>(Vec<(u64, Field<'a>)>);

impl<'a> Message<'a> {
    fn new(bytes: &'a [u8]) -> Message<'a> {
        Message(fields(bytes))
    }
    fn number(&self, field: u64) -> Option<u64> {
        self.0.iter().find_map(|(number, value)| match value {
            Field::Number(value) if *number == field => Some(*value),
            _ => None,
        })
    }
    fn all(&self, field: u64) -> impl Iterator<Item = Message<'a>> + '_ {
        self.bytes(field).map(Message::new)
    }
    fn one(&self, field: u64) -> Option<Message<'a>> {
        self.all(field).next()
    }
    fn bytes(&self, field: u64) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.0.iter().filter_map(move |(number, value)| match value {
            Field::Bytes(value) if *number == field => Some(*value),
            _ => None,
        })
    }
    fn text(&self, field: u64) -> Option<String> {
        self.bytes(field).next().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }
    fn eights(&self, field: u64) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().filter_map(move |(number, value)| match value {
            Field::Eight(value) if *number == field => Some(u64::from_le_bytes(*value)),
            _ => None,
        })
    }
}

/// What a Perfetto file holds, by the published field numbers and the rules of a track's begin and end events.
#[derive(Default)]
struct Perfetto {
    slices: Vec<Row>,
    /// From and to, as (name, start).
    flows: Vec<((String, u64), (String, u64))>,
    counters: BTreeMap<String, Vec<(u64, f64)>>,
    instants: usize,
    /// (time, thread, innermost function).
    samples: Vec<(u64, u64, String)>,
}

fn read_perfetto(bytes: &[u8]) -> Perfetto {
    let mut found = Perfetto::default();
    let mut tracks: HashMap<u64, String> = HashMap::new();
    let mut interned: HashMap<(u64, u64), String> = HashMap::new();
    let mut stacks: HashMap<u64, u64> = HashMap::new();
    let mut open: HashMap<u64, Vec<(String, String, u64)>> = HashMap::new();
    let mut started: HashMap<u64, (String, u64)> = HashMap::new();
    for packet in Message::new(bytes).all(1) {
        assert_eq!(packet.number(10), Some(1), "the packet's sequence");
        let at = packet.number(8).unwrap_or(0);
        if let Some(track) = packet.one(60) {
            let thread = track.one(4).and_then(|thread| thread.text(5));
            let process = track.one(3).and_then(|process| process.text(6));
            tracks.insert(track.number(1).unwrap(), track.text(2).or(thread).or(process).unwrap());
        }
        for data in packet.all(12) {
            for table in [1, 2, 3, 5, 29] {
                for entry in data.all(table) {
                    interned.insert((table, entry.number(1).unwrap()), entry.text(2).unwrap());
                }
            }
            for stack in data.all(7) {
                let mut frames = stack.0.iter().filter(|(number, _)| *number == 2);
                let Some((_, Field::Number(innermost))) = frames.next_back() else { continue };
                stacks.insert(stack.number(1).unwrap(), *innermost);
            }
        }
        if let Some(event) = packet.one(11) {
            let track = event.number(11).unwrap();
            let word = |table, field| event.number(field).map(|id| interned[&(table, id)].clone());
            match event.number(9).unwrap() {
                1 => {
                    let (name, category) = (word(2, 10).unwrap(), word(1, 3).unwrap());
                    started.extend(event.eights(47).map(|id| (id, (name.clone(), at))));
                    found.flows.extend(event.eights(48).map(|id| (started[&id].clone(), (name.clone(), at))));
                    open.entry(track).or_default().push((name, category, at));
                }
                2 => {
                    let (name, category, start) = open.get_mut(&track).unwrap().pop().unwrap();
                    found.slices.push((tracks[&track].clone(), name, category, start, at));
                }
                3 => found.instants += 1,
                4 => {
                    let value = f64::from_bits(event.eights(44).next().unwrap());
                    found.counters.entry(tracks[&track].clone()).or_default().push((at, value));
                }
                other => panic!("event type {other}"),
            }
        }
        if let Some(sample) = packet.one(66) {
            let stack = stacks[&sample.number(4).unwrap()];
            found.samples.push((at, sample.number(3).unwrap(), interned[&(5, stack)].clone()));
        }
    }
    assert!(open.values().all(Vec::is_empty), "every slice that begins ends");
    found.slices.sort();
    found
}

fn written(trace: &Trace, write: Write) -> Vec<u8> {
    let mut out = Vec::new();
    write(trace, &mut out).unwrap();
    out
}

fn json(trace: &Trace, write: Write) -> Value {
    serde_json::from_slice(&written(trace, write)).unwrap()
}

/// Nanoseconds of a JSON number of microseconds or milliseconds; exact for the small times of these tests.
fn ns(value: &Value, per: f64) -> u64 {
    (value.as_f64().unwrap() * per).round() as u64
}

fn chrome_slices(trace: &Trace, file: &Value) -> Vec<Row> {
    let events = file["traceEvents"].as_array().unwrap();
    let key = |event: &Value| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
    let named = events.iter().filter(|event| event["name"] == "thread_name");
    let names: HashMap<_, _> =
        named.map(|event| (key(event), event["args"]["name"].as_str().unwrap().to_owned())).collect();
    let row = |event: &Value| {
        let start = ns(&event["ts"], 1e3) + trace.start_ns;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let category = text(&event["args"]["category"]);
        (names[&key(event)].clone(), text(&event["name"]), category, start, start + ns(&event["dur"], 1e3))
    };
    let mut rows: Vec<Row> = events.iter().filter(|event| event["ph"] == "X").map(row).collect();
    rows.sort();
    rows
}

fn firefox_markers(trace: &Trace, file: &Value) -> Vec<(String, String, u64, u64)> {
    let mut rows = Vec::new();
    for thread in file["threads"].as_array().unwrap() {
        let markers = &thread["markers"];
        for index in 0..markers["length"].as_u64().unwrap() as usize {
            let name = markers["name"][index].as_u64().unwrap() as usize;
            let name = thread["stringArray"][name].as_str().unwrap().to_owned();
            let at = |key: &str| ns(&markers[key][index], 1e6) + trace.start_ns;
            let category = markers["data"][index]["category"].as_str().unwrap().to_owned();
            rows.push((name, category, at("startTime"), at("endTime")));
        }
    }
    rows.sort();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_slice_and_sample_of_a_random_trace_reads_back(trace in traces()) {
        let expected = expected_slices(&trace);
        let perfetto = read_perfetto(&written(&trace, write_perfetto));
        let all = with_losses(&trace);
        prop_assert_eq!(&perfetto.slices, &all);
        let innermost = |sample: &record::trace::Sample| {
            let frame = trace.samples.frames_of(sample.stack).next_back().unwrap();
            let inlined = if frame.inlined { " [inlined]" } else { "" };
            let name = format!("{}{inlined}", trace.names.text(frame.function));
            (sample.at_ns, u64::from(sample.thread), name)
        };
        prop_assert_eq!(perfetto.samples, trace.samples.samples.iter().map(innermost).collect::<Vec<_>>());
        prop_assert_eq!(&chrome_slices(&trace, &json(&trace, write_chrome)), &expected);
        let mut markers: Vec<_> = all.into_iter().map(|(_, name, category, from, to)| (name, category, from, to)).collect();
        markers.sort();
        prop_assert_eq!(firefox_markers(&trace, &json(&trace, write_firefox)), markers);
    }
}

#[test]
fn perfetto_keeps_flows_counters_instants_and_times_of_a_long_uptime() {
    let day_ns = 86_400_000_000_000;
    let trace = moved(everything(), 7, day_ns);
    let found = read_perfetto(&written(&trace, write_perfetto));
    assert_eq!(found.slices, with_losses(&trace));
    let lost: Vec<_> = expected_losses(&trace).into_iter().map(|row| (row.0, row.1, row.4 - row.3)).collect();
    let row = |lane: &str, why: &str, ns: u64| (format!("{lane}: lost time"), why.to_owned(), 7 * ns);
    let wanted = [
        row("worker 0", "page fault", 100),
        row("worker 1", "page fault", 30),
        row("worker 1", "descheduled", 30),
        row("worker 1", "page fault", 120),
        row("worker 1", "steal", 100),
    ];
    assert_eq!(lost, wanted);
    assert_eq!(found.flows.len(), 3);
    assert_eq!(found.flows[1], (("dispatch".into(), day_ns + 7 * 1010), ("matvec".into(), day_ns + 7 * 1060)));
    assert_eq!(found.instants, 1);
    let expected: BTreeMap<_, _> = trace.counters.iter().map(|c| (c.name.clone(), c.points.clone())).collect();
    assert_eq!(found.counters, expected);
}

#[test]
fn chrome_speaks_kineto() {
    let trace = everything();
    let file = json(&trace, write_chrome);
    assert_eq!(file["distributedInfo"]["rank"], 0);
    assert_eq!(file["deviceProperties"][1]["name"], "CPU workers");
    assert_eq!(file["otherData"]["dropped_slices"], 2);
    let events = file["traceEvents"].as_array().unwrap();
    let of = |category: Category| {
        let category = category.name();
        events.iter().find(|event| event["ph"] == "X" && event["args"]["category"] == category).unwrap()
    };
    // Workers are streams of the device after the last real one (number 0 here).
    let kernel = of(Category::Operator);
    assert_eq!(
        (&kernel["cat"], &kernel["args"]["device"], &kernel["args"]["stream"]),
        (&"kernel".into(), &1.into(), &0.into())
    );
    let linked: Vec<_> = events.iter().filter(|event| event["args"]["correlation"] == 2).collect();
    assert_eq!(
        linked.iter().map(|event| event["cat"].as_str().unwrap()).collect::<Vec<_>>(),
        ["cuda_runtime", "kernel"]
    );
    assert_eq!(of(Category::Barrier)["args"].get("stream"), None, "waiting is not being busy");
    assert_eq!(of(Category::Request)["cat"], "user_annotation");
    assert_eq!(of(Category::Sampling)["cat"], "cpu_op");
    let instant = events.iter().find(|event| event["ph"] == "i").unwrap();
    assert_eq!(instant["args"]["why"], "a \"quoted\"\n\u{1}; name \u{e9}");
    assert_eq!((instant["args"]["bytes"].as_i64(), instant["args"]["share"].as_f64()), (Some(-5), Some(0.25)));
    let flows = events.iter().filter(|event| event["cat"] == "ac2g").count();
    assert_eq!(flows, 6);
    let counters: Vec<_> = events.iter().filter(|event| event["ph"] == "C").map(|event| &event["args"]).collect();
    assert_eq!(counters[3]["tok/s"], 61.25);
}

#[test]
fn chrome_refuses_a_window_that_no_viewer_opens_before_it_writes() {
    let mut trace = request(1, |_, _, _| 0);
    trace.counters[0].points = vec![(0, 1.0); MAX_CHROME_EVENTS];
    let mut out = Vec::new();
    let error = write_chrome(&trace, &mut out).unwrap_err();
    assert!(matches!(error, WriteError::TooLarge { limit: MAX_CHROME_EVENTS, .. }), "{error}");
    assert!(out.is_empty());
}

#[test]
fn folded_stacks_sum_weights_and_mark_inlining() {
    let trace = moved(everything(), 1000, 0);
    let text = String::from_utf8(written(&trace, write_folded)).unwrap();
    // Samples every 250 us: 11 of them, turn by turn of the helper's and the main thread's, on three stacks in turn.
    let expected = "\
main;serve;choose 500
main;serve;dot_[i] 500
main;serve;exc_page_fault 500
worker 1;serve;dot_[i] 250
worker 1;serve;exc_page_fault 500
worker 1;serve;choose 500
";
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&text), sorted(expected));
    let threads: Vec<_> = text.lines().map(|line| line.split(';').next().unwrap()).collect();
    assert!(threads.is_sorted(), "by thread: {threads:?}");
}

#[test]
fn folded_names_hold_no_separator() {
    let mut trace = everything();
    let name = trace.names.intern("a;b\nc");
    let frame = trace.samples.frame(record::trace::Frame { function: name, file: None, line: None, inlined: false });
    let stack = trace.samples.stack(&[frame]);
    trace.samples.samples = vec![record::trace::Sample { at_ns: 5, thread: 7, stack, weight_ns: 1499 }];
    assert_eq!(written(&trace, write_folded), b"thread 7;a:b c 1\n");
}

#[test]
fn speedscope_has_a_profile_per_thread_whose_weights_sum() {
    let trace = everything();
    let file = json(&trace, write_speedscope);
    let frames = file["shared"]["frames"].as_array().unwrap();
    let profiles = file["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 2);
    let mut found = Vec::new();
    for (profile, thread) in profiles.iter().zip([common::MAIN, common::HELPER]) {
        let weights: u64 = profile["weights"].as_array().unwrap().iter().map(|weight| weight.as_u64().unwrap()).sum();
        assert_eq!(profile["endValue"].as_u64().unwrap(), weights);
        let samples = profile["samples"].as_array().unwrap();
        assert_eq!(samples.len(), profile["weights"].as_array().unwrap().len());
        for sample in samples {
            let names =
                sample.as_array().unwrap().iter().map(|frame| &frames[frame.as_u64().unwrap() as usize]["name"]);
            found.push((thread, names.map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()));
        }
    }
    let mut expected: Vec<_> = trace
        .samples
        .samples
        .iter()
        .map(|sample| {
            let names = trace.samples.frames_of(sample.stack).map(|frame| {
                let inlined = if frame.inlined { " [inlined]" } else { "" };
                format!("{}{inlined}", trace.names.text(frame.function))
            });
            (sample.thread, names.collect::<Vec<_>>())
        })
        .collect();
    expected.sort_by_key(|(thread, _)| *thread);
    assert_eq!(found, expected);
    assert_eq!((&frames[0]["file"], &frames[0]["line"]), (&"src/serve.rs".into(), &3.into()));
    assert_eq!(frames[1].get("file"), None, "what is not known is left out");
}

#[test]
fn firefox_keeps_lines_inlining_weights_and_threads() {
    let trace = everything();
    let file = json(&trace, write_firefox);
    let threads = file["threads"].as_array().unwrap();
    let names: Vec<_> = threads.iter().map(|thread| thread["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["main", "worker 1", "stream 7"]);
    let thread = &threads[0];
    let length = |table: &str| thread[table]["length"].as_u64().unwrap() as usize;
    for table in ["frameTable", "funcTable", "stackTable", "samples", "markers", "resourceTable", "nativeSymbols"] {
        for (column, values) in thread[table].as_object().unwrap() {
            if let Some(values) = values.as_array() {
                assert_eq!(values.len(), length(table), "{table}.{column}");
            }
        }
    }
    let at = |table: &str, column: &str, index: &Value| &thread[table][column][index.as_u64().unwrap() as usize];
    let (mut stack, mut found) = (&thread["samples"]["stack"][1], Vec::new());
    while !stack.is_null() {
        let frame = at("stackTable", "frame", stack);
        let function = at("frameTable", "func", frame);
        let name = &thread["stringArray"][at("funcTable", "name", function).as_u64().unwrap() as usize];
        let (line, inlined) = (at("frameTable", "line", frame), at("frameTable", "inlineDepth", frame));
        found.push((name.as_str().unwrap(), line.as_u64(), inlined.as_u64().unwrap()));
        stack = at("stackTable", "prefix", stack);
    }
    // The main thread's second sample is in the function that is inlined.
    assert_eq!(found, [("dot", None, 1), ("serve", Some(3), 0)]);
    assert_eq!(ns(&thread["samples"]["weight"][0], 1e6), 250);
}

#[test]
fn a_broken_trace_is_not_written_at_all() {
    let mut trace = everything();
    trace.lanes[1].slices.swap(0, 1);
    let writers: [Write; 5] = [write_perfetto, write_chrome, write_firefox, write_folded, write_speedscope];
    for write in writers {
        let mut out = Vec::new();
        assert!(matches!(write(&trace, &mut out), Err(WriteError::Trace(_))));
        assert!(out.is_empty());
    }
}
