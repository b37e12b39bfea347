//! From an opened model to tokens: lowers an architecture and a checkpoint to programs, keeps caches, samples, generates.
//!
//! [`Engine::load`] packs the weights of a [`weights::ModelFiles`] for one checkpoint; [`generate`] streams tokens.
//! Not here: files, kernels, measuring. This crate knows no tool and no instruction set.

mod cache;
mod engine;
mod error;
mod generate;
mod load;
mod lower;
mod rope;
mod sampler;
pub mod testing;

pub use cache::{Cache, CacheCounters};
pub use engine::{CallDispatches, Dispatches, Engine, Keep, Logits, Pass, Prepared};
pub use error::{Error, Result};
pub use generate::{GenerateOptions, Generated, Generation, generate};
pub use load::{LoadOptions, weight_formats};
pub use lower::{WeightFormats, lower};
pub use sampler::{Choice, Sampler, SamplingOptions};
