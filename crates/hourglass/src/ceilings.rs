//! `hourglass ceilings`: what this machine can do at most, and the known-traffic check of it.
//! Not here: how it is measured and kept (`probe::ceilings`).

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use probe::ceilings::{self, CHECK_TOLERANCE, CeilingsError, Current};
use record::{Ceilings, Known, Measured, ThreadCeilings};

use crate::device::DeviceChoice;
use crate::failure::{Interrupted, usage};
use crate::progress::Progress;
use crate::prose::paragraph;
use crate::{interrupt, output};

/// Numbers of threads that a table has room for.
const COLUMNS: usize = 4;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What is measured: cpu, cuda (the first GPU), cuda:N, or auto
    #[arg(long, value_name = "cpu|cuda[:N]|auto", default_value_t = DeviceChoice::Cpu)]
    device: DeviceChoice,
    /// A number of threads to measure for, beside those up to every processor
    #[arg(long, value_name = "N")]
    threads: Option<u64>,
    /// Measure now, N times each quantity, in place of what is kept [default where it must be measured: 9]
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// Measure now, in place of what is kept
    #[arg(long)]
    refresh: bool,
    /// Write the record
    #[arg(long, value_name = "FILE")]
    json_output: Option<PathBuf>,
    /// Print the record in place of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let processors = ops::processors() as u64;
    let threads = args.threads.unwrap_or(processors);
    for (flag, found, most) in [("--threads", Some(threads), 1024), ("--rounds", args.rounds, 1000)] {
        if let Some(found) = found.filter(|found| !(1..=most).contains(found)) {
            return Err(usage(format!("{flag} {found}: expected 1 to {most}")));
        }
    }
    let file = output::create_if_asked("--json-output", args.json_output.as_deref())?;
    if let Some(device) = args.device.open()? {
        let found = of_device(&args, device)?;
        if let Some(file) = file {
            file.finish_with_json(&found)?;
        }
        match args.json {
            true => output::print_json(&found)?,
            false => output::print(device_text(&found).as_bytes())?,
        }
        return Ok(if crate::void::said(&found) { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let progress = Progress::new("ceilings");
    let show = |done: usize, total: usize, what: &str| progress.steps(done, total, what);
    let cancelled = interrupt::flag();
    let found = if args.refresh || args.rounds.is_some() {
        ceilings::refresh(threads, args.rounds.unwrap_or(ceilings::ROUNDS), &cancelled, &show)
    } else {
        ceilings::current(threads, &cancelled, &show)
    };
    drop(progress);
    let current = found.map_err(|error| match error {
        CeilingsError::Interrupted => {
            Interrupted("while the ceilings were measured; nothing was kept".to_owned()).into()
        }
        other => anyhow::Error::from(other),
    })?;
    for note in &current.notes {
        output::note(format_args!("hourglass: {note}"));
    }
    if let Some(file) = file {
        file.finish_with_json(&current.ceilings)?;
    }
    if args.json {
        output::print_json(&current.ceilings)?;
    } else {
        output::print(text(&current).as_bytes())?;
    }
    Ok(if crate::void::said(&current.ceilings) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A GPU's, measured now.
fn of_device(args: &Args, device: Arc<dyn ops::Device>) -> Result<Ceilings> {
    if args.threads.is_some() {
        return Err(usage(format!("--threads: a GPU has none; leave it out with --device {}", args.device)));
    }
    let registry = ops::Registry::standard().on_device(device.kernels());
    let mut options = model::LoadOptions::new(registry.checkpoint(ops::ladder::FAST).map_err(usage)?);
    options.device = Some(device);
    Ok(ceilings::of_device(&options, args.rounds.unwrap_or(ceilings::ROUNDS))?)
}

fn device_text(ceilings: &Ceilings) -> String {
    let host = &ceilings.conditions.host;
    let driver = host.driver.known().map_or("unknown", String::as_str);
    let mut text = format!("Ceilings of {}, driver {driver}\n", host.device);
    let _ = writeln!(text, "{}, {} rounds, id {}\n", ceilings.created, ceilings.workload.rounds, &ceilings.id()[..16]);
    let mut line = |what: &str, rate: &Known<Measured>, unit: &str| {
        let shown = match rate {
            Known::Is(measured) => cell(measured),
            Known::Unavailable(missing) => missing.unavailable.clone(),
        };
        let _ = writeln!(text, "{what:<52}{shown:>14} {unit}");
    };
    for entry in &ceilings.threads {
        for row in &entry.bandwidth {
            let bytes = row.footprint_bytes.known().copied().unwrap_or(0);
            line(&format!("read {}, {} MiB", row.level.name(), bytes >> 20), &row.rate, "GB/s");
        }
        for row in &entry.peaks {
            line(&format!("multiply, {}", row.path.name()), &row.rate, "GFLOP/s");
        }
        line("one more kernel in a graph, dependent", &entry.barrier, "us");
        line("a graph of one kernel, until the host knows", &entry.dispatch, "us");
    }
    text += "Medians and the median deviation from them. A ceiling is the best sample.\n";
    text
}

fn text(current: &Current) -> String {
    let ceilings = &current.ceilings;
    let host = &ceilings.conditions.host;
    let model = host.cpu_model.known().map_or("unknown processor", String::as_str);
    let mut text = format!("Ceilings of {model}, {} processors\n", host.processors);
    let kept = match (&current.path, current.fresh) {
        (Some(path), true) => format!("kept in {}", path.display()),
        (Some(path), false) => format!("from {}", path.display()),
        (None, _) => "not kept".to_owned(),
    };
    let _ = writeln!(text, "{}, {} rounds, id {}", ceilings.created, ceilings.workload.rounds, &ceilings.id()[..16]);
    text += &paragraph("", &kept, "  ");
    text += &paragraph("", &load(ceilings), "  ");
    let chosen = columns(ceilings);
    if chosen.len() < ceilings.threads.len() {
        text += "Some numbers of threads are shown; --json has all.\n";
    }
    table(&mut text, &chosen);
    let check = &current.check;
    let verdict = match (check.agrees(), check.disturbed()) {
        (true, _) => "agrees",
        (false, true) => "lower, while other processes had the processors: nothing against the ceiling",
        (false, false) => "DISAGREES: the machine changes its state",
    };
    text += &paragraph(
        "\nKnown traffic: ",
        &format!(
            "exactly 1 GiB read by {} thread{} in {:.1} ms, {:.1} GB/s, {:+.1} % from the ceiling; every word as expected; {verdict} \
             (tolerance {:.0} %)",
            check.threads,
            if check.threads == 1 { "" } else { "s" },
            check.seconds * 1e3,
            check.rate,
            100.0 * check.difference,
            100.0 * CHECK_TOLERANCE
        ),
        "  ",
    );
    if ceilings.void {
        text += "VOID: a check of the record failed; see its \"checks\".\n";
    }
    text
}

fn load(ceilings: &Ceilings) -> String {
    let share = |reading: &record::Reading| reading.value().map(|share| 100.0 * share);
    match (share(&ceilings.processor_share), share(&ceilings.surroundings.steal)) {
        (Some(own), stolen) => {
            let stolen = stolen.map_or_else(String::new, |stolen| format!(", {stolen:.1} % of the machine was stolen"));
            let busy = if own < 95.0 { ": other load was present, so every rate is a lower bound" } else { "" };
            format!("this process got {own:.0} % of the processor time that it could use{stolen}{busy}")
        }
        _ => "how much other load was present is not known".to_owned(),
    }
}

/// The numbers of threads to show: the first two, a middle one and the largest.
fn columns(ceilings: &Ceilings) -> Vec<&ThreadCeilings> {
    let all = &ceilings.threads;
    if all.len() <= COLUMNS {
        return all.iter().collect();
    }
    [0, 1, all.len() / 2 + 1, all.len() - 1].map(|index| &all[index]).to_vec()
}

fn table(text: &mut String, columns: &[&ThreadCeilings]) {
    let Some(first) = columns.first() else { return };
    let head = |text: &mut String, what: &str| {
        let _ = write!(text, "\n{what:<26}");
        for column in columns {
            let _ = write!(
                text,
                "{:>15}",
                format!("{} thread{}", column.threads, if column.threads == 1 { "" } else { "s" })
            );
        }
        text.push('\n');
    };
    let mut missing: Vec<(String, String)> = Vec::new();
    let mut line = |text: &mut String, what: String, pick: &dyn Fn(&ThreadCeilings) -> &Known<Measured>| {
        let _ = write!(text, "{what:<26}");
        for column in columns {
            let _ = match pick(column) {
                Known::Is(measured) => write!(text, "{:>15}", cell(measured)),
                Known::Unavailable(why) => {
                    match missing.iter_mut().find(|(_, reason)| *reason == why.unavailable) {
                        Some((rows, _)) if !rows.contains(&what) => *rows += &format!("; {what}"),
                        Some(_) => {}
                        None => missing.push((what.clone(), why.unavailable.clone())),
                    }
                    write!(text, "{:>15}", "-")
                }
            };
        }
        text.push('\n');
    };
    head(text, "bandwidth, GB/s");
    for (index, row) in first.bandwidth.iter().enumerate() {
        line(text, format!("{} {}, {} streams", row.traffic.name(), row.level.name(), row.streams), &|entry| {
            &entry.bandwidth[index].rate
        });
    }
    head(text, "arithmetic, GFLOP/s or GOP/s");
    for (index, row) in first.peaks.iter().enumerate() {
        line(text, format!("{}, {}", row.path.name(), row.operands.name()), &|entry| &entry.peaks[index].rate);
    }
    head(text, "cost, microseconds");
    line(text, "barrier".to_owned(), &|entry| &entry.barrier);
    line(text, "dispatch".to_owned(), &|entry| &entry.dispatch);
    text.push_str("Medians and the median deviation from them. A ceiling is the best sample, of 4 and 8 streams.\n");
    for (rows, why) in missing {
        *text += &paragraph("- ", &format!("{rows}: {why}"), "  ");
    }
}

fn cell(measured: &Measured) -> String {
    let (median, spread) = (measured.median.value().unwrap_or(0.0), measured.spread.value().unwrap_or(0.0));
    let percent = if median > 0.0 { 100.0 * spread / median } else { 0.0 };
    let shown = if median >= 100.0 {
        format!("{median:.0}")
    } else if median >= 1.0 {
        format!("{median:.1}")
    } else {
        format!("{median:.3}")
    };
    format!("{shown} ±{percent:.0} %")
}
