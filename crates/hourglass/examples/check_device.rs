//! Whole models on GPU 0 beside the CPU: the same logits but for roundings, and the same bits whether launches go one by one or as a
//! graph; and the same tokens whether steps are put ahead or not. `check_device [MODEL ...]` (synthetic:tiny and
//! synthetic:qwen3-0.6b if none is named); exit 1 if anything differs.
//! Not here: single kernels (`check_kernels` of `ops-cuda`).

use model::{Cache, Engine, GenerateOptions, Keep, LoadOptions, SamplingOptions, generate};
use ops::{Device, Registry};
use std::process::ExitCode;
use std::sync::Arc;
use weights::{ModelSource, OpenOptions};

const PROMPT: usize = 210;
/// Prompts before, across and beyond position 768, from which on kernels are others.
const DEPTHS: [usize; 3] = [740, 800, 20];
const STEPS: usize = 60;
/// Power of the difference over that of the logits. Every layer rounds a few times to bfloat16, in other places on the two sides:
/// 28 layers came to 3.5e-5 on an H200.
const NMSE: f64 = 2e-4;

type Failed = Box<dyn std::error::Error>;

/// Logits of the last token of the prompt and of every step after it, from an empty cache.
fn logits(engine: &mut Engine) -> Result<Vec<f32>, Failed> {
    let vocabulary = engine.config().vocab_size as u32;
    let ids: Vec<u32> = (0..(PROMPT + STEPS) as u32).map(|id| (id * 37 + 5) % vocabulary).collect();
    let (mut cache, mut row, mut all) = (engine.new_cache(ids.len()), Vec::new(), Vec::new());
    for part in std::iter::once(&ids[..PROMPT]).chain(ids[PROMPT..].chunks(1)) {
        engine.forward(&mut cache, part, Keep::Last)?.row(0, &mut row)?;
        all.extend_from_slice(&row);
    }
    Ok(all)
}

/// Greedy tokens after a prompt, from an emptied cache that has room for just these; every step says that the next one follows if
/// `ahead`.
fn greedy(
    engine: &mut Engine,
    cache: &mut Cache,
    (prompt, seed): (usize, u32),
    ahead: bool,
) -> Result<Vec<u32>, Failed> {
    let vocabulary = engine.config().vocab_size as u32;
    let prompt: Vec<u32> = (0..prompt as u32).map(|id| (id * 41 + seed) % vocabulary).collect();
    cache.reset();
    let mut tokens = vec![engine.forward(cache, &prompt, Keep::Last)?.argmax(0)?];
    for _ in 0..STEPS {
        let keep = if ahead { Keep::Next } else { Keep::Last };
        tokens.push(engine.forward(cache, &[tokens[tokens.len() - 1]], keep)?.argmax(0)?);
    }
    Ok(tokens)
}

