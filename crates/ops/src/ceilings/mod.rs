//! Kernels that only load the machine, for measuring what it can do at most: traffic whose bytes are known, and multiplying
//! instructions whose operations are counted. Not here: clocks, repetition and statistics (`probe`), and any model's work.

#[cfg(target_arch = "x86_64")]
mod amx;
mod barriers;
mod buffers;
mod peaks;
mod traffic;
#[cfg(target_arch = "x86_64")]
mod vectors;

pub use barriers::barriers;
pub use buffers::{Buffers, expected_sum};
pub use peaks::{Operands, Peak, peaks};
pub use traffic::STREAMS;
