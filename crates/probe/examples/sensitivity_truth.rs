//! The sensitivity probe against truths that are known because they were built: an operator that was slowed down, and one that
//! runs beside a longer one. `cargo run --release -p hourglass-probe --example sensitivity_truth [-- ROUNDS]`.
//! Two workers, a tiny model; what is printed depends on the clock, so nothing here passes or fails.

use model::{Engine, LoadOptions};
use ops::{Invocation, Kernel, Registry, kernel};
use probe::{Place, Probe, sensitivity};
use record::{LogitsMode, Phase, Slope, Verdict};
use std::time::{Duration, Instant};
use weights::{ModelSource, OpenOptions};

fn spin(microseconds: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(microseconds) {
        std::hint::spin_loop();
    }
}

/// Every worker is slow at its share of `swiglu`; the values are of no consequence here.
fn slow_swiglu(i: &Invocation<'_>) {
    let output = i.output(0);
    for row in 0..output.rows {
        i.share(output.width).for_each(|column| output.set(row, column, 0.01));
    }
    spin(300);
}

/// Only the first worker has work, much of it.
fn long_embed(i: &Invocation<'_>) {
    if i.worker == 0 {
        let output = i.output(0);
        (0..output.rows).for_each(|row| (0..output.width).for_each(|column| output.set(row, column, 0.01)));
        spin(2000);
    }
}

/// Only the second worker has work, little of it, and none of it waits for the embedding.
fn short_rope_table(i: &Invocation<'_>) {
    if i.worker == 1 {
        let output = i.output(0);
        (0..output.rows).for_each(|row| (0..output.width).for_each(|column| output.set(row, column, 0.5)));
        spin(100);
    }
}

static SLOW_SWIGLU: Kernel = kernel! {
    operator: "swiglu", name: "rows", isa: "slowed", features: &[], nmse: 0.0, because: "not computed", run: slow_swiglu,
};
static LONG_EMBED: Kernel = kernel! {
    operator: "embed", name: "rows", isa: "first worker", features: &[], nmse: 0.0, because: "not computed",
    run: long_embed,
};
static SHORT_ROPE_TABLE: Kernel = kernel! {
    operator: "rope_table", name: "rows", isa: "second worker", features: &[], nmse: 0.0, because: "not computed",
    run: short_rope_table,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(12), |text| text.parse())?;
    let registry = Registry::with(&[&SLOW_SWIGLU, &LONG_EMBED, &SHORT_ROPE_TABLE], &[]);
    let files = weights::open(&ModelSource::parse("synthetic:tiny")?, &OpenOptions::default())?;
    let mut options = LoadOptions::new(registry.checkpoint("selected")?);
    options.registry = registry;
    options.threads = 2;
    let mut engine = Engine::load(&files, options)?;
    let prompt = probe::prompt(16, files.config().vocab_size, &files.config().eos_tokens, 0);
    let operators = ["swiglu", "embed", "rope_table", "rms_norm", "linear"];
    let places = operators.map(|name| Place::Operator(name.to_owned()));
    let probe = Probe {
        prompt: &prompt,
        output_tokens: 33,
        logits: LogitsMode::Last,
        phase: Phase::Decode,
        places: &places,
        rounds,
        added_share: 0.05,
    };
    let probed = sensitivity(&mut engine, &probe, &|_, _, _| {})?;
    println!("{:<12}{:>7}{:>10}{:>11}{:>22}  verdict", "operator", "calls", "own ms", "expected", "slope (95 %)");
    for target in &probed.targets {
        let points: Vec<Vec<(f64, f64)>> = (0..rounds as u64)
            .map(|round| {
                let here = probed.samples.iter().filter(|sample| sample.round == round);
                let mine = here.filter(|sample| sample.target.as_ref().is_none_or(|name| *name == target.target));
                mine.map(|sample| (sample.injected_seconds, sample.request_seconds)).collect()
            })
            .collect();
        let Some(slope) = Slope::fit(&points) else { continue };
        println!(
            "{:<12}{:>7}{:>10.2}{:>11.2}{:>22}  {}",
            target.target,
            target.calls,
            1e3 * target.own.value().unwrap_or(0.0),
            target.expected_slope.value().unwrap_or(f64::NAN),
            format!("{:.2} ({:.2}, {:.2})", slope.value, slope.low, slope.high),
            Verdict::of(&slope).words()
        );
    }
    match probed.surroundings.others.value() {
        Some(others) => println!("other processes used {:.0} % of the processors", 100.0 * others),
        None => println!("what other processes used is not known"),
    }
    Ok(())
}
