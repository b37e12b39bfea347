//! One row of the GPU's table: run what it names in fresh processes, and hold each number against its demand.
//! Not here: the rows (`gpu_rows.rs`), starting the verbs (`verbs.rs`), and printing (`table.rs`).

use anyhow::{Context, Result, bail};
use record::bench::{BenchRecord, Metric, Outcome as Taken, Sample};
use record::{Host, Known, Record, TimelineRecord};

use super::gpu_rows::{GpuBar, GpuRow, GpuWork, Of};
use super::measure::{Line, Outcome, Spread, Verdict, verdict};
use super::table::Unit;
use super::verbs::Verbs;

/// Measures a row. What cannot be measured is lines that say why.
pub(super) fn measure(verbs: &Verbs, row: &GpuRow) -> Outcome {
    let measured = match row.work {
        GpuWork::Requests { input_len, output_len } => verbs
            .gpu_requests(row.id, row.model, input_len, output_len)
            .and_then(|bench| requests(row, &bench, verbs.repeats())),
        GpuWork::Pauses => verbs.gpu_pauses(row.id, row.model).and_then(|traces| pauses(row, &traces)),
    };
    measured.unwrap_or_else(|error| {
        let why = format!("{error:#}");
        let lines = row.bars.iter().map(|bar| line(bar, Err(why.clone()), String::new()));
        Outcome { lines: lines.collect(), ..Outcome::default() }
    })
}

fn line(bar: &GpuBar, judged: Result<Spread, String>, note: String) -> Line {
    let unit = match bar.of {
        Of::Rate(..) => Unit::Rate,
        Of::IdleShare => Unit::Share,
    };
    let lower_is_better = bar.of == Of::IdleShare;
    let (ours, judged, verdict, note) = match judged {
        Ok(spread) => {
            let suffix = if unit == Unit::Rate { " tok/s" } else { "" };
            let ours = format!("{}{suffix}", unit.figure(spread.median));
            (ours, Some(spread), verdict(spread, bar.must, lower_is_better), note)
        }
        Err(why) => ("-".to_owned(), None, Verdict::NotMeasurable, why),
    };
    let against = bar.llama.to_owned();
    Line { what: bar.what, ours, against, judged, unit, must: bar.must, aim: bar.aim, lower_is_better, verdict, note }
}

/// A record that fails its own checks gives no numbers.
fn stands(record: &impl Record) -> Result<()> {
    if record.void() {
        let failed = record.checks().iter().find(|check| !check.passed).map_or("a check", |check| check.name.as_str());
        bail!("the record is void by its own checks: {failed}");
    }
    Ok(())
}

/// The GPU of a record, in words. One of the CPU is held against no target of a GPU.
fn machine(host: &Host, created: &str) -> Result<String> {
    if !host.device.starts_with("cuda") {
        bail!("the record is of device '{}', and one of a GPU was expected", host.device);
    }
    let driver = host.driver.known().map_or("unknown", String::as_str);
    Ok(format!("{}, driver {driver}; {created}", host.device))
}

/// Rates over the processes of one `bench`. A variant whose output or wiring failed has none.
fn requests(row: &GpuRow, bench: &BenchRecord, planned: usize) -> Result<Outcome> {
    stands(bench)?;
    let mut outcome = Outcome::default();
    for bar in row.bars {
        let Of::Rate(variant, metric) = bar.of else { bail!("{}: requests have no such number", bar.what) };
        let index = bench.arm_named(variant).with_context(|| format!("the record has no variant {variant}"))?;
        let arm = &bench.arms[index];
        let values = bench.values(index, metric);
        let judged = match (Spread::of(&values), arm.counts) {
            (Some(spread), true) => Ok(spread),
            _ => Err(arm.reason.clone().unwrap_or_else(|| "no process of it counts".to_owned())),
        };
        let notes = [fewer(bench, index, metric, planned), held_back(bench, index)];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        outcome.lines.push(line(bar, judged, notes.join("; ")));
    }
    for arm in &bench.arms {
        outcome.engines.extend(arm.engine.known().cloned());
        if arm.given != arm.name {
            outcome.rungs.push(format!("`{}` was the rung `{}`", arm.given, arm.name));
        }
        if let Known::Is(conditions) = &arm.conditions {
            outcome.machine = Some(machine(&conditions.host, &bench.created)?);
        }
    }
    Ok(outcome)
}

