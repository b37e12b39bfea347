//! One request as the production path serves it, with the main thread's own work noted around it.
//! Not here: what is done with the notes (`notes.rs`), and anything inside a pass, which observers see.

use super::TimelineRequest;
use super::notes::{Notebook, Notes, Silent, What};
use crate::error::Error;
use crate::monotonic::{now_ns, thread_cpu_ns};
use model::{Cache, Engine, Keep, Logits};
use ops::Observer;
use record::trace::Category;
use record::{LogitsMode, Phase};
use std::sync::atomic::Ordering::Relaxed;

/// What the main thread does around the passes.
pub struct MainThread<'a> {
    /// Makes the prompt's tokens from text, if the model can.
    pub input: Option<&'a mut dyn FnMut()>,
    /// Chooses the largest of a row of logits; a device may begin the step that it makes before it is asked for.
    pub choose: &'a mut dyn FnMut(&Logits<'_>, usize) -> Result<u32, model::Error>,
    /// Makes text of a token, if the model can.
    pub output: Option<&'a mut dyn FnMut(u32)>,
}

pub(super) const REQUEST: What = What { name: "request", category: Category::Request };
pub(super) const PREFILL: What = What { name: "prefill", category: Category::Phase };
pub(super) const DECODE: What = What { name: "decode", category: Category::Phase };
pub(super) const PREFILL_STEP: What = What { name: "prefill pass", category: Category::Step };
pub(super) const DECODE_STEP: What = What { name: "decode step", category: Category::Step };
const INPUT: What = What { name: "text to tokens", category: Category::Tokenising };
const SETUP: What = What { name: "make input and cache", category: Category::Setup };
const PREPARE: What = What { name: "prepare the pass", category: Category::Dispatch };
pub(super) const WALK: What = What { name: "dispatch", category: Category::Dispatch };
const SAMPLE: What = What { name: "choose a token", category: Category::Sampling };
const OUTPUT: What = What { name: "token to text", category: Category::Tokenising };
const RELEASE: What = What { name: "release input and cache", category: Category::Setup };

/// Names of main-thread work, for reserving room: slices per pass and per request.
pub(super) const NOTES_PER_PASS: usize = 6;
pub(super) const NOTES_PER_REQUEST: usize = 8;

/// A moment on the main thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) wall_ns: u64,
    pub(super) cpu_ns: u64,
}

impl Mark {
    fn now() -> Mark {
        Mark { wall_ns: now_ns(), cpu_ns: thread_cpu_ns() }
    }
}

/// A request that was served.
pub(super) struct Run {
    start: Mark,
    prefill: (Mark, Mark),
    decoded: Mark,
    end: Mark,
    pub(super) tokens: Vec<u32>,
    /// Storage of keys and values at the end.
    pub(super) kv_bytes: usize,
}

impl Run {
    /// When the phase began and ended.
    pub(super) fn window(&self, phase: Phase) -> (Mark, Mark) {
        match phase {
            Phase::Request => (self.start, self.end),
            Phase::Prefill => self.prefill,
            Phase::Decode => (self.prefill.1, self.decoded),
        }
    }
}

/// # Errors
/// A step that fails, or an interruption.
pub(super) fn run<O: Observer, N: Notebook>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    main: &mut MainThread<'_>,
    observer: &O,
    notes: &mut N,
) -> Result<Run, Error> {
    let start = Mark::now();
    if let Some(input) = &mut main.input {
        let at = notes.now();
        input();
        notes.note(INPUT, at);
    }
    let at = notes.now();
    let mut cache = engine.new_cache(request.prompt.len() + request.output_tokens);
    let mut tokens = Vec::with_capacity(request.output_tokens);
    notes.note(SETUP, at);

    let keep = match request.logits {
        LogitsMode::Last => Keep::Last,
        LogitsMode::All => Keep::All,
    };
    let prefill = Mark::now();
    tokens.push(token(engine, &mut cache, (request.prompt, keep), PREFILL_STEP, main, observer, notes)?);
    let prefilled = Mark::now();
    notes.span(PREFILL, prefill.wall_ns, prefilled.wall_ns);
    if request.phase == Phase::Decode {
        ops::memory::reset_peak();
    }
    let wanted = if request.phase == Phase::Prefill { 1 } else { request.output_tokens };
    while tokens.len() < wanted {
        let fed = [tokens[tokens.len() - 1]];
        let keep = if tokens.len() + 1 < wanted { Keep::Next } else { Keep::Last };
        tokens.push(token(engine, &mut cache, (&fed, keep), DECODE_STEP, main, observer, notes)?);
    }
    let decoded = Mark::now();
    if wanted > 1 {
        notes.span(DECODE, prefilled.wall_ns, decoded.wall_ns);
    }
    let at = notes.now();
    let kv_bytes = cache.bytes();
    drop(cache);
    notes.note(RELEASE, at);
    let end = Mark::now();
    notes.span(REQUEST, start.wall_ns, end.wall_ns);
    Ok(Run { start, prefill: (prefill, prefilled), decoded, end, tokens, kv_bytes })
}

