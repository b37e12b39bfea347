//! Replaying cases in turn, and whole requests between them: what is compared was measured in the same minutes, because the
//! speed of a shared machine drifts within minutes by more than what is looked for. Not here: how one is timed (`probe::replay`).

use anyhow::Result;
use model::{Engine, Keep};
use probe::{Case, Replaying, Request};
use record::{Ceilings, Known, LogitsMode, Phase, Replay, ReplayCase, RequestsBetween, Turn, Workload};
use weights::ModelFiles;

use super::Args;
use super::cases::CaseName;
use crate::progress::Progress;
use crate::request::Work;
use crate::{interrupt, load, request};

/// Another checkpoint's weights are loaded beside others only while so many times the largest of them are free: one that is not
/// quantized has four times the bytes.
const ROOM: u64 = 5;
/// An interrupted case with fewer timed turns says nothing.
const FEWEST_TURNS: usize = 3;

/// Of one case: what it gave, or why it gave nothing.
type Outcome<T> = std::result::Result<T, String>;

/// A replayed case and the line that says what ran.
pub(crate) struct Done {
    pub(crate) description: String,
    pub(crate) case: ReplayCase,
}

/// What stands beside the cases.
#[derive(Default)]
pub(crate) struct Beside {
    pub(crate) requests: Vec<RequestsBetween>,
    /// In the order of execution.
    pub(crate) turns: Vec<Turn>,
    /// Ctrl-C came before the last turn.
    pub(crate) cut: Option<String>,
}

/// A case, and what it is replayed on.
struct Planned<'a> {
    name: &'a CaseName,
    tokens: Vec<u32>,
    workload: Workload,
}

/// Requests of one checkpoint, between the cases' turns.
struct Requests<'a> {
    engine: usize,
    prompt: &'a [u32],
    workload: Workload,
    samples_us: Vec<[f64; 3]>,
    /// A request could not run; there will be no more.
    failed: bool,
}

/// Replays `cases` in turn and hands each to `take`, in order. Cases of one checkpoint share an engine. Where the weights of all
/// checkpoints do not fit into memory together, those that do have their turns first, and the others after them. A case that
/// cannot run, and one that an interruption leaves with hardly a turn, is handed over incomplete.
///
/// # Errors
/// What `take` returns, files that cannot be read, a clock that gives no number.
pub(crate) fn replay_all(
    args: &Args,
    cases: &[CaseName],
    files: &ModelFiles,
    ceilings: Option<&Ceilings>,
    mut take: impl FnMut(&Done) -> Result<()>,
) -> Result<Beside> {
    let mut planned = Vec::with_capacity(cases.len());
    for name in cases {
        let tokens = request::prompt(name.tokens, files, args.seed);
        let workload = workload(args, name, files, &tokens)?;
        planned.push(Planned { name, tokens, workload });
    }
    let (mut beside, mut rest) = (Beside::default(), &planned[..]);
    while !rest.is_empty() {
        let (mut engines, of) = load(args, files, rest)?;
        let (batch, later) = rest.split_at(of.len());
        let replays = turns(args, files, ceilings, &mut engines, batch, &of, &mut beside)?;
        for ((planned, engine), replay) in batch.iter().zip(of).zip(replays) {
            let name = planned.name;
            let done = match (engine, replay) {
                (Ok(engine), Ok(replay)) => Done {
                    description: load::describe(files, &engines[engine]),
                    case: finished(args, name, files, &mut engines[engine], replay)?,
                },
                (_, Err(why)) | (Err(why), _) => {
                    let replay = Replay::not_measured(&name.checkpoint, planned.workload.clone(), &why);
                    let description = format!("{} at checkpoint '{}'", files.label(), name.checkpoint);
                    Done { description, case: ReplayCase::not_measured(&name.to_string(), replay) }
                }
            };
            take(&done)?;
        }
        rest = later;
    }
    Ok(beside)
}

