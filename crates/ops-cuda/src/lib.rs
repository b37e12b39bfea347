//! The GPU's side, found at run time: nothing here needs a GPU, a driver or a toolkit to build or to start.
//! One NVIDIA GPU as a device of `ops`, its kernels (CUDA C++ in `kernels/`, compiled when the GPU is opened), and what is known
//! of GPU libraries without opening anything.

mod ahead;
mod availability;
mod ceilings;
mod compiler;
mod cupti;
mod driver;
pub mod embedded;
mod gpu;
mod graphs;
mod images;
mod layout;
mod library;
mod memory;
mod operators;
mod queue;
mod recorder;
mod running;
mod sensors;
pub mod sources;
mod step;
mod timing;

pub use availability::{Availability, Device, Driver, Missing, availability};
pub use compiler::{Compiled, Compiler};
pub use gpu::{Gpu, OpenError, open};
