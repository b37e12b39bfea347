//! What ends a measurement early. A case that cannot be replayed is no error: its row says why it is incomplete.

use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Model(#[from] model::Error),
    #[error("a request generates at least two tokens, so that there is a decode step to time; {0} was asked for")]
    OutputTooShort(usize),
    #[error("a clock gave a time that is no number: {0}")]
    Samples(#[from] record::SamplesError),
    #[error("a thread for the tracer cannot be had: {0}; end other processes or raise the limit on threads")]
    Thread(std::io::Error),
    #[error(transparent)]
    Trace(#[from] record::trace::TraceError),
    #[error(
        "the trace needs about {} MiB, and {place} has {} MiB free; ask for fewer steps or seconds, or make room",
        needed.div_ceil(1 << 20),
        free >> 20
    )]
    NoRoom { place: String, needed: u64, free: u64 },
    #[error(
        "about {seconds:.1} s at {frequency_hz} samples per second are more than the {most} samples of a thread that there is \
         room for; ask for fewer steps or seconds, or for a lower frequency"
    )]
    TooManySamples { seconds: f64, frequency_hz: u64, most: u64 },
    #[error("a pass can be profiled on a GPU alone; give --device cuda")]
    NoDevice,
    #[error("{}: cannot read it: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: cannot write it: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

impl Error {
    /// What a device said.
    pub(crate) fn of_device(device: &Arc<dyn ops::Device>) -> impl Fn(std::io::Error) -> Error {
        move |source| model::Error::Device { label: device.label(), source }.into()
    }
}
