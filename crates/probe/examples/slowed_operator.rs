//! The ranking against a truth that is known because it was built: the projection to the vocabulary does all its work twice.
//! `cargo run --release -p hourglass-probe --example slowed_operator [-- MODEL [TURNS]]` (default: synthetic:qwen3-0.6b, 12).
//! Prediction: what that operator's row could gain more in the slowed model than in the other. Truth: what the request's clock
//! says. Requests and replays of both models take turns, as in `find`, and differences are taken within a round of turns, so
//! that a change of the machine's speed falls on all four alike. What is printed depends on the clock: nothing here passes or
//! fails.

use model::{Engine, LoadOptions};
use ops::{Features, Invocation, Kernel, KernelFn, Registry, Tolerance};
use probe::{Case, Replaying, Request, clock_again};
use record::{Ceilings, LogitsMode, Phase, Replay, Workload, token_trace_hash};
use std::error::Error;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use weights::{ModelFiles, ModelSource, OpenOptions};

const CHECKPOINT: &str = "selected";
const PROMPT: usize = 32;
const OUTPUT: usize = 65;
/// Decode steps of a request, of which the one in the middle is replayed.
const STEPS: f64 = (OUTPUT - 1) as f64;
/// Replayed rounds in a turn, of which the median counts.
const ROUNDS: usize = 8;
/// Turns before those that count.
const WARMUP: usize = 1;
/// Rows that only the projection to the vocabulary has.
const VOCABULARY: usize = 4096;

static ORIGINAL: OnceLock<KernelFn> = OnceLock::new();

fn twice(call: &Invocation<'_>) {
    let Some(original) = ORIGINAL.get() else { return };
    original(call);
    if call.weight(0).rows > VOCABULARY {
        original(call);
    }
}

/// The registry with the version of `matvec` that this machine runs replaced by one that calls it twice.
fn slowed() -> Result<Registry, Box<dyn Error>> {
    let standard = Registry::standard();
    let features = Features::detect();
    let linear = *standard.operators().iter().find(|operator| operator.name() == "linear").ok_or("no linear")?;
    let own: &'static Kernel = standard
        .kernels(linear)
        .filter(|kernel| kernel.name == "matvec" && kernel.features.missing_from(features).is_empty())
        .last()
        .ok_or("no matvec that runs here")?;
    ORIGINAL.get_or_init(|| own.run);
    let twice = Kernel {
        operator: own.operator,
        name: own.name,
        isa: "twice",
        features: own.features,
        supports: own.supports,
        tolerance: Tolerance { nmse: own.tolerance.nmse, reason: own.tolerance.reason },
        scratch: own.scratch,
        ahead: own.ahead,
        run: twice,
        file: file!(),
        line: line!(),
        products: own.products,
    };
    // Registries hold what lives as long as the process.
    let kernels: &'static [&'static Kernel] = Box::leak(Box::new([&*Box::leak(Box::new(twice))]));
    Ok(Registry::with(kernels, &[]))
}

fn engine(files: &ModelFiles, registry: Registry) -> Result<Engine, Box<dyn Error>> {
    let mut options = LoadOptions::new(registry.checkpoint(CHECKPOINT)?);
    options.registry = registry;
    Ok(Engine::load(files, options)?)
}

fn workload(tokens: &[u32]) -> Workload {
    Workload {
        model: "example".to_owned(),
        weights_hash: String::new(),
        phase: Phase::Decode,
        context_tokens: tokens.len() as u64,
        new_rows: 1,
        capacity: (PROMPT + OUTPUT) as u64,
        output_tokens: 0,
        logits: LogitsMode::Last,
        sampling: "greedy".to_owned(),
        seed: 0,
        prompt_rule: probe::PROMPT_RULE.to_owned(),
        token_trace_hash: token_trace_hash(tokens),
    }
}

