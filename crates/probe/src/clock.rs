//! The request clock: one warmed request through the production path, timed per token, its memory read outside every clock.
//! Not here: which operator the time went to (`replay.rs`).

use crate::error::Error;
use crate::processor::ProcessorTime;
use crate::wiring::tally;
use model::{Cache, Dispatches, Engine, Keep};
use record::{Coverage, Known, LogitsMode, Phase, Reading, RequestClock, Samples, Unit, Wiring, token_trace_hash};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The request to clock.
pub struct Request<'a> {
    pub prompt: &'a [u32],
    /// Tokens to generate, at least two; end-of-text ids do not end it, so lengths are exact.
    pub output_tokens: usize,
    pub logits: LogitsMode,
    /// Complete requests before the clocked one.
    pub warmup: usize,
}

/// What the clock gives: the times, and what was dispatched meanwhile.
pub struct Clocked {
    pub clock: Known<RequestClock>,
    /// Prefill, then decode; as far as the request came.
    pub wiring: Vec<Wiring>,
}

/// Runs `request.warmup` requests unclocked, then one clocked. `progress(done, total, what)` is called between requests.
///
/// Interrupted in the middle, it keeps what it has: the clock's coverage says so.
///
/// # Errors
/// Fewer than two tokens, or a step that fails.
pub fn clock(
    engine: &mut Engine,
    request: &Request<'_>,
    progress: &dyn Fn(usize, usize, &str),
) -> Result<Clocked, Error> {
    if request.output_tokens < 2 {
        return Err(Error::OutputTooShort(request.output_tokens));
    }
    for round in 0..request.warmup {
        progress(round, request.warmup + 1, "warm-up request");
        if !run_once(engine, request)?.is_some_and(|run| run.complete(request)) {
            return Ok(Clocked::interrupted("before the clocked request"));
        }
    }
    if !finite(engine, request)? {
        return Ok(Clocked::interrupted("before the clocked request"));
    }
    progress(request.warmup, request.warmup + 1, "clocked request");
    let Some(mut run) = run_once(engine, request)? else {
        return Ok(Clocked::interrupted("in the prefill"));
    };
    let layers = engine.config().layers;
    let mut wiring = vec![tally(Phase::Prefill, layers, &run.prefill_dispatches)];
    // An interrupted step has dispatched some of its calls: nothing was planned to compare that with.
    if run.complete(request) {
        wiring.push(tally(Phase::Decode, layers, &engine.dispatches()));
    }
    let release = Instant::now();
    drop(run.cache.take());
    run.elapsed += release.elapsed();
    Ok(Clocked { clock: Known::Is(readings(request, &run)), wiring })
}

impl Clocked {
    fn interrupted(place: &str) -> Clocked {
        let clock = Known::unavailable(format!("interrupted {place}"), "run again and let it finish");
        Clocked { clock, wiring: Vec::new() }
    }
}

impl Request<'_> {
    fn capacity(&self) -> usize {
        self.prompt.len() + self.output_tokens
    }

    fn keep(&self) -> Keep {
        match self.logits {
            LogitsMode::Last => Keep::Last,
            LogitsMode::All => Keep::All,
        }
    }
}

/// A request that produced at least its first token.
struct Run {
    /// Taken when it is released.
    cache: Option<Cache>,
    /// Of each generated token, the prefill's first.
    times: Vec<Duration>,
    output: Vec<u32>,
    to_first_token: Duration,
    /// From set-up of input and cache to the last token.
    elapsed: Duration,
    peak_bytes: usize,
    processor_share: Reading,
    prefill_dispatches: Vec<Dispatches>,
}

impl Run {
    fn complete(&self, request: &Request<'_>) -> bool {
        self.output.len() == request.output_tokens
    }
}

