//! What a measured request is: its lengths, checked, and the workload that a record states.
//! Not here: which model and engine run it (`load.rs`), and how often (each verb).

use std::ops::RangeInclusive;

use anyhow::Result;
use clap::ValueEnum;
use record::{LogitsMode, Phase, Workload, token_trace_hash};
use weights::ModelFiles;

use crate::failure::usage;

/// The value of `--prefill-logits`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefillLogits {
    /// Of the prompt's last token, which is what generating needs
    Last,
    /// Of every prompt token
    All,
}

impl PrefillLogits {
    pub(crate) fn mode(self) -> LogitsMode {
        match self {
            PrefillLogits::Last => LogitsMode::Last,
            PrefillLogits::All => LogitsMode::All,
        }
    }
}

/// A flag that counts, what was given, what is allowed, and why.
pub(crate) type Count<'a> = (&'a str, usize, RangeInclusive<usize>, &'a str);

/// What every request's `--input-len` and `--output-len` are held to.
pub(crate) fn lengths(input_len: usize, output_len: usize) -> [Count<'static>; 2] {
    [
        ("--input-len", input_len, 1..=usize::MAX, "a request has a prompt"),
        ("--output-len", output_len, 2..=usize::MAX, "the first token is the prefill's; decode needs another"),
    ]
}

/// # Errors
/// The first count out of its range.
pub(crate) fn check_counts<'a>(counts: impl IntoIterator<Item = Count<'a>>) -> Result<()> {
    for (flag, found, range, why) in counts {
        if !range.contains(&found) {
            let (bound, limit) =
                if found < *range.start() { ("at least", range.start()) } else { ("at most", range.end()) };
            return Err(usage(format!("{flag} {found}: expected {bound} {limit} ({why})")));
        }
    }
    Ok(())
}

/// # Errors
/// More tokens than the model has positions.
pub(crate) fn check_positions(input_len: usize, output_len: usize, files: &ModelFiles) -> Result<()> {
    let limit = files.config().max_positions;
    match input_len.checked_add(output_len) {
        Some(tokens) if tokens <= limit => Ok(()),
        _ => Err(usage(format!(
            "--input-len {input_len} and --output-len {output_len} exceed the {limit} positions of {}; ask for fewer tokens",
            files.label()
        ))),
    }
}

/// The ids that every engine gets: `length` of them from `seed`.
pub(crate) fn prompt(length: usize, files: &ModelFiles, seed: u64) -> Vec<u32> {
    let config = files.config();
    probe::prompt(length, config.vocab_size, &config.eos_tokens, seed)
}

/// What of a [`Workload`] differs from one measurement of a prompt to another.
pub(crate) struct Work<'a> {
    pub(crate) phase: Phase,
    pub(crate) prompt: &'a [u32],
    pub(crate) capacity: usize,
    /// Tokens that are generated; a pass alone generates none.
    pub(crate) output_tokens: usize,
    pub(crate) logits: LogitsMode,
    pub(crate) seed: u64,
}

/// # Errors
/// The model's files cannot be read for their fingerprint.
pub(crate) fn workload(files: &ModelFiles, work: &Work<'_>) -> Result<Workload> {
    Ok(Workload {
        model: files.label().to_owned(),
        weights_hash: files.fingerprint()?,
        phase: work.phase,
        context_tokens: work.prompt.len() as u64,
        new_rows: if work.phase == Phase::Decode { 1 } else { work.prompt.len() as u64 },
        capacity: work.capacity as u64,
        output_tokens: work.output_tokens as u64,
        logits: work.logits,
        sampling: "greedy".to_owned(),
        seed: work.seed,
        prompt_rule: probe::PROMPT_RULE.to_owned(),
        token_trace_hash: token_trace_hash(work.prompt),
    })
}
