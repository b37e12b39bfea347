//! Samples attributed by hand-made spans, what follows from them, and how other tools' readers see the exports.
//! Not here: resolving real addresses, which the tests of `probe` do.

#![allow(clippy::unwrap_used, reason = "tests")]

mod capture_fixture;

use capture_fixture::{ceilings_like, metadata, resolution, trace};
use record::capture::line_table::{LineTable, OUTSIDE};
use record::capture::load::{LoadError, RawTrace};
use record::capture::raw::RawSample;
use record::capture::reduced::kernels::{Bound, KernelTree, Sure};
use record::capture::{Hints, Place, Roofs, kernel_tree, placed};
use record::{CaptureMetadata, InstructionPath, Known, read};

fn kernel(operator: &str, kernel: &str) -> Place {
    Place::Kernel { operator: operator.into(), kernel: kernel.into() }
}

fn tree(trace: &RawTrace) -> KernelTree {
    let roofs = Roofs { ceilings: None, threads: 2, footprint: 0 };
    kernel_tree(trace, &placed(trace), roofs, &Hints::default()).known().unwrap().clone()
}

#[test]
fn every_sample_is_placed_once_by_its_thread_and_time() {
    let trace = trace();
    let placed = placed(&trace);
    assert_eq!(placed.places[placed.places.len() - 2..], [Place::BarrierWait, Place::Dispatch]);
    let of = |at_ns: u64, thread: u32| {
        let index = trace.samples.iter().position(|s| (s.at_ns, s.thread) == (at_ns, thread)).unwrap();
        placed.samples.iter().find(|sample| sample.sample == index).map(|sample| placed.places[sample.place].clone())
    };
    let linear = || Some(kernel("linear", "q4/avx512"));
    // Worker 0 in the first pass: arrives at call 0 at 1000, computes 1000 to 1400; call 1: 1400, waits until 1600, to 1700.
    assert_eq!(of(1000, 10), linear(), "the first instant of a call is the call's");
    assert_eq!(of(1399, 10), linear());
    assert_eq!(of(1400, 10), Some(Place::BarrierWait), "its end is not");
    assert_eq!(of(1600, 10), Some(kernel("norm", "plain/avx2")));
    assert_eq!(of(1750, 10), Some(Place::Dispatch), "after the last call, before the pass ends");
    assert_eq!(of(1550, 11), linear(), "worker 1 computed until 1600");
    assert_eq!(of(1800, 10), None, "the pass ends at 1800");
    assert_eq!(of(999, 10), None);
    assert_eq!(of(1100, 99), None, "no worker");
    assert_eq!((placed.uncounted.outside_passes, placed.uncounted.other_threads), (2, 1));
    assert_eq!(placed.samples.len() + 3, trace.samples.len(), "each once or not at all");
}

#[test]
fn kernels_come_to_what_the_spans_and_samples_say() {
    let trace = trace();
    let tree = tree(&trace);
    assert_eq!(tree.rows.iter().map(|row| row.kernel.as_str()).collect::<Vec<_>>(), ["q4/avx512", "plain/avx2"]);
    let [linear, norm] = &tree.rows[..] else { panic!("two kernels") };
    assert_eq!((linear.calls, linear.dispatches, norm.calls, norm.dispatches), (1, 2, 1, 2));
    // The slower worker took 600 ns, the mean of both is 500.
    assert!((linear.per_pass.value().unwrap() - 0.6).abs() < 1e-12);
    assert!((linear.imbalance.value().unwrap() - (1.0 - 500.0 / 600.0)).abs() < 1e-12);
    // 1200 bytes in 600 ns; 6000 operations.
    assert!((linear.bandwidth.value().unwrap() - 2.0).abs() < 1e-12);
    assert!((linear.arithmetic_rate.value().unwrap() - 10.0).abs() < 1e-12);
    // Of two workers x 800 ns x two passes: 400 + 600 in linear, 200 waited by worker 0.
    assert!((linear.clocked_share.value().unwrap() - 2000.0 / 3200.0).abs() < 1e-12);
    assert!((tree.barrier_wait.clocked_share.value().unwrap() - 400.0 / 3200.0).abs() < 1e-12);
    assert!((tree.dispatch.clocked_share.value().unwrap() - 400.0 / 3200.0).abs() < 1e-12);
    let samples: u64 = tree.places().iter().map(|(_, cost)| cost.samples).sum();
    assert_eq!(samples, tree.samples);
    // No ceilings: nothing is judged, and it says why.
    assert_eq!((linear.limiter.verdict.known(), linear.limiter.sure), (None, Sure::None));
    assert!(linear.limiter.how.contains("no ceilings"), "{}", linear.limiter.how);
    assert!(linear.bandwidth_fraction.known().is_none());
}

