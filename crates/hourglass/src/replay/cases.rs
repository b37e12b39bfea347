//! Cases: their names, the default list, and replaying them one after the other.
//! Not here: how one is timed (`probe::replay`).

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use model::{Engine, Keep};
use probe::Case;
use record::{Ceilings, Known, LogitsMode, Phase, Replay, ReplayCase, Workload};
use weights::ModelFiles;

use super::Args;
use crate::progress::Progress;
use crate::request::Work;
use crate::{interrupt, load, request};

/// `CHECKPOINT:PHASE:TOKENS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CaseName {
    pub(crate) checkpoint: String,
    /// Prefill or decode.
    pub(crate) phase: Phase,
    pub(crate) tokens: usize,
}

impl FromStr for CaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<CaseName, String> {
        let expected = "expected CHECKPOINT:PHASE:TOKENS, e.g. selected:decode:128";
        let parts: Vec<&str> = text.split(':').collect();
        let [checkpoint, phase, tokens] = parts[..] else {
            return Err(format!("{expected}; found {} parts between colons", parts.len()));
        };
        let phase = match phase {
            "decode" => Phase::Decode,
            "prefill" => Phase::Prefill,
            other => return Err(format!("{expected}; the phase is decode or prefill, not '{other}'")),
        };
        match tokens.parse() {
            Ok(tokens) if tokens > 0 && !checkpoint.is_empty() => {
                Ok(CaseName { checkpoint: checkpoint.to_owned(), phase, tokens })
            }
            _ => Err(format!("{expected}; there is a checkpoint, and tokens are a whole number from 1 on")),
        }
    }
}

impl fmt::Display for CaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.checkpoint, self.phase.name(), self.tokens)
    }
}

/// Each rung at the shape that its hypothesis is about.
pub(crate) fn default_list() -> Vec<CaseName> {
    let decode = ["kv-cache", "capacity-cache", "quantized-matvec", "rmsnorm", "rope", "swiglu"];
    let prefill = ["simd-matmul", "tiled-prefill", "selected"];
    let at = |phase| move |name: &str| CaseName { checkpoint: name.to_owned(), phase, tokens: 128 };
    decode.into_iter().map(at(Phase::Decode)).chain(prefill.into_iter().map(at(Phase::Prefill))).collect()
}

/// A replayed case and the line that says what ran.
pub(crate) struct Done {
    pub(crate) description: String,
    pub(crate) case: ReplayCase,
}

/// Replays `cases` in order and hands each to `take`. Cases in a row of one checkpoint share an engine; only one engine is in
/// memory at a time. A case that cannot run, and every case after an interruption, is handed over incomplete.
///
/// # Errors
/// What `take` returns, files that cannot be read, a clock that gives no number.
pub(crate) fn replay_all(
    args: &Args,
    cases: &[CaseName],
    files: &ModelFiles,
    ceilings: Option<&Ceilings>,
    mut take: impl FnMut(&Done) -> Result<()>,
) -> Result<()> {
    let mut engine: Option<Engine> = None;
    for (index, name) in cases.iter().enumerate() {
        let tokens = request::prompt(name.tokens, files, args.seed);
        let workload = workload(args, name, files, &tokens)?;
        let missing = |reason: &str| {
            let replay = Replay::not_measured(&name.checkpoint, workload.clone(), reason);
            let description = format!("{} at checkpoint '{}'", files.label(), name.checkpoint);
            Done { description, case: ReplayCase::not_measured(&name.to_string(), replay) }
        };
        if interrupt::requested() {
            take(&missing("interrupted before this case"))?;
            continue;
        }
        let options = args.machine.options("--case", &name.checkpoint)?;
        if engine.as_ref().is_some_and(|engine| engine.checkpoint().name != options.checkpoint.name) {
            engine = None;
        }
        let mut loaded = match engine.take().map_or_else(|| Engine::load(files, options), Ok) {
            Ok(loaded) => loaded,
            Err(error) => {
                take(&missing(&chain(&error)))?;
                continue;
            }
        };
        let progress = Progress::new("replay");
        let show = |done: usize, total: usize, what: &str| {
            progress.steps(done, total, &format!("{what} rounds of case {} of {}, {name}", index + 1, cases.len()));
        };
        let case = Case {
            workload: workload.clone(),
            tokens: &tokens,
            warmup: args.warmup,
            iterations: args.iterations,
            operators: true,
            ceilings,
        };
        let replay = probe::replay(&mut loaded, &case, &show)?;
        drop(progress);
        let description = load::describe(files, &loaded);
        let case = if replay.coverage.is_complete() {
            finished(args, name, files, &mut loaded, replay)?
        } else {
            ReplayCase::not_measured(&name.to_string(), replay)
        };
        take(&Done { description, case })?;
        engine = Some(loaded);
    }
    Ok(())
}

fn finished(
    args: &Args,
    name: &CaseName,
    files: &ModelFiles,
    engine: &mut Engine,
    replay: Replay,
) -> Result<ReplayCase> {
    let keep = match replay.workload.logits {
        LogitsMode::Last => Keep::Last,
        LogitsMode::All => Keep::All,
    };
    // Without a cache a decode step runs the whole prefix.
    let whole_prefix = engine.checkpoint().cache == ops::CachePolicy::None;
    let (rows, keep) = match name.phase {
        Phase::Decode if !whole_prefix => (1, Keep::Last),
        Phase::Decode => (name.tokens, Keep::Last),
        _ => (name.tokens, keep),
    };
    let kernels = probe::bound_kernels(name.phase, engine.kernels(rows, keep, replay.workload.capacity as usize)?);
    let conditions = probe::conditions(engine, kernels);
    Ok(ReplayCase {
        case: name.to_string(),
        subject: Known::Is(probe::subject(engine, args.machine.solution.name(), &files.describe_encoding())),
        conditions_id: Known::Is(conditions.id()),
        conditions: Known::Is(conditions),
        replay,
    })
}

fn workload(args: &Args, name: &CaseName, files: &ModelFiles, tokens: &[u32]) -> Result<Workload> {
    let work = Work {
        phase: name.phase,
        prompt: tokens,
        capacity: args.capacity.unwrap_or(name.tokens),
        output_tokens: 0,
        logits: args.prefill_logits.mode(),
        seed: args.seed,
    };
    request::workload(files, &work)
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        let name: CaseName = "capacity-cache:decode:128".parse().unwrap();
        assert_eq!((name.checkpoint.as_str(), name.phase, name.tokens), ("capacity-cache", Phase::Decode, 128));
        assert_eq!(name.to_string(), "capacity-cache:decode:128");
        for text in ["", "a:decode", "a:decode:1:2", ":decode:1", "a:both:1", "a:decode:0", "a:decode:-1", "a:decode:x"]
        {
            let message = text.parse::<CaseName>().unwrap_err();
            assert!(message.contains("CHECKPOINT:PHASE:TOKENS"), "{text}: {message}");
        }
    }

    #[test]
    fn the_default_list_is_of_rungs() {
        let registry = ops::Registry::standard();
        let list = default_list();
        assert_eq!(list.len(), 9);
        assert!(list.iter().all(|case| registry.checkpoint(&case.checkpoint).is_ok()));
    }
}