/// What is wrong with steps that are put ahead: tokens, logits, caches and counts beside those of steps that are not.
fn steps_ahead(engine: &mut Engine) -> Result<Option<String>, Failed> {
    let capacity = PROMPT + STEPS;
    let caches = &mut [engine.new_cache(capacity), engine.new_cache(capacity)];
    let wanted =
        [greedy(engine, &mut caches[0], (PROMPT, 3), false)?, greedy(engine, &mut caches[1], (PROMPT, 8), false)?];
    // The last step of each is followed by none, for want of room.
    for round in 0..3 {
        for (cache, (want, seed)) in caches.iter_mut().zip(wanted.iter().zip([3, 8])) {
            engine.reset_dispatches();
            if greedy(engine, cache, (PROMPT, seed), true)? != *want {
                return Ok(Some(format!("round {round}, seed {seed}: steps ahead gave other tokens")));
            }
            let dispatches = engine.dispatches();
            let counts = dispatches.iter().flat_map(|each| each.calls.iter().map(|call| (call.count, each.passes)));
            if counts.clone().any(|(count, passes)| count != passes)
                || counts.map(|each| each.1).max() != Some(STEPS as u64)
            {
                return Ok(Some("dispatches are not those of the steps that were asked for".to_owned()));
            }
        }
    }
    // Ended early, at every place of some: what comes next is as if nothing had been begun.
    let mut row = Vec::new();
    let mut plain = Vec::new();
    for steps in 1..6 {
        let tokens = &wanted[0];
        caches[0].reset();
        let prompt: Vec<u32> = (0..PROMPT as u32).map(|id| (id * 41 + 3) % engine.config().vocab_size as u32).collect();
        engine.forward(&mut caches[0], &prompt, Keep::Last)?.argmax(0)?;
        for token in &tokens[..steps] {
            engine.forward(&mut caches[0], &[*token], Keep::Next)?.argmax(0)?;
        }
        let [one, other] = &mut *caches;
        // The predicted step with its logits, another token instead, the other cache in between, or one step back.
        let end = match steps {
            1 => tokens[steps],
            2 => (tokens[steps] + 1) % engine.config().vocab_size as u32,
            3 => {
                let next = wanted[1][STEPS];
                other.rewind(1)?;
                engine.forward(other, &[next], Keep::Next)?.argmax(0)?;
                tokens[steps]
            }
            4 => {
                one.rewind(1)?;
                tokens[steps - 1]
            }
            // The other is full, so this is refused.
            _ if engine.forward(other, &prompt[..1], Keep::Last).is_ok() => {
                return Ok(Some("a full cache took more".to_owned()));
            }
            _ => tokens[steps],
        };
        let fed = one.offset();
        engine.forward(one, &[end], Keep::Last)?.row(0, &mut row)?;
        one.reset();
        engine.forward(one, &prompt, Keep::Last)?.row(0, &mut plain)?;
        for token in &tokens[..fed - PROMPT] {
            engine.forward(one, &[*token], Keep::Last)?.row(0, &mut plain)?;
        }
        engine.forward(one, &[end], Keep::Last)?.row(0, &mut plain)?;
        if row.iter().zip(&plain).any(|(a, b)| a.to_bits() != b.to_bits()) {
            return Ok(Some(format!("after {steps} steps ahead, other logits than without")));
        }
    }
    // Logits of a step that was overwritten are refused.
    let last = wanted[0][0];
    caches[0].rewind(2)?;
    let refused = engine.forward(&mut caches[0], &[last], Keep::Next)?.row(0, &mut row);
    Ok((!matches!(refused, Err(model::Error::LargestOnly)))
        .then(|| "logits of a step ahead were handed out".to_owned()))
}

/// What is wrong with steps ahead where kernels change with the position, one program for all: from before that place to behind it, behind
/// it, and before it again, more than once.
fn depths(engine: &mut Engine) -> Result<Option<String>, Failed> {
    let mut cache = engine.new_cache(DEPTHS[1] + STEPS);
    let mut wanted = Vec::new();
    for prompt in DEPTHS {
        wanted.push(greedy(engine, &mut cache, (prompt, 11), false)?);
    }
    for round in 0..3 {
        for (prompt, want) in DEPTHS.into_iter().zip(&wanted) {
            if greedy(engine, &mut cache, (prompt, 11), true)? != *want {
                return Ok(Some(format!("round {round}, after {prompt} tokens: steps ahead gave other tokens")));
            }
        }
    }
    Ok(None)
}

