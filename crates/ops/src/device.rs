//! A processor with memory of its own that bound programs run on: what `bind`, the weights and the engine ask of it.
//! Not here: any such processor (`ops-cuda`), and the CPU, which needs none of this.

use crate::bind::{Bound, BoundCall};
use crate::invocation::Matrix;
use crate::operator::Kernel;
use crate::recording::{DeviceState, Launch, Record, Recording};
use crate::step::Step;
use crate::weight::Packed;
use std::io;

/// What a device does at most, in samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceCeilings {
    /// Bytes that were read from memory, and from the second-level cache; the largest footprint that the latter holds.
    pub memory_bytes: u64,
    pub cache_bytes: u64,
    pub cache_up_to: u64,
    /// In GB/s.
    pub memory: Vec<f64>,
    pub cache: Vec<f64>,
    /// Products of bfloat16 on the tensor cores, in GFLOP/s.
    pub products: Vec<f64>,
    /// One more kernel in a graph, which waits for the one before it, and a graph of one kernel from its start to the host's
    /// knowing of its end; in microseconds.
    pub launch: Vec<f64>,
    pub dispatch: Vec<f64>,
}

/// One GPU. The program, its verification, the memory plan, the checkpoints and the choice of kernels are the CPU's; a device
/// brings memory, kernels, a layout of the weights and a way to run the calls that an observer wants.
///
/// Addresses are the device's own: nothing on the host may follow them.
pub trait Device: Send + Sync {
    /// What it is, for people and records: `cuda:0 (NVIDIA H200)`.
    fn label(&self) -> String;

    /// Version of its driver.
    fn driver(&self) -> String;

    /// Clocks, temperature and power as they are now.
    ///
    /// # Errors
    /// No way to ask, in words.
    fn state(&self) -> Result<DeviceState, String>;

    /// Its kernels, slowest first; of one operator and name the last one that takes a call is bound.
    fn kernels(&self) -> &'static [&'static Kernel];

    /// Bytes of its memory that nothing has taken.
    ///
    /// # Errors
    /// The driver's.
    fn free_bytes(&self) -> io::Result<usize>;

    /// The most bytes that [`Device::allocate`] had given out at once since [`Device::reset_peak`], with what the device took
    /// when it was opened.
    fn peak_bytes(&self) -> usize;

    /// Counts the peak from now on.
    fn reset_peak(&self);

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
    /// The driver's; an output that a step begun ahead has overwritten.
    fn download(&self, from: *const u8, to: &mut [u8]) -> io::Result<()>;

    /// Writes a packed weight to `to` in the layout that its kernels read, which takes as many bytes as `weight.bytes`.
    ///
    /// # Errors
    /// The driver's.
    fn place(&self, weight: &Packed<'_>, to: *mut u8) -> io::Result<()>;

    /// Runs the calls of `bound` that are wanted, in order, and waits for them.
    ///
    /// With `ahead` the caller says that the next run, if one comes, is the same but for its token, which is this step's largest column,
    /// and its position, which is one more; the caches have room for it, and the model a position. A device may then begin that step
    /// before it is asked for. Of this one only [`Device::argmax`] may be asked. A step that was begun and is not asked for leaves no
    /// trace but in what it would have written: the caches' positions behind those that are filled, and the program's buffers.
    ///
    /// # Errors
    /// The driver's; the step's results are then worthless.
    fn run(&self, bound: &Bound, step: &Step<'_>, wants: &dyn Fn(&BoundCall) -> bool, ahead: bool) -> io::Result<()>;

    /// The lowest column with the largest value of a row of the output of the last whole run of `bound`.
    ///
    /// # Errors
    /// The driver's; an output that a step begun ahead has overwritten; of kind [`io::ErrorKind::InvalidData`] where the row's
    /// values are not finite, so that none of them is the largest.
    fn argmax(&self, bound: &Bound, output: &Matrix<'_>, row: usize) -> io::Result<u32>;

    /// Measures what it does at most: `rounds` samples of each quantity.
    ///
    /// # Errors
    /// The driver's; no room.
    fn ceilings(&self, rounds: usize) -> io::Result<DeviceCeilings>;

    /// Starts recording, or stops it; what was recorded before is forgotten when it starts.
    ///
    /// # Errors
    /// No profiler, or one that refuses, with how to get it.
    fn record(&self, what: Record) -> io::Result<()>;

    /// What was recorded between the last start and the stop after it.
    ///
    /// # Errors
    /// The profiler's; records that are of other launches than those that were made.
    fn recorded(&self) -> io::Result<Recording>;

    /// Nanoseconds from the start of the first call of the last run to the end of its last, by the device's own clock, while
    /// [`Record::Calls`] is on.
    fn calls_ns(&self) -> Option<u64>;

    /// Tells a profiler that this process runs under from where on to look, and until where.
    ///
    /// # Errors
    /// The driver's.
    fn watched(&self, on: bool) -> io::Result<()>;

    /// What the last run put into the queue, in order.
    fn launched(&self) -> Vec<Launch>;
}
