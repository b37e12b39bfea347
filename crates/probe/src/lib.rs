//! Observers that make records: the request clock, the operator replay, and the conditions they were made under.
//! Not here: what a record is (`record`), how anything is computed (`ops`, `model`), what is printed (the binary).

pub mod ceilings;
mod clock;
mod conditions;
mod error;
mod processor;
mod prompt;
mod replay;
mod wiring;

pub use clock::{Clocked, Request, clock};
pub use conditions::{bound_kernels, conditions, host, now, subject};
pub use error::Error;
pub use prompt::{PROMPT_RULE, prompt};
pub use replay::{Case, replay};
