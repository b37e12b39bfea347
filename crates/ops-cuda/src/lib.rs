//! The GPU's side, found at run time: nothing here needs a GPU, a driver or a toolkit to build or to start.
//! Today it only tells which GPU libraries load and what they say about themselves; kernels are not here yet.

mod availability;
mod library;

pub use availability::{Availability, Device, Driver, Missing, availability};
