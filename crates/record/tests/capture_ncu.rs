//! Pages of Nsight Compute 2025.3.1 from an H200 (two launches of a kernel; columns that are not read were taken out), imported; and
//! damaged ones. Not here: running ncu.

#![allow(clippy::unwrap_used, reason = "tests")]

use record::Known;
use record::capture::ncu::{Imported, NcuError, explained, import};
use record::capture::raw::{RawCall, RawLaunch, RawProfile, RawProfiler};
use record::capture::reduced::device::DeviceKernel;
use std::collections::BTreeSet;

const RAW: &str = include_str!("fixtures/ncu-h200/raw.csv");
const SASS: &str = include_str!("fixtures/ncu-h200/sass.csv");
const SOURCE: &str = include_str!("fixtures/ncu-h200/source.csv");

fn call(number: u32) -> RawCall {
    RawCall {
        call: number,
        layer: Some(0),
        slot: "scales".into(),
        group: "projections".into(),
        operator: "place".into(),
        kernel: "scales/cuda".into(),
        source: "crates/x/src/a.rs:1".into(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        weights: Vec::new(),
        bytes_read: 10,
        bytes_written: 0,
        flops: 0,
    }
}

fn profile(launches: &[(&str, &[u32])]) -> RawProfile {
    RawProfile {
        launches: launches
            .iter()
            .map(|(kernel, calls)| RawLaunch { kernel: (*kernel).to_owned(), calls: calls.to_vec(), stands_for: 1 })
            .collect(),
        ncu: Known::Is(RawProfiler { version: "ncu 2025.3.1.0".into(), arguments: Vec::new() }),
    }
}

fn imported(raw: &str, sass: &str, source: &str) -> Result<Imported, NcuError> {
    let calls = [call(0), call(1)];
    let launches = profile(&[("place_scales", &[0]), ("place_scales", &[1])]);
    import(&calls, &launches, (raw.as_bytes(), sass.as_bytes(), source.as_bytes()))
}

/// A column of the page of instructions, summed by other means: the first copy of each launch, split at commas between quotes.
fn summed(column: &str) -> Vec<u64> {
    let blocks: Vec<&str> = SASS.split("\"Kernel Name\"").skip(1).step_by(2).collect();
    let sum = |block: &&str| {
        let mut lines = block.lines().skip(1);
        let names: Vec<&str> = lines.next().unwrap().split(',').map(|name| name.trim_matches('"')).collect();
        let from_right = names.len() - names.iter().position(|name| *name == column).unwrap();
        let value =
            |line: &str| line.rsplit("\",\"").nth(from_right - 1).unwrap().trim_matches('"').parse::<u64>().unwrap();
        lines.filter(|line| !line.is_empty()).map(value).sum()
    };
    blocks.iter().map(sum).collect()
}

#[test]
fn every_instruction_counts_once_and_sums_are_the_profilers_own() {
    let Imported { tree, samples, spans, steps, .. } = imported(RAW, SASS, SOURCE).unwrap();
    assert_eq!((tree.launches_expected, tree.launches, tree.kernels.len()), (2, 2, 1));
    let kernel: &DeviceKernel = &tree.kernels[0];
    let sampled = summed("# Samples");
    assert_eq!(kernel.samples, sampled.iter().sum::<u64>());
    assert_eq!(kernel.samples_counted, Known::Is(kernel.samples), "smsp__pcsamp_sample_count of the raw page");
    assert_eq!(kernel.executed, summed("Instructions Executed").iter().sum::<u64>());
    assert_eq!(kernel.executed_counted, Known::Is(kernel.executed), "smsp__inst_executed.sum of the raw page");
    assert_eq!(kernel.stalls.iter().map(|row| row.samples).sum::<u64>(), kernel.samples);
    let waits = kernel.stalls.iter().find(|row| row.reason == "wait").unwrap();
    assert_eq!(waits.samples, summed("stall_wait").iter().sum::<u64>());
    // Nanoseconds as printed, the launches' 2,208 and 2,304.
    assert!((kernel.time.value().unwrap() - 4.512).abs() < 1e-9);
    assert_eq!(steps[0].end_ns, 4512);
    assert_eq!(spans[0].spans, [[0, 0, 0, 2208], [1, 2208, 2208, 4512]]);
    // A launch's samples stand for its time.
    let weight = |from: u64, to: u64| -> u64 {
        samples.iter().filter(|sample| (from..to).contains(&sample.at_ns)).map(|sample| sample.weight_ns).sum()
    };
    assert_eq!((weight(0, 2208), weight(2208, 4512)), (2208, 2304));
    assert!(samples.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
}

#[test]
fn every_sampled_address_has_the_line_that_the_page_has_it_under() {
    let imported = imported(RAW, SASS, SOURCE).unwrap();
    let addresses: BTreeSet<&str> = imported.samples.iter().map(|sample| sample.stack[0].0.as_str()).collect();
    for address in addresses {
        let (function, lines) = &imported.chains[address];
        assert_eq!((function.as_str(), lines.len()), ("place_scales", 1));
        assert!(
            lines[0].0.ends_with("crates/ops-cuda/kernels/place.cu") && (42..=49).contains(&lines[0].1),
            "{lines:?}"
        );
    }
    // The sums that ncu itself prints beside the lines, which stand before their instructions.
    let page: u64 = SOURCE
        .split("\"File Path\"")
        .nth(1)
        .unwrap()
        .lines()
        .filter(|line| line.starts_with('"') && line.as_bytes()[1].is_ascii_digit())
        .map(|line| line.rsplit("\",\"").nth(20).unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(page, summed("# Samples")[0], "the first launch's");
}

#[test]
fn a_launch_serves_several_calls_or_none_and_a_call_can_have_several() {
    let read = |launches: &[(&str, &[u32])], calls: &[RawCall]| {
        import(calls, &profile(launches), (RAW.as_bytes(), SASS.as_bytes(), SOURCE.as_bytes())).unwrap()
    };
    let calls = [call(0), call(1), call(2)];
    let joined = read(&[("place_scales", &[0, 1]), ("place_scales", &[2])], &calls);
    assert_eq!(joined.spans[0].spans, [[0, 0, 0, 2208], [1, 2208, 2208, 2208], [2, 2208, 2208, 4512]]);
    let twice = read(&[("place_scales", &[1]), ("place_scales", &[1])], &calls[..2]);
    assert_eq!(twice.spans[0].spans, [[1, 0, 0, 4512], [0, 4512, 4512, 9024]], "as long as its like");
    let own = read(&[("place_scales", &[]), ("place_scales", &[0])], &calls[..1]);
    assert_eq!(own.spans[0].spans, [[0, 2208, 2208, 4512]]);
    let names: BTreeSet<&str> = own.tree.kernels.iter().map(|kernel| kernel.operator.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["place", DeviceKernel::OWN]));
    let fewer = read(&[("place_scales", &[0]), ("place_scales", &[1]), ("argmax", &[])], &calls[..2]);
    assert_eq!((fewer.tree.launches_expected, fewer.tree.launches), (3, 2), "which a check of the record refuses");
    // Weights made from codes first, then one product of both: it belongs to the call that it follows.
    let both = read(&[("place_scales", &[0, 1]), ("place_scales", &[0, 1])], &calls[..2]);
    assert_eq!(both.spans[0].spans, [[0, 0, 0, 4512], [1, 4512, 4512, 4512]]);
}

/// ncu prints some launches twice and some once.
#[test]
fn each_launch_counts_once_whether_it_is_printed_once_or_twice() {
    let blocks: Vec<String> =
        SASS.split("\"Kernel Name\"").skip(1).map(|rest| format!("\"Kernel Name\"{rest}")).collect();
    let whole = imported(RAW, SASS, SOURCE).unwrap();
    for picked in [&[0, 2][..], &[0, 1, 2], &[1, 2, 3]] {
        let page: String = picked.iter().map(|block| blocks[*block].as_str()).collect();
        assert_eq!(imported(RAW, &page, SOURCE).unwrap(), whole, "{picked:?}");
    }
}

/// Of three layers two are profiled: the second stands for the third, too.
#[test]
fn a_launch_that_stands_for_others_lends_them_its_time_and_weight_but_no_samples() {
    let calls = [0, 1, 2].map(|layer| RawCall { layer: Some(layer), ..call(layer as u32) });
    let mut profile = profile(&[("place_scales", &[0]), ("place_scales", &[1])]);
    profile.launches[1].stands_for = 2;
    let found = import(&calls, &profile, (RAW.as_bytes(), SASS.as_bytes(), SOURCE.as_bytes())).unwrap();
    assert_eq!(found.spans[0].spans, [[0, 0, 0, 2208], [1, 2208, 2208, 4512], [2, 4512, 4512, 6816]]);
    let weight: u64 = found.samples.iter().map(|sample| sample.weight_ns).sum();
    assert_eq!((weight, found.samples.len() as u64), (2208 + 2 * 2304, summed("# Samples").iter().sum()));
    assert_eq!(found.steps[0].end_ns, 6816);
}

#[test]
fn pages_that_were_cut_changed_or_are_of_another_pass_are_refused_with_their_place() {
    let error = |raw: &str, sass: &str, source: &str| imported(raw, sass, source).unwrap_err().to_string();
    let renamed = RAW.replace("place_scales", "place_bf16");
    assert!(error(&renamed, SASS, SOURCE).contains("launch 0 is 'place_bf16', expected place_scales"));
    assert!(error("", SASS, SOURCE).contains("no heading"));
    let cut: String = RAW.lines().take(4).map(|line| format!("{line}\n")).collect();
    let cut = &cut[..cut.len() - 30];
    assert!(error(cut, SASS, SOURCE).contains("raw page, line 4"), "{}", error(cut, SASS, SOURCE));
    let milliseconds = RAW.replacen("\"ns\"", "\"ms\"", 1);
    assert!(error(&milliseconds, SASS, SOURCE).contains("is in 'ms', expected 'ns'"));
    let word = RAW.replacen("2,208", "soon", 1);
    assert!(error(&word, SASS, SOURCE).contains("'soon' is no number"));
    // What another locale makes of 2,208 and 61.81, and what no counter can be.
    for changed in ["2.208", "2 208", "2\u{202f}208", "2,2,08", "22,08", "2.208,0", "2,208.5", "2208e0", "+2208", "inf"]
    {
        let message = error(&RAW.replacen("2,208", changed, 1), SASS, SOURCE);
        assert!(message.contains("gpu__time_duration.sum: '"), "{changed}: {message}");
    }
    for (changed, why) in [("61,81", "is no number of the form"), ("-61.81", "below nothing"), ("1e2", "is no number")]
    {
        let message = error(&RAW.replacen("61.81", changed, 1), SASS, SOURCE);
        assert!(message.contains("lts__t_sector_hit_rate.pct") && message.contains(why), "{changed}: {message}");
    }
    let negative = error(&RAW.replacen("\"768\"", "\"-768\"", 1), SASS, SOURCE);
    assert!(negative.contains("dram__bytes_read.sum: '-768' is no count"), "{negative}");
    // A whole launch is missing; one copy of a launch; a copy says something else.
    let blocks: Vec<String> =
        SASS.split("\"Kernel Name\"").skip(1).map(|rest| format!("\"Kernel Name\"{rest}")).collect();
    assert_eq!(blocks.len(), 4);
    assert!(error(RAW, &blocks[..2].concat(), SOURCE).contains("are not the raw page's 2"));
    assert!(error(RAW, &[SASS, &blocks[3]].concat(), SOURCE).contains("are not the raw page's 2"));
    // Cut between two lines.
    let shorter = |page: &str, lines: usize| -> String {
        page.lines().take(page.lines().count() - lines).map(|line| format!("{line}\n")).collect()
    };
    assert!(error(RAW, &[&blocks[0], &shorter(&blocks[2], 2)[..]].concat(), SOURCE).contains("lacks the instruction"));
    assert!(
        error(RAW, &[&blocks[0], "\"Kernel Name\",\"place_scales\",\n"].concat(), SOURCE).contains("with instructions")
    );
    assert!(error(RAW, SASS, &shorter(SOURCE, 200)).contains("has no line for the instruction at 0x7f5bdb7a2"));
    assert!(error(RAW, SASS, "").contains("page of source lines: has no instruction under any line"));
    assert!(error(RAW, SASS, "==WARNING== no source\n").contains("has no instruction under any line"));
    let uncounted = RAW.replace("smsp__pcsamp_sample_count", "another");
    assert!(error(&uncounted, SASS, SOURCE).contains("has no smsp__pcsamp_sample_count of launch 0"));
    let row = SASS.lines().find(|line| line.starts_with("\"0x") && line.contains("\"256\"")).unwrap();
    let other = SASS.replacen(row, &row.replacen("\"256\"", "\"257\"", 1), 1);
    assert!(
        error(RAW, &other, SOURCE)
            .contains("not the raw page's 2, each once or twice and with instructions, from launch 0 on")
    );
    assert!(error(RAW, &SASS.replace("# Samples", "Samples"), SOURCE).contains("SourceCounters"));
    assert!(error(RAW, &SASS.replacen("\"0x", "\"0xzz", 1), SOURCE).contains("no address"));
    let endless = SASS
        .replace("\"256\"", "\"900000000000\"")
        .replace("# Samples", "x")
        .replace("Instructions Executed", "# Samples");
    let endless = endless.replace("\"x\"", "\"Instructions Executed\"");
    let sampled = RAW.replace("\"9\"", "\"46,800,000,000,000\"").replace("\"23\"", "\"26,624\"");
    assert!(error(&sampled, &endless, SOURCE).contains("more than"), "{}", error(&sampled, &endless, SOURCE));
    let lineless = SOURCE.replacen("\"42\",", "\"4x2\",", 1);
    assert!(error(RAW, SASS, &lineless).contains("line number"));
    let headless: String = SOURCE.lines().skip(1).map(|line| format!("{line}\n")).collect();
    assert!(error(RAW, SASS, &headless).contains("under no line"));
}

/// Of another order than the program's, of more layers than it has, or of other kernels than the same call of another layer.
#[test]
fn launches_that_cannot_have_served_their_calls_are_refused() {
    let layers = [0, 0, 1, 1].map(|layer| RawCall { layer: Some(layer), ..call(0) });
    let mut calls: Vec<RawCall> =
        layers.into_iter().enumerate().map(|(at, own)| RawCall { call: at as u32, ..own }).collect();
    (calls[1].slot, calls[3].slot) = ("up".into(), "up".into());
    let refused = |launches: &[(&str, &[u32])], stands_for: u64| {
        let mut profile = profile(launches);
        profile.launches[0].stands_for = stands_for;
        import(&calls, &profile, (RAW.as_bytes(), SASS.as_bytes(), SOURCE.as_bytes())).err().map(|why| why.to_string())
    };
    let good: [(&str, &[u32]); 4] =
        [("place_scales", &[0]), ("place_scales", &[1]), ("place_scales", &[2]), ("place_scales", &[3])];
    assert_eq!(refused(&good, 1), None);
    let why = |launches: &[(&str, &[u32])], stands_for| refused(launches, stands_for).unwrap();
    let swapped = why(&[("place_scales", &[1]), ("place_scales", &[0])], 1);
    assert!(swapped.contains("profile.json") && swapped.contains("serves call 0 behind one of call 1"), "{swapped}");
    assert!(why(&[("place_scales", &[1, 0]), ("place_scales", &[2])], 1).contains("expected rising numbers"));
    assert!(why(&good, 3).contains("stands for 3 launches, expected 1 to 2"));
    assert!(why(&good, 0).contains("stands for 0 launches"));
    // Nor does the number of a layer, which the file chooses, make more of them; and what serves no layer stands for itself.
    let mut far = calls.clone();
    far[2..].iter_mut().for_each(|call| call.layer = Some(u64::MAX));
    let mut layerless = calls.clone();
    (layerless[0].layer, layerless[1].layer) = (None, None);
    for (calls, first, most) in [(&far, &[0_u32][..], 2), (&layerless, &[0], 1), (&calls, &[], 1)] {
        let mut profile = profile(&[("place_scales", first), ("place_scales", &[2])]);
        for (stands_for, refused) in [(most, false), (most + 1, true), (u64::from(u32::MAX), true)] {
            profile.launches[0].stands_for = stands_for;
            let found = import(calls, &profile, (RAW.as_bytes(), SASS.as_bytes(), SOURCE.as_bytes()));
            let why = found.err().map(|why| why.to_string()).unwrap_or_default();
            let expected = format!("stands for {stands_for} launches, expected 1 to {most}");
            assert_eq!(why.contains(&expected), refused, "{first:?} {stands_for}: {why}");
        }
    }
    // In order, and one layer's first call is credited with what the other's second call launched.
    let shifted: [(&str, &[u32]); 4] =
        [("place_scales", &[0]), ("place_scales", &[1]), ("place_scales", &[2]), ("place_scales", &[2])];
    assert!(why(&shifted, 1).contains("launches are credited to other calls"), "{}", why(&shifted, 1));
    // A layer whose weights are in another form may need another kernel, or one more.
    let form = |form: &str| vec![record::Shape { rows: 2, cols: 2, form: form.to_owned() }];
    let mixed: Vec<RawCall> = calls
        .iter()
        .map(|own| RawCall { weights: form(if own.layer == Some(0) { "a" } else { "b" }), ..own.clone() })
        .collect();
    let found = import(&mixed, &profile(&shifted), (RAW.as_bytes(), SASS.as_bytes(), SOURCE.as_bytes()));
    assert!(found.is_ok(), "{:?}", found.err());
}

/// The page of instructions has no column for warps that wait for their warpgroup; the raw page has all reasons.
#[test]
fn reasons_are_the_raw_pages_where_it_has_them() {
    let with = |reasons: &str, first: &str, second: &str, dropped: &str| {
        let mut rows = RAW.lines().map(str::to_owned).collect::<Vec<_>>();
        let columns = reasons.split(' ').map(|reason| format!(",\"smsp__pcsamp_warps_issue_stalled_{reason}\""));
        rows[1] += &(columns.collect::<String>() + ",\"smsp__pcsamp_dropped_bytes\"");
        rows[2] += &",\"warp\"".repeat(reasons.split(' ').count() + 1);
        for (row, values) in [(3, first), (4, second)] {
            rows[row] += &values.split(' ').map(|value| format!(",\"{value}\"")).collect::<String>();
        }
        rows[3] += &format!(",\"{dropped}\"");
        rows[4] += ",\"0\"";
        rows.join("\n")
    };
    let raw = with("wait wait_not_issued warpgroup_arrive", "4 1 5", "3 2 20", "0");
    let tree = imported(&raw, SASS, SOURCE).unwrap().tree;
    let stalls: Vec<(&str, u64)> =
        tree.kernels[0].stalls.iter().map(|row| (row.reason.as_str(), row.samples)).collect();
    assert_eq!((stalls, tree.kernels[0].samples), (vec![("warpgroup_arrive", 25), ("wait", 7)], 32));
    assert_eq!(tree.dropped, Known::Is(0));
    let lossy = imported(&with("wait", "9", "23", "4,096"), SASS, SOURCE).unwrap().tree;
    assert_eq!(lossy.dropped, Known::Is(4096), "which a check of the record refuses");
    let error = imported(&with("wait", "9", "23", "n.a."), SASS, SOURCE).unwrap_err().to_string();
    assert!(error.contains("smsp__pcsamp_dropped_bytes"), "{error}");
    let silent = imported(RAW, SASS, SOURCE).unwrap().tree.dropped;
    assert!(silent.missing().unwrap().unavailable.contains("does not say"), "{silent:?}");
}

/// As an H200 prints them of launches of a few microseconds.
#[test]
fn a_part_that_is_more_than_its_whole_is_no_reading() {
    let kernel = imported(&RAW.replace("61.81", "249.85"), SASS, SOURCE).unwrap().tree.kernels[0].clone();
    let why = &kernel.l2_hit_share.missing().unwrap().unavailable;
    assert!(why.contains("249.85 % of lts__t_sector_hit_rate.pct of a launch of place_scales"), "{why}");
    let rounded = imported(&RAW.replace("61.81", "100.2"), SASS, SOURCE).unwrap().tree.kernels[0].clone();
    assert!(rounded.l2_hit_share.value().is_some());
}

#[test]
fn what_was_not_collected_is_missing_and_not_zero() {
    let raw = RAW.replace("\"72.45\"", "\"n/a\"");
    let kernel = imported(&raw, SASS, SOURCE).unwrap().tree.kernels[0].clone();
    let why = kernel.l2_hit_share.missing().unwrap();
    assert!(why.unavailable.contains("lts__t_sector_hit_rate.pct"), "{why:?}");
    assert!(kernel.time.known().is_some() && kernel.dram_read.known().is_some());
    // Everything is weighed by the times.
    for time in ["n/a", "0"] {
        let error = imported(&RAW.replace("\"2,304\"", &format!("\"{time}\"")), SASS, SOURCE).unwrap_err().to_string();
        assert!(
            error.contains("gpu__time_duration.sum of a launch of place_scales is missing or not above 0"),
            "{error}"
        );
    }
}

#[test]
fn what_ncu_says_when_it_cannot_is_explained() {
    let sandbox = "==PROF== Connected\n==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n";
    assert!(explained(sandbox).0.contains("gVisor"));
    let forbidden =
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters";
    assert!(explained(forbidden).1.contains("root"));
    assert_eq!(explained("a\n==ERROR== No kernels were profiled\nb").0, "ncu failed: No kernels were profiled");
}

/// Columns, kernels and files are shown in tables, in lines.csv and to terminals.
#[test]
fn names_that_are_commands_or_reorder_a_line_are_refused_on_every_page() {
    let change = |page: &str, name: &str, letter: char| {
        let changed = page.replace(name, &format!("{}{letter}{}", &name[..4], &name[4..]));
        assert_ne!(page, changed, "{name}");
        changed
    };
    for letter in ['\u{1b}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{2028}'] {
        let pages = [
            imported(&change(RAW, "smsp__pcsamp_sample_count", letter), SASS, SOURCE),
            imported(&change(RAW, "place_scales", letter), SASS, SOURCE),
            imported(RAW, &change(SASS, "stall_", letter), SOURCE),
            imported(RAW, &change(SASS, "place_scales", letter), SOURCE),
            imported(RAW, SASS, &change(SOURCE, "place.cu", letter)),
            imported(RAW, SASS, &change(SOURCE, "place_scales", letter)),
        ];
        for (page, found) in pages.into_iter().enumerate() {
            let why = found.unwrap_err().to_string();
            assert!(why.contains("holds a control character"), "{page} {letter:?}: {why}");
            assert!(why.starts_with("ncu's ") && why.contains(", line ") && !why.contains(letter), "{why}");
        }
    }
}