/// What each row of the decode steps could gain, in milliseconds per request, most first.
fn rows(replay: &Replay) -> Vec<(String, f64)> {
    let dispatch = replay.dispatch_floor.known().and_then(|timing| timing.median.value()).unwrap_or(0.0);
    let gain = |operator: &record::OperatorRow| {
        let floor = operator.row.floor.known()?.least.value()?;
        Some((operator.name(), (operator.row.timing.median.value()? - dispatch - floor).max(0.0) * STEPS / 1e3))
    };
    let mut rows: Vec<(String, f64)> = replay.operators.known().into_iter().flatten().filter_map(gain).collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    rows
}

/// Milliseconds per request that a row takes, turn by turn.
fn by_turn(replay: &Replay, name: &str) -> Vec<f64> {
    let row = replay.operators.known().into_iter().flatten().find(|operator| operator.name() == name);
    let samples = row.map_or(&[][..], |operator| &operator.row.timing.samples_us);
    samples.chunks(ROUNDS).map(|turn| median(turn) * STEPS / 1e3).collect()
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}

/// The median of what the slowed one takes more in the same round of turns.
fn more(as_it_is: &[f64], slowed: &[f64]) -> f64 {
    median(&as_it_is.iter().zip(slowed).map(|(own, slow)| slow - own).collect::<Vec<_>>())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| "synthetic:qwen3-0.6b".to_owned());
    let turns: usize = arguments.next().map_or(Ok(12), |text| text.parse())?;
    let files = weights::open(&ModelSource::parse(&model)?, &OpenOptions::default())?;
    let config = files.config();
    let prompt = |length: usize| probe::prompt(length, config.vocab_size, &config.eos_tokens, 0);
    let mut engines = [engine(&files, Registry::standard())?, engine(&files, slowed()?)?];
    let threads = engines[0].options().threads as u64;
    let cancelled = std::sync::Arc::new(AtomicBool::new(false));
    let ceilings: Ceilings = probe::ceilings::current(threads, &cancelled, &|_, _, _| {})?.ceilings;
    let (input, tokens) = (prompt(PROMPT), prompt(PROMPT + OUTPUT / 2));
    let request = Request { prompt: &input, output_tokens: OUTPUT, logits: LogitsMode::Last, warmup: 0 };
    let case = Case {
        workload: workload(&tokens),
        tokens: &tokens,
        warmup: WARMUP,
        iterations: turns,
        operators: true,
        ceilings: Some(&ceilings),
    };
    let mut replays = [Replaying::begin(&mut engines[0], &case)?, Replaying::begin(&mut engines[1], &case)?];
    let mut requests: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for round in 0..WARMUP + turns {
        // Each round of turns starts one later.
        for who in (0..4).map(|place| (place + round) % 4) {
            let (own, timed) = (who % 2, round >= WARMUP);
            if who < 2 {
                let clock = clock_again(&mut engines[own], &request)?.ok_or("interrupted")?;
                if timed {
                    requests[own].push(clock.whole_request.value().ok_or("no clock")? * 1e3);
                }
            } else {
                replays[own].turn(&mut engines[own], ROUNDS, timed)?;
            }
        }
    }
    let [before, after] = replays;
    let (before, after) = (before.end(&engines[0])?, after.end(&engines[1])?);
    let (own, slowed) = (rows(&before), rows(&after));
    println!("could be gained at most, ms per request      as it is    slowed");
    for (name, slow) in slowed.iter().take(6) {
        let own = own.iter().find(|row| row.0 == *name).map_or(0.0, |row| row.1);
        println!("  {name:<40}{own:>10.1}{slow:>10.1}");
    }
    let (name, _) = slowed.first().ok_or("no row")?;
    let predicted = more(&by_turn(&before, name), &by_turn(&after, name));
    let truth = more(&requests[0], &requests[1]);
    println!("first: {name}; undoing what slowed it should bring {predicted:.1} ms");
    println!("the request's clock says {truth:.1} ms: {:+.1} % off", 100.0 * (predicted / truth - 1.0));
    Ok(())
}
