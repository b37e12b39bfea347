//! The request clock: one warmed request through the production path, timed per token, its memory read outside every clock.
//! Not here: which operator the time went to (`replay.rs`).

use crate::error::Error;
use crate::processor::{ProcessorTime, involuntary_switches};
use crate::resident::{peak_resident_bytes, reset_peak_resident};
use crate::wiring::tally;
use model::{Cache, Dispatches, Engine, Keep};
use ops::Device;
use record::{
    DeviceState, DeviceUse, Known, LogitsMode, Phase, Reading, RequestClock, RequestTimes, Unit, Wiring,
    token_trace_hash,
};
use std::sync::Arc;
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
    /// Generated ids, as far as the request came.
    pub tokens: Vec<u32>,
    /// How often a thread of this process lost its processor to another during the request.
    pub involuntary_switches: Known<u64>,
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
    Ok(Clocked {
        clock: Known::Is(readings(request, &run)),
        wiring,
        tokens: run.output,
        involuntary_switches: run.involuntary_switches,
    })
}

/// One more request in a process that has already run some, with nothing before it; `None` if it was interrupted.
///
/// # Errors
/// Fewer than two tokens, or a step that fails.
pub fn clock_again(engine: &mut Engine, request: &Request<'_>) -> Result<Option<RequestClock>, Error> {
    if request.output_tokens < 2 {
        return Err(Error::OutputTooShort(request.output_tokens));
    }
    let Some(mut run) = run_once(engine, request)?.filter(|run| run.complete(request)) else { return Ok(None) };
    let release = Instant::now();
    drop(run.cache.take());
    run.elapsed += release.elapsed();
    Ok(Some(readings(request, &run)))
}