/// That processes of an arm do not count, and why the first of them does not.
fn fewer(bench: &BenchRecord, arm: usize, metric: Metric, planned: usize) -> Option<String> {
    let counted = bench.values(arm, metric).len();
    let why = |sample: &Sample| match &sample.outcome {
        Taken::Lost(why) => Some(why.clone()),
        Taken::Measured(_) => sample.excluded.clone(),
    };
    (counted < planned).then(|| {
        let first = bench.samples_of(arm).find_map(why);
        let first =
            first.unwrap_or_else(|| bench.coverage.reason().unwrap_or("the record does not say why").to_owned());
        format!("{counted} of {planned} processes count, and the interval holds less often: {first}")
    })
}

/// In how many processes the GPU's clocks were lower than they could be, just before or after the request, and why.
fn held_back(bench: &BenchRecord, arm: usize) -> Option<String> {
    let (mut processes, mut reasons) = (0, Vec::new());
    for measured in bench.samples_of(arm).filter_map(Sample::counting) {
        let Known::Is(device) = &measured.clock.device else { continue };
        let states = [device.before.known(), device.after.known()];
        let found: Vec<&String> = states.into_iter().flatten().flat_map(|state| &state.held_back).collect();
        processes += usize::from(!found.is_empty());
        for reason in found {
            if !reasons.contains(reason) {
                reasons.push(reason.clone());
            }
        }
    }
    (processes > 0).then(|| format!("the GPU's clocks were held back in {processes} processes: {}", reasons.join(", ")))
}

/// What a record has, or why it has none.
fn known<T>(value: &Known<T>) -> Result<&T> {
    match value {
        Known::Is(value) => Ok(value),
        Known::Unavailable(missing) => bail!("{}; {}", missing.unavailable, missing.how_to_get),
    }
}

