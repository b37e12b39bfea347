//! The request clock: one warmed request through the production path, timed per token, its memory read outside every clock.
//! Not here: which operator the time went to (`replay.rs`).

use crate::error::Error;
use crate::processor::ProcessorTime;
use crate::wiring::tally;
use model::{Cache, Engine, Keep};
use ops::CachePolicy;
use record::{Coverage, Known, LogitsMode, Phase, Reading, RequestClock, Samples, Unit, Wiring, token_trace_hash};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Programs that an engine keeps at most: so many other shapes push out everything that was bound before.
const OTHER_SHAPES: usize = 8;

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
    progress(request.warmup, request.warmup + 1, "clocked request");
    reset_dispatches(engine, request)?;
    let Some(mut run) = run_once(engine, request)? else {
        return Ok(Clocked::interrupted("in the prefill"));
    };
    let mut wiring: Vec<Wiring> = run.prefill_wiring.take().into_iter().collect();
    if run.complete(request) {
        read_wiring(engine, request, &mut run, &mut wiring)?;
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

    /// Where the pass that ends the prompt begins: a long prompt runs in chunks, and the last one gives the logits.
    fn last_chunk(&self, engine: &Engine) -> usize {
        let whole = self.logits == LogitsMode::All || engine.checkpoint().cache == CachePolicy::None;
        if whole {
            0
        } else {
            (self.prompt.len() - 1) / engine.options().prefill_chunk * engine.options().prefill_chunk
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
    /// Where the prefill's program is gone by the end of the request.
    prefill_wiring: Option<Wiring>,
}

impl Run {
    fn complete(&self, request: &Request<'_>) -> bool {
        self.output.len() == request.output_tokens
    }
}

/// One request; `None` if it was interrupted before its first token.
fn run_once(engine: &mut Engine, request: &Request<'_>) -> Result<Option<Run>, Error> {
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

    // Without a cache every step has a program of its own, so the prefill's counters must be read now; the pause is no part of
    // the request.
    let pause = Instant::now();
    let mut prefill_wiring = None;
    if engine.checkpoint().cache == CachePolicy::None {
        let layers = engine.config().layers;
        let mut empty = engine.new_cache(request.capacity());
        let step = engine.prepare(&mut empty, request.prompt, request.keep())?;
        prefill_wiring = Some(tally(Phase::Prefill, layers, 1, step.bound()));
    }
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
    Ok(Some(Run { cache, times, output, to_first_token, elapsed, peak_bytes, processor_share, prefill_wiring }))
}

/// Sets the counters of the programs that the request will run to zero.
fn reset_dispatches(engine: &mut Engine, request: &Request<'_>) -> Result<(), Error> {
    if engine.checkpoint().cache == CachePolicy::None {
        for context in 1..=OTHER_SHAPES {
            engine.kernels(1, Keep::Last, context)?;
        }
        return Ok(());
    }
    let last = request.last_chunk(engine);
    let mut cache = engine.new_cache(request.capacity());
    if last > 0 {
        engine.forward(&mut cache, &request.prompt[..last], Keep::Last)?;
    }
    engine.prepare(&mut cache, &request.prompt[last..], request.keep())?.bound().reset_dispatches();
    // A one-token step has one program per capacity, wherever it stands.
    let mut cache = engine.new_cache(request.capacity());
    engine.prepare(&mut cache, &request.prompt[..1], Keep::Last)?.bound().reset_dispatches();
    Ok(())
}

/// Finds the programs that have just run again, by preparing the same steps without running them.
fn read_wiring(
    engine: &mut Engine,
    request: &Request<'_>,
    run: &mut Run,
    wiring: &mut Vec<Wiring>,
) -> Result<(), Error> {
    let Some(cache) = run.cache.as_mut() else { return Ok(()) };
    let cacheless = engine.checkpoint().cache == CachePolicy::None;
    let layers = engine.config().layers;
    let steps = request.output_tokens - 1;
    cache.rewind(1)?;
    let step = engine.prepare(cache, &run.output[steps - 1..steps], Keep::Last)?;
    // Without a cache only the last step's program is at hand.
    let decode = tally(Phase::Decode, layers, if cacheless { 1 } else { steps }, step.bound());
    if !cacheless {
        let last = request.last_chunk(engine);
        cache.rewind(cache.offset() - last)?;
        let step = engine.prepare(cache, &request.prompt[last..], request.keep())?;
        wiring.push(tally(Phase::Prefill, layers, 1, step.bound()));
    }
    wiring.push(decode);
    Ok(())
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
