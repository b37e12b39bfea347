//! A processor with memory of its own that bound programs run on: what `bind`, the weights and the engine ask of it.
//! Not here: any such processor (`ops-cuda`), and the CPU, which needs none of this.

use crate::bind::{Bound, BoundCall};
use crate::invocation::Matrix;
use crate::operator::Kernel;
use crate::step::Step;
use crate::weight::Packed;
use std::io;

/// One GPU. The program, its verification, the memory plan, the checkpoints and the choice of kernels are the CPU's; a device
/// brings memory, kernels, a layout of the weights and a way to run the calls that an observer wants.
///
/// Addresses are the device's own: nothing on the host may follow them.
pub trait Device: Send + Sync {
    /// What it is, for people and records: `cuda:0 (NVIDIA H200)`.
    fn label(&self) -> String;

    /// Version of its driver.
    fn driver(&self) -> String;

    /// Its kernels, slowest first; of one operator and name the last one that takes a call is bound.
    fn kernels(&self) -> &'static [&'static Kernel];

    /// Bytes of its memory that nothing has taken.
    ///
    /// # Errors
    /// The driver's.
    fn free_bytes(&self) -> io::Result<usize>;

    /// `bytes` zeroed bytes, at least 256-byte aligned.
    ///
    /// # Errors
    /// No memory, with how much there is.
    fn allocate(&self, bytes: usize) -> io::Result<*mut u8>;

    /// Gives back what [`Device::allocate`] gave.
    fn free(&self, start: *mut u8);

    /// Copies to the device.
    ///
    /// # Errors
    /// The driver's.
    fn upload(&self, to: *mut u8, from: &[u8]) -> io::Result<()>;

    /// Copies from the device.
    ///
    /// # Errors
    /// The driver's.
    fn download(&self, from: *const u8, to: &mut [u8]) -> io::Result<()>;

    /// Writes a packed weight to `to` in the layout that its kernels read, which takes as many bytes as `weight.bytes`.
    ///
    /// # Errors
    /// The driver's.
    fn place(&self, weight: &Packed<'_>, to: *mut u8) -> io::Result<()>;

    /// Runs the calls of `bound` that are wanted, in order, and waits for them.
    ///
    /// # Errors
    /// The driver's; the step's results are then worthless.
    fn run(&self, bound: &Bound, step: &Step<'_>, wants: &dyn Fn(&BoundCall) -> bool) -> io::Result<()>;

    /// The lowest column with the largest value of a row of the output of the last whole run of `bound`.
    ///
    /// # Errors
    /// The driver's.
    fn argmax(&self, bound: &Bound, output: &Matrix<'_>, row: usize) -> io::Result<u32>;
}
