//! A pass that an H200 ran under Nsight Compute, as files (`fixtures/capture-h200`): `reduce` and `lines` read it on a machine without
//! a GPU, and say what is wrong with it where something is. Not here: what the numbers come to (`record`'s tests of the pages).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use record::capture::TracePackage;
use record::capture::lines::{LinesRecord, Verification};
use record::capture::manifest::Manifest;
use record::capture::reduced::device::DeviceKernel;
use record::{CaptureMetadata, CaptureRecord, Known};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use support::{refusal, root, run};

const FILES: [&str; 5] = ["calls.json", "profile.json", "ncu-raw.csv.gz", "ncu-sass.csv.gz", "ncu-source.csv.gz"];

/// What `smsp__pcsamp_sample_count` of the four launches sums to.
const SAMPLES: u64 = 2 + 1 + 2 + 86;

/// A trace directory with its manifest and metadata, of which `change` may have changed a file.
struct Trace {
    folder: tempfile::TempDir,
}

impl Trace {
    fn new(change: impl FnOnce(&Path)) -> Trace {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (root().join("crates/hourglass/tests/fixtures/capture-h200"), folder.path().join("trace"));
        fs::create_dir(&to).unwrap();
        for name in FILES {
            fs::copy(from.join(name), to.join(name)).unwrap();
        }
        // As if it had been captured by a program that was compiled from this checkout.
        let listed = |name: &str| {
            let path = format!("crates/ops-cuda/kernels/{name}");
            let digest: String = Sha256::digest(fs::read(root().join(&path)).unwrap())
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("{digest}  {path}\n")
        };
        let sources: String = ["embed.cu", "place.cu", "prelude.cuh", "rope_table.cu"].map(listed).concat();
        fs::write(to.join("sources.sha256"), sources).unwrap();
        change(&to);
        let (listed, contents) = Manifest::of_directory(&to).unwrap();
        fs::write(folder.path().join("trace.manifest.sha256"), listed.text()).unwrap();
        let mut metadata: CaptureMetadata =
            record::read("capture.json", &fs::read(from.join("capture.json")).unwrap()).unwrap();
        metadata.trace = TracePackage {
            basename: "trace".to_owned(),
            files: contents.files,
            bytes: contents.bytes,
            manifest_sha256: listed.sha256(),
        };
        // Of the whole pass; the pages were cut to four launches.
        metadata.sampling.samples = SAMPLES;
        metadata.close();
        fs::write(folder.path().join("trace.capture.json"), serde_json::to_vec(&metadata).unwrap()).unwrap();
        Trace { folder }
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn reduce_words(&self) -> Vec<String> {
        let pairs = [
            ("--capture-metadata", "trace.capture.json"),
            ("--manifest", "trace.manifest.sha256"),
            ("--trace", "trace"),
            ("--output", "reduced.json"),
        ];
        let words = pairs.into_iter().flat_map(|(flag, name)| [flag.to_owned(), self.at(name)]);
        std::iter::once("reduce".to_owned()).chain(words).collect()
    }

    fn reduced(&self) -> CaptureRecord {
        let words = self.reduce_words();
        let output = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        record::read("reduced.json", &fs::read(self.at("reduced.json")).unwrap()).unwrap()
    }

    fn lines_words(&self) -> Vec<String> {
        ["lines", &self.at("trace"), "--out", &self.at("lines")].map(str::to_owned).to_vec()
    }

    fn refused(&self) -> String {
        let words = self.reduce_words();
        refusal(&words.iter().map(String::as_str).collect::<Vec<_>>(), 2)
    }
}

/// Changes the text of a packed page.
fn edit(folder: &Path, name: &str, change: impl FnOnce(String) -> String) {
    let path: PathBuf = folder.join(name);
    let mut text = String::new();
    GzDecoder::new(fs::File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(change(text).as_bytes()).unwrap();
    fs::write(&path, packed.finish().unwrap()).unwrap();
}

#[test]
fn a_pass_of_an_h200_is_reduced_and_its_checks_hold() {
    let record = Trace::new(|_| {}).reduced();
    assert!(!record.void, "{:?}", record.checks.iter().filter(|check| !check.passed).collect::<Vec<_>>());
    let device = record.device.known().unwrap();
    assert_eq!((device.launches_expected, device.launches), (4, 4));
    for kernel in &device.kernels {
        assert_eq!(kernel.samples_counted, Known::Is(kernel.samples), "{}", kernel.kernel);
        assert!(kernel.time.value().unwrap() > 1.0 && kernel.registers.known().is_some_and(|number| *number >= 16));
    }
    let own: Vec<&str> = device
        .kernels
        .iter()
        .filter(|kernel| kernel.operator == DeviceKernel::OWN)
        .map(|kernel| kernel.kernel.as_str())
        .collect();
    assert_eq!(own.len(), 2, "{own:?}");
    // The clocked times of the calls are ncu's, and what the device adds is dispatch.
    let tree = record.kernels.known().unwrap();
    let time = |operator: &str| {
        let of_tree = tree.rows.iter().find(|row| row.operator == operator).unwrap().per_pass.value().unwrap();
        let of_device = device.kernels.iter().find(|kernel| kernel.operator == operator).unwrap().time.value().unwrap();
        assert!((of_tree - of_device).abs() < 1e-9, "{operator}: {of_tree} and {of_device}");
        of_tree
    };
    let calls = time("embed") + time("rope_table");
    let all: f64 = device.kernels.iter().filter_map(|kernel| kernel.time.value()).sum();
    assert!((tree.dispatch.clocked_share.value().unwrap() - (1.0 - calls / all)).abs() < 1e-9);
    // As printed: more hits than accesses are no share.
    let embed = device.kernels.iter().find(|kernel| kernel.operator == "embed").unwrap();
    let hits = &embed.l2_hit_share.missing().unwrap().unavailable;
    assert!(hits.contains("163.42 % of lts__t_sector_hit_rate.pct"), "{hits}");
    assert_eq!(device.dropped, Known::Is(0));
    assert_eq!(device.kernels.iter().map(|kernel| kernel.samples).sum::<u64>(), SAMPLES);
    let limiter = &tree.rows[0].limiter;
    assert!(limiter.parts.iter().all(|part| part.from.contains("profiler")), "{limiter:?}");
    assert!(record.instructions.missing().unwrap().unavailable.contains("GPU"));
}

#[test]
fn its_lines_are_the_repositorys_and_verified() {
    let trace = Trace::new(|_| {});
    let sources = root();
    let words = ["lines", &trace.at("trace"), "--out", &trace.at("lines"), "--sources", sources.to_str().unwrap()];
    let output = run(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let record: LinesRecord =
        record::read("lines.json", &fs::read(Path::new(&trace.at("lines")).join("lines.json")).unwrap()).unwrap();
    assert!(!record.void && record.samples > 0);
    for file in &record.files {
        assert!(file.file.starts_with("crates/ops-cuda/kernels/"), "{file:?}");
        assert_eq!(file.verification, Verification::Verified, "{file:?}");
    }
    let rows = || record.places.iter().flat_map(|place| &place.rows);
    assert!(rows().filter(|row| row.self_innermost.samples > 0).all(|row| row.in_repository && row.line > 0));
    // The same trace makes the same files.
    let again =
        run(&["lines", &trace.at("trace"), "--out", &trace.at("again"), "--sources", sources.to_str().unwrap()]);
    assert!(again.status.success());
    for file in ["lines.json", "lines.csv", "folded.txt", "speedscope.json", "callgrind.out"] {
        let read = |folder: &str| fs::read(Path::new(&trace.at(folder)).join(file)).unwrap();
        assert_eq!(read("lines"), read("again"), "{file}");
    }
    // Helpers of the prelude are the innermost lines of what they are inlined into.
    assert!(rows().any(|row| row.file.ends_with("prelude.cuh") && row.self_innermost.samples > 0));
    assert!(fs::metadata(Path::new(&trace.at("lines")).join("profile.pb.gz")).unwrap().len() > 100);
}

#[test]
fn a_trace_that_was_not_profiled_has_its_reason_everywhere() {
    let why = "ncu could not load the driver's profiler";
    let trace = Trace::new(|folder| {
        let path = folder.join("profile.json");
        let mut profile: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        profile["ncu"] = serde_json::json!({"unavailable": why, "how_to_get": "capture elsewhere"});
        fs::write(&path, profile.to_string()).unwrap();
        FILES[2..].iter().for_each(|page| fs::remove_file(folder.join(page)).unwrap());
    });
    let record = trace.reduced();
    let missing = [
        record.kernels.missing().unwrap(),
        record.lines.missing().unwrap(),
        record.instructions.missing().unwrap(),
        record.device.missing().unwrap(),
    ];
    assert!(missing.iter().all(|missing| missing.unavailable == why), "{missing:?}");
    let message = refusal(&["lines", &trace.at("trace"), "--out", &trace.at("lines")], 2);
    assert!(message.contains(why), "{message}");
}

#[test]
fn pages_that_do_not_fit_each_other_are_refused() {
    let renamed = Trace::new(|folder| edit(folder, FILES[2], |page| page.replace("embed_rows", "another_kernel")));
    assert!(renamed.refused().contains("'another_kernel', expected embed_rows"), "{}", renamed.refused());
    let cut = Trace::new(|folder| edit(folder, FILES[3], |page| page[..page.len() / 2].to_owned()));
    assert!(cut.refused().contains("page of instructions"), "{}", cut.refused());
    let broken = Trace::new(|folder| {
        let bytes = fs::read(folder.join(FILES[4])).unwrap();
        fs::write(folder.join(FILES[4]), &bytes[..bytes.len() / 2]).unwrap();
    });
    assert!(broken.refused().contains("page of source lines"), "{}", broken.refused());
    let outside = Trace::new(|folder| {
        let path = folder.join("profile.json");
        let text = fs::read_to_string(&path).unwrap().replace("\"stands_for\": 1", "\"stands_for\": 1, \"more\": 2");
        fs::write(&path, text).unwrap();
    });
    assert!(outside.refused().contains("profile.json"), "{}", outside.refused());
    let empty = Trace::new(|folder| edit(folder, FILES[4], |_| String::new()));
    assert!(empty.refused().contains("has no instruction under any line"), "{}", empty.refused());
    let commas = Trace::new(|folder| edit(folder, FILES[2], |page| page.replace("\"0.97\"", "\"0,97\"")));
    assert!(commas.refused().contains("'0,97' is no number of the form"), "{}", commas.refused());
}

/// Changes the list of launches.
fn relisted(change: impl FnOnce(&mut serde_json::Value)) -> Trace {
    Trace::new(|folder| {
        let path = folder.join("profile.json");
        let mut profile: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut profile["launches"]);
        fs::write(&path, profile.to_string()).unwrap();
    })
}

#[test]
fn launches_that_are_credited_to_other_calls_and_names_that_are_commands_are_refused() {
    let swapped = relisted(|launches| {
        (launches[1]["calls"], launches[2]["calls"]) = (serde_json::json!([1]), serde_json::json!([0]));
    });
    assert!(swapped.refused().contains("serves call 0 behind one of call 1"), "{}", swapped.refused());
    let words = swapped.lines_words();
    let lines = refusal(&words.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    assert!(lines.contains("serves call 0 behind one of call 1"), "{lines}");
    let coloured = relisted(|launches| launches[1]["kernel"] = serde_json::json!("\u{1b}[31mred"));
    let message = coloured.refused();
    assert!(message.contains("'\\u{1b}[31mred' holds a control character") && !message.contains('\u{1b}'), "{message}");
    let hidden =
        Trace::new(|folder| edit(folder, FILES[4], |page| page.replace("rope_table.cu", "\u{1b}]0;x\u{7}rope.cu")));
    assert!(hidden.refused().contains("page of source lines, line ") && !hidden.refused().contains('\u{1b}'));
    let forged = Trace::new(|folder| {
        let path = folder.join("calls.json");
        let text = fs::read_to_string(&path).unwrap().replace("\"rope_table\"", "\"rope\\n100 % memory\"");
        fs::write(&path, text).unwrap();
    });
    assert!(forged.refused().contains("calls.json: the name 'rope\\n100 % memory'"), "{}", forged.refused());
}

/// One verdict on what the profiler lost, by the checks' own words; and nothing that looks like lines.
#[test]
fn what_voids_the_reduced_capture_voids_its_lines() {
    let lossy = Trace::new(|folder| {
        edit(folder, FILES[2], |page| {
            let mut rows = page.lines().map(|row| row.split("\",\"").map(str::to_owned).collect::<Vec<_>>());
            let heading = rows.next().unwrap();
            let at = heading.iter().position(|name| name == "smsp__pcsamp_dropped_bytes").unwrap();
            let mut rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
            assert_eq!(rows[2][at], "0");
            rows[2][at] = "4,096".to_owned();
            rows.iter().map(|row| row.join("\",\"") + "\n").collect()
        })
    });
    let words = lossy.reduce_words();
    let output = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(1));
    let reduced = String::from_utf8_lossy(&output.stderr);
    let check = "bytes of samples that the profiler dropped: expected 0, found 4096";
    assert!(reduced.contains("the record is void") && reduced.contains(check), "{reduced}");
    let words = lossy.lines_words();
    let lines = refusal(&words.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    assert!(lines.contains(check), "{lines}");
    assert!(!Path::new(&lossy.at("lines")).exists());
}

#[test]
fn metadata_of_other_samples_and_flags_of_the_cpu_are_refused() {
    let trace = Trace::new(|_| {});
    for (flag, value) in [("--binary", "/bin/true"), ("--profile-jsonl", "counters.json")] {
        let mut words = trace.reduce_words();
        words.extend([flag.to_owned(), value.to_owned()]);
        let message = refusal(&words.iter().map(String::as_str).collect::<Vec<_>>(), 2);
        assert!(message.contains(flag) && message.contains("this trace is a GPU's"), "{message}");
    }
    let mut words = trace.lines_words();
    words.extend(["--binary".to_owned(), "/bin/true".to_owned()]);
    let message = refusal(&words.iter().map(String::as_str).collect::<Vec<_>>(), 2);
    assert!(message.contains("--binary: is of passes that ran on the CPU"), "{message}");
    let path = trace.at("trace.capture.json");
    let mut metadata: CaptureMetadata = record::read("capture.json", &fs::read(&path).unwrap()).unwrap();
    metadata.sampling.samples += 1;
    metadata.close();
    fs::write(&path, serde_json::to_vec(&metadata).unwrap()).unwrap();
    assert!(trace.refused().contains("holds 91 samples, its metadata say 92"), "{}", trace.refused());
    for flag in ["--warmup", "--frequency", "--overhead-rounds", "--steps"] {
        let words = ["capture", "--device", "cuda", "--trace", &trace.at("new"), flag, "7"];
        let message = refusal(&words, 2);
        assert!(message.contains(&format!("{flag} beside --device cuda:0")), "{message}");
    }
}

/// A part above its whole that somebody wrote into the record.
#[test]
fn a_record_of_impossible_shares_is_not_verified() {
    let trace = Trace::new(|_| {});
    let mut record = serde_json::to_value(trace.reduced()).unwrap();
    let show = |record: &serde_json::Value| {
        let file = trace.at("edited.json");
        fs::write(&file, record.to_string()).unwrap();
        let output = run(&["records", "show", &file]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (whole, text) = show(&record);
    assert!(whole && !text.contains("NOT VERIFIED") && text.contains("The GPU's time"), "{text}");
    record["device"]["kernels"][0]["occupancy"]["value"] = 3.5.into();
    let (whole, text) = show(&record);
    assert!(!whole && text.contains("NOT VERIFIED") && text.contains("occupancy is a part of a whole"), "{text}");
}