#[test]
fn limiters_follow_from_bytes_flops_times_and_ceilings() {
    let judge = |gigabytes: f64, gigaflops: f64| {
        let (trace, ceilings) = (trace(), ceilings_like(gigabytes, gigaflops));
        let mut hints = Hints::default();
        hints.paths.insert(("linear".into(), "q4/avx512".into()), InstructionPath::Fp32Avx512);
        let roofs = Roofs { ceilings: Some(&ceilings), threads: 2, footprint: 0 };
        let tree = kernel_tree(&trace, &placed(&trace), roofs, &hints).known().unwrap().clone();
        let row = tree.rows[0].clone();
        (row.limiter.verdict.known().copied(), row.limiter.sure, row.bandwidth_fraction.value(), row)
    };
    // 2 GB/s of 2.2 are reached.
    let (verdict, sure, fraction, _) = judge(2.2, 1000.0);
    assert_eq!((verdict, sure), (Some(Bound::Memory), Sure::Strong));
    assert!((fraction.unwrap() - 2.0 / 2.2).abs() < 1e-9);
    // 10 GFLOP/s of 11.
    let (verdict, sure, ..) = judge(200.0, 11.0);
    assert_eq!((verdict, sure), (Some(Bound::ComputePath), Sure::Strong));
    // Neither: what is left is the instructions beside them, inferred and weak.
    let (verdict, sure, _, row) = judge(200.0, 1000.0);
    assert_eq!((verdict, sure), (Some(Bound::Issue), Sure::Weak), "{}", row.limiter.how);
}

#[test]
fn a_trace_without_samples_in_its_passes_has_no_kernels_and_says_so() {
    let mut trace = trace();
    trace.samples.retain(|sample| sample.at_ns < 1000);
    let roofs = Roofs { ceilings: None, threads: 2, footprint: 0 };
    let tree = kernel_tree(&trace, &placed(&trace), roofs, &Hints::default());
    assert!(tree.missing().unwrap().unavailable.contains("no sample"), "{tree:?}");
}

#[test]
fn lines_count_once_in_each_self_column_and_inclusive_adds_up_to_nothing() {
    let trace = trace();
    let placed = placed(&trace);
    let table = LineTable::new(&trace, &placed, &resolution());
    let linear = table.places.iter().find(|place| place.place == kernel("linear", "q4/avx512")).unwrap();
    let row = |file: &str, line: u32| linear.rows.iter().find(|row| row.file == file && row.line == line);
    // Addresses a and b are an intrinsic inlined into line 7, c is line 9 itself, both called from walk.rs:20.
    let count = |address: &str| {
        let own = |sample: &&record::capture::PlacedSample| placed.places[sample.place] == linear.place;
        let samples = placed.samples.iter().filter(own);
        samples.filter(|sample| trace.samples[sample.sample].stack[0].0 == address).count() as u64
    };
    let (a, b, c, d) = (count("a0"), count("b0"), count("c0"), count("d0"));
    assert!(a > 0 && b > 0 && c > 0 && d > 0);
    let intrinsic = row("rust/library/intrinsics.rs", 100).unwrap();
    assert_eq!(intrinsic.self_innermost.samples, a + b);
    assert_eq!(intrinsic.self_in_repository.samples, 0);
    assert_eq!(intrinsic.rank, None, "ranks are of what can be changed");
    let seven = row("crates/x/src/kernel.rs", 7).unwrap();
    assert_eq!((seven.self_innermost.samples, seven.self_in_repository.samples), (0, a + b));
    assert!(seven.verified);
    let nine = row("crates/x/src/kernel.rs", 9).unwrap();
    assert_eq!((nine.self_innermost.samples, nine.self_in_repository.samples), (c, c));
    let caller = row("crates/x/src/walk.rs", 20).unwrap();
    assert_eq!((caller.self_innermost.samples, caller.inclusive_not_summable.samples), (0, a + b + c));
    assert!(!caller.verified);
    // Line 0 is shown as such, and rolls up to the next line of the repository; here there is none.
    let zero = row("crates/x/src/kernel.rs", 0).unwrap();
    assert_eq!((zero.self_innermost.samples, linear.line_zero_samples), (d, d));
    assert_eq!(row(OUTSIDE, 0).unwrap().self_in_repository.samples, d);
    assert_eq!(linear.outside_repository_samples, d);
    for sum in [
        linear.rows.iter().map(|row| row.self_innermost.samples).sum::<u64>(),
        linear.rows.iter().map(|row| row.self_in_repository.samples).sum(),
    ] {
        assert_eq!(sum, linear.cost.samples);
    }
    assert!(linear.rows.iter().map(|row| row.inclusive_not_summable.samples).sum::<u64>() > linear.cost.samples);
    // Both chains are kept: one intrinsic line under one line of ours, reached at two addresses, is one stack.
    let stacks: Vec<_> = table.stacks.iter().filter(|stack| stack.place == linear.place).collect();
    assert_eq!(stacks.iter().map(|stack| stack.samples).sum::<u64>(), linear.cost.samples);
    assert!(stacks.iter().any(|stack| stack.samples == a + b && stack.frames.len() == 3), "{stacks:?}");
}

