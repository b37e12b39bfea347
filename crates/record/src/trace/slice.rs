//! What happens on a lane: slices with a start and an end, and instants.
//! Not here: what a category means for idle time (`timeline/`).

use crate::trace::Name;

/// Something that took from `start_ns` to `end_ns` (exclusive).
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    pub name: Name,
    pub category: Category,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Shown by viewers, e.g. the layer.
    pub args: Vec<(Name, Value)>,
}

impl Slice {
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Something that happened at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Instant {
    pub name: Name,
    pub category: Category,
    pub at_ns: u64,
    pub args: Vec<(Name, Value)>,
}

/// An argument of a slice or instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Integer(i64),
    /// Finite.
    Number(f64),
    Text(Name),
}

/// What kind of thing a slice is. What runs on the device is `Operator` or `Barrier`; all else is the main thread's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// The whole request.
    Request,
    /// Prefill or decode.
    Phase,
    /// One pass over the model.
    Step,
    /// One worker's share of one call, or a kernel on a stream.
    Operator,
    /// A worker waits for the others; holds no other slice.
    Barrier,
    /// Starting the device's work.
    Dispatch,
    /// Choice of the next token.
    Sampling,
    /// Text to tokens, tokens to text, or the chat template.
    Tokenising,
    /// Making or releasing input and cache.
    Setup,
    /// An allocation above the tracer's threshold.
    Allocation,
    /// A page was touched that was not mapped.
    PageFault,
}

impl Category {
    pub const ALL: [Category; 11] = [
        Category::Request,
        Category::Phase,
        Category::Step,
        Category::Operator,
        Category::Barrier,
        Category::Dispatch,
        Category::Sampling,
        Category::Tokenising,
        Category::Setup,
        Category::Allocation,
        Category::PageFault,
    ];

    /// The spelling in every format.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Request => "request",
            Category::Phase => "phase",
            Category::Step => "step",
            Category::Operator => "operator",
            Category::Barrier => "barrier",
            Category::Dispatch => "dispatch",
            Category::Sampling => "sampling",
            Category::Tokenising => "tokenising",
            Category::Setup => "set-up",
            Category::Allocation => "allocation",
            Category::PageFault => "page fault",
        }
    }
}
