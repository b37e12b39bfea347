//! The ranking against a truth that is known because it was built: the projection to the vocabulary does all its work twice.
//! `cargo run --release -p hourglass-probe --example slowed_operator [-- MODEL [ROUNDS]]` (default: synthetic:qwen3-0.6b, 4).
//! Prediction: what that operator's row could gain more in the slowed model than in the other. Truth: what the request's clock
//! says, both alternated. What is printed depends on the clock, so nothing here passes or fails.

use model::{Engine, LoadOptions};
use ops::{Features, Invocation, Kernel, KernelFn, Registry, Tolerance};
use probe::{Case, Request, clock, replay};
use record::{Ceilings, LogitsMode, Phase, Replay, Workload, token_trace_hash};
use std::error::Error;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use weights::{ModelFiles, ModelSource, OpenOptions};

const CHECKPOINT: &str = "selected";
const PROMPT: usize = 32;
const OUTPUT: usize = 33;
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

fn decode(engine: &mut Engine, tokens: &[u32], ceilings: &Ceilings) -> Result<Replay, Box<dyn Error>> {
    let workload = Workload {
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
    };
    let case = Case { workload, tokens, warmup: 2, iterations: 16, operators: true, ceilings: Some(ceilings) };
    Ok(replay(engine, &case, &|_, _, _| {})?)
}

/// What each row of the decode steps could gain, in milliseconds per request, most first.
fn rows(replay: &Replay) -> Vec<(String, f64)> {
    let steps = (OUTPUT - 1) as f64;
    let dispatch = replay.dispatch_floor.known().and_then(|timing| timing.median.value()).unwrap_or(0.0);
    let mut rows: Vec<(String, f64)> = replay
        .operators
        .known()
        .into_iter()
        .flatten()
        .filter_map(|operator| {
            let floor = operator.row.floor.known()?.least.value()?;
            let gain = operator.row.timing.median.value()? - dispatch - floor;
            Some((operator.name(), gain.max(0.0) * steps / 1e3))
        })
        .collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    rows
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().unwrap_or_else(|| "synthetic:qwen3-0.6b".to_owned());
    let rounds: usize = arguments.next().map_or(Ok(4), |text| text.parse())?;
    let files = weights::open(&ModelSource::parse(&model)?, &OpenOptions::default())?;
    let prompt = probe::prompt(PROMPT, files.config().vocab_size, &files.config().eos_tokens, 0);
    let mut engines = [engine(&files, Registry::standard())?, engine(&files, slowed()?)?];
    let threads = engines[0].options().threads as u64;
    let cancelled = std::sync::Arc::new(AtomicBool::new(false));
    let ceilings = probe::ceilings::current(threads, &cancelled, &|_, _, _| {})?.ceilings;
    let request = Request { prompt: &prompt, output_tokens: OUTPUT, logits: LogitsMode::Last, warmup: 1 };
    let mut times: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        // One after the other, then the other way round.
        for index in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let clocked = clock(&mut engines[index], &request, &|_, _, _| {})?;
            let seconds = clocked.clock.known().and_then(|clock| clock.whole_request.value()).ok_or("no clock")?;
            times[index].push(seconds * 1e3);
        }
    }
    let truth = median(&mut times[1]) - median(&mut times[0]);
    let middle = PROMPT + OUTPUT / 2;
    let tokens = probe::prompt(middle, files.config().vocab_size, &files.config().eos_tokens, 0);
    let [before, after] = &mut engines;
    let (before, after) = (rows(&decode(before, &tokens, &ceilings)?), rows(&decode(after, &tokens, &ceilings)?));
    println!("could be gained at most, ms per request      as it is    slowed");
    for (name, slow) in after.iter().take(6) {
        let own = before.iter().find(|row| row.0 == *name).map_or(0.0, |row| row.1);
        println!("  {name:<40}{own:>10.1}{slow:>10.1}");
    }
    let (name, slow) = after.first().ok_or("no row")?;
    let own = before.iter().find(|row| row.0 == *name).map_or(0.0, |row| row.1);
    println!("first: {name}; undoing what slowed it should bring {:.1} ms", slow - own);
    println!("the request's clock says {truth:.1} ms: {:+.1} % off", 100.0 * ((slow - own) / truth - 1.0));
    Ok(())
}
