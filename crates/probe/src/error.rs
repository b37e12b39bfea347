//! What ends a measurement early. A case that cannot be replayed is no error: its row says why it is incomplete.

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
}
