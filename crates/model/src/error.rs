//! What can go wrong between opened files and tokens. Messages name the thing, the expectation, the finding and the remedy.
//! Not here: causes within a text; whoever prints an error walks `source`.

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Weights(#[from] weights::Error),
    #[error(transparent)]
    Pack(#[from] ops::PackError),
    #[error(transparent)]
    Bind(#[from] ops::BindError),
    #[error("{0}")]
    Checkpoint(String),
    #[error(
        "tensor {tensor} is {found}; checkpoint '{checkpoint}' quantizes bfloat16 weights at load: pass --convert to round it to bfloat16 first"
    )]
    NeedsConversion { tensor: String, found: &'static str, checkpoint: &'static str },
    #[error("tensor {tensor}: {cols} columns do not divide into groups of {group}; choose --w4-group 64 or 32")]
    Group { tensor: String, cols: usize, group: usize },
    #[error("group size {0} is not one of 32, 64 and 128")]
    GroupSize(usize),
    #[error("cache capacity {capacity} exceeded by an append of {rows} tokens ending at {end}; ask for a larger bound")]
    CapacityExceeded { capacity: usize, rows: usize, end: usize },
    #[error("cannot rewind {wanted} tokens: the cache holds {offset}")]
    Rewind { wanted: usize, offset: usize },
    #[error("a capacity of {wanted} tokens exceeds the model's {limit} positions; shorten the prompt or the output")]
    ContextLimit { wanted: usize, limit: usize },
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    #[error("token id {id} at position {position} is not below the vocabulary size {vocabulary}")]
    TokenRange { id: u32, position: usize, vocabulary: usize },
    #[error("{wanted} rows of logits were asked for, of a step of {rows}")]
    Keep { wanted: usize, rows: usize },
    #[error("{what}: expected {expected}, found {found}")]
    Option { what: &'static str, expected: &'static str, found: String },
    #[error("a batch needs one token per cache: {tokens} tokens for {caches} caches")]
    Batch { tokens: usize, caches: usize },
    #[error("a batch cannot be decoded with checkpoint '{0}': it keeps no cache")]
    BatchWithoutCache(&'static str),
    #[error("cannot start {threads} worker threads; ask for fewer with --threads")]
    Threads { threads: usize, source: std::io::Error },
    #[error("cannot reserve {bytes} bytes for the cache; ask for a smaller capacity")]
    CacheMemory { bytes: usize, source: std::io::Error },
    #[error(
        "cannot place the {what}, {bytes} bytes, on {label}; use a smaller model or a packed checkpoint, or --device cpu"
    )]
    DeviceMemory { what: &'static str, bytes: usize, label: String, source: std::io::Error },
    #[error(
        "{label} has {free} bytes free; the weights take {weights}, and the cache {cache} more for every 1,024 tokens of context: use a \
         smaller model or a packed checkpoint, free the GPU's memory, or --device cpu"
    )]
    DeviceRoom { label: String, free: usize, weights: usize, cache: usize },
    #[error("{label} did not run the step")]
    Device { label: String, source: std::io::Error },
    #[error(
        "the logits of a step run for its largest alone (Keep::Next) cannot be read: the next step may have overwritten them; run it with \
         Keep::Last"
    )]
    LargestOnly,
    #[error("the model's logits are not finite: the weights are damaged or an operator overflowed")]
    Logits,
    #[error("interrupted")]
    Interrupted,
}