/// The engines of as many cases, from the first on, as fit into memory together, and which engine each has, or why none.
///
/// # Errors
/// Flags that do not fit a checkpoint.
fn load(args: &Args, files: &ModelFiles, cases: &[Planned<'_>]) -> Result<(Vec<Engine>, Vec<Outcome<usize>>)> {
    let mut engines: Vec<Engine> = Vec::new();
    let mut of = Vec::with_capacity(cases.len());
    for planned in cases {
        if interrupt::requested() {
            of.push(Err("interrupted before this case".to_owned()));
            continue;
        }
        let options = args.machine.options("--case", &planned.name.checkpoint)?;
        if let Some(known) = engines.iter().position(|engine| engine.checkpoint().name == options.checkpoint.name) {
            of.push(Ok(known));
            continue;
        }
        let largest = engines.iter().map(|engine| engine.weight_bytes() as u64).max();
        if largest.is_some_and(|bytes| probe::available_memory() < ROOM * bytes) {
            break;
        }
        of.push(match Engine::load(files, options) {
            Ok(engine) => {
                engines.push(engine);
                Ok(engines.len() - 1)
            }
            Err(error) => Err(chain(&error)),
        });
    }
    Ok((engines, of))
}

/// Every turn of these cases; what each came to, or why it came to nothing.
///
/// # Errors
/// Files that cannot be read, a clock that gives no number.
fn turns(
    args: &Args,
    files: &ModelFiles,
    ceilings: Option<&Ceilings>,
    engines: &mut [Engine],
    planned: &[Planned<'_>],
    of: &[Outcome<usize>],
    beside: &mut Beside,
) -> Result<Vec<Outcome<Replay>>> {
    let cases: Vec<Case<'_>> = planned
        .iter()
        .map(|planned| Case {
            workload: planned.workload.clone(),
            tokens: &planned.tokens,
            warmup: args.warmup,
            iterations: args.iterations,
            operators: true,
            ceilings,
        })
        .collect();
    let mut running = Vec::with_capacity(cases.len());
    for (case, engine) in cases.iter().zip(of) {
        running.push(match engine {
            Ok(engine) => said(Replaying::begin(&mut engines[*engine], case))?,
            Err(why) => Err(why.clone()),
        });
    }
    let mut requests = requests(args, files, planned, of)?;
    let (rounds, all) = (args.warmup + args.iterations, cases.len() + requests.len());
    let progress = Progress::new("replay");
    // Each round of turns starts one later, so that nobody always follows the same other.
    for (round, who) in (0..rounds).flat_map(|round| (0..all).map(move |place| (round, (place + round) % all))) {
        if interrupt::requested() {
            beside.cut.get_or_insert_with(|| format!("after {round} of {rounds} turns of each case"));
            break;
        }
        let timed = round >= args.warmup;
        let turn = match who.checked_sub(cases.len()) {
            None => {
                let (name, case) = (planned[who].name, &mut running[who]);
                let (Ok(replaying), Ok(engine)) = (case.as_mut(), &of[who]) else { continue };
                progress.steps(round, rounds, &format!("turns; {name}"));
                let passes = if name.phase == Phase::Decode { args.decode_rounds } else { 1 };
                let ran = said(replaying.turn(&mut engines[*engine], passes, timed))?;
                // An interruption is seen above; whatever else ends a case ends that case alone.
                if let Err(why) = ran.as_ref()
                    && !interrupt::requested()
                {
                    *case = Err(why.clone());
                }
                ran.map(|()| Turn { of: name.to_string(), rounds: passes as u64 })
            }
            Some(index) => {
                let own = &mut requests[index];
                // The cases' rounds warm the engine up, and a request takes long.
                if own.failed || !timed {
                    continue;
                }
                progress.steps(round, rounds, "turns; whole request");
                own.turn(&mut engines[own.engine])?
            }
        };
        beside.turns.extend(turn.ok().filter(|_| timed));
    }
    drop(progress);
    for own in requests.into_iter().filter(|own| !own.samples_us.is_empty()) {
        let checkpoint = engines[own.engine].checkpoint().name;
        beside.requests.push(RequestsBetween::new(checkpoint, own.workload, &own.samples_us)?);
    }
    let least = FEWEST_TURNS.min(args.iterations);
    let ended = running.into_iter().zip(of).map(|(case, engine)| match (case, engine) {
        (Ok(replaying), Ok(_)) if replaying.turns() < least => {
            Ok(Err(format!("interrupted after {} of {} timed turns", replaying.turns(), args.iterations)))
        }
        (Ok(replaying), Ok(engine)) => said(replaying.end(&engines[*engine])),
        (Err(why), _) => Ok(Err(why)),
        (_, Err(why)) => Ok(Err(why.clone())),
    });
    ended.collect()
}

/// The model's errors in words, which end one case; other errors end everything.
fn said<T>(result: std::result::Result<T, probe::Error>) -> Result<Outcome<T>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(probe::Error::Model(model::Error::Interrupted)) => Ok(Err("interrupted before its first turn".to_owned())),
        Err(probe::Error::Model(error)) => Ok(Err(chain(&error))),
        Err(error) => Err(error.into()),
    }
}

/// Requests of every checkpoint with a prefill case, of that case's prompt; none unless asked for.
///
/// # Errors
/// Files that cannot be read.
fn requests<'p>(
    args: &Args,
    files: &ModelFiles,
    planned: &'p [Planned<'_>],
    of: &[Outcome<usize>],
) -> Result<Vec<Requests<'p>>> {
    let Some(output_tokens) = args.request_output_len else { return Ok(Vec::new()) };
    let mut all: Vec<Requests<'p>> = Vec::new();
    for (planned, engine) in planned.iter().zip(of) {
        let Ok(engine) = *engine else { continue };
        if planned.name.phase != Phase::Prefill || all.iter().any(|own| own.engine == engine) {
            continue;
        }
        let prompt = &planned.tokens[..];
        let (logits, capacity) = (args.prefill_logits.mode(), prompt.len() + output_tokens);
        let work = Work { phase: Phase::Request, prompt, capacity, output_tokens, logits, seed: args.seed };
        let workload = request::workload(files, &work)?;
        all.push(Requests { engine, prompt, workload, samples_us: Vec::new(), failed: false });
    }
    Ok(all)
}

impl Requests<'_> {
    /// One request; why there was none.
    ///
    /// # Errors
    /// A clock that gives no number.
    fn turn(&mut self, engine: &mut Engine) -> Result<Outcome<Turn>> {
        let Workload { output_tokens, logits, .. } = self.workload;
        let request = Request { prompt: self.prompt, output_tokens: output_tokens as usize, logits, warmup: 0 };
        let clock = match said(probe::clock_again(engine, &request))? {
            Ok(Some(clock)) => clock,
            Ok(None) => return Ok(Err("interrupted".to_owned())),
            Err(why) => {
                self.failed = true;
                return Ok(Err(why));
            }
        };
        let parts = [&clock.prefill, &clock.decode, &clock.whole_request].map(|part| part.value().map(|s| s * 1e6));
        let [Some(prefill), Some(decode), Some(whole)] = parts else { return Ok(Err("cut short".to_owned())) };
        self.samples_us.push([prefill, decode, whole]);
        let of = format!("{}:request:{}", engine.checkpoint().name, self.workload.context_tokens);
        Ok(Ok(Turn { of, rounds: 1 }))
    }
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
