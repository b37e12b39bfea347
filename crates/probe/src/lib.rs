//! What makes records: observers (the request clock, the operator replay, the timeline, the capture), a sampler, the machine's
//! ceilings, and the conditions.
//! Not here: what a record is (`record`), how anything is computed (`ops`, `model`), what is printed (the binary).

mod capture;
pub mod ceilings;
mod clock;
mod conditions;
mod error;
pub mod lines;
mod monotonic;
mod processor;
mod prompt;
mod replay;
mod resident;
pub mod sampler;
mod seeded;
mod sensitivity;
mod shapes;
mod stopwatch;
mod surroundings;
mod timeline;
mod wiring;
mod wiring_plan;

pub use capture::{
    Capture, CaptureCase, Extent, ProfiledPass, capture, on_valgrind, profiled_pass, simulated_pass, write_sources,
};
pub use clock::{Clocked, Request, clock, clock_again, margins};
pub use conditions::{
    available_memory, binary, bound_kernels, conditions, conditions_of, host, now, subject, subject_of,
};
pub use error::Error;
pub use prompt::{PROMPT_RULE, prompt};
pub use replay::{Case, Replaying, replay};
pub use resident::{peak_resident_bytes, reset_peak_resident};
pub use sensitivity::{Place, Probe, Probed, StepTimes, expected_slope, sensitivity};
pub use shapes::{Shapes, shapes};
pub use surroundings::{Before, Watch, Watched};
pub use timeline::{ALLOCATION_BYTES, MainThread, Timeline, TimelineRequest, timeline};
pub use wiring_plan::{Binding, Pass, planned_kernels, planned_pass, unreached};
