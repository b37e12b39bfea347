//! One pass of the step on valgrind's simulated processor: this same program, started by valgrind, counts its instructions.
//! Not here: switching the instrumentation on and off (`probe`), and reading lines out of what valgrind writes.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;
use model::LoadOptions;
use ops::{Feature, Features};
use record::Known;
use record::capture::Simulation;
use record::capture::raw::{CALLGRIND, CounterKind, RawCounter};

use super::{Args, Counting};
use crate::failure::usage;
use crate::{interrupt, load, output, request};

pub(super) const NOT_ASKED: &str = "it was not asked for";

/// What valgrind's processor has beyond the common x86-64.
const SIMULATED: Features = Features::of(&[Feature::Avx2, Feature::Fma, Feature::F16c]);

/// The hidden form that valgrind starts: one instrumented pass, and on stdout what ran.
pub(super) fn pass(args: &Args, options: LoadOptions) -> Result<ExitCode> {
    if !probe::on_valgrind() {
        return Err(usage("--simulated-pass: is for `--counters callgrind`, which starts it under valgrind; use that"));
    }
    let files = args.open()?;
    let tokens = request::prompt(args.tokens, &files, args.seed);
    let workload = args.workload(&files, &tokens)?;
    let (mut engine, _) = load::load(&files, options)?;
    let kernels = match probe::simulated_pass(&mut engine, &workload, &tokens) {
        Err(probe::Error::Model(error)) => return Err(error.into()),
        other => other?,
    };
    output::print_json(&Simulation {
        tool: "valgrind".to_owned(),
        threads: engine.options().threads as u64,
        features: engine.options().features.iter().map(|feature| feature.name().to_owned()).collect(),
        kernels,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the pass under valgrind, which writes `callgrind.out` into `directory`, and reads its totals. Whatever prevents it is
/// the reason why there is no simulation; the capture stands without.
pub(super) fn simulate(args: &Args, directory: &Path) -> Known<(Simulation, Vec<RawCounter>)> {
    if args.counters != Counting::Callgrind {
        return Known::unavailable(NOT_ASKED, "`hourglass capture --counters callgrind`");
    }
    let install = "install valgrind (apt-get install valgrind, dnf install valgrind) and capture again";
    let version = match Command::new("valgrind").arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(output) => return Known::unavailable(format!("valgrind --version ended with {}", output.status), install),
        Err(error) => return Known::unavailable(format!("valgrind cannot be started: {error}"), install),
    };
    if interrupt::requested() {
        return Known::unavailable("interrupted before it began", "capture again");
    }
    output::note(format_args!("hourglass: {version} runs one pass on one thread; that may take minutes"));
    let path = directory.join(CALLGRIND);
    match run(args, &path) {
        Ok((mut simulation, counters)) => {
            simulation.tool = version;
            Known::Is((simulation, counters))
        }
        Err(why) => {
            // A part of it would look like the whole.
            let _ = std::fs::remove_file(&path);
            let how = match interrupt::requested() {
                true => "capture again",
                false => "see what valgrind says; a small model and a checkpoint for AVX2 are the easiest",
            };
            Known::unavailable(why, how)
        }
    }
}

fn run(args: &Args, path: &Path) -> Result<(Simulation, Vec<RawCounter>), String> {
    let own = std::env::current_exe().map_err(|error| format!("this program's own file is not known: {error}"))?;
    // Valgrind takes % in the file's name for the start of a pattern.
    let mut file = OsString::from("--callgrind-out-file=");
    file.push(path.to_str().ok_or("the trace's path is not UTF-8, which valgrind needs")?.replace('%', "%%"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--instr-atstart=no", "--dump-instr=yes", "--dump-line=yes"])
        .args(["--cache-sim=yes", "--branch-sim=yes"])
        .arg(file)
        .arg(own)
        .args(arguments(args))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind cannot be started: {error}"))?;
    if interrupt::requested() {
        return Err("interrupted while valgrind ran".to_owned());
    }
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        return Err(format!("the pass under valgrind ended with {}: {}", output.status, last.join(" ")));
    }
    let simulation: Simulation = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the pass under valgrind did not say what ran: {error}"))?;
    let text = std::fs::read(path).map_err(|error| format!("valgrind wrote no {CALLGRIND}: {error}"))?;
    // Valgrind's own file is its owner's alone; the trace's files are all alike.
    std::fs::remove_file(path)
        .and_then(|()| std::fs::write(path, &text))
        .map_err(|error| format!("{CALLGRIND} cannot be written: {error}"))?;
    Ok((simulation, totals(&String::from_utf8_lossy(&text))?))
}

/// The same step, on one thread, without the features that valgrind lacks.
fn arguments(args: &Args) -> Vec<OsString> {
    let machine = &args.engine.machine;
    let lacking = Feature::ALL.into_iter().filter(|feature| !SIMULATED.contains(*feature));
    let mut masked: Vec<&str> = lacking.map(|feature| feature.name()).collect();
    masked.extend(machine.features_without.as_deref());
    let mut words: Vec<OsString> = ["capture", "--simulated-pass", "--threads", "1"].map(OsString::from).to_vec();
    words.extend(["--features-without".into(), masked.join(",").into()]);
    words.extend(args.same_pass());
    words
}

/// The counters of the `events:` line with their sums of the `totals:` line.
fn totals(text: &str) -> Result<Vec<RawCounter>, String> {
    let line = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key));
        found.ok_or_else(|| format!("{CALLGRIND} has no line '{key}'"))
    };
    let names: Vec<&str> = line("events:")?.split_whitespace().collect();
    let mut sums = Vec::new();
    for word in line("totals:")?.split_whitespace() {
        sums.push(word.parse::<u64>().map_err(|_| format!("{CALLGRIND}: '{word}' in 'totals:' is no number"))?);
    }
    if names.is_empty() || sums.len() > names.len() || sums.first().is_none_or(|sum| *sum == 0) {
        return Err(format!("{CALLGRIND} counted nothing: {} events, {} sums", names.len(), sums.len()));
    }
    // Sums at the end that are zero are left out.
    sums.resize(names.len(), 0);
    let counter = |(name, sum): (&str, u64)| RawCounter {
        name: name.to_owned(),
        kind: CounterKind::Simulated,
        count: Known::Is(sum as f64),
        running: Known::Is(1.0),
    };
    Ok(names.into_iter().zip(sums).map(counter).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn totals_are_read_as_valgrind_writes_them() {
        let text = "# callgrind format\nversion: 1\npositions: instr line\nevents: Ir Dr Bcm\nsummary: 12 3\n\n\
            fn=(1) x\n0x1 1 12 3\n\ntotals: 12 3\n";
        let counters = totals(text).unwrap();
        let found: Vec<(&str, f64)> =
            counters.iter().map(|counter| (&*counter.name, *counter.count.known().unwrap())).collect();
        assert_eq!(found, [("Ir", 12.0), ("Dr", 3.0), ("Bcm", 0.0)]);
        assert!(counters.iter().all(|counter| counter.kind == CounterKind::Simulated));
    }

    #[test]
    fn a_file_that_counted_nothing_is_no_zero() {
        for text in [
            "",
            "events: Ir\n",
            "events: Ir\ntotals: 0\n",
            "events: Ir\ntotals:\n",
            "events: Ir\ntotals: x\n",
            "events: Ir\ntotals: 1 2\n",
            "events:\ntotals: 1\n",
        ] {
            assert!(totals(text).is_err(), "{text:?}");
        }
    }
}