impl Clocked {
    fn interrupted(place: &str) -> Clocked {
        let clock = Known::unavailable(format!("interrupted {place}"), "run again and let it finish");
        let switches = Known::unavailable("the request was not clocked", "run again and let it finish");
        Clocked { clock, wiring: Vec::new(), tokens: Vec::new(), involuntary_switches: switches }
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
    peak_rss: Reading,
    involuntary_switches: Known<u64>,
    processor_share: Reading,
    device: Known<DeviceUse>,
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
    // The request's own shape, so that no other program is bound and counted in its peak.
    match engine.forward(&mut cache, request.prompt, request.keep()) {
        Ok(logits) => logits.row(logits.rows() - 1, &mut row)?,
        Err(model::Error::Interrupted) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    if row.iter().all(|logit| logit.is_finite()) { Ok(true) } else { Err(model::Error::Logits.into()) }
}

/// [`finite`] for a request that another observer runs.
///
/// # Errors
/// They are not finite, or the run was interrupted.
pub(crate) fn require_finite(
    engine: &mut Engine,
    prompt: &[u32],
    output_tokens: usize,
    logits: LogitsMode,
) -> Result<(), Error> {
    let request = Request { prompt, output_tokens, logits, warmup: 0 };
    if finite(engine, &request)? { Ok(()) } else { Err(model::Error::Interrupted.into()) }
}

/// How far the chosen token's logit is above the next best, for each token of one more request like the clocked one:
/// where two kernels may rightly choose differently. `None` if it was interrupted.
///
/// # Errors
/// A step that fails.
pub fn margins(engine: &mut Engine, request: &Request<'_>) -> Result<Option<Vec<f64>>, Error> {
    let mut cache = engine.new_cache(request.capacity());
    let (mut margins, mut row) = (Vec::with_capacity(request.output_tokens), Vec::new());
    let mut fed = Vec::new();
    while margins.len() < request.output_tokens {
        let (tokens, keep) = if fed.is_empty() { (request.prompt, request.keep()) } else { (&fed[..], Keep::Last) };
        let next = match engine.forward(&mut cache, tokens, keep) {
            Ok(logits) => {
                let last = logits.rows() - 1;
                logits.row(last, &mut row)?;
                logits.argmax(last)?
            }
            Err(model::Error::Interrupted) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        margins.push(margin(&row, next));
        fed = vec![next];
    }
    Ok(Some(margins))
}

/// `row[best]` less the largest other logit.
fn margin(row: &[f32], best: u32) -> f64 {
    let others = row.iter().enumerate().filter(|(id, _)| *id != best as usize).map(|(_, logit)| *logit);
    let next = others.fold(f32::NEG_INFINITY, f32::max);
    // A vocabulary of one token has no other; its margin has no bound, and records hold only finite numbers.
    f64::from(row[best as usize] - next).min(f64::from(f32::MAX))
}

/// One request; `None` if it was interrupted before its first token.
fn run_once(engine: &mut Engine, request: &Request<'_>) -> Result<Option<Run>, Error> {
    engine.reset_dispatches();
    // Where that is not allowed, the peak is the process's: who prints the reading asks `reset_peak_resident` which it is.
    reset_peak_resident();
    let device = engine.options().device.clone();
    let state_before = device.as_ref().map(state);
    if let Some(device) = &device {
        device.reset_peak();
    }
    let switches = involuntary_switches();
    let processor_time = ProcessorTime::now();
    ops::memory::reset_peak();
    let start = Instant::now();
    let mut cache = engine.new_cache(request.capacity());
    let mut times: Vec<Duration> = Vec::with_capacity(request.output_tokens);
    let mut output: Vec<u32> = Vec::with_capacity(request.output_tokens);

    let prefill = Instant::now();
    match engine.forward(&mut cache, request.prompt, request.keep()) {
        Ok(logits) => output.push(logits.argmax(logits.rows() - 1)?),
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
        // A device may begin the next step while this one's token is on its way.
        let keep = if output.len() + 1 < request.output_tokens { Keep::Next } else { Keep::Last };
        let step = Instant::now();
        match engine.forward(&mut cache, &[fed], keep) {
            Ok(logits) => output.push(logits.argmax(0)?),
            Err(model::Error::Interrupted) => break,
            Err(error) => return Err(error.into()),
        }
        times.push(step.elapsed());
    }
    let elapsed = start.elapsed() - paused;
    let peak_bytes = ops::memory::peak_bytes();
    let processor_share = processor_time.share_since(elapsed, engine.options().threads);
    let peak_rss = peak_resident_bytes();
    let involuntary_switches = switches.and_then(|before| Ok(involuntary_switches()?.saturating_sub(before)));
    let involuntary_switches = match involuntary_switches {
        Ok(count) => Known::Is(count),
        Err(why) => Known::unavailable(why, "run on Linux with /proc mounted"),
    };
    let device = match (&device, state_before) {
        (Some(device), Some(before)) => Known::Is(DeviceUse {
            peak_allocation: Reading::measured(device.peak_bytes() as f64, Unit::Bytes, 1),
            before,
            after: state(device),
        }),
        _ => DeviceUse::none(),
    };
    let cache = Some(cache);
    Ok(Some(Run {
        cache,
        device,
        times,
        output,
        to_first_token,
        elapsed,
        peak_bytes,
        peak_rss,
        involuntary_switches,
        processor_share,
        prefill_dispatches,
    }))
}

/// What a device's sensors say now.
fn state(device: &Arc<dyn Device>) -> Known<DeviceState> {
    match device.state() {
        Ok(state) => Known::Is(DeviceState {
            clock_mhz: state.clock_mhz.into(),
            memory_clock_mhz: state.memory_clock_mhz.into(),
            celsius: state.celsius.into(),
            watts: f64::from(state.milliwatts) / 1e3,
            held_back: state.held_back.into_iter().map(str::to_owned).collect(),
        }),
        Err(why) => Known::unavailable(why, "install the driver's management library (libnvidia-ml.so.1)"),
    }
}

fn readings(request: &Request<'_>, run: &Run) -> RequestClock {
    RequestClock::from_times(RequestTimes {
        prompt_tokens: request.prompt.len() as u64,
        asked_tokens: request.output_tokens as u64,
        token_seconds: run.times.iter().map(Duration::as_secs_f64).collect(),
        to_first_token: run.to_first_token.as_secs_f64(),
        whole: run.elapsed.as_secs_f64(),
        peak_allocation: Reading::measured(run.peak_bytes as f64, Unit::Bytes, 1),
        peak_rss: run.peak_rss.clone(),
        processor_share: run.processor_share.clone(),
        output_hash: token_trace_hash(&run.output),
        device: run.device.clone(),
    })
}
