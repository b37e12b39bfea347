//! One pass under valgrind: its instrumentation is on inside the pass and nowhere else.
//! Not here: starting valgrind, and reading what it wrote.

#![allow(unsafe_code, reason = "valgrind is spoken to by a sequence of instructions that does nothing elsewhere")]

use crate::conditions::bound_kernels;
use crate::error::Error;
use crate::seeded::{Seeded, seeded};
use model::Engine;
use ops::Plain;
use record::{BoundKernel, Workload};

/// Requests of valgrind.h and callgrind.h, whose tool base is the letters "CT".
const RUNNING_ON_VALGRIND: usize = 0x1001;
const START_INSTRUMENTATION: usize = ((b'C' as usize) << 24 | (b'T' as usize) << 16) + 4;
const STOP_INSTRUMENTATION: usize = START_INSTRUMENTATION + 1;

/// Whether this process runs on valgrind's simulated processor.
pub fn on_valgrind() -> bool {
    request(RUNNING_ON_VALGRIND) != 0
}

/// Prepares and warms the workload's pass, then runs it once with instrumentation on. Which kernels it ran, with this
/// processor's features.
///
/// # Errors
/// A pass that fails.
pub fn simulated_pass(engine: &mut Engine, workload: &Workload, tokens: &[u32]) -> Result<Vec<BoundKernel>, Error> {
    let Seeded { mut cache, tokens, keep } = seeded(engine, workload, tokens)?;
    let mut step = engine.prepare(&mut cache, tokens, keep)?;
    step.run(&Plain)?;
    request(START_INSTRUMENTATION);
    step.run(&Plain)?;
    request(STOP_INSTRUMENTATION);
    Ok(bound_kernels(workload.phase, step.bound()))
}

/// Valgrind's answer to a request without arguments; 0 without valgrind.
#[cfg(target_arch = "x86_64")]
fn request(number: usize) -> usize {
    let words = [number, 0, 0, 0, 0, 0];
    let answer: usize;
    // SAFETY: the rotations add up to 128 bits, which leaves the register as it was, and the exchange is of a register with
    // itself; valgrind knows the sequence and reads the six words behind the pointer, which outlive it.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") words.as_ptr(),
            inlateout("rdx") 0_usize => answer,
        );
    }
    answer
}

/// Other processors' sequences are not known here.
#[cfg(not(target_arch = "x86_64"))]
fn request(_: usize) -> usize {
    0
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_real_processor_is_no_valgrind() {
        assert!(!super::on_valgrind() || std::env::var_os("LD_PRELOAD").is_some());
    }
}