/// Units of one request in turn, with and without tracing: its prefill, or its decode steps behind a prefill without it.
/// `next(nanoseconds of the unit before)` says whether the next one is traced, and `None` to end.
///
/// # Errors
/// A step that fails, or an interruption.
pub(super) fn alternate<P: Observer, T: Observer>(
    engine: &mut Engine,
    request: &TimelineRequest<'_>,
    main: &mut MainThread<'_>,
    (plain, traced): (&P, &T),
    notes: &mut Notes,
    next: &mut dyn FnMut(Option<u64>) -> Option<bool>,
) -> Result<(), Error> {
    let mut cache = engine.new_cache(request.prompt.len() + request.output_tokens);
    let keep = match request.logits {
        LogitsMode::Last => Keep::Last,
        LogitsMode::All => Keep::All,
    };
    let mut unit = |fed: (&[u32], Keep), what, with: bool| {
        let start = now_ns();
        let token = match with {
            true => token(engine, &mut cache, fed, what, main, traced, notes)?,
            false => token(engine, &mut cache, fed, what, main, plain, &mut Silent)?,
        };
        Ok::<_, Error>((token, now_ns() - start))
    };
    if request.phase == Phase::Prefill {
        if let Some(with) = next(None) {
            let (_, wall_ns) = unit((request.prompt, keep), PREFILL_STEP, with)?;
            next(Some(wall_ns));
        }
        return Ok(());
    }
    let (mut last, _) = unit((request.prompt, keep), PREFILL_STEP, false)?;
    let mut wall_ns = None;
    for _ in 1..request.output_tokens {
        let Some(with) = next(wall_ns) else { return Ok(()) };
        let (token, took_ns) = unit((&[last], Keep::Last), DECODE_STEP, with)?;
        (last, wall_ns) = (token, Some(took_ns));
    }
    next(wall_ns);
    Ok(())
}

/// All passes over `fed`, and the token that follows.
fn token<O: Observer, N: Notebook>(
    engine: &mut Engine,
    cache: &mut Cache,
    (fed, keep): (&[u32], Keep),
    what: What,
    main: &mut MainThread<'_>,
    observer: &O,
    notes: &mut N,
) -> Result<u32, Error> {
    let mut chosen = None;
    let cancelled = std::sync::Arc::clone(&engine.options().cancelled);
    for pass in engine.passes(cache, fed, keep)? {
        let step_at = notes.now();
        let ends = pass.rows.end == fed.len();
        let mut step = engine.prepare(cache, &fed[pass.rows], pass.keep)?;
        notes.pass(&step);
        notes.note(PREPARE, step_at);
        let at = notes.now();
        step.run(observer)?;
        notes.note(WALK, at);
        if cancelled.load(Relaxed) {
            return Err(model::Error::Interrupted.into());
        }
        let logits = step.commit();
        if ends {
            let at = notes.now();
            let token = (main.choose)(&logits, logits.rows() - 1)?;
            notes.note(SAMPLE, at);
            chosen = Some(token);
            if let Some(output) = &mut main.output {
                let at = notes.now();
                output(token);
                notes.note(OUTPUT, at);
            }
        }
        notes.note(what, step_at);
        if ends {
            notes.token(cache.bytes());
        }
    }
    Ok(chosen.expect("the last pass ends the tokens"))
}
