//! One answer: tokens generated, streamed as text, timed. Shared by `run` and `chat`.
//! Not here: where the prompt comes from and what is printed around the answer.

use std::time::Duration;

use anyhow::Result;
use model::{Cache, Engine, GenerateOptions};
use record::{Finish, Reading, Unit};
use serde::Serialize;
use weights::Tokenizer;

use crate::interrupt;

/// An answer and what it took.
pub(crate) struct Spoken {
    /// Everything generated, a final stop token included.
    pub(crate) ids: Vec<u32>,
    /// Of each of `ids`, natural logarithm, before temperature and filters; none if they were not asked for.
    pub(crate) log_probabilities: Vec<f32>,
    /// Of the step that produced each of `ids`; the first is the prefill.
    pub(crate) steps: Vec<Duration>,
    /// Without special tokens. None: the model brings no tokenizer.
    pub(crate) text: Option<String>,
    pub(crate) finish: Finish,
}

/// Feeds `prompt` at the cache's end and generates until a stop token, `max_tokens` or Ctrl-C. `show` gets each piece of
/// complete UTF-8 text as it is known (or, without a tokenizer, each id and a space).
///
/// # Errors
/// The engine's, and what `show` returns.
pub(crate) fn speak(
    engine: &mut Engine,
    cache: &mut Cache,
    prompt: &[u32],
    options: GenerateOptions,
    tokenizer: Option<&Tokenizer>,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<Spoken> {
    let mut spoken = Spoken {
        ids: Vec::new(),
        log_probabilities: Vec::new(),
        steps: Vec::new(),
        text: tokenizer.map(|_| String::new()),
        finish: Finish::Length,
    };
    let mut stream = tokenizer.map(Tokenizer::stream);
    let room = options.max_tokens;
    if room > 0 {
        for generated in model::generate(engine, cache, prompt, options)? {
            let generated = match generated {
                // The step that Ctrl-C cut short gave nothing; what came before it is kept.
                Err(model::Error::Interrupted) if !spoken.ids.is_empty() => {
                    spoken.finish = Finish::Interrupted;
                    break;
                }
                generated => generated?,
            };
            spoken.ids.push(generated.token);
            spoken.log_probabilities.extend(generated.log_probability);
            spoken.steps.push(generated.elapsed);
            if generated.stop {
                spoken.finish = Finish::Stop;
                break;
            }
            match (&mut stream, &mut spoken.text) {
                (Some(stream), Some(text)) => {
                    if let Some(piece) = stream.push(generated.token)? {
                        text.push_str(&piece);
                        show(&piece)?;
                    }
                }
                _ => show(&format!("{} ", generated.token))?,
            }
            if interrupt::requested() {
                spoken.finish = Finish::Interrupted;
                break;
            }
        }
    }
    if let (Some(mut stream), Some(text)) = (stream, &mut spoken.text)
        && let Some(piece) = stream.finish()?
    {
        text.push_str(&piece);
        show(&piece)?;
    }
    Ok(spoken)
}

/// What the clock said about one answer. Rates count tokens over the engine's steps; printing is not in them.
#[derive(Serialize)]
pub(crate) struct Timings {
    /// The first step: the whole prompt to the first token.
    pub(crate) prefill: Reading,
    pub(crate) prefill_rate: Reading,
    pub(crate) decode_rate: Reading,
    /// Seconds of the step that produced each token, the prefill first.
    pub(crate) step_seconds: Vec<f64>,
}

impl Timings {
    pub(crate) fn new(prompt_tokens: usize, steps: &[Duration]) -> Timings {
        let step_seconds: Vec<f64> = steps.iter().map(Duration::as_secs_f64).collect();
        let (prefill, prefill_rate, decode_rate) = match step_seconds.split_first() {
            None => {
                let nothing = || Reading::unavailable("no token was generated", "use --max-tokens 1 or more");
                (nothing(), nothing(), nothing())
            }
            Some((first, rest)) => (
                Reading::measured(*first, Unit::Seconds, 1),
                Reading::ratio(prompt_tokens as f64, *first, Unit::TokensPerSecond, 1),
                match rest {
                    [] => Reading::unavailable("only one token was generated", "use --max-tokens 2 or more"),
                    rest => {
                        Reading::ratio(rest.len() as f64, rest.iter().sum(), Unit::TokensPerSecond, rest.len() as u64)
                    }
                },
            ),
        };
        Timings { prefill, prefill_rate, decode_rate, step_seconds }
    }
}

/// A reading for a person: `12.3 tok/s`, or `unavailable`.
pub(crate) fn show_rate(reading: &Reading) -> String {
    reading.value().map_or_else(|| "unavailable".to_owned(), |value| format!("{value:.1} tok/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_tokens_over_steps_and_missing_without_steps() {
        let second = Duration::from_secs(1);
        let timings = Timings::new(10, &[second * 2, second, second * 3]);
        assert_eq!(timings.prefill_rate.value(), Some(5.0));
        assert_eq!(timings.decode_rate.value(), Some(0.5));
        let one = Timings::new(10, &[second]);
        assert_eq!((one.prefill_rate.value(), one.decode_rate.value()), (Some(10.0), None));
        let none = Timings::new(10, &[]);
        assert_eq!((none.prefill.value(), none.decode_rate.value()), (None, None));
    }
}
