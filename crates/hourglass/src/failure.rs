//! How an error ends the program: one message on stderr and an exit code.
//! Not here: the messages; each error says itself what was expected, what was found and what to do.

use std::process::ExitCode;

use crate::device::NoGpu;
use crate::{interrupt, output};

/// A check or a run failed.
const FAILED: u8 = 1;
/// Bad usage or bad input: the same command will fail again.
const USAGE: u8 = 2;
/// Interrupted by Ctrl-C: 128 + SIGINT, as shells expect it.
pub(crate) const INTERRUPTED: u8 = 130;

/// A flag, a path or a value given by the user that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(String);

/// An error that exits with 2; the message names the flag, what was expected, what was found and what to do.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// Ended by Ctrl-C; the text says what became of the work so far.
#[derive(Debug, thiserror::Error)]
#[error("interrupted {0}")]
pub(crate) struct Interrupted(pub(crate) String);

/// Prints the message and chooses the exit code. A closed pipe is success and silent: the reader had enough.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let code = code(error);
    if code != INTERRUPTED && interrupt::requested() {
        // Whatever was cut short says how far it came ("cancelled while ..."); the cause is still Ctrl-C.
        output::note(format_args!("hourglass: interrupted: {error:#}"));
        return ExitCode::from(INTERRUPTED);
    }
    output::note(format_args!("hourglass: {error:#}"));
    ExitCode::from(code)
}

fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<Interrupted>() {
            return INTERRUPTED;
        }
        if cause.is::<Usage>() {
            return USAGE;
        }
        if let Some(error) = cause.downcast_ref::<NoGpu>() {
            return if error.lacking { USAGE } else { FAILED };
        }
        if let Some(error) = cause.downcast_ref::<weights::Error>() {
            return weights_code(error);
        }
        if let Some(error) = cause.downcast_ref::<model::Error>() {
            return model_code(error);
        }
    }
    FAILED
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}

/// What the network or the disk did is a failed run; everything else about a model's files is bad input.
fn weights_code(error: &weights::Error) -> u8 {
    use weights::Error;
    match error {
        Error::DiskFull { .. }
        | Error::HttpStatus { .. }
        | Error::Network { .. }
        | Error::Corrupt { .. }
        | Error::Cancelled { .. } => FAILED,
        _ => USAGE,
    }
}

/// What the machine refused is a failed run; everything else is a request that the model or checkpoint cannot serve.
fn model_code(error: &model::Error) -> u8 {
    use model::Error;
    match error {
        Error::Weights(error) => weights_code(error),
        Error::Interrupted => INTERRUPTED,
        Error::Threads { .. }
        | Error::CacheMemory { .. }
        | Error::Pack(ops::PackError::Memory { .. } | ops::PackError::Threads { .. })
        | Error::Bind(ops::BindError::Memory { .. })
        | Error::Device { .. }
        | Error::LargestOnly
        | Error::Logits => FAILED,
        _ => USAGE,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use anyhow::Context;

    fn code_of(error: impl Into<anyhow::Error>) -> u8 {
        code(&error.into())
    }

    #[test]
    fn each_kind_of_error_has_its_code() {
        assert_eq!(code(&usage("--x 1: expected 2")), USAGE);
        assert_eq!(code_of(Interrupted("after 3 tokens".into())), INTERRUPTED);
        assert_eq!(code_of(anyhow::anyhow!("something broke")), FAILED);
        assert_eq!(code_of(model::Error::Interrupted), INTERRUPTED);
        assert_eq!(code_of(model::Error::EmptyPrompt), USAGE);
        let lost = std::io::Error::other("running on the GPU: unspecified launch failure");
        assert_eq!(code_of(model::Error::Device { label: "cuda:0 (a GPU)".into(), source: lost }), FAILED);
        let cancelled = || weights::Error::Cancelled { doing: "downloading".into() };
        assert_eq!(code_of(cancelled()), FAILED);
        assert_eq!(code_of(model::Error::Weights(cancelled())), FAILED);
        let text = || weights::Error::UnknownSource { text: "x".into(), reason: "y".into() };
        assert_eq!(code_of(text()), USAGE);
        assert_eq!(code_of(model::Error::Weights(text())), USAGE);
    }

    #[test]
    fn a_closed_pipe_is_found_under_its_context() {
        let error = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&Err::<(), _>(error).context("cannot write to stdout").unwrap_err()));
        assert!(!is_closed_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
