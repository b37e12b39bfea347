//! Exports of source lines as the tools read them that they are written for: callgrind_annotate, the protobuf library,
//! speedscope's schema. What is not here says how to get it, and fails where CI is true.

#![allow(clippy::unwrap_used, reason = "tests")]

mod capture_fixture;

use capture_fixture::lines_record;
use record::capture::export::{as_trace, pprof, write_callgrind, write_csv};
use record::trace::{write_folded, write_speedscope};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn absent(what: &str, how: &str) {
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{what} is not here: {how}");
    println!("not checked: {what} is not here; {how}");
}

/// What `peers/viewers/SCRIPT FILE` prints; None if the tools are not here.
fn read_by(script: &str, name: &str, contents: &[u8]) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".venv-viewers/bin/python");
    if !python.exists() {
        absent("a reader", "run peers/viewers/setup.sh, which makes .venv-viewers/");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, contents).unwrap();
    let output = Command::new(python).arg(root.join("peers/viewers").join(script)).arg(&path).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Compressed by the tool whose format it is; None without it.
fn gzipped(bytes: &[u8]) -> Option<Vec<u8>> {
    let started = Command::new("gzip").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut gzip) = started else {
        absent("gzip", "install it");
        return None;
    };
    gzip.stdin.take().unwrap().write_all(bytes).unwrap();
    Some(gzip.wait_with_output().unwrap().stdout)
}

#[test]
fn the_protobuf_library_finds_every_stack_with_its_inline_chain_as_one_location() {
    let record = lines_record();
    let Some(file) = gzipped(&pprof(&record, 77)) else { return };
    let Some(text) = read_by("pprof.py", "profile.pb.gz", &file) else { return };
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["first"], "", "the table of strings begins with the empty one");
    assert_eq!(found["kinds"], json!([["samples", "count"], ["cpu", "nanoseconds"]]));
    assert_eq!(found["duration"], record.stretch.wall_ns);
    let samples = found["samples"].as_array().unwrap();
    let sum = |index: usize| samples.iter().map(|s| s["value"][index].as_u64().unwrap()).sum::<u64>();
    let weight: u64 = record.places.iter().map(|place| place.cost.weight_ns).sum();
    assert_eq!((sum(0), sum(1)), (record.samples, weight), "each sample once");
    let inlined = json!([[["_mm512_fmadd_ps", 100], ["kernel", 7]], [["walk", 20]]]);
    let of = samples.iter().find(|s| s["stack"] == inlined && s["place"] == json!(["linear: q4/avx512"])).unwrap();
    let ours = record.stacks.iter().find(|stack| stack.frames.len() == 3).unwrap();
    assert_eq!(of["value"], json!([ours.samples, ours.weight_ns]));
}

#[test]
fn callgrind_annotate_adds_up_to_the_same_total_and_lines() {
    let record = lines_record();
    let mut file = Vec::new();
    write_callgrind(&record, &mut file).unwrap();
    // Our own reader of the format, which the manual's example tests.
    let again = record::capture::callgrind::parse("out", &file).unwrap();
    assert_eq!((again.event.as_str(), again.total), ("Samples", record.samples));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("callgrind.out");
    std::fs::write(&path, &file).unwrap();
    let run = Command::new("callgrind_annotate").args(["--threshold=100", "--auto=no"]).arg(&path).output();
    let Ok(output) = run else {
        absent("callgrind_annotate", "it comes with valgrind");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let number = |line: &str| -> u64 {
        let first = line.split_whitespace().next().unwrap_or_default();
        first.replace(',', "").parse().unwrap_or(0)
    };
    let total = text.lines().find(|line| line.contains("PROGRAM TOTALS")).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(number(total), record.samples, "{text}");
    let own: u64 = text
        .lines()
        // What was inlined from another file is in a row of that file, under the function that it was inlined into.
        .filter(|line| line.ends_with(".rs:kernel"))
        .map(number)
        .sum();
    assert_eq!(own, record.samples, "every sample is some compiled function's own:\n{text}");
}

#[test]
fn speedscope_and_folded_stacks_begin_with_the_kernel() {
    let record = lines_record();
    let trace = as_trace(&record);
    let mut folded = Vec::new();
    write_folded(&trace, &mut folded).unwrap();
    let folded = String::from_utf8(folded).unwrap();
    assert!(folded.contains("linear: q4/avx512;walk;kernel;_mm512_fmadd_ps_[i] "), "{folded}");
    assert_eq!(folded.lines().count(), {
        let mut functions: Vec<_> = record
            .stacks
            .iter()
            .map(|stack| {
                let names = stack.frames.iter().map(|id| record.frames[*id as usize].function.clone());
                (stack.place.clone(), names.collect::<Vec<_>>(), stack.frames.clone())
            })
            .collect();
        functions.sort();
        functions.dedup();
        functions.len()
    });
    let mut speedscope = Vec::new();
    write_speedscope(&trace, &mut speedscope).unwrap();
    let value: Value = serde_json::from_slice(&speedscope).unwrap();
    let weights = value["profiles"][0]["weights"].as_array().unwrap();
    let weight: u64 = record.places.iter().map(|place| place.cost.weight_ns).sum();
    assert_eq!(weights.iter().map(|weight| weight.as_u64().unwrap()).sum::<u64>(), weight);
    if let Some(text) = read_by("speedscope.py", "x.json", &speedscope) {
        // What speedscope's own importer makes of it: time per stack, callees included.
        let read: Value = serde_json::from_str(&text).unwrap();
        let profile = &read["profiles"][0];
        assert_eq!((profile["unit"].as_str(), profile["total"].as_u64()), (Some("nanoseconds"), Some(weight)));
        let kernel = profile["stacks"]["linear: q4/avx512"].as_u64();
        let whole = record.places.iter().find(|place| place.place.to_string() == "linear: q4/avx512").unwrap();
        assert_eq!(kernel, Some(whole.cost.weight_ns));
    }
}

#[test]
fn csv_has_one_row_per_line_and_columns_that_cannot_be_confused() {
    let mut record = lines_record();
    record.places[0].rows[0].functions = vec!["a, \"b\"".into(), "c".into()];
    let mut out = Vec::new();
    write_csv(&record, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let rows: Vec<&str> = text.split_terminator("\r\n").collect();
    let names: Vec<&str> = rows[0].split(',').collect();
    assert_eq!(names.len(), 25);
    for name in ["self_innermost_samples", "self_in_repository_share", "inclusive_not_summable_ns", "verified"] {
        assert!(names.contains(&name), "{name}");
    }
    assert_eq!(rows.len() - 1, record.places.iter().map(|place| place.rows.len()).sum::<usize>());
    assert!(text.contains("\"a, \"\"b\"\" | c\""), "{text}");
    let place = record.places[0].place.to_string();
    let column = names.iter().position(|name| *name == "self_in_repository_samples").unwrap();
    let operator = place.split(':').next().unwrap();
    let sum: u64 = rows[2..]
        .iter()
        .map(|row| row.split(',').collect::<Vec<_>>())
        .filter(|fields| fields[1] == operator)
        .map(|fields| fields[column].parse::<u64>().unwrap())
        .sum();
    assert_eq!(sum + record.places[0].rows[0].self_in_repository.samples, record.places[0].cost.samples);
    // No form holds source text: what is in a record is names and numbers.
    assert!(!text.contains("fn "));
}