#[test]
fn damaged_files_are_refused_with_their_name_and_line() {
    let good = capture_fixture::files(&trace());
    let load = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut files = good.clone();
        change(files.get_mut(name).unwrap());
        RawTrace::read(|name| files.get(name).cloned().ok_or_else(|| std::io::ErrorKind::NotFound.into()))
    };
    assert_eq!(load("maps.txt", &|_| {}).unwrap(), trace());
    let replace = |from: &'static str, to: &'static str| {
        move |bytes: &mut Vec<u8>| {
            let text = String::from_utf8(bytes.clone()).unwrap();
            assert!(text.contains(from), "{from}");
            *bytes = text.replacen(from, to, 1).into_bytes();
        }
    };
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 9);
    type Change<'a> = &'a dyn Fn(&mut Vec<u8>);
    let cases: [(&str, Change<'_>, &str); 13] = [
        ("samples.jsonl", &cut, "samples.jsonl, line"),
        ("spans.jsonl", &cut, "spans.jsonl, line 4"),
        ("calls.json", &cut, "calls.json: expected a JSON list"),
        ("calls.json", &|bytes| *bytes = b"[]".to_vec(), "calls.json: holds nothing"),
        ("steps.jsonl", &|bytes| bytes.clear(), "steps.jsonl: holds nothing"),
        ("spans.jsonl", &replace("\"step\":1", "\"step\":9"), "step 9 of 2"),
        ("spans.jsonl", &replace("\"worker\":1", "\"worker\":7"), "worker 7 of 2"),
        ("spans.jsonl", &replace("[1,1400,1600", "[5,1400,1600"), "call 5 of 2"),
        ("spans.jsonl", &replace("[1,1400,1600", "[1,1600,1400"), "out of order"),
        ("spans.jsonl", &replace("\"step\":1", "\"step\":0"), "comes twice"),
        ("threads.json", &replace("\"worker\":1", "\"worker\":0"), "threads.json: workers are"),
        ("sources.sha256", &|bytes| bytes.extend(b"abc  x\n"), "sources.sha256, line 3"),
        ("samples.jsonl", &replace("\"at_ns\":999", "\"at_ns\":99999"), "samples.jsonl, line 2"),
    ];
    for (name, change, words) in cases {
        let message = load(name, change).map_or_else(|error| error.to_string(), |_| "read".to_owned());
        assert!(message.contains(words), "{name}: {message}");
    }
    let missing = RawTrace::read(|_| Err(std::io::ErrorKind::NotFound.into()));
    assert!(matches!(missing, Err(LoadError::Read { file: "calls.json", .. })));
    // Nothing in a raw file makes the reader panic or count wrongly: a sample without an address is kept.
    let mut trace = trace();
    trace.samples.push(RawSample { at_ns: 3000, thread: 10, weight_ns: 5, stack: Vec::new() });
    assert_eq!(placed(&trace).uncounted.outside_passes, 3);
}

#[test]
fn metadata_and_records_come_back_as_they_were_written() {
    let metadata = metadata();
    let text = serde_json::to_string(&metadata).unwrap();
    assert_eq!(read::<CaptureMetadata>("m", text.as_bytes()).unwrap(), metadata);
    let record = capture_fixture::lines_record();
    assert!(!record.void, "{:?}", record.checks);
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(read::<record::LinesRecord>("l", text.as_bytes()).unwrap(), record);
    // A line's cost that was raised afterwards is found.
    let mut changed = record;
    changed.places[0].rows[0].self_in_repository.samples += 1;
    let text = serde_json::to_string(&changed).unwrap();
    let error = read::<record::LinesRecord>("l", text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("self in the repository is the whole"), "{error}");
    assert!(Known::<u64>::unavailable("a", "b").known().is_none());
}
