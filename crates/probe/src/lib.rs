//! Observers that make records: the request clock, the operator replay, and the conditions they were made under.
//! Not here: what a record is (`record`), how anything is computed (`ops`, `model`), what is printed (the binary).

mod clock;
mod conditions;
mod error;
mod processor;
mod prompt;
mod replay;
mod resident;
mod surroundings;
mod wiring;

pub use clock::{Clocked, Request, clock, margins};
pub use conditions::{binary, bound_kernels, conditions, host, now, subject};
pub use error::Error;
pub use prompt::{PROMPT_RULE, prompt};
pub use replay::{Case, replay};
pub use resident::{peak_resident_bytes, reset_peak_resident};
pub use surroundings::{Before, Watch, Watched};