/// What is wrong with generations: greedy ones with and without log-probabilities, with a drawn one between them, and one that ends early.
fn generations(engine: &mut Engine) -> Result<Option<String>, Failed> {
    let mut run = |options: GenerateOptions| -> Result<Vec<u32>, Failed> {
        let mut cache = engine.new_cache(PROMPT + STEPS);
        let prompt: Vec<u32> = (0..PROMPT as u32).map(|id| id * 29 % engine.config().vocab_size as u32).collect();
        let generated = generate(engine, &mut cache, &prompt, options)?;
        Ok(generated.map(|one| one.map(|one| one.token)).collect::<Result<_, _>>()?)
    };
    let greedy = GenerateOptions { max_tokens: STEPS, ..GenerateOptions::default() };
    let sampling = SamplingOptions { temperature: 1.2, seed: 5, ..SamplingOptions::default() };
    let looked_at = run(GenerateOptions { log_probabilities: true, ..greedy.clone() })?;
    let drawn = run(GenerateOptions { sampling, ..greedy.clone() })?;
    let ahead = run(greedy.clone())?;
    if ahead != looked_at {
        return Ok(Some("a generation of tokens alone gave others than one with log-probabilities".to_owned()));
    }
    let stop = ahead[STEPS / 2];
    let first = ahead.iter().position(|token| *token == stop).unwrap_or(0);
    if run(GenerateOptions { stop_tokens: vec![stop], ..greedy })? != ahead[..=first] {
        return Ok(Some("a stop token ended a generation elsewhere".to_owned()));
    }
    let again = run(GenerateOptions { sampling, max_tokens: STEPS, ..GenerateOptions::default() })?;
    Ok((again != drawn).then(|| "after one that ended early, a drawn generation gave other tokens".to_owned()))
}

/// What is wrong with `rung` on the device, whose weights are those of `beside` on the CPU.
fn check(device: &Arc<dyn Device>, name: &str, rung: &str, beside: &str) -> Result<Option<String>, Failed> {
    let files = weights::open(&ModelSource::parse(name)?, &OpenOptions::default())?;
    let options = |registry: Registry, rung: &str| -> Result<LoadOptions, Failed> {
        let checkpoint = registry.checkpoint(rung)?;
        Ok(LoadOptions { convert: true, registry, ..LoadOptions::new(checkpoint) })
    };
    let want = logits(&mut Engine::load(&files, options(Registry::standard(), beside)?)?)?;
    let on_device = options(Registry::standard().on_device(device.kernels()), rung)?;
    let mut engine = Engine::load(&files, LoadOptions { device: Some(Arc::clone(device)), ..on_device })?;
    let (got, again) = (logits(&mut engine)?, logits(&mut engine)?);
    let error: f64 = got.iter().zip(&want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let nmse = error / want.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    println!("{name} {rung} beside {beside} on the CPU: NMSE {nmse:.1e}");
    if got.iter().zip(&again).any(|(a, b)| a.to_bits() != b.to_bits()) {
        return Ok(Some("a second run, as graphs, gave other bits".to_owned()));
    }
    if let Some(problem) = steps_ahead(&mut engine)? {
        return Ok(Some(problem));
    }
    if let Some(problem) = depths(&mut engine)? {
        return Ok(Some(problem));
    }
    if let Some(problem) = generations(&mut engine)? {
        return Ok(Some(problem));
    }
    Ok((nmse.is_nan() || nmse > NMSE).then(|| format!("NMSE {nmse:.1e}, expected at most {NMSE:.1e}")))
}

fn main() -> ExitCode {
    let device: Arc<dyn Device> = match ops_cuda::open(0) {
        Ok(gpu) => Arc::new(gpu),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let named: Vec<String> = std::env::args().skip(1).collect();
    let models = if named.is_empty() { vec!["synthetic:tiny".into(), "synthetic:qwen3-0.6b".into()] } else { named };
    let mut failed = 0;
    for name in &models {
        for (rung, beside) in [("added-norm", "added-norm"), ("fast", "added-norm"), ("unpacked", "reference")] {
            match check(&device, name, rung, beside) {
                Ok(None) => {}
                Ok(Some(problem)) => {
                    println!("FAIL {name} {rung}: {problem}");
                    failed += 1;
                }
                Err(error) => {
                    println!("FAIL {name} {rung}: {error}");
                    failed += 1;
                }
            }
        }
    }
    println!("{failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