/// Whether the model's logits after the prompt are numbers: rates of a model that computes nothing mean nothing. False if it
/// was interrupted.
///
/// # Errors
/// They are not finite.
fn finite(engine: &mut Engine, request: &Request<'_>) -> Result<bool, Error> {
    let mut cache = engine.new_cache(request.capacity());
    let mut row = Vec::new();
    match engine.forward(&mut cache, request.prompt, Keep::Last) {
        Ok(logits) => logits.row(0, &mut row),
        Err(model::Error::Interrupted) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    if row.iter().all(|logit| logit.is_finite()) { Ok(true) } else { Err(model::Error::Logits.into()) }
}

/// One request; `None` if it was interrupted before its first token.
fn run_once(engine: &mut Engine, request: &Request<'_>) -> Result<Option<Run>, Error> {
    engine.reset_dispatches();
    let processor_time = ProcessorTime::now();
    ops::memory::reset_peak();
    let start = Instant::now();
    let mut cache = engine.new_cache(request.capacity());
    let mut times: Vec<Duration> = Vec::with_capacity(request.output_tokens);
    let mut output: Vec<u32> = Vec::with_capacity(request.output_tokens);

    let prefill = Instant::now();
    match engine.forward(&mut cache, request.prompt, request.keep()) {
        Ok(logits) => output.push(logits.argmax(logits.rows() - 1)),
        Err(model::Error::Interrupted) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    times.push(prefill.elapsed());
    let to_first_token = start.elapsed();

    // The counters of the two phases are told apart here; the pause is no part of the request.
    let pause = Instant::now();
    let prefill_dispatches = engine.dispatches();
    engine.reset_dispatches();
    let paused = pause.elapsed();

    while output.len() < request.output_tokens && !engine.options().cancelled.load(Relaxed) {
        let fed = output[output.len() - 1];
        let step = Instant::now();
        match engine.forward(&mut cache, &[fed], Keep::Last) {
            Ok(logits) => output.push(logits.argmax(0)),
            Err(model::Error::Interrupted) => break,
            Err(error) => return Err(error.into()),
        }
        times.push(step.elapsed());
    }
    let elapsed = start.elapsed() - paused;
    let peak_bytes = ops::memory::peak_bytes();
    let processor_share = processor_time.share_since(elapsed, engine.options().threads);
    let cache = Some(cache);
    Ok(Some(Run { cache, times, output, to_first_token, elapsed, peak_bytes, processor_share, prefill_dispatches }))
}

/// Sums over all tokens exist only for a request that was not cut short.
fn readings(request: &Request<'_>, run: &Run) -> RequestClock {
    let token_seconds: Vec<f64> = run.times.iter().map(Duration::as_secs_f64).collect();
    let (prefill, steps) = (token_seconds[0], &token_seconds[1..]);
    let decode: f64 = steps.iter().sum();
    let n = steps.len() as u64;
    let tokens = run.output.len();
    let complete = run.complete(request);
    let cut = format!("interrupted after {tokens} of {} tokens", request.output_tokens);
    let missing = || Known::unavailable(cut.as_str(), "run again and let it finish");
    let of_all = |reading: Reading| if complete { reading } else { missing() };
    let between = Samples::new(steps).ok();
    let percentile = |pick: fn(&Samples) -> f64| match &between {
        Some(samples) => Reading::measured(pick(samples) * 1e6, Unit::Microseconds, n),
        None => missing(),
    };
    let whole = run.elapsed.as_secs_f64();
    RequestClock {
        coverage: if complete { Coverage::complete() } else { Coverage::incomplete(cut.as_str()) },
        prefill: Reading::measured(prefill, Unit::Seconds, 1),
        decode: of_all(Reading::measured(decode, Unit::Seconds, n)),
        prefill_rate: Reading::ratio(request.prompt.len() as f64, prefill, Unit::TokensPerSecond, 1),
        decode_rate: if n == 0 { missing() } else { Reading::ratio(n as f64, decode, Unit::TokensPerSecond, n) },
        time_to_first_token: Reading::measured(run.to_first_token.as_secs_f64(), Unit::Seconds, 1),
        whole_request: of_all(Reading::measured(whole, Unit::Seconds, 1)),
        output_rate: of_all(Reading::ratio(tokens as f64, whole, Unit::TokensPerSecond, 1)),
        inter_token_median: percentile(Samples::median),
        inter_token_p95: percentile(|samples| samples.percentile(95.0)),
        peak_allocation: Reading::measured(run.peak_bytes as f64, Unit::Bytes, 1),
        processor_share: run.processor_share.clone(),
        token_seconds,
        output_hash: token_trace_hash(&run.output),
    }
}