/// The idle share over several processes, each of which gives the median of its steps.
fn pauses(row: &GpuRow, traces: &[TimelineRecord]) -> Result<Outcome> {
    let mut shares = Vec::new();
    for trace in traces {
        stands(trace)?;
        machine(&trace.conditions.host, &trace.created)?;
        let pauses = known(&known(&trace.device)?.pauses)?;
        shares.push(known(&pauses.idle_share)?.value());
    }
    let spread = Spread::of(&shares).context("no process gave a trace")?;
    let mut outcome = Outcome {
        lines: row.bars.iter().map(|bar| line(bar, Ok(spread), String::new())).collect(),
        ..Outcome::default()
    };
    if let Some(trace) = traces.first() {
        outcome.machine = Some(machine(&trace.conditions.host, &trace.created)?);
        outcome.rungs.push(format!("`fast` was the rung `{}`", trace.subject.checkpoint));
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::super::gpu_fixture::{Process, bench, trace};
    use super::super::gpu_rows::GPU_ROWS;
    use super::*;

    fn row(id: &str) -> &'static GpuRow {
        GPU_ROWS.iter().find(|row| row.id == id).unwrap()
    }

    /// Six processes of each variant, all at these tokens per second: W4 decode, bfloat16 decode, bfloat16 prefill.
    fn steady(w4: f64, decode: f64, prefill: f64) -> BenchRecord {
        bench(6, |arm, _| match arm {
            0 => Process { prefill: 50_000.0, decode: w4, ..Process::default() },
            _ => Process { prefill, decode, ..Process::default() },
        })
    }

    fn judged(row: &GpuRow, bench: &BenchRecord) -> Vec<(Verdict, String)> {
        let lines = requests(row, bench, 6).unwrap().lines;
        lines.into_iter().map(|line| (line.verdict, line.ours)).collect()
    }

    #[test]
    fn each_bar_is_held_against_its_own_variant_and_metric() {
        let lines = judged(row("0.6b"), &steady(2_801.0, 2_199.0, 60_001.0));
        let expected = [
            (Verdict::Met, "2,801 tok/s".to_owned()),
            (Verdict::Missed, "2,199 tok/s".to_owned()),
            (Verdict::Met, "60,001 tok/s".to_owned()),
        ];
        assert_eq!(lines, expected);
        // Prefill of 4-bit weights is 50,000 tokens per second in these processes.
        assert_eq!(judged(row("4b-2048"), &steady(901.0, 1.0, 57_999.0))[2], (Verdict::Met, "50,000 tok/s".to_owned()));
    }

    /// Five of six beyond the demand do not meet it.
    #[test]
    fn one_process_on_the_other_side_leaves_it_open() {
        let rates = [2_900.0, 2_850.0, 2_790.0, 2_900.0, 2_870.0, 2_880.0];
        let uneven = bench(6, |_, nth| Process { prefill: 70_000.0, decode: rates[nth], ..Process::default() });
        let outcome = requests(row("0.6b"), &uneven, 6).unwrap();
        let line = &outcome.lines[0];
        assert_eq!((line.verdict, line.ours.as_str()), (Verdict::Inconclusive, "2,875 tok/s"));
        let spread = line.judged.unwrap();
        assert!((spread.low - 2_790.0).abs() < 1e-6 && (spread.high - 2_900.0).abs() < 1e-6, "{spread:?}");
    }

    #[test]
    fn a_lost_process_is_said_and_another_output_is_no_rate() {
        let lost = bench(6, |arm, nth| Process { lost: (arm, nth) == (0, 3), ..Process::default() });
        let lines = requests(row("0.6b"), &lost, 6).unwrap().lines;
        assert!(lines[0].note.starts_with("5 of 6 processes count") && lines[0].note.contains("the GPU fell off"));
        assert!(lines[1].note.is_empty(), "{}", lines[1].note);
        let other = bench(6, |arm, _| Process { token: if arm == 1 { 9 } else { 5 }, ..Process::default() });
        let lines = requests(row("0.6b"), &other, 6).unwrap().lines;
        assert!(lines[0].verdict != Verdict::NotMeasurable);
        for line in &lines[1..] {
            assert_eq!((line.verdict, line.ours.as_str()), (Verdict::NotMeasurable, "-"));
            assert!(line.note.contains("its output differs"), "{}", line.note);
        }
    }

    #[test]
    fn clocks_that_were_held_back_and_the_rung_are_said() {
        let held = bench(6, |arm, nth| Process { hot: arm == 0 && nth < 2, ..Process::default() });
        let outcome = requests(row("0.6b"), &held, 6).unwrap();
        assert_eq!(outcome.lines[0].note, "the GPU's clocks were held back in 2 processes: power limit");
        assert!(outcome.lines[1].note.is_empty());
        assert_eq!(outcome.rungs, ["`fast` was the rung `placed-attention`"]);
        let machine = outcome.machine.unwrap();
        assert!(machine.contains("NVIDIA H200") && machine.contains("driver 580"), "{machine}");
    }

    #[test]
    fn a_void_record_gives_no_figures() {
        let mut void = steady(1e4, 1e4, 1e6);
        void.samples.swap(0, 1);
        void.close();
        let error = requests(row("0.6b"), &void, 6).err().unwrap().to_string();
        assert!(error.contains("void") && error.contains("planned order"), "{error}");
        let mut void = trace(Ok(0.01));
        void.summary.dropped = 3;
        void.close();
        let error = pauses(row("idle"), &[void]).err().unwrap().to_string();
        assert!(error.contains("void") && error.contains("slices dropped"), "{error}");
    }

    #[test]
    fn a_record_of_the_cpu_is_held_against_no_target_of_a_gpu() {
        let mut on_cpu = steady(1e4, 1e4, 1e6);
        for arm in &mut on_cpu.arms {
            let Known::Is(conditions) = &mut arm.conditions else { panic!("conditions") };
            conditions.host.device = "cpu".to_owned();
        }
        let error = requests(row("0.6b"), &on_cpu, 6).err().unwrap().to_string();
        assert!(error.contains("device 'cpu'"), "{error}");
        let mut on_cpu = trace(Ok(0.01));
        on_cpu.conditions.host.device = "cpu".to_owned();
        let error = pauses(row("idle"), &[on_cpu]).err().unwrap().to_string();
        assert!(error.contains("device 'cpu'"), "{error}");
    }

    #[test]
    fn the_idle_share_is_that_of_the_request_which_nothing_watched() {
        let found = |shares: &[f64]| {
            let traces: Vec<TimelineRecord> = shares.iter().map(|share| trace(Ok(*share))).collect();
            let outcome = pauses(row("idle"), &traces).unwrap();
            (outcome.lines[0].verdict, outcome.lines[0].ours.clone(), outcome.rungs[0].clone())
        };
        let rung = "`fast` was the rung `placed-attention`".to_owned();
        assert_eq!(found(&[0.037, 0.035, 0.05]), (Verdict::Met, "3.7 %".to_owned(), rung.clone()));
        assert_eq!(found(&[0.051, 0.06]).0, Verdict::Missed);
        assert_eq!(found(&[0.049, 0.051]).0, Verdict::Inconclusive);
        let error = pauses(row("idle"), &[trace(Ok(0.03)), trace(Err("no graph"))]).err().unwrap().to_string();
        assert!(error.contains("no graph"), "{error}");
    }

    /// Verbs whose program is a shell that runs the file of the verb's name in `folder`: it keeps its words, and leaves the
    /// record that lies there, or says what is missing.
    fn pretended(folder: &Path, quick: bool) -> Verbs {
        let script = "echo \"$0 $*\" >> said\nfor last; do :; done\ncp \"$0.json\" \"$last\" 2> /dev/null && exit 0\n\
                      echo 'hourglass: --device cuda:1: no NVIDIA driver' >&2\nexit 2\n";
        for verb in ["bench", "timeline"] {
            std::fs::write(folder.join(verb), script).unwrap();
        }
        let records = folder.join("records");
        std::fs::create_dir(&records).unwrap();
        Verbs {
            hourglass: "/bin/sh".into(),
            batch_rates: folder.into(),
            step_reads: folder.into(),
            folder: records,
            place: folder.into(),
            device: "cuda:1".to_owned(),
            peers: None,
            quick,
        }
    }

    fn said(folder: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(folder.join("said")).unwrap();
        text.lines().map(|line| line.replace(&format!("{}/", folder.display()), "")).collect()
    }

    #[test]
    fn verbs_are_called_as_documented_and_their_records_read() {
        let folder = tempfile::tempdir().unwrap();
        let verbs = pretended(folder.path(), false);
        let record = serde_json::to_vec(&steady(1_001.0, 471.0, 60_000.0)).unwrap();
        std::fs::write(folder.path().join("bench.json"), record).unwrap();
        std::fs::write(folder.path().join("timeline.json"), serde_json::to_vec(&trace(Ok(0.01))).unwrap()).unwrap();
        let outcome = measure(&verbs, row("4b"));
        let verdicts: Vec<Verdict> = outcome.lines.iter().map(|line| line.verdict).collect();
        assert_eq!(verdicts, [Verdict::Met; 3], "{}", outcome.lines[0].note);
        measure(&verbs, row("0.6b-2048"));
        assert_eq!(
            said(folder.path()),
            [
                "bench --variant fast --variant unpacked --input-len 128 --output-len 129 --repeats 6 --device cuda:1 \
                 --model synthetic:qwen3-4b --convert --json-output records/4b.bench.json",
                "bench --variant fast --variant unpacked --input-len 2016 --output-len 65 --repeats 6 --device cuda:1 \
                 --model synthetic:qwen3-0.6b --convert --json-output records/0.6b-2048.bench.json",
            ]
        );
        std::fs::remove_file(folder.path().join("said")).unwrap();
        let outcome = measure(&verbs, row("idle"));
        assert_eq!((outcome.lines[0].verdict, outcome.lines[0].ours.as_str()), (Verdict::Met, "1.0 %"));
        let calls = said(folder.path());
        assert_eq!(calls.len(), 6);
        assert_eq!(
            calls[5],
            "timeline --phase decode --no-samples --overhead-rounds 0 --device cuda:1 --model synthetic:qwen3-0.6b --convert \
             --json-output records/idle.6.timeline.json"
        );
    }

    #[test]
    fn where_there_is_no_gpu_every_line_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let verbs = pretended(folder.path(), true);
        for row in GPU_ROWS {
            let outcome = measure(&verbs, row);
            assert_eq!(outcome.lines.len(), row.bars.len());
            for line in outcome.lines {
                assert_eq!((line.verdict, line.ours.as_str()), (Verdict::NotMeasurable, "-"), "{}", line.what);
                assert_eq!(line.note, "--device cuda:1: no NVIDIA driver");
            }
        }
        let calls = said(folder.path());
        assert!(calls.len() == GPU_ROWS.len() && calls[0].contains("--repeats 2 "), "{calls:?}");
    }
}
